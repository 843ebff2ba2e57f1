"""Censored targets: interval probabilities, a posterior with a known answer, and the way from a file to scores."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import integrate, special, stats
from test_data_load import message_of

import bnnzoo
from bnnzoo.api import keywords
from bnnzoo.assembly import Problem
from bnnzoo.data import from_arrays, load, load_like, split
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.rows.scaler import Scaler
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.audit.estimands import is_linear
from bnnzoo.posterior import intervals
from bnnzoo.posterior.censored import Censored
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, Mixture, MixturePerTarget, Poisson, StudentT

pytestmark = pytest.mark.usefixtures("as_options")

INF = np.inf
ENDS = [
    *((-INF, end) for end in (-1e4, -300.0, -30.0, -10.1, -9.9, -1.0, 0.0, 1.0, 5.0)),
    *((end, INF) for end in (-50.0, -5.0, 0.0, 5.0, 9.9, 10.1, 30.0, 300.0)),
    *(
        (-1.0, 1.0),
        (-0.01, 0.001),
        (1.0, 1.001),
        (-30.0, -29.99),
        (100.0, 101.0),
        (5.0, 8.0),
        (-8.0, 9.0),
        (3.0, 3.0001),
    ),
]
CENSORED = Reading(censored=True)


def _log_normal(low: float, high: float) -> float:
    low, high = (-high, -low) if low + high > 0 else (low, high)
    below, above = special.log_ndtr(low), special.log_ndtr(high)
    return float(above + np.log(-np.expm1(below - above)))


def _log_t(low: float, high: float, df: float) -> float:
    """Return the log probability by quadrature of the density, relative to its largest value in the interval."""
    low, high = (-high, -low) if low + high < 0 else (low, high)
    at = max(low, 0.0)
    top = stats.t.logpdf(at, df)
    # z = log(1 + t - low) turns a long tail into an integral over a few units.
    value, _ = (
        integrate.quad(
            lambda z: np.exp(stats.t.logpdf(low + np.expm1(z), df) - top + z),
            0,
            np.log1p(min(high - low, 1e12)),
            limit=500,
        )
        if np.isfinite(low)
        else (np.exp(-top), 0)
    )
    return float(np.log(value) + top)


def _values_and_slopes(function, low, high):
    return jax.jit(jax.vmap(jax.value_and_grad(function, (0, 1))))(low, high)


def test_normal_intervals_and_their_gradients_are_right_in_float32():
    low, high = (np.array(end, np.float32) for end in zip(*ENDS, strict=True))
    values, slopes = _values_and_slopes(intervals.log_normal_interval, low, high)
    exact = np.array([_log_normal(float(a), float(b)) for a, b in zip(low, high, strict=True)])
    np.testing.assert_allclose(values, exact, rtol=3e-5, atol=1e-6)
    for slope, end, sign in zip(slopes, (low, high), (-1, 1), strict=True):
        expected = np.where(np.isfinite(end), sign * np.exp(stats.norm.logpdf(end.astype(float)) - exact), 0)
        np.testing.assert_allclose(slope, expected, rtol=2e-3, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("df", [2.5, 30.0])
def test_t_intervals_are_right_in_float32_and_their_gradients_finite(df):
    ends = [ends for ends in ENDS if 1e4 not in map(abs, ends)]
    low, high = (np.array(end, np.float32) for end in zip(*ends, strict=True))
    values, slopes = _values_and_slopes(lambda a, b: intervals.log_t_interval(a, b, jnp.float32(df)), low, high)
    exact = [_log_t(float(a), float(b), df) for a, b in zip(low, high, strict=True)]
    np.testing.assert_allclose(values, exact, rtol=1e-4, atol=1e-4)
    assert all(np.isfinite(slope).all() for slope in slopes)


COUNTS = [(-INF, 0.5), (-INF, 300.0), (3.0, INF), (900.0, INF), (2.0, 5.0), (-1.0, 3.0)]


@pytest.mark.parametrize("rate", [1e-3, 3.0, 200.0, 5000.0])
def test_poisson_intervals_and_their_gradients_are_right_in_float32(rate):
    def exact(low: float, high: float, at: float) -> float:
        first = max(int(np.floor(low)) + 1, 0) if np.isfinite(low) else 0
        counts = np.arange(first, int(np.ceil(high)) if np.isfinite(high) else 20_000)
        return float(special.logsumexp(stats.poisson.logpmf(counts, at)))

    low, high = (np.array(end, np.float32) for end in zip(*COUNTS, strict=True))
    function = jax.value_and_grad(intervals.log_poisson_interval, 2)
    values, slopes = jax.jit(jax.vmap(function, (0, 0, None)))(low, high, jnp.float32(rate))
    step = 1e-4 * rate
    expected = [exact(*ends, rate) for ends in COUNTS]
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
    expected = [(exact(*ends, rate + step) - exact(*ends, rate - step)) / (2 * step) for ends in COUNTS]
    np.testing.assert_allclose(slopes, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("rate", [20.0, 1e4, 1e6])
def test_large_counts_and_short_intervals_of_them_are_accurate_in_float32(rate):
    for shift in (-2.0, 0.0, 3.0):
        count = jnp.float32(np.floor(rate + shift * rate**0.5))
        known = intervals.log_likelihood(dist.Poisson(jnp.float32(rate)), count, count)
        assert float(known) == pytest.approx(stats.poisson.logpmf(float(count), rate), abs=1e-3)
        ends = jnp.float32(count - 0.5), jnp.float32(count + 10.5)
        expected = special.logsumexp(stats.poisson.logpmf(float(count) + np.arange(11), rate))
        assert float(intervals.log_poisson_interval(*ends, jnp.float32(rate))) == pytest.approx(expected, abs=1e-3)


LAWS = [
    (Gaussian(0.7), 1),
    (StudentT(4.0, 0.7), 1),
    (Heteroscedastic(), 1),
    (Mixture(2), 2),
    (MixturePerTarget(2), 2),
    (Poisson(), 1),
]


@pytest.mark.long
@pytest.mark.parametrize(("law", "num_targets"), LAWS)
def test_known_values_have_the_density_of_the_likelihood_itself(law, num_targets):
    output = jnp.linspace(-0.5, 0.8, law.num_outputs(num_targets))
    target = jnp.arange(1.0, num_targets + 1)
    expected = Censored(law).log_prob(output, jnp.stack([target, target], -1))
    np.testing.assert_allclose(expected, law.log_prob(output, target), rtol=1e-5)
    assert Censored(law).log_prob(output, target) == law.log_prob(output, target)


@pytest.mark.parametrize(("law", "num_targets"), [pair for pair in LAWS if not isinstance(pair[0], Poisson)])
def test_an_interval_has_the_integral_of_the_density(law, num_targets):
    """One target is in an interval, and the others are known; the integral over this target is by quadrature."""
    output = jnp.linspace(-0.5, 0.8, law.num_outputs(num_targets))
    others = jnp.arange(1.0, num_targets)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    points = jnp.asarray(1.1 + 0.9 * nodes, jnp.float32)
    densities = jax.vmap(lambda y: jnp.exp(law.log_prob(output, jnp.append(others, y))))(points)
    expected = np.log(0.9 * np.sum(weights * np.asarray(densities)))
    low, high = jnp.append(others, 0.2), jnp.append(others, 2.0)
    np.testing.assert_allclose(Censored(law).log_prob(output, jnp.stack([low, high], -1)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("law", "num_targets"), [(Gaussian(0.7), 1), (Poisson(), 1), (Gaussian(np.float32([4, 2])), 2)]
)
def test_the_bound_of_the_likelihood_is_attained_at_the_known_values(law, num_targets):
    target = jnp.arange(1.0, num_targets + 1)
    output = jnp.log(target) if isinstance(law, Poisson) else target
    bounds = jnp.stack([target, target], -1)
    np.testing.assert_allclose(Censored(law).upper_bound(bounds), law.log_prob(output, target), rtol=1e-5)
    if num_targets == 2:  # an interval contributes 0
        mixed = bounds.at[1, 1].set(INF)
        expected = Gaussian(4.0).log_prob(output[:1], target[:1])
        np.testing.assert_allclose(
            jax.jit(lambda bounds: Censored(law).upper_bound(bounds))(mixed), expected, rtol=1e-5
        )


def test_the_gradient_by_a_learned_scale_is_finite_at_an_infinite_end():
    def density(scale):
        return Censored(Gaussian(scale)).log_prob(jnp.zeros(1), jnp.array([[-INF, 0.5]], jnp.float32))

    assert np.isfinite(jax.grad(density)(jnp.float32(0.8)))


# ---------------------------------------------------------------------------------------------- tables and arrays


def refusal(function, *arguments, **options) -> str:
    with pytest.raises(UsageError) as error:
        function(*arguments, **options)
    return str(error.value)


def _table(folder, *lines):
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_cells_of_a_censored_target_are_numbers_and_bounds(tmp_path):
    path = _table(tmp_path, "x,y", "1,2.5", "2,<0.5", "3,> 100", "4,1..2", '5,"(1,2)"', "6,<=3", "7,2")
    data = load(path, reading=CENSORED)
    after, before = np.nextafter(np.float32(2), np.float32(9)), np.nextafter(np.float32(1), np.float32(0))
    included = np.nextafter(np.float32(3), np.float32(9))
    expected = [[2.5, 2.5], [-INF, 0.5], [100, INF], [before, after], [1, 2], [-INF, included], [2, 2]]
    np.testing.assert_array_equal(data.y[:, 0], np.array(expected, np.float32))
    assert (data.task, data.y.shape) == ("regression", (7, 1, 2))
    assert "target y: censored cells: 2 below a limit, 1 above a limit, 2 in an interval (7 cells in all)" in data.notes


def test_bounds_without_the_option_are_refused_and_the_option_is_named(tmp_path):
    path = _table(tmp_path, "amt,dv", "320,.", ".,1.2", ".,3.4", ".,<0.5", ".,2.2", "320,.", ".,<0.5")
    lines = refusal(load, path).splitlines()
    assert [line.split(": ", 1)[1].split(" (")[0] for line in lines] == [
        "row 4, column dv: a bound, not a number",
        "row 1, column dv: a missing cell",
        "row 2, column amt: a missing cell",
    ]
    assert "use --censored to read the cell as a bound" in lines[0]
    assert "--missing drop" in lines[1]
    assert "--drop" not in lines[0] + lines[1]
    assert "if the column is the target, use --target dv --censored to read the cell as a bound" in refusal(
        load, path, target=["amt"]
    )


def test_an_interval_without_the_option_is_a_bound_too(tmp_path):
    message = refusal(load, _table(tmp_path, "a,b", "1,2..3", "2,4"))
    assert "row 1, column b: a bound, not a number ('2..3'); use --censored to read the cell as a bound, or" in message


def test_bounds_as_arrays_frames_and_text_are_one_data_set():
    x, y = np.arange(4.0)[:, None], np.array([[1, 1], [-INF, 0.5], [2, INF], [1, 3]])
    text = pd.Series(["1", "<=0.5", ">=2", "[1,3]"])
    of_arrays = load((x, y), reading=CENSORED)
    for other in ((pd.DataFrame(x, columns=["x0"]), y), (pd.DataFrame(x, columns=["x0"]), text)):
        data = load(other, reading=CENSORED)
        np.testing.assert_array_equal(data.y, of_arrays.y)
        np.testing.assert_array_equal(data.x, of_arrays.x)
    test = load_like((x, y), of_arrays.signature)
    np.testing.assert_array_equal(test.y, of_arrays.y)
    assert "row 2: expected a lower and an upper bound" in message_of(load, (x[:2], y[:2, ::-1]), reading=CENSORED)
    assert "--censored requires --task regression" in message_of(load, (x, y), task="classification", reading=CENSORED)


def test_scaling_keeps_known_values_known_and_open_ends_open():
    y = np.array([[1, 1], [-INF, 0.5], [2, INF], [1, 3], [7, 7]])
    train, _ = split(load((np.arange(5.0)[:, None], y), reading=CENSORED), test_fraction=0.0, seed=0)
    scaler = Scaler.fit(train, True)
    np.testing.assert_allclose(scaler.y_mean, np.mean([1, 0.5, 2, 2, 7]), rtol=1e-6)
    scaled = scaler.scale_targets(train.y)
    np.testing.assert_array_equal(np.isinf(scaled[:, 0]), np.isinf(y))
    np.testing.assert_array_equal(scaled[:, 0, 0] == scaled[:, 0, 1], [True, False, False, False, True])
    logs = np.log(scaler.y_sd[0])
    np.testing.assert_allclose(scaler.log_units(train.y), [logs, 0, 0, 0, logs], rtol=1e-6)


# ---------------------------------------------------------------------------------------------- a posterior


@pytest.fixture(scope="module")
def tobit():
    """Return x and bounds of a line with slope 2 whose values below 1 are only known as <1."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=60)
    y = 1.0 + 2.0 * x + 0.5 * rng.normal(size=60)
    low, high = np.where(y < 1, -INF, y), np.where(y < 1, 1.0, y)
    return x, np.stack([low, high], 1)


def _exact_means(x, bounds) -> np.ndarray:
    """Return the posterior means of slope and intercept on a grid: normal priors of sd 1, noise 0.5."""
    slopes, intercepts = np.meshgrid(np.linspace(0.5, 3, 301), np.linspace(-0.5, 2.5, 301), indexing="ij")
    log_density = stats.norm.logpdf(slopes) + stats.norm.logpdf(intercepts)
    for value, (low, high) in zip(x, bounds, strict=True):
        mean = slopes * value + intercepts
        expected = stats.norm.logpdf(high, mean, 0.5)
        log_density += expected if low == high else special.log_ndtr((high - mean) / 0.5)
    weight = np.exp(log_density - log_density.max())
    return np.array([np.sum(weight * slopes), np.sum(weight * intercepts)]) / weight.sum()


@pytest.mark.long
def test_a_tobit_line_has_the_posterior_of_quadrature_and_dropping_the_bounds_has_not(tobit):
    """Two exact means within 5 Monte Carlo errors each; the biased fit, a positive control, is 10 or more away."""
    x, bounds = tobit
    exact = _exact_means(x, bounds)
    options = {
        "likelihood": {"name": "gaussian", "scale": 0.5},
        "standardise": False,
        "test_fraction": 0,
        **{"chains": 2, "warmup": 300, "draws": 500, "seed": 1},
    }
    run = bnnzoo.sample("linear", "nuts", data=(x[:, None], bounds), censored=True, **options)
    draws = np.stack([np.ravel(run.posterior.posterior[name]) for name in ("weight", "bias")])
    errors = draws.std(1) / np.sqrt(200)
    assert np.all(np.abs(draws.mean(1) - exact) < 5 * errors)
    stand_in = np.where(np.isinf(bounds[:, 0]), bounds[:, 1], bounds[:, 0])
    wrong = _exact_means(x, np.stack([stand_in, stand_in], 1))
    assert np.abs(wrong - exact).max() > 10 * errors.max()
    scores = run.evaluate((x[:, None], bounds))
    assert scores["censored"] == pytest.approx(np.mean(np.isinf(bounds[:, 0])))
    theta = draws.T
    mean = theta[:, :1] * x + theta[:, 1:]
    expected = stats.norm.logpdf(bounds[:, 1], mean, 0.5)
    below = special.log_ndtr((bounds[:, 1] - mean) / 0.5)
    by_row = np.where(np.isinf(bounds[:, 0]), below, expected)
    np.testing.assert_allclose(scores["nll"], -np.mean(special.logsumexp(by_row, 0) - np.log(len(theta))), rtol=1e-3)
    reopened = bnnzoo.open(run.path)
    np.testing.assert_allclose(reopened.predict(x[:3, None])["mean"], mean.mean(0)[:3], rtol=1e-3, atol=1e-3)
    assert reopened.attributes["likelihood"] == "gaussian"


@pytest.mark.long
def test_an_exposure_multiplies_the_rates_of_censored_counts():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"a": rng.normal(size=6), "time": [0.5, 1.0, 2.0, 3.0, 1.0, 2.0]})
    y = pd.Series(["2", "<3", ">1", "[1,4]", "0", "5"], name="y")
    data = load((frame, y), reading=CENSORED, exposure="time")
    recipe = keywords.recipe_of(
        "linear",
        "nuts",
        data=None,
        in_memory=True,
        **{"likelihood": "poisson", "censored": True, "exposure": "time", "standardise": False, "test_fraction": 0},
    )
    problem = Problem.from_recipe(recipe, data)
    theta = np.array([0.3, -0.2], np.float32)
    order = problem.train.x[:, 0].argsort()
    rate = (np.exp(0.3 * frame["a"] - 0.2) * frame["time"]).to_numpy()
    cdf = stats.poisson.cdf
    expected = [
        stats.poisson.pmf(2, rate[0]),
        cdf(2, rate[1]),
        1 - cdf(1, rate[2]),
        cdf(4, rate[3]) - cdf(0, rate[3]),
        stats.poisson.pmf(0, rate[4]),
        stats.poisson.pmf(5, rate[5]),
    ]
    log_likelihoods = np.asarray(problem.posterior.log_likelihoods(jnp.asarray(theta)))
    np.testing.assert_allclose(log_likelihoods[order], np.log(expected)[frame["a"].argsort()], rtol=1e-4)


COUNT_CELLS: dict[str, tuple[int, float]] = {
    **{"0..2": (0, 2), "[0,2]": (0, 2), "(0,2)": (1, 1), "[0,3)": (0, 2), "(0,2]": (1, 2), "1..1.5": (1, 1)},
    **{"<=0": (0, 0), "<1": (0, 0), "<=2": (0, 2), "<2.5": (0, 2), ">=0": (0, INF), ">0": (1, INF), ">=3": (3, INF)},
}
"""Smallest and largest count of each cell."""


def _count_problem(data) -> Problem:
    options = {"likelihood": "poisson", "censored": True, "standardise": False, "test_fraction": 0}
    recipe = keywords.recipe_of("linear", "nuts", data=None, in_memory=True, **options)
    return Problem.from_recipe(recipe, data)


@pytest.mark.parametrize("door", ["text", "bounds beside a frame", "arrays"])
def test_the_probability_of_counts_includes_the_ends_that_the_cell_includes(door):
    """Zero is the end that is easily lost: the float32 numbers next to it are denormal, and XLA replaces them by 0."""
    ends = np.array(list(COUNT_CELLS.values()))
    x = np.linspace(-1, 1, len(ends))
    frame = pd.DataFrame({"a": x})
    bounds = np.stack([ends[:, 0], ends[:, 1]], 1)
    sources: dict[str, Any] = {
        "text": (frame, pd.Series(list(COUNT_CELLS), name="y")),
        "bounds beside a frame": (frame, bounds),
        "arrays": (x[:, None], bounds),
    }
    problem = _count_problem(load(sources[door], reading=CENSORED))
    order = problem.train.x[:, 0].argsort()
    theta = jnp.array([0.3, 0.1], jnp.float32)
    compiled = eqx.filter_jit(lambda posterior, theta: posterior.log_likelihoods(theta))
    log_likelihoods = np.asarray(compiled(problem.posterior, theta))
    rate = np.exp(0.3 * x + 0.1)
    upper = np.where(np.isinf(ends[:, 1]), 1.0, stats.poisson.cdf(ends[:, 1], rate))
    expected = np.log(upper - stats.poisson.cdf(ends[:, 0] - 1, rate))
    np.testing.assert_allclose(log_likelihoods[order], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("cell", "shown"), [("(1,2)", "1 and 2"), ("<0", "-inf and 0"), ("0.2..0.8", "0.2 and 0.8")])
def test_an_interval_without_a_count_is_refused_with_its_row(cell, shown):
    data = load((pd.DataFrame({"a": [0.0, 1.0]}), pd.Series(["3", cell], name="y")), reading=CENSORED)
    with pytest.raises(UsageError, match=f"row 2, target 1: no count lies strictly between {shown}; to include an end"):
        _count_problem(data)


def test_bounds_in_a_data_set_need_no_option():
    bounds = np.array([[1.5, 1.5], [-INF, 2.0], [0.5, INF]])
    data = from_arrays(np.arange(3.0), bounds, censored=True)
    problem = Problem.from_recipe(
        keywords.recipe_of("linear", "nuts", data=None, in_memory=True, test_fraction=0), data
    )
    assert isinstance(problem.network_posterior.likelihood, Censored)
    assert np.isfinite(problem.posterior.log_likelihoods(jnp.zeros(problem.posterior.layout.dim))).all()


def test_an_exposure_beside_a_censored_number_is_refused_by_the_name_of_the_likelihood():
    frame, y = pd.DataFrame({"a": [1.0, 2, 3], "time": [1.0, 2, 3]}), pd.Series(["2.5", "<3", ">1"], name="y")
    options = {"likelihood": "gaussian", "censored": True, "exposure": "time"}
    with pytest.raises(UsageError, match="--exposure time: likelihood gaussian has no rate"):
        bnnzoo.sample("linear", "nuts", data=(frame, y), **options)


def test_components_of_a_censored_mixture_are_no_linear_model():
    """The components can be permuted, as for a mixture of known targets."""
    x = np.linspace(-1, 1, 8)[:, None]
    y = np.stack([x[:, 0], x[:, 0]], 1)
    data = load((x, y), reading=CENSORED)
    options = {"likelihood": "mixture", "censored": True, "test_fraction": 0}
    recipe = keywords.recipe_of("linear", "nuts", data=None, in_memory=True, **options)
    posterior = Problem.from_recipe(recipe, data).network_posterior
    draws = np.random.default_rng(0).normal(size=(16, posterior.layout.dim)).astype(np.float32)
    assert not is_linear(posterior, draws, posterior.data.x)


@pytest.mark.slow
def test_estimators_take_bounds_and_text(tobit):
    from bnnzoo.sklearn import BayesianRegressor

    x, bounds = tobit
    options = {"model": "linear", "sampler": "nuts", "chains": 2, "warmup": 200, "draws": 200, "censored": True}
    text = [f"<{high}" if np.isinf(low) else str(high) for low, high in bounds]
    first = BayesianRegressor(**options).fit(x[:, None], bounds).predict(x[:5, None])
    table = pd.DataFrame({"x0": x})
    in_other_labels = pd.Series(text, index=np.arange(len(text))[::-1])  # rows are paired by their order
    other = BayesianRegressor(**options).fit(table, in_other_labels).predict(table[:5])
    np.testing.assert_allclose(first, other, atol=0.2)
    assert first.shape == (5,)
