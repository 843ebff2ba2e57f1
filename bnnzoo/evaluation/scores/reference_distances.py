"""Distances between the predictions of a run and of a reference run, with the Monte Carlo error of the reference.

The predictive distribution of the reference is computed for each chain. The distribution of any half of the chains is
then the mean over its chains, so all divisions into halves cost no further predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.formulas import distribution_distances as formulas
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.store import schema

_POINTS_PER_GRID = 129
_REACH = 6.0
"""Half width of a grid of points, in predictive sds."""
_MAX_DRAWS = 2000
"""Largest number of evenly spaced draws of a run that are compared."""
DISTANCES = ("total_variation", "wasserstein", "energy_distance")
"""The distances that are 0 for equal distributions."""


class Distance(NamedTuple):
    """A number that compares a run with a reference, such as `total_variation` or `nll_difference`.

    Attributes:
        value: the number for all draws of the reference.
        mcse: its Monte Carlo error from the finite number of draws of the reference.
    """

    value: float
    mcse: float


class ReferenceDistances(NamedTuple):
    """The numbers that compare a run with a reference, and the same numbers for two halves of the reference.

    `floor` compares one half of the reference's chains with the other half, and averages over all divisions into
    halves. It contains only the distances and `agreement`, the fraction of inputs with the same most probable class.
    """

    numbers: dict[str, Distance]
    floor: dict[str, float]

    @property
    def flat(self) -> dict[str, float]:
        """The numbers by name; each is followed by its Monte Carlo error NAME_mcse."""
        pairs = ({name: number.value, f"{name}_mcse": number.mcse} for name, number in self.numbers.items())
        return {name: value for pair in pairs for name, value in pair.items()}


class _Predictions(NamedTuple):
    """Predictions of some draws at the inputs of the reference, in original units.

    Attributes:
        distribution: the distribution function at the points [point, row, target], or class probabilities [row, class].
        mean: the means of the targets [row, target], or the class probabilities.
        within: the variance over draws of the mean of the target [row, target], or the mean over draws of the entropy
            of the class [row, 1].
        log_density: log density of the test targets [test_row].
    """

    distribution: Float[np.ndarray, "..."]
    mean: Float[np.ndarray, "row value"]
    within: Float[np.ndarray, "row spread"]
    log_density: Float[np.ndarray, " test_row"]


def compare(run: Predictor, reference: Predictor) -> ReferenceDistances:
    """Compare the predictions of a run and of a reference at the inputs of the reference.

    Raises:
        UsageError: if the reference has an odd number of chains, or if the likelihood has no distribution function.
    """
    num_chains = reference.record.shape[0]
    if num_chains % 2:
        raise UsageError(
            f"{reference.record.name}: a reference requires an even number of chains (got {num_chains}); sample it "
            "again with another number of [[chains]]"
        )
    run = run.thinned(-(-int(np.prod(run.record.shape)) // _MAX_DRAWS))
    x = reference.record.array(schema.CONSTANT_DATA, schema.KEPT_ROWS)
    points = None if reference.classifies else _points(run, reference, x)
    chains = [_predictions(_of_chain(reference, chain), reference, x, points) for chain in range(num_chains)]
    of_run, everything = _predictions(run, reference, x, points), _pooled(chains, reference.classifies)

    def numbers(first: _Predictions, second: _Predictions) -> dict[str, float]:
        if points is None:
            return _class_numbers(first, second)
        sd = PredictiveDistribution(reference, x).sd.reshape(second.mean.shape)
        return _regression_numbers(first, second, points, sd, not reference.has_continuous_targets)

    values, splits, floors = numbers(of_run, everything), [], []
    for first, second in formulas.halves(num_chains):
        parts = [_pooled([chains[chain] for chain in half], reference.classifies) for half in (first, second)]
        of_halves = [numbers(of_run, part) for part in parts]
        splits.append({name: of_halves[0][name] - of_halves[1][name] for name in values})
        floors.append(numbers(*parts))
    # The mean of two halves has half of the sd of their difference.
    errors = {name: float(np.sqrt(np.mean([split[name] ** 2 for split in splits]))) / 2 for name in values}
    floor_names = [name for name in (*DISTANCES, "agreement") if name in values]
    return ReferenceDistances(
        {name: Distance(values[name], errors[name]) for name in values},
        {name: float(np.mean([floor[name] for floor in floors])) for name in floor_names},
    )


def _class_numbers(first: _Predictions, second: _Predictions) -> dict[str, float]:
    p, q = first.mean, second.mean
    information = [np.mean(metrics.entropy(part.mean) - part.within[:, 0]) for part in (first, second)]
    return {
        "total_variation": float(np.mean(formulas.class_total_variation(p, q))),
        "energy_distance": float(np.sqrt(np.mean(formulas.class_energy_distance(p, q)))),
        "agreement": float(np.mean(p.argmax(1) == q.argmax(1))),
        "epistemic_ratio": float(information[0] / information[1]),
        **_nll_difference(first, second),
    }


def _regression_numbers(
    first: _Predictions,
    second: _Predictions,
    points: Float[np.ndarray, "point row target"],
    sd: Float[np.ndarray, "row target"],
    is_discrete: bool,
) -> dict[str, float]:
    f, g = first.distribution, second.distribution
    width = formulas.wasserstein(points, f, g, is_discrete=is_discrete) / sd
    energy = formulas.energy_distance(points, f, g, is_discrete=is_discrete) / sd
    return {
        "total_variation": float(np.mean(formulas.total_variation(f, g))),
        "wasserstein": float(np.mean(width)),
        "energy_distance": float(np.sqrt(np.mean(energy))),
        "epistemic_ratio": float(np.mean(np.sqrt(first.within / second.within))),
        **_nll_difference(first, second),
    }


def _nll_difference(first: _Predictions, second: _Predictions) -> dict[str, float]:
    difference = second.log_density - first.log_density
    return {"nll_difference": float(np.mean(difference))} if len(difference) else {}


def _predictions(
    predictor: Predictor,
    reference: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    points: Float[np.ndarray, "point row target"] | None,
) -> _Predictions:
    """Return the predictions of `predictor` from all its draws."""
    moments, distribution = predictor.moments(x), PredictiveDistribution(predictor, x)
    log_density = np.zeros(0)
    if reference.record.has_test_rows:
        x_test, y_test = reference.record.test_rows()
        log_density = predictor.moments(x_test, y_test).log_density.astype(np.float64)
        if not reference.classifies:
            log_density = log_density - float(np.sum(np.log(predictor.scaler.y_sd.astype(np.float64))))
    if points is None:
        probabilities = np.asarray(moments.mean, np.float64)
        return _Predictions(probabilities, probabilities, np.asarray(moments.aleatoric, np.float64), log_density)
    shape = points.shape
    if shape[2] == 1 and not reference.has_continuous_targets:
        # The points are all whole numbers from -1 on. NumPyro's distribution functions of counts are slow.
        values = np.cumsum(np.exp(distribution.log_prob(points[..., 0])), 0)
    else:
        values = distribution.cdf(points[..., 0] if shape[2] == 1 else points)
    variance = distribution.epistemic_sd.reshape(shape[1:]) ** 2
    return _Predictions(values.reshape(shape), distribution.mean.reshape(shape[1:]), variance, log_density)


def _pooled(parts: Sequence[_Predictions], classifies: bool) -> _Predictions:
    """Return the predictions of all draws of some equally long chains, from the predictions of each chain."""
    mean = np.mean([part.mean for part in parts], 0)
    within = np.mean([part.within for part in parts], 0)
    if not classifies:
        within = within + np.mean([(part.mean - mean) ** 2 for part in parts], 0)
    log_densities = np.logaddexp.reduce([part.log_density for part in parts], 0) - np.log(len(parts))
    return _Predictions(np.mean([part.distribution for part in parts], 0), mean, within, log_densities)


def _points(
    run: Predictor, reference: Predictor, x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "point row target"]:
    """Return the points at which the distribution functions are compared, in original units.

    For counts they are the integers from -1 on. Otherwise they are two grids, one for the run and one for the
    reference, so that a run with far too small or too large sds is compared accurately too.
    """
    both = [PredictiveDistribution(predictor, x) for predictor in (run, reference)]
    means, sds = (np.stack([getattr(part, name).reshape(len(x), -1) for part in both]) for name in ("mean", "sd"))
    if not reference.has_continuous_targets:
        largest = np.ceil(np.max(means + 2 * _REACH * sds)) + 1
        return np.broadcast_to(np.arange(-1.0, largest)[:, None, None], (int(largest) + 1, *means.shape[1:]))
    steps = np.linspace(-_REACH, _REACH, _POINTS_PER_GRID)[:, None, None]
    return np.sort(np.concatenate([mean + steps * sd for mean, sd in zip(means, sds, strict=True)]), 0)


def _of_chain(predictor: Predictor, chain: int) -> Predictor:
    """Return a predictor with the draws of a single chain."""
    record = predictor.record
    groups: dict[str, Any] = {f"/{name}": node.to_dataset() for name, node in record.tree.children.items()}
    for name in (schema.POSTERIOR, schema.SAMPLE_STATS):
        if f"/{name}" in groups:
            groups[f"/{name}"] = groups[f"/{name}"].isel(chain=[chain], missing_dims="ignore")
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(record.tree.attrs)
    return Predictor(Record(tree, record.path), predictor.model)
