"""The anchor that all chains share, computed on other machines that hold the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.assembly import Problem
from bnnzoo.assembly.description import Description
from bnnzoo.assembly.network_posterior import build_posterior
from bnnzoo.posterior import NetworkPosterior, backend
from bnnzoo.posterior.base import Data
from bnnzoo.posterior.row_map import RowMap
from bnnzoo.recipe import Recipe
from bnnzoo.samplers import AbstractSampler
from bnnzoo.samplers.common.control_variate import Anchor, make_anchor


class _Work(NamedTuple):
    """Everything but the rows that determines the anchor."""

    recipe: Recipe
    description: Description
    fixed: Mapping[str, np.ndarray]
    centre: Float[np.ndarray, " dim"]
    is_second_order: bool


def with_shared_anchor(
    problem: Problem, fixed: Mapping[str, np.ndarray], sampler: AbstractSampler, row_map: RowMap
) -> Problem:
    """Return the problem whose posterior has the anchor at its centre; unchanged if the sampler needs no anchor.

    The derivatives at the anchor are sums over the rows. Each shard of the rows gives one part of the sums.

    Args:
        problem: the problem of a run that samples a subspace.
        fixed: the arrays that define the subspace.
        sampler: the sampler with the chosen values of its `auto` fields.
        row_map: evaluation of a function for each shard of the rows.
    """
    posterior, order = problem.network_posterior, getattr(sampler, "order", "none")
    centre = posterior.centre()
    if order == "none" or centre is None:
        return problem
    recipe = dataclasses.replace(problem.recipe, where={})  # names of options, which the workers do not need
    work = _Work(recipe, problem.require_description(), fixed, np.asarray(centre), order == "second")
    parts = row_map(_anchor_part, work, np.asarray(posterior.data.x), np.asarray(posterior.data.y))
    gradient, hessian = jax.tree.map(lambda *values: jnp.asarray(sum(values)), *parts)
    anchor = Anchor(jnp.asarray(centre), gradient, hessian)
    return dataclasses.replace(problem, posterior=dataclasses.replace(posterior, expansion=anchor))


def _anchor_part(work: _Work, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the gradient and the Hessian of the sum of the log-likelihoods of some rows, at the centre."""
    with backend.arithmetic(work.recipe.precision):
        posterior = build_posterior(work.recipe, work.description, None, work.fixed)
        posterior = dataclasses.replace(posterior, data=Data(x, y), adds_by_block=True)
        anchor = _make_anchor(posterior, jnp.asarray(work.centre), work.is_second_order)
        return jax.tree.map(np.asarray, (anchor.gradient, anchor.hessian))


@eqx.filter_jit
def _make_anchor(posterior: NetworkPosterior, centre: Float[Array, " dim"], second: bool) -> Any:
    return make_anchor(posterior, centre, second=second)
