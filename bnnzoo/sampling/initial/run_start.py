"""Initial positions from the draws of an earlier run, for the recipe's `init: run.nc`."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from bnnzoo import store
from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.files.shell import resume_call
from bnnzoo.store import schema


def last_draws(problem: Problem, path: Path) -> Float[np.ndarray, "chain dim"]:
    """Return the last draw of each chain of an earlier run as the positions of the chains.

    If the problem has more chains than the run, each further chain starts at an earlier draw of one of these chains.
    These draws are evenly spaced.

    Args:
        problem: the problem. Its network must have the parameters of the run's network, with the same shapes.
        path: the file of the run.

    Raises:
        UsageError: if there is no such run, if a parameter is missing or has another shape, or if the file is damaged.
    """
    with store.open_tree(path) as tree:
        chains, draws = _shape(tree, path)
        num_chains = problem.recipe.chains
        distance = draws // -(-num_chains // chains)
        places = [(chain % chains, draws - 1 - chain // chains * distance) for chain in range(num_chains)]
        return np.stack([_position(problem, tree, path, *place) for place in places])


def best_draw(problem: Problem, path: Path) -> Float[np.ndarray, " dim"]:
    """Return the draw with the largest log density in the file of an earlier run.

    If the file has no log densities, the last draw of the last chain is returned.

    Raises:
        UsageError: as for `last_draws`.
    """
    with store.open_tree(path) as tree:
        chains, draws = _shape(tree, path)
        statistics = tree[schema.SAMPLE_STATS].data_vars if schema.SAMPLE_STATS in tree.children else {}
        if "lp" not in statistics:
            return _position(problem, tree, path, chains - 1, draws - 1)
        log_densities = np.nan_to_num(store.read_array(path, statistics["lp"]), nan=-np.inf)
        chain, draw = np.unravel_index(np.argmax(log_densities), log_densities.shape)
        return _position(problem, tree, path, int(chain), int(draw))


def _shape(tree: xr.DataTree, path: Path) -> tuple[int, int]:
    sizes = tree[schema.POSTERIOR].sizes if schema.POSTERIOR in tree.children else {}
    if not all(sizes.get(dim) for dim in schema.SAMPLED):
        raise UsageError(f"{path}: [[init]]: the run has no draws yet; continue it with {resume_call(path)}")
    return sizes[schema.CHAIN], sizes[schema.DRAW]


def _position(problem: Problem, tree: xr.DataTree, path: Path, chain: int, draw: int) -> Float[np.ndarray, " dim"]:
    """Return one draw as a position of the problem's posterior.

    Parameters of the likelihood and of the prior that the run did not sample get a prior draw, the same for all chains.
    """
    posterior = problem.network_posterior
    usual = np.asarray(posterior.start(key=jax.random.key(0)))
    natural = {name: values[0] for name, values in posterior.natural(usual[None]).items()}
    of_network = {block.name for block in posterior.layout.network.blocks}
    constant = tree[schema.CONSTANT_DATA].data_vars if schema.CONSTANT_DATA in tree.children else {}
    for block in posterior.layout.blocks:
        if block.name in tree[schema.POSTERIOR].data_vars:
            values = store.read_array(path, tree[schema.POSTERIOR].data_vars[block.name][chain, draw])
        elif schema.FIXED + block.name in constant:
            values = store.read_array(path, constant[schema.FIXED + block.name])
        elif block.name in of_network:
            if schema.KEPT_ROWS in constant:
                raise UsageError(
                    f"{path}: [[init]]: the run kept predictions instead of parameters; use a run with [[keep=draws]]"
                )
            if schema.FIXED + "basis" in constant:
                raise UsageError(
                    f"{path}: [[init]]: the run sampled directions of the parameters, not the parameters themselves; "
                    "use a run with [[stochastic=all]]"
                )
            raise UsageError(
                f"{path}: [[init]]: the run has no parameter {block.name}, which {problem.recipe.model.name} needs; "
                "use the model of that run"
            )
        else:
            continue
        if values.shape != tuple(block.shape):
            raise UsageError(
                f"{path}: [[init]]: {block.name} has shape {list(values.shape)} in the run, but "
                f"{list(block.shape)} in {problem.recipe.model.name}; use the model and the columns of that run"
            )
        natural[block.name] = values
    flat = np.concatenate([np.ravel(natural[block.name]) for block in posterior.layout.blocks])
    return np.asarray(posterior.unconstrained(flat), jnp.dtype(posterior.dtype))
