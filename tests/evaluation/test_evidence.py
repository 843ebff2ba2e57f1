"""log p(D) by every method, against the closed form of the conjugate line; the identity of mean loss and entropy.

Each statistical test has a false-alarm level of one in a million (|z| <= 4.89) at a fixed seed, and a control.
"""

from __future__ import annotations

import json
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import tiny

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import compare, entrances
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.evidence import estimators
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import prediction_table
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.samplers import Laplace
from bnnzoo.testing import conjugate_line
from bnnzoo.testing.targets import regression

Z = 4.89
NOISE = 0.7
X = np.linspace(-1, 1, 8).astype(np.float32)
Y = (0.5 * X + np.tile([0.1, -0.1], 4)).astype(np.float32)
MEAN, COVARIANCE, TRUTH = conjugate_line(X[:, None], Y, noise=NOISE)
ENTROPY = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * COVARIANCE)[1]
LINE = {
    "data": (X[:, None], Y[:, None]),
    "likelihood": {"name": "gaussian", "scale": NOISE},
    "standardise": False,
    "test_fraction": 0.0,
    "chains": 2,
    "seed": 5,
}


def z(estimate: estimators.Evidence, truth: float = TRUTH) -> float:
    return abs(estimate.log_evidence - truth) / np.hypot(estimate.se, estimate.discretisation or 0.0)


def test_the_closed_form():
    """Return the exact log evidence: y is Gaussian with the covariance of prior and noise."""
    design = np.column_stack([X, np.ones(8)]).astype(float)
    covariance = 4.0 * design @ design.T + NOISE**2 * np.eye(8)
    expected = -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + Y @ np.linalg.solve(covariance, Y))
    assert conjugate_line(X[:, None], Y, noise=NOISE, scale=2.0)[2] == pytest.approx(expected, abs=1e-6)


# ---- estimators, on numbers whose law is known ------------------------------------------------------


def test_the_error_of_weights_is_that_of_repeats():
    """Log-normal weights with mean one: z over 400 repeats is standard normal."""
    rng = np.random.default_rng(1)
    estimates = [estimators.of_weights(rng.normal(-0.5, 1.0, size=(4, 2500))) for _ in range(400)]
    scores = np.array([estimate.log_evidence / estimate.se for estimate in estimates])
    assert abs(scores.mean()) * 20 < Z
    assert abs(scores.std() - 1) * 28 < Z
    # Control: weights whose mean is e^(1/2).
    assert z(estimators.of_weights(rng.normal(0.0, 1.0, size=(4, 2500))), 0.0) > Z


def test_the_error_of_acceptance_is_that_of_repeats():
    rng = np.random.default_rng(2)
    bound = np.full((4, 500), 3.0)
    estimates = [estimators.of_acceptance(bound, rng.geometric(0.2, size=(4, 500)).astype(float)) for _ in range(400)]
    scores = np.array([(estimate.log_evidence - 3.0 - np.log(0.2)) / estimate.se for estimate in estimates])
    assert abs(scores.mean()) * 20 < Z
    assert abs(scores.std() - 1) * 28 < Z
    assert z(estimates[0], 3.0 + np.log(0.3)) > Z


def log_likelihood(theta: np.ndarray) -> np.ndarray:
    """log p(D | theta) of [..., 2] positions."""
    residuals = Y - theta[..., :1] * X - theta[..., 1:]
    return -0.5 * (residuals**2 / NOISE**2 + np.log(2 * np.pi * NOISE**2)).sum(-1)


def rungs(powers: np.ndarray, rng: Any, draws: int) -> list[np.ndarray]:
    """log p(D | theta) of exact draws from the posterior of each power, [chain, draw]."""
    closed = [conjugate_line(X[:, None], Y, noise=NOISE, power=p)[:2] for p in powers]
    return [log_likelihood(rng.multivariate_normal(mean, cov, size=(4, draws))) for mean, cov in closed]


def test_the_path_reaches_the_closed_form():
    powers = (np.arange(11) / 10) ** 5
    values = rungs(powers, np.random.default_rng(3), 2000)
    estimate = estimators.integrate_powers(powers, values)
    assert z(estimate) < Z
    assert estimate.se < 0.05
    assert estimate.discretisation is not None
    assert estimate.discretisation < 0.2
    # Controls: the powers of another ladder, and means without the runs' likelihood of power one.
    assert z(estimators.integrate_powers(powers**0.5, values)) > Z
    assert z(estimators.integrate_powers(powers, [v - v.mean() + values[0].mean() for v in values])) > Z


def test_the_correction_of_the_path_is_of_higher_order():
    """Few powers: without Monte Carlo noise to speak of, trapezoids alone are far off, corrected ones near."""
    powers = (np.arange(7) / 6) ** 5
    values = rungs(powers, np.random.default_rng(4), 20_000)
    trapezoid = np.trapezoid([v.mean() for v in values], powers)
    corrected = estimators.integrate_powers(powers, values).log_evidence
    assert abs(corrected - TRUTH) < abs(trapezoid - TRUTH) / 3


@pytest.mark.long
def test_laplace_is_exact_where_the_posterior_is_gaussian():
    target = regression()
    posterior, mode = target.posterior, jnp.asarray(target.mean, jnp.float32)

    def evidence_of(covariance: Any) -> float:
        sampler = Laplace(covariance=covariance)
        state = sampler.init(posterior, mode, num_warmup=0, key=jax.random.key(0))
        return float(sampler.inspect(posterior, state, key=jax.random.key(0))["log_evidence"])

    assert evidence_of("full") == pytest.approx(target.log_evidence, abs=2e-3)
    # A diagonal of the precision is a smaller volume, by a known factor.
    precision = np.linalg.inv(target.covariance)
    missing = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    assert missing > 0.1
    assert evidence_of("diagonal") == pytest.approx(target.log_evidence - missing, abs=2e-3)


@pytest.mark.filterwarnings("ignore:the sampler's own check")
@pytest.mark.slow
def test_a_laplace_run_that_found_no_mode_is_not_trusted(tmp_path):
    options = {"model.hidden": "4", "likelihood.scale": "learned", "draws": 5}
    estimate = entrances.run_recipe(
        tiny.recipe("laplace", "mlp", warmup=5, **options), out=tmp_path / "run.nc"
    ).evidence()
    assert not estimate.trusted
    assert "the run has not converged to a mode: do not trust" in estimate.meaning


# ---- runs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rejected(tmp_path_factory):
    out = tmp_path_factory.mktemp("evidence") / "rejection.nc"
    return bnnzoo.sample("linear", "rejection", **LINE, draws=4000, out=out)


@pytest.mark.slow
def test_a_run_by_rejection(rejected, capsys):
    estimate = rejected.evidence()
    assert z(estimate) < Z
    assert estimate.se < 0.05
    assert z(estimate, TRUTH + 0.3) > Z
    assert cli.run(["evidence", str(rejected.path), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output == {**estimate.record(), "method": "rejection"}
    assert set(output) == {"log_evidence", "se", "method", "meaning", "trusted"}
    assert cli.run(["evidence", str(rejected.path)]) == 0
    assert f"log_evidence  {estimate.log_evidence:.3f}\n" in capsys.readouterr().out


def test_the_mean_loss_is_the_entropy_less_the_evidence(rejected):
    """<L> = -log p(D) + H: the identity of the notes, with every constant in its place."""
    loss = -rejected.posterior["sample_stats"]["lp"].values.astype(float).reshape(-1)
    estimate = rejected.evidence()
    error = np.hypot(estimate.se, loss.std() / len(loss) ** 0.5)
    assert abs(loss.mean() + estimate.log_evidence - ENTROPY) < Z * error
    # Control: the entropy of independent parameters, and of the prior.
    assert abs(loss.mean() + estimate.log_evidence - np.log(2 * np.pi * np.e)) > Z * error


def test_importance_in_the_units_of_the_data(tmp_path):
    """Standardised: the density is of y itself. Weights are nearly equal with the Laplace fit."""
    sampler = {"name": "importance", "proposal": "laplace"}
    options = {**LINE, "standardise": True}
    run = bnnzoo.sample("linear", sampler, **options, draws=2000, out=tmp_path / "run.nc")
    x, y = (X - X.mean()) / X.std(), (Y - Y.mean()) / Y.std()
    truth = conjugate_line(x[:, None], y, noise=NOISE)[2] - 8 * np.log(Y.std())
    assert z(run.evidence(), truth) < Z
    assert run.evidence().se < 0.01
    assert z(run.evidence(), truth + 8 * np.log(Y.std())) > Z


@pytest.mark.slow
def test_bayes_by_backprop_is_below_by_a_divergence(tmp_path):
    options = {**LINE, "data": (X[:, None] + 0.3, Y[:, None])}
    sampler = {"name": "bbb", "learning_rate": 0.02}
    run = bnnzoo.sample("linear", sampler, **options, warmup=3000, draws=4000, out=tmp_path / "bbb.nc")
    _, covariance, truth = conjugate_line(X[:, None] + 0.3, Y, noise=NOISE)
    precision = np.linalg.inv(covariance)
    # Of the best mean field: its precisions are the diagonal of the posterior's.
    divergence = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    estimate = run.evidence()
    assert divergence > 0.05
    assert estimate.log_evidence == pytest.approx(truth - divergence, abs=0.03 + Z * estimate.se)
    assert estimate.gap == pytest.approx(divergence, abs=0.05)
    assert "a lower bound" in estimate.meaning


@pytest.mark.slow
def test_runs_without_evidence_name_the_command_for_it(tmp_path, capsys):
    out = tmp_path / "walk.nc"
    options = {**LINE, "warmup": 20, "draws": 20}
    run = bnnzoo.sample("linear", "random-walk", **options, out=out)
    assert cli.run(["evidence", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    command = "run bnnzoo sample linear importance --sampler.proposal laplace with the data and the other settings of"
    assert f"log p(D) cannot be computed from random-walk draws; {command} this run; or sample with " in line
    assert "--likelihood-power from 0 to 1 and run bnnzoo evidence" in line
    call = 'draws; use bnnzoo.sample("linear", bnnzoo.Importance(proposal="laplace")) with the data and the other'
    with pytest.raises(UsageError, match=re.escape(call)) as caught:
        run.evidence()
    assert "--" not in str(caught.value)
    half = bnnzoo.sample("linear", "random-walk", **options, likelihood_power=0.5, out=tmp_path / "half.nc")
    with pytest.raises(UsageError, match=r"half.nc: evidence: .*must be 1 for a single run \(got 0\.5\)"):
        half.evidence()
    with pytest.raises(
        UsageError, match=r"must be 0, 1, and at least one number in between, each once \(got 0\.5, 1\)"
    ):
        run.evidence(half)
    none = bnnzoo.sample("linear", "random-walk", **options, likelihood_power=0, out=tmp_path / "none.nc")
    with pytest.raises(UsageError, match="at least one number in between"):
        run.evidence(none)
    network = {"name": "mlp", "hidden": [3]}
    fitted = bnnzoo.sample(network, {"name": "importance", "proposal": "laplace"}, **LINE, draws=50, stochastic="last")
    with pytest.raises(UsageError, match="integral over all parameters"):
        fitted.evidence()
    narrow = bnnzoo.sample("linear", "random-walk", **options, prior={"name": "normal", "scale": 0.5})
    with pytest.raises(UsageError, match=r"differs from .* in prior"):
        run.evidence(narrow)


@pytest.mark.slow
def test_a_path_of_runs(tmp_path, capsys):
    paths = [str(tmp_path / f"{j}.nc") for j in range(11)]
    for j, path in enumerate(paths):
        options = {**LINE, "likelihood_power": (j / 10) ** 5, "warmup": 400, "draws": 2000, "init": "prior"}
        bnnzoo.sample("linear", "nuts", **options, out=path)
    assert cli.run(["evidence", *paths[::-1], "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["method"] == "thermodynamic integration"
    assert abs(output["log_evidence"] - TRUTH) < Z * np.hypot(output["se"], output["discretisation"])
    assert np.hypot(output["se"], output["discretisation"]) < 0.2


@pytest.mark.long
def test_a_path_is_no_better_than_its_runs(tmp_path, capsys):
    """A few random steps from the prior have not converged at any power."""
    paths = [tmp_path / f"{j}.nc" for j in range(3)]
    for j, path in enumerate(paths):
        options = {**LINE, "likelihood_power": j / 2, "warmup": 0, "draws": 60, "init": "prior"}
        bnnzoo.sample("linear", "random-walk", **options, out=path)
    assert cli.run(["evidence", *map(str, paths), "--json"]) == 0
    captured = capsys.readouterr()
    output = json.loads(captured.out)
    assert output["trusted"] is False
    for path in paths:
        assert f"{path} has not converged" in output["meaning"]
        assert f"{path}: not settled" in captured.err


@pytest.mark.slow
def test_compare_shows_the_evidence_where_every_run_has_one(tmp_path, capsys):
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, size=(8, 1))
    options = {**LINE, "data": (x, x + 0.7 * rng.normal(size=x.shape)), "test_fraction": 0.25, "draws": 200}
    paths = [str(tmp_path / name) for name in ("one.nc", "wide.nc")]
    bnnzoo.sample("linear", "rejection", **options, out=paths[0])
    bnnzoo.sample("linear", "rejection", **options, prior={"name": "normal", "scale": 4.0}, out=paths[1])
    capsys.readouterr()
    assert cli.run(["compare", *paths, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    first, second = output["runs"]
    alone = bnnzoo.open(paths[1]).evidence()
    assert (second["log_evidence"], second["log_evidence_se"]) == (alone.log_evidence, alone.se)
    assert first["log_evidence"] > second["log_evidence"]
    assert "loo_nll" in first
    assert output["words"][-1].startswith("log p(D) of one.nc is ")
    assert "above log p(D) of wide.nc" in output["words"][-1]


def test_compare_says_whose_evidence_cannot_be_trusted():
    def compared(name: str, log_evidence: float, trusted: float) -> compare.Compared:
        numbers = {"log_evidence": log_evidence, "log_evidence_se": 0.2, "log_evidence_trusted": trusted}
        return compare.Compared(name, {}, {}, numbers)

    (verdict,) = compare.Comparison([compared("a", 1.0, 1.0), compared("b", -2.0, 0.0)], []).words
    assert verdict == (
        "log p(D) of a is 3 ± 0.28 above log p(D) of b; this difference is not reliable: to see why, run "
        "bnnzoo evidence on b"
    )
    (verdict,) = compare.Comparison([compared("a", 1.0, 1.0), compared("b", -2.0, 1.0)], []).words
    assert "reliable" not in verdict


def test_an_infinite_loss_is_not_a_tie():
    infinite, finite = metrics.mean(np.array([0.1, 0.2, np.inf])), metrics.mean(np.array([0.1, 0.2, 0.3]))
    worse, both = (Estimate(infinite.value - other.value, infinite.influence) for other in (finite, infinite))
    (verdict,) = compare.Comparison([], [compare.Difference("a", "b", "nll", worse)]).words
    assert verdict == "b is better than a: nll lower (the other value is infinite)"
    (verdict,) = compare.Comparison([], [compare.Difference("a", "b", "nll", both)]).words
    assert verdict == "a and b: cannot compare nll, because a value is not finite"


@pytest.mark.filterwarnings("ignore:.*different in every row:bnnzoo.errors.BnnzooWarning")
@pytest.mark.slow
def test_a_reference_is_compared_on_encoded_rows(tmp_path):
    """Test rows are what the columns became: levels, and seconds counted from the first."""
    rng = np.random.default_rng(7)
    seconds = 1.7e9 + 60.0 * np.arange(40)
    table = pd.DataFrame({"colour": rng.choice(["red", "blue"], 40), "t": seconds, "y": rng.normal(size=40)})
    options = {"data": table, "warmup": 10, "draws": 20, "chains": 2, "likelihood": "gaussian"}
    run = bnnzoo.sample("linear", "laplace", **options, out=tmp_path / "run.nc")
    (compared,) = compare.compare([run], reference=run).compared
    assert compared.numbers["mean_distance"] == 0.0
    assert compared.numbers["sd_ratio"] == 1.0
    reach = prediction_table.table(run.predictor, run.test_rows()[0])["mean"]
    np.testing.assert_allclose(reach, run.predict(table.iloc[_test_numbers(run, table)])["mean"], rtol=1e-4)


def _test_numbers(run: bnnzoo.Run, table: pd.DataFrame) -> list[int]:
    """Return the indices of the test rows of a table."""
    column = run.test_rows()[0][:, -1]
    return [int(np.argmin(np.abs(table["t"].to_numpy() - table["t"].min() - value))) for value in column]


@pytest.mark.parametrize(("spread", "trusted"), [(0.05, True), (3.0, False)])
def test_laplace_evidence_has_an_error_from_its_draws_or_is_not_trusted(spread, trusted, monkeypatch):
    """Log weights of two chains; the second mode is the better one."""
    weights = np.random.default_rng(0).normal(0.3, spread, (2, 1000))
    predictor: Any = Predictor.__new__(Predictor)
    predictor.record = types.SimpleNamespace(attributes={"regime_ok": 1})
    monkeypatch.setattr(estimators, "_units", lambda record: 0.0)
    monkeypatch.setattr(estimators, "_log_weights", lambda predictor: weights)
    estimate = estimators._of_modes(predictor, [-1.0, 0.1])
    assert estimate.trusted is trusted
    if trusted:
        assert estimate.log_evidence == pytest.approx(np.log(np.mean(np.exp(weights[1]))))
        assert estimate.se == pytest.approx(spread / 1000**0.5, rel=0.1)
        assert "corrected by +0.2" in estimate.meaning
    else:
        assert estimate.log_evidence == 0.1
        assert np.isnan(estimate.se)
        assert "do not trust this number" in estimate.meaning
    # If draws cannot be weighted, there is no error estimate.
    monkeypatch.setattr(estimators, "_log_weights", lambda predictor: None)
    assert not estimators._of_modes(predictor, [-1.0, 0.1]).trusted
