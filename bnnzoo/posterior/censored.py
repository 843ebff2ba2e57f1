"""Likelihoods of censored targets: for a censored target, only an interval that contains the value is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.posterior.intervals import log_likelihood
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter


class Censored(AbstractLikelihood):
    """A likelihood of targets that are given by a lower and an upper bound, shape `[target, 2]`.

    The field `likelihood` is the likelihood without censoring. If the bounds of a target are equal, its value is known,
    and `likelihood` gives the density. If the bounds differ, the likelihood is the probability that the value lies
    strictly between the bounds (Tobin 1958, for one-sided bounds).
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    likelihood: AbstractLikelihood

    @property
    def scales_targets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the targets may be standardised, the same as for `likelihood`."""
        return self.likelihood.scales_targets

    @property
    def noise_by_row(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the outputs determine the noise scale, the same as for `likelihood`."""
        return self.likelihood.noise_by_row

    def num_outputs(self, num_targets: int) -> int:
        """Return the number of outputs that `likelihood` needs."""
        return self.likelihood.num_outputs(num_targets)

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        """Return the distribution of the uncensored values."""
        return self.likelihood.distribution(output)

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the log density of the known values plus the log probabilities of the intervals."""
        if target.ndim == 1:  # all values are known
            return self.likelihood.log_prob(output, target)
        return log_likelihood(self.likelihood.distribution(output), target[:, 0], target[:, 1])

    def sample(self, output: Float[Array, " output"], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]:
        """Draw the uncensored targets of one datum."""
        return self.likelihood.sample(output, key=key)

    def with_exposure(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        return self.likelihood.with_exposure(output, log_exposure)

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return an upper bound of the log-likelihood over all outputs.

        A target with a known value contributes the bound of `likelihood`. An interval contributes log 1 = 0.
        """
        if target.ndim == 1:
            return self.likelihood.upper_bound(target)
        is_known, count = target[:, 0] == target[:, 1], len(target)

        def axis(field: Any) -> int | None:  # a field can be an array with a value for each target, such as a scale
            return 0 if count > 1 and np.shape(field) == (count,) else None

        peaks = eqx.filter_vmap(lambda law, value: law.upper_bound(value[None]), in_axes=(axis, 0))(
            self.likelihood, jnp.where(is_known, target[:, 0], 0.0)
        )
        return jnp.sum(jnp.where(is_known, peaks, 0.0))

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the sampled parameters of `likelihood`."""
        return self.likelihood.parameters()

    def with_parameters(self, values: Mapping[str, Array]) -> AbstractLikelihood:
        """Return the same likelihood with its sampled parameters set to `values`, on their natural scale."""
        return Censored(self.likelihood.with_parameters(values))

    def of_targets(self, count: int) -> AbstractLikelihood:
        """Return the same likelihood for `count` targets."""
        return dataclasses.replace(self, likelihood=self.likelihood.of_targets(count))

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        """Check that the likelihood can produce the known values, and that each interval of counts contains a count.

        Raises:
            UsageError: if a known value is impossible or an interval contains no count; the message names the row.
        """
        bounds: Any = targets if targets.ndim == 3 else np.stack([targets, targets], -1)
        low, high = bounds[..., 0], bounds[..., 1]
        self.likelihood.check(np.where(low == high, low, 0.0), num_targets)
        if not has_rates(self.likelihood):
            return
        smallest_count, largest_count = np.maximum(np.floor(low) + 1, 0.0), np.ceil(high) - 1
        for row, column in np.argwhere((low < high) & (largest_count < smallest_count))[:1]:
            raise UsageError(
                f"row {row + 1}, target {column + 1}: no count lies strictly between {low[row, column]:g} and "
                f"{high[row, column]:g}; to include an end, write <=5, >=5 or [1,2]"
            )


def uncensored(likelihood: AbstractLikelihood) -> AbstractLikelihood:
    """Return the likelihood without censoring: the field `likelihood` of `Censored`, or any other likelihood itself."""
    return likelihood.likelihood if isinstance(likelihood, Censored) else likelihood


def has_rates(likelihood: AbstractLikelihood) -> bool:
    """Whether the outputs of the likelihood contain log rates, so that an exposure can multiply the rates."""
    return type(uncensored(likelihood)).with_exposure is not AbstractLikelihood.with_exposure
