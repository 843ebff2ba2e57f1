"""The estimator for classification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from bnnzoo.data.columns.column_types import as_text
from bnnzoo.evaluation.intervals import prediction_intervals
from bnnzoo.evaluation.intervals.prediction_intervals import LEVEL, Interval
from bnnzoo.evaluation.predictions import predictive_samples
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.sklearn.arguments import calibration_pair, integer_seed, is_table, refuse_weights
from bnnzoo.sklearn.base import AbstractBayesian


class BayesianClassifier(ClassifierMixin, AbstractBayesian):
    """Bayesian neural network for classification, with the options of `bnnzoo sample`. All rows are training rows.

    A data frame may contain text, dates, booleans and missing cells, as described in docs/data.md.
    """

    def fit(self, X: Any, y: Any, **others: Any) -> BayesianClassifier:
        """Sample the posterior for inputs X [row, feature] and labels y [row].

        Raises:
            UsageError: if a sample weight is not 1, or for the reasons of `bnnzoo.sample`.
            ValueError: if a label is missing, or if there is only one class.
            TypeError: if there are arguments other than X, y and `sample_weight`.
        """
        refuse_weights(others)
        X, y = self._with_targets(X, y)
        self._is_table = is_table(X)
        if self._is_table:
            validate_data(self, X, skip_check_array=True)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=self._finite_setting())
            X = self._to_table(X)
        y = column_or_1d(y, warn=True)
        if pd.isna(y).any():
            raise ValueError("y contains missing labels (NaN, None); remove these rows, or use missing='drop'")
        check_classification_targets(y)
        if y.dtype.kind in "OU":  # labels that differ only in spaces are equal
            y = np.array([as_text(label) if isinstance(label, str) else label for label in y], y.dtype)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("classification needs at least two classes, but y has 1 class")
        self._sample(X, y, "classification")
        # bnnzoo may have left out rows with missing cells. A class that occurs only in such rows is removed.
        class_names = self.run_.predictor.signature.class_names
        self.classes_ = np.array(
            [label for label in self.classes_ if as_text(label) in class_names], self.classes_.dtype
        )
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "row class"]:
        """Return the probability of each class [row, class], in the order of `classes_`."""
        x = self._inputs(X)
        predictor = self.run_.predictor
        names = predictor.signature.class_names
        order = [names.index(as_text(label)) for label in self.classes_]
        probabilities = np.asarray(predictor.moments(x).mean[:, order], np.float64)
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict(self, X: Any) -> Shaped[np.ndarray, " row"]:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Return the predictive distribution as an object. Its classes are `classes_`.

        For classes, this object supports only `probabilities`, `mode`, `mutual_information`, `log_prob`, `sample` and
        `entropy`.
        """
        x = self._inputs(X)
        return PredictiveDistribution(self.run_.predictor, x, seed=self.seed, classes=self.classes_)

    def predict_set(
        self, X: Any, level: float = LEVEL, interval: Interval = "conformal", calibration: tuple[Any, Any] | None = None
    ) -> Bool[np.ndarray, "row class"]:
        """Return the prediction set of each row: a boolean for each class, in the order of `classes_`.

        Args:
            X: inputs [row, feature].
            level: probability that a set contains the label.
            interval: "conformal" or "bayesian". A conformal set contains the label with probability at least `level`
                if the rows are exchangeable. A Bayesian set is the smallest set with a predictive probability of at
                least `level`. See docs/evaluation.md.
            calibration: X and y of rows that were not used to fit. Conformal sets need these rows if the sampler is
                not exact.

        Raises:
            UsageError: if there are too few calibration rows for conformal sets, if calibration rows are given for
                Bayesian sets, or if they are not a pair (X, y).
            ValueError: if a calibration label is not in `classes_`.
        """
        x = self._inputs(X)
        prediction_intervals.refuse_unused_calibration(interval, calibration)
        predictor = self.run_.predictor
        names = predictor.signature.class_names
        rows = None
        if calibration is not None:
            rows_x, rows_y = calibration_pair(calibration)
            labels = [as_text(label) for label in column_or_1d(rows_y)]
            if unknown := sorted(set(labels) - set(names)):
                raise ValueError(
                    f"calibration: class {unknown[0]!r} does not occur in the training rows; remove rows of this class"
                )
            index = np.array([names.index(label) for label in labels], np.int32)
            rows = prediction_intervals.checked_calibration(predictor, self._inputs(rows_x), index)
        members = prediction_intervals.sets(predictor, x, interval, level, calibration=rows)
        return members[:, [names.index(as_text(label)) for label in self.classes_]]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Shaped[np.ndarray, "row sample"]:
        """Return labels drawn from the predictive distribution, with shape [row, sample].

        Raises:
            UsageError: if `n_samples` is not a whole number of at least 1.
        """
        predictive_samples.check_count("n_samples", n_samples)
        chances = self.predict_proba(X).cumsum(1)
        uniform = np.random.default_rng(integer_seed(random_state)).uniform(size=(len(chances), n_samples))
        index = (uniform[:, :, None] > chances[:, None, :]).sum(2)
        return self.classes_[np.minimum(index, len(self.classes_) - 1)]
