"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._control_variate import Anchor
from bnnzoo.samplers._stochastic_gradient import AbstractStochasticGradientSampler, langevin_variance_ratio
from bnnzoo.samplers.base import Exactness, Stats
from bnnzoo.samplers.kernel import choose, standard_normal


class SgldState(eqx.Module):
    position: Float[Array, " dim"]
    count: UInt32[Array, ""]
    anchor: Anchor | None


class Sgld(AbstractStochasticGradientSampler[SgldState]):
    """Draws near the posterior: theta' = theta + eta_t grad log p_batch(theta) + sqrt(2 eta_t) eps, no accept step.

    Welling and Teh 2011. The batch's log-likelihood is scaled by num_data / batch_size. Biased: for a Gaussian
    target of precision a and gradient noise V the variance is (1 + eta V / 2) / (a (1 - eta a / 2)), not 1 / a.
    """

    exactness: ClassVar[Exactness] = "biased"

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SgldState:
        del num_warmup, key
        return SgldState(theta, jnp.zeros((), jnp.uint32), self.anchor(posterior, theta))

    def step(self, posterior: AbstractPosterior, state: SgldState, *, key: PRNGKeyArray) -> tuple[SgldState, Stats]:
        key_batch, key_noise = jax.random.split(key)
        batch = self.batch(posterior, key=key_batch)
        lp_estimate, gradient = self.gradient(posterior, state.position, state.anchor, batch)
        eta = self.eta(state.count, gradient)
        eps = standard_normal(state.position, key=key_noise)
        # One number tells whether the step is finite, before it is taken: a pass less than looking at its end.
        finite = jnp.isfinite(jnp.sum(gradient))
        position = choose(finite, state.position + eta * gradient + jnp.sqrt(2 * eta) * eps, state.position)
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta}
        return SgldState(position, state.count + 1, state.anchor), stats

    def variance_ratio(
        self, length: Float[Array, ""], noise: Float[Array, ""], *, num_batches: int
    ) -> Float[Array, ""]:
        del num_batches
        return langevin_variance_ratio(length, noise)
