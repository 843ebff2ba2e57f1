"""Data are arguments of every program; as constants they would be compiled, and again for the next data."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bnnzoo

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
ROWS = 5003  # not shared with other tests, because every program must be lowered here
SHORT = {"warmup": 40, "draws": 5, "chains": 2, "start_steps": 250}


@pytest.fixture
def lowered(tmp_path) -> Iterator[Path]:
    """Yield a folder that receives the text of every program."""
    folder = tmp_path / "programs"
    jax.config.update("jax_dump_ir_to", str(folder))
    yield folder
    jax.config.update("jax_dump_ir_to", None)


def largest(folder: Path) -> int:
    """Return the size of the largest constant that is not a single repeated number."""
    texts = [path.read_text() for path in folder.glob("*.mlir")]
    assert texts
    shapes = [shape for text in texts for shape in re.findall(r"dense<[^>]{10,}> : tensor<((?:\d+x)+)", text)]
    return max((int(np.prod([int(size) for size in shape.split("x")[:-1]])) for shape in shapes), default=0)


def test_a_constant_is_seen(lowered):
    rows = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    jax.jit(lambda theta: jnp.sum(rows @ theta))(jnp.ones(3))
    assert largest(lowered) == 3 * ROWS


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["mala", slow("penalty"), slow("sgld"), slow("laplace"), slow("nuts")])
def test_data_are_arguments(sampler, lowered):
    """This covers everything from the check of the start to predictions; remaining constants are small tables."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    y = (x.sum(1) + rng.normal(size=ROWS)).astype(np.float32)
    run = bnnzoo.sample("linear", sampler, data=(x, y), **SHORT)
    run.evaluate()
    run.predict(x[:2000])
    assert len(list(lowered.glob("*.mlir"))) >= 5
    assert largest(lowered) < 1000
