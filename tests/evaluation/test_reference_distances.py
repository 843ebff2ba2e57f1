"""Distances of a run from a run that keeps predictions, for numbers, counts and classes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import bnnzoo
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.scores import reference_distances

LENGTHS = {"chains": 4, "warmup": 300, "draws": 300, "test_fraction": 0.3, "progress": False}
LIKELIHOODS = {"numbers": {"name": "gaussian", "scale": 0.5}, "counts": "poisson", "classes": "bernoulli"}


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    rate = 0.5 + 0.7 * x[:, 0]
    targets = {"counts": rng.poisson(np.exp(rate)), "classes": (rng.normal(size=60) < rate).astype(int)}
    return x, targets.get(kind, rate + 0.5 * rng.normal(size=60))


def sample(kind: str, path, **options) -> bnnzoo.Run:
    own = {"data": data(kind), "likelihood": LIKELIHOODS[kind], **LENGTHS, "out": path}
    return bnnzoo.sample("linear", "nuts", **(own | options))


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> dict[str, bnnzoo.Run]:
    folder = tmp_path_factory.mktemp("references")
    return {kind: sample(kind, folder / f"{kind}.nc", keep="predictions") for kind in LIKELIHOODS}


@pytest.mark.long
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_chains_together_are_the_whole_reference(kind, references):
    numbers = reference_distances.compare(references[kind].predictor, references[kind].predictor).numbers
    for name in ("total_variation", "energy_distance"):
        assert numbers[name].value == pytest.approx(0, abs=1e-5)
        assert numbers[name].mcse >= 0
    assert numbers["epistemic_ratio"].value == pytest.approx(1, abs=1e-4)
    assert numbers["nll_difference"].value == pytest.approx(0, abs=1e-5)
    assert ("wasserstein" in numbers) == (kind != "classes")
    assert ("agreement" in numbers) == (kind == "classes")


@pytest.mark.long
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_another_seed_is_as_far_as_two_halves_and_a_narrow_prior_is_farther(kind, references, tmp_path):
    """The run and the reference have equally many draws, so their distance is about 0.7 of that of two halves."""
    same = sample(kind, tmp_path / "same.nc", seed=5)
    other = sample(kind, tmp_path / "other.nc", prior={"name": "normal", "scale": 0.05})
    results = [reference_distances.compare(run.predictor, references[kind].predictor) for run in (same, other)]
    for name, floor in results[0].floor.items():
        if name == "agreement":
            continue
        assert 0 < results[0].numbers[name].value < 2 * floor
        assert results[1].numbers[name].value > 4 * floor
    assert results[1].numbers["nll_difference"].value > results[0].numbers["nll_difference"].value
    assert results[1].numbers["epistemic_ratio"].value < 0.8


@pytest.mark.long
def test_the_distance_of_two_normal_predictions_has_its_closed_form(references, tmp_path):
    """A noise of 1 and not 0.5: the sds are 1 and 0.5 up to the epistemic part, which is small.

    The quantile functions differ by shift + gap z with z ~ N(0, 1). Its mean absolute value is that
    of a folded normal distribution.
    """
    wide = sample("numbers", tmp_path / "wide.nc", likelihood={"name": "gaussian", "scale": 1.0})
    numbers = reference_distances.compare(wide.predictor, references["numbers"].predictor).numbers
    x = references["numbers"].test_rows()[0]
    first, second = (run.predictive(x) for run in (wide, references["numbers"]))
    gap = np.abs(first.sd - second.sd) / second.sd
    shift = (first.mean - second.mean) / second.sd
    ratio = shift / gap
    exact = np.mean(gap * (np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + ratio * (1 - 2 * stats.norm.cdf(-ratio))))
    assert numbers["wasserstein"].value == pytest.approx(exact, rel=0.02)
    assert 0.2 < numbers["total_variation"].value < 0.4


@pytest.mark.long
def test_an_odd_number_of_chains_is_refused(references, tmp_path):
    odd = sample("numbers", tmp_path / "odd.nc", chains=3, keep="predictions", warmup=20, draws=20)
    with pytest.raises(UsageError, match=r"odd.nc: a reference requires an even number of chains \(got 3\)"):
        reference_distances.compare(references["numbers"].predictor, odd.predictor)
