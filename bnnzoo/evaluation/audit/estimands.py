"""Functions of the parameters that an audit tests: predictions, noise, and parameters that the data identify."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.data import Dataset
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
"""Largest number of inputs at which predictions are tested."""
_MAX_WEIGHTS = 1000
"""Largest number of weights that are tested, evenly spaced."""
_SMALLEST_PROBABILITY = 1e-6
"""Smallest probability from which log odds are computed; smaller probabilities are mostly rounding error in float32."""
_LINEAR_TOLERANCE = 1e-3
"""Largest deviation from linearity, relative to the change of the outputs, that float32 rounding explains."""


def audited_inputs(predictor: Predictor, train: Dataset | None) -> Shaped[np.ndarray, "probe ..."]:
    """Return the inputs at which predictions are tested: at most ten evenly spaced test rows.

    If the run has no test rows, training rows are returned: the rows in the file, or `train` if the file has no rows.
    """
    rows = predictor.record.probes(np.iinfo(np.int32).max)
    if not len(rows) and train is not None:
        rows = train.x
    return rows[evenly(len(rows), _PROBES)]


def halfway(rows: Shaped[np.ndarray, "probe ..."]) -> Shaped[np.ndarray, "pair ..."]:
    """Return the midpoints between the inputs of the first half and the second half of the rows.

    The data may have a gap at a midpoint. The result is empty for images, and for inputs that are whole numbers.
    """
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.floating):
        return rows[:0]
    half = len(rows) // 2
    return (rows[:half] + rows[half : 2 * half]) / 2


class Estimands:
    """Functions of the parameters theta that an audit tests.

    A call returns the values of the functions by name, each as an array [draw, value]. The functions are:

    - Predictive means and log sds at the probes, or log odds of the classes. A probe is an input at which predictions
      are tested.
    - Predictive means, or log odds, half way between probes.
    - Parameters of the likelihood and the prior, on the scale on which they are sampled.
    - At most 1000 weights, if the outputs of the network are linear in the weights and the data identify each weight.
    """

    def __init__(
        self,
        posterior: NetworkPosterior,
        predicting: Predicting,
        x: Shaped[np.ndarray, "probe ..."],
        example: Float[np.ndarray, "draw dim"],
    ):
        """Prepare the functions for one posterior and some probes.

        Args:
            posterior: the posterior whose draws are audited.
            predicting: the posterior that makes the predictions. For a linearised network, each draw that it takes is
                followed by the mode of the chain.
            x: the probes, in the form that the network takes.
            example: some draws on their natural scale, which are used to test whether the outputs are linear.
        """
        self._posterior, self._predicting, self._x = posterior, predicting, x
        self._between = halfway(x)
        blocks = posterior.layout.blocks
        network = sum(block.size for block in blocks if block.owner == "network")
        linear = is_linear(posterior, example, x, predicting=predicting)
        self._weights = evenly(network, _MAX_WEIGHTS) if linear else np.arange(0)
        self._own = [block for block in blocks if block.owner != "network"]

    @property
    def first(self) -> str:
        """Name of the function with the predictions at the probes."""
        return LOG_ODDS if self._posterior.task == "classification" else MEANS

    @property
    def between(self) -> str:
        """Name of the function with the predictions between the probes."""
        return BETWEEN.format(self.first)

    def __call__(self, draws: Float[np.ndarray, "draw both"]) -> dict[str, Float[np.ndarray, "draw value"]]:
        """Return the values of the functions, by name.

        Args:
            draws: draws on their natural scale. For a linearised network, each draw is followed by the mode of its
                chain.
        """
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
            # The probabilities of two classes add up to 1, so one of them is enough.
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
    """Whether outputs are linear in the network's weights and no permutation of weights keeps the likelihood unchanged.

    The test compares the outputs half way between two draws with the mean of the outputs at both draws. For a mixture
    likelihood, the result is false, because a permutation of its components has the same likelihood.

    Args:
        posterior: the posterior whose draws are audited.
        draws: draws as the file of a run stores them (on the natural scale of the parameters).
        x: inputs in the form that `predicting` takes.
        predicting: the posterior that computes the outputs; by default `posterior`. `posterior` and `predicting` differ
            if only a part of the network is sampled: `posterior` then takes the inputs of this part, and `predicting`
            the inputs of the network.
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
    """Return, for each function, the indices of the values that vary in the run or on the exact chains.

    A predictive log sd that is not finite at some draw is left out, because it has no mean. An example is the log sd of
    a likelihood with heavy tails.
    """

    def is_varying(values: Float[Any, "..."]) -> Any:
        return np.any(values != values[(0,) * (values.ndim - 1)], axis=tuple(range(values.ndim - 1)))

    def has_moments(values: Float[Any, "..."]) -> Any:
        return np.isfinite(values).all(axis=tuple(range(values.ndim - 1)))

    varying_by_name = {name: is_varying(run[name]) | is_varying(snapshot_values[name]) for name in run}
    if LOG_SDS in varying_by_name:
        varying_by_name[LOG_SDS] &= has_moments(run[LOG_SDS]) & has_moments(snapshot_values[LOG_SDS])
    return {name: np.flatnonzero(is_varying_value) for name, is_varying_value in varying_by_name.items()}
