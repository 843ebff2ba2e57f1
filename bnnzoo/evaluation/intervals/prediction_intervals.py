"""Prediction intervals and prediction sets: Bayesian, or conformal with guaranteed coverage.

For exact draws, conformal intervals need only the draws and the training rows (`full_conformal`). For other draws, the
user must give calibration rows (`split_conformal`). The test rows of the run are used for calibration only if the user
requests it (`TEST_ROWS`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Shaped

from bnnzoo.data.columns.bounds import uncensored_rows
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.intervals import full_conformal, split_conformal
from bnnzoo.evaluation.predictions import new_rows, noise_scale, prediction_table
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution, check_level
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.progress import Observer

Interval = Literal["bayesian", "conformal"]
LEVEL = 0.9
"""Default level: the probability with which an interval should contain the target."""
TEST_ROWS = "test"
"""Value of the argument `calibration` that selects the test rows of the run."""
SEPARATOR = "|"
"""Character between the classes of a set in a table."""


def check_interval(interval: str) -> None:
    """Check the name of a kind of interval.

    Raises:
        UsageError: if the name is neither "bayesian" nor "conformal".
    """
    if interval not in ("bayesian", "conformal"):
        raise UsageError(
            f"[[interval]]: unknown interval {interval!r}; use [[interval=bayesian]] or [[interval=conformal]]"
        )


def refuse_without_interval(level: float | None, calibration: Any) -> None:
    """Raise an error if a setting of intervals is given although no intervals were requested.

    Raises:
        UsageError: if `level` or `calibration` is given.
    """
    if level is not None or calibration is not None:
        name = "level" if level is not None else "calibration"
        raise UsageError(f"[[{name}]]: requires [[interval=conformal]] or [[interval=bayesian]]")


def refuse_unused_calibration(interval: str, calibration: Any) -> None:
    """Raise an error if calibration rows are given for intervals that do not use them.

    Raises:
        UsageError: if `calibration` is given and the intervals are not conformal.
    """
    if calibration is not None and interval != "conformal":
        raise UsageError(
            "[[calibration]]: is supported for conformal intervals only; use [[interval=conformal]], or remove "
            "[[calibration]]"
        )


def refuse_for_new_rows(**settings: Any) -> None:
    """Raise an error if a setting that needs inputs is given for rows that are drawn from a density.

    Raises:
        UsageError: if a value of `settings` is not None.
    """
    for name, value in settings.items():
        if value is not None:
            raise UsageError(f"[[{name}]]: is not supported for rows drawn from a density; remove [[{name}]]")


def calibration_rows(
    predictor: Predictor, calibration: Any, *, scored: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return inputs and targets of the calibration rows; None if `calibration` is None.

    Args:
        predictor: the predictor of a run.
        calibration: rows with targets in a form that `--data` accepts, or "test" for the test rows of the run.
        scored: inputs and targets of the rows whose coverage will be measured; the calibration rows must be different
            rows.

    Raises:
        UsageError: if the rows do not fit the run, if the run has no test rows for "test", if targets are censored, or
            if most calibration rows are training rows or scored rows.
    """
    if calibration is None:
        return None
    is_test = isinstance(calibration, str) and calibration == TEST_ROWS
    x, y = new_rows.evaluation_rows(predictor, None if is_test else calibration)
    return checked_calibration(predictor, x, y, scored=scored)


def checked_calibration(
    predictor: Predictor, x: np.ndarray, y: np.ndarray, *, scored: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Check calibration rows and return them; the arguments are those of `calibration_rows`.

    Raises:
        UsageError: if targets are censored, or if most calibration rows are training rows or scored rows.
    """
    if not uncensored_rows(y).all():
        raise UsageError("[[calibration]]: rows with censored targets are not supported; remove them")
    y = y[..., 0] if y.ndim == 3 else y
    if predictor.record.has_training_rows and _are_mostly_rows_of((x, y), predictor.record.training_rows(None)):
        raise UsageError(
            "[[calibration]]: most of the rows are training rows, where prediction errors are too small; give rows "
            "that the run was not trained on"
        )
    if scored is not None and (_are_mostly_rows_of((x, y), scored) or _mostly_among((x,), scored[:1])):
        raise UsageError(
            "[[calibration]]: most of the rows are also the rows whose coverage is measured; give different rows "
            "as [[data]] and as [[calibration]]"
        )
    return x, y


def _are_mostly_rows_of(rows: tuple[np.ndarray, np.ndarray], others: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether rows equal the uncensored other rows, or most rows are among the uncensored other rows.

    Args:
        rows: inputs and targets, without censored targets.
        others: inputs and targets of the other rows.
    """
    x, y = others
    if y.ndim == 3:
        is_exact = uncensored_rows(y)
        x, y = x[is_exact], y[is_exact][..., 0]
    return all(map(np.array_equal, rows, (x, y))) or _mostly_among(rows, (x, y))


def _mostly_among(rows: tuple[np.ndarray, ...], others: tuple[np.ndarray, ...]) -> bool:
    """Whether more than half of the rows (arrays with the same first axis) also occur among the other rows.

    The result is false if most of the other rows are duplicates, for example because a single input has few distinct
    values. Equal rows are then often different measurements.
    """
    keys, other_keys = _row_keys(rows), _row_keys(others)
    distinct = set(other_keys)
    if len(distinct) < len(other_keys) / 2:
        return False
    return sum(key in distinct for key in keys) > len(keys) / 2


def _row_keys(arrays: tuple[np.ndarray, ...]) -> list[bytes]:
    return [b"".join(np.ascontiguousarray(values).tobytes() for values in row) for row in zip(*arrays, strict=True)]


def _checked_level(
    predictor: Predictor, interval: str, level: float | None, calibration: Any, density_remedy: str
) -> float:
    """Check the arguments of `table` and `estimates`, and return the level (0.9 if it is None).

    The error message for a density run ends with `density_remedy`.

    Raises:
        UsageError: for a density run, an unknown kind of interval, an invalid level, or calibration rows for Bayesian
            intervals.
    """
    level = LEVEL if level is None else level
    check_interval(interval)
    check_level(level)
    if predictor.is_density:
        raise UsageError(f"intervals: a density has no inputs to predict from; {density_remedy}")
    refuse_unused_calibration(interval, calibration)
    return level


def intervals(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    interval: Interval,
    level: float,
    *,
    calibration: tuple[np.ndarray, np.ndarray] | None = None,
    observer: Observer | None = None,
) -> Float[np.ndarray, "2 row target"]:
    """Return the lower and the upper ends of the intervals of the targets of a regression, in original units.

    Both ends belong to the interval.

    Args:
        predictor: the predictor of a run.
        x: inputs.
        interval: "bayesian", the central interval of the predictive distribution, or "conformal".
        level: probability that an interval contains the target.
        calibration: inputs and targets of calibration rows. Conformal intervals require calibration rows if the draws
            are not exact, and always use calibration rows if these are given.
        observer: function that is called with the progress.

    Raises:
        UsageError: for a density run, or an invalid kind or level. For conformal intervals also if calibration rows are
            needed but not given, if there are too few rows for the level, or if the importance weights of the draws are
            unreliable.
    """
    check_interval(interval)
    check_level(level)
    shape = (2, len(x), len(predictor.signature.target_names))
    if interval == "bayesian" or not len(x):
        return PredictiveDistribution(predictor, x).interval(level).reshape(shape)
    if calibration is not None:
        return np.stack(split_conformal.intervals(predictor, x, calibration, level))
    return full_conformal.intervals(full_conformal.prepare(predictor, level), x, observer=observer)


def sets(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    interval: Interval,
    level: float,
    *,
    calibration: tuple[np.ndarray, np.ndarray] | None = None,
    observer: Observer | None = None,
) -> Bool[np.ndarray, "row class"]:
    """Return the prediction sets of a classification: whether each class is in the set of each row.

    The Bayesian set is the smallest set of classes whose predictive probabilities add up to at least `level`. The
    arguments and errors are those of `intervals`.
    """
    check_interval(interval)
    check_level(level)
    if interval == "bayesian" or not len(x):
        probabilities = predictor.moments(x).mean.astype(np.float64)
        order = np.argsort(-probabilities, 1, kind="stable")
        ordered = np.take_along_axis(probabilities, order, 1)
        is_needed = np.cumsum(ordered, 1) - ordered < level * ordered.sum(1, keepdims=True)
        return np.take_along_axis(is_needed, np.argsort(order, 1), 1)
    if calibration is not None:
        return split_conformal.sets(predictor, x, calibration, level)
    return full_conformal.sets(full_conformal.prepare(predictor, level), x, observer=observer)


def table(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    interval: Interval,
    level: float | None = None,
    *,
    calibration: Any = None,
    observer: Observer | None = None,
) -> pd.DataFrame:
    """Return intervals or sets as a table with one row per input.

    A regression has the columns `lower` and `upper`, with the prefix `<target>_` if there are several targets. A
    classification has the column `set` with the names of the classes in the set. A vertical bar separates the classes,
    and the likeliest class comes first.

    Raises:
        UsageError: for the reasons of `intervals` and `calibration_rows`, or if calibration rows are given for Bayesian
            intervals.
    """
    level = _checked_level(predictor, interval, level, calibration, "use predict for its log density")
    rows, signature = calibration_rows(predictor, calibration), predictor.signature
    if predictor.classifies:
        members = sets(predictor, x, interval, level, calibration=rows, observer=observer)
        order = np.argsort(-predictor.moments(x).mean, 1, kind="stable")
        names = [
            SEPARATOR.join(str(signature.class_names[c]) for c in ranked if row[c])
            for row, ranked in zip(members, order, strict=True)
        ]
        return pd.DataFrame({"set": names})
    lower, upper = intervals(predictor, x, interval, level, calibration=rows, observer=observer)
    return prediction_table.by_target(signature.target_names, {"lower": lower, "upper": upper})


def estimates(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
    interval: Interval,
    level: float | None = None,
    *,
    calibration: Any = None,
    observer: Observer | None = None,
) -> dict[str, Estimate]:
    """Return coverage and mean width of Bayesian intervals and, if requested, of conformal intervals at one level.

    The keys are `interval_level`, and for both kinds (`<kind>` is `bayesian` or `conformal`):

    - `coverage_<kind>`: fraction of targets in their interval or set.
    - `width_<kind>`: mean width of the intervals of one target.
    - `width_<kind>_standardised`: mean width for several targets, in units of the targets' standard deviations.
    - `size_<kind>`: mean number of classes in the sets of a classification.

    Rows with censored targets are left out.

    Raises:
        UsageError: for the reasons of `table`, or if most calibration rows are also scored.
    """
    level = _checked_level(predictor, interval, level, calibration, "remove [[interval]]")
    is_exact = uncensored_rows(y)
    x, y = (x[is_exact], y[is_exact][..., 0]) if y.ndim == 3 else (x, y)
    rows = calibration_rows(predictor, calibration, scored=(x, y))
    results: dict[str, Estimate] = {"interval_level": Estimate(level)}
    kinds: tuple[Interval, ...] = ("bayesian",) if interval == "bayesian" else ("bayesian", "conformal")
    has_several_targets = len(predictor.signature.target_names) > 1
    for kind in kinds:
        options: dict[str, Any] = {"calibration": rows, "observer": observer}
        if predictor.classifies:
            members = sets(predictor, x, kind, level, **options)
            inside, name, sizes = members[np.arange(len(y)), y][:, None], "size", members.sum(1, dtype=np.float64)
        else:
            lower, upper = intervals(predictor, x, kind, level, **options)
            inside, name = (lower <= y) & (y <= upper), "width"
            sizes = ((upper - lower) / (noise_scale.target_sd(predictor) if has_several_targets else 1.0)).mean(1)
        results[f"coverage_{kind}"] = metrics.mean(inside.mean(1))._replace(is_fraction=True)
        results[f"{name}_{kind}{'_standardised' if has_several_targets else ''}"] = metrics.mean(sizes)
    return results
