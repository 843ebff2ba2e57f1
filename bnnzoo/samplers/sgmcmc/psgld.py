"""Preconditioned stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common.control_variate import Anchor
from bnnzoo.samplers.kernel import choose, standard_normal
from bnnzoo.samplers.sgmcmc.stochastic_gradient import AbstractStochasticGradientSampler


class PsgldState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    square: Float[Array, " dim"]
    """Running mean v of g^2, where g is the mini-batch gradient divided by N."""
    count: UInt32[Array, ""]
    anchor: Anchor | None


class Psgld(AbstractStochasticGradientSampler[PsgldState]):
    """Draws near the posterior: SGLD in which parameters with larger gradients take smaller steps.

    Li et al. 2016 (arXiv 1512.07666), with the preconditioner of RMSprop. Let g be the mini-batch gradient
    grad log p_batch(theta) divided by the number of data N, eta_t the step size, and eps ~ N(0, I). A step is

        v <- alpha v + (1 - alpha) g^2;  G = 1 / (damping + sqrt(v))
        theta' = theta + eta_t G grad log p_batch(theta) + sqrt(2 eta_t G) eps

    Li et al. update v throughout the run. This requires an additional term Gamma = div G in the step, which they omit.
    Here v changes only in warm-up, so that Gamma is 0 afterwards. (Without warm-up v comes from one batch at the
    initial position.) The remaining bias is that of `sgld` with the step size eta G. For a Gaussian target of precision
    a and a mini-batch gradient of variance V, the variance of the draws is (1 + eta G V / 2) / (a (1 - eta G a / 2))
    instead of 1 / a.
    """

    alpha: Annotated[Number, Gt(0), Lt(1), Doc("weight of the old value in the running mean of squared gradients")] = (
        number(0.99)
    )
    damping: Annotated[
        Number,
        Gt(0),
        Doc("number added to the root mean square gradient; it limits the steps of parameters with small gradients"),
    ] = number(0.01)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> PsgldState:
        """Return the state at `theta`, with v = g^2 for one mini-batch."""
        del num_warmup
        anchor = self.anchor(posterior, theta)
        _, gradient = self.gradient(posterior, theta, None, self.batch(posterior, key=key))
        square = jnp.nan_to_num(gradient / posterior.num_data) ** 2
        return PsgldState(theta, square, jnp.zeros((), jnp.uint32), anchor)

    def warmup_step(
        self, posterior: AbstractPosterior, state: PsgldState, *, key: PRNGKeyArray
    ) -> tuple[PsgldState, Stats]:
        """Make one step and update v."""
        return self._step(posterior, state, jnp.asarray(self.alpha, state.position.dtype), key=key)

    def step(self, posterior: AbstractPosterior, state: PsgldState, *, key: PRNGKeyArray) -> tuple[PsgldState, Stats]:
        """Make one step without a change of v."""
        return self._step(posterior, state, None, key=key)

    def _step(
        self, posterior: AbstractPosterior, state: PsgldState, alpha: Float[Array, ""] | None, *, key: PRNGKeyArray
    ) -> tuple[PsgldState, Stats]:
        key_batch, key_noise = jax.random.split(key)
        batch = self.batch(posterior, key=key_batch)
        lp_estimate, gradient = self.gradient(posterior, state.position, state.anchor, batch)
        finite = jnp.isfinite(jnp.sum(gradient))
        square = state.square
        if alpha is not None:
            square = choose(finite, alpha * square + (1 - alpha) * (gradient / posterior.num_data) ** 2, square)
        eta = self.eta(state.count, gradient)
        parameter_eta = eta / (self.damping + jnp.sqrt(square))
        eps = standard_normal(state.position, key=key_noise)
        position = choose(
            finite, state.position + parameter_eta * gradient + jnp.sqrt(2 * parameter_eta) * eps, state.position
        )
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta}
        return PsgldState(position, square, state.count + 1, state.anchor), stats

    def metric(self, state: PsgldState) -> Float[Array, " dim"]:
        """Return G, the factor of each parameter's step size."""
        return 1 / (self.damping + jnp.sqrt(state.square))
