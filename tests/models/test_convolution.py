"""Convolution as a matrix product on a CPU: values, gradients, and the devices on which it is used."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bnnzoo.models.convolution import convolve
from bnnzoo.posterior.passes import widest


def _pair(channels: int, kernel: int, *shape: int) -> tuple[eqx.nn.Conv2d, jax.Array]:
    layer = eqx.nn.Conv2d(channels, 4, kernel, padding="SAME", key=jax.random.key(0))
    return layer, jax.random.normal(jax.random.key(1), (*shape, channels, 7, 5))


@pytest.mark.parametrize(
    ("kernel", "channels"),
    [
        (1, 3),
        (3, 1),
        (5, 3),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in ((1, 1), (3, 3), (5, 1), (9, 1), (9, 3))),
    ],
)
def test_convolution_agrees_with_jax(kernel, channels):
    """Also of a kernel that is larger than the image."""
    layer, images = _pair(channels, kernel, 6)

    def loss(layer, images, function):
        return jnp.sum(jnp.sin(jax.vmap(lambda x: function(layer, x))(images)))

    ours, theirs = (
        jax.value_and_grad(loss, (0, 1))(layer, images, function) for function in (convolve, lambda f, x: f(x))
    )
    for first, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(first, other, rtol=1e-4, atol=1e-4)
    assert jax.tree.leaves(ours)[-1].shape == images.shape


def test_accelerators_take_their_own_convolution():
    layer, images = _pair(3, 3, 6)

    @jax.jit
    def slopes(layer, images):
        return jax.grad(lambda layer: jnp.sum(jax.vmap(lambda x: convolve(layer, x))(images) ** 2))(layer)

    traced = slopes.trace(layer, images)
    assert "stablehlo.convolution" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "stablehlo.convolution" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_blocks_of_rows_count_patches():
    """The memory of a block of rows is bounded by the largest array of a row: its patches."""
    layer, images = _pair(3, 5, 64)
    assert widest(images, jax.vmap(lambda x: convolve(layer, x))) == 3 * 25 * 7 * 5
