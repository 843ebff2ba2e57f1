"""Random bits by rounds that are written out: JAX's own, in every program that a run compiles."""

from __future__ import annotations

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.posterior import backend
from bnnzoo.posterior.threefry import threefry2x32


def test_the_known_answers_of_its_authors():
    # kat_vectors of Random123, threefry2x32 of 20 rounds: counter, key, result.
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    for counts, keys, words in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        (pi[:2], pi[2:], (0xC4923A9C, 0x483DF7A0)),
    ):
        found = threefry2x32(*(jnp.uint32(word) for word in (*keys, *counts)))
        assert tuple(map(int, found)) == words


def drawn(key):
    import jax

    one, other = jax.random.split(jax.random.fold_in(key, 5))
    rows = jax.random.randint(other, (9,), 0, 60_000)
    return jax.random.normal(one, (7, 3)), jax.random.uniform(one, (4099,)), rows, jax.random.key_data(other)


def test_numbers_are_those_of_jax_bit_for_bit(tmp_path):
    # In a process that has never heard of ours.
    program = f"""
import jax, numpy as np
{inspect.getsource(drawn)}
for precision in ("float32", "float64"):
    with jax.enable_x64(precision == "float64"), jax.threefry_partitionable(True):
        program = jax.jit(jax.vmap(drawn)).lower(jax.random.split(jax.random.key(3), 5))
        print(precision, "while" in program.as_text())
        np.savez(precision, *program.compile()(jax.random.split(jax.random.key(3), 5)))
"""
    shown = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["float32", "True", "float64", "True"]  # else JAX does so itself, and we need not
    for precision in ("float32", "float64"):
        with backend.arithmetic(precision):
            lowered = jax.jit(jax.vmap(drawn)).lower(jax.random.split(jax.random.key(3), 5))
            assert "while" not in lowered.as_text()
            ours = lowered.compile()(jax.random.split(jax.random.key(3), 5))
        with np.load(tmp_path / f"{precision}.npz") as theirs:
            assert len(ours) == len(theirs.files)
            for a, name in zip(ours, theirs.files, strict=True):
                np.testing.assert_array_equal(a, theirs[name], strict=True)
