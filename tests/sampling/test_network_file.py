"""Chains can begin at a trained network in a file of Equinox (`init: network.eqx`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from bnnzoo import cli
from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.posterior import NetworkPosterior, passes
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.initial import network_file, positions

KEY = jax.random.key(0)
WORK = positions.StartWork(lambda _: None)


def _network(scale: float = 1.0) -> eqx.nn.MLP:
    """Return a network whose outputs are `scale` times tanh(x)."""
    network = eqx.nn.MLP(1, 1, 3, 1, activation=jax.nn.tanh, key=KEY)
    first, last = network.layers
    return eqx.tree_at(
        lambda n: (n.layers[0].weight, n.layers[0].bias, n.layers[1].weight, n.layers[1].bias),
        network,
        (jnp.full_like(first.weight, 1.0), 0 * first.bias, jnp.full_like(last.weight, scale / 3), 0 * last.bias),
    )


@pytest.fixture
def table(tmp_path) -> Path:
    x = np.random.default_rng(0).normal(size=60)
    path = tmp_path / "table.csv"
    path.write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x, np.tanh(x), strict=True)))
    return path


def _saved(path: Path, network: Any) -> Path:
    eqx.tree_serialise_leaves(path, network)
    return path


def _problem(table: Path, network: Path, **options: Any) -> Problem:
    words = {"data": str(table), "standardise": False, "model.hidden": (3,), "model.activation": "tanh"}
    words |= {"likelihood": "gaussian", "likelihood.scale": 0.1, "test_fraction": 0.0}
    return Problem.from_recipe(tiny.recipe("random-walk", "mlp", init=str(network), **words, **options))


def _starts(problem: Problem) -> np.ndarray:
    placement = place_chains("vectorized", problem.recipe.chains)
    return np.asarray(positions.initial_positions(problem, placement, given_positions=None, work=WORK, key=KEY))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_chain_begins_at_the_network_of_the_file(precision, table, tmp_path):
    network = _network()
    problem = _problem(table, _saved(tmp_path / "network.eqx", network), chains=3, precision=precision)
    thetas = _starts(problem)
    expected = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array))])
    np.testing.assert_array_equal(thetas, np.broadcast_to(expected, (3, len(expected))))


@pytest.mark.parametrize("stochastic", ["last", "layers_1_weight"])
def test_the_parameters_that_are_not_sampled_are_those_of_the_file(stochastic, table, tmp_path):
    network = _network()
    problem = _problem(table, _saved(tmp_path / "network.eqx", network), stochastic=stochastic)
    fixed = positions.fixed_values(problem, work=WORK, key=KEY)
    assert set(fixed) >= {"layers_0_weight", "layers_0_bias"}
    for name, values in fixed.items():
        np.testing.assert_array_equal(values, named_leaves(network)[name], err_msg=name)


@pytest.mark.parametrize("stochastic", ["last", "layers_1_weight"])
def test_every_chain_begins_at_the_sampled_part_of_the_file(stochastic, table, tmp_path):
    network = _network()
    problem = _problem(table, _saved(tmp_path / "network.eqx", network), chains=3, stochastic=stochastic)
    problem = problem.with_fixed(positions.fixed_values(problem, work=WORK, key=KEY))
    for name, values in problem.posterior.natural(_starts(problem)).items():
        np.testing.assert_array_equal(values, np.stack([named_leaves(network)[name]] * 3), err_msg=name)


def test_a_given_network_is_checked_in_blocks_of_rows(table, tmp_path, monkeypatch):
    problem = _problem(table, _saved(tmp_path / "network.eqx", _network()))
    data = problem.posterior.data
    rows = tuple(np.repeat(np.asarray(values), 5, 0) for values in data)
    problem = dataclasses.replace(problem, posterior=dataclasses.replace(problem.posterior, data=type(data)(*rows)))
    sizes, outputs = list[int](), NetworkPosterior.outputs

    def record(posterior: NetworkPosterior, theta: Any, x: Any) -> Any:
        sizes.append(len(x))
        return outputs(posterior, theta, x)

    monkeypatch.setattr(passes, "_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(NetworkPosterior, "outputs", record)
    _starts(problem)
    assert set(sizes) <= {passes._PROBE_ROWS, 64, 300 % 64}


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (eqx.nn.MLP(1, 1, 4, 1, key=KEY), "for the training data (expected, in this order: layers_0_weight [3, 1], "),
        (eqx.nn.MLP(1, 1, 3, 2, key=KEY), "not those of mlp for the training data"),
        ((_network(), jnp.zeros(2)), "not those of mlp for the training data"),
        (jax.tree.map(lambda a: a * jnp.nan if eqx.is_array(a) else a, _network()), "values that are not finite"),
        (_network(-1.0), "fits the training rows worse than constant outputs do"),
    ],
    ids=["width", "depth", "more", "nan", "worse"],
)
def test_another_network_is_refused(network, message, table, tmp_path):
    problem = _problem(table, _saved(tmp_path / "network.eqx", network))
    with pytest.raises(UsageError) as error:
        _starts(problem)
    assert message in str(error.value)


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"\x93NUMPY\x01\x00\xff\xff"])
def test_a_damaged_file_is_refused(content, table, tmp_path):
    path = tmp_path / "network.eqx"
    path.write_bytes(content)
    problem = _problem(table, path)
    with pytest.raises(UsageError, match="the arrays in the file are not those of mlp"):
        network_file.network_position(problem, path)


def test_pickled_objects_are_never_loaded(table, tmp_path):
    path = tmp_path / "network.eqx"
    with path.open("wb") as file:
        np.save(file, np.array([[{"a": 1}]] * 3, dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="the arrays in the file are not those of mlp"):
        network_file.network_position(_problem(table, path), path)


def test_a_missing_file_is_one_line(table, tmp_path, capsys):
    arguments = [
        "sample",
        "mlp",
        "random-walk",
        "--data",
        str(table),
        "--init",
        "none.eqx",
        "-o",
        str(tmp_path / "a.nc"),
    ]
    assert cli.run(arguments) == 2
    assert "none.eqx: --init: no such file" in capsys.readouterr().err.splitlines()[-1]
