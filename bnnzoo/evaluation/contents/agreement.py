"""Checks of a run file: its arrays must have the names, types and shapes that its attributes imply.

Later computations rely on these checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from bnnzoo.assembly import RestoredModel
from bnnzoo.data import Signature
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.store import schema


def check(tree: xr.DataTree, path: Path | None, model: RestoredModel) -> None:
    """Check the names, types and shapes of the arrays in the file, without reading the draws.

    Args:
        tree: contents of the file.
        path: path of the file, for messages; None for a run in memory.
        model: the model that the file names, or the posterior that the user gave.

    Raises:
        DamagedError: if an array is missing, or its name, type or shape is wrong; the message names file and array.
        UsageError: if the posterior that the user gave is not the posterior that was sampled.
    """
    is_given = bool(model.data_sha256)
    if is_given and tree.attrs.get("data_sha256") != model.data_sha256:
        raise UsageError(
            f"{path or 'the run'}: was sampled with data that differ from the data of the given posterior; give "
            "the posterior that was sampled"
        )
    if schema.POSTERIOR not in tree.children:
        return  # no draws yet
    posterior = tree[schema.POSTERIOR]
    chain_draw_sizes = tuple(posterior.sizes.get(name, 0) for name in schema.SAMPLED)
    blocks = {block.name: block for block in model.posterior.layout.blocks}
    names_in_file = {str(name) for name in posterior.data_vars}
    if is_given and not names_in_file >= set(blocks):
        unmatched_name = sorted(set(blocks) - names_in_file)[0]
        raise UsageError(
            f"{path or 'the run'}: has no draws of the site {unmatched_name} of the given posterior; give the "
            "posterior that was sampled"
        )
    if not is_given and names_in_file != set(blocks):
        unmatched_name = sorted(names_in_file ^ set(blocks))[0]
        raise _damaged(
            path,
            f"posterior/{unmatched_name}",
            "is missing" if unmatched_name in blocks else "is not a parameter of the model in the file",
        )
    shapes: dict[str, tuple[Any, ...]] = {
        f"posterior/{name}": (*chain_draw_sizes, *block.shape) for name, block in blocks.items()
    }
    if schema.SAMPLE_STATS in tree.children:
        shapes |= {f"{schema.SAMPLE_STATS}/{name}": chain_draw_sizes for name in tree[schema.SAMPLE_STATS].data_vars}
    shapes |= _rows(tree, path, model.signature)
    points = {f"constant_data/{schema.LINEARISED_AT}{n}": (chain_draw_sizes[0], *b.shape) for n, b in blocks.items()}
    # A file stores a point of linearisation for all blocks or for none; the loop below reports a missing one.
    if any(_variable(tree, name) is not None for name in points):
        if not model.linearised:
            raise _damaged(path, next(iter(points)), "belongs to another sampler than the sampler in the recipe")
        shapes |= points
    for name, shape in shapes.items():
        variable = _variable(tree, name)
        if variable is None:
            raise _damaged(path, name, "is missing")
        is_draw = name.startswith(f"{schema.POSTERIOR}/")
        has_right_type = variable.dtype == model.precision if is_draw else variable.dtype.kind in "biuf"
        if variable.shape != shape or not has_right_type:
            expected = f"{model.precision if is_draw else 'numbers '}{list(shape)}"
            raise _damaged(path, name, f"is {variable.dtype}{list(variable.shape)}, expected {expected}")
        # The values are read by position. An array whose chains and draws are swapped may have the right shape, so the
        # names of the dimensions are checked too.
        if is_draw and variable.dims[:2] != schema.SAMPLED:
            raise _damaged(
                path, name, f"has the dimensions {', '.join(map(str, variable.dims))}; expected chain, draw first"
            )


def check_finite(draws: Float[np.ndarray, "some dim"], posterior: Predicting | None, path: Path | None) -> None:
    """Check that the network weights are finite, and that the other parameters have possible values.

    The other parameters are those of the likelihood and of the prior. On its natural scale, such a parameter is allowed
    to underflow to 0 or to overflow to infinity. Draws of a posterior that has no network are not checked.

    Raises:
        DamagedError: if a weight is not finite or another parameter is impossible; the message names the file.
    """
    if not isinstance(posterior, NetworkPosterior):
        return
    weights = draws[:, : posterior.layout.network.dim]
    with np.errstate(all="ignore"):
        if not np.isfinite(np.sum(weights)) and not np.isfinite(weights).all():
            raise _damaged(path, "posterior", "contains numbers that are not finite")
        if not draws.shape[1] > weights.shape[1]:
            return
        own_parameters = posterior.own_parameters()
        for block in posterior.layout.blocks:
            if (
                block.name in own_parameters
                and np.isnan(own_parameters[block.name].unconstrained(draws[:, block.start : block.stop])).any()
            ):
                raise _damaged(path, f"posterior/{block.name}", "contains numbers outside the range of the parameter")


def _rows(tree: xr.DataTree, path: Path | None, signature: Signature) -> Mapping[str, tuple[int, ...]]:
    """Return the expected shapes of inputs and targets.

    The shape of a row comes from the signature. The number of rows is the length of the inputs in the file.

    Raises:
        DamagedError: if the file has test inputs or test targets, but no test rows.
    """
    targets = signature.target_shape
    shapes: dict[str, tuple[int, ...]] = {}
    for x, y in (("constant_data/x", "observed_data/y"), ("constant_data/x_test", "constant_data/y_test")):
        rows = _variable(tree, x)
        if x.endswith("_test") and rows is None and _variable(tree, y) is None:
            continue
        count = rows.shape[0] if rows is not None and rows.ndim else 0
        if x.endswith("_test") and not count:
            raise _damaged(path, x, "has no rows")
        is_column = y.startswith(schema.OBSERVED_DATA) and targets == (1,)
        shapes |= {x: (count, *signature.shape), y: (count,) if is_column else (count, *targets)}
    return shapes


def _variable(tree: xr.DataTree, name: str) -> xr.DataArray | None:
    """Return the variable `group/name`, or None if the file does not have it."""
    group, variable = name.split("/")
    return tree[group].data_vars.get(variable) if group in tree.children else None


def _damaged(path: Path | None, name: str, problem: str) -> DamagedError:
    run_name = path or "the run"
    return DamagedError(f"{run_name}: damaged: {ascii(name)[1:-1]} {problem}")
