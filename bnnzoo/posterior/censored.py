"""Likelihoods of censored targets: the density of a known value, the probability of an interval of unknown ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.posterior.intervals import log_likelihood
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter


class Censored(AbstractLikelihood):
    """A likelihood whose target is a smallest and a largest value, `[target, 2]`: equal where the value is known.

    Where they differ, the datum's likelihood is the probability that the value lies strictly between them (Tobin 1958
    for bounds on one side). Its distribution is that of the value itself, as if nothing were censored.
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    law: AbstractLikelihood

    @property
    def scales_targets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the likelihood of known values."""
        return self.law.scales_targets

    @property
    def noise_by_row(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the likelihood of known values."""
        return self.law.noise_by_row

    def num_outputs(self, num_targets: int) -> int:
        return self.law.num_outputs(num_targets)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        return self.law.distribution(output)

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        if target.ndim == 1:  # known values alone
            return self.law.log_prob(output, target)
        return log_likelihood(self.law.distribution(output), target[:, 0], target[:, 1])

    def sample(self, output: Float[Array, " output"], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]:
        return self.law.sample(output, key=key)

    def exposed(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        return self.law.exposed(output, log_exposure)

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        if target.ndim == 1:
            return self.law.upper_bound(target)
        known = target[:, 0] == target[:, 1]
        peaks = jax.vmap(lambda value: self.law.upper_bound(value[None]))(jnp.where(known, target[:, 0], 0.0))
        return jnp.sum(jnp.where(known, peaks, 0.0))

    def parameters(self) -> tuple[Parameter, ...]:
        return self.law.parameters()

    def with_parameters(self, values: Mapping[str, Array]) -> AbstractLikelihood:
        return Censored(self.law.with_parameters(values))

    def of_targets(self, count: int) -> AbstractLikelihood:
        return dataclasses.replace(self, law=self.law.of_targets(count))

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        bounds: Any = targets if targets.ndim == 3 else np.stack([targets, targets], -1)
        low, high = bounds[..., 0], bounds[..., 1]
        self.law.check(np.where(low == high, low, 0.0), num_targets)


def uncensored(likelihood: AbstractLikelihood) -> AbstractLikelihood:
    """The likelihood of known values: what a recipe names."""
    return likelihood.law if isinstance(likelihood, Censored) else likelihood


def has_rates(likelihood: AbstractLikelihood) -> bool:
    """Whether the likelihood describes counts whose rates an exposure can multiply."""
    return type(uncensored(likelihood)).exposed is not AbstractLikelihood.exposed
