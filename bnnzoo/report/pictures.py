"""The pictures of a run by name, with their sections in the report, and the functions that draw them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Float

from bnnzoo import plots
from bnnzoo.errors import BnnzooError, DamagedError, UsageError
from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.convergence import findings
from bnnzoo.evaluation.convergence.probing import probe_rows
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.calibration_distance import MARGIN, half_width, of_intervals
from bnnzoo.evaluation.formulas.rhat import FEWEST, rhats
from bnnzoo.evaluation.predictions import new_rows, per_draw
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.predictions.thinning import PROBES
from bnnzoo.evaluation.scores import evaluate
from bnnzoo.evaluation.scores import familiarity as ood_scores
from bnnzoo.evaluation.scores.row_scores import SampledScores
from bnnzoo.finding import setting
from bnnzoo.plots import Picture, Slice
from bnnzoo.report.bands import LEVELS, around, bands, has_band, regression, target_index
from bnnzoo.report.density import density

T = TypeVar("T")

_MAX_SLICES = 6
_MAX_TARGETS = 6
_MAX_ROWS = 5000
_MAX_FEATURES = 1000
"""Largest number of features in the picture `slices`. With 41 predictions per feature, more would take minutes."""
_FEATURES_PER_CALL = 50
"""Number of features whose predictions are computed in one call. This limits the memory."""


def once(compute: Callable[[Predictor], T]) -> Callable[[Predictor], T]:
    """Return a version of `compute` that caches its result for each predictor."""
    cache: weakref.WeakKeyDictionary[Predictor, T] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def cached(predictor: Predictor) -> T:
        if predictor not in cache:
            cache[predictor] = compute(predictor)
        return cache[predictor]

    return cached


def band(predictor: Predictor, **options: Any) -> Picture:
    """Draw the predictive distribution against the single input. The options are the same as for `bands`.

    Raises:
        UsageError: if the run is not a regression on one input, if the file has no training rows, or if an option is
            invalid.
    """
    return bands({"run": predictor}, **options)


def slices(predictor: Predictor, *, target: str | None = None) -> Picture:
    """Draw predictions against one feature at a time, for the (at most six) features with the largest effects.

    The other features are fixed at their medians.

    Args:
        predictor: the run.
        target: name of a target (regression) or of a class (classification). The default is the first target or the
            second class.

    Raises:
        UsageError: if the inputs are images, if there are no inputs or more than 1000, if the run is a regression on a
            single input (use the picture `band`), if `target` is unknown, or if the file has no training rows.
    """
    signature = predictor.signature
    if predictor.is_density:
        raise UsageError("slices: this picture requires inputs, but the data of this run have none")
    if len(signature.shape) != 1:
        raise UsageError("slices: this picture requires features of a table, but the inputs of this run are images")
    if has_band(predictor):
        raise UsageError("slices: the data have only one input; use the picture band")
    predictor.record.require_training_rows("slices")
    x = predictor.record.array("constant_data", "x").astype(np.float32)
    if x.shape[1] > _MAX_FEATURES:
        raise UsageError(f"slices: this picture requires at most {_MAX_FEATURES} features (got {x.shape[1]})")
    middle = np.median(x, axis=0)
    grids = np.stack([around(column, 1.0, 41) for column in x.astype(float).T])
    if signature.exposure:  # rounding could change the smallest exposure to 0
        grids[-1] = np.maximum(grids[-1], x[:, -1].min())

    def points(feature: int) -> Float[np.ndarray, "point feature"]:
        grid_rows = np.tile(middle, (grids.shape[1], 1))
        grid_rows[:, feature] = grids[feature]
        return grid_rows

    classify = predictor.classifies
    index = _class_index(predictor, target) if classify else target_index(predictor, target)
    feature_blocks = [
        range(i, min(i + _FEATURES_PER_CALL, len(grids))) for i in range(0, len(grids), _FEATURES_PER_CALL)
    ]
    means = [
        predictor.moments(np.concatenate([points(i) for i in feature_block])).mean[:, index]
        for feature_block in feature_blocks
    ]
    mean = np.concatenate(means).reshape(grids.shape)
    features = sorted(np.argsort(-np.ptp(mean, axis=1))[:_MAX_SLICES].tolist())
    feature_slices = []
    for feature in features:
        if classify:
            weights = predictor.record.weights
            draws = predictor.functions(points(feature))[..., index].reshape(-1, grids.shape[1])
            line = np.average(draws, 0, weights)
            copies = draws[per_draw.sample_indices(len(draws), weights)]
            quantiles = metrics.quantiles(np.sort(copies, 0)[..., None], LEVELS)[..., 0]
        else:
            table = regression(predictor, points(feature), index)
            line, quantiles = table["mean"].to_numpy(), table[["q05", "q25", "q75", "q95"]].to_numpy().T
        feature_slices.append(Slice(signature.feature_names[feature], grids[feature], line, quantiles, x[:, feature]))
    name = signature.target_names[index if not classify else 0]
    count_note = (
        ""
        if len(feature_slices) == len(grids)
        else f"; only the {len(feature_slices)} of {len(grids)} inputs that change the prediction most"
    )
    return plots.slices(
        feature_slices,
        value=f"probability of {name} = {signature.class_names[index]}" if classify else name,
        interval="intervals of the draws' probabilities" if classify else "predictive intervals",
        held_note=f"the other inputs at their medians{count_note}",
    )


def trace(predictor: Predictor) -> Picture:
    """Draw the traces of the predictions with the largest, the median and the smallest R-hat."""
    values, rhat, _ = probe_predictions(predictor)
    return plots.trace(values, rhat)


def rank(predictor: Predictor) -> Picture:
    """Draw the ranks of each chain's draws among the draws of all chains, for the predictions of `trace`."""
    values, _, ess = probe_predictions(predictor)
    return plots.rank(values, ess)


def autocorrelation(predictor: Predictor) -> Picture:
    """Draw the autocorrelation of the predictions of `trace`."""
    values, _, ess = probe_predictions(predictor)
    return plots.autocorrelation(values, ess)


def steps(predictor: Predictor) -> Picture:
    """Draw the statistics of the sampler's steps over the run, including warm-up if it was recorded.

    Raises:
        UsageError: if the file has no statistic with a label or a limit.
    """
    record = predictor.record
    warmup = record.warmup_statistics
    panels = []
    for name, declaration in record.declarations.items():
        values = record.statistics.get(name)
        if values is not None and values.size and {"long_name", "limit"} & set(declaration):
            label, limit = declaration.get("long_name", ""), declaration.get("limit")
            panels.append(
                plots.Statistic(name, values, warmup.get(name), label, limit, declaration.get("limit_label", ""))
            )
    if not panels:
        raise UsageError("steps: the file contains no statistic of the sampler's steps that has a label or a limit")
    return plots.steps(panels)


def calibration(predictor: Predictor) -> Picture:
    """Draw the calibration of the predictions.

    For classification, the picture is a reliability diagram. For regression, the picture shows the coverage of central
    intervals against their nominal probability, with one line per target. If there are more than six targets, only the
    six targets with the largest calibration gaps are drawn.

    Raises:
        UsageError: if the run has no test rows.
    """
    if predictor.classifies:
        x, y = _test_rows(predictor)
        return plots.reliability(y, predictor.moments(x).mean)
    scores, columns = _scores_of_targets(predictor)
    rows = len(scores.below)  # without the rows whose targets are censored
    observed = {
        name: np.array([scores.coverage(level, slice(i, i + 1)).value for level in plots.COVERAGE_LEVELS])
        for name, i in columns.items()
    }
    return plots.coverage(observed, rows, MARGIN + half_width(rows, len(predictor.signature.target_names)))


def pit(predictor: Predictor) -> Picture:
    """Draw the histogram of the probability integral transform of the test rows, for the targets of `calibration`.

    Raises:
        UsageError: if the run is a classification, or if it has no test rows.
    """
    if predictor.classifies:
        raise UsageError("pit: the probability integral transform requires a regression")
    scores, columns = _scores_of_targets(predictor)
    return plots.pit({name: scores.pit[:, i] for name, i in columns.items()})


def ood(predictor: Predictor, *, spec: Any = "noise") -> Picture:
    """Draw histograms of the uncertainty for test rows and unfamiliar rows, for the posterior and for its best draw.

    Args:
        predictor: the run.
        spec: unfamiliar inputs, as for `Run.ood`.

    Raises:
        UsageError: if the run has no test rows, if `spec` is invalid, or if `spec` is "noise" and the file has no
            training rows.
    """
    ood_result = ood_scores.of_run(predictor, spec, new_rows.evaluation_rows(predictor)[0])
    posterior = {name: (values, ood_result.outside[name]) for name, values in ood_result.inside.items()}
    single = {name: (values, ood_result.single_outside[name]) for name, values in ood_result.single_inside.items()}
    distributions = {"posterior": posterior} | ({"single best draw": single} if single else {})
    return plots.ood(distributions, name=Path(ood_result.name).stem)


class Drawing(NamedTuple):
    """A kind of picture: its section in the report, and the function that draws it."""

    section: str
    make: Callable[..., Picture]


PREDICTS = "Predictions"
PICTURES = {
    "band": Drawing(PREDICTS, band),
    "density": Drawing(PREDICTS, density),
    "slices": Drawing(PREDICTS, slices),
    "ood": Drawing(PREDICTS, ood),
    "calibration": Drawing(findings.CALIBRATED, calibration),
    "pit": Drawing(findings.CALIBRATED, pit),
    "trace": Drawing(findings.CONVERGED, trace),
    "rank": Drawing(findings.CONVERGED, rank),
    "autocorrelation": Drawing(findings.CONVERGED, autocorrelation),
    "steps": Drawing(findings.RAN, steps),
}
"""All pictures by name, in the order of a report."""


def draw(predictor: Predictor) -> dict[str, Picture | BnnzooError]:
    """Return each picture by its name. If a picture is not available for this run, return the error with the reason.

    Raises:
        DamagedError: if the arrays of the run are damaged.
    """
    return {name: attempt(functools.partial(drawing.make, predictor)) for name, drawing in PICTURES.items()}


def attempt(compute: Callable[[], T]) -> T | BnnzooError:
    """Return the result of `compute`, or the `BnnzooError` that it raises. A `DamagedError` is not caught."""
    try:
        return compute()
    except DamagedError:
        raise
    except BnnzooError as error:
        return error


def _test_rows(predictor: Predictor) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of the test rows. If there are more than 5000 rows, select 5000 evenly spaced rows."""
    x, y = new_rows.evaluation_rows(predictor)
    rows = evenly(len(x), _MAX_ROWS)
    return x[rows], y[rows]


@once
def _scores_of_targets(predictor: Predictor) -> tuple[SampledScores, dict[str, int]]:
    """Return the scores of the test rows, and names and columns of the six least calibrated targets."""
    scores = evaluate.sampled_scores(predictor, *_test_rows(predictor))
    gaps = np.array([of_intervals(column[:, None]).gap for column in scores.pit.T])
    names = predictor.signature.target_names
    return scores, {names[i]: int(i) for i in sorted(np.argsort(-gaps)[:_MAX_TARGETS])}


@once
def probe_predictions(predictor: Predictor) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """Return three dictionaries of at most three predictions: the values [chain, draw], the R-hats and the bulk ESS.

    The predictions are those with the largest, the median and the smallest R-hat among all predictions with which
    convergence is tested. If the run cannot predict, or if its file has no rows, the function uses parameters instead
    of predictions.
    """
    values, names = _probe_values(predictor)
    with np.errstate(invalid="ignore", divide="ignore"):
        is_varying = np.ptp(values, axis=(0, 1)) > 0
        rhat, ess = np.where(is_varying, rhats(values), np.inf), np.zeros(len(names))
        if values.shape[1] >= FEWEST:
            flat = np.moveaxis(values, 2, 0).astype(float)
            ess = np.array([array_stats.ess(value, method="bulk") for value in flat])
        ess = np.where(is_varying & np.isfinite(ess), ess, 0.0)
    order = np.argsort(-rhat, kind="stable")
    positions = sorted({0, len(order) // 2, len(order) - 1})
    return (
        {names[order[k]]: values[..., order[k]] for k in positions},
        {names[order[k]]: float(rhat[order[k]]) for k in positions},
        {names[order[k]]: float(ess[order[k]]) for k in positions},
    )


def _probe_values(predictor: Predictor) -> tuple[Float[np.ndarray, "chain draw value"], list[str]]:
    """Return the values in original units and the names of the predictions with which convergence is tested.

    If the run cannot predict, or if its file has no rows, return some parameters instead of predictions.
    """
    record = predictor.record
    if not predictor.has_rows:
        numbers, values = predictor.some_parameters()
        return values, [f"parameter {index}" for index in numbers]
    signature = predictor.signature
    probes = probe_rows(record, PROBES)
    values = predictor.functions(probes.inputs)
    if predictor.classifies:
        labels = [f"p({signature.target_names[0]} = {name})" for name in signature.class_names]
    else:
        values = predictor.scaler.unscale_targets(values)
        labels = [f"mean of {target}" for target in signature.target_names]
    names = [f"{label} at {row}" for row in probes.labels for label in labels]
    return values.reshape(*values.shape[:2], -1), names


def _class_index(predictor: Predictor, name: str | None) -> int:
    names = predictor.signature.class_names
    if name is None:
        return min(1, len(names) - 1)
    if name not in names:
        raise UsageError(f"{setting('target', name)}: unknown class; use one of {', '.join(names)}")
    return names.index(name)
