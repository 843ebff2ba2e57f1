"""Adjusted microcanonical Langevin Monte Carlo, through BlackJAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers import Stats, replace
from bnnzoo.samplers.mcmc.isokinetic import check_dim
from bnnzoo_blackjax.kernel import AbstractKernel, KernelState

if TYPE_CHECKING:
    from blackjax.base import SamplingAlgorithm

_GRADIENTS = 2
"""Number of gradients in a step of McLachlan's integrator.

As in bnnzoo's other samplers, the statistic `n_steps` counts gradients. BlackJAX counts steps of the integrator.
"""
_MIN_STEPS = 8


class AdjustedMclmc(AbstractKernel):
    """Draws from the posterior by microcanonical trajectories of random length, with a Metropolis acceptance test.

    Robnik, Cohn-Gordon and Seljak 2025, arXiv 2503.01707. The number of steps of a trajectory is uniform on
    1, ..., 2 m - 1, with the mean m = length sqrt(dim) / step_size (at least 1, at most max_steps). The number of steps
    does not depend on the state. Step sizes are in units of the standard deviations estimated in warm-up.
    """

    exactness: ClassVar[Literal["exact"]] = "exact"
    budget_field: ClassVar[str] = "max_steps"

    step_size: Annotated[Number, Gt(0), Doc("step size of the integrator (initial value)")] = number(0.01)
    length: Annotated[Number, Gt(0), Doc("mean length of a trajectory, in units of sqrt(dim) standard deviations")] = (
        number(1.0)
    )
    max_steps: Annotated[int, Ge(1), Doc("upper limit for the mean number of steps of a trajectory")] = 500
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.9)

    @property
    def gradients(self) -> int:
        """Maximum number of gradients in a trajectory."""
        return _GRADIENTS * (2 * self.max_steps - 1)

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> int:
        """Return the largest `max_steps` for at most `gradients` gradients per trajectory.

        The result is at least `_MIN_STEPS` and at most the present `max_steps`. A present `max_steps` below
        `_MIN_STEPS` is returned without change.
        """
        del posterior, thetas
        affordable = int((gradients / _GRADIENTS + 1) / 2)
        return max(min(_MIN_STEPS, self.max_steps), min(affordable, self.max_steps))

    def check(self, posterior: AbstractPosterior) -> None:
        """Raise `UsageError` if the posterior has fewer than two parameters."""
        check_dim(posterior)

    def algorithm(
        self, log_density: Callable, step_size: Float[Array, ""], inverse_mass: Float[Array, " dim"]
    ) -> SamplingAlgorithm:
        """Return BlackJAX's algorithm with a uniform random number of steps per trajectory."""
        mean = jnp.clip(self.length * inverse_mass.shape[0] ** 0.5 / step_size, 1, self.max_steps)

        def num_steps(key: PRNGKeyArray) -> Array:
            return jax.random.randint(key, (), 1, 2 * jnp.rint(mean).astype(jnp.int32))

        import blackjax

        return blackjax.adjusted_mclmc_dynamic(
            log_density, step_size, inverse_mass_matrix=inverse_mass, integration_steps_fn=num_steps
        )

    def step(self, posterior: AbstractPosterior, state: KernelState, *, key: PRNGKeyArray) -> tuple[KernelState, Stats]:
        # BlackJAX takes the key for the number of steps from the state. Replace it by a key that is derived from `key`.
        key, key_length = jax.random.split(key)
        state_with_key = replace(state, inner=state.inner._replace(random_generator_arg=key_length))
        next_state, stats = super().step(posterior, state_with_key, key=key)
        # Restore the old key, so that the state depends on the positions only.
        inner = next_state.inner._replace(random_generator_arg=state.inner.random_generator_arg)
        return replace(next_state, inner=inner), {**stats, "n_steps": _GRADIENTS * stats["n_steps"]}
