"""A user's own network in Python: sampled, used for predictions, reopened; and objects of registered classes."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jaxtyping import Array

import bnnzoo
from bnnzoo.errors import UsageError
from bnnzoo.models.own import Own

SHORT = {"warmup": 60, "draws": 40, "chains": 2, "start_steps": 250, "likelihood": "gaussian", "seed": 2}


class Net(eqx.Module):
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __call__(self, x: Array) -> Array:
        return self.last(jnp.tanh(self.hidden(x)))


def net(outputs: int = 1) -> Net:
    first, second = jax.random.split(jax.random.key(0))
    return Net(eqx.nn.Linear(2, 6, key=first), eqx.nn.Linear(6, outputs, key=second))


@pytest.fixture(scope="module")
def data():
    x = np.random.default_rng(0).normal(size=(60, 2))
    return x, np.sin(x @ [1.0, 2.0])


@pytest.fixture(scope="module")
def path(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "run.nc"
    bnnzoo.sample(net(), "mala", data=data, out=out, **SHORT)
    return out


@pytest.mark.long
def test_the_file_of_an_own_network_predicts_only_with_that_network(data, path):
    run = bnnzoo.open(path, model=net())
    assert run.attributes["model"] == "own:net"
    assert next(iter(run.posterior["posterior"].data_vars)).startswith("hidden")
    frame = run.predict(data[0][:3])
    assert np.isfinite(frame.to_numpy()).all()
    assert run.evaluate(save=False)["rmse"] > 0
    assert run.diagnose()["rhat"] > 0
    with pytest.raises(
        UsageError, match=r"made in Python; open the run in Python with bnnzoo\.open\(path, model=net\)"
    ):
        bnnzoo.open(path).predict(data[0][:3])


def test_chains_start_apart_and_biases_stay():
    model = Own(net())
    first, two = (model.build((2,), 1, key=jax.random.key(seed)) for seed in (0, 1))
    assert not np.allclose(first.hidden.weight, two.hidden.weight)
    np.testing.assert_array_equal(first.hidden.bias, net().hidden.bias)


def test_new_weights_have_the_law_of_those_that_were_given():
    """Each matrix keeps its mean and standard deviation, and all matrices are drawn independently."""
    first, two = eqx.nn.Linear(50, 40, key=jax.random.key(0)), eqx.nn.Linear(50, 40, key=jax.random.key(1))
    moments = ((0.3, 0.02), (-2.0, 5.0))
    networks = [
        eqx.tree_at(lambda n: n.weight, n, (n.weight - n.weight.mean()) / n.weight.std() * sd + mean)
        for n, (mean, sd) in zip((first, two), moments, strict=True)
    ]
    model = Own(eqx.nn.Sequential([networks[0], eqx.nn.Lambda(lambda x: x[:1].repeat(50)), networks[1]]))
    network = model.build((50,), 40, key=jax.random.key(2))
    scaled = []
    for layer, (mean, sd) in zip((network[0], network[2]), moments, strict=True):
        scaled.append((np.asarray(layer.weight, float) - mean) / sd)
        assert abs(scaled[-1].mean()) < 5 / 2000**0.5
        assert abs(scaled[-1].std() - 1) < 5 / 4000**0.5
    assert abs(np.corrcoef(scaled[0].ravel(), scaled[1].ravel())[0, 1]) < 5 / 2000**0.5


def test_a_network_of_another_shape_is_refused(data):
    with pytest.raises(UsageError, match=r"Net: returns shape \[3\] for one input, but the likelihood needs \[1\]"):
        bnnzoo.sample(net(3), "mala", data=data, **SHORT)
    with pytest.raises(UsageError, match=r"Net: cannot take one input of shape \[3\]"):
        bnnzoo.sample(net(), "mala", data=(np.ones((9, 3)), np.arange(9.0)), **SHORT)


class SinglePrecisionSum(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x: Array) -> Array:
        total, _ = jax.lax.scan(lambda total, value: (total + value, None), jnp.float32(0), self.layer(x))
        return total[None]


def test_a_network_for_another_precision_than_that_of_the_run_is_refused(data):
    network = SinglePrecisionSum(net().hidden)
    with pytest.raises(UsageError, match=r"Own: its network cannot take one float64 input of shape \[2\]: TypeError"):
        bnnzoo.sample(network, "mala", data=data, precision="float64", **SHORT)


def trained(x: np.ndarray, y: np.ndarray) -> Net:
    """Return a network trained on the rows by least squares."""
    loss = lambda n: jnp.mean((jax.vmap(n)(x)[:, 0] - y) ** 2)  # noqa: E731
    network, gradient = net(), eqx.filter_jit(eqx.filter_grad(loss))
    for _ in range(400):
        network = eqx.apply_updates(network, jax.tree.map(lambda g: -0.1 * g, gradient(network)))
    return network


GIVEN = SHORT | {"init": "given", "standardise": False, "test_fraction": 0}


CENTRES = np.linspace(-2, 2, 5)
"""A constant array of 64 bits, as users write it."""


class Bumps(eqx.Module):
    heights: Array

    def __call__(self, x: Array) -> Array:
        return (self.heights @ jnp.exp(-((x.sum() - CENTRES) ** 2)))[None]


@pytest.mark.long
def test_a_network_with_a_constant_array_is_sampled_in_either_precision_after_the_other(data):
    options = {"warmup": 2, "draws": 2, "chains": 1, "init": "prior", "likelihood": "gaussian"}

    def run(precision: str) -> tuple[np.ndarray, np.ndarray]:
        result = bnnzoo.sample(Bumps(jnp.zeros(5)), "random-walk", data=data, precision=precision, **options)
        return result.posterior["posterior"]["heights"].values, result.functions(data[0][:3])

    runs = [run(precision) for precision in ("float64", "float32", "float64")]
    assert [draws.dtype for draws, _ in runs] == ["float64", "float32", "float64"]
    for first, again in zip(runs[0], runs[2], strict=True):
        np.testing.assert_array_equal(first, again)
    in_single_precision, draws = runs[1][1], runs[1][0].astype(float)
    assert np.isfinite(in_single_precision).all()
    assert np.isfinite(draws).all()


@pytest.mark.long
def test_chains_begin_at_a_given_network(data):
    """Without warm-up and with steps of almost no length, the draws are the given arrays."""
    network = trained(*data)
    options = GIVEN | {"warmup": 0, "draws": 1}
    run = bnnzoo.sample(network, {"name": "random-walk", "step_size": 1e-8}, data=data, **options)
    draws = run.posterior["posterior"]
    for name, expected in (("hidden_weight", network.hidden.weight), ("last_bias", network.last.bias)):
        for chain in range(2):
            np.testing.assert_allclose(draws[name][chain, 0], expected, atol=1e-6)
    assert np.mean((run.predict(data[0])["mean"] - data[1]) ** 2) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("stochastic", ["last", "identified"])
def test_the_unsampled_part_of_a_given_network_is_kept(data, stochastic):
    network = trained(*data)
    run = bnnzoo.sample(network, "mala", data=data, stochastic=stochastic, **GIVEN)
    fixed = run.posterior["constant_data"]
    if stochastic == "last":
        np.testing.assert_array_equal(fixed["fixed_hidden_weight"], network.hidden.weight)
    assert np.mean((run.predict(data[0])["mean"] - data[1]) ** 2) < 0.1


def test_a_given_network_in_other_units_is_refused(data):
    x, y = data
    with pytest.raises(UsageError, match=r"worse than constant outputs do .* use standardise=False"):
        bnnzoo.sample(trained(x, y), "mala", data=(x, 100 * y + 1000), **GIVEN)
    classifier = net(2)
    unlikely = np.asarray(jax.vmap(classifier)(x)).argmin(1)
    with pytest.raises(UsageError, match="worse than constant outputs"):
        bnnzoo.sample(classifier, "mala", data=(x, unlikely), **GIVEN | {"likelihood": "categorical"})


def test_only_an_own_network_can_be_given(data):
    with pytest.raises(UsageError, match=r'init="given": requires an Equinox module of your own'):
        bnnzoo.sample("mlp", "mala", data=data, init="given")


@pytest.mark.long
def test_an_object_of_a_registered_class_is_its_name_and_fields(data, tmp_path):
    by_object = bnnzoo.sample("linear", bnnzoo.Mala(step_size=0.05), data=data, **SHORT)
    by_words = bnnzoo.sample("linear", {"name": "mala", "step_size": 0.05}, data=data, **SHORT)
    for run in (by_object, by_words):
        assert run.attributes["sampler"] == "mala"
    first, second = (
        {str(n): v.values for n, v in run.posterior["posterior"].data_vars.items()} for run in (by_object, by_words)
    )
    tiny.assert_same_bits(first, second)


def test_a_run_has_a_readable_repr(path):
    run = bnnzoo.open(path)
    assert repr(run) == f"<Run own:net by mala: 2 chains of 40 draws, {path}>"
    assert "<th>verdict</th>" in run._repr_html_()


def test_a_network_that_returns_extra_values_is_refused(data):
    class Pair(eqx.Module):
        inner: Net

        def __call__(self, x: Array) -> tuple[Array, float]:
            return self.inner(x), 1.0

    with pytest.raises(UsageError, match="Pair: returns a tuple for one input; return only the array of outputs"):
        bnnzoo.sample(Pair(net()), "mala", data=data, **SHORT)


@pytest.mark.long
def test_runs_of_an_own_network_are_joined(data, tmp_path):
    runs = [
        bnnzoo.sample(net(), "random-walk", data=data, out=tmp_path / f"{s}.nc", **SHORT | {"seed": s}) for s in (0, 1)
    ]
    both = bnnzoo.concat(runs)
    assert len(both.predict(data[0])) == 60
    assert both.posterior["posterior"].sizes["chain"] == 2 * runs[0].posterior["posterior"].sizes["chain"]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            eqx.nn.BatchNorm(8, axis_name="batch", mode="batch"),
            "so the outputs of a row depend on other rows; use",
        ),
        (eqx.nn.Dropout(0.1), r"use equinox\.nn\.inference_mode\(network\) instead"),
    ],
)
def test_a_layer_whose_outputs_depend_on_more_than_a_row_is_refused_in_one_sentence(layer, message):
    first, last = jax.random.split(jax.random.key(0))
    layers = [eqx.nn.Linear(2, 8, key=first), layer, eqx.nn.Linear(8, 1, key=last)]
    data = (np.zeros((20, 2)) + np.arange(20)[:, None], np.arange(20.0))
    with pytest.raises(bnnzoo.UsageError, match=message) as caught:
        bnnzoo.sample(eqx.nn.Sequential(layers), "nuts", data=data, likelihood="gaussian", warmup=2, draws=2)
    assert len(str(caught.value).splitlines()) == 1
