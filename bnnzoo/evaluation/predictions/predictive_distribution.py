"""Predictive distribution of some rows as an object, in original units.

The distribution is the mixture p(y | x) = sum_s w_s p(y | x, theta_s) over all draws theta_s of a run, with weights
w_s. Densities and distribution functions are exact sums over the draws. The distribution of a target given a draw is a
distribution of NumPyro.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike

from bnnzoo.data.columns.column_types import as_text
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions import mixture, predictive_samples
from bnnzoo.evaluation.predictions.mixture import DrawMixture
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor

_ENTROPY_SAMPLES = 1000
"""Number of samples per row from which the entropy of numbers is estimated."""


class PredictiveDistribution:
    """Predictive distribution of the targets of some rows, in original units.

    Arrays have the shape [row], or [row, target] for several targets. An argument `y` is broadcast against this shape
    and may have further axes in front. For example, `grid[:, None]` evaluates a grid of points at every row.

    For class labels, `mean`, `sd`, `aleatoric_sd`, `epistemic_sd`, `cdf`, `quantile` and `interval` raise a UsageError.
    For numbers, `probabilities`, `mode` and `mutual_information` raise a UsageError. All other members exist for both.
    """

    def __init__(self, predictor: Predictor, x: Shaped[np.ndarray, "row ..."], *, seed: int = 0, classes: Any = None):
        """Initialise the distribution at the inputs `x`; predictions are computed on first use.

        Args:
            predictor: the predictor of a run.
            x: inputs as `new_rows.inputs_of` returns them.
            seed: seed of the samples. The entropy of numbers is estimated from samples, and so are quantiles if NumPyro
                has no distribution function.
            classes: labels of the classes, in the order of `probabilities`; by default the class names of the run.

        Raises:
            UsageError: for a density run, which has no inputs.
        """
        if predictor.is_density:
            raise UsageError(
                "predictive: a density has no inputs; use predict(rows) for its log density and predict(draws=...) for "
                "samples"
            )
        self._predictor, self._x, self._seed = predictor, x, seed
        names = predictor.signature.class_names
        self._classes = np.asarray(names if classes is None else classes)
        self._order = [names.index(as_text(label)) for label in self._classes]

    def __len__(self) -> int:
        return len(self._x)

    def __repr__(self) -> str:
        predictor = self._predictor
        names = self._classes.tolist() if predictor.classifies else list(predictor.signature.target_names)
        kind = "classes" if predictor.classifies else "targets"
        return f"<PredictiveDistribution of {len(self)} rows, {len(predictor.thetas)} draws, {kind} {names}>"

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(self._predictor.signature.target_names)

    @property
    def classes(self) -> Shaped[np.ndarray, " class"]:
        """Labels of the classes, in the order of `probabilities`; empty if the targets are numbers."""
        return self._classes

    @functools.cached_property
    def _moments(self) -> Moments:
        return self._predictor.moments(self._x)

    @property
    def mean(self) -> Float[np.ndarray, "row *target"]:
        """Mean of the mixture."""
        self._require_numbers("mean")
        return self._shaped(self._moments.mean * self._target_units + self._predictor.scaler.y_mean)

    @property
    def sd(self) -> Float[np.ndarray, "row *target"]:
        """Standard deviation of the mixture: root of the sum of the aleatoric and the epistemic variance."""
        self._require_numbers("sd")
        return self._shaped(self._network_sd * self._target_units)

    @property
    def aleatoric_sd(self) -> Float[np.ndarray, "row *target"]:
        """Square root of the mean over draws of the variance of the target given a draw."""
        self._require_numbers("aleatoric_sd")
        return self._shaped(np.sqrt(np.asarray(self._moments.aleatoric, np.float64)) * self._target_units)

    @property
    def epistemic_sd(self) -> Float[np.ndarray, "row *target"]:
        """Square root of the variance over draws of the mean of the target given a draw."""
        self._require_numbers("epistemic_sd")
        return self._shaped(np.sqrt(np.asarray(self._moments.epistemic, np.float64)) * self._target_units)

    @property
    def mutual_information(self) -> Float[np.ndarray, " row"]:
        """Mutual information of class label and draw, in nats: the epistemic part of the entropy."""
        self._require_classes("mutual_information")
        return np.asarray(self._moments.epistemic[:, 0], np.float64)

    @property
    def probabilities(self) -> Float[np.ndarray, "row class"]:
        """Probability of each class, in the order of `classes`."""
        self._require_classes("probabilities")
        probabilities = np.asarray(self._moments.mean[:, self._order], np.float64)
        return probabilities / probabilities.sum(1, keepdims=True)

    @property
    def mode(self) -> Shaped[np.ndarray, " row"]:
        """Most probable class of each row."""
        self._require_classes("mode")
        return self._classes[self.probabilities.argmax(1)]

    @functools.cached_property
    def entropy(self) -> Float[np.ndarray, " row"]:
        """Entropy of the class labels, or joint differential entropy of the targets in original units, in nats.

        For numbers it is the mean of -log p(y) over 1000 samples, with a standard error of about 0.03 nats.
        """
        if self._predictor.classifies:
            return metrics.entropy(self.probabilities)
        return -self.log_prob(self.sample(_ENTROPY_SAMPLES)).mean(0)

    def log_prob(self, y: Any) -> Float[np.ndarray, "*point row"]:
        """Return log p(y | x): the joint log density of the targets of a row in original units.

        For counts and classes it is a log probability. The value is log sum_s w_s p(y | x, theta_s), an exact sum over
        the draws; NaN if a target is NaN.

        Args:
            y: targets, or class labels, broadcast against [row] or [row, target].

        Raises:
            UsageError: if `y` has the wrong shape or contains an unknown class.
        """
        predictor = self._predictor
        if predictor.classifies:
            labels = np.asarray(y)
            if self._classes.dtype.kind in "biuf":
                # Text that is no number, and a number that the conversion would change, are unknown classes.
                with contextlib.suppress(ValueError), np.errstate(invalid="ignore"):
                    converted = labels.astype(self._classes.dtype)
                    is_changed = (
                        labels.dtype.kind in "iuf"
                        and converted.dtype.kind in "biu"
                        and not np.array_equal(converted, labels)
                    )
                    labels = labels if is_changed else converted
            labels = _broadcast(labels, (len(self),))
            index = np.array([self._index_of(label) for label in labels.ravel()], int).reshape(labels.shape)
            with np.errstate(divide="ignore"):
                return np.log(self.probabilities[np.arange(len(self)), index])
        values, lead = self._points(y)
        logs = self._by_blocks(mixture.log_density, values)
        logs = logs.reshape(*lead, len(self)) - float(np.sum(np.log(self._target_units)))
        return np.where(np.isnan(values).any(2).reshape(logs.shape), np.nan, logs)

    def cdf(self, y: float | int | ArrayLike) -> Float[np.ndarray, "*point row *target"]:
        """Return the distribution function P(Y <= y | x) of each target, an exact sum over the draws.

        Args:
            y: values in original units, broadcast against [row] or [row, target]; they may be infinite.

        Raises:
            UsageError: if the targets are class labels, if `y` has the wrong shape, or if NumPyro has no distribution
                function for the targets.
        """
        self._require_numbers("cdf")
        values, lead = self._points(y)
        try:
            probabilities = self._by_blocks(mixture.cdf, values)
        except NotImplementedError as error:
            raise UsageError(f"cdf: {error}; use sample(n) instead") from error
        return self._shaped(np.clip(probabilities, 0.0, 1.0).reshape(*lead, len(self), len(self.target_names)))

    def quantile(self, q: float | ArrayLike) -> Float[np.ndarray, "*level row *target"]:
        """Return the smallest y with P(Y <= y | x) >= q, in original units.

        The exact distribution function is inverted, with an error of at most about 1e-6 standard deviations. If NumPyro
        has no distribution function for the targets, the quantile of at least 1000 samples is returned.

        Args:
            q: one or several probabilities, 0 < q < 1.

        Raises:
            UsageError: if the targets are class labels, or if `q` is not a number between 0 and 1.
        """
        self._require_numbers("quantile")
        levels = _numbers("q", q)
        if not np.all((levels > 0) & (levels < 1)):
            raise UsageError(f"quantile: q must be above 0 and below 1 (got {np.ravel(levels).tolist()})")
        flat, centre, sd = levels.ravel(), np.asarray(self._moments.mean, np.float64), self._network_sd
        shape = (flat.size, len(self), len(self.target_names))
        try:
            values = mixture.map_rows(
                self._predictor,
                self._x,
                flat.size * shape[2],
                lambda rows, draws: mixture.quantiles(draws, flat, centre[rows], sd[rows]),
            )
            values = values.reshape(shape) * self._target_units + self._predictor.scaler.y_mean
        except NotImplementedError:
            values = predictive_samples.quantiles(self._predictor, self._x, tuple(flat.tolist()), seed=self._seed)
        return self._shaped(values.reshape(*levels.shape, *shape[1:]))

    def interval(self, level: float = 0.9) -> Float[np.ndarray, "2 row *target"]:
        """Return the lower and the upper end of the central interval of each target.

        Args:
            level: probability that the interval contains the target.

        Raises:
            UsageError: if the targets are class labels, or for a level outside of (0, 1).
        """
        self._require_numbers("interval")
        check_level(level)
        return self.quantile([(1 - level) / 2, (1 + level) / 2])

    def sample(self, n: int = 1, *, seed: int | None = None) -> Shaped[np.ndarray, "sample row *target"]:
        """Return samples of the targets or labels; a sample has one value per row, from the same draw for all rows.

        Args:
            n: number of samples.
            seed: seed of the samples; by default the seed of the object.

        Raises:
            UsageError: if `n` is not a whole number of at least 1.
        """
        predictor, seed = self._predictor, self._seed if seed is None else seed
        predictive_samples.check_count("n", n)
        samples = predictive_samples.sample_rows(predictor, self._x, n, seed=seed)
        if not predictor.classifies:
            return self._shaped(samples)
        position = np.argsort(self._order)
        return self._classes[position[samples]]

    @property
    def _target_units(self) -> Float[np.ndarray, " target"]:
        """Factors that convert targets from the units of the network to original units."""
        return self._predictor.scaler.y_sd.astype(np.float64)

    @property
    def _network_sd(self) -> Float[np.ndarray, "row target"]:
        return np.sqrt(np.asarray(self._moments.aleatoric + self._moments.epistemic, np.float64))

    def _index_of(self, label: Any) -> int:
        """Return the position of a class label.

        Raises:
            UsageError: if there is no such class.
        """
        matches = np.flatnonzero([as_text(name) == as_text(label) for name in self._classes])
        if not len(matches):
            raise UsageError(f"log_prob: unknown class {as_text(label)}; the classes are {self._classes.tolist()}")
        return int(matches[0])

    def _require_numbers(self, member: str) -> None:
        if self._predictor.classifies:
            raise UsageError(f"{member}: is not supported for classes; use probabilities, mode or log_prob instead")

    def _require_classes(self, member: str) -> None:
        if not self._predictor.classifies:
            raise UsageError(f"{member}: is supported for classes only; use mean, quantile, cdf or log_prob instead")

    def _shaped(self, values: Float[np.ndarray, "*lead row target"]) -> Float[np.ndarray, "..."]:
        """Remove the last axis if there is only one target."""
        return values[..., 0] if len(self.target_names) == 1 else values

    def _points(self, y: Any) -> tuple[Float[np.ndarray, "point row target"], tuple[int, ...]]:
        """Return values in the units of the network, and the shape of the axes in front of the rows.

        Raises:
            UsageError: if the values are not numbers, or cannot be broadcast against the rows.
        """
        values = _numbers("y", y)
        targets = len(self.target_names)
        shape = (len(self), targets) if targets > 1 else (len(self),)
        values = _broadcast(values, shape)
        lead = values.shape[: values.ndim - len(shape)]
        scaled = (values.reshape(-1, len(self), targets) - self._predictor.scaler.y_mean) / self._target_units
        return scaled, lead

    def _by_blocks(
        self,
        compute: Callable[[DrawMixture, Any], Any],
        values: Float[np.ndarray, "point row target"],
    ) -> Shaped[np.ndarray, "point row ..."]:
        """Evaluate a function of the mixture at `values`, in blocks of points and of rows."""
        num_draws, targets = len(self._predictor.thetas), values.shape[2]
        points = max(1, min(len(values), mixture.ELEMENTS // (num_draws * targets)))

        def of_block(rows: Int[np.ndarray, " block"], draws: DrawMixture) -> np.ndarray:
            starts = range(0, len(values), points)
            return np.concatenate([np.asarray(compute(draws, values[i : i + points, rows])) for i in starts])

        return np.asarray(mixture.map_rows(self._predictor, self._x, points * targets, of_block), np.float64)


def _numbers(name: str, values: Any) -> Float[np.ndarray, "..."]:
    """Return the values of the argument `name` in float64; raise a UsageError if they are not numbers."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: must contain numbers only, in arrays of one shape") from None


def _broadcast(values: Shaped[np.ndarray, "..."], shape: tuple[int, ...]) -> Shaped[np.ndarray, "..."]:
    """Return the values, broadcast to arrays whose last axes are `shape`.

    Raises:
        UsageError: if the values cannot be broadcast.
    """
    try:
        broadcast = np.broadcast_to(values, np.broadcast_shapes(values.shape, shape))
    except ValueError:
        broadcast = np.empty(0)
    if broadcast.shape[-len(shape) :] != shape:
        raise UsageError(
            f"y has shape {list(values.shape)}, which cannot be broadcast against {list(shape)}; "
            "put further axes, such as the axis of a grid, in front"
        )
    return broadcast


def check_level(level: Any) -> None:
    """Check the level of an interval.

    Raises:
        UsageError: if the level is not a number between 0 and 1.
    """
    if not isinstance(level, float | int | np.number) or not 0 < level < 1:
        raise UsageError(f"[[level]]: must be above 0 and below 1 (got {level}); use [[level=0.9]] for 90 %")
