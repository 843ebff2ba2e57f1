"""Rows that stay with their parties: their sums give the pooled posterior, and nothing else leaves a party."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from bnnzoo_federated import Coordinator, Party, chains, guard, read_log, show_log, strata
from bnnzoo_federated.lines import LocalLine
from bnnzoo_federated.messages import Request, Terms
from bnnzoo_federated.scaling import fit_scaler, moment_shapes, moments
from bnnzoo_federated.strata import Stratum
from parabolas import parabolas
from scipy import stats

import bnnzoo
from bnnzoo.api import keywords
from bnnzoo.data import Scaler, from_arrays, load
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation.scores.familiarity import best_draw
from bnnzoo.posterior.backend import arithmetic
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.minibatch import MAX_SIGMA2, MAX_SKEW_BIAS, MIN_ACCEPTANCE, noise_penalty
from bnnzoo.sampling.keys import Keys

NOISE, Z = 0.5, 4.89
"""Noise of the likelihood, and the limit of |z| with one false alarm in a million."""
ROWS, BATCH = (60, 240, 120), (40, 60, 40)
OFFSETS = (-1.0, 0.0, 1.5)
"""Offsets of the parties' targets: parties differ more than the rows of a party."""
OPTIONS: dict[str, Any] = {
    "likelihood": {"name": "gaussian", "scale": NOISE},
    "prior": {"name": "normal", "scale": 1.0},
    "standardise": False,
}


def tables(seed: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    results = []
    for rows, offset in zip(ROWS, OFFSETS, strict=True):
        x = rng.normal(size=(rows, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + [0.5, -0.3]
        y = x @ [0.8, -0.4] + 0.3 + offset + NOISE * rng.normal(size=rows)
        results.append((x.astype(np.float32), y.astype(np.float32)))
    return results


def closed_form() -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of (weights, bias) given the rows of all parties."""
    x, y = (np.concatenate(parts).astype(float) for parts in zip(*tables(), strict=True))
    design = np.column_stack([x, np.ones(len(x))])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3))
    return covariance @ design.T @ y / NOISE**2, covariance


def parties(folder: Path, *, sizes: tuple[int, ...] = BATCH, **more: Any) -> dict[str, Party]:
    settings = {"sampling": "replacement", **more}
    return {
        name: Party(table, folder / name, batch_size=size, secret=name.encode() * 32, **settings)
        for name, table, size in zip("abc", tables(), sizes, strict=True)
    }


# ---- the sums ------------------------------------------------------------------------------------


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_change_and_its_noise_are_unbiased(disjoint):
    """Over 20 000 draws of batches: the mean, the variance, and the estimated variance; level 1e-6 each."""
    rng, count = np.random.default_rng(5), 20_000
    values = [
        rng.gamma(2.0, size=rows) * scale + shift for rows, scale, shift in ((40, 1, 0), (90, 0.3, 2), (25, 2, -1))
    ]
    plan = [
        Stratum(len(v), used, disjoint, noise) for v, used, noise in zip(values, (20, 30, 12), (0, 3, 1), strict=True)
    ]
    sums = []
    for v, item in zip(values, plan, strict=True):
        order = rng.permuted(np.tile(np.arange(item.rows), (count, 1)), axis=1)[:, : item.used]
        rows = order if disjoint else rng.integers(item.rows, size=(count, item.used))
        sums.append(strata.power_sums(v[rows], item.noise_sd * rng.normal(size=count)))
    result = strata.combine_strata(np.stack(sums), plan, 0.5)
    truth = 0.5 * sum(v.sum() for v in values)
    error = result.mean - truth
    variance = error.var()
    assert abs(error.mean()) < Z * (variance / count) ** 0.5
    assert abs(result.sigma2.mean() - variance) < Z * ((result.sigma2.std() + variance * 2**0.5) / count**0.5) * 1.1
    cube = error**3
    assert abs(result.third.mean() - cube.mean()) < Z * (cube.std() + result.third.std()) / count**0.5
    # Wrong: one spread of all rows instead of the spread within each party.
    pooled = _pooled(np.stack(sums), plan, 0.5)
    assert abs(pooled.sigma2.mean() - variance) > 0.2 * variance


def _pooled(sums: np.ndarray, plan: Any, power: float = 1.0) -> strata.Change:
    """Return a wrong sigma2, as if all drawn rows were one simple random sample of all rows."""
    right = strata.combine_strata(sums, plan, power)
    used, rows = sum(item.used for item in plan), sum(item.rows for item in plan)
    mean = sums[..., 0].sum(0) / used
    spread = (sums[..., 1].sum(0) / used - mean**2) * used / (used - 1)
    shares = np.array([item.used / used for item in plan])[:, None]
    return right._replace(parts=(power * rows) ** 2 * spread / used * shares)


def _unpaid(sums: np.ndarray, plan: Any, power: float = 1.0) -> strata.Change:
    """Return a wrong sigma2 without the parties' noise."""
    return strata.combine_strata(sums, plan, power)._replace(known=0.0)


def test_all_rows_leave_no_noise():
    plan = [Stratum(30, 30, True, 0.0), Stratum(50, 50, True, 0.0)]
    sums = np.random.default_rng(0).normal(size=(2, 4, 3)) + np.array([0, 9, 0])
    result = strata.combine_strata(sums, plan)
    assert np.all(result.sigma2 == 0)
    assert np.all(result.skewness == 0)
    assert np.allclose(result.mean, sums[:, :, 0].sum(0))


# ---- a step --------------------------------------------------------------------------------------


PLAN = [Stratum(60, 20, False, 0.0), Stratum(30, 10, True, 0.4)]


def _chains(ask: Any = lambda *_: np.zeros((2, 3, 3)), **fields: Any) -> chains.Chains:
    """Return chains of two parameters with prior N(0, I) and half the likelihood power."""
    sampler = Penalty(**{"step_size": 0.3, "proposal": "random-walk", **fields})
    return chains.Chains(
        parabolas([1.0], [0.0], dim=2, power=0.5), sampler, PLAN, ask, np.array([[0.5, -1.0]] * 3), Keys.from_seed(5)
    )


@pytest.mark.parametrize("correction", [0, 1, 3])
def test_a_step_is_accepted_with_the_penalised_ratio_of_the_sums(correction):
    """Each party's variance has its own penalty; the penalty of known noise is half of its variance."""
    rng, questions = np.random.default_rng(4), list[Any]()
    d = [rng.normal(0.01, 0.1, size=(3, item.used)) for item in PLAN]
    sums = np.array([strata.power_sums(values, np.zeros(3)) for values in d])
    chains = _chains(lambda *arguments: questions.append(arguments) or sums, correction=correction)
    step_stats, moved = chains.step(7), np.asarray(chains.positions, float)
    ((number, key, theta, proposal),) = questions
    assert (number, key) == (7, tuple(np.asarray(jax.random.key_data(jax.random.fold_in(Keys.from_seed(5).settle, 7)))))
    scale = 0.5 * np.array([60, 30])
    variances = scale[:, None] ** 2 * [v.var(1, ddof=1) / len(v[0]) for v in d] * [[1], [1 - 10 / 30]]
    expected, dofs = (0.5 * 30 / 10 * 0.4) ** 2, np.array([19, 9])
    each = [
        noise_penalty(jnp.float32(v), dof, correction) for v, dof in zip(variances.T.ravel(), [19, 9] * 3, strict=True)
    ]
    penalty = np.reshape(each, (3, 2)).sum(1) + expected / 2 if correction else np.zeros(3)
    mean = sum(s * v.mean(1) for s, v in zip(scale, d, strict=True))
    prior = ((theta**2).sum(1) - (proposal**2).sum(1)) / 2
    rate = np.exp(np.minimum(prior + mean - penalty, 0))
    assert np.any((rate > 0.05) & (rate < 0.95))
    known_of = {"acceptance_rate": rate, "penalty": penalty, "delta": -prior - mean, "step_size": [0.3] * 3}
    known_of |= {"sigma2": variances.sum(0) + expected, "regime_dof": (variances > dofs[:, None] / 4).any(0)}
    known_of |= {"var_dof": variances.sum(0) ** 2 / (variances**2 / dofs[:, None]).sum(0)}
    thirds = [((v - v.mean(1, keepdims=True)) ** 3).mean(1) / len(v[0]) ** 2 for v in d]
    third = scale**3 @ (np.array(thirds) * [[1], [(1 - 10 / 30) * (1 - 20 / 30)]])
    known_of |= {"delta_skew": third / known_of["sigma2"] ** 1.5, "skew_bias": rate * np.abs(third) / 6}
    for name, values in known_of.items():
        np.testing.assert_allclose(step_stats[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(moved, np.where(step_stats["accepted"][:, None], proposal, theta))
    if correction:
        free = _chains(lambda *_: sums, correction=correction).step(7, penalised=False)
        np.testing.assert_allclose(free["acceptance_rate"], np.exp(np.minimum(prior + mean, 0)), rtol=1e-4)
        assert not free["penalty"].any()


def test_proposals_use_the_shape_from_warm_up():
    calls = list[Any]()
    for factor in (np.eye(2), np.array([[2.0, 0.0], [1.5, 0.5]])):
        chains = _chains(lambda *arguments: calls.append(arguments) or np.zeros((2, 3, 3)))
        chains.factor = jnp.asarray(factor, jnp.float32)
        chains.step(3)
    plain, shaped = (proposal - theta for _, _, theta, proposal in calls)
    assert len(np.unique(plain)) == 6  # each chain has its own noise
    np.testing.assert_allclose(shaped, plain @ factor.T, rtol=1e-5)


def test_headroom_of_federated_steps_has_its_closed_form():
    """The limits are the acceptance, corrected for the parties' own noise, and the noise of the batches alone."""
    chains = _chains(target_acceptance=0.6, target_sigma2=2.0)
    expected = (0.5 * 30 / 10 * 0.4) ** 2
    assert chains.added_noise_variance == pytest.approx(expected)
    step_stats = {"acceptance_rate": np.array([0.2, 0.4, 0.9]), "sigma2": np.array([1.0, 100.0, np.nan])}
    np.testing.assert_allclose(chains._headroom(step_stats, False), [0.5 / 0.6 - 1], rtol=1e-6)
    acceptance = 2 * stats.norm.sf((expected / 4) ** 0.5)  # the factor due to noise: erfc(sigma / sqrt 8)
    noise = 1 - ((1.0 - expected) / 2 + 10 + 10) / 3
    np.testing.assert_allclose(chains._headroom(step_stats, True), [0.5 / (0.6 * acceptance) - 1, noise], rtol=1e-6)


def test_proposal_shape_is_the_covariance_of_positions_or_its_diagonal_for_few():
    chains, positions = _chains(), np.random.default_rng(0).normal(size=(4, 3, 2)) @ [[1.0, 0.8], [0.0, 0.3]]
    chains._set_proposal_shape(positions)
    covariance = np.cov(positions.reshape(12, 2).T)
    mixed = (12 / 20 * covariance + np.diag(np.diag(covariance))) / (12 / 20 + 1)
    np.testing.assert_allclose(chains.factor @ chains.factor.T, mixed, rtol=1e-4)
    assert float(chains.step_size) == pytest.approx(2.38 / 2**0.5)


def test_warm_up_starts_without_the_penalty_and_ends_with_it(monkeypatch):
    """At the end of the first of two windows, proposals take the shape of its later half; the second tunes the size."""
    steps, shapes, messages = list[Any](), list[Any](), list[int]()
    coordinator_chains = _chains(target_acceptance=0.5)

    def step(number: int, *, penalised: bool = True) -> chains.Stats:
        steps.append((number, penalised, float(coordinator_chains.step_size)))
        coordinator_chains.positions = jnp.full((3, 2), float(number))
        return {"acceptance_rate": np.full(3, 0.4), "sigma2": np.full(3, 0.1)}

    reshape = coordinator_chains._set_proposal_shape
    monkeypatch.setattr(coordinator_chains, "step", step)
    monkeypatch.setattr(
        coordinator_chains, "_set_proposal_shape", lambda shape: shapes.append(shape) or reshape(shape + np.eye(3, 2))
    )
    coordinator_chains.warm_up(45, lambda number, rate: messages.append(number) or messages.append(round(rate, 3)))
    assert [item[:2] for item in steps] == [(number, number >= 22) for number in range(45)]
    (shape,) = shapes
    np.testing.assert_array_equal(shape, np.broadcast_to(np.arange(11, 22.0)[:, None, None], (11, 3, 2)))
    sizes = [item[2] for item in steps]
    assert sizes[0] == pytest.approx(0.3)
    assert sizes[22] == pytest.approx(2.38 / 2**0.5)
    assert np.all(np.diff(sizes[:22]) < 0)  # too few were accepted
    # Not so of what the parties' noise leaves; and it ends at the average of its path.
    assert sizes[22] < float(coordinator_chains.step_size) < sizes[44]
    assert messages == [part for number in range(45) for part in (number + 1, 0.4)]


def test_the_guard_of_a_federated_run_has_the_limits_of_the_penalty():
    """The worst chain counts, without the parties' added noise; NaN exceeds every limit."""
    good_means = {"sigma2": 2.0, "regime_dof": 0.01, "skew_bias": MAX_SKEW_BIAS, "acceptance_rate": MIN_ACCEPTANCE}
    means = {
        name: np.array([0.5 * value if name != "acceptance_rate" else 0.9, value]) for name, value in good_means.items()
    }
    means["sigma2"] = means["sigma2"] / 2 * MAX_SIGMA2 + 0.7
    assert guard.findings(means, 0.7) == ()
    for name, kind in (("sigma2", "sigma2"), ("regime_dof", "regime_dof"), ("skew_bias", "skewness")):
        for worst in (means[name] * [1, 1.001], np.array([np.nan, 0.0])):
            (finding,) = guard.findings({**means, name: worst}, 0.7)
            assert finding.kind == kind
    (finding,) = guard.findings(means, 0.6999)
    assert finding.value == pytest.approx(MAX_SIGMA2 + 0.0001)
    (finding,) = guard.findings({**means, "acceptance_rate": means["acceptance_rate"] * [1, 0.999]}, 0.7)
    assert (finding.kind, finding.limit) == ("acceptance", MIN_ACCEPTANCE)


# ---- the law -------------------------------------------------------------------------------------


def _law(folder: Path, *, steps: int = 25, count: int = 4000, **more: Any) -> dict[str, float]:
    """Run chains from exact draws of the pooled posterior: return z of means and variances, p of the distribution."""
    mean, covariance = closed_form()
    root = np.linalg.cholesky(covariance)
    starts = mean + np.random.default_rng(8).normal(size=(count, 3)) @ root.T
    coordinator = Coordinator(parties(folder, **more))
    recipe = keywords.recipe_of("linear", {"name": "penalty", "step_size": 0.007}, data=None, in_memory=True, **OPTIONS)
    with arithmetic("float32"):
        problem, agreements = coordinator._agree(recipe, None)
        plan = [Stratum.of(item.terms) for item in agreements.values()]
        ask = partial(coordinator._sums, agreements)
        run = chains.Chains(problem.posterior, problem.sampler, plan, ask, starts, Keys.from_seed(6))
        step_stats = [run.step(step) for step in range(steps)]
    white = np.linalg.solve(root, (np.asarray(run.positions, float) - mean).T).T
    return {
        "mean": float(np.abs(white.mean(0)).max() * count**0.5),
        "variance": float(np.abs((white**2).mean(0) - 1).max() * (count / 2) ** 0.5),
        "ks": float(min(stats.kstest(column, "norm").pvalue for column in white.T)),
        **{name: float(np.mean([item[name] for item in step_stats])) for name in ("acceptance_rate", "sigma2")},
    }


def _agrees(result: dict[str, float]) -> bool:
    """Whether nine numbers pass, each at level 1e-6."""
    return result["mean"] <= Z and result["variance"] <= Z and result["ks"] >= 1e-6


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.slow
def test_the_law_is_that_of_the_pooled_rows(tmp_path):
    result = _law(tmp_path)
    assert _agrees(result), result
    assert 0.1 < result["acceptance_rate"] < 0.9


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.slow
def test_draws_without_the_penalty_have_another_law(tmp_path, monkeypatch):
    """Positive control of the test above. An unstratified variance is detected in an earlier test."""
    monkeypatch.setattr(chains, "combine_strata", _unpaid)
    result = _law(tmp_path, sampling="disjoint", noise_sd=0.2)
    assert not _agrees(result), result


# ---- a party -------------------------------------------------------------------------------------


class Unreliable:
    """A line to a party that is killed and restarted, or answers late, before some of its answers."""

    def __init__(self, make: Any, faults: dict[int, str]):
        self.make, self.faults, self.count = make, faults, 0
        self.line = LocalLine(make())

    def begin(self, question: str, arguments: Any) -> Any:
        self.count += 1
        fault = self.faults.get(self.count, "")
        answer = self.line.begin(question, arguments)
        if fault == "killed":  # it has answered, but the answer is lost
            answer(1.0)
            self.line = LocalLine(self.make())

        def wait(seconds: float) -> Any:
            if fault:
                raise TimeoutError("late") if fault == "late" else ConnectionResetError("gone")
            return answer(seconds)

        return wait


def _short(coordinator: Coordinator, out: Path, **more: Any) -> bnnzoo.Run:
    options = {"chains": 3, "warmup": 60, "draws": 20, "seed": 4, **OPTIONS, **more}
    return coordinator.sample("linear", "penalty", out=out, **options)


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_functions_that_need_rows_say_that_rows_stay_at_the_parties(tmp_path):
    """A report states this in the place of the result, and is still written."""
    parties = {name: Party(tables()[i], tmp_path / name, batch_size=20) for i, name in enumerate("ab")}
    run = _short(Coordinator(parties), tmp_path / "run.nc", test=tables()[2])
    requests = [
        lambda: run.plot("slices"),
        lambda: run.evaluate(ood="noise", save=False),
        lambda: bnnzoo.compare([run, run]),
    ]
    assert best_draw(run.predictor) is None
    for ask in requests:
        with pytest.raises(
            bnnzoo.UsageError, match="needs the training rows, but the file of this run does not contain them"
        ):
            ask()
    page = run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the file of this run does not contain them" in page


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_model_with_its_own_likelihood_is_sampled(tmp_path):
    line = {name: Party(tables()[i], tmp_path / name, batch_size=20) for i, name in enumerate("ab")}
    options = {"model.hidden": "2", "model.components": "1", "chains": 2, "warmup": 4, "draws": 2}
    run = Coordinator(line).sample("mdn", "penalty", out=tmp_path / "run.nc", **options)
    assert (run.attributes["model"], run.attributes["likelihood"]) == ("mdn", "mixture")


def _draws(run: bnnzoo.Run) -> np.ndarray:
    group = run.posterior["posterior"]
    return np.concatenate([group["weight"].values[:, :, 0], group["bias"].values], 2)


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.slow
def test_a_restarted_or_late_party_changes_no_bit(tmp_path):
    make = lambda name, i: lambda: Party(tables()[i], tmp_path / name, batch_size=20, noise_sd=0.1)  # noqa: E731
    first = _short(Coordinator({"a": make("a", 0)(), "b": make("b", 1)()}), tmp_path / "1.nc")
    faulty = {
        "a": Unreliable(make("a", 0), {1: "late", 5: "killed", 40: "killed", 41: "late"}),
        "b": Unreliable(make("b", 1), {2: "killed", 30: "late", 77: "killed"}),
    }
    repeated_run = _short(Coordinator(faulty), tmp_path / "2.nc")
    assert np.array_equal(_draws(first), _draws(repeated_run))
    assert json.loads(repeated_run.attributes["asked_again"]) == {"a": 4, "b": 3}
    # Positive control: a party with another secret draws other batches.
    other = {"a": Party(tables()[0], tmp_path / "other", batch_size=20, noise_sd=0.1), "b": make("b", 1)()}
    assert not np.array_equal(_draws(first), _draws(_short(Coordinator(other), tmp_path / "3.nc")))


def test_a_run_that_fails_before_its_first_draw_leaves_nothing_behind(tmp_path):
    silent = Unreliable(
        lambda: Party(tables()[0], tmp_path / "a", batch_size=20), dict.fromkeys(range(10, 999), "late")
    )
    with pytest.raises(BnnzooError, match="party a: no answer"):
        _short(Coordinator({"a": silent}, limit=0.2), tmp_path / "run.nc")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # so the same command can be repeated


def test_a_party_that_never_answers_ends_the_run(tmp_path):
    silent = Unreliable(
        lambda: Party(tables()[0], tmp_path / "a", batch_size=20), dict.fromkeys(range(10, 999), "late")
    )
    with pytest.raises(BnnzooError, match=r"party a: no answer for 0\.2 s \(late\)"):
        _short(Coordinator({"a": silent}, limit=0.2), tmp_path / "run.nc")


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_the_log_contains_sums_but_no_row(tmp_path):
    """Every line has an agreed type and shape for any number of rows, and contains no value of a row."""
    coordinator_parties = parties(tmp_path)
    _short(Coordinator(coordinator_parties), tmp_path / "run.nc")
    for name, (x, y) in zip("abc", tables(), strict=True):
        lines = list(read_log(tmp_path / name))
        assert [line["question"] for line in lines[:2]] == ["offer", "agree"]
        shapes = {key: value["shape"] for key, value in lines[0]["sent"].items()}
        assert shapes == {
            **{key: [] for key in (*Terms._fields, "signature")},
            **{"x_sum": [2], "x_square": [2], "y_sum": [1], "y_square": [1]},
        }
        steps, sums = lines[2:], {"used": [], "sums": [3, 3]}
        assert [line["step"] for line in steps] == list(range(80))
        assert all({k: v["shape"] for k, v in line["sent"].items()} == sums for line in steps)
        sent_values = {float(v) for line in steps for chain in line["sent"]["sums"]["values"] for v in chain}
        sent_values |= {float(v) for key in ("x_sum", "y_sum") for v in lines[0]["sent"][key]["values"]}
        held = {float(v) for v in np.concatenate([x.ravel(), y])}
        assert not sent_values & held
        log_text = show_log(tmp_path / name)
        assert "sums" in log_text
        assert "[3, 3]" in log_text
        assert log_text.endswith(f"82 answers sent from {tmp_path / name}")
    text = "".join(json.dumps(line) for line in read_log(tmp_path / "a"))
    run = bnnzoo.open(tmp_path / "run.nc")
    assert run.posterior["constant_data"]["x"].shape == (0, 2)
    assert str(float(tables()[0][1][0])) not in text
    with pytest.raises(UsageError, match="no such log"):
        list(read_log(tmp_path / "nowhere"))


@pytest.mark.filterwarnings("ignore:the sampler's own check")  # for a run of one draw
def test_the_same_request_is_answered_by_the_same_bits_and_another_by_other_noise(tmp_path):
    party = parties(tmp_path, noise_sd=1.0)["a"]
    coordinator = Coordinator({"a": party})
    _short(coordinator, tmp_path / "run.nc", warmup=0, draws=1)
    agreed = next(iter(party._agreed))
    theta = np.zeros((2, 3), np.float32)
    ask = lambda step: party.answer("sums", Request(agreed, step, (1, 2), theta, theta).words())["sums"]  # noqa: E731
    assert ask(7) == ask(7)
    # If nothing moves, every d is 0: the sums contain only the noise, which does not affect the spread.
    sums = np.array([ask(step) for step in range(300)]).reshape(-1, 3)
    assert abs(sums[:, 0].std() - 1) < 0.15
    assert np.allclose(sums[:, 1], sums[:, 0] ** 2 / 40)
    # Two of 600 float32 numbers are equal by chance once in a hundred runs, because the seed is the party's secret.
    assert len(np.unique(sums[:, 0])) > 595


@pytest.mark.parametrize("part", ["agreement", "step", "key", "here", "there"])
def test_a_request_that_differs_in_anything_is_answered_by_another_batch(part):
    first = Request("a", 3, (1, 2), np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32))
    other = {"agreement": "b", "step": 4, "key": (1, 3), "here": first.here + 1, "there": first.there + 1}[part]
    secret = b"s" * 32
    assert (
        first.digest(secret)
        == Request.from_message(first.words()).digest(secret)
        != first._replace(**{part: other}).digest(secret)
    )
    assert first.digest(b"t" * 32) != first.digest(secret)


def test_party_sums_use_its_own_rows_in_the_common_scaling(tmp_path):
    """With all rows of each party, the sums of powers of the differences are computed by hand."""
    coordinator = Coordinator(parties(tmp_path, sizes=ROWS, sampling="disjoint"))
    recipe = keywords.recipe_of("linear", "penalty", data=None, in_memory=True, **{**OPTIONS, "standardise": True})
    position, proposal = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
    with arithmetic("float32"):
        _, agreements = coordinator._agree(recipe, None)
        sums = coordinator._sums(agreements, 0, (1, 2), position, proposal)
    x, y = (np.concatenate(parts).astype(float) for parts in zip(*tables(), strict=True))
    for (own_x, own_y), result in zip(tables(), sums, strict=True):
        design = np.column_stack([(own_x - x.mean(0)) / x.std(0), np.ones(len(own_x))])
        target = (own_y - y.mean()) / y.std()
        at = [
            stats.norm.logpdf(target, theta @ design.T, NOISE)
            for theta in (position.astype(float), proposal.astype(float))
        ]
        d = at[1] - at[0]
        np.testing.assert_allclose(result, np.stack([(d**power).sum(1) for power in (1, 2, 3)], 1), rtol=1e-3)


def test_a_party_refuses_in_words(tmp_path):
    party = parties(tmp_path)["a"]
    for question in ("sums", "rows"):
        assert party.answer(question, {}) == {"refused": f"{question}: KeyError; the reason is in the party's log"}
    assert [line["question"] for line in read_log(tmp_path / "a")] == ["sums", "rows"]
    with pytest.raises(UsageError, match="batch_size"):
        Party(tables()[0], tmp_path / "b", batch_size=61, sampling="disjoint")


def test_parties_with_other_columns_are_refused(tmp_path):
    x, y = tables()[0]
    both = {"a": Party((x, y), tmp_path / "a", batch_size=9), "b": Party((x[:, :1], y), tmp_path / "b", batch_size=9)}
    with pytest.raises(UsageError, match="parties a and b: have different columns"):
        _short(Coordinator(both), tmp_path / "run.nc")


@pytest.mark.parametrize(
    ("sampler", "more", "message"),
    [
        ("nuts", {}, "sampler nuts: requires more than sums"),
        ({"name": "penalty", "batch_size": 20}, {}, "sampler.batch_size: each party sets its own batch size"),
        (
            {"num_steps": 3, "step_size": 0.1},
            {},
            "sampler.num_steps: each party .* set only the fields step_size, ",
        ),
        ("penalty", {"sampler.budget": 50, "sampler.preconditioner": "diagonal"}, "budget, sampler.preconditioner: "),
        ("penalty", {"init": "map"}, "init: not supported for federated data"),
        ("penalty", {"budget": "5m", "until": "converged"}, "budget, until: not supported for federated data"),
        ("penalty", {"precision": "float64"}, "precision: not supported for federated data; remove it"),
        ("penalty", {"target": ["y"], "test_fraction": 0.2}, "target, test_fraction: not supported for federated"),
        ("penalty", {"columns": ["a"], "mesh": "chains=2"}, "columns, mesh: not supported for federated data"),
        ("penalty", {"data": "a.csv"}, "data: not supported for federated data"),
        ("penalty", {"drawz": 5}, "did you mean"),
    ],
)
def test_options_that_need_rows_are_refused(sampler, more, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        Coordinator(parties(tmp_path)).sample("linear", sampler, out=tmp_path / "run.nc", **OPTIONS, **more)


# ---- the scaling, and the run --------------------------------------------------------------------


def test_the_scaler_is_that_of_the_pooled_rows():
    sets = [from_arrays(x, y) for x, y in tables()]
    x, y = (np.concatenate(parts) for parts in zip(*tables(), strict=True))
    pooled = from_arrays(x, y)
    offers = [{"rows": item.num_data, **moments(item)} for item in sets]
    result = fit_scaler(offers, pooled.signature, standardise=True, scales_targets=True)
    expected = Scaler.fit(pooled, True)
    for field in dataclasses.fields(expected):
        assert np.allclose(getattr(result, field.name), getattr(expected, field.name), rtol=1e-6), field.name


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.filterwarnings("ignore:.*the same in every row")
@pytest.mark.parametrize("task", ["classification", "regression", "density"])
def test_the_scaler_is_that_of_any_pooled_rows(task, standardise):
    """Integer images with labels; a constant column; rows that are inputs and targets at once."""
    rng, counts = np.random.default_rng(0), (5, 9)
    columns = [np.column_stack([np.full(rows, 3.7), 9 * rng.normal(size=rows)]) for rows in counts]
    if task == "classification":
        pictures = [rng.integers(9, 200, size=(rows, 4, 3), dtype=np.uint8) for rows in counts]
        parts: list[Any] = [(x, np.arange(len(x)) % 2) for x in pictures]
        pooled: Any = tuple(map(np.concatenate, zip(*parts, strict=True)))
    elif task == "regression":
        parts = [(x, rng.normal(size=len(x))) for x in columns]
        pooled = tuple(map(np.concatenate, zip(*parts, strict=True)))
    else:
        parts = [pd.DataFrame(x, columns=["a", "b"]) for x in columns]
        pooled = pd.concat(parts)
    sets, together = [load(part, task=task) for part in parts], load(pooled, task=task)
    offers = [{"rows": item.num_data, **moments(item)} for item in sets]
    assert {name: np.shape(values) for name, values in moments(sets[0]).items()} == moment_shapes(together.signature)
    result = fit_scaler(offers, together.signature, standardise=standardise, scales_targets=task != "classification")
    for field in dataclasses.fields(result):
        expected = getattr(Scaler.fit(together, standardise), field.name)
        np.testing.assert_allclose(getattr(result, field.name), expected, rtol=1e-5, err_msg=field.name)


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_statistics_of_thinned_draws_are_means_or_last_values(tmp_path, monkeypatch):
    statistics, step = list[Any](), chains.Chains.step

    def heard(self: chains.Chains, number: int, **how: Any) -> chains.Stats:
        result = step(self, number, **how)
        statistics.append({**result, "number": number, "position": np.asarray(self.positions)})
        return result

    monkeypatch.setattr(chains.Chains, "step", heard)
    two = {name: Party(tables()[i], tmp_path / name, batch_size=20 + i) for i, name in enumerate("ab")}
    run = _short(Coordinator(two), tmp_path / "run.nc", warmup=20, draws=6, thin=2)
    assert [item["number"] for item in statistics] == list(range(32))
    pairs = [statistics[number : number + 2] for number in range(20, 32, 2)]
    np.testing.assert_array_equal(_draws(run), np.stack([pair[1]["position"] for pair in pairs], 1))
    averaged = {
        "accepted",
        "acceptance_rate",
        "sigma2",
        "penalty",
        "diverging",
        "regime_dof",
        "regime_skew",
        "skew_bias",
    }
    for name, values in run.posterior["sample_stats"].data_vars.items():
        steps = np.array([[item[name] for item in pair] for pair in pairs], float)
        expected = (steps.mean(1) if name in averaged else steps[:, 1]).T
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=str(name))
    about = run.attributes
    assert about["target_evaluations"] == 2 * (20 + 21) * (20 + 6 * 2) * 3
    assert (about["rows"], about["complete"]) == (60 + 240, 1)
    assert about["draws_done"] == about["draws_requested"] == 6
    np.testing.assert_allclose(json.loads(about["tuned"])["step_size"], statistics[-1]["step_size"])
    party = json.loads(about["federated"])["b"]
    assert len(party.pop("fingerprint")) == 64
    assert party == {"rows": 240, "used": 21, "disjoint": False, "noise_sd": 0.0}


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
@pytest.mark.slow
def test_a_federated_run_file_works_with_every_function(tmp_path):
    """Warm-up reaches the posterior from prior draws; diagnose, summary, predict and evaluate need no training rows."""
    test, most = tables(seed=9)[1], parties(tmp_path, sizes=(50, 200, 100), sampling="disjoint")
    lengths = {"chains": 6, "warmup": 300, "draws": 250, "thin": 2, "seed": 1}
    run = Coordinator(most).sample(
        "linear", out=tmp_path / "run.nc", test=test, **lengths, **{**OPTIONS, "standardise": True}
    )
    x, y = (np.concatenate(parts).astype(float) for parts in zip(*tables(), strict=True))
    design = np.column_stack([x, np.ones(len(x))])
    predicted = np.column_stack([test[0], np.ones(len(test[0]))]) @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert np.abs(run.predict(test[0])["mean"] - predicted).max() < 0.3
    diagnosis = run.diagnose()
    assert diagnosis["rhat"] < 1.3
    assert 0.2 < run.summary()["acceptance_rate"] < 0.8
    assert run.evaluate()["rmse"] > 0
    reopened = bnnzoo.open(tmp_path / "run.nc")
    assert reopened.attributes["rows"] == sum(ROWS)
    assert set(json.loads(reopened.attributes["federated"])) == {"a", "b", "c"}
    assert np.array_equal(_draws(run), _draws(reopened))
    unseen = Coordinator(parties(tmp_path)).sample(
        "linear", out=tmp_path / "no-test.nc", chains=2, warmup=40, draws=20, **OPTIONS
    )
    assert unseen.diagnose()["rhat_of"] == "the parameters"


@pytest.mark.parametrize("mistake", ["noise left out", "variances of equal weight"])
def test_a_wrong_variance_is_noticed(mistake, monkeypatch):
    """Positive control of the test of unbiasedness."""
    original = strata.combine_strata

    def wrong(sums: Any, plan: Any, power: float = 1.0) -> Any:
        change = original(sums, plan, power)
        if mistake == "noise left out":
            return change._replace(known=0.0)
        mean_rows = np.mean([stratum.rows for stratum in plan])
        return change._replace(parts=change.parts * [[(mean_rows / stratum.rows) ** 2] for stratum in plan])

    monkeypatch.setattr(strata, "combine_strata", wrong)
    with pytest.raises(AssertionError):
        test_the_change_and_its_noise_are_unbiased(False)
