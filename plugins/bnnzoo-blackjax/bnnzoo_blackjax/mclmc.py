"""Microcanonical Langevin Monte Carlo without an accept step, through BlackJAX."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from annotated_types import Gt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers import AbstractSampler, Statistic, Stats, replace
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY, STEP_SIZE
from bnnzoo_blackjax.kernel import check_dim
from bnnzoo_blackjax.metric import Metric, alike, rescaled, shared, strong

_GUARD = 1000.0
"""A step whose squared energy error is this many times the wanted one is not taken."""
_MEMORY = (150 - 1.0) / (150 + 1.0)
_TRUST = 1.5


class MclmcState(eqx.Module):
    """BlackJAX's state (position, unit momentum, log density, gradient) and what warm-up tunes."""

    inner: Any
    step_size: Float[Array, ""]
    metric: Metric
    weight: Float[Array, ""]
    excess: Float[Array, ""]
    """Weighted sum of energy errors squared over the wanted ones, each brought to a step size of 1."""

    @property
    def position(self) -> Float[Array, "*chains dim"]:
        return self.inner.position


class Mclmc(AbstractSampler[MclmcState]):
    """Draws near the posterior, one gradient each: an isokinetic integrator with partial refreshment of the direction.

    Robnik, De Luca, Silverstein and Seljak 2023, arXiv 2212.08549; for networks Sommer et al. 2025, arXiv 2502.06335,
    who start each chain at a member of a deep ensemble, as `init: map` does. There is no accept step: the bias grows
    with `energy_variance`. In warm-up the step size follows Var[E] ~ step^6 to that value (their section on tuning),
    and a diagonal metric the variances that the chains saw; step sizes are in its units. The direction decoheres over
    `length` sqrt(dim). A step that is not finite, or whose energy error is far out of range, is not taken: the chain
    stays, with a fresh direction, and the draw is marked `diverging`.
    """

    exactness: ClassVar[Literal["biased"]] = "biased"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, DIVERGING, STEP_SIZE, Statistic("energy_error"))

    step_size: Annotated[Number, Gt(0), Doc("of the integrator, start value")] = number(0.01)
    length: Annotated[Number, Gt(0), Doc("decoherence length, in sqrt(dim) standard deviations")] = number(1.0)
    energy_variance: Annotated[Number, Gt(0), Doc("variance of a step's energy error a parameter")] = number(5e-4)

    def check(self, posterior: AbstractPosterior) -> None:
        check_dim(posterior)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> MclmcState:
        from blackjax.mcmc import mclmc

        del num_warmup
        inner = strong(mclmc.init(theta, posterior.log_density, key))
        zero = jnp.zeros((), theta.dtype)
        return MclmcState(inner, jnp.asarray(self.step_size, theta.dtype), Metric.identity(theta), zero, zero)

    def step(self, posterior: AbstractPosterior, state: MclmcState, *, key: PRNGKeyArray) -> tuple[MclmcState, Stats]:
        from blackjax.mcmc import mclmc

        dim = state.position.shape[0]
        kernel = mclmc.build_kernel(desired_energy_var=self.energy_variance, desired_energy_var_max_ratio=_GUARD)  # type: ignore[arg-type]
        inner, info = kernel(
            key,
            state.inner,
            posterior.log_density,
            state.metric.inverse_mass,
            self.length * dim**0.5,  # type: ignore[arg-type]
            state.step_size,  # type: ignore[arg-type]
        )
        inner = alike(inner, state.inner)
        stats = {
            "lp": inner.logdensity,
            "energy_error": jnp.asarray(info.energy_change),
            "diverging": jnp.all(inner.position == state.position),
            "step_size": state.step_size,
        }
        return replace(state, inner=inner), stats

    def warmup_step(
        self, posterior: AbstractPosterior, state: MclmcState, *, key: PRNGKeyArray
    ) -> tuple[MclmcState, Stats]:
        new, stats = self.step(posterior, state, key=key)
        failed = stats["diverging"]
        # xi / step^6 is what the excess would be at a step size of 1; errors far from the wanted one weigh little.
        log_xi = jnp.log(stats["energy_error"] ** 2 / (state.position.shape[0] * self.energy_variance) + 1e-8)
        now = jnp.where(failed, 0.0, jnp.exp(-((log_xi / (6 * _TRUST)) ** 2) / 2))
        at_one = jnp.exp(jnp.clip(log_xi - 6 * jnp.log(state.step_size), -80.0, 80.0))
        weight = _MEMORY * state.weight + now
        excess = _MEMORY * state.excess + now * at_one
        wanted = (excess / jnp.maximum(weight, 1e-30)) ** (-1 / 6)
        step_size = jnp.clip(wanted, 0.5 * state.step_size, 2 * state.step_size)
        step_size = jnp.where(failed, 0.8 * state.step_size, jnp.where(weight > 0, step_size, state.step_size))
        # After a failure what was learnt does not hold: shorter steps are to be judged anew.
        zero = jnp.zeros_like(weight)
        weight, excess = jnp.where(failed, zero, weight), jnp.where(failed, zero, excess)
        return MclmcState(new.inner, step_size, new.metric.seen(new.position), weight, excess), stats

    def settle(self, posterior: AbstractPosterior, state: MclmcState, *, final: bool, key: PRNGKeyArray) -> MclmcState:
        del posterior, key
        if final:
            return state
        new = state.metric.settled()
        step_size = rescaled(state.step_size, state.metric.inverse_mass, new.inverse_mass)
        zero = jnp.zeros_like(state.weight)
        return MclmcState(state.inner, step_size, new, zero, zero)

    def tune(
        self, posterior: AbstractPosterior, states: MclmcState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler, MclmcState]:
        del posterior, final, key, num_steps
        return self, shared(states)
