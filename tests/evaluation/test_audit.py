"""The audit: exchangeable pairs pass, drift is reported with its sign; correct runs pass, wrong runs fail."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
import tiny
from scipy import special, stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.audit import audit, drift
from bnnzoo.evaluation.audit.audit_result import LEVEL
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Bernoulli
from bnnzoo.posterior.priors import Normal
from bnnzoo.samplers import Mala
from bnnzoo.testing.targets import regression

UNITS, REPEATS = 40, 120


def pairs(rng: np.random.Generator, shift: float = 0.0, spread: float = 1.0) -> tuple[dict, dict]:
    """Return correlated starts and ends [unit, value] with heavy tails; exchangeable by default."""
    start = rng.standard_t(3, size=(UNITS, 6))
    end = 0.6 * start + 0.8 * rng.standard_t(3, size=(UNITS, 6))
    middle = (start + end) / 2
    swap = rng.random((UNITS, 1)) < 0.5
    start, end = np.where(swap, end, start), np.where(swap, start, end)
    before, after = start, middle + (end - middle) * spread + shift
    return ({"f": before, "f^2": before**2}, {"f": after, "f^2": after**2})


def p_values(**wrong: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.array([drift.find_drift(*pairs(rng, **wrong)).p_value for _ in range(REPEATS)])


def test_the_p_value_of_exchangeable_pairs_is_uniform(monkeypatch):
    """Kolmogorov's test at 1e-6, of independent repeats; p is discrete by a thousandth."""
    monkeypatch.setattr(drift, "_FLIPS", 999)
    result = p_values()
    assert stats.kstest(result, "uniform").pvalue > 1e-6
    assert (result > LEVEL).mean() > 0.98
    # Positive controls: the ends have moved, or have a larger spread.
    assert np.median(p_values(shift=0.5)) < 0.01
    assert stats.kstest(p_values(spread=2.0), "uniform").pvalue < 1e-6


def test_a_drifting_function_is_named_with_its_sign():
    rng = np.random.default_rng(1)
    start = rng.normal(size=(50, 3))
    still = {"means": start, "density": start[:, :1]}
    fell = {"means": start + 0.3 * rng.normal(size=start.shape), "density": start[:, :1] - rng.random((50, 1))}
    drifts = drift.find_drift(still, fell)
    assert (drifts.function, drifts.p_value) == ("density", 1e-4)
    assert drifts.score < -5
    assert drift.find_drift(still, still) == drift.Drift(1.0, "nothing moved", 0.0)


def test_one_unit_that_moves_far_does_not_hide_the_others():
    """A sum of differences would depend on this unit alone."""
    before = np.zeros((40, 1))
    after = -1 - np.random.default_rng(0).random((40, 1))
    after[0] = 1e12
    assert drift.find_drift({"f": before}, {"f": after}).p_value < LEVEL


def test_drift_is_tested_for_few_units():
    """For eight members of an ensemble, no pattern of sign flips is as rare as the level."""
    rng = np.random.default_rng(2)
    before = rng.normal(size=(8, 2))
    assert drift.find_drift({"f": before}, {"f": before - 5 + 0.1 * rng.normal(size=(8, 2))}).p_value < LEVEL
    p_values = [drift.find_drift({"f": before}, {"f": before + rng.normal(size=(8, 2))}).p_value for _ in range(200)]
    assert np.mean(np.array(p_values) >= 0.01) > 0.95


# ---- chains --------------------------------------------------------------------------------------


def _drifted(scale: float, shift: float) -> drift.Drift:
    """Audit 48 draws of the closed form, scaled and shifted, in the regression with an exact answer."""
    target = regression()
    rng = np.random.default_rng(4)
    draws = rng.multivariate_normal(target.mean, target.covariance * scale**2, size=64) + shift * target.sd
    kernel = drift.kernel_for(target.posterior, draws[48:].astype(np.float32), key=jax.random.key(0))
    assert kernel.acceptance > 0.4
    ends, acceptance = drift.advance(
        kernel, target.posterior, draws[:48].astype(np.float32), steps=20, key=jax.random.key(1)
    )
    assert acceptance > 0.4
    z = [(theta - target.mean) / target.sd for theta in (draws[:48], ends)]
    return drift.find_drift(*({"theta": item, "theta^2": item**2} for item in z))


@pytest.mark.long
@pytest.mark.parametrize("full_up_to", [drift.FULL_UP_TO, pytest.param(100, marks=pytest.mark.slow)])
def test_exact_draws_stay_and_others_do_not(full_up_to, monkeypatch):
    """The chains use all rows, or the penalty with a control variate as for many rows."""
    monkeypatch.setattr(drift, "FULL_UP_TO", full_up_to)
    assert _drifted(1.0, 0.0).p_value >= LEVEL
    wide, moved = _drifted(3.0, 0.0), _drifted(1.0, 1.0)
    assert wide.p_value < LEVEL
    assert (wide.function, wide.score < 0) == ("theta^2", True)
    assert moved.p_value < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "size", "scale"), [(1, 145.0, 1.0), (3, 1.0, 5.0)])
def test_rows_that_few_batches_draw_count_in_exact_chains(rows, size, scale):
    """A rare standardised feature, which is 1 in three rows with label 1: exact draws of its weight show no drift.

    Its posterior N(0, scale^2) sigmoid(size w)^rows is skewed. Steps that seldom draw these rows would sample a
    Gaussian.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(21_000, 2)).astype(np.float32)
    y = (rng.random(len(x)) < special.expit(0.3 * x[:, 0])).astype(int)
    x[:, 1] = 0
    x[:rows, 1], y[:rows] = size, 1
    network = Linear().build((2,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(network, Bernoulli(), Normal(scale=scale), x, y)
    grid = np.linspace(-6, 8, 4001) * scale
    density = np.exp(-((grid / scale) ** 2) / 2) * special.expit(size * grid) ** rows
    density /= density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    others = [0.3, 0.0] + 0.015 * rng.normal(size=(272, 2))
    draws = np.stack([others[:, 0], rng.choice(grid, p=density, size=272), others[:, 1]], 1).astype(np.float32)
    kernel = drift.kernel_for(posterior, draws[256:], key=jax.random.key(0))
    ends, _ = drift.advance(kernel, posterior, draws[:256], steps=64, key=jax.random.key(1))
    assert abs(ends[:, 1].mean() - mean) < 4.9 * sd / 256**0.5


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_right_run_does_not_drift_and_one_with_the_wrong_width_does(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.nc"
    recipe = tiny.recipe("mala", "linear", draws=200, warmup=200, chains=4, thin=5, **{"likelihood.scale": "learned"})
    run = entrances.run_recipe(recipe, out=path)
    arguments = ["audit", str(path), "--chains", "40", "--seconds", "5"]
    assert cli.run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["outcome"] in ("passed", "undecided")
    assert report["p"] >= LEVEL
    assert report["verdict"].startswith(report["outcome"])
    assert abs(report["bias_sd"]) < 4 * report["bias_sd_se"]
    # Positive control: the same draws with half the spread about their mean.
    draws = run.predictor.draws[:]
    run.predictor.draws.__dict__["_all_draws"] = (draws.mean(0) + (draws - draws.mean(0)) / 2).astype(draws.dtype)
    narrow = run.audit(chains=40, seconds=5.0)
    assert narrow.outcome == "drifted"
    assert not narrow.passed
    assert narrow.bias_sd + 3 * narrow.bias_sd_se < 0
    assert "too small" in narrow.verdict
    monkeypatch.setattr(audit, "of_run", lambda *args, **more: narrow)
    assert cli.run(["audit", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "outcome          drifted" in out
    assert err == ""
    assert cli.run(["audit", str(path), "--gate"]) == 3
    assert "bnnzoo: drifted: the draws are not from the posterior" in capsys.readouterr().err


@pytest.mark.long
def test_an_audit_refuses_unsupported_runs(tmp_path):
    target = regression()
    run = entrances.sample(target.posterior, Mala(), chains=2, warmup=5, draws=5, out=tmp_path / "hand.nc")
    with pytest.raises(UsageError, match="made in Python"):
        run.audit()


@pytest.mark.long
@pytest.mark.parametrize(
    "stochastic",
    ["last", pytest.param("identified", marks=pytest.mark.slow), pytest.param("linearised", marks=pytest.mark.slow)],
)
def test_a_right_run_of_a_part_of_a_network_is_audited_and_does_not_drift(stochastic):
    """The part's network takes features, not the inputs at which predictions are compared."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (100, 1))
    y = np.sin(3 * x[:, 0]) + 0.2 * rng.normal(size=100)
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": (4,)},
        "nuts",
        data=(x, y),
        stochastic=stochastic,
        likelihood={"name": "gaussian", "scale": 0.3},
        test_fraction=0.1,
        start_steps=250,
        warmup=200,
        draws=200,
        chains=4,
        progress=False,
    )
    result = run.audit(seconds=1.0)
    assert result.outcome in ("passed", "undecided")
    assert result.p >= LEVEL
