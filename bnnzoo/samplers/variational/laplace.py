"""The Laplace approximation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.finding import Finding, setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common import climb
from bnnzoo.samplers.common import curvature as _curvature
from bnnzoo.samplers.kernel import standard_normal
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY_ESTIMATE, Statistic
from bnnzoo.samplers.variational import training

_FULL_UP_TO = 1000
"""Largest number of parameters for which `covariance: auto` uses the full covariance."""
_MAX_FULL = 5000
"""Largest number of parameters for which `covariance: full` is accepted."""
_MAX_WORK = 1e12
"""Largest number of multiplications for which `covariance: auto` uses Kronecker products."""
_MAX_DISTANCE = 0.25
"""Largest accepted squared distance to the mode, per parameter: the square of 0.5 standard deviations.

The posterior of a network has curved valleys, in which the steps towards the mode are short. A squared distance of up
to 0.1 therefore remains, even after many steps.
"""

Factor = _curvature.Factor | _curvature.Kronecker


class LaplaceState(eqx.Module):
    """State of a chain: its latest draw, the mode and the factor of the Gaussian, and the state of the training."""

    position: Float[Array, " dim"]
    mode: Float[Array, " dim"]
    factor: Factor
    adam: training.Adam


class Laplace(training.AbstractTrainedSampler[LaplaceState]):
    """Independent draws from a Gaussian at a mode of the posterior, with the curvature of the posterior there.

    MacKay 1992; for deep networks Daxberger et al. 2021, Laplace Redux. The Gaussian is N(mode, P^-1). By default P is
    the generalised Gauss-Newton matrix, beta sum_i J_i' H_i J_i + the curvature of the prior. beta is the likelihood
    power, and J_i is the Jacobian of the outputs for datum i. H_i is the Hessian of -log p(y_i | output), with its
    negative eigenvalues set to 0. With `curvature: fisher`, g_i g_i' replaces J_i' H_i J_i, where g_i is the gradient
    of the datum's log-likelihood. With `curvature: hessian`, P is minus the Hessian of the log density, with its
    smallest eigenvalues raised. This Hessian exists for any posterior. P is full, diagonal, or a Kronecker product for
    each array of parameters. The likelihood can have parameters of its own, such as a noise scale. With `ggn` and
    `fisher` these parameters are independent of all others. Their precision is the diagonal of minus the exact Hessian.

    If there is a warm-up, it continues the initial training towards the mode by Adam. Then up to ten steps that use all
    data lead to the mode, and P is computed at the mode. (With Adam alone, the noise of the batches would cause an
    error in the mode. This error could exceed the width of a narrow posterior.) To sample only the last layer, use
    `--stochastic last`. A prior that is flat or has a kink at the mode has no curvature there. With `ggn` and `fisher`
    the curvature of the prior is therefore raised to at least the inverse of the prior's variance.

    P is the posterior precision of the network linearised at the mode, f(x, mode) + J(x, mode) (theta - mode).
    Predictions therefore use this linear model (Immer, Korzepa and Bauer 2021). With `predictive: network` the
    predictions use f(x, theta) itself. They are then too wide in directions in which P is small.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY_ESTIMATE, DIVERGING, Statistic("log_q"))

    covariance: Annotated[
        Literal["auto", "full", "kronecker", "diagonal"],
        Doc("form of the covariance; auto: the most accurate form that is affordable"),
    ] = "auto"
    curvature: Annotated[
        _curvature.Kind, Doc("ggn: Gauss-Newton matrix; fisher: outer products of gradients; hessian: exact Hessian")
    ] = "ggn"
    predictive: Annotated[
        Literal["linearised", "network"],
        Doc("network used for predictions: linearised at the mode, or the network itself"),
    ] = "linearised"
    learning_rate: Annotated[Number, Gt(0), Doc("learning rate of Adam; it falls to 0 over warm-up")] = number(1e-2)
    batch_size: Annotated[int, Ge(1), Doc("n: number of rows per warm-up step")] = 128

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse values of `curvature`, `covariance` and `predictive` that the posterior does not support.

        Raises:
            UsageError: if these values give no Gaussian or no linear model, or if the Gaussian is too expensive.
        """
        if not posterior.has_outputs:
            if self.curvature != "hessian":
                raise UsageError(
                    f"sampler laplace: {setting('sampler.curvature', self.curvature)} needs a network, but "
                    "this posterior has no network; use [[sampler.curvature=hessian]]"
                )
            if self.predictive == "linearised":
                raise UsageError(
                    "sampler laplace: [[sampler.predictive=linearised]] needs a network, but this posterior has no "
                    "network; use [[sampler.predictive=network]]"
                )
        elif (prior := posterior.fixed_prior()) is None:
            raise UsageError(
                "sampler laplace: a posterior with sampled prior scales has no mode, because the density is "
                "unbounded if the scales go to 0; use another [[prior]], or the sampler nuts"
            )
        else:
            prior.distribution(posterior.layout.network)  # raises if the weights are dependent
        if self.curvature == "hessian" and self.covariance == "kronecker":
            raise UsageError(
                "[[sampler.covariance=kronecker]]: is not supported with [[sampler.curvature=hessian]]; use "
                "[[sampler.covariance=full]] or [[sampler.covariance=diagonal]]"
            )
        if self.covariance == "full" and posterior.layout.dim > _MAX_FULL:
            raise UsageError(
                f"[[sampler.covariance=full]]: supports at most {_MAX_FULL} parameters (got "
                f"{posterior.layout.dim}); use [[sampler.covariance=kronecker]], [[sampler.covariance=diagonal]], or "
                "[[stochastic=last]]"
            )

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> LaplaceState:
        """Return the state at `theta`. If there is no warm-up, compute the mode and the Gaussian."""
        del key
        adam = training.Adam.start(theta, num_warmup)
        if not num_warmup:
            return self._at_mode(posterior, theta, adam)
        shapes = eqx.filter_eval_shape(self._factor, posterior, theta)
        return LaplaceState(theta, theta, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), adam)

    def warmup_step(
        self, posterior: AbstractPosterior, state: LaplaceState, *, key: PRNGKeyArray
    ) -> tuple[LaplaceState, Stats]:
        """Make one Adam step towards the mode."""
        rows = training.batch(posterior, self.batch_size, key=key)
        adam, mode, stats = training.step(
            posterior, state.adam, state.mode, lambda t: training.loss(posterior, t, rows), self.learning_rate
        )
        return LaplaceState(mode, mode, state.factor, adam), stats

    def settle(
        self, posterior: AbstractPosterior, state: LaplaceState, *, final: bool, key: PRNGKeyArray
    ) -> LaplaceState:
        """Compute the mode and the Gaussian at the end of warm-up."""
        del key
        if not final:
            return state
        return self._at_mode(posterior, state.mode, state.adam)

    def step(
        self, posterior: AbstractPosterior, state: LaplaceState, *, key: PRNGKeyArray
    ) -> tuple[LaplaceState, Stats]:
        """Draw from the Gaussian."""
        del posterior
        noise = standard_normal(state.mode, key=key)
        position = state.mode + state.factor.correlate(noise)
        stats = training.draw_statistics(position) | {"log_q": -jnp.sum(noise**2) / 2 - self._log_volume(state)}
        return LaplaceState(position, state.mode, state.factor, state.adam), stats

    def inspect(self, posterior: AbstractPosterior, state: LaplaceState, *, key: PRNGKeyArray) -> Stats:
        """Compute `mode_distance` and `log_evidence` from the Gaussian of a chain.

        `mode_distance` is |F' g|^2, where g is the gradient of the log density and F F' the covariance, both at the
        mean of the Gaussian. It is the squared distance to the mode in standard deviations, so it is 0 at the mode.
        `log_evidence` is the log of the integral of a Gaussian curve that approximates the unnormalised posterior
        density. The curve has the value and the curvature of the density at the mean of the Gaussian. If
        `mode_distance` is small, the curve also has the slope of the density there. Otherwise its slope is 0, because a
        curve with the slope of the density would overestimate the integral.
        """
        del key
        log_volume = self._log_volume(state)
        distance = jnp.sum(climb.slope(posterior, state.mode, state.factor) ** 2)
        height_to_mode = jnp.where(distance <= _MAX_DISTANCE * len(state.mode), distance / 2, 0.0)
        return {
            "log_evidence": posterior.log_density(state.mode) + height_to_mode + log_volume,
            "mode_distance": distance,
        }

    def _log_volume(self, state: LaplaceState) -> Float[Array, ""]:
        """Return the log normalising constant of the Gaussian, (dim log(2 pi) + log det(covariance)) / 2."""
        return len(state.mode) / 2 * jnp.log(2 * jnp.pi) + state.factor.log_det

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Report a Gaussian whose mean is too far from the mode."""
        distance = means.get("mode_distance", 0.0) / posterior.layout.dim
        if distance <= _MAX_DISTANCE:
            return ()
        label = "squared distance to the mode, per parameter, in standard deviations"
        parts = f"a {setting('prior')} and an activation without a kink"
        advice = f"use a longer {setting('warmup')}, or {parts}, because the gradient is not 0 at a mode with a kink"
        return (Finding("validity", "mode", label, distance, _MAX_DISTANCE, advice),)

    @property
    def mode_field(self) -> str:
        """Name of the state field with the mode, at which the network is linearised for predictions.

        It is "" if predictions use the network itself.
        """
        return "mode" if self.predictive == "linearised" else ""

    def _at_mode(self, posterior: AbstractPosterior, theta: Float[Array, " dim"], adam: training.Adam) -> LaplaceState:
        mode = climb.climb_to_mode(posterior, theta, self._factor(posterior, theta))
        return LaplaceState(mode, mode, self._factor(posterior, mode), adam)

    def _factor(self, posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Factor:
        covariance = self.covariance
        if covariance == "auto":
            rows = posterior.num_data * _curvature.num_rows(posterior, self.curvature)
            is_affordable = _curvature.kronecker_work(posterior.layout, rows) <= _MAX_WORK
            cheaper = "kronecker" if is_affordable and self.curvature != "hessian" else "diagonal"
            covariance = "full" if posterior.layout.dim <= _FULL_UP_TO else cheaper
        build = {"full": _curvature.full, "kronecker": _curvature.kronecker, "diagonal": _curvature.diagonal}[
            covariance
        ]
        return build(posterior, theta, self.curvature)
