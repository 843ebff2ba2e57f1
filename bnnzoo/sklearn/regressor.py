"""The estimator for regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, validate_data

from bnnzoo.data.formats.frames import is_frame
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.intervals import prediction_intervals
from bnnzoo.evaluation.intervals.prediction_intervals import LEVEL, Interval
from bnnzoo.evaluation.predictions import prediction_table, predictive_samples
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.sklearn.arguments import calibration_pair, integer_seed, is_table, refuse_weights
from bnnzoo.sklearn.base import AbstractBayesian


class BayesianRegressor(RegressorMixin, AbstractBayesian):
    """Bayesian neural network for regression, with the options of `bnnzoo sample`. All rows are training rows.

    A data frame may contain text, dates, booleans and missing cells, as described in docs/data.md.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, **others: Any) -> BayesianRegressor:
        """Sample the posterior for inputs X [row, feature] and targets y [row] or [row, target].

        If `censored` is set, y is text such as <0.5, >100 or 1..2. Alternatively, y is an array of the smallest and
        the largest possible value of each target, with shape [row, 2] or [row, target, 2]. The two values are equal if
        the target is known. A value is infinite if the target has no lower or no upper limit.

        Raises:
            UsageError: if a sample weight is not 1, or for the reasons of `bnnzoo.sample`.
            ValueError: if `exposure` is set and X is not a data frame, or if y is text and `censored` is not set.
            TypeError: if there are arguments other than X, y and `sample_weight`.
        """
        refuse_weights(others)
        if self.exposure is not None and not is_frame(X):
            raise ValueError(
                f"X: must be a data frame with the exposure column {self.exposure!r} (got {type(X).__name__})"
            )
        if self.censored:
            return self._fit_censored(X, y)
        X, y = self._with_targets(X, y)
        _refuse_text(y)
        # The columns of a table are matched by name, so the exposure can become the last column.
        self._is_table = is_table(X) or self.exposure is not None
        if self._is_table:
            validate_data(self, X, skip_check_array=True)
            y = _check_y(y, multi_output=True, y_numeric=True, estimator=self)
        else:
            checks = {"dtype": np.float64, "ensure_all_finite": self._finite_setting()}
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, **checks)
            X = self._to_table(X)
        self._flat = np.ndim(y) == 1
        self._sample(X, np.asarray(y, np.float64), "regression")
        return self

    def _fit_censored(self, X: Any, y: Any) -> BayesianRegressor:
        self._is_table = is_table(X) or self.exposure is not None
        X = self._validated(X, reset=True)
        self._sample(X, _paired_by_order(X, y), "regression")
        self._flat = len(self.run_.predictor.signature.target_names) == 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of the predictive distribution. With `return_std`, also return its standard deviation."""
        x = self._inputs(X)
        predictor = self.run_.predictor
        moments, scaler = predictor.moments(x), predictor.scaler
        mean = moments.mean * scaler.y_sd.astype(np.float64) + scaler.y_mean
        sd = np.sqrt(moments.aleatoric + moments.epistemic) * scaler.y_sd
        prediction_table.warn_if_infinite(mean, sd if return_std else mean, stacklevel=3)
        return (self._shape_targets(mean), self._shape_targets(sd)) if return_std else self._shape_targets(mean)

    def predict_quantiles(
        self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)
    ) -> Float[np.ndarray, "row ..."]:
        """Return predictive quantiles: [row, quantile], or [row, target, quantile] for several targets.

        Raises:
            UsageError: if `quantiles` are not numbers between 0 and 1.
        """
        x, levels = self._inputs(X), np.atleast_1d(np.asarray(quantiles))
        if levels.ndim != 1 or levels.dtype.kind not in "fiu" or not np.all((levels > 0) & (levels < 1)):
            raise UsageError(f"quantiles: must be numbers between 0 and 1, such as (0.05, 0.5, 0.95) (got {quantiles})")
        quantile_values = predictive_samples.quantiles(self.run_.predictor, x, tuple(levels.tolist()), seed=self.seed)
        return np.moveaxis(self._shape_targets(np.moveaxis(quantile_values, 2, -1)), 0, -1)

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Return the predictive distribution as an object with members such as `mean`, `sd`, `cdf` and `quantile`.

        The arrays have the shape [row], or [row, target] if there are several targets, as for `Run.predictive`.
        """
        x = self._inputs(X)
        return PredictiveDistribution(self.run_.predictor, x, seed=self.seed)

    def predict_interval(
        self, X: Any, level: float = LEVEL, interval: Interval = "conformal", calibration: tuple[Any, Any] | None = None
    ) -> Float[np.ndarray, "row ..."]:
        """Return the two ends of an interval for each target: [row, 2], or [row, target, 2] for several targets.

        Args:
            X: inputs [row, feature].
            level: probability that an interval contains the target.
            interval: "conformal" or "bayesian". Conformal intervals have this coverage if the rows are exchangeable.
                Bayesian intervals have this coverage if the model is correct. See docs/evaluation.md.
            calibration: X and y of rows that were not used to fit, in the form that `fit` accepts. Conformal intervals
                need these rows if the sampler is not exact.

        Raises:
            UsageError: if there are too few calibration rows for conformal intervals, if their targets do not fit the
                model or are censored, if calibration rows are given for Bayesian intervals, or if they are not a pair
                (X, y).
        """
        x = self._inputs(X)
        prediction_intervals.refuse_unused_calibration(interval, calibration)
        predictor, rows = self.run_.predictor, None
        if calibration is not None:
            rows = prediction_intervals.calibration_rows(predictor, self._checked_pair(*calibration_pair(calibration)))
        interval_ends = prediction_intervals.intervals(predictor, x, interval, level, calibration=rows)
        return np.moveaxis(self._shape_targets(interval_ends), 0, -1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float[np.ndarray, "row ..."]:
        """Sample the predictive distribution: [row, sample], or [row, target, sample] for several targets.

        A sample uses one draw of the posterior for all rows, and noise of its own; see `PredictiveDistribution.sample`.

        Raises:
            UsageError: if `n_samples` is not a whole number of at least 1.
        """
        x = self._inputs(X)
        predictive_samples.check_count("n_samples", n_samples)
        samples = predictive_samples.sample_rows(self.run_.predictor, x, n_samples, seed=integer_seed(random_state))
        return np.moveaxis(self._shape_targets(samples), 0, -1)

    def _checked_pair(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return X and y of calibration rows after the checks of `fit`."""
        if not self.censored:
            X, y = self._with_targets(X, y)
            y = _check_y(y, multi_output=True, y_numeric=True, estimator=self)
        X = self._validated(X, reset=False)
        return X, _paired_by_order(X, y)

    def _shape_targets(self, values: Float[np.ndarray, "*other row target"]) -> Float[np.ndarray, "..."]:
        return values[..., 0] if self._flat else values


def _paired_by_order(X: Any, y: Any) -> Any:
    """Return y with the row labels of X, so that rows of X and y are paired by their order and not by their labels."""
    check_consistent_length(X, y)
    is_labelled = isinstance(X, pd.DataFrame) and isinstance(y, pd.Series | pd.DataFrame)
    return y.set_axis(X.index) if is_labelled else y


def _refuse_text(y: Any) -> None:
    """Check that the targets are numbers.

    Raises:
        ValueError: if a value of y is text that cannot be converted to a number.
    """
    values = np.asarray(y)
    for value in values.ravel() if values.dtype.kind in "OUS" else ():
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                raise ValueError(
                    f"y: text cannot be a target of regression (got {str(value)!r}); use BayesianClassifier for "
                    "labels, or censored=True for values such as <0.5"
                ) from None
