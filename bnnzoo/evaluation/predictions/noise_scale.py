"""Noise scale of a run, compared with the standard deviation of the target and with the step of a rounded target.

If values of the target repeat, as in rounded targets, the likelihood has no upper bound. The noise scale can then
shrink until the log density has no meaning as a score, even if predicted means are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.assembly.units import fields_in_target_units
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.plugins import registry
from bnnzoo.recipe import Field, recipe_from
from bnnzoo.store.schema import CONSTANT_DATA, POSTERIOR

SMALL = 0.01
"""The verdict reports a noise scale below this fraction of the target's standard deviation."""
LARGEST = 10.0
"""Largest plausible noise scale, in standard deviations of the target; a larger one is not from the posterior."""
_MIN_ROWS = 20
"""Smallest number of training rows, times the likelihood power, for a test of the largest drawn noise scale.

With fewer rows or a smaller power, the prior determines the noise scale.
"""


def of_run(predictor: Predictor, log_sds: Float[np.ndarray, "chain draw row target"] | None) -> dict[str, Any]:
    """Return the noise scale of the target whose noise is smallest; empty for counts, classes and constant targets.

    - `noise_scale`: median over draws and rows of the predicted standard deviation of the noise, in original units.
    - `noise_over_sd`: the same median in standard deviations of the training target.
    - `noise_of`: name of the target.
    - `noise_step`: rounding step of the target; 0 if it is not rounded.
    - `noise_largest`: largest draw of the noise scale of any target, in standard deviations of the target. It is
      returned only if one noise scale is learned for all rows, and if the number of training rows, times the
      likelihood power, is at least 20.

    Args:
        predictor: the run.
        log_sds: log standard deviation that each draw predicts at some rows, in the units of the network; None if it is
            unknown.
    """
    if log_sds is None or not log_sds.size or not predictor.has_continuous_targets:
        return {}
    targets = uncensored_targets(predictor.record.array("observed_data", "y")).astype(np.float64)
    sd = targets.std(0) if len(targets) else np.zeros(1)
    if not (sd > 0).all():
        return {}
    scale = np.exp(np.median(log_sds.astype(np.float64), (0, 1, 2))) * predictor.scaler.y_sd
    smallest = int(np.argmin(scale / sd))
    result: dict[str, Any] = {
        "noise_scale": float(scale[smallest]),
        "noise_over_sd": float(scale[smallest] / sd[smallest]),
        "noise_of": predictor.signature.target_names[smallest],
        "noise_step": float(predictor.rounding_steps[smallest]),
    }
    effective_rows = len(targets) * float(predictor.record.attributes.get("likelihood_power", 1.0))
    if "likelihood_scale" in predictor.blocks and effective_rows >= _MIN_ROWS:
        scale_draws = predictor.record.array("posterior", "likelihood_scale").astype(np.float64)
        scale_draws = scale_draws.reshape(*scale_draws.shape[:2], -1) * predictor.scaler.y_sd / sd
        result["noise_largest"] = float(scale_draws.max())
    return result


def target_sd(predictor: Predictor) -> Float[np.ndarray, " target"]:
    """Return the standard deviations of the training targets.

    The standard deviations are those of the scaler, where a target that is not standardised has the value 1. If there
    are several targets and none is standardised, the standard deviations are computed from the training rows instead.
    """
    sd = predictor.scaler.y_sd.astype(np.float64)
    if len(sd) == 1 or predictor.classifies or np.any(sd != 1) or not predictor.record.has_training_targets:
        return sd
    training_sd = uncensored_targets(predictor.record.array("observed_data", "y")).std(0, dtype=np.float64)
    return np.where(training_sd > 0, training_sd, 1.0)


def remark(diagnosis: Mapping[str, Any]) -> str:
    """Return a remark if the noise scale is so small that the log density is not a meaningful score; else empty."""
    if "noise_scale" not in diagnosis:
        return ""
    scale, step = float(diagnosis["noise_scale"]), float(diagnosis["noise_step"])
    percent = 100 * float(diagnosis["noise_over_sd"])
    noise_text = f"the noise scale of {diagnosis['noise_of']} is {scale:.2g} ({percent:.2g} % of the target's sd)"
    if 0 < scale < step / 2:
        return f"{noise_text}, less than half of the rounding step {step:g} of the target: {NO_SCORE}"
    if percent < 100 * SMALL:
        return (
            f"{noise_text}: the data seem free of noise, so nll measures only how exactly the predictions reproduce "
            "the data"
        )
    return ""


NO_SCORE = (
    "nll cannot compare such predictions; compare nll_rounded, or use [[task=classification]] or a likelihood "
    "for counts ([[likelihood=poisson]])"
)


def noise_scales(record: Record) -> dict[str, float | list[float]]:
    """Return the fields of the likelihood that are in units of the target, in original units.

    The key of a field is `noise_<field>`. The value is a list if there are several targets. The value of a learned
    field is its posterior mean.
    """
    attributes, scales = record.attributes, dict[str, float | list[float]]()
    if "signature" not in attributes:
        return scales
    recipe = recipe_from(str(attributes["recipe"]))
    if recipe.likelihood is None or not recipe.likelihood.name:
        return scales
    fields: list[Field] = []
    with suppress(UsageError):  # a plugin that is not installed here
        fields = fields_in_target_units(registry.load("likelihoods", recipe.likelihood.name))
    for field in fields:
        sd = np.asarray(record.array(CONSTANT_DATA, "y_sd"), np.float64)
        given_value = recipe.likelihood.fields.get(field.name, field.default)
        with suppress(ValueError):  # a value other than `learned` that is not a number
            if f"likelihood_{field.name}" in record.variables:
                draws = record.array(POSTERIOR, f"likelihood_{field.name}").astype(np.float64)
                values = np.average(draws.reshape(-1, *draws.shape[2:]), 0, weights=record.weights) * sd
            else:
                values = float(given_value) * (np.ones_like(sd) if recipe.units == "data" else sd)
            scales[f"noise_{field.name}"] = values.item() if values.size == 1 else values.tolist()
    return scales
