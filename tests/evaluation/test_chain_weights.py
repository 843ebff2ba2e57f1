"""Weights of chains by stacking: the optimum, the error of the gain, and predictions with the weights."""

from __future__ import annotations

import json
import shutil
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from scipy import optimize, special, stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.api.run import Run
from bnnzoo.errors import DamagedError
from bnnzoo.evaluation.formulas import stacking
from bnnzoo.evaluation.predictions import chain_weights, loo
from bnnzoo.sampling import chain_mixture, verdict

SHORT: dict[str, Any] = {"chains": 3, "warmup": 100, "draws": 100, "init": "prior", "chain_method": "vectorized"}


def _data(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 2))
    return x, x @ [1.0, -2.0] + rng.normal(size=rows)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A run with stacking weights that are unequal on purpose."""
    folder = tmp_path_factory.mktemp("weights")
    sampled, path = folder / "sampled.nc", folder / "run.nc"
    bnnzoo.sample("linear", "mala", data=_data(), out=sampled, chain_weights="stacking", progress=False, **SHORT)
    shutil.copy(sampled, path)
    with h5py.File(path, "r+") as file:
        assert abs(sum(json.loads(file.attrs["chain_weights"])) - 1) < 1e-4
        file.attrs["chain_weights"] = "[0.7, 0.3, 0.0]"
        del file.attrs["digests"]
    return path


@pytest.mark.parametrize("chains", [2, 4])
def test_the_weights_maximise_the_sum_of_log_densities(chains):
    rng = np.random.default_rng(chains)
    values = rng.normal(size=(chains, 60)) * 0.5 + rng.normal(size=(chains, 1)) * 0.2

    def loss(free: np.ndarray) -> float:
        weights = special.softmax(np.append(free, 0))
        return -float(stacking.mixture(values, weights).sum() + 0.001 * np.log(weights).sum())

    best = optimize.minimize(loss, np.zeros(chains - 1), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    np.testing.assert_allclose(stacking.stack(values).weights, special.softmax(np.append(best.x, 0)), atol=2e-3)


def _log_densities(rng: np.random.Generator, shift: float, rows: int = 200) -> np.ndarray:
    """Return log densities of normal data under two chains; the second chain predicts a mean that is wrong by `shift`.

    Both chains also have an error of 0.2 of their own at each row, so neither is better at all rows.
    """
    y = rng.normal(size=rows)
    return stats.norm.logpdf(y, [[0.0], [shift]] + 0.2 * rng.normal(size=(2, rows)), 1.0)


@pytest.mark.long
def test_equally_good_chains_rarely_get_unequal_weights():
    """At most 5 % of 100 data sets have a gain above two standard errors; the binomial test has the level 0.001."""
    rng = np.random.default_rng(0)
    alarms = sum(stacking.stack(_log_densities(rng, 0.0)).is_better for _ in range(100))
    assert stats.binomtest(alarms, 100, 0.05, alternative="greater").pvalue > 0.001


@pytest.mark.long
def test_a_worse_chain_gets_a_small_weight():
    """The control: with a mean that is wrong by 2 sd, the gain is significant in each of 50 data sets."""
    rng = np.random.default_rng(1)
    results = [stacking.stack(_log_densities(rng, 2.0)) for _ in range(50)]
    assert all(result.is_better and result.weights[1] < 0.15 for result in results)


@pytest.mark.long
def test_the_gain_is_measured_on_rows_that_did_not_choose_the_weights():
    """Weights of pure noise have no expected gain on other rows, but always have one on their own rows."""
    rng = np.random.default_rng(2)
    gains, own_gains = [], []
    for _ in range(60):
        values = rng.normal(size=(4, 30))
        result = stacking.stack(values)
        gains.append(result.gain)
        own_gains.append(np.mean(stacking.mixture(values, result.weights) - stacking.mixture(values, np.full(4, 0.25))))
    assert min(own_gains) >= -1e-6
    assert np.mean(gains) < 2 * np.std(gains) / len(gains) ** 0.5


def test_predictions_are_the_weighted_mixture(path):
    run = bnnzoo.open(path)
    x, y = _data(40)
    predictor, weights = run.predictor, np.array([0.7, 0.3, 0.0])
    log_densities = predictor.log_likelihoods(x, y[:, None].astype(np.float32), np.arange(100)).astype(float)
    density = special.logsumexp(special.logsumexp(log_densities, 1) - np.log(100), 0, b=weights[:, None])
    scores = run.evaluate(data=(x, y), save=False)
    assert scores["nll"] == pytest.approx(-density.mean(), rel=1e-4)
    assert scores["nll_se"] > 0
    means = predictor.functions(x)[..., 0].mean(1) * predictor.scaler.y_sd + predictor.scaler.y_mean
    np.testing.assert_allclose(run.predict(x)["mean"], weights @ means, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run.predictive(x).mean, weights @ means, rtol=1e-4, atol=1e-4)
    assert run.summary()["chain_weights"] == [0.7, 0.3, 0.0]


def test_leave_one_out_predictions_are_the_mixture_of_the_chains(path):
    run = bnnzoo.open(path)
    x, y = run.predictor.record.training_rows()
    values = run.predictor.log_likelihoods(x, y, np.arange(100))
    chains = loo.by_chain(values, power=1.0)
    density = special.logsumexp([chain.log_density for chain in chains], 0, b=np.array([[0.7], [0.3], [0.0]]))
    assert loo.estimates(run.predictor)["loo_nll"].value == pytest.approx(-density.mean(), rel=1e-5)


@pytest.mark.long
def test_chains_are_tested_without_their_weights(path):
    """R-hat and ESS compare the chains as they are, and an audit may start from them."""
    run = bnnzoo.open(path)
    assert "weights_ess" not in run.diagnose()
    assert run.predictor.record.draw_weights is None
    assert run.audit(seconds=2.0).outcome in ("passed", "undecided", "drifted")


@pytest.mark.parametrize("value", ["[0.5, 0.5]", "[0.5, 0.5, 0.5]", "[1.5, -0.5, 0.0]"])
def test_weights_that_are_no_weights_are_refused(value, path, tmp_path):
    damaged = shutil.copy(path, tmp_path / "run.nc")
    with h5py.File(damaged, "r+") as file:
        file.attrs["chain_weights"] = value
    with pytest.raises(DamagedError, match="chain_weights must have one weight >= 0 per chain"):
        bnnzoo.open(damaged).predict(_data(3)[0])


@pytest.mark.long
def test_by_default_only_chains_in_different_modes_get_weights(monkeypatch):
    run = bnnzoo.sample("linear", "mala", data=_data(), progress=False, **SHORT)
    diagnosis = run.diagnose()
    findings = run.findings(diagnosis)
    assert "chain_weights" not in run.attributes
    assert "chain_weights" not in run.summary()
    assert chain_mixture.of_run(run.predictor, diagnosis, findings) == chain_mixture.EQUAL

    monkeypatch.setattr(chain_mixture.outcome, "has_settled", lambda *_: True)
    better = stacking.Stacking(np.array([0.5, 0.5, 0.0]), 0.1, 0.01)
    mixtures = []
    for result, expected in ((better, better), (better._replace(gain=0.01), None), (None, None)):
        monkeypatch.setattr(chain_weights, "by_stacking", lambda _, result=result: result)
        mixtures.append(chain_mixture.of_run(run.predictor, diagnosis, findings))
        assert mixtures[-1].weights is expected
    weighted, equal, _ = (verdict.convergence_attributes(diagnosis, findings, mixture) for mixture in mixtures)
    assert "predictions weight the chains by stacking (0.5, 0.5, 0); compared with equal" in weighted["verdict"]
    assert weighted["chain_weights"] == "[0.5, 0.5, 0.0]"
    assert "stacking" not in equal["verdict"]
    assert "chain_weights" not in equal
    # The calibration at the eight test rows is stated in both cases.
    for attributes in (weighted, equal):
        assert "predicted and observed frequencies in 8 test rows differ by at most" in attributes["verdict"]
    assert mixtures[0].calibration != mixtures[1].calibration


@pytest.mark.long
def test_a_chain_in_a_worse_mode_gets_a_small_weight():
    """Two chains sample the posterior; the third is moved to coefficients that predict worse."""
    run = bnnzoo.sample("linear", "mala", data=_data(400), progress=False, **SHORT)
    tree = run.posterior.load().copy()
    tree["posterior"]["weight"] = tree["posterior"]["weight"] * xr.DataArray(np.float32([1.0, 1.0, 0.2]), dims="chain")
    weights = chain_weights.by_stacking(Run(tree, None).predictor)
    assert weights is not None
    assert weights.is_better
    assert weights.weights[2] < 0.1


def test_rows_that_no_chain_can_predict_are_left_out(path, monkeypatch):
    """Without this the weights would be NaN, and the file could not be read. One chain may give a row no density."""
    predictor = bnnzoo.open(path).predictor
    chains = [loo.Loo(np.random.default_rng(chain).normal(size=60), np.zeros(60), 0.7) for chain in range(3)]
    monkeypatch.setattr(chain_weights.loo, "by_chain", lambda values, power: chains)
    for chain in chains:
        chain.log_density[:5] = -np.inf
    chains[0].log_density[5:8] = np.nan
    chains[1].log_density[8] = -np.inf
    weights = chain_weights.by_stacking(predictor)
    assert weights is not None
    assert np.isfinite([*weights.weights, weights.gain, weights.error]).all()
    for chain in chains:
        chain.log_density[:45] = -np.inf
    assert chain_weights.by_stacking(predictor) is None


@pytest.mark.long
def test_the_option_is_typed_and_a_merged_run_has_weights_of_its_own(tmp_path, capsys):
    table = tmp_path / "t.csv"
    x, y = _data()
    table.write_text("a,b,y\n" + "".join(f"{a},{b},{c}\n" for (a, b), c in zip(x, y, strict=True)))
    length = ["--chains", "2", "--warmup", "60", "--draws", "60", "--init", "prior", "--quiet"]
    for seed in ("0", "1"):
        out = str(tmp_path / f"{seed}.nc")
        options = ["--data", str(table), "--chain-weights", "stacking", "--seed", seed, "-o", out, *length]
        assert cli.run(["sample", "linear", "mala", *options]) == 0
        assert len(json.loads(bnnzoo.open(out).attributes["chain_weights"])) == 2
    assert cli.run(["merge", str(tmp_path / "0.nc"), str(tmp_path / "1.nc"), "-o", str(tmp_path / "all.nc")]) == 0
    assert len(json.loads(bnnzoo.open(tmp_path / "all.nc").attributes["chain_weights"])) == 4
    capsys.readouterr()
    assert cli.run(["sample", "linear", "mala", "--chain-weights", "best"]) == 2
    assert "--chain-weights" in capsys.readouterr().err
