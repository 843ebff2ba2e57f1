"""A recipe for data that come without the name of a model or a sampler.

What they choose, benchmarks/own_data.py holds to models that need no tuning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bnnzoo.data import Dataset, load_asked
from bnnzoo.errors import UsageError
from bnnzoo.recipe import Layer, read_layer, resolve

MOST_ROWS = 20_000
"""A microcanonical step looks at every row twice: beyond this many a network makes too few of them in two minutes."""


def chosen(layers: Iterable[Layer], options: Mapping[str, Any], data: Any = None) -> tuple[Layer, Dataset]:
    """The shipped recipe that suits the data, below everything else that was said, and the data themselves.

    Args:
        data: in memory, instead of what the options name.

    Raises:
        UsageError: for anything wrong with the options or the data.
    """
    # How data are read depends on no part: any names will do until the rows are there.
    asked = resolve("mlp", "mclmc", layers, options, in_memory=data is not None)
    dataset = load_asked(asked, data)
    from bnnzoo.assembly.parts import named_task  # imports JAX: what is wrong with the data was said before

    name, why = rule(dataset.as_task(asked.task or named_task(asked)))
    note = f"{dataset.name}: {why}: the recipe {name} (bnnzoo show --config {name})"
    return read_layer(name), replace(dataset, notes=(*dataset.notes, note))


def rule(dataset: Dataset) -> tuple[str, str]:
    """The name of a shipped recipe, and why that one.

    Raises:
        UsageError: for data without inputs, which no recipe is for.
    """
    if dataset.task == "density":
        raise UsageError(
            f"{dataset.name}: no inputs; name model and sampler: bnnzoo sample autoregressive nuts --data ..."
        )
    rows = f"{dataset.num_data} rows"
    if dataset.x.ndim > 2:
        return "images", f"{rows} of images"
    if dataset.num_data > MOST_ROWS:
        kind = "large-table" if dataset.task == "regression" else "large-table-classes"
        return kind, f"{rows}, more than chains on all of them get through"
    kind = "small-table" if dataset.task == "regression" else "small-table-classes"
    return kind, f"{rows}, few enough for chains on all of them"
