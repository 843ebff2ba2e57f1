"""Distances of the predictions of a run from its training data."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy import optimize

from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.evaluation.predictions import thinning
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior, backend
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Gaussian

MEANS, DENSITY = "predictive means", "the log-likelihood of the training rows"
"""Names of quantities whose convergence is tested (`diagnostics.quantities`)."""
_CLEAR_DEFICIT = 20.0
"""Deficit, in nats, above which the best constant prediction is computed.

The computation compiles a program, which takes up to two seconds. A useful limit of the deficit is far larger, so a
smaller deficit need not be exact.
"""


def distance_from_data(
    predictor: Predictor, quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]], num_probes: int
) -> dict[str, float]:
    """Return distances of the predictions from the data.

    The dictionary is empty for weighted draws, for an unknown model, for a likelihood power of 0, and if all targets
    are constant.

    - `remoteness` of a regression: absolute difference between a predictive mean and the mean of the training targets,
      in standard deviations of the target. For each chain and target, the median over draws and rows is taken; the
      largest of these medians is returned. Constant targets are ignored.
    - `deficit` of a regression: mean log density of the training rows under a Gaussian, minus the mean log density of
      the same rows given a draw, in nats. The Gaussian has the mean and the standard deviation of the targets. For each
      chain, the median over draws is taken; the largest of these medians is returned. If the result is above 20 nats,
      the best constant prediction (`constant_log_density`) replaces the Gaussian where its density is lower. `deficit`
      is left out for a NumPyro model, which has no constant predictions.
    - `surprise` of a classification: mean negative log probability of the training labels, divided by the negative log
      probability of a label under uniform guessing. `surprise` and `deficit` require training rows in the file.

    With a likelihood power below 1, correct draws are farther from the data. `deficit` and `surprise` are then
    multiplied by the power, and `remoteness` by its square root.
    """
    record = predictor.record
    if not predictor.predicts or record.draw_weights is not None:
        return {}
    power = min(1.0, float(record.attributes.get("likelihood_power", 1.0)))
    if power == 0:
        return {}
    x, y, density = np.empty(0), np.empty(0), None
    if record.has_training_rows:
        x, y = record.training_rows(thinning.density_rows(predictor, num_probes))
        density = quantities.get(DENSITY)
        if density is None:
            density = predictor.log_likelihoods(x, y, np.arange(record.shape[1])).sum(2, dtype=np.float64)
        density = density / len(x)
    if predictor.classifies:
        guess_entropy = np.log(len(predictor.signature.class_names))
        return {} if density is None else {"surprise": float(-np.mean(density) / guess_entropy) * power}
    targets = uncensored_targets(record.array("observed_data", "y")).astype(np.float64)
    target_sd = targets.std(0) if len(targets) else np.zeros(1)
    if not (target_sd > 0).any():
        return {}
    means = quantities[MEANS] + predictor.scaler.y_mean.astype(np.float64)
    distances = np.abs(means - targets.mean(0)) / np.where(target_sd > 0, target_sd, np.inf)
    distances_by_name = {"remoteness": float(np.max(np.median(distances, (1, 2)))) * power**0.5}
    if density is not None and (target_sd > 0).all() and isinstance(predictor.posterior, NetworkPosterior):
        deficits = -np.sum(np.log(target_sd) + np.log(2 * np.pi * np.e) / 2) - np.median(density, 1)
        if not np.max(deficits) <= _CLEAR_DEFICIT:
            posterior, scaled = predictor.posterior, predictor.scaler.scale_targets(y)
            constant = constant_log_density(
                posterior.likelihood,
                scaled,
                num_targets=predictor.signature.num_targets,
                log_exposure=np.log(x[:, -1].astype(np.float64)) if posterior.has_exposure else None,
            )
            constant -= float(np.mean(predictor.scaler.log_units(y)))
            # The Gaussian stays a limit, because a density of repeated targets may have no upper bound.
            deficits = np.minimum(deficits, constant - np.median(density, 1))
        distances_by_name["deficit"] = float(np.max(deficits)) * power
    return distances_by_name


def constant_log_density(
    likelihood: AbstractLikelihood,
    targets: Float[np.ndarray, "row ..."],
    *,
    num_targets: int,
    log_exposure: Float[np.ndarray, " row"] | None = None,
) -> float:
    """Return the mean log density of regression rows under the best constant prediction, in the units of the network.

    A constant prediction has the same network outputs for all rows. The best constant prediction maximises the density
    over these outputs and over the sampled parameters of the likelihood, such as a learned noise scale. As in a run,
    the exposure of a row multiplies its rate.
    """
    if type(likelihood) is Gaussian:
        sds = targets.std(0, dtype=np.float64)
        scales = sds if isinstance(likelihood.scale, str) else np.full_like(sds, likelihood.scale)
        return -float(np.sum(np.log(scales) + np.log(2 * np.pi) / 2 + (sds / scales) ** 2 / 2))
    parameters = {p.name: np.full(p.shape, p.start) for p in likelihood.parameters()}
    means = uncensored_targets(targets).mean(0, dtype=np.float64)
    # The starts suit targets that are standardised, targets that are not, and counts.
    starts = np.zeros_like(means), means, np.log(np.maximum(np.abs(means), 1e-6))
    with backend.arithmetic_within_run("float64"):
        data = jnp.asarray(targets, jnp.float64), None if log_exposure is None else jnp.asarray(log_exposure)
        flat_starts = [ravel_pytree((np.resize(s, likelihood.num_outputs(num_targets)), parameters)) for s in starts]
        unravel = flat_starts[0][1]

        def loss(position: Float[np.ndarray, " dim"]) -> tuple[float, Float[np.ndarray, " dim"]]:
            value, gradient = _loss(unravel(jnp.asarray(position)), likelihood, *data)
            return float(np.nan_to_num(value, nan=np.inf)), np.asarray(ravel_pytree(gradient)[0])

        start = min((np.asarray(flat) for flat, _ in flat_starts), key=lambda position: loss(position)[0])
        # With badly scaled targets, the optimisation may end at a position that is worse than its start.
        return -min(loss(start)[0], float(optimize.minimize(loss, start, jac=True, method="L-BFGS-B").fun))


@eqx.filter_jit
@eqx.filter_value_and_grad
def _loss(
    position: tuple[Float[Array, " output"], dict[str, Array]],
    likelihood: AbstractLikelihood,
    targets: Float[Array, "row ..."],
    log_exposure: Float[Array, " row"] | None,
) -> Float[Array, ""]:
    """Return minus the mean log density of the targets, given the outputs and the unconstrained parameters."""
    output, unconstrained = position
    constant = likelihood.with_parameters({p.name: p.natural(unconstrained[p.name]) for p in likelihood.parameters()})
    outputs = jnp.broadcast_to(output, (len(targets), len(output)))
    if log_exposure is not None:
        outputs = jax.vmap(constant.with_exposure)(outputs, log_exposure)
    return -jnp.mean(jax.vmap(constant.log_prob)(outputs, targets))
