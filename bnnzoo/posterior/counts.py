"""Likelihoods of overdispersed counts: negative binomial and zero-inflated Poisson.

The outputs begin with one log rate for each target. As in `Poisson`, a log probability is computed as its maximum over
the means, minus the distance from this maximum. In single precision, the results are then accurate for large counts,
and the gradients are finite.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from annotated_types import Gt
from jaxtyping import Array, Float, Shaped
from typing_extensions import Doc

from bnnzoo.posterior.count_targets import check_counts
from bnnzoo.posterior.hyperparameter import Number, as_number
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter, Poisson, half_normal

_MIN_DISPERSION = 1e-30
"""Lower limit of the dispersion, so that 1 / dispersion does not overflow. At the limit the counts are Poisson."""


class NegativeBinomial(AbstractLikelihood):
    """Counts with mean m = exp(output) and variance m + dispersion m^2: Poisson with a gamma-distributed rate."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    dispersion: Annotated[
        Number | Literal["learned"],
        Gt(0),
        Doc("variance = mean + dispersion * mean^2; `learned`: one value per target, with a HalfNormal(1) prior"),
    ] = eqx.field(converter=as_number, default="learned")
    _targets: int = eqx.field(static=True, default=1)

    def num_outputs(self, num_targets: int) -> int:
        """Return the number of outputs: one log rate per target."""
        return num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        """Return the negative binomial distribution with mean exp(output)."""
        size = 1 / jnp.maximum(jnp.asarray(self.dispersion, output.dtype), _MIN_DISPERSION)
        return dist.NegativeBinomial2(jnp.exp(output), jnp.broadcast_to(size, output.shape)).to_event(1)

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the log probability of the counts, summed over targets."""
        size = 1 / jnp.maximum(jnp.asarray(self.dispersion, output.dtype), _MIN_DISPERSION)
        log_prob_of_counts = _peak(target, size) - _below_peak(output, target, size)
        return jnp.sum(jnp.where(target == 0, -size * jnp.logaddexp(0.0, output - jnp.log(size)), log_prob_of_counts))

    def with_exposure(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        """Return the log rates with the log exposure added."""
        return output + log_exposure

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the largest log probability of the counts over all means.

        If the dispersion is learned, return the largest over all means and dispersions.
        """
        if isinstance(self.dispersion, str):
            return Poisson().upper_bound(target)  # the Poisson distribution, dispersion 0, is the most concentrated
        return jnp.sum(jnp.where(target > 0, _peak(target, 1 / jnp.maximum(self.dispersion, _MIN_DISPERSION)), 0))

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the sampled parameter `dispersion` if it is learned, else no parameter."""
        return half_normal("dispersion", self._targets) if isinstance(self.dispersion, str) else ()

    def of_targets(self, count: int) -> AbstractLikelihood:
        """Return the same likelihood for `count` targets. If the dispersion is learned, each target has its own."""
        return dataclasses.replace(self, _targets=count)

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        """Raise a `UsageError` if a target is not a count."""
        del num_targets
        check_counts(targets, "negative-binomial")


class ZeroInflatedPoisson(AbstractLikelihood):
    """Counts that are 0 with an extra probability, and Poisson otherwise (Lambert 1992).

    Outputs: a log rate for each target, then for each target the logit of the probability of an extra zero.
    """

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    def num_outputs(self, num_targets: int) -> int:
        """Return the number of outputs: a log rate and a logit per target."""
        return 2 * num_targets

    def distribution(self, output: Float[Array, " output"]) -> dist.Distribution:
        """Return the zero-inflated Poisson distribution."""
        log_rate, logit = jnp.split(output, 2)
        return dist.ZeroInflatedDistribution(dist.Poisson(jnp.exp(log_rate)), gate_logits=logit).to_event(1)

    def log_prob(self, output: Float[Array, " output"], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the log probability of the counts, summed over targets."""
        log_rate, logit = jnp.split(output, 2)
        log_extra, log_counted = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
        # Limit the log rate to 80. A Poisson zero then has probability 0 in any precision, and the gradient of a larger
        # rate could be NaN.
        log_zero = jnp.logaddexp(log_extra, log_counted - jnp.exp(jnp.minimum(log_rate, 80.0)))
        poisson_log_prob = jax.vmap(lambda f, y: Poisson().log_prob(f[None], y[None]))
        log_count = poisson_log_prob(jnp.where(target == 0, 0.0, log_rate), jnp.maximum(target, 1))
        return jnp.sum(jnp.where(target == 0, log_zero, log_counted + log_count))

    def with_exposure(self, output: Float[Array, " output"], log_exposure: Float[Array, ""]) -> Float[Array, " output"]:
        """Return the log rates with the log exposure added; the logits stay unchanged."""
        log_rate, logit = jnp.split(output, 2)
        return jnp.concatenate([log_rate + log_exposure, logit])

    def upper_bound(self, target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the bound of the Poisson likelihood. The bound is attained if an extra zero has probability 0."""
        return Poisson().upper_bound(target)

    def check(self, targets: np.ndarray, num_targets: int) -> None:
        """Raise a `UsageError` if a target is not a count."""
        del num_targets
        check_counts(targets, "zero-inflated-poisson")


def _stirling_error(z: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the error of Stirling's formula, log z! - (z + 1/2) log z + z - log(2 pi) / 2, for positive z.

    For z >= 10 the error is computed by Stirling's series.
    """
    large, small = jnp.maximum(z, 10.0), jnp.minimum(z, 10.0)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / large**2) / large**2) / large
    direct = jax.scipy.special.gammaln(small + 1) - (small + 0.5) * jnp.log(small) + small - jnp.log(2 * jnp.pi) / 2
    return jnp.where(z < 10, direct, series)


def _peak(target: Shaped[Array, "*target"], size: Float[Array, "..."]) -> Float[Array, "*target"]:
    """Return the largest negative binomial log probability of a count >= 1 over all means; `size` is 1 / dispersion.

    The maximum is at the mean equal to the count. The formula is the saddle-point expansion of Loader (2000). It has no
    large terms that would cancel.
    """
    count = jnp.maximum(target, 1.0)
    errors = _stirling_error(size + count) - _stirling_error(size) - _stirling_error(count)
    return errors + (jnp.log(size / (size + count)) - jnp.log(2 * jnp.pi * count)) / 2


def _below_peak(
    output: Float[Array, " output"], target: Shaped[Array, "*target"], size: Float[Array, "..."]
) -> Float[Array, "*target"]:
    """Return `_peak` minus the log probability of the count at the mean exp(output), for counts >= 1."""
    count = jnp.maximum(target, 1.0)
    log_ratio = jnp.where(target == 0, 0.0, output) - jnp.log(count)
    size_fraction, count_fraction = size / (size + count), count / (size + count)
    return size * _log_mean_exp(size_fraction, count_fraction, log_ratio) + count * _log_mean_exp(
        count_fraction, size_fraction, -log_ratio
    )


def _log_mean_exp(
    rest: Float[Array, "..."], fraction: Float[Array, "..."], exponent: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return log(rest + fraction e^exponent) for rest + fraction = 1. Results near 0 have full relative precision."""
    relative_change = fraction * jnp.expm1(jnp.minimum(exponent, 80.0))
    is_near = (relative_change > -0.5) & (relative_change < 1)
    tiny = jnp.finfo(fraction.dtype).tiny
    large_form = jnp.logaddexp(jnp.log(jnp.maximum(rest, tiny)), jnp.log(jnp.maximum(fraction, tiny)) + exponent)
    return jnp.where(is_near, jnp.log1p(jnp.where(is_near, relative_change, 0.0)), large_form)
