"""Partly stochastic networks: sampled and fixed parameters, and their record in the file."""

from __future__ import annotations

import functools
import signal
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import tiny
from scipy import stats

import bnnzoo
from bnnzoo import assembly, cli
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.models import Cnn, Linear, Mdn, Mlp
from bnnzoo.posterior import passes
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.posterior.stochastic import sampled_names
from bnnzoo.recipe import read_layer, recipe_from, resolve
from bnnzoo.sampling.initial import positions
from bnnzoo.sampling.loop.loop import Keys

NOISE = 0.3
NAMES = {
    "linear": ["weight", "bias"],
    "mlp": ["layers_1_weight", "layers_1_bias", "likelihood_scale"],
    "mdn": ["layers_1_weight", "layers_1_bias"],
    "cnn": ["dense_layers_1_weight", "dense_layers_1_bias"],
}
"""The last layer's blocks, and a learned scale, which is always sampled."""
OPTIONS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mlp": {"model.hidden": [5], "likelihood.scale": "learned"},
    "mdn": {"model.hidden": [5], "likelihood": None, "likelihood.scale": None},
    "cnn": {"data": "digits", "model.channels": [2], "model.hidden": [5], "likelihood": None, "likelihood.scale": None},
}
EACH = pytest.mark.parametrize("model", NAMES)


def problem(model: str, stochastic: str = "last") -> assembly.Problem:
    return assembly.Problem.from_recipe(tiny.recipe("mala", model, stochastic=stochastic, **OPTIONS[model]))


# ---- what is sampled -----------------------------------------------------------------------------


@EACH
def test_the_last_layer_is_the_last_affine_map(model):
    posterior = problem(model).posterior
    assert [block.name for block in posterior.layout.blocks] == NAMES[model]
    everything = [block.name for block in problem(model, "all").posterior.layout.network.blocks]
    assert list(named_leaves(posterior.network)) == [name for name in everything if name not in NAMES[model]]


@pytest.mark.parametrize(
    ("stochastic", "expected"),
    [
        ("all", {"layers_0_weight", "layers_0_bias", "layers_1_weight", "layers_1_bias"}),
        ("layers_0_weight", {"layers_0_weight"}),
        ("layers_[01]_bias", {"layers_0_bias", "layers_1_bias"}),
        ("last, layers_0_bias", {"layers_0_bias", "layers_1_weight", "layers_1_bias"}),
        ("*_weight,layers_1_*", {"layers_0_weight", "layers_1_weight", "layers_1_bias"}),
    ],
)
def test_patterns(stochastic, expected):
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(0))
    assert sampled_names(stochastic, network, network.layers[-1]) == expected


def test_without_a_split_the_last_layer_is_the_module_of_the_last_parameter():
    network = eqx.nn.MLP(2, 1, 4, 2, key=jax.random.key(0))
    assert sampled_names("last", network, None) == {"layers_2_weight", "layers_2_bias"}
    assert Linear().split(network) is None


@pytest.mark.parametrize("stochastic", ["layers_9_*", "last,LAYERS_0_WEIGHT", "", "likelihood_scale"])
def test_a_pattern_without_a_match_is_refused(stochastic, tmp_path, capsys):
    out = tmp_path / "run.nc"
    assert cli.run(["sample", "mlp", "mala", "--stochastic", stochastic, "-o", str(out), "--quiet"]) == 2
    word = stochastic.split(",")[-1]
    advice = "use one of layers_0_weight, layers_0_bias, layers_1_weight, layers_1_bias, or all or last"
    assert capsys.readouterr().err == f"bnnzoo: --stochastic: no parameter matches {word!r}; {advice}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_message_names_the_place_in_the_recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: mlp\nsampler: mala\nstochastic: layer_*\n")
    recipe = resolve(None, None, [read_layer(str(path))])
    with pytest.raises(UsageError, match=r"mine\.yaml:3:1: no parameter matches 'layer_\*'; use one of layers_0"):
        assembly.Problem.from_recipe(recipe)


# ---- the features of the fixed part --------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "stochastic", "rest"),
    [("mlp", "last", []), ("mlp", "layers_1_weight", ["bias"]), ("mdn", "last", []), ("cnn", "last", [])],
)
def test_the_posterior_given_the_features_is_that_of_the_network(model, stochastic, rest, monkeypatch):
    """As many features as hidden units; the log density of the whole network at the same weights, to rounding."""
    problem_whole = problem(model, stochastic)
    fixed = named_leaves(problem_whole.posterior.network)
    reduced = problem_whole.with_fixed(fixed).posterior
    assert reduced.data.x.shape == (problem_whole.posterior.num_data, 5)
    assert reduced.data.x.dtype == np.float32
    assert reduced.layout == problem_whole.posterior.layout
    assert list(named_leaves(reduced.network)) == rest
    thetas = jax.vmap(lambda key: problem_whole.posterior.start(key=key))(jax.random.split(jax.random.key(3), 6))
    result, expected = (jax.jit(jax.vmap(p.log_density))(thetas) for p in (reduced, problem_whole.posterior))
    np.testing.assert_allclose(result, expected, rtol=2e-5)
    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", 1)
    blocked = problem_whole.with_fixed(fixed).posterior
    np.testing.assert_allclose(blocked.data.x, reduced.data.x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stochastic", ["last", "layers_0_*"])
def test_other_fixed_values_compile_nothing_new(stochastic):
    first = problem("mlp", stochastic)
    fixed = named_leaves(first.posterior.network)
    traced = []

    @eqx.filter_jit
    def density(posterior, theta):
        traced.append(theta)
        return posterior.log_density(theta)

    theta = first.posterior.start(key=jax.random.key(0))
    values = [float(density(first.with_fixed({n: c * v for n, v in fixed.items()}).posterior, theta)) for c in (1, 2)]
    assert values[0] != values[1]
    assert len(traced) == 1


@pytest.mark.parametrize("model", [Mlp((4,)), Mdn((4,)), Cnn((2,), hidden=(4,))])
def test_a_split_is_the_network(model):
    shape = (1, 6, 6) if isinstance(model, Cnn) else (3,)
    network: Any = model.build(shape, 2, key=jax.random.key(0))
    features, last = model.split(network)
    x = jax.random.normal(jax.random.key(1), shape)
    np.testing.assert_allclose(last(features(x)), network(x), rtol=1e-6)


def test_a_position_contains_only_sampled_parameters():
    posterior = problem("mlp").posterior
    network = Mlp((5,)).build((10,), 1, key=jax.random.key(7))
    theta = posterior.position(network)
    np.testing.assert_array_equal(theta[:5], np.asarray(network.layers[1].weight)[0])
    assert theta.shape == (7,)


# ---- through files -------------------------------------------------------------------------------

PATTERNS = ("last", "layers_0_bias,layers_1_weight")


def _options(stochastic: str, path: Any, **more: Any) -> dict[str, Any]:
    own = {"data": str(path), "stochastic": stochastic, "init": "map", "model.hidden": [3], "likelihood.scale": NOISE}
    return tiny.options("random-walk", **{**own, "chains": 2, **more})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=x, y=np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=60))
    return path


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Yield a run from Python for each pattern, made at first use."""

    @functools.cache
    def make(pattern: str) -> bnnzoo.Run:
        out = tmp_path_factory.mktemp("run") / "run.nc"
        return bnnzoo.sample("mlp", "random-walk", out=out, **_options(pattern, data))

    return make


@pytest.fixture(params=PATTERNS)
def run(request, runs):
    return runs(request.param)


def _leaves(run: bnnzoo.Run) -> dict[str, np.ndarray]:
    """Return the four leaves of the perceptron for every chain and draw, from the file."""
    tree = run.posterior
    result = {str(n): v.values.astype(float) for n, v in tree["posterior"].data_vars.items()}
    lead = next(iter(result.values())).shape[:2]
    for name, variable in tree["constant_data"].data_vars.items():
        if name.startswith("fixed_"):
            leaf = variable.values.astype(float)
            result[name.removeprefix("fixed_")] = np.broadcast_to(leaf, (*lead, *leaf.shape))
    return result


def _by_hand(run: bnnzoo.Run, x: np.ndarray) -> np.ndarray:
    """Return predictions [chain, draw, row] in the network's units."""
    constant, leaves = run.posterior["constant_data"], _leaves(run)
    inputs = (x - constant["x_mean"].values) / constant["x_sd"].values
    hidden = np.tanh(inputs @ np.swapaxes(leaves["layers_0_weight"], -1, -2) + leaves["layers_0_bias"][:, :, None])
    return np.einsum("cdrh,cdh->cdr", hidden, leaves["layers_1_weight"][:, :, 0]) + leaves["layers_1_bias"]


def test_the_file_holds_every_leaf_once(run):
    sampled, constant = run.posterior["posterior"], run.posterior["constant_data"]
    fixed = {str(name).removeprefix("fixed_") for name in constant.data_vars if str(name).startswith("fixed_")}
    assert fixed | set(sampled.data_vars) == {f"layers_{i}_{kind}" for i in (0, 1) for kind in ("weight", "bias")}
    assert not fixed & set(sampled.data_vars)
    recipe = recipe_from(run.attributes["recipe"])
    assert recipe.stochastic in PATTERNS
    if recipe.stochastic == "last":
        assert fixed == {"layers_0_weight", "layers_0_bias"}
    shapes = {"layers_0_weight": (3, 2), "layers_0_bias": (3,), "layers_1_weight": (1, 3), "layers_1_bias": (1,)}
    untrained = named_leaves(Mlp((3,)).build((2,), 1, key=jax.random.key(0)))
    for name in fixed:
        values = constant[f"fixed_{name}"].values
        assert values.shape == shapes[name]
        assert (values != untrained[name]).all()


def test_predictions_are_those_of_fixed_and_sampled_leaves(run):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 2)).astype(np.float32)
    reopened = bnnzoo.open(run.path)
    curves = _by_hand(reopened, x)
    np.testing.assert_allclose(reopened.functions(x)[..., 0], curves, rtol=1e-3, atol=1e-5)
    mean, sd = (float(reopened.posterior["constant_data"][name].values[0]) for name in ("y_mean", "y_sd"))
    np.testing.assert_allclose(reopened.predict(x)["mean"], mean + sd * curves.mean((0, 1)), rtol=1e-3, atol=1e-5)


def test_the_scores_are_those_of_fixed_and_sampled_leaves(runs):
    run = runs("last")
    constant = run.posterior["constant_data"]
    mean, sd = (constant[name].values for name in ("y_mean", "y_sd"))
    predicted = mean + sd * _by_hand(run, constant["x_test"].values).mean((0, 1))
    error = predicted - constant["y_test"].values[:, 0]
    np.testing.assert_allclose(run.evaluate()["rmse"], np.sqrt(np.mean(error**2)), rtol=1e-4)


def test_every_chain_was_sampled_with_the_fixed_part_of_the_file(run):
    """lp in the file against the density by hand, for each chain and draw."""
    tree, leaves = run.posterior, _leaves(run)
    constant = tree["constant_data"]
    targets = (tree["observed_data"]["y"].values - constant["y_mean"].values) / constant["y_sd"].values
    fit = stats.norm.logpdf(targets, _by_hand(run, constant["x"].values), NOISE).sum(-1)
    sampled = [leaves[str(name)].reshape(*fit.shape, -1) for name in tree["posterior"].data_vars]
    expected = fit + stats.norm.logpdf(np.concatenate(sampled, -1)).sum(-1)
    np.testing.assert_allclose(tree["sample_stats"]["lp"].values, expected, rtol=1e-4, atol=1e-3)
    first = sampled[0][:, 0]
    assert (first[0] != first[1]).any()


@pytest.mark.long
def test_an_interrupted_run_resumes_to_the_same_bits_without_training(run, data, tmp_path, monkeypatch):
    reports: list[Any] = []
    pattern = recipe_from(run.attributes["recipe"]).stochastic
    recipe = resolve("mlp", "random-walk", [], _options(pattern, data))

    def stop() -> int:
        return signal.SIGINT if reports and reports[-1].phase == "sampling" else 0

    with pytest.raises(InterruptedRunError, match=r"continue: bnnzoo\.resume\("):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc", observer=reports.append, stop=stop)
    notes = [p.note for p in reports if p.note.startswith("training")]
    assert notes[0] == "training the parameters that are not sampled"
    assert notes[-1] == "training the initial position of each chain"
    assert bnnzoo.open(tmp_path / "run.nc").functions(np.zeros((1, 2), np.float32)).shape[0] == 2

    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is trained again")

    monkeypatch.setattr(positions, "train", train)
    resumed = resuming.resume(tmp_path / "run.nc")
    for group in ("posterior", "sample_stats", "constant_data"):
        result, expected = ({str(n): v.values for n, v in r.posterior[group].data_vars.items()} for r in (resumed, run))
        tiny.assert_same_bits(result, expected)


def test_the_fixed_part_depends_on_neither_the_chains_nor_what_is_sampled(runs, data):
    recipe = resolve("mlp", "random-walk", [], _options("last", data, chains=3))
    problem, work = assembly.Problem.from_recipe(recipe), positions.StartWork(lambda _: None)
    alone = positions.fixed_values(problem, work=work, key=Keys.from_seed(0).fixed)
    assert set(alone) == {"layers_0_weight", "layers_0_bias"}
    for pattern in PATTERNS:
        result = runs(pattern).posterior["constant_data"]["fixed_layers_0_weight"].values
        np.testing.assert_array_equal(result, alone["layers_0_weight"])


def test_an_interrupt_while_the_fixed_part_is_trained_writes_nothing(data, tmp_path):
    recipe = resolve("mlp", "random-walk", [], _options("last", data))
    with pytest.raises(
        InterruptedRunError, match="stopped while training the parameters that are not sampled"
    ) as caught:
        entrances.run_recipe(recipe, out=tmp_path / "run.nc", stop=lambda: signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert list(tmp_path.iterdir()) == []


# ---- the closed form -----------------------------------------------------------------------------

ROWS, INPUTS, HIDDEN, CHAINS = 200, 20, 8, 64
STATISTICS = (HIDDEN + 1) * (HIDDEN + 4) // 2
THRESHOLD = stats.t(CHAINS - 1).isf(1e-6 / STATISTICS / 2)
"""Limit of the largest t statistic with one false alarm in a million."""


def _closed_form(features: np.ndarray, targets: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the last layer's weights and bias under the prior N(0, I)."""
    design = np.column_stack([features, np.ones(len(features))])
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.eye(HIDDEN + 1))
    return covariance @ design.T @ targets / noise**2, covariance


def _largest(theta: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Return the largest t statistic over the chains' averages of all means and (co)variances."""
    rows, columns = np.triu_indices(HIDDEN + 1)
    centred = theta - mean
    products = (centred[..., rows] * centred[..., columns]).mean(1)
    averages = np.concatenate([centred.mean(1), products - covariance[rows, columns]], 1)
    assert averages.shape == (CHAINS, STATISTICS)
    return float(np.abs(averages.mean(0) / (averages.std(0, ddof=1) / CHAINS**0.5)).max())


@pytest.mark.slow
def test_the_last_layer_is_a_linear_regression_on_the_features(tmp_path):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, INPUTS))
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=np.tanh(x[:, 0] - x[:, 1]) + 0.5 * x[:, 2] + NOISE * rng.normal(size=ROWS))
    more = {"init": "prior", "standardise": False, "test_fraction": 0.0, "model.hidden": [HIDDEN], "seed": 20}
    run = entrances.run_recipe(
        tiny.recipe(
            "mala", "mlp", data=str(path), stochastic="last", chains=CHAINS, warmup=400, draws=500,
            **{"likelihood.scale": NOISE, **more},
        ),
        out=tmp_path / "run.nc",
    )  # fmt: skip
    group, constant = run.posterior["posterior"], run.posterior["constant_data"]
    assert set(group.data_vars) == {"layers_1_weight", "layers_1_bias"}
    theta = np.concatenate([group["layers_1_weight"].values[:, :, 0], group["layers_1_bias"].values], 2).astype(float)
    weight, bias = (constant[f"fixed_layers_0_{kind}"].values.astype(float) for kind in ("weight", "bias"))
    features = np.tanh(constant["x"].values @ weight.T + bias)
    targets = run.posterior["observed_data"]["y"].values.astype(float)
    mean, covariance = _closed_form(features, targets, NOISE)
    assert _largest(theta, mean, covariance) < THRESHOLD
    # Positive controls: a wrong noise scale, no correlations, and slightly wrong features are detected.
    assert _largest(theta, *_closed_form(features, targets, 1.1 * NOISE)) > THRESHOLD
    assert _largest(theta, mean, np.diag(np.diag(covariance))) > THRESHOLD
    assert _largest(theta, *_closed_form(np.tanh(1.1 * constant["x"].values @ weight.T), targets, NOISE)) > THRESHOLD
