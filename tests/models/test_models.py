"""Architectures: shapes and the names of their parameters."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.errors import UsageError
from bnnzoo.models import Autoregressive, Cnn, Linear, Mdn, Mlp, Resnet, network_checks, network_size
from bnnzoo.models.building import Architecture
from bnnzoo.posterior.layout import network_layout
from bnnzoo.posterior.likelihoods import Mixture
from bnnzoo.recipe.fields import fields_of

KEY = jax.random.key(0)


def _names(network: Any) -> dict[str, tuple[int, ...]]:
    return {block.name: block.shape for block in network_layout(network).blocks}


def test_linear_has_a_weight_and_a_bias():
    network = Linear().build((3,), 2, key=KEY)
    assert _names(network) == {"weight": (2, 3), "bias": (2,)}
    x = np.array([1.0, -2.0, 0.5], np.float32)
    np.testing.assert_allclose(network(jnp.asarray(x)), network.weight @ x + network.bias, rtol=1e-5)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4, 3)])
def test_mlp(hidden):
    network = Mlp(hidden).build((3,), 2, key=KEY)
    widths = (3, *hidden, 2)
    expected = {}
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        expected |= {f"layers_{i}_weight": (b, a), f"layers_{i}_bias": (b,)}
    assert _names(network) == expected
    assert network(jnp.zeros(3)).shape == (2,)


@pytest.mark.parametrize("model", [Mlp, Mdn, Autoregressive])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "softplus"])
def test_activations_are_between_the_layers(activation, model):
    network: Any = model((4,), activation).build((2,), 2, key=KEY)
    x = jnp.asarray([0.3, -1.2])
    first, last = network.layers
    function = jnp.tanh if activation == "tanh" else getattr(jax.nn, activation)
    np.testing.assert_allclose(network(x), last(function(first(x))), rtol=1e-6)


def _pooled(image: np.ndarray) -> np.ndarray:
    """Return means of 2 x 2 squares, and of pairs if there is one row or column; remaining pixels are left out."""
    channels, height, width = image.shape
    h, w = min(2, height), min(2, width)
    return np.array(
        [
            [
                [image[c, i * h : i * h + h, j * w : j * w + w].mean() for j in range(width // w)]
                for i in range(height // h)
            ]
            for c in range(channels)
        ]
    )


@pytest.mark.parametrize("shape", [(1, 7, 6), (2, 1, 5)])
def test_cnn_is_its_layers_one_after_the_other(shape):
    network: Any = Cnn((2, 3), hidden=(4,), activation="relu").build(shape, 5, key=KEY)
    image = np.asarray(jax.random.normal(KEY, shape))
    result = network(jnp.asarray(image))
    for layer in network.convolutions:
        image = _pooled(np.maximum(layer(jnp.asarray(image)), 0))
    first, last = network.dense.layers
    hidden = np.maximum(first.weight @ image.ravel() + first.bias, 0)
    np.testing.assert_allclose(result, last.weight @ hidden + last.bias, rtol=1e-4, atol=1e-6)


def _normed(image: np.ndarray) -> np.ndarray:
    """Return two groups of channels, each with mean 0 and variance 1, followed by relu."""
    groups = image.reshape(2, -1)
    centred = groups - groups.mean(1, keepdims=True)
    return np.maximum(centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5), 0).reshape(image.shape)


def test_resnet_is_its_layers_one_after_the_other():
    network: Any = Resnet((4, 8), groups=2, activation="relu").build((1, 7, 6), 5, key=KEY)
    image = jax.random.normal(KEY, (1, 7, 6))
    x = np.asarray(network.stem(image))
    for number, stage in enumerate(network.stages):
        x = _pooled(x) if number else x
        for block in stage:
            inner = x
            for layer in block.convolutions:
                inner = np.asarray(layer(jnp.asarray(_normed(inner))))
            x = inner + (x if block.skip is None else np.asarray(block.skip(jnp.asarray(x))))
    expected = network.last.weight @ _normed(x).mean((1, 2)) + network.last.bias
    np.testing.assert_allclose(network(image), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Linear(), (3,)),
        (Mlp((3, 3)), (3,)),
        (Mdn((3, 3)), (3,)),
        (Cnn((2, 2), hidden=(3, 3)), (2, 4, 4)),
        (Resnet((4, 8), blocks=2, groups=2), (2, 4, 4)),
        (Autoregressive((3, 3)), (3,)),
    ],
)
def test_every_array_of_a_network_is_drawn_by_itself(model, shape):
    """With one key two arrays would be equal up to a factor, which the ratio of the first two numbers shows."""
    arrays = [np.ravel(leaf) for leaf in jax.tree.leaves(model.build(shape, 3, key=KEY)) if leaf.size > 1]
    ratios = np.sort([a[0] / a[1] for a in arrays])
    assert np.diff(ratios).min() > 1e-4


def test_mdn_brings_its_mixture():
    model = Mdn((6,), components=3)
    likelihood = model.own_likelihood()
    assert likelihood == Mixture(3)
    network = model.build((2,), likelihood.num_outputs(1), key=KEY)
    assert _names(network)["layers_1_weight"] == (9, 6)
    assert Mdn.default_likelihood("regression") == "mixture"
    with pytest.raises(UsageError, match="class labels"):
        Mdn.default_likelihood("classification")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 5), (2, 1, 1)])
def test_cnn_takes_images_of_any_size(shape):
    model = Cnn((2, 3), hidden=(4,))
    network: Any = model.build(shape, 5, key=KEY)
    image = jax.random.normal(KEY, shape)
    assert network(image).shape == (5,)
    assert np.isfinite(network(image)).all()
    names = _names(network)
    assert names["convolutions_0_weight"] == (2, shape[0], 3, 3)
    assert names["convolutions_1_weight"] == (3, 2, 3, 3)
    pooled = [max(1, side // 4) if side != 3 else 1 for side in shape[1:]]
    assert names["dense_layers_0_weight"] == (4, 3 * pooled[0] * pooled[1])
    assert set(names) == {
        f"{layer}_{kind}"
        for layer in ("convolutions_0", "convolutions_1", "dense_layers_0", "dense_layers_1")
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 5), (2, 1, 1)])
def test_resnet_takes_images_of_any_size(shape):
    model = Resnet((4, 8), blocks=2, groups=2)
    network: Any = model.build(shape, 5, key=KEY)
    image = jax.random.normal(KEY, shape)
    assert network(image).shape == (5,)
    assert np.isfinite(network(image)).all()
    features, last = model.split(network)
    np.testing.assert_array_equal(last(features(image)), network(image))
    names = _names(network)
    assert names["stem_weight"] == (4, shape[0], 3, 3)
    assert names["stages_1_0_skip_weight"] == (8, 4, 1, 1)
    assert names["last_weight"] == (5, 8)
    assert "stages_1_1_skip_weight" not in names
    assert not [name for name in names if "norm" in name]


def test_a_residual_block_without_weights_is_the_identity():
    block = Resnet((4,), groups=2).build((1, 6, 6), 3, key=KEY).stages[0][0]
    image = jax.random.normal(KEY, (4, 6, 6))
    nothing = jax.tree.map(lambda a: 0 * a if isinstance(a, jax.Array) else a, block)
    np.testing.assert_array_equal(nothing(image), image)
    assert np.abs(block(image) - image).max() > 1e-3


def test_resnet_sees_one_image_at_a_time():
    """The norm uses the groups of one image: each has mean 0 and variance 1."""
    network: Any = Resnet((4, 8), groups=2).build((1, 8, 8), 3, key=KEY)
    normed = np.asarray(network.norm(3 * jax.random.normal(KEY, (8, 4, 4)) + 1)).reshape(2, -1)
    np.testing.assert_allclose(normed.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(normed.std(1), 1, atol=1e-3)


def test_cnn_arranges_channels():
    assert Resnet().arrange(np.zeros((5, 8, 6))).shape == (5, 1, 8, 6)
    assert Cnn().arrange(np.zeros((5, 8, 6))).shape == (5, 1, 8, 6)
    assert Cnn().arrange(np.zeros((5, 3, 8, 6))).shape == (5, 3, 8, 6)
    with pytest.raises(UsageError, match="model cnn: needs images"):
        Cnn().arrange(np.zeros((5, 8)))
    assert Mlp().arrange(np.zeros((5, 8, 6))).shape == (5, 48)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mlp((0,)), "every width must be >= 1"),
        (lambda: Mdn((3, -1)), "every width must be >= 1"),
        (lambda: Cnn(()), "every width must be >= 1"),
        (lambda: Cnn(kernel=2), "must be odd"),
        (lambda: Cnn((2,), hidden=(0,)), "every width must be >= 1"),
        (lambda: Cnn((0,)), "every width must be >= 1"),
        (lambda: Resnet((4, 6)), "a multiple of groups=4"),
        (lambda: Resnet(()), "a multiple of groups=4"),
        (lambda: Autoregressive((3, 0)), "every width must be >= 1"),
    ],
)
def test_a_model_that_builds_no_network_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("built_in", "precision"), [("float32", "float32"), ("float64", "float64"), ("float32", "float64")]
)
@pytest.mark.parametrize("model", [Cnn((2,), hidden=(3,)), Resnet((2,), groups=2), Mlp((3,))])
def test_networks_are_checked_in_their_own_precision(model, built_in, precision):
    """Convolutions require inputs of their own precision, and a network may have been built before the run."""
    shape = (3,) if isinstance(model, Mlp) else (1, 8, 8)
    architecture = Architecture.from_model(model, shape, 2)
    with jax.enable_x64(built_in == "float64"):
        network = architecture.build(key=KEY)
    with jax.enable_x64(precision == "float64"):
        network_checks.check(model, network, architecture, "gaussian")


def test_a_network_that_no_memory_holds_is_refused_before_it_is_made(monkeypatch):
    """Three times four weights and four biases of four bytes each are 64."""
    for pages, refused in ((64, False), (63, True)):
        monkeypatch.setattr(network_size.os, "sysconf", lambda name, n=pages: n if name == "SC_PHYS_PAGES" else 1)
        with pytest.raises(UsageError, match="model linear: its parameters need") if refused else nullcontext():
            network_size.check("linear", lambda: Linear().build((3,), 4, key=KEY))


def test_an_autoregressive_network_has_as_many_outputs_for_each_column():
    with pytest.raises(UsageError, match=r"a multiple of the number of columns, 3 \(got 7\)"):
        Autoregressive().build((3,), 7, key=KEY)


def test_the_key_decides_the_weights():
    first, other, same = (Mlp((4,)).build((2,), 1, key=jax.random.key(i)) for i in (0, 1, 0))
    assert not np.array_equal(first.layers[0].weight, other.layers[0].weight)
    np.testing.assert_array_equal(first.layers[0].weight, same.layers[0].weight)


def test_the_only_word_for_the_widths_is_auto():
    assert Mlp(hidden="auto").widths == (16,)
    with pytest.raises(ValueError, match=r"hidden: must be auto, or a list of widths \(got 'foo'\)"):
        Mlp(hidden="foo")  # type: ignore[arg-type]
    accepts = next(field.accepts for field in fields_of(Mlp) if field.name == "hidden")
    with pytest.raises(
        ValueError, match=r"must be auto, or a list in which each entry must be an integer \(got 'foo'\)"
    ):
        accepts.convert("foo")


@pytest.mark.parametrize("hidden", [(5,), (7, 3)])
def test_outputs_of_many_rows_are_those_of_single_rows(hidden):
    """Rows take a faster path than a single row, so both must compute the same network."""
    network = Mlp(hidden, "tanh").build((4,), 2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (6, 4))
    np.testing.assert_allclose(network.outputs_of_rows(x).T, jnp.stack([network(row) for row in x]), atol=1e-6)
    features = jnp.stack([network.features(row) for row in x])
    np.testing.assert_allclose(network.features_of_rows(x).T, features, atol=1e-6)
