"""Several runs in one figure, and the requested options of a band, or one line with the reason."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.data import Scaler, Signature, load
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence.probing import Probes
from bnnzoo.evaluation.formulas.rhat import convergence
from bnnzoo.evaluation.predictions import prediction_table, predictive_samples
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import evaluate as evaluation
from bnnzoo.evaluation.scores.familiarity import OodScores
from bnnzoo.evaluation.scores.row_scores import SampledScores
from bnnzoo.recipe import as_dict, read_layer, resolve
from bnnzoo.report import figures, pictures
from bnnzoo.report.bands import around, bands, true_curves
from bnnzoo.report.bands import evaluate_expression as evaluate
from bnnzoo.report.density import density
from bnnzoo.report.pictures import probe_predictions

SHORT = {"warmup": 0, "draws": 60, "chains": 2, "sampler.step_size": 0.05}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of runs: a and b on a line with known truth, own on the same rows as a table, trained by an ensemble."""
    folder = tmp_path_factory.mktemp("runs")
    line = load("linear-line")
    pd.DataFrame({"x0": line.x[:, 0], "y": line.y[:, 0]}).to_csv(folder / "own.csv", index=False)
    expected = read_layer("conjugate-line")
    for name, more in (("a", {}), ("b", {"seed": 1}), ("own", {"data": str(folder / "own.csv"), "target": ["y"]})):
        options = {**SHORT, "test_fraction": 0.2, **more}
        entrances.run_recipe(resolve("linear", "random-walk", [expected], options), out=folder / f"{name}.nc")
    trained = {"warmup": 30, "draws": 1, "chains": 2, "keep_warmup": True, "test_fraction": 0.2}
    entrances.run_recipe(resolve("linear", "ensemble", [expected], trained), out=folder / "trained.nc")
    return folder


ONE = (
    "x.png: a file can contain only one picture, and the ending of the file determines its format; use a folder for "
    "several pictures or for --format"
)
ERRORS = {
    "a.nc -o x.png --range 3": "--range 3: must be two numbers, such as --range -1.5,1.5",
    "a.nc -o x.png --range 1,b": "--range 1,b: must be two numbers, such as --range -1.5,1.5",
    "a.nc -o x.png --range 1.5 -1.5": "--range: must be two numbers, the smaller first (got 1.5,-1.5)",
    "a.nc -o x.png --range nan,1": "--range: must be two numbers, the smaller first (got nan,1)",
    "a.nc -o x.png --band mean": "--band: must be predictive or function (got mean)",
    "own.nc -o x.png --truth": "--truth data: own.csv has no known true curve; give an expression of x or a file",
    "a.nc -o x.png --truth 2*y": (
        "--truth '2*y': must be a file, or an expression of x with numbers, pi, e, + - * / ** and the functions "
        "sin, cos, tan, tanh, exp, log, sqrt, abs, sign"
    ),
    "a.nc -o x.png --range 0,1 --truth log(-1-x)": (
        "--truth 'log(-1-x)': has no finite value from 0 to 1; use another expression"
    ),
    "a.nc -o x.png --overlay": "--overlay: requires several runs (got one); give several runs, or remove the option",
    "a.nc -o x.png --only pit --band function": "--band: requires the picture band; add --only band",
    "a.nc -o x.png --only pit --ood digits": "--ood: requires the picture ood; add --only ood",
    "trained.nc -o pictures --ood digits": (
        "digits: inputs have shape [8, 8], but the model was trained on [1]; give inputs of that shape"
    ),
    "a.nc -o x.JPG": "x.JPG: unknown picture format; use the ending png, svg, pdf, eps or tiff",
    "a.nc -o x.png --only pit --only band": ONE,
    "a.nc -o x.png --format svg": ONE,
    "a.nc b.nc -o x.png --only pit": "--only pit: not available for several runs; use one of band, ood, loss",
}


@pytest.mark.long
@pytest.mark.parametrize("arguments", ERRORS)
def test_a_picture_that_cannot_be_drawn_is_refused_in_one_line(arguments, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert cli.run(["plot", *arguments.split()]) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1] == f"bnnzoo: {ERRORS[arguments]}"
    )  # earlier lines warn of short runs
    assert not (folder / "x.png").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        "a.nc --range -1.5 1.5 --band function --truth",
        "a.nc --range=-1.5,1.5 --truth 0.5+x",
        "a.nc b.nc --range -1.5,1.5 --truth own.csv",
        "a.nc b.nc --overlay --band function",
        "a.nc b.nc --only ood",
        "trained.nc a.nc --only loss",
        "trained.nc --only loss",
    ],
)
def test_one_picture_in_a_file(arguments, folder, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(folder)
    assert cli.run(["plot", *arguments.split(), "-o", str(tmp_path / "x.png"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert len(row["alt"]) > 60


def test_the_range_and_the_truth_are_those_asked_for(folder, tmp_path):
    a, b = bnnzoo.open(folder / "a.nc"), bnnzoo.open(folder / "b.nc")
    picture = a.plot("band", range=(-1.5, 1.0), band="function", truth="data")
    (panel,) = picture.figure.axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    x, y = (np.asarray(values) for values in lines["truth"].get_data())
    assert (x[0], x[-1]) == panel.get_xlim() == (-1.5, 1.0)
    np.testing.assert_allclose(y, 0.5 + x, atol=1e-6)
    both = a.plot("band", others=[b])
    assert [axes.get_title("left") for axes in both.figure.axes] == ["a", "b"]
    assert both.figure.axes[0].get_ylim() == both.figure.axes[1].get_ylim()
    table = both.table.set_index("run")
    alone = b.plot("band", range=(float(table["x0"].min()), float(table["x0"].max()))).table
    np.testing.assert_array_equal(table.loc["b", "mean"], alone["mean"])
    over = a.plot("band", others=[a], overlay=True)
    assert over.table["run"].unique().tolist() == ["1 a", "2 a"]


def test_messages_in_python_name_the_keywords_of_plot_to(folder, tmp_path):
    run = bnnzoo.open(folder / "a.nc")
    with pytest.raises(UsageError, match=r'^range: requires the picture band; add names="band"$'):
        run.plot_to(tmp_path / "x.png", names="slices", range=(0.0, 1.0))
    with pytest.raises(UsageError, match=r"^formats: must be png"):
        run.plot_to(tmp_path / "pictures", formats="bmp")
    assert [row["picture"] for row in run.plot_to(tmp_path / "x.png", names="band", range=(0.0, 1.0))] == ["band"]


def test_unfamiliar_rows_of_an_array_have_a_name(folder):
    a, b = bnnzoo.open(folder / "a.nc"), bnnzoo.open(folder / "b.nc")
    picture = a.plot("ood", others=[b], spec=np.linspace(5, 9, 20)[:, None])
    assert set(picture.table["rows"]) == {"test", "data"}


def test_the_loss_of_a_run_is_minus_its_log_density(folder):
    trained, a = bnnzoo.open(folder / "trained.nc"), bnnzoo.open(folder / "a.nc")
    table = trained.plot("loss", others=[a]).table.set_index("run")["loss"]
    np.testing.assert_allclose(table["a"], -a.posterior["sample_stats/lp"].values.mean(), rtol=1e-6)
    last = -trained.posterior["warmup_sample_stats/lp_estimate"].values[:, -1].mean()
    np.testing.assert_allclose(table["trained"], last, rtol=1e-6)


def test_the_default_picture_of_a_run_can_be_any_picture(monkeypatch):
    def only_loss(runs, name):
        if name != "loss":
            raise UsageError(f"{name}: is not available")

    monkeypatch.setattr(figures, "picture", only_loss)
    assert figures.first_name({"a": object.__new__(Predictor)}) == "loss"
    monkeypatch.setattr(figures, "TOGETHER", {})
    with pytest.raises(UsageError, match="no picture is available for this run; request a picture by its name"):
        figures.first_name({"a": object.__new__(Predictor)})


def test_data_sets_know_their_curves():
    x = np.array([[-0.5], [0.0], [0.25]])
    exact = {
        name: load(name).truth
        for name in ("linear-line", "mdn-sine", "mdn-branches", "mdn-bump", "mdn-hills", "tutorial-sine")
    }
    expected = {
        "linear-line": 0.5 + x,
        "mdn-sine": np.sin(3 * x),
        "mdn-branches": np.stack([(0.5 + 0.5 * x[:, 0]), -(0.5 + 0.5 * x[:, 0])], 1),
        "mdn-bump": np.tanh(2 * x + 2) - np.tanh(2 * x - 2) - 1,
        "mdn-hills": (
            np.tanh(3 * x + 3.6) - np.tanh(3 * x + 1.2) + 0.6 * (np.tanh(3 * x - 1.2) - np.tanh(3 * x - 3.6))
        ),
        "tutorial-sine": 10 * np.sin(2 * np.pi * x),
    }
    for name, truth in exact.items():
        assert truth is not None
        np.testing.assert_allclose(truth(x), expected[name], atol=1e-12)
        rows = load(name)
        near = np.abs(truth(rows.x.astype(float)) - rows.y).min(1)  # distance to the nearest branch
        assert near.mean() < 1.0
    assert load("diabetes").truth is None


def test_an_expression_is_arithmetic_and_nothing_else():
    x = np.linspace(-1, 1, 5)
    np.testing.assert_allclose(
        evaluate("-2 * sin(pi * x) ** 2 + abs(x) / e", x), -2 * np.sin(np.pi * x) ** 2 + abs(x) / np.e
    )
    np.testing.assert_array_equal(evaluate("3", x), np.full(5, 3.0))
    assert np.isnan(evaluate("log(x)", x)[0])
    for bad in (
        "x.real",
        "__import__('os')",
        "x[0]",
        "lambda: x",
        "sin(x, x)",
        "'x'",
        "True",
        "",
        "x if x else 0",
        "(" * 500,
    ):
        with pytest.raises(UsageError, match="must be a file, or an expression"):
            evaluate(bad, x)
    assert np.isinf(evaluate("9**9**9**9", x)).all()


# ---- the arrays behind a picture -----------------------------------------------------------------

SKEWED = np.array([[0.0, 1.0, 5.0], [10.0, 2.0, 5.0], [1.0, 30.0, 5.0]])
"""Three rows of three features. Medians differ from means, and the last feature is constant."""


def picture_error(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> Any:
    """Return a predictor with the given attributes and methods."""
    for name, value in parts.items():
        monkeypatch.setattr(Predictor, name, value)
    result: Any = Predictor.__new__(Predictor)
    rows = SKEWED, np.stack([SKEWED[:, 0], 100 + SKEWED[:, 1]], 1)
    result.record = SimpleNamespace(
        training_rows=lambda: rows,
        require_training_rows=lambda purpose: None,
        array=lambda group, name: rows[0],
        weights=None,
        names_a_model=True,
    )
    return result


def of_two_targets(monkeypatch: pytest.MonkeyPatch, features: int = 3) -> Any:
    """Return a predictor of a = 2 x0 and b = 100 - 3 x1, with sds 1, 2 and 3 of a, and 10 more for b."""

    def means(x: np.ndarray) -> np.ndarray:
        return np.stack([2 * x[:, 0], 100 - 3 * x[:, min(1, features - 1)]], 1).astype(float)

    def table(predictor: Predictor, x: np.ndarray) -> pd.DataFrame:
        columns = {f"{target}_mean": means(x)[:, i] for i, target in enumerate("ab")}
        for i, target in enumerate("ab"):
            columns |= {f"{target}_{name}sd": np.full(len(x), 10 * i + sd) for sd, name in SDS}
        return pd.DataFrame(columns)

    def quantiles(predictor: Predictor, x: np.ndarray, levels: Any) -> np.ndarray:
        return means(x) + 100 * np.array(levels)[:, None, None]

    names = tuple(f"x{i}" for i in range(features))
    monkeypatch.setattr(prediction_table, "table", table)
    monkeypatch.setattr(predictive_samples, "quantiles", quantiles)
    return picture_error(
        monkeypatch,
        signature=Signature(names, (features,), "float32", ("a", "b"), "regression"),
        moments=lambda self, x: Moments(means(x), np.ones((len(x), 2)), np.ones((len(x), 2)), np.zeros(len(x))),
    )


SDS = ((1.0, ""), (2.0, "aleatoric_"), (3.0, "epistemic_"))


def test_even_points_are_about_the_middle_of_a_range():
    np.testing.assert_allclose(around(np.array([10.0, 0.0, 1.0]), 1.6, 5), [-3, 1, 5, 9, 13])
    np.testing.assert_allclose(around(np.full(3, 7.0), 1.0, 3), [6.5, 7, 7.5])


def test_a_band_is_of_the_target_that_was_asked_for(monkeypatch):
    """The range of x covers the data of all runs and 60 % of its half width on both sides."""
    predictor = of_two_targets(monkeypatch, features=1)
    for target, mean, sd, y in (("a", 2.0, 0, [0, 10, 1]), ("b", -3.0, 10, [101, 102, 130])):
        picture = bands({"run": predictor}, target=target, truth="x")
        table = picture.table
        np.testing.assert_allclose(table["x0"], np.linspace(-3, 13, 161))
        np.testing.assert_allclose(table["mean"], (100 if sd else 0) + mean * table["x0"], rtol=1e-5, atol=1e-5)
        for name in ("q05", "q25", "q75", "q95"):
            np.testing.assert_allclose(table[name] - table["mean"], int(name[1:]), rtol=1e-4)
        for number, name in SDS:
            np.testing.assert_array_equal(table[f"{name}sd"], sd + number)
        above = picture.figure.axes[0]
        (data,) = (line for line in above.get_lines() if line.get_label() == "training data")
        np.testing.assert_array_equal(np.array(data.get_data()), [SKEWED[:, 0], y])
        assert (above.get_ylabel(), picture.figure.axes[1].get_ylabel()) == (target, f"sd of {target}")
    other = of_two_targets(monkeypatch, features=1)
    other.record.training_rows = lambda: (SKEWED[:, :1] - 10, SKEWED[:, :2])
    wider = bands({"one": predictor, "two": other}).table
    for name in ("one", "two"):
        np.testing.assert_allclose(wider[wider["run"] == name]["x0"], np.linspace(-16, 16, 161), atol=1e-9)


def test_slices_hold_the_other_inputs_at_their_medians(monkeypatch):
    """The medians are 1, 2 and 5; a depends on the first input alone, and b on the second."""
    predictor = of_two_targets(monkeypatch)
    for target, feature in (("a", 0), ("b", 1)):
        picture = pictures.slices(predictor, target=target)
        table = picture.table.set_index("feature")
        at = {i: np.linspace(SKEWED[:, i].min(), SKEWED[:, i].max(), 41) for i in (0, 1)}
        for i in (0, 1):
            np.testing.assert_allclose(table.loc[f"x{i}", "at"], at[i])
        held = 2.0 if target == "a" else 94.0
        np.testing.assert_allclose(table.loc[f"x{1 - feature}", "mean"], held)
        moved = 2 * at[0] if target == "a" else 100 - 3 * at[1]
        np.testing.assert_allclose(table.loc[f"x{feature}", "mean"], moved, rtol=1e-5)
        np.testing.assert_allclose(table.loc["x2", "mean"], held)
        for name in ("q05", "q25", "q75", "q95"):
            np.testing.assert_allclose(table[name] - table["mean"], int(name[1:]), rtol=1e-4)
        assert f"The mean changes most along x{feature}, by" in picture.alt
        assert picture.figure.axes[1].get_xlabel() == "x1"


def test_slices_of_classes_are_means_over_the_weighted_draws(monkeypatch):
    """A probability is a tenth of the draw's number plus a hundredth of x0; the last of four draws has weight zero."""
    values = np.array([[0.0, 1.0], [2.0, 3.0]])

    def functions(self: Predictor, x: np.ndarray) -> np.ndarray:
        p = (values[..., None] + x[:, 0] / 10) / 10
        return np.stack([1 - p, p], -1)

    predictor = picture_error(
        monkeypatch,
        signature=Signature(("x0", "x1", "x2"), (3,), "float32", ("y",), "classification", ("no", "yes")),
        functions=functions,
        moments=lambda self, x: Moments(functions(self, x).mean((0, 1)), x[:, :1], x[:, :1], x[:, 0]),
    )
    for weights, mean in ((None, 1.5), (np.array([0.25, 0.25, 0.5, 0.0]), 1.25)):
        predictor.record.weights = weights
        for target, turned in (("yes", False), ("no", True)):
            table = pictures.slices(predictor, target=target).table.set_index("feature").loc["x0"]
            expected = (mean + np.linspace(0, 1, 41)) / 10
            np.testing.assert_allclose(table["mean"], 1 - expected if turned else expected, rtol=1e-6)
            most = (3.0 if weights is None else 2.0) + np.linspace(0, 1, 41)
            last = 1 - table["q05"] if turned else table["q95"]
            assert (last <= most / 10 + 1e-6).all()
            assert (last >= most / 10 - 0.02).all()


def test_of_many_features_the_six_that_move_a_prediction_most_are_drawn(monkeypatch):
    """A change counts in both directions from the prediction at the medians."""
    bends = np.array([0.1, 6.0, -5.0, 0.2, 4.0, 3.0, -2.0, 1.0])
    rows = np.stack([np.zeros(8), np.ones(8)])
    predictor = of_two_targets(monkeypatch, features=8)
    predictor.record.array = lambda group, name: rows
    monkeypatch.setattr(
        Predictor,
        "moments",
        lambda self, x: Moments(((x - 0.5) ** 2 @ bends)[:, None], x[:, :1], x[:, :1], x[:, 0]),
    )
    picture = pictures.slices(predictor)
    assert picture.table["feature"].unique().tolist() == ["x1", "x2", "x4", "x5", "x6", "x7"]
    assert "; only the 6 of 8 inputs that change the prediction most" in picture.alt


def test_a_true_curve_of_a_file_is_in_order_and_of_its_target(tmp_path, monkeypatch):
    predictor = of_two_targets(monkeypatch, features=1)
    expected = pd.DataFrame({"b": [5.0, 4.0, 6.0], "x0": [2.0, 1.0, 3.0], "a": [20.0, 10.0, 30.0]})
    expected.to_csv(tmp_path / "known.csv", index=False)
    for target, y in ((0, [10, 20, 30]), (1, [4, 5, 6])):
        (curve,) = true_curves(predictor, tmp_path / "known.csv", np.zeros(1), target)
        np.testing.assert_array_equal(np.array(curve), [[1, 2, 3], y])


def test_the_loss_of_a_run_begins_after_its_warm_up():
    """After 20 steps of warm-up every third step is drawn.

    The log density is preferred to its estimate, and draws are optional.
    """

    def descent(draws: dict[str, Any], warmup: dict[str, Any], **options: Any) -> Any:
        step = ("chain", "draw")
        groups = {"posterior": {"theta": (step, np.zeros((2, 4)))}}
        groups["sample_stats"] = {name: (step, np.array(values)) for name, values in draws.items()}
        groups["warmup_sample_stats"] = {name: (step, np.array(values)) for name, values in warmup.items()}
        tree = xr.DataTree.from_dict({f"/{name}": xr.Dataset(variables) for name, variables in groups.items()})
        tree.attrs.update(options)
        return figures._descent("run", Predictor(Record(tree, None)))

    named = {"signature": "", "recipe": json.dumps(as_dict(tiny.recipe("nuts", thin=3, warmup=20)))}
    lp, estimate = -np.arange(8.0).reshape(2, 4), np.ones((2, 4))
    result = descent({"lp": lp, "lp_estimate": estimate}, {"lp_estimate": estimate}, **named)
    assert (result.name, result.first, result.thin) == ("run", 23, 3)
    np.testing.assert_array_equal(result.draws, -lp)
    np.testing.assert_array_equal(result.warmup, -estimate)
    record = descent({"lp": lp}, {})
    assert (record.first, record.thin, record.warmup) == (1, 1, None)
    assert descent({"accepted": lp}, {"lp": lp}).draws is None
    with pytest.raises(UsageError, match="run: the log density was not recorded"):
        descent({"accepted": lp}, {"accepted": lp})


def test_the_predictions_that_are_shown_are_the_worst_a_middling_and_the_best(monkeypatch):
    """Two rows of two targets, in the units of each target; neighbouring chains are 3, 0, 9 and 1 sds apart."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 200, 2, 2)) + np.arange(4)[:, None, None, None] * np.array([[3.0, 0.0], [9.0, 1.0]])
    predictor = picture_error(
        monkeypatch,
        signature=Signature(("x0",), (1,), "float32", ("a", "b"), "regression"),
        scaler=Scaler(*(np.array(v, np.float32) for v in ([0], [1], [10, 1000], [2, 5]))),
        functions=lambda self, x: values,
        has_rows=True,
    )
    tested = Probes(["test row 0", "test row 1"], np.zeros((2, 1)))
    monkeypatch.setattr(pictures, "probe_rows", lambda record, count: tested)
    probe_values, rhat, ess = probe_predictions(predictor)
    assert (
        list(probe_values)
        == list(rhat)
        == list(ess)
        == [
            "mean of a at test row 1",
            "mean of b at test row 1",
            "mean of b at test row 0",
        ]
    )
    for name, (row, target) in zip(probe_values, ((1, 0), (1, 1), (0, 1)), strict=True):
        expected = values[..., row, target] * (2, 5)[target] + (10, 1000)[target]
        np.testing.assert_allclose(probe_values[name], expected, rtol=1e-5)
        statistics = convergence(probe_values[name][..., None])
        assert (rhat[name], ess[name]) == pytest.approx((statistics["rhat"], statistics["ess_bulk"]), rel=1e-3)


def test_the_bands_of_a_density_are_of_its_weighted_draws_and_its_axes_in_their_order(monkeypatch):
    """Four draws have the constant densities 1, 2, 3 and 100; the last has weight zero."""
    heights = np.array([[1.0, 2.0], [3.0, 100.0]])
    signature = Signature(("a",), (1,), "float32", ("a",), "density")
    log_density = lambda predictor, rows: -rows[:, 0].astype(float) if rows.shape[1] == 1 else rows @ [0.0, -1.0]  # noqa: E731
    monkeypatch.setattr(prediction_table, "log_density", log_density)
    predictor = picture_error(
        monkeypatch,
        signature=signature,
        log_likelihoods=lambda self, x, y, indices: np.log(heights)[:, indices, None] + 0 * x[:, 0],
    )
    predictor.record.shape = (2, 2)
    for weights, high in ((None, 85.45), (np.array([0.1, 0.1, 0.8, 0.0]), 3.0)):
        predictor.record.weights = weights
        predictor.record.training_rows = lambda: (SKEWED[:, :1], SKEWED[:, :1])
        table = density(predictor).table
        np.testing.assert_allclose(table["a"], np.linspace(-2, 12, 301), atol=1e-6)
        np.testing.assert_allclose(table["density"], np.exp(-table["a"]), rtol=1e-5)
        np.testing.assert_allclose(table["q95"], high, rtol=1e-4)
    monkeypatch.setattr(Predictor, "signature", signature._replace(target_names=("a", "b"), shape=(2,)))
    predictor.record.training_rows = lambda: (SKEWED[:, :2], SKEWED[:, :2])
    table = density(predictor).table
    assert (table["a"].min(), table["a"].max()) == (-2, 12)
    assert (table["b"].min(), table["b"].max()) == pytest.approx((15.5 - 1.4 * 14.5, 15.5 + 1.4 * 14.5))
    np.testing.assert_allclose(table["density"], np.exp(-table["b"]), rtol=1e-4)


def test_of_many_targets_those_that_are_most_off_are_drawn(monkeypatch):
    even = (np.arange(50) + 0.5) / 50
    powers = [1.0, 4.0, 1.1, 0.2, 3.0, 2.0, 0.3, 1.2]
    pit = np.stack([even**power for power in powers], 1)
    names = tuple(f"y{power}" for power in powers)
    predictor = picture_error(monkeypatch, signature=Signature(("x0",), (1,), "float32", names, "regression"))
    predictor.record.test_rows = lambda: (np.zeros((50, 1)), np.zeros((50, 8)))
    monkeypatch.setattr(
        evaluation, "sampled_scores", lambda predictor, x, y: SampledScores(pit[None], pit, pit, pit, pit)
    )
    _, result = pictures._scores_of_targets(predictor)
    assert list(result) == ["y4.0", "y0.2", "y3.0", "y2.0", "y0.3", "y1.2"]
    assert result["y0.2"] == 3


def test_scores_of_test_rows_are_never_those_of_unfamiliar_ones(monkeypatch):
    """The picture of a run and its best draw, and the picture of several runs, label both kinds of rows correctly."""
    parts = [{"sd": np.full(4, value), "epistemic_sd": np.full(4, value / 10)} for value in (1.0, 5.0)]
    parts += [{"sd": np.full(4, value)} for value in (2.0, 7.0)]
    monkeypatch.setattr(figures.ood_scores, "of_run", lambda predictor, spec, inside: OodScores("far.csv", *parts))
    monkeypatch.setattr(figures.new_rows, "evaluation_rows", lambda predictor: (SKEWED, SKEWED))
    predictor = picture_error(monkeypatch, signature=SimpleNamespace(task="regression"))
    alone = pictures.ood(predictor).alt
    assert (
        "of the target 1 on test rows and 5 on far (posterior), 2 on test rows and 7 on far (single best draw)" in alone
    )
    assert "0.1 on test rows and 0.5 on far (posterior)." in alone
    both = figures.ood({"one": predictor, "two": predictor}).alt
    assert "1 on test rows and 5 on far (one), 1 on test rows and 5 on far (two)." in both
