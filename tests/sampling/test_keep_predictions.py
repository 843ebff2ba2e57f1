"""`--keep predictions`: stored network outputs at some inputs give the same results as stored parameters."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import tiny

from bnnzoo import cli, store
from bnnzoo.api import concat, entrances, resuming
from bnnzoo.errors import InterruptedRunError, UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2)).round(3)
TABLE = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.sin(X[:, 0]) + 0.1 * RNG.normal(size=80)})
KINDS = {
    "a learned scale": ("mlp", "mala", {"likelihood.scale": "learned", "model.hidden": [3]}),
    "labels": (
        "mlp",
        "sgld",
        {"task": "classification", "likelihood": None, "likelihood.scale": None, "model.hidden": [3]},
    ),
    "the last layer": ("mlp", "mala", {"stochastic": "last", "model.hidden": [3], "init": None, "start_steps": 250}),
    "a learned prior": ("mlp", "mala", {"prior": "hierarchical", "model.hidden": [3]}),
    "linearised": ("mlp", "laplace", {"model.hidden": [3], "init": None, "start_steps": 250}),
    "one chain after the other": ("linear", "random-walk", {"chain_method": "sequential"}),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "table.csv"
    TABLE.to_csv(path, index=False)
    TABLE.assign(y=np.where(TABLE["y"] > 0, "up", "down")).to_csv(path.with_name("labels.csv"), index=False)
    TABLE.head(3)[["a", "b"]].assign(a=[0.5, -0.5, 0.25]).to_csv(path.with_name("at.csv"), index=False)
    return path


def recipe(table, kind, **more):
    model, sampler, options = KINDS[kind]
    source = table.with_name("labels.csv") if options.get("task") == "classification" else table
    return tiny.recipe(sampler, model, **{"data": str(source), "test_fraction": 0.2, **options, **more})


BY_DEFAULT = ("a learned scale",)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind if kind in BY_DEFAULT else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_kept_predictions_agree_with_a_run_that_keeps_draws(kind, table, tmp_path):
    """Every number that both can say is the same, to float32; what both keep is the same bit for bit."""
    at = table.with_name("at.csv")
    draws_run = entrances.run_recipe(recipe(table, kind), out=tmp_path / "draws.nc")
    predictions_run = entrances.run_recipe(
        recipe(table, kind, keep="predictions", keep_at=str(at)), out=tmp_path / "kept.nc"
    )
    own = [name for name in draws_run.posterior["posterior"].data_vars if name.startswith(("likelihood_", "prior_"))]
    assert set(predictions_run.posterior["posterior"].data_vars) == {"f", *own}
    assert predictions_run.posterior["posterior"]["f"].dims == ("chain", "draw", "kept_row", "output")
    for name in own:
        same = [run.posterior["posterior"][name].values for run in (predictions_run, draws_run)]
        np.testing.assert_array_equal(*same)
    for score, expected in zip(
        predictions_run.evaluate(save=False).items(), draws_run.evaluate(save=False).items(), strict=False
    ):
        if not expected[0].startswith("loo_"):
            assert score[0] == expected[0]
            np.testing.assert_allclose(score[1], expected[1], rtol=1e-3, atol=1e-6, err_msg=score[0])
    predicted = [run.predict(at).select_dtypes("number") for run in (predictions_run, draws_run)]
    np.testing.assert_allclose(*predicted, rtol=1e-4, atol=1e-5)
    assert ("remoteness" in predictions_run.diagnose()) == (kind != "labels")
    assert predictions_run.diagnose()["rhat_of"] or predictions_run.attributes["exactness"] == "approximate"


@pytest.mark.slow
def test_a_run_that_keeps_predictions_resumes_to_the_same_bits(table, tmp_path):
    requested = recipe(table, "a learned scale", keep="predictions", keep_warmup=True)
    uninterrupted = entrances.run_recipe(requested, out=tmp_path / "whole.nc")
    for chunk in (3, 5):
        out = tmp_path / f"{chunk}.nc"
        with pytest.raises(InterruptedRunError):
            entrances.run_recipe(requested, out=out, **tiny.stopped(chunk))
        resumed = resuming.resume(out)
        for group in ("posterior", "sample_stats", "warmup_posterior"):
            for name, values in uninterrupted.posterior[group].data_vars.items():
                np.testing.assert_array_equal(values, resumed.posterior[group][name], err_msg=str(name))


@pytest.mark.slow
def test_chains_of_several_seeds_are_joined(table, tmp_path):
    requested = recipe(table, "a learned scale", keep="predictions")
    runs = [
        entrances.run_recipe(dataclasses.replace(requested, seed=seed), out=tmp_path / f"{seed}.nc")
        for seed in range(2)
    ]
    joined = concat.concat(runs)
    assert joined.posterior["posterior"]["f"].shape == (2 * tiny.CHAINS, tiny.DRAWS, 16, 1)
    assert joined.predict(joined.posterior["constant_data"]["x_kept"].values[:2]).shape[0] == 2


@pytest.mark.usefixtures("as_options")
@pytest.mark.slow
def test_functions_that_need_parameters_refuse_kept_predictions(table, tmp_path):
    run = entrances.run_recipe(recipe(table, "a learned scale", keep="predictions"), out=tmp_path / "run.nc")
    with pytest.raises(UsageError, match=r"row 2 is not one of these inputs; sample again with the new inputs"):
        run.predict(np.concatenate([run.test_rows()[0][:1], [[0.5, 0.5]]]))
    for ask in (run.audit, lambda: run.ood("noise")):
        with pytest.raises(UsageError, match=r"keeps predictions|keeps no parameters"):
            ask()
    assert run.summary()["predictions"] == 17
    run.report(tmp_path / "report.html")


@pytest.mark.usefixtures("as_options")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_at": "at.csv"}, "requires --keep predictions"),
        ({"keep": "predictions", "test_fraction": 0.0}, "add --keep-at FILE"),
        (
            {"keep": "predictions", "task": "density", "likelihood": None, "likelihood.scale": None},
            "a density model has no predictions",
        ),
        ({"keep": "predictions", "keep_at": "nowhere.csv"}, "nowhere.csv: no such file"),
    ],
)
def test_predictions_that_cannot_be_kept_are_refused_before_the_run(options, message, table, tmp_path):
    model = "autoregressive" if options.get("task") == "density" else "linear"
    with pytest.raises(UsageError, match=message):
        entrances.run_recipe(tiny.recipe("mala", model, **{"data": str(table), **options}), out=tmp_path / "run.nc")
    assert not (tmp_path / "run.nc.parts").exists()


@pytest.mark.long
@pytest.mark.parametrize("change", ["gone", "other shape", "not finite"])
def test_a_damaged_file_is_refused(change, table, tmp_path):
    path = tmp_path / "run.nc"
    entrances.run_recipe(recipe(table, "one chain after the other", keep="predictions"), out=path)
    constant = dict(entrances.open(path).predictor.record.group("constant_data"))
    rows = constant.pop("x_kept")
    if change != "gone":
        constant["x_kept"] = rows[:, :1] if change == "other shape" else np.where(rows > 0, np.float32(np.nan), rows)
    store.add_groups(path, {"constant_data": constant}, {}, {})
    with pytest.raises(UsageError, match="damaged"):
        entrances.open(path).evaluate(save=False)


@pytest.mark.slow
def test_the_command_line_keeps_and_predicts(table, tmp_path, capsys):
    out, at = tmp_path / "run.nc", table.with_name("at.csv")
    arguments = tiny.arguments("mala", data=table, keep="predictions", keep_at=at, test_fraction=0)
    assert cli.run([*arguments, "-o", str(out)]) == 0
    capsys.readouterr()
    assert cli.run(["predict", str(out), "--data", str(at)]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 3
    assert cli.run(["predict", str(out), "--data", str(table)]) == 2
    assert "not one of these inputs" in capsys.readouterr().err
