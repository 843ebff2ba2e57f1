"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Lt
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common.control_variate import Anchor
from bnnzoo.samplers.kernel import choose, standard_normal
from bnnzoo.samplers.sgmcmc.stochastic_gradient import AbstractStochasticGradientSampler


class SghmcState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    count: UInt32[Array, ""]
    anchor: Anchor | None


class Sghmc(AbstractStochasticGradientSampler[SghmcState]):
    """Draws near the posterior: Langevin dynamics with momentum and friction on mini-batch gradients, no accept step.

    Chen, Fox and Guestrin 2014 (arXiv 1402.4102), with two changes: the noise of the gradient is not estimated, and the
    splitting BAOA of Leimkuhler and Matthews (2013, Appl. Math. Res. Express 34) replaces Euler steps. Let eta_t be the
    step size, h = sqrt(2 eta_t), eps ~ N(0, I), and c the fraction of the momentum p that is kept. A step is

        p <- p + h grad log p_batch(theta);  theta <- theta + h p / 2;  p <- c p + sqrt(1 - c^2) eps;
        theta <- theta + h p / 2

    A step moves as far as a step of `sgld` with the step size eta (1 + c) / (1 - c). For a Gaussian target of precision
    a and a mini-batch gradient of variance V, the variance of the draws is
    (1 + eta V (1 + c) / (2 (1 - c) (1 - eta a / 2))) / a instead of 1 / a. If V is 0, the variance is exactly 1 / a at
    any stable step size.
    """

    chain_state: ClassVar[tuple[str, ...]] = ("momentum", "count")

    momentum: Annotated[Number, Ge(0), Lt(1), Doc("c: fraction of the momentum that a step keeps")] = number(0.9)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SghmcState:
        """Return the state at `theta`, with a random momentum."""
        del num_warmup
        momentum = standard_normal(theta, key=key)
        return SghmcState(theta, momentum, jnp.zeros((), jnp.uint32), self.anchor(posterior, theta))

    def step(self, posterior: AbstractPosterior, state: SghmcState, *, key: PRNGKeyArray) -> tuple[SghmcState, Stats]:
        """Make one step of the splitting BAOA."""
        key_batch, key_noise = jax.random.split(key)
        batch = self.batch(posterior, key=key_batch)
        lp_estimate, gradient = self.gradient(posterior, state.position, state.anchor, batch)
        eta = self.eta(state.count, gradient)
        h, keep = jnp.sqrt(2 * eta), jnp.asarray(self.momentum, eta.dtype)
        eps = standard_normal(state.position, key=key_noise)
        finite = jnp.isfinite(jnp.sum(gradient))
        kicked_momentum = state.momentum + h * gradient
        new_momentum = keep * kicked_momentum + jnp.sqrt(1 - keep**2) * eps
        position = state.position + h / 2 * (kicked_momentum + new_momentum)
        # A chain whose gradient is not finite stays in place and gets a new momentum.
        position, momentum = choose(finite, (position, new_momentum), (state.position, eps))
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta}
        return SghmcState(position, momentum, state.count + 1, state.anchor), stats

    def variance_ratio(self, length: Float[Array, ""], noise: Float[Array, ""], *, num_data: int) -> Float[Array, ""]:
        """Return 1 + eta V (1 + c) / (2 (1 - c) (1 - eta a / 2)), with eta a = `length` and eta V = `noise`.

        The result is infinite if the step is unstable.
        """
        del num_data
        excess = noise * (1 + self.momentum) / (2 * (1 - self.momentum)) / jnp.maximum(1 - length / 2, 0.0)
        return jnp.where(length < 2, 1 + excess, jnp.inf)
