"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Lt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common.control_variate import Anchor
from bnnzoo.samplers.kernel import choose, standard_normal
from bnnzoo.samplers.sgmcmc.stochastic_gradient import AbstractStochasticGradientSampler
from bnnzoo.samplers.statistics import N_STEPS, Statistic


class SgldState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    count: UInt32[Array, ""]
    anchor: Anchor | None


class Sgld(AbstractStochasticGradientSampler[SgldState]):
    """Draws near the posterior: theta' = theta + eta_t grad log p_batch(theta) + sqrt(2 eta_t) eps, no accept step.

    Welling and Teh 2011. eta_t is the step size, and eps ~ N(0, I). In log p_batch, the sum of the log-likelihoods of a
    mini-batch is multiplied by num_data / batch_size. The draws are biased. For a Gaussian target of precision a and a
    mini-batch gradient of variance V, their variance is (1 + eta V / 2) / (a (1 - eta a / 2)) instead of 1 / a.

    If the schedule of the step size is cyclical, a cycle can begin with an exploration part. It consists of large
    gradient steps without noise, which lead to another mode (Zhang et al. 2020, arXiv 1902.03932, algorithm 1). The
    field `exploration` is the fraction of the cycle's steps in this part. If a step of the sampler begins in the
    exploration part, it first makes all remaining steps of this part, and then one step with noise. Every draw
    therefore comes from the rest of the cycle.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (*AbstractStochasticGradientSampler.statistics, N_STEPS)

    exploration: Annotated[
        Number,
        Ge(0),
        Lt(1),
        Doc("for schedule cyclical: fraction of a cycle in which steps have no noise and give no draws"),
    ] = number(0.0)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SgldState:
        """Return the state at `theta`."""
        del num_warmup, key
        return SgldState(theta, jnp.zeros((), jnp.uint32), self.anchor(posterior, theta))

    def step(self, posterior: AbstractPosterior, state: SgldState, *, key: PRNGKeyArray) -> tuple[SgldState, Stats]:
        """Make one Langevin step. If the chain is in the exploration part of a cycle, complete this part first."""
        key_batch, key_noise, key_explore = jax.random.split(key, 3)
        explored_stats: Stats = {}
        if self.schedule == "cyclical":
            state, explored = self._explore(posterior, state, key=key_explore)
            explored_stats["n_steps"] = 1 + explored
        batch = self.batch(posterior, key=key_batch)
        lp_estimate, gradient = self.gradient(posterior, state.position, state.anchor, batch)
        eta = self.eta(state.count, gradient)
        eps = standard_normal(state.position, key=key_noise)
        # The sum of the gradient shows whether the step is finite, so the new position need not be tested.
        finite = jnp.isfinite(jnp.sum(gradient))
        position = choose(finite, state.position + eta * gradient + jnp.sqrt(2 * eta) * eps, state.position)
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta, **explored_stats}
        return SgldState(position, state.count + 1, state.anchor), stats

    @property
    def _num_exploring(self) -> UInt32[Array, ""]:
        """Number of steps in the exploration part of a cycle.

        The factor 1 - 1e-6 prevents an additional step if float32 rounds `exploration` up, such as 0.8.
        """
        return jnp.ceil((1 - 1e-6) * self.exploration * self.cycle).astype(jnp.uint32)

    def _explore(
        self, posterior: AbstractPosterior, state: SgldState, *, key: PRNGKeyArray
    ) -> tuple[SgldState, Int[Array, ""]]:
        """Complete the exploration part if the chain is in it. Return the state and the number of steps made.

        The number is 0 if the chain is not in the exploration part of a cycle.
        """

        def is_exploring(carry: Any) -> Bool[Array, ""]:
            state, num_steps = carry
            return (state.count % jnp.uint32(self.cycle) < self._num_exploring) & (num_steps < self.cycle)

        def descend(carry: Any) -> tuple[SgldState, Int[Array, ""]]:
            state, num_steps = carry
            batch = self.batch(posterior, key=jax.random.fold_in(key, num_steps))
            _, gradient = self.gradient(posterior, state.position, state.anchor, batch)
            eta = self.eta(state.count, gradient)
            position = choose(jnp.isfinite(jnp.sum(gradient)), state.position + eta * gradient, state.position)
            return SgldState(position, state.count + 1, state.anchor), num_steps + 1

        return jax.lax.while_loop(is_exploring, descend, (state, jnp.zeros((), jnp.int32)))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse `exploration` without a cyclical schedule, and a value that leaves no step of a cycle for draws.

        Raises:
            UsageError: if `exploration`, the batch size or the control variate is not supported.
        """
        super().check(posterior)
        if self.exploration > 0 and self.schedule != "cyclical":
            raise UsageError(
                f"[[sampler.exploration]]: requires [[sampler.schedule=cyclical]] (got {self.schedule}); change the "
                "schedule, or remove [[sampler.exploration]]"
            )
        if self._num_exploring > self.cycle - 1:
            raise UsageError(
                f"[[sampler.exploration]]: must leave at least one step of each cycle of {self.cycle} steps for draws "
                f"(got {self.exploration:g}); use a smaller value, or a longer [[sampler.cycle]]"
            )
