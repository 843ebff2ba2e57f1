"""Pictures of arrays: they show the given numbers and leave no state behind."""

from __future__ import annotations

import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy import special, stats

from bnnzoo import plots
from bnnzoo.errors import UsageError
from bnnzoo.plots.steps import stretches

RNG = np.random.default_rng(0)
VALUES = {"a": RNG.normal(size=(4, 200)), "b": 3 + RNG.normal(size=(4, 200))}
RHAT, ESS = {"a": 1.0, "b": 1.2}, {"a": 800.0, "b": 700.0}


def frame_of(grid: np.ndarray) -> pd.DataFrame:
    sd = np.hypot(0.3, 0.1 * grid)
    result = pd.DataFrame({"mean": grid, "sd": sd, "aleatoric_sd": 0.3 + 0 * grid, "epistemic_sd": 0.1 * np.abs(grid)})
    levels = {"q05": -1.645, "q25": -0.674, "q75": 0.674, "q95": 1.645}
    return result.assign(**{name: grid + z * sd for name, z in levels.items()})


def observed_coverage(pit: np.ndarray) -> np.ndarray:
    """Return the fraction of transforms inside each central interval of the coverage picture."""
    return np.array([np.mean(np.abs(2 * pit - 1) <= level) for level in plots.COVERAGE_LEVELS])


def one_band(name: str = "a", wider: float = 1.0) -> plots.Band:
    grid = np.linspace(-2, 2, 41)
    return plots.Band(name, grid, frame_of(grid) * wider, np.linspace(-1, 1, 9), np.zeros(9))


def band(**options) -> plots.Picture:
    return plots.band(one_band(), feature="age (years)", target="price", **options)


def loss() -> plots.Picture:
    fall, flat = np.geomspace(900, 10, 50) + np.zeros((2, 1)), 12 + RNG.normal(size=(2, 80))
    return plots.loss(
        [plots.Descent("minimised", fall, 51, 1, None), plots.Descent("sampled", fall[:, :20], 25, 5, flat)]
    )


def steps(limit: float | None = None) -> plots.Picture:
    noise = plots.Statistic(
        "sigma2", np.full((2, 50), 3.0), np.full((2, 20), 9.0), "σ² of the log ratio", limit, "here"
    )
    return plots.steps([plots.Statistic("acceptance_rate", np.full((2, 50), 0.5)), noise])


def one_slice(feature: str, slope: float) -> plots.Slice:
    grid = np.linspace(0, 1, 11)
    return plots.Slice(
        feature, grid, slope * grid, slope * grid + np.array([[-2], [-1], [1], [2.0]]), RNG.uniform(size=9)
    )


def ood() -> plots.Picture:
    inside, outside = RNG.uniform(0.9, 1, 50), RNG.uniform(0.2, 0.5, 60)
    score = {"max_probability": (inside, outside)}
    return plots.ood({"posterior": score, "single best draw": score}, name="noise")


ALL = {
    "band": band,
    "slices": lambda: plots.slices(
        [one_slice("u", 1), one_slice("v", 5)], value="y", interval="of y", held_note="held"
    ),
    "calibration": lambda: plots.coverage({"y": observed_coverage(RNG.uniform(size=300))}, 300, 0.1),
    "pit": lambda: plots.pit({"y": RNG.uniform(size=300)}),
    "trace": lambda: plots.trace(VALUES, RHAT),
    "rank": lambda: plots.rank(VALUES, ESS),
    "autocorrelation": lambda: plots.autocorrelation(VALUES, ESS),
    "steps": steps,
    "ood": ood,
    "loss": loss,
}


def assert_nothing_is_cut_off(picture: plots.Picture) -> None:
    """Check that titles and legends are within the figure, and that titles do not overlap."""
    figure = picture.figure
    figure.draw_without_rendering()
    titles = [axes.title if axes.get_title() else axes._left_title for axes in figure.axes]  # pyright: ignore[reportAttributeAccessIssue]
    boxes = [title.get_window_extent() for title in titles if title.get_text()]
    for box in [*boxes, *(legend.get_window_extent() for legend in figure.legends)]:
        assert box.x0 >= figure.bbox.x0 - 1
        assert box.x1 <= figure.bbox.x1 + 1
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("name", ALL)
def test_every_picture_has_a_caption_data_and_a_file(name, tmp_path):
    before = dict(mpl.rcParams)
    picture = ALL[name]()
    assert picture.name == name
    assert isinstance(picture.figure, Figure)
    assert len(picture.alt) > 60
    assert len(picture.table)
    for axes in picture.figure.axes:
        assert axes.has_data()
    assert picture.save(tmp_path / "one.png").read_bytes()[:4] == b"\x89PNG"
    assert picture._repr_png_()[:4] == b"\x89PNG"
    assert dict(mpl.rcParams) == before


def logarithmic() -> dict[str, plots.Picture]:
    wide = plots.Statistic("sigma2", np.geomspace(1e-3, 1e5, 200)[None])
    short = plots.Descent("late", None, 500, 1, RNG.normal(size=(1, 900)))
    return {
        "decades": loss(),
        "less than a decade": plots.loss([short]),
        "steps": plots.steps([wide]),
        "rows": plots.reliability(RNG.integers(0, 3, 400), RNG.dirichlet([0.5] * 3, 400)),
    }


def test_the_labels_of_a_logarithmic_axis_are_plain_numbers():
    labels = {}
    for name, picture in logarithmic().items():
        assert "mathdefault" not in picture.inline_svg()
        panel = picture.figure.axes[-1]
        axis = panel.xaxis if panel.get_xscale() == "log" else panel.yaxis
        assert axis.get_scale() == "log"
        labels[name] = {tick.get_text() for tick in axis.get_ticklabels(which="both")} - {""}
    assert labels["decades"] >= {"1", "10", "100"}
    assert labels["less than a decade"] >= {"600", "1000"}
    assert labels["rows"] >= {"1", "10", "100"}
    assert len({float(label) for label in labels["steps"]}) > 3


def test_a_column_called_as_a_number_of_the_table_keeps_its_values():
    grid = np.linspace(-2, 2, 41)
    for table in (
        plots.band(one_band(), feature="sd", target="y").table,
        plots.bands([one_band()], feature="sd", target="y").table,
        plots.density_of_one(grid, grid, grid, grid, grid, column="density").table.rename(columns={"density": "sd"}),
    ):
        (name,) = (name for name in table if name.endswith(" (values)"))
        np.testing.assert_array_equal(table[name], grid)
        assert "sd" in table
    table = plots.density_of_two((grid, grid), np.ones((41, 41)), np.zeros((2, 2)), columns=("density", "b")).table
    assert list(table) == ["density (values)", "b", "density"]


def test_the_band_shows_its_parts():
    picture = band()
    above, below = picture.figure.axes
    labels = above.get_legend_handles_labels()[1]
    assert labels == ["90 % interval", "50 % interval", "training data", "mean"]
    assert above.get_ylabel() == "price"
    assert below.get_xlabel() == "age (years)"
    lines = {line.get_label(): line.get_ydata() for line in below.get_lines()}
    np.testing.assert_array_equal(lines["epistemic (weights)"], picture.table["epistemic_sd"])
    np.testing.assert_array_equal(lines["aleatoric (data)"], 0.3)
    assert "aleatoric 0.3" in picture.alt


def test_a_band_of_the_function_is_two_sd_of_it():
    curve = plots.Curve(np.array([-1.0, 1.0]), np.array([0.0, 2.0]))
    picture = band(of="function", truth=[curve, curve])
    (panel,) = picture.figure.axes
    assert panel.get_legend_handles_labels()[1] == ["mean ± 2 sd of f(x)", "± 1 sd", "training data", "mean", "truth"]
    corners = panel.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(corners[:, 1].max(), 2 + 2 * 0.2, atol=1e-6)
    assert "true curve" in picture.alt


def test_colours_of_runs_over_each_other_do_not_blend():
    result = [one_band("narrow"), one_band("wide", 3.0)]
    picture = plots.bands(result, feature="x", target="y", overlay=True)
    above, below = picture.figure.axes
    areas = above.collections
    assert all(area.get_facecolor()[0, 3] == 1 for area in areas)  # opaque
    heights = [np.ptp(area.get_paths()[0].vertices[:, 1]) for area in areas]
    assert heights == sorted(heights, reverse=True)
    assert [area.get_zorder() for area in areas] == sorted(area.get_zorder() for area in areas)
    assert len({line.get_color() for line in below.get_lines()}) == 2
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == ["narrow", "wide"]


def test_runs_side_by_side_share_their_axes():
    picture = plots.bands([one_band(name) for name in "abcde"], feature="x", target="y")
    assert [axes.get_title("left") for axes in picture.figure.axes] == list("abcde")
    assert len({axes.get_ylim() for axes in picture.figure.axes}) == 1
    assert picture.table["run"].unique().tolist() == list("abcde")


def test_the_mean_loss_is_drawn_where_there_are_draws():
    picture = loss()
    dashed = [line for line in picture.figure.axes[0].get_lines() if line.get_linestyle() == "--"]
    np.testing.assert_allclose([line.get_ydata()[0] for line in dashed], [picture.table["loss"][1]])
    assert picture.table["what"].tolist() == ["at the end", "mean over draws"]
    np.testing.assert_allclose(picture.table["loss"][0], 10)


def test_many_points_are_thinned_with_a_note():
    grid = np.linspace(-2, 2, 41)
    x = RNG.uniform(-1, 1, size=5000)
    picture = plots.band(plots.Band("a", grid, frame_of(grid), x, x), feature="x", target="y")
    assert "800 of 5000 training rows" in picture.figure.axes[0].get_legend_handles_labels()[1]
    assert len(picture.inline_svg()) < 200_000


def test_a_limit_is_drawn_and_labelled():
    picture = steps(2.0)
    panel = picture.figure.axes[1]
    assert any(np.all(np.asarray(line.get_ydata()) == 2.0) for line in panel.get_lines())
    assert "Dashed lines: limits that the mean must not exceed, σ² of the log ratio at 2." in picture.alt
    assert "imit" not in steps(None).alt
    assert [text.get_text() for text in panel.texts][:1] == ["here"]
    labels = [axes.get_ylabel() for axes in picture.figure.axes]
    assert labels == ["acceptance_rate", "σ² of the log ratio"]  # the bare name where there is no label
    assert panel.get_lines()[2].get_xdata().max() < 0  # warm-up is to the left of the first draw


def test_coverage_is_the_share_inside():
    narrow = np.concatenate([np.full(50, 0.5), np.full(50, 0.999)])
    picture = plots.coverage({"y": observed_coverage(narrow)}, 100, 0.1)
    assert "90% intervals contain 50.0%" in picture.alt
    even = observed_coverage((np.arange(1000) + 0.5) / 1000)
    assert "90% intervals contain 90" in plots.coverage({"y": even}, 1000, 0.1).alt


def test_targets_with_opposite_errors_do_not_make_up_for_each_other():
    even = (np.arange(1000) + 0.5) / 1000
    pits = {"too narrow": special.betainc(2, 2, even), "too wide": special.betaincinv(2, 2, even)}
    covered = plots.coverage({name: observed_coverage(pit) for name, pit in pits.items()}, 1000, 0.1)
    assert covered.table["observed of too narrow"][9] < 0.4 < 0.6 < covered.table["observed of too wide"][9]
    assert_nothing_is_cut_off(covered)
    panels = plots.pit(pits).figure.axes
    assert [panel.get_title("left") for panel in panels] == list(pits)


def test_reliability_bins_confidence():
    probabilities = np.repeat([[0.95, 0.05], [0.35, 0.65]], 100, axis=0)
    labels = np.concatenate([np.zeros(100, int), np.repeat([0, 1], 50)])
    table = plots.reliability(labels, probabilities).table
    np.testing.assert_allclose(table["mean confidence"], [0.65, 0.95])
    np.testing.assert_allclose(table["accuracy"], [0.5, 1.0])
    np.testing.assert_array_equal(table["rows"], [100, 100])


def test_ranks_show_a_deviating_chain_and_tolerate_ties():
    apart = {"a": VALUES["a"] + np.array([[0], [0], [0], [5.0]])}
    table = plots.rank(apart, {"a": 100.0}).table
    last = table[(table["chain"] == 3)]["over uniform"].to_numpy()
    assert last[0] == 0
    assert last[-1] > 3
    tied = plots.rank({"a": np.ones((4, 400))}, {"a": 100.0}).table["over uniform"]
    assert tied.between(0.3, 2).all()


@pytest.mark.parametrize("of", [plots.trace, plots.rank, plots.autocorrelation])
def test_names_of_ordinary_length_are_shown_whole(of):
    values = {f"mean of disease_progression at test row {row}": VALUES["a"] for row in (35, 36)}
    numbers = dict.fromkeys(values, 3456.0)
    assert_nothing_is_cut_off(of(values, numbers))


LONG = [f"houses-of-boston-mlp-penalty-langevin-seed-{seed}" for seed in range(3)]


@pytest.mark.parametrize("of", ["side by side", "over each other", "ood", "loss"])
@pytest.mark.parametrize("count", [2, 3])
def test_long_names_of_files_are_shown_whole(of, count):
    truth = [plots.Curve(np.array([-1.0, 1.0]), np.array([0.0, 2.0]))]
    names = LONG[:count]
    if of == "ood":
        score = {"sd": (RNG.uniform(size=50), RNG.uniform(size=60))}
        picture = plots.ood(dict.fromkeys(names, score), name=LONG[0])
    elif of == "loss":
        picture = plots.loss([plots.Descent(name, None, 1, 1, 12 + RNG.normal(size=(2, 80))) for name in names])
    else:
        bands = [one_band(name) for name in names]
        picture = plots.bands(bands, feature="x", target="y", truth=truth, overlay=of == "over each other")
    assert_nothing_is_cut_off(picture)


def test_a_stuck_chain_has_autocorrelation_one():
    still = {"a": np.repeat([[1.0], [2.0]], 50, axis=1)}
    np.testing.assert_array_equal(plots.autocorrelation(still, {"a": 2.0}).table["a"], 1.0)


def test_an_inline_picture_can_be_recoloured_and_loads_nothing():
    grid = np.linspace(-2, 2, 41)
    nasty = '<script>"&'
    svg = plots.band(plots.Band("a", grid, frame_of(grid), grid, grid), feature="x", target=nasty).inline_svg()
    assert "<script" not in svg
    assert "http" not in svg
    assert "var(--blue)" in svg
    assert "#0072b2" not in svg
    assert 'role="img"' in svg
    assert 'aria-label="&lt;script&gt;' in svg


def test_formats(tmp_path):
    picture = ALL["pit"]()
    assert picture.save(tmp_path / "a.svg").read_text().startswith("<?xml")
    assert picture.save(tmp_path / "a.pdf").read_bytes()[:4] == b"%PDF"
    first = (tmp_path / "a.svg").read_bytes()
    assert picture.save(tmp_path / "a.svg").read_bytes() == first
    with pytest.raises(UsageError, match="unknown picture format; use the ending png, svg"):
        picture.save(tmp_path / "a.doc")


@pytest.mark.long
def test_matplotlib_is_imported_on_first_use_and_pyplot_never():
    code = "import sys, bnnzoo; bnnzoo.open; print('bnnzoo.plots' in sys.modules)"
    also = "; import bnnzoo.report.pictures; print('bnnzoo.plots' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code + also], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True", "False"]


# ---- the numbers that are drawn ------------------------------------------------------------------


def heights(area) -> tuple[float, float]:
    """Return the vertical range of an area."""
    up = area.get_paths()[0].vertices[:, 1] if hasattr(area, "get_paths") else area.get_path().vertices[:, 1]
    return up.min(), up.max()


def grey(panel) -> list[list[float]]:
    """Return the corners of regions shaded over the full width or height of a panel: left, bottom, right, top."""
    boxes = (patch.get_bbox() for patch in panel.patches if isinstance(patch, Rectangle))
    return [[float(value) for value in box.extents] for box in boxes]


def test_the_intervals_of_a_band_are_those_of_their_quantiles():
    first = one_band()
    grid, sd = first.grid, first.predictions["sd"].to_numpy()
    for of, wide, narrow, spread in (("predictive", 1.645, 0.674, sd), ("function", 2, 1, 0.1 * np.abs(grid))):
        np.testing.assert_allclose(first.standard_deviation(of), spread)
        for (_, low, high), z in zip(first.intervals(of), (wide, narrow), strict=True):
            np.testing.assert_allclose([low, high], [grid - z * spread, grid + z * spread])
    picture = band()
    above, below = picture.figure.axes
    for area, z in zip(above.collections, (1.645, 0.674), strict=True):
        np.testing.assert_allclose(heights(area), [-2 - z * sd[0], 2 + z * sd[-1]], rtol=1e-6)
    (mean,) = (line for line in above.get_lines() if line.get_label() == "mean")
    np.testing.assert_array_equal(mean.get_ydata(), grid)
    lines = {line.get_label(): line.get_ydata() for line in below.get_lines()}
    np.testing.assert_array_equal(lines["total"], sd)
    # The data are from -1 to 1; the range outside is grey.
    for panel in (above, below):
        assert [(box[0], box[2]) for box in grey(panel)] == [(-2, -1), (1, 2)]
    assert (
        "in the range of the training data: aleatoric 0.3, epistemic 0.05; "
        "outside the range of the training data (grey): aleatoric 0.3, epistemic 0.155" in (picture.alt)
    )
    assert "over the range of the data: a 0.304, b 0.912" in (
        plots.bands([first, one_band("b", 3.0)], feature="x", target="y").alt
    )


def test_the_grey_band_of_coverage_is_the_tolerance():
    picture = plots.coverage({"y": observed_coverage((np.arange(40) + 0.5) / 40)}, 40, 0.1)
    claimed = picture.table["interval"].to_numpy()
    np.testing.assert_allclose(claimed, np.arange(1, 21) / 20)
    np.testing.assert_allclose(picture.table["low"], np.clip(claimed - 0.1, 0, 1), atol=1e-12)
    np.testing.assert_allclose(picture.table["high"], np.clip(claimed + 0.1, 0, 1), atol=1e-12)
    inside = np.abs(2 * (np.arange(40) + 0.5) / 40 - 1)
    np.testing.assert_allclose(picture.table["observed"], [np.mean(inside <= level) for level in claimed])


def test_the_bars_of_a_reliability_diagram_are_wilsons():
    """For 10 rows at 0.75, of which 6 are right, and for 30 rows at 1, which are all right."""
    confidence, correct = np.r_[np.full(10, 0.75), np.ones(30)], np.r_[np.arange(10) < 6, np.ones(30, bool)]
    picture = plots.reliability(1 - correct.astype(int), np.stack([confidence, 1 - confidence], 1))
    above, below = picture.figure.axes
    (bars,) = above.collections
    for segment, (hits, rows, at) in zip(bars.get_segments(), ((6, 10, 0.75), (30, 30, 1.0)), strict=True):
        expected = stats.binomtest(hits, rows).proportion_ci(method="wilson")
        np.testing.assert_allclose(segment[:, 0], at)
        np.testing.assert_allclose(segment[:, 1], [expected.low, expected.high], atol=1e-4)
    assert [(bar.get_x(), bar.get_height()) for bar in below.patches] == [(0.7, 10), (0.9, 30)]
    assert picture.table["confidence from"].tolist() == [0.7, 0.9]
    assert "the confidence is 93.8% and the accuracy 90.0%" in picture.alt


def test_a_histogram_of_transforms_states_mean_and_spread_and_draws_no_limit():
    """Eight bins contain ten of the 100 rows each, one contains none and one contains twenty."""
    rows = np.r_[np.repeat(np.arange(1, 10), 10), np.full(10, 9)] / 10 + 0.05
    picture = plots.pit({"y": rows})
    assert picture.table["rows"].tolist() == [0, *[10] * 8, 20]
    np.testing.assert_allclose(picture.table["density"], [0, *[1] * 8, 2])
    assert f"in 10 bins: mean {rows.mean():.3f} and standard deviation {rows.std():.3f}" in picture.alt
    assert grey(picture.figure.axes[0]) == []
    even = plots.pit({"y": (np.arange(40) + 0.5) / 40, "z": np.full(40, 0.1)})
    assert "in 4 bins: y: mean 0.500" in even.alt
    assert "z: mean 0.100" in even.alt


def test_shares_of_unfamiliar_rows_are_of_their_own_number():
    """All columns share the bins; the upper 1 % of values are in the last bin."""
    near, far = np.repeat([1.0, 3.0], [30, 10]), np.r_[np.linspace(1, 6, 299), 1e6]
    picture = plots.ood({"posterior": {"sd": (near, far)}, "best": {"sd": (near, near + 0)}}, name="noise")
    table = picture.table
    assert (table["from"].min(), table["to"].max()) == (1.0, pytest.approx(np.quantile(far, 0.99)))
    shares = table.groupby(["of", "rows"])["share"]
    np.testing.assert_allclose(shares.sum(), 1.0)
    at = table[(table["from"] <= 1) & (table["of"] == "posterior")].set_index("rows")["share"]
    assert at["test"] == 0.75
    assert at["noise"] == pytest.approx(12 / 300)
    last = table[(table["to"] == table["to"].max()) & (table["rows"] == "noise")].set_index("of")["share"]
    assert (last["posterior"], last["best"]) == (pytest.approx(np.mean(far >= table["from"].max())), 0)
    assert "40 test rows and 300 rows of noise" in picture.alt
    assert f"of the target 1.5 on test rows and {far.mean():.3g} on noise (posterior)" in picture.alt
    sure = plots.ood({"one": {"max_probability": (near / 4, near / 4)}}, name="noise").table
    assert (sure["from"].min(), sure["to"].max()) == (0, 1)


@pytest.mark.parametrize("far", [np.array([np.inf, 2.0, 4.0]), np.full(3, np.inf), np.full(3, np.nan)])
def test_scores_that_are_not_finite_leave_a_picture(far):
    """The draws of a divergent run have unbounded predictions."""
    table = plots.ood({"posterior": {"sd": (far, far)}}, name="noise").table
    assert np.isfinite(table[["from", "to"]]).all(axis=None)
    in_bins = 0.0 if np.isnan(far).all() else 1.0
    assert table.groupby("rows")["share"].sum().tolist() == pytest.approx([in_bins, in_bins])


def test_the_numbers_of_steps_are_means_over_stretches_at_their_middles():
    values = np.arange(480.0).reshape(2, 240)
    at, means = stretches(values)
    np.testing.assert_allclose(at, 0.5 + 2 * np.arange(120))
    np.testing.assert_allclose(means, [at, 240 + at])
    for draws, count in ((1, 1), (120, 120), (121, 60), (239, 119), (241, 80)):
        at, means = stretches(np.zeros((1, draws)))
        assert (len(at), means.shape) == (count, (1, count))
        assert at[-1] <= draws - 1


def test_the_parts_of_a_slice_are_named_by_what_they_hold():
    picture = plots.slices([one_slice("u", 1), one_slice("v", -5)], value="y", interval="of y", held_note="held")
    first, second, *_ = picture.figure.axes
    assert [heights(area) for area in first.collections] == [(-2, 3), (-1, 2)]
    assert [area.get_label() for area in first.collections] == ["90 %", "50 %"]
    assert [heights(area) for area in second.collections] == [(-7, 2), (-6, 1)]
    assert "The mean changes most along v, by 5" in picture.alt
    last = picture.table[picture.table["at"] == 1].set_index("feature")
    assert last.loc["v"].to_dict() == {"at": 1, "mean": -5, "q05": -7, "q25": -6, "q75": -4, "q95": -3}


def test_the_loss_curve_is_drawn_at_its_steps():
    """Two steps of warm-up; then every third is kept, and of many draws some are drawn."""
    warmup, draws = np.array([[9.0, 8.0], [7.0, 6.0]]), 5 + np.zeros((2, 1199)) + [[0.0], [1.0]]
    draws[:, 0] = 3.0
    picture = plots.loss([plots.Descent("run", warmup, 5, 3, draws), plots.Descent("other", warmup, 3, 1, None)])
    lines = [line for line in picture.figure.axes[0].get_lines() if line.get_linestyle() == "-"]
    for line, values in zip(lines[:2], warmup, strict=True):
        np.testing.assert_array_equal(np.array(line.get_data()), [[1, 2], values])
    x, y = lines[2].get_data()
    assert (len(x), x[0], x[-1], y[0], y[-1]) == (600, 5, 5 + 3 * 1198, 3, 5)
    assert picture.table["loss"].tolist() == [pytest.approx(draws.mean()), 7.0]


def test_ranks_of_simulated_data_sets_say_how_many_bins_chance_does_not_make():
    """Five bins hold twelve of 60 each, and 99 % of counts are 5 to 20; those of the other quantity are all in one."""
    uniform = np.stack([(np.arange(60) + 0.5) / 60, np.full(60, 0.3)], 1)
    picture = plots.sbc(["a", "b"], uniform)
    assert picture.table["replicates"].tolist() == [12] * 5 + [0, 60, 0, 0, 0]
    assert picture.table["from"].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8] * 2)
    assert "of the true value among the draws of 60 simulated data sets, for a, b, in 5 bins each. " in picture.alt
    assert "; 5 of 10 bins are outside it." in picture.alt
    low, high = stats.binom.ppf([0.005, 0.995], 60, 0.2) / 12
    assert [(box[1], box[3]) for box in grey(picture.figure.axes[0])] == [(low, high)]


def test_the_grey_of_ranks_is_of_as_many_draws_as_are_worth_one():
    """Two chains of 100 draws worth 40: a bin of twenty a chain holds 98 % of the counts of a binomial variable."""
    values = {"a": np.arange(200.0).reshape(100, 2).T}
    picture = plots.rank(values, {"a": 40.0})
    low, high = stats.binom.ppf([0.01, 0.99], 20, 1 / 4) * 4 / 20
    assert grey(picture.figure.axes[0])[0][1::2] == [low, high]
    np.testing.assert_allclose(picture.table["over uniform"], 1.0)
    assert picture.table["chain"].tolist() == [0] * 4 + [1] * 4


def test_the_density_of_two_columns_is_drawn_across_and_up():
    """A maximum at x = 2 and y = 5, twice as wide in x as in y."""
    across, up = np.linspace(-2, 6, 61), np.linspace(3, 7, 31)
    density = np.exp(-0.5 * ((across[None] - 2) ** 2 + 4 * (up[:, None] - 5) ** 2)) / np.pi
    picture = plots.density_of_two((across, up), density, np.array([[2.0, 5.0], [0.0, 4.5]]), columns=("a", "b"))
    (panel,) = picture.figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("a", "b")
    for level in (0, 1, 2):
        (box,) = (path.get_extents() for path in panel.collections[level].get_paths())
        np.testing.assert_allclose([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2], [2, 5], atol=0.01)
        assert box.width == pytest.approx(2 * box.height, rel=0.05)
    np.testing.assert_array_equal(np.array(panel.get_lines()[0].get_data()), [[2, 0], [5, 4.5]])
    assert f"largest ({1 / np.pi:.3g}) at (2, 5)" in picture.alt
    expected = np.exp(-0.5 * ((picture.table["a"] - 2) ** 2 + 4 * (picture.table["b"] - 5) ** 2)) / np.pi
    np.testing.assert_allclose(picture.table["density"], expected)


def test_autocorrelation_is_by_lag_and_averaged_over_chains():
    """One chain alternates, the other stays for two draws: at lag 1 about -1 and 0, at lag 2 about 1 and -1."""
    values = {"a": np.stack([np.tile([1.0, -1.0], 100), np.tile([1.0, 1.0, -1.0, -1.0], 50)])}
    table = plots.autocorrelation(values, {"a": 33.0}).table
    assert table["lag"].tolist() == list(range(101))
    np.testing.assert_allclose(table["a"][:3], [1, -0.5, 0], atol=0.02)
    assert (
        "The smallest effective sample size shown is 33 of 400 draws" in plots.autocorrelation(values, {"a": 33.0}).alt
    )


def test_the_trace_of_the_worst_is_named_and_its_numbers_are_each_chains():
    values = {"a": np.array([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 9.0]]), "b": np.zeros((2, 4))}
    picture = plots.trace(values, {"a": 1.5, "b": 12.0})
    assert "The largest R-hat shown is above 10, of b." in picture.alt
    assert picture.figure.axes[0].get_title("left") == "a, R-hat 1.50"
    expected = [["a", 0, 3.0, 3.5**0.5, 1, 6], ["a", 1, 6.0, 3**0.5, 5, 9]]
    assert picture.table.to_numpy()[:2].tolist() == [pytest.approx(row) for row in expected]
