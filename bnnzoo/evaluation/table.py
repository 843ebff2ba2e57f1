"""Predictions as a table: a row for each row of inputs, columns that a person reads."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from bnnzoo.evaluation import metrics
from bnnzoo.evaluation.predictor import QUANTILES, Predictor


def of_rows(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], *, seed: int = 0) -> pd.DataFrame:
    """The predictive distribution in original units: see `Run.predict`."""
    if predictor.is_density:
        return pd.DataFrame({"log_density": predictor.log_density(x)})
    moments, like, scaler = predictor.moments(x), predictor.signature, predictor.scaler
    if predictor.classifies:
        columns = {f"p_{name}": moments.mean[:, c] for c, name in enumerate(like.class_names)}
        likeliest = np.asarray(like.class_names)[moments.mean.argmax(1)]
        return pd.DataFrame({**columns, "entropy": metrics.entropy(moments.mean), "predicted": likeliest})
    values = {
        "mean": scaler.unscale_targets(moments.mean),
        "sd": np.sqrt(moments.aleatoric + moments.epistemic) * scaler.y_sd,
        "aleatoric_sd": np.sqrt(moments.aleatoric) * scaler.y_sd,
        "epistemic_sd": np.sqrt(moments.epistemic) * scaler.y_sd,
    }
    quantiles = predictor.quantiles(x, seed=seed)
    values |= {f"q{round(100 * q):02d}": quantiles[i] for i, q in enumerate(QUANTILES)}
    return pd.DataFrame(
        {
            (f"{target}_{name}" if len(like.target_names) > 1 else name): array[:, i]
            for i, target in enumerate(like.target_names)
            for name, array in values.items()
        }
    )
