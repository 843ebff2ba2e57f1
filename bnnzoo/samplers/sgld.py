"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Le
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.number import Number, number
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._base import AbstractSampler, Exactness, Stats, choose, standard_normal


class SgldState(eqx.Module):
    position: Float[Array, " dim"]
    count: Float[Array, ""]


class Sgld(AbstractSampler[SgldState]):
    """Draws near the posterior: theta' = theta + eta_t grad log p_batch(theta) + sqrt(2 eta_t) eps, no accept step.

    Welling and Teh 2011. The batch's log-likelihood is scaled by num_data / batch_size. Biased: for a Gaussian
    target of precision a and gradient noise V the variance is (1 + eta V / 2) / (a (1 - eta a / 2)), not 1 / a.
    Decreasing steps: eta_t = eta (1 + t / delay)^-decay.
    """

    exactness: ClassVar[Exactness] = "biased"

    step_size: Annotated[Number, Gt(0), Doc("eta; never adapted")] = number(1e-5)
    batch_size: Annotated[int, Ge(1), Doc("data a step, n")] = 50
    sampling: Annotated[Literal["replacement", "disjoint"], Doc("may a datum be twice in a batch")] = "replacement"
    schedule: Annotated[Literal["constant", "decreasing"], Doc("of the step size")] = "constant"
    decay: Annotated[Number, Gt(0), Le(1), Doc("exponent of a decreasing step size")] = number(0.55)
    delay: Annotated[Number, Gt(0), Doc("steps before a decreasing step size falls")] = number(1000.0)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SgldState:
        del posterior, num_warmup, key
        return SgldState(theta, jnp.zeros((), theta.dtype))

    def step(self, posterior: AbstractPosterior, state: SgldState, *, key: PRNGKeyArray) -> tuple[SgldState, Stats]:
        key_batch, key_noise = jax.random.split(key)
        batch = posterior.minibatch(self.batch_size, replace=self.sampling == "replacement", key=key_batch)
        scale = posterior.likelihood_power * (posterior.num_data / self.batch_size)

        def log_density(theta):
            return posterior.log_prior(theta) + scale * jnp.sum(posterior.log_likelihood(theta, batch))

        lp_estimate, gradient = jax.value_and_grad(log_density)(state.position)
        eta = jnp.asarray(self.step_size, gradient.dtype)
        if self.schedule == "decreasing":
            eta = eta * (1 + state.count / self.delay) ** -self.decay
        eps = standard_normal(state.position, key=key_noise)
        # One number tells whether the step is finite, before it is taken: a pass less than looking at its end.
        finite = jnp.isfinite(jnp.sum(gradient))
        position = choose(finite, state.position + eta * gradient + jnp.sqrt(2 * eta) * eps, state.position)
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta}
        return SgldState(position, state.count + 1), stats

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        del posterior, means
        return float(self.batch_size)

    def check(self, posterior: AbstractPosterior) -> None:
        if self.sampling == "disjoint" and self.batch_size > posterior.num_data:
            raise UsageError(
                f"--sampler.batch-size: {self.batch_size} different data a batch, but there are {posterior.num_data}; "
                f"use at most {posterior.num_data}, or --sampler.sampling replacement"
            )
