"""diagnose: inserted faults are detected, the gate has an exit code, and a file gives the requested values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.errors import BnnzooError, DamagedError, InterruptedRunError, UsageError
from bnnzoo.evaluation.contents.record import Record, evenly
from bnnzoo.evaluation.contents.weights import Weights
from bnnzoo.evaluation.convergence.diagnostics import of_quantities, summary
from bnnzoo.evaluation.convergence.findings import gate_findings
from bnnzoo.evaluation.convergence.outcome import verdict
from bnnzoo.evaluation.convergence.sampler_statistics import of_statistics
from bnnzoo.evaluation.formulas.rhat import between_chains, convergence
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import Finding, from_json, sentence, spelling_of, to_json
from bnnzoo.recipe import as_dict

GOOD = {
    "exactness": "exact",
    "chains": 4,
    "rhat": 1.0,
    "rhat_of": "predictive means",
    "ess_bulk_of": "predictive means",
    "ess_tail_of": "predictive log sds",
    "ess_bulk": 500.0,
    "ess_tail": 500.0,
    "modes": 1,
    "still_chains": 0,
    "draws": 500,
    "draws_requested": 500,
}
NOISY = Finding("validity", "sigma2", "mean sigma2", 6.3, 2.0, "use more --sampler.num-batches")


def draws(**shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 400, 3))


def weights(values: np.ndarray) -> Weights:
    """Return the run of one block of parameters."""
    chains, count, size = values.shape
    return Weights.from_draws(values.reshape(-1, size), {"weight": size}, (chains, count))


def still_chains(values: np.ndarray) -> int:
    return weights(values).still_chains()


def test_a_draw_that_is_no_number_is_not_left_out():
    values = draws()
    values[:, :, 1] += 10 * np.arange(4)[:, None]
    values[2, 7, 1] = np.nan
    assert convergence(values)["rhat"] == np.inf


def test_independent_draws_pass_and_count_in_full():
    measures = convergence(draws())
    assert measures["rhat"] < 1.02
    assert 1000 < measures["ess_bulk"] < 2500
    assert measures["mcse_over_sd"] == pytest.approx(1600**-0.5, rel=0.25)
    assert measures["mcse"] == pytest.approx(1600**-0.5, rel=0.25)
    assert between_chains(draws())["modes"] == 1
    assert between_chains(draws())["between_share"] < 0.01


def test_a_shifted_a_stuck_and_a_bimodal_chain_are_seen():
    shifted, stuck, modes = draws(), draws(), draws()
    shifted[1, :, 2] += 2.0
    stuck[2] = stuck[2, :1]
    modes[2:, :, 0] += 5.0
    for bad in (shifted, stuck, modes):
        assert convergence(bad)["rhat"] > 1.1
    assert still_chains(stuck) == 1
    assert still_chains(shifted) == 0
    assert between_chains(modes[..., :1]) == {"between_share": pytest.approx(6.25 / 7.25, rel=0.05), "modes": 2}
    assert between_chains(shifted[..., 2:])["modes"] == 2


def test_a_chain_that_stops_midway_is_stuck():
    late = draws()
    late[0, 150:] = late[0, 150]
    assert still_chains(late) == 1
    late[0, 300:] = draws()[0, 300:]
    assert still_chains(late) == 0


def test_a_value_that_never_changes_is_left_out():
    """For example a probability that rounds to one; but if no value changes, the run has not converged."""
    constant = draws()
    constant[..., 1] = 3.0
    assert convergence(constant)["rhat"] < 1.02
    assert convergence(np.ones((4, 400, 3)))["rhat"] == np.inf
    assert convergence(draws()[:, :3])["rhat"] == np.inf


def test_a_lone_chain_is_held_against_its_other_half():
    """A stationary chain passes, a drifting chain does not; the last of an odd number of draws is left out."""
    alone = draws()[:1]
    assert convergence(alone)["rhat"] == convergence(alone.reshape(2, 200, 3))["rhat"] < 1.02
    assert convergence(alone[:, :399])["rhat"] == convergence(alone[:, :398])["rhat"]
    assert convergence(alone + np.linspace(0, 3, 400)[:, None])["rhat"] > 1.1
    assert convergence(alone[:, :7])["rhat"] == np.inf


def test_numbers_are_those_of_arviz():
    import arviz_stats
    from arviz_base import from_dict

    values = (np.cumsum(draws(), 1) / 20 + draws()) * [0.1, 1.0, 10.0]
    tree = from_dict({"posterior": {"f": values}})
    measures = convergence(values)
    for key, expected in (
        ("rhat", arviz_stats.rhat(tree)["f"].max()),
        ("ess_bulk", arviz_stats.ess(tree)["f"].min()),
        ("ess_tail", arviz_stats.ess(tree, method="tail")["f"].min()),
        ("mcse", arviz_stats.mcse(tree)["f"].max()),
        ("mcse_over_sd", (arviz_stats.mcse(tree)["f"] / values.std((0, 1))).max()),
    ):
        assert measures[key] == pytest.approx(float(expected)), key


def test_energy_density_and_its_estimate():
    """E-BFMI is small for energies that follow a random walk; a noisy estimate of lp is not tested."""
    import arviz_stats

    energy = draws()[..., 0]
    result = of_statistics({"energy": energy, "lp": energy, "diverging": energy > 2})
    assert result["ebfmi"] == pytest.approx(float(np.min(arviz_stats.base.array_stats.bfmi(energy))), rel=0.05)
    assert result["ebfmi"] > 1.5
    assert result["lp_rhat"] < 1.02
    assert 0 < result["diverging"] < 0.05
    walk = of_statistics({"energy": np.cumsum(energy, 1)})
    assert walk["ebfmi"] < 0.1
    assert "ebfmi" not in of_statistics({"energy": energy}, thin=5)
    shifted = energy + np.array([0.0, 0, 0, 4])[:, None]
    assert of_statistics({"lp": shifted})["lp_rhat"] > 1.3
    assert "lp_rhat" not in of_statistics({"lp_estimate": shifted})


def test_rhat_of_a_block_is_the_largest_of_its_parameters():
    """Two units in the other order: weights differ between the chains, their norm does not."""
    swapped = draws()[..., :2] + np.array([3.0, -3.0])
    swapped[2:] = swapped[2:, :, ::-1]
    (row,) = weights(swapped).rows()
    assert row["parameters"] == 2
    assert row["rhat"] > 1.5
    assert row["rhat_norm"] < 1.02
    assert row["norm"] == pytest.approx(20**0.5, rel=0.05)
    assert row["mean"] == pytest.approx(0, abs=0.1)
    assert row["sd"] == pytest.approx(10**0.5, rel=0.02)


def test_an_approximation_is_not_judged_as_a_chain():
    """In an ensemble all draws of a chain are equal. The rule depends on its exactness, not on its numbers."""
    ensemble = np.repeat(draws()[:, :1], 400, 1)
    result = of_quantities({"f": ensemble}, exactness="approximate")
    assert result["judged"] == 0
    assert np.isnan([result[name] for name in ("rhat", "ess_bulk", "ess_tail", "mcse")]).all()
    assert result["between_share"] == 1
    diagnosis = {**GOOD, **result, "exactness": "approximate", "still_chains": 4}
    assert gate_findings(diagnosis) == ()
    assert verdict({"exactness": "approximate"}, ()).startswith("not a chain")
    biased = of_quantities({"f": ensemble}, exactness="biased")
    assert gate_findings({**GOOD, **biased, "exactness": "biased"})
    weighted = of_quantities({"f": draws()}, exactness="approximate", weights=np.array([0.5, 0.5] + [0.0] * 1598))
    assert weighted["weights_ess"] == 2


def test_the_worst_quantity_is_judged_and_named():
    """The mean agrees; the noise scale is three times too large in two of four chains."""
    scale = np.log(np.array([1.0, 1, 3, 3]))[:, None, None] + 0.05 * draws()
    result = of_quantities({"mean": draws(), "scale": scale, "still": np.ones((4, 400, 2))}, exactness="exact")
    assert (result["rhat_of"], result["ess_bulk_of"]) == ("scale", "scale")
    assert result["rhat"] > 1.5
    assert result["modes"] == 1
    assert result["mcse"] == convergence(draws())["mcse"]
    nothing = of_quantities({"mean": np.ones((4, 400, 2)), "still": np.ones((4, 400, 2))}, exactness="exact")
    assert nothing["rhat"] == np.inf
    broken = of_quantities({"mean": draws(), "density": np.full((4, 400), np.nan)}, exactness="exact")
    assert gate_findings({**GOOD, **broken})[0].kind == "rhat"


def record(about: dict[str, Any], **groups: dict[str, Any]) -> Record:
    """Return a record with these root attributes, and these variables in its groups."""
    tree = xr.DataTree.from_dict({f"/{name}": xr.Dataset(variables) for name, variables in groups.items()})
    tree.attrs.update(about)
    return Record(tree, None)


def test_steps_between_draws_and_rows_to_look_at_are_of_a_run_that_names_its_model():
    """A posterior made in Python has no words: its draws are taken for successive, and nothing is predicted of rows."""
    named = {"signature": "", "recipe": json.dumps(as_dict(tiny.recipe("nuts", thin=5)))}
    assert (record(named).thin, record({}).thin) == (5, 1)
    some, none = ({"x": (("row", "feature"), np.zeros((rows, 2)))} for rows in (3, 0))
    tests = {**none, "x_test": (("test_row", "feature"), np.zeros((3, 2)))}
    expected = [(named, some, True), (named, none, False), (named, tests, True), ({}, some, False), ({}, none, False)]
    for about, constant, expected_rows in expected:
        assert Predictor(record(about, constant_data=constant)).has_rows == expected_rows


def test_a_lighter_record_has_every_kth_draw_and_some_test_rows_evenly():
    """Labels are thinned too; arrays without one number per draw, training rows and attributes are unchanged."""
    draws = np.arange(14).reshape(2, 7)
    groups = {
        "posterior": {"theta": (("chain", "draw"), draws)},
        "sample_stats": {"lp": (("chain", "draw"), -draws), "step_size": (("chain",), np.ones(2))},
        "constant_data": {
            "x": (("row", "feature"), np.ones((5, 3))),
            "x_test": (("test_row", "feature"), np.arange(27).reshape(9, 3)),
            "y_test": (("test_row",), np.arange(9)),
        },
    }
    full_record = record({"task": "classification"}, **groups)
    for limit, rows in ((3, [0, 4, 8]), (9, range(9)), (20, range(9)), (None, range(9))):
        result = full_record.thinned(3, limit)
        assert result.shape == (2, 3)
        np.testing.assert_array_equal(result.group("posterior")["theta"], draws[:, ::3])
        np.testing.assert_array_equal(result.group("sample_stats")["lp"], -draws[:, ::3])
        np.testing.assert_array_equal(result.group("sample_stats")["step_size"], [1, 1])
        x, y = result.test_rows()
        np.testing.assert_array_equal(y, rows)
        np.testing.assert_array_equal(x, 3 * y[:, None] + np.arange(3))
        assert result.array("constant_data", "x").shape == (5, 3)
        assert result.attributes == {"task": "classification"}
    without = record({}, **{name: group for name, group in groups.items() if name == "posterior"})
    assert without.thinned(7, 3).shape == (2, 1)


def test_a_record_without_draws_says_what_to_type():
    empty = {"posterior": {"theta": (("chain", "draw"), np.zeros((2, 0)))}}
    for groups in ({}, empty):
        with pytest.raises(BnnzooError, match=r"^the run: has no draws yet; continue it with bnnzoo\.resume\('None'\)"):
            _ = record({}, **groups).shape
    assert Record(record({}).tree, Path("some/run.nc")).name == str(Path("some/run.nc"))


def test_attributes_of_one_number_are_that_number():
    result = record({"a": np.int64(3), "b": np.array([0.5]), "c": np.arange(2), "d": "text"}).attributes
    assert [type(result[name]) for name in "abcd"] == [int, float, np.ndarray, str]
    assert (result["a"], result["b"], result["d"]) == (3, 0.5, "text")


def test_a_runs_doubt_is_the_first_reason_of_its_verdict():
    def doubt(verdict: str = "words", **about: Any) -> str:
        return record({"verdict": verdict, **about}).doubt

    doubts = [doubt(converged=0), doubt(absurd="far"), doubt(converged=1, absurd="far"), doubt(converged=0, absurd="")]
    assert doubts == ["words"] * 4
    reasons, reference = "not settled: R-hat 2; ESS 3", "all reasons: run.summary()['verdict']"
    assert doubt(reasons, converged=0) == f"not settled: R-hat 2; {reference}"
    remark = "a small noise scale; use [[task=classification]]"
    described = 'a small noise scale; use task="classification"'
    assert doubt(reasons, converged=0, noise_remark=remark) == f"not settled: R-hat 2; {described}; {reference}"
    implausible = doubt(reasons, converged=0, absurd="distance 1e6; use a smaller step size")
    assert implausible == f"not settled: R-hat 2; distance 1e6; {reference}"
    assert [doubt(converged=1, absurd=""), doubt(converged="not-applicable"), doubt()] == [""] * 3


def test_a_statistic_is_a_number_a_draw():
    def stats(group: str, *dims: str, values: Any) -> Record:
        return record({}, **{group: {"a": (dims, values)}})

    for values in (np.ones((2, 3)), np.ones((2, 3), bool), np.ones((2, 3), np.uint8)):
        np.testing.assert_array_equal(stats("sample_stats", "chain", "draw", values=values).statistics["a"], values)
    statistic = stats("warmup_sample_stats", "chain", "draw", values=np.ones((2, 3)))
    assert (list(statistic.warmup_statistics), list(statistic.statistics)) == (["a"], [])
    for dims, values in ((("chain",), np.ones(2)), (("chain", "draw"), np.ones((2, 3), complex))):
        with pytest.raises(DamagedError, match=r"damaged: sample_stats/a is .*, expected one number per draw"):
            _ = stats("sample_stats", *dims, values=values).statistics
        with pytest.raises(DamagedError, match="warmup_sample_stats/a"):
            _ = stats("warmup_sample_stats", *dims, values=values).warmup_statistics
    about = {"statistics": json.dumps({"a": {"reduce": "mean"}, "b": {"reduce": "last"}})}
    assert (record(about).averaged, record({}).averaged) == (["a"], [])


def test_rows_of_a_record_are_finite_and_as_many_as_are_asked_for():
    def rows(**more: Any) -> Record:
        x = np.arange(18.0).reshape(9, 2)
        return record({}, constant_data={"x": (("row", "f"), x), **more}, observed_data={"y": (("row",), x[:, 0])})

    for most, expected in (
        (None, range(9)),
        (3, [0, 4, 8]),
        (8, [0, 1, 2, 3, 5, 6, 7, 8]),
        (9, range(9)),
        (99, range(9)),
    ):
        x, y = rows().training_rows(most)
        np.testing.assert_array_equal(y[:, 0], 2 * np.array(expected))
        np.testing.assert_array_equal(x, y + np.array([0, 1]))
    assert evenly(5, 1).tolist() == [0]
    broken = (("row", "f"), np.where(np.arange(18.0).reshape(9, 2) == 7, np.nan, 0))
    with pytest.raises(UsageError, match="damaged: constant_data/x contains numbers that are not finite"):
        rows(x=broken).training_rows()
    assert np.isnan(record({}, posterior={"x": broken}).array("posterior", "x")).sum() == 1
    with pytest.raises(UsageError, match="has no test rows"):
        rows().test_rows()
    assert rows().probes(4)[:, 0].tolist() == [0, 2, 4, 6]
    tests = {name: (("test_row", "f"), np.full((3, 2), value)) for name, value in (("x_test", 5.0), ("y_test", 6.0))}
    assert rows(**tests).probes(2).tolist() == [[5, 5], [5, 5]]
    np.testing.assert_array_equal(rows(**tests).test_rows(), np.stack([np.full((3, 2), 5.0), np.full((3, 2), 6.0)]))
    named = {"signature": "", "recipe": json.dumps(as_dict(tiny.recipe("nuts", keep="predictions")))}
    at = {"x_kept": (("kept_row", "f"), np.full((3, 2), 7.0)), **tests}
    record_kept = record(named, constant_data=at)
    assert record_kept.probes(1).tolist() == [[7, 7]]
    assert (Predictor(record_kept).has_rows, record_kept.has_training_rows, record({}).has_training_rows) == (
        True,
        False,
        True,
    )
    assert record({}, constant_data=at).has_training_rows
    rows().require_training_rows("this")


def test_groups_are_thinned_to_thirty_two_megabytes():
    """Two chains of sixteen draws, four bytes a number: of 2^18 numbers a draw all, of more every second, and so on."""
    full_record = record({}, posterior={"theta": (("chain", "draw"), np.zeros((2, 16)))})
    for numbers, step in ((1, 1), (2**18, 1), (2**18 + 1, 2), (3 * 2**18, 3), (3 * 2**18 + 1, 4), (2**40, 2**22)):
        np.testing.assert_array_equal(full_record.kept_draws(numbers), np.arange(0, 16, step))


def test_the_record_of_a_run_has_a_dozen_numbers():
    """Means of what has a limit, and of the acceptance; counts of what diverged, and of a draw's numbers."""
    about = {"model": "mlp", "sampler": "s", "exactness": "exact", "draws_done": 3, "regime_ok": 1, "complete": 0}
    about |= {f"seconds_{of}": seconds for of, seconds in (("compile", 1.256), ("warmup", 2.0), ("sampling", 3.0))}
    about |= {"restarted": 0, "stuck_chains": "[]", "rhat": 1.5, "budget": 4.0}
    limited = {"statistics": json.dumps({"sigma2": {"reduce": "mean", "limit": 2.0}, "lp": {"reduce": "last"}})}
    step = ("chain", "draw")
    posterior = {"w": ((*step, "i", "j"), np.zeros((2, 3, 4, 5))), "b": ((*step, "k"), np.zeros((2, 3, 2)))}
    stats = {"acceptance_rate": (step, np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.9]]))}
    stats |= {"sigma2": (step, np.full((2, 3), 0.5)), "lp": (step, np.ones((2, 3)))}
    result = summary(record(about | limited, posterior=posterior, sample_stats=stats))
    expected = {key: value for key, value in about.items() if key not in ("draws_done", "restarted", "stuck_chains")}
    expected |= {"chains": 2, "draws": 3, "parameters": 22, "divergences": 0, "seconds_compile": 1.26}
    expected |= {"ess_bulk": None, "verdict": None}
    assert result == expected | {"acceptance_rate": pytest.approx(0.4), "sigma2": 0.5}
    # Of thinned draws it is the share of their steps.
    stats["diverging"] = (step, np.array([[0.0, 1.0, 0.0], [0.2, 1.0, 0.0]]))
    result = summary(record(about | {"stuck_chains": "[1]", "restarted": 1}, posterior=posterior, sample_stats=stats))
    assert (result["divergences"], result["stuck_chains"], result["restarted"]) == (3, "[1]", 1)
    assert summary(record(about, posterior={"w": ((*step, "i"), np.zeros((1, 1, 4)))}))["parameters"] == 4


def test_weights_of_draws_are_the_shares_of_what_their_logarithms_say():
    def weights(*logs: float) -> Any:
        return record({}, sample_stats={"log_weight": (("chain", "draw"), np.reshape(logs, (2, 2)))}).weights

    np.testing.assert_allclose(weights(800.0, 800 + np.log(3), -np.inf, 800 + np.log(4)), [1 / 8, 3 / 8, 0, 1 / 2])
    for wrong in (np.nan, np.inf):
        with pytest.raises(UsageError, match="contains invalid log weights"):
            weights(0.0, wrong, 0.0, 0.0)
    with pytest.raises(UsageError, match="contains invalid log weights"):
        weights(*[-np.inf] * 4)
    assert record({}).weights is None


def tampered(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> dict[str, Any]:
    """Return the diagnosis of a run with other draws in its tree."""
    tree = bnnzoo.open(path).posterior
    posterior = {str(k): v.values.copy() for k, v in tree["posterior"].data_vars.items()}
    change(posterior)
    groups = {name: group.to_dataset() for name, group in tree.children.items()} | {"/": tree.to_dataset()}
    groups["posterior"] = groups["posterior"].assign({k: (tree["posterior"][k].dims, v) for k, v in posterior.items()})
    return bnnzoo.Run(xr.DataTree.from_dict(groups), None).diagnose()


def judged_run(folder: Path, name: str) -> Path:
    """Return a run of a regression with a learned scale, or of three classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = {"line": x @ [1.0, -0.5] + 0.5 * rng.normal(size=120), "classes": rng.integers(0, 3, 120)}[name]
    options: Any = {"chains": 4, "warmup": 200, "draws": 1000, "init": "prior", "chain_method": "vectorized"}
    bnnzoo.sample("linear", "nuts", data=(x, y), out=folder / f"{name}.nc", **options)
    return folder / f"{name}.nc"


@pytest.mark.slow
def test_chains_that_disagree_about_the_noise_have_not_converged(tmp_path):
    """Predictive means are unchanged, but two of four chains estimate a noise scale three times as large."""

    def louder(posterior: dict[str, np.ndarray]) -> None:
        posterior["likelihood_scale"][:2] *= 3

    path = judged_run(tmp_path, "line")
    before, after = (tampered(path, change) for change in (lambda posterior: None, louder))
    assert gate_findings(before) == ()
    assert {finding.kind for finding in gate_findings(after)} >= {"rhat", "ess_bulk"}
    assert after["mcse"] == pytest.approx(before["mcse"])
    assert after["rhat_of"] in ("predictive log sds", "likelihood_scale", "the log-likelihood of the training rows")


@pytest.mark.long
def test_every_class_is_judged(tmp_path):
    """Chains disagree about two classes and agree about the third."""

    def apart(posterior: dict[str, np.ndarray]) -> None:
        posterior["bias"][:2, :, 0] += 2.0

    path = judged_run(tmp_path, "classes")
    before, after = (tampered(path, change) for change in (lambda posterior: None, apart))
    assert gate_findings(before) == ()
    assert any(finding.kind == "rhat" for finding in gate_findings(after))


def test_the_verdict_names_the_first_problem():
    assert verdict({"exactness": "exact"}, ()) == "converged"
    assert verdict({"exactness": "biased"}, ()).startswith("settled: the draws follow the distribution of a biased")
    assert verdict(GOOD, gate_findings({**GOOD, "rhat": 2.0})).startswith(
        "not settled: the chains disagree too much to estimate how many draws they need, so first draw 2 times as "
        "many: use --draws 1000; R-hat of predictive means 2, "
    )
    # What the file's `converged` says, and the report.
    wrong = verdict(GOOD, gate_findings({**GOOD, "diverging": 0.2}))
    assert wrong.startswith("converged, but had problems: fraction of divergent steps 0.2, ")


@pytest.mark.parametrize(
    ("change", "topic", "kind", "message"),
    [
        ({"rhat": 1.2}, "convergence", "rhat", "R-hat of predictive means 1.2, trusted up to 1.01"),
        ({"rhat": float("nan")}, "convergence", "rhat", "R-hat of predictive means is not a number"),
        ({"rhat": 1.2, "modes": 3}, "convergence", "rhat", "in 3 groups"),
        ({"lp_rhat": 1.2}, "convergence", "lp_rhat", "log posterior density"),
        ({"ess_bulk": 20.0}, "convergence", "ess_bulk", "bulk ESS of predictive means 20, must be at least 400"),
        ({"ess_tail": 20.0}, "convergence", "ess_tail", "tail ESS of predictive log sds"),
        ({"ebfmi": 0.1}, "convergence", "ebfmi", "E-BFMI 0.1, must be at least 0.3"),
        ({"diverging": 0.2}, "validity", "diverging", "divergent steps 0.2"),
        ({"still_chains": 1}, "validity", "still_chains", "stuck chains"),
        ({"draws_requested": 9000}, "validity", "draws", "continue with bnnzoo.resume"),
    ],
)
def test_a_violated_limit_is_a_finding(change, topic, kind, message):
    assert gate_findings(GOOD) == ()
    (finding,) = gate_findings({**GOOD, **change})
    assert (finding.topic, finding.kind) == (topic, kind)
    assert message in sentence(finding)


def test_findings_of_the_sampler_fail_the_run():
    assert gate_findings(GOOD, of_sampler=[NOISY]) == (NOISY,)
    assert sentence(NOISY) == "mean sigma2 6.3, trusted up to 2; use more --sampler.num-batches"
    assert from_json(to_json([NOISY])) == (NOISY,)


@pytest.mark.long
def test_the_command_and_its_gate(tmp_path, capsys):
    path = tmp_path / "run.nc"
    entrances.run_recipe(tiny.recipe("penalty", warmup=200, draws=60, **{"sampler.batch_size": 40}), out=path)
    assert cli.run(["diagnose", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"rhat", "ess_bulk", "acceptance_rate", "sigma2", "skew_bias", "regime_ok", "weights_rhat"} <= set(report)
    assert report["draws"] == 60
    with spelling_of("options"):
        assert bnnzoo.open(path).diagnose()["verdict"] == report["verdict"]
    assert [block["block"] for block in report["blocks"]] == ["weight", "bias"]
    assert report["weights_rhat"] == max(block["rhat"] for block in report["blocks"])
    assert "lp_rhat" not in report
    loose = ["--rhat", "1e9", "--ess", "0", "--diverging", "1", "--ebfmi", "0"]
    assert cli.run(["diagnose", str(path), "--gate", *loose]) == 0
    assert capsys.readouterr().out.startswith("verdict ")
    assert cli.run(["diagnose", str(path), "--gate", *loose, "--ess", "1e9"]) == 3
    assert "bulk ESS of " in capsys.readouterr().err
    assert cli.run(["diagnose", str(path), *loose, "--ess", "1e9"]) == 0


def test_an_unfinished_run_is_diagnosed_and_not_passed(tmp_path, capsys):
    path = tmp_path / "run.nc"
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("random-walk", warmup=20, draws=4000), out=path, **tiny.stopped(6))
    path.unlink()
    assert cli.run(["diagnose", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] == 0
    assert 0 < report["draws"] < 4000
    assert cli.run(["diagnose", str(path), "--gate", "--rhat", "1e9", "--ess", "0"]) == 3
    assert "bnnzoo resume" in capsys.readouterr().err
