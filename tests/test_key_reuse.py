"""No sampler uses a random key twice, as JAX's own checker sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROLOGUE = """
import jax, tiny
from bnnzoo import cli
from bnnzoo.samplers import Penalty, RandomWalk
assert jax.config.jax_debug_key_reuse
"""

COMMANDS = """
for sampler in tiny.SAMPLERS:
    start = "map" if sampler == "random-walk" else "prior"
    assert cli.run([*tiny.words(sampler, init=start), "-o", f"{sampler}.nc"]) == 0, sampler
for proposal in ("langevin", "hmc"):
    tiny.run("penalty", sampler_object=Penalty(proposal=proposal, batch_size=20, num_batches=5))
"""

TWICE = """
class Twice(RandomWalk):
    def step(self, posterior, state, *, key):
        state, stats = super().step(posterior, state, key=key)
        return state, stats | {"again": jax.random.uniform(key)}

tiny.run("random-walk", sampler_object=Twice())
"""


def _run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "JAX_DEBUG_KEY_REUSE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_sampler_uses_a_key_twice(tmp_path):
    done = _run(COMMANDS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.nc"))) >= 6


def test_no_check_of_a_model_uses_a_key_twice(tmp_path):
    done = _run('assert cli.run(["check", "model", "mlp", "--model.hidden", "3"]) == 0', tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_key_that_is_used_twice_is_seen(tmp_path):
    """The positive control: the same loop with a sampler that draws from its step's key again."""
    done = _run(TWICE, tmp_path)
    assert done.returncode == 1
    assert "KeyReuseError" in done.stderr
