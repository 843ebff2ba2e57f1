"""The anchor that all chains share, computed by the workers that hold the rows.

The anchor is the expansion point of the sampler's control variate, with the derivatives of the log-likelihood there.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.assembly import Problem
from bnnzoo.assembly.description import Description
from bnnzoo.assembly.network_posterior import build_posterior
from bnnzoo.errors import BnnzooWarning
from bnnzoo.posterior import NetworkPosterior, backend
from bnnzoo.posterior.base import Data
from bnnzoo.posterior.row_map import LostWorkersError, RowMap, map_locally
from bnnzoo.recipe import Recipe
from bnnzoo.samplers import AbstractSampler
from bnnzoo.samplers.common.control_variate import Anchor, make_anchor
from bnnzoo.sampling.devices.processes import Processes


@dataclasses.dataclass(frozen=True)
class Work:
    """All values that determine the anchor, except the rows of the data."""

    recipe: Recipe
    description: Description
    fixed: Mapping[str, np.ndarray]
    centre: Float[np.ndarray, " dim"]
    is_second_order: bool


def with_shared_anchor(
    problem: Problem, fixed: Mapping[str, np.ndarray], sampler: AbstractSampler, row_map: RowMap
) -> tuple[Problem, int]:
    """Return the problem with an anchor at the centre of its posterior, and the number of shards of the rows.

    If the sampler needs no such anchor, the problem is unchanged, and the number is 0. The derivatives at the anchor
    are sums over the rows. Each shard of the rows gives one part of the sums. If several processes share the run, the
    first process computes the anchor for all processes. If a worker is lost, the first process computes all sums.

    Args:
        problem: the problem of a run that samples a subspace.
        fixed: the arrays that define the subspace.
        sampler: the sampler with the chosen values of its `auto` fields.
        row_map: calls a function for each shard of the rows, and returns the results.
    """
    posterior, order = problem.network_posterior, getattr(sampler, "order", "none")
    centre, prepares = posterior.centre(), type(sampler).prepare is not AbstractSampler.prepare
    if order == "none" or centre is None or not prepares:
        return problem, 0
    processes = Processes.current()
    derivatives: Any = (
        np.zeros_like(centre),
        np.zeros((len(centre),) * 2, centre.dtype) if order == "second" else None,
    )
    num_shards = 0
    with processes.share_first_error():
        if processes.is_first:
            recipe = dataclasses.replace(problem.recipe, where={})  # names of options, which the workers do not need
            work = Work(recipe, problem.require_description(), fixed, np.asarray(centre), order == "second")
            parts = _parts(work, np.asarray(posterior.data.x), np.asarray(posterior.data.y), row_map)
            derivatives, num_shards = jax.tree.map(lambda *values: sum(values), *parts), len(parts)
    gradient, hessian = jax.tree.map(jnp.asarray, processes.broadcast_first(derivatives))
    anchor = Anchor(jnp.asarray(centre), gradient, hessian)
    problem = dataclasses.replace(problem, posterior=dataclasses.replace(posterior, expansion=anchor))
    return problem, processes.broadcast_first(num_shards)


def _parts(work: Work, x: np.ndarray, y: np.ndarray, row_map: RowMap) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return the derivatives for each shard of the rows; if a worker is lost, for all rows, computed here."""
    try:
        return row_map(anchor_part, work, x, y)
    except LostWorkersError:
        message = "[[scheduler]]: a worker was lost, so the derivatives at the mode are computed on this machine"
        warnings.warn(message, BnnzooWarning, stacklevel=2)
        return map_locally(anchor_part, work, x, y)


def anchor_part(work: Work, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the gradient and the Hessian of the sum of the log-likelihoods of some rows, at `work.centre`."""
    with backend.arithmetic(work.recipe.precision):
        posterior = build_posterior(work.recipe, work.description, None, work.fixed)
        posterior = dataclasses.replace(posterior, data=Data(x, y), adds_by_block=True)
        anchor = _make_anchor(posterior, jnp.asarray(work.centre), work.is_second_order)
        return jax.tree.map(np.asarray, (anchor.gradient, anchor.hessian))


@eqx.filter_jit
def _make_anchor(posterior: NetworkPosterior, centre: Float[Array, " dim"], second: bool) -> Any:
    return make_anchor(posterior, centre, second=second)
