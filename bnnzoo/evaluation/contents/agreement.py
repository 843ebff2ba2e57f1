"""Consistency of a run file: its arrays must have the names, types and shapes that its attributes imply.

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
    """Check names, types and shapes. Only small arrays are read.

    Raises:
        DamagedError: if they are inconsistent; the message names the file and the variable.
        UsageError: if the given posterior is not the one that was sampled.
    """
    is_given = bool(model.data_sha256)
    if is_given and tree.attrs.get("data_sha256") != model.data_sha256:
        raise UsageError(
            f"{path or 'the run'}: was sampled from other data than the given posterior has; give the "
            "posterior that was sampled"
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
            f"{path or 'the run'}: has no site {unmatched_name}, but the given posterior has; give the posterior "
            "that was sampled"
        )
    if not is_given and names_in_file != set(blocks):
        unmatched_name = sorted(names_in_file ^ set(blocks))[0]
        raise _damaged(
            path,
            f"posterior/{unmatched_name}",
            "is missing" if unmatched_name in blocks else "is not a parameter of its model",
        )
    shapes: dict[str, tuple[Any, ...]] = {
        f"posterior/{name}": (*chain_draw_sizes, *block.shape) for name, block in blocks.items()
    }
    if schema.SAMPLE_STATS in tree.children:
        shapes |= {f"{schema.SAMPLE_STATS}/{name}": chain_draw_sizes for name in tree[schema.SAMPLE_STATS].data_vars}
    shapes |= _rows(tree, path, model.signature)
    points = {f"constant_data/{schema.LINEARISED_AT}{n}": (chain_draw_sizes[0], *b.shape) for n, b in blocks.items()}
    # Either all blocks have a point of linearisation or none has; a partial set cannot be used.
    if any(_variable(tree, name) is not None for name in points):
        if not model.linearised:
            raise _damaged(path, next(iter(points)), "belongs to another sampler")
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
        # Values are addressed by position. A transposed array may have the right shape, so the dimensions are checked
        # too.
        if is_draw and variable.dims[:2] != schema.SAMPLED:
            raise _damaged(
                path, name, f"has the dimensions {', '.join(map(str, variable.dims))}, expected chain, draw first"
            )


def check_finite(draws: Float[np.ndarray, "some dim"], posterior: Predicting | None, path: Path | None) -> None:
    """Check that draws hold no non-finite network weight and no invalid scale.

    On its natural scale, a parameter may underflow to 0 or overflow to infinity. Draws of an unknown posterior are not
    checked.

    Raises:
        DamagedError: if they do; the message names the file.
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
                raise _damaged(path, f"posterior/{block.name}", "contains impossible numbers")


def _rows(tree: xr.DataTree, path: Path | None, signature: Signature) -> Mapping[str, tuple[int, ...]]:
    """Return the expected shapes of the data: rows as in the signature, and equally many inputs and targets."""
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
