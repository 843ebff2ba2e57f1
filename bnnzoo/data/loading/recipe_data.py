"""Loading of the training rows of a recipe, on request with the columns and the encoding of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.data.encoding.input_encoding import Encoding
from bnnzoo.data.formats.frames import is_frame
from bnnzoo.data.formats.idx import IdxFolder
from bnnzoo.data.loading.load import COLUMN_FIELDS, load, load_like
from bnnzoo.data.loading.selection import ColumnChoice, refuse_table_options
from bnnzoo.data.loading.sources import Spec, source_of
from bnnzoo.data.rows.dataset import Dataset
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import UsageError
from bnnzoo.recipe import Recipe


def load_recipe_data(recipe: Recipe, spec: Spec = None, signature: Signature | None = None) -> Dataset:
    """Load the data of a recipe for training.

    Args:
        recipe: the recipe; its options for tables are used.
        spec: the data; by default the data that the recipe names.
        signature: the properties of the training data of an earlier run if the draws of that run determine the prior;
            otherwise None. The rows are then checked and encoded as the rows of the earlier run. If the recipe sets
            options about the notation of cells or missing cells, they replace the options of the earlier run.

    Raises:
        UsageError: if no data are named, if the data are invalid, or if they do not match `signature`.
    """
    if spec is None and recipe.data is None:
        raise UsageError("no data; name a data set or a file with [[data]] (bnnzoo list datasets)")
    reading = Reading.from_options(**{name: getattr(recipe, name) for name in vars(PLAIN)})
    options = {name: getattr(recipe, name) for name in COLUMN_FIELDS}
    spec = recipe.data if spec is None else spec
    if signature is None:
        return load(spec, **options, reading=reading)
    del options["task"]
    choice = ColumnChoice.from_options(**options, reading=reading)
    return _load_like_earlier(spec, _with_options(signature, choice, recipe), choice)


def _with_options(signature: Signature, choice: ColumnChoice, recipe: Recipe) -> Signature:
    """Return the signature of an earlier run, with the options for tables that the user set for the new run."""
    reading_names = [name for name in vars(PLAIN) if name != "censored" and name in recipe.where]
    changed_reading = {name: getattr(choice.reading, name) for name in reading_names}
    signature = signature._replace(reading=replace(signature.reading, **changed_reading))
    changes: Any = {name: getattr(choice, name) for name in ("missing", "unseen") if name in recipe.where}
    if not changes or not signature.feature_names or signature.task == "density":
        return signature
    encoding = replace(signature.encoding or Encoding.of_numbers(signature.feature_names), **changes)
    return signature._replace(encoding=None if encoding == Encoding.of_numbers(encoding.inputs) else encoding)


def _load_like_earlier(spec: Spec, signature: Signature, choice: ColumnChoice) -> Dataset:
    """Load the training rows and, if there is one, the test set. Check and encode them as in an earlier run.

    Raises:
        UsageError: if the data do not match `signature`, or if `choice` selects other columns than the earlier run.
    """
    if isinstance(spec, Dataset) and spec.signature == signature:
        return spec
    source = None if isinstance(spec, tuple) or is_frame(spec) else source_of(spec, choice.reading, signature)
    if isinstance(source, IdxFolder):
        source = source.dataset("classification")
    if not isinstance(source, Dataset):
        return load_like(spec, signature, choice=choice)
    refuse_table_options(spec, choice)
    rows = load_like(replace(source, test=None), signature)
    return replace(rows, test=source.test and load_like(source.test, signature))
