"""Predictions as a data frame with one row per input."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from bnnzoo.data.checks.check import refuse_equal_columns
from bnnzoo.errors import BnnzooWarning
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions import predictive_samples
from bnnzoo.evaluation.predictions.predictor import Predictor


def table(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], *, seed: int = 0) -> pd.DataFrame:
    """Return a summary of the predictive distribution in original units, with one row per input; see `Run.predict`.

    For a density run, the only column is `log_density`. A warning is issued if a predictive mean or sd is not finite.
    """
    if predictor.is_density:
        return pd.DataFrame({"log_density": log_density(predictor, x)})
    moments, signature = predictor.moments(x), predictor.signature
    if predictor.classifies:
        columns = {f"p_{name}": moments.mean[:, c] for c, name in enumerate(signature.class_names)}
        likeliest = np.asarray(signature.class_names)[moments.mean.argmax(1)]
        return pd.DataFrame({**columns, "entropy": metrics.entropy(moments.mean), "predicted": likeliest})
    scale = predictor.scaler.y_sd
    values = {
        "mean": predictor.scaler.unscale_targets(moments.mean),
        "sd": np.sqrt(moments.aleatoric + moments.epistemic) * scale,
        "aleatoric_sd": np.sqrt(moments.aleatoric) * scale,
        "epistemic_sd": np.sqrt(moments.epistemic) * scale,
    }
    warn_if_infinite(values["mean"], values["sd"], stacklevel=4)
    quantiles = predictive_samples.quantiles(predictor, x, seed=seed)
    values |= {f"q{round(100 * q):02d}": quantiles[i] for i, q in enumerate(predictive_samples.QUANTILES)}
    return by_target(signature.target_names, values)


def by_target(names: Sequence[str], values: Mapping[str, Float[np.ndarray, "row target"]]) -> pd.DataFrame:
    """Return arrays as columns of a data frame; with several targets, the columns have the prefix `<target>_`.

    Raises:
        UsageError: if two targets would have the same column.
    """
    refuse_equal_columns(names, values)
    return pd.DataFrame(
        {
            (f"{target}_{name}" if len(names) > 1 else name): array[:, i]
            for i, target in enumerate(names)
            for name, array in values.items()
        }
    )


def log_density(predictor: Predictor, rows: Float[np.ndarray, "row column"]) -> Float[np.ndarray, " row"]:
    """Return the log posterior predictive density of each row of a density run, in original units."""
    return predictor.moments(rows, rows).log_density - np.sum(np.log(predictor.scaler.y_sd.astype(np.float64)))


def warn_if_infinite(
    mean: Float[np.ndarray, "row target"], sd: Float[np.ndarray, "row target"], *, stacklevel: int
) -> None:
    """Warn of rows whose predictive mean is not finite; if there are none, of rows whose sd is not finite."""
    for quantity, values in (("mean", mean), ("sd", sd)):
        rows = np.flatnonzero(~np.isfinite(values).all(1))
        if len(rows):
            warnings.warn(
                f"predict: the predictive {quantity} is not finite in {len(rows)} of {len(values)} rows, first in row "
                f"{rows[0] + 1}; check that the inputs are in the units of the training rows",
                BnnzooWarning,
                stacklevel=stacklevel,
            )
            return
