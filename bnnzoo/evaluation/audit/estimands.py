"""Functions of the parameters that an audit checks: predictions, noise, and identified parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.predictions import per_draw
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.censored import uncensored
from bnnzoo.posterior.likelihoods import Mixture, MixturePerTarget
from bnnzoo.posterior.predicting import Predicting

MEANS, LOG_ODDS = "predictive means", "log odds of the classes"
BETWEEN = "{} between the rows"
PREDICTIONS = (MEANS, LOG_ODDS, BETWEEN.format(MEANS), BETWEEN.format(LOG_ODDS))
LOG_SDS, OWN_PARAMETERS, WEIGHTS = "predictive log sds", "parameters of likelihood and prior", "weights"
_PROBES = 10
_MOST_WEIGHTS = 1000
_SMALLEST_PROBABILITY = 1e-6
"""Smallest probability; log odds beyond it are rounding error in float32."""
_LINEAR_TOLERANCE = 1e-3
"""Deviation from linearity, relative to the change of the outputs, that exceeds float32 rounding."""


def audited_inputs(predictor: Predictor) -> Shaped[np.ndarray, "probe ..."]:
    """Return the ten inputs, evenly spaced over the rows, at which predictions are checked."""
    rows = predictor.record.probes(np.iinfo(np.int32).max)
    return rows[evenly(len(rows), _PROBES)]


def halfway(rows: Shaped[np.ndarray, "probe ..."]) -> Shaped[np.ndarray, "pair ..."]:
    """Return inputs half way between distant probes, where the data may have a gap; none for integers or images."""
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.floating):
        return rows[:0]
    half = len(rows) // 2
    return (rows[:half] + rows[half : 2 * half]) / 2


class Estimands:
    """Functions of theta that an audit checks, by name, each an array [draw, value].

    Predictions at the probes: means and log sds, or log odds of the classes; and half way between probes. The
    parameters of likelihood and prior as they are sampled. The weights (at most 1000), where the outputs are linear in
    them and the data identify each.
    """

    def __init__(
        self,
        posterior: NetworkPosterior,
        predicting: Predicting,
        x: Shaped[np.ndarray, "probe ..."],
        example: Float[np.ndarray, "draw dim"],
    ):
        """Initialise the functions.

        Args:
            posterior: the posterior whose draws are audited.
            predicting: makes the predictions; for a Laplace approximation, it takes draws that are followed by modes.
            x: inputs in the form that the network takes.
            example: draws on their natural scale that are used to test whether the outputs are linear.
        """
        self._posterior, self._predicting, self._x = posterior, predicting, x
        self._between = halfway(x)
        blocks = posterior.layout.blocks
        network = sum(block.size for block in blocks if block.owner == "network")
        linear = is_linear(posterior, example, x, predicting=predicting)
        self._weights = evenly(network, _MOST_WEIGHTS) if linear else np.arange(0)
        self._own = [block for block in blocks if block.owner != "network"]

    @property
    def first(self) -> str:
        """Name of the predictions at the probes."""
        return LOG_ODDS if self._posterior.task == "classification" else MEANS

    @property
    def between(self) -> str:
        """Name of the predictions between the probes."""
        return BETWEEN.format(self.first)

    def __call__(self, draws: Float[np.ndarray, "draw both"]) -> dict[str, Float[np.ndarray, "draw value"]]:
        """Return the values at draws on their natural scale; a draw may be followed by its mode."""
        values = {self.first: self._predictions(draws, self._x)}
        if len(self._between):
            values[self.between] = self._predictions(draws, self._between)
        if self._posterior.task != "classification":
            scales = per_draw.log_scales(self._predicting, draws, self._x)
            values[LOG_SDS] = scales.reshape(len(draws), -1).astype(float)
        if self._own:
            parameters = self._posterior.own_parameters()
            parts = [parameters[block.name].unconstrained(draws[:, block.start : block.stop]) for block in self._own]
            values[OWN_PARAMETERS] = np.concatenate([np.asarray(part, float) for part in parts], 1)
        if len(self._weights):
            values[WEIGHTS] = draws[:, self._weights].astype(float)
        return values

    def _predictions(
        self, draws: Float[np.ndarray, "draw both"], x: Shaped[np.ndarray, "row ..."]
    ) -> Float[np.ndarray, "draw value"]:
        means = per_draw.functions(self._predicting, draws, x).astype(float)
        if self._posterior.task == "classification":
            # Two classes have one free probability.
            chances = np.clip(means[..., 1:] if means.shape[2] == 2 else means, _SMALLEST_PROBABILITY, 1)
            means = np.log(chances) - np.log(np.clip(1 - chances, _SMALLEST_PROBABILITY, 1))
        return means.reshape(len(draws), -1)


def is_linear(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    *,
    predicting: Predicting | None = None,
) -> bool:
    """Whether the outputs are linear in the weights and no permutation of weights leaves the likelihood unchanged.

    The test compares the outputs half way between two draws with the mean of the outputs at the draws.

    Args:
        draws: draws on their natural scale.
        x: inputs of `predicting`.
        predicting: computes the outputs; by default the posterior itself. If only a part of the network is sampled, the
            posterior takes the features of that part, and `predicting` takes inputs.
    """
    likelihood = uncensored(posterior.likelihood)
    if len(draws) < 2 or (isinstance(likelihood, Mixture | MixturePerTarget) and likelihood.components > 1):
        return False
    count = len(draws) // 2
    end_draws = draws[: 2 * count].reshape(2, count, -1)[:, :4, : posterior.layout.dim]
    stacked = jnp.asarray(np.concatenate([*end_draws, end_draws.mean(0)]), posterior.dtype)
    model = posterior if predicting is None else predicting
    outputs = np.asarray(jax.lax.map(lambda draw: model.predictive(draw, jnp.asarray(x))[1], stacked), float)
    first_end, second_end, middle = outputs.reshape(3, -1)
    change = np.max(np.abs(first_end - second_end))
    rounding = 1e-5 * np.max(np.abs(outputs))
    return bool(np.max(np.abs(middle - (first_end + second_end) / 2)) <= _LINEAR_TOLERANCE * change + rounding)


def varying(
    run: dict[str, Float[np.ndarray, "..."]], snapshot_values: dict[str, Float[np.ndarray, "..."]]
) -> dict[str, Int[np.ndarray, " value"]]:
    """Return the indices of the values of each function that vary in the run or on the exact chains.

    The log sds of a likelihood with heavy tails are left out: they are infinite at some draws and have no mean.
    """

    def is_varying(values: Float[Any, "..."]) -> Any:
        return np.any(values != values[(0,) * (values.ndim - 1)], axis=tuple(range(values.ndim - 1)))

    def has_moments(values: Float[Any, "..."]) -> Any:
        return np.isfinite(values).all(axis=tuple(range(values.ndim - 1)))

    varying_by_name = {name: is_varying(run[name]) | is_varying(snapshot_values[name]) for name in run}
    if LOG_SDS in varying_by_name:
        varying_by_name[LOG_SDS] &= has_moments(run[LOG_SDS]) & has_moments(snapshot_values[LOG_SDS])
    return {name: np.flatnonzero(is_varying_value) for name, is_varying_value in varying_by_name.items()}
