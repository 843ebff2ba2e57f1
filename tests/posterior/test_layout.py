"""Names and positions of parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.errors import UsageError
from bnnzoo.models import Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.layout import Block, Layout, network_layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal


@pytest.fixture
def layout():
    return network_layout(Mlp((4,)).build((3,), 2, key=jax.random.key(0)))


def test_blocks_follow_each_other_and_cover_theta(layout):
    assert [block.name for block in layout.blocks] == [
        "layers_0_weight",
        "layers_0_bias",
        "layers_1_weight",
        "layers_1_bias",
    ]
    assert [block.shape for block in layout.blocks] == [(4, 3), (4,), (2, 4), (2,)]
    ends = [0, *(block.stop for block in layout.blocks)]
    assert [block.start for block in layout.blocks] == ends[:-1]
    assert layout.dim == ends[-1] == 4 * 3 + 4 + 2 * 4 + 2


@pytest.mark.parametrize("lead", [(), (5,), (2, 7), (2, 0)])
def test_flatten_undoes_unflatten(layout, lead):
    theta = np.random.default_rng(0).normal(size=(*lead, layout.dim)).astype(np.float32)
    values = layout.unflatten(theta)
    assert {name: value.shape for name, value in values.items()} == {b.name: (*lead, *b.shape) for b in layout.blocks}
    if not lead:
        np.testing.assert_array_equal(layout.flatten(layout.unflatten(jnp.asarray(theta))), theta)


def test_fan_in_is_the_inputs_of_a_unit(layout):
    np.testing.assert_array_equal(layout.fan_in(), [3.0] * 12 + [1.0] * 4 + [4.0] * 8 + [1.0] * 2)
    convolution = network_layout(eqx.nn.Conv2d(2, 5, 3, key=jax.random.key(0)))
    assert convolution.fan_in()[0] == 2 * 3 * 3
    assert convolution.fan_in()[-1] == 1


def test_every_position_in_theta_has_a_name(layout):
    assert layout.name_of(0) == "layers_0_weight[0, 0]"
    assert layout.name_of(11) == "layers_0_weight[3, 2]"
    assert layout.name_of(12) == "layers_0_bias[0]"
    assert layout.name_of(layout.dim - 1) == "layers_1_bias[1]"
    assert Layout((Block("scale", (), 0),)).name_of(0) == "scale"


def test_names_of_any_tree():
    tree = {"a": [jnp.zeros(2), jnp.zeros(())], "b": (jnp.zeros((1, 1)),)}
    assert [block.name for block in network_layout(tree).blocks] == ["a_0", "a_1", "b_0"]
    assert [block.name for block in network_layout(jnp.zeros(3)).blocks] == ["theta"]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"a": {"b": jnp.zeros(2)}, "a_b": jnp.zeros(2)}, "two parameters of the network have the name a_b"),
        ({"a": jnp.zeros(2, complex)}, "parameter a is complex"),
        (
            {"likelihood_scale": jnp.zeros(2)},
            "likelihood_scale is the name of a parameter of the network and of the likelihood or prior",
        ),
        ({"a/b": jnp.zeros(2)}, "a parameter has the name 'a/b', but a name must be printable"),
        ({".a": jnp.zeros(2)}, "has the name '.a'"),
        ({"a\nb": jnp.zeros(2)}, r"has the name 'a\\nb'"),
        ({"a" * 181: jnp.zeros(2)}, "a parameter has a name of 181 characters, but at most 180 are allowed"),
        ({"chain": jnp.zeros(2)}, "has the name chain, which bnnzoo needs for a dimension of the file"),
        (
            {"a": jnp.zeros((2, 2)), "a_dim_1": jnp.zeros(2)},
            "a parameter has the name a_dim_1, which bnnzoo needs for a dimension of a",
        ),
    ],
)
def test_a_network_whose_parameters_no_file_can_name_is_refused(network, message):
    with pytest.raises(UsageError, match=message):
        NetworkPosterior.of(network, Gaussian(), Normal(), np.zeros((3, 2)), np.zeros((3, 2)))


def test_only_sampled_leaves_have_a_place():
    tree = {"a": jnp.zeros(2), "count": jnp.zeros(2, int), "name": "x"}
    assert [block.name for block in network_layout(tree).blocks] == ["a"]
    assert network_layout(tree, lambda leaf: False).dim == 0


def test_likelihood_blocks_are_not_the_networks():
    layout = Layout((Block("weight", (2,), 0), Block("likelihood_scale", (), 2, "likelihood")))
    assert layout.dim == 3
    assert layout.network.dim == 2
