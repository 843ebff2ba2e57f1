"""Whether the arrays of a run's file are those that its words promise; what is computed of them takes it as given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnnzoo.assembly import Problem
from bnnzoo.data import Signature
from bnnzoo.errors import UsageError
from bnnzoo.store import schema


def check(tree: xr.DataTree, path: Path | None, problem: Problem) -> None:
    """Compare names, types and shapes. No array is read but those of few numbers.

    Raises:
        UsageError: naming the file and the variable.
    """
    if schema.POSTERIOR not in tree.children:
        return  # no draws yet
    posterior = tree[schema.POSTERIOR]
    lead = tuple(posterior.sizes.get(name, 0) for name in schema.SAMPLED)
    blocks = {block.name: block for block in problem.posterior.layout.blocks}
    shapes: dict[str, tuple[Any, ...]] = {f"posterior/{name}": (*lead, *block.shape) for name, block in blocks.items()}
    held = {str(name) for name in posterior.data_vars}
    if held != set(blocks):
        odd = sorted(held ^ set(blocks))[0]
        raise _damaged(path, f"posterior/{odd}", "is not in it" if odd in blocks else "is no parameter of its model")
    for group in (schema.SAMPLE_STATS,):
        if group in tree.children:
            shapes |= {f"{group}/{name}": lead for name in tree[group].data_vars}
    if problem.description is not None:
        shapes |= _rows(tree, problem.description.signature)
        shapes |= {f"constant_data/{schema.LINEARISED_AT}{n}": (lead[0], *b.shape) for n, b in blocks.items()}
    for name, shape in shapes.items():
        group, variable = name.split("/")
        if group in tree.children and variable in tree[group].data_vars:
            found = tree[group][variable]
            if found.shape != shape or found.dtype.kind not in "biuf":
                raise _damaged(path, name, f"is {found.dtype}{list(found.shape)}, not {list(shape)}")
        elif not variable.startswith((schema.LINEARISED_AT, "x_test", "y_test")):
            raise _damaged(path, name, "is not in it")


def check_finite(weights: np.ndarray, path: Path | None) -> None:
    """A run keeps no weight of a network that is not finite. (A scale may have left the numbers on its natural scale.)

    Raises:
        UsageError: naming the file.
    """
    with np.errstate(all="ignore"):
        if not np.isfinite(np.sum(weights)) and not np.isfinite(weights).all():
            raise _damaged(path, "posterior", "holds numbers that are not finite")


def _rows(tree: xr.DataTree, like: Signature) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the data: rows as the signature says, as many targets as inputs."""
    targets = () if like.task == "classification" else (len(like.target_names),)
    constant = tree[schema.CONSTANT_DATA] if schema.CONSTANT_DATA in tree.children else {}
    found: dict[str, tuple[int, ...]] = {}
    for x, y in (("constant_data/x", "observed_data/y"), ("constant_data/x_test", "constant_data/y_test")):
        name = x.split("/")[1]
        count = constant[name].shape[0] if name in constant and constant[name].ndim else 0
        found |= {x: (count, *like.shape), y: (count, *targets)}
    return found


def _damaged(path: Path | None, name: str, problem: str) -> UsageError:
    where = path or "the run"
    return UsageError(f"{where}: damaged: {ascii(name)[1:-1]} {problem}")
