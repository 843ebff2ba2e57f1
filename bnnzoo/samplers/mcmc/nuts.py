"""The No-U-Turn sampler, through NumPyro."""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import NUTS
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.mcmc import numpyro_kernels
from bnnzoo.samplers.mcmc.coordinates import WHITEN_LAST_LAYER
from bnnzoo.samplers.statistics import TREE_DEPTH, Statistic

_MIN_DEPTH = 4


class Nuts(numpyro_kernels.AbstractHamiltonianSampler):
    """Draws from the posterior: Hamiltonian trajectories that stop before they turn back.

    Hoffman and Gelman 2014; Betancourt 2017. Warm-up adapts the step size. It also sets the inverse mass matrix, a
    diagonal plus low-rank matrix, from the positions and gradients of all chains (`low_rank`). Early in warm-up the
    steps are often far too small. A trajectory (tree) then reaches its maximum depth without moving far. To save time,
    warm-up therefore uses a smaller maximum depth (`warmup_tree_depth`).
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (*numpyro_kernels.STATISTICS, TREE_DEPTH)
    budget_field: ClassVar[str] = "max_tree_depth"

    step_size: Annotated[Number, Gt(0), Doc("step size of the leapfrog integrator (initial value)")] = number(0.01)
    max_tree_depth: Annotated[
        int, Ge(1), Le(15), Doc("maximum tree depth: at most 2^depth - 1 leapfrog steps per draw")
    ] = 10
    warmup_tree_depth: Annotated[
        int, Ge(1), Le(15), Doc("maximum tree depth in warm-up, if it is smaller than max_tree_depth")
    ] = 5
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.8)
    whiten_last_layer: Annotated[bool, Doc(WHITEN_LAST_LAYER)] = True

    @property
    def gradients(self) -> int:
        """Maximum number of gradients of a step, 2^`max_tree_depth` - 1."""
        return 2**self.max_tree_depth - 1

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> int:
        """Return the largest tree depth for which `gradients` gradients suffice, but at least `_MIN_DEPTH`.

        The depth is at most `max_tree_depth`.
        """
        del posterior, thetas
        return int(np.clip(np.log2(gradients + 1), _MIN_DEPTH, self.max_tree_depth))

    def kernel(self, potential: numpyro_kernels.Potential, step_size: Number, *, warmup: bool) -> NUTS:
        """Return NumPyro's NUTS kernel."""
        depth = min(self.warmup_tree_depth, self.max_tree_depth) if warmup else self.max_tree_depth
        return NUTS(
            potential_fn=potential,
            step_size=step_size,  # type: ignore[arg-type]
            adapt_step_size=False,
            adapt_mass_matrix=False,
            max_tree_depth=depth,
        )

    def move(
        self, posterior: AbstractPosterior, state: numpyro_kernels.HamiltonianState, *, warmup: bool, key: PRNGKeyArray
    ) -> tuple[numpyro_kernels.HamiltonianState, Stats]:
        """Make one trajectory and report its tree depth."""
        state, stats = super().move(posterior, state, warmup=warmup, key=key)
        depth = jnp.ceil(jnp.log2(stats["n_steps"].astype(stats["lp"].dtype) + 1))
        return state, {**stats, "tree_depth": depth}
