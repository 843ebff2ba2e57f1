"""No sampler uses a random key twice, according to JAX's own checker."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import tiny
from jax.experimental.key_reuse._core import check_key_reuse
from parabolas import Parabolas, parabolas

from bnnzoo.samplers import Bbb, Dropout, Gibbs, Importance, Penalty, RandomWalk, Rejection, Sgld, Swag
from bnnzoo.sampling.devices import jax_settings

PROLOGUE = """
import jax, tiny
from bnnzoo import cli
from bnnzoo.samplers import Penalty, RandomWalk
assert jax.config.jax_debug_key_reuse
"""

COMMANDS = """
for sampler in tiny.SAMPLERS:
    start = "map" if sampler == "random-walk" else "prior"
    assert cli.run([*tiny.arguments(sampler, init=start), "-o", f"{sampler}.nc"]) == 0, sampler
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
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "JAX_DEBUG_KEY_REUSE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


class Drawn(Parabolas):
    """One whose prior is drawn from, and whose likelihood has a bound."""

    def sample_prior(self, *, key: Any) -> Any:
        return jax.random.normal(key, (self.layout.dim,))

    def log_likelihood_bounds(self, batch: Any) -> Any:
        return 0.0 * batch[0]


WAYS: dict[str, Any] = {
    **{
        f"penalty, {proposal}, {sampling}": Penalty(batch_size=2, num_batches=1, proposal=proposal, sampling=sampling)
        for proposal in ("random-walk", "langevin", "hmc")
        for sampling in ("replacement", "disjoint", "importance")
    },
    "gibbs by coordinates": Gibbs(blocks="coordinate"),
    "rejection": Rejection(block=2),
    "importance": Importance(),
    "rejection from a fit": Rejection(block=2, proposal="gaussian"),
    "importance from a fit": Importance(proposal="gaussian"),
}
OF_NETWORKS: dict[str, Any] = {
    "sgld, exploring": Sgld(batch_size=3, schedule="cyclical", exploration=0.5, cycle=4),
    "bbb, local": Bbb(batch_size=3, samples=2, reparameterisation="local"),
    "bbb, partition": Bbb(batch_size=3, sampling="partition"),
    "dropout of two masks": Dropout(batch_size=4, masks=2),
    "swag of rank 2": Swag(batch_size=3, rank=2),
}


def _look(sampler: Any, posterior: Any) -> None:
    """At the programs of a start, steps, the ends of windows and a look between them; none of them is run."""

    def begin(key: Any) -> Any:
        return sampler.init(posterior, jnp.zeros(posterior.layout.dim), num_warmup=4, key=key)

    key = jax.random.key(0)
    check_key_reuse(begin, key)
    state = eqx.filter_eval_shape(begin, key)
    ends = (functools.partial(sampler.settle, final=final) for final in (False, True))
    for does in filter(None, (sampler.warmup_step, *ends, sampler.step, sampler.inspect)):
        check_key_reuse(lambda state, key, does=does: does(posterior, state, key=key), state, key)


def _drawn() -> Drawn:
    plain = parabolas([1.0, 2.0, 0.5, 0.3], [0.0, 1.0, 2.0, -1.0], dim=2)
    return Drawn(plain.data, layout=plain.layout)


@pytest.mark.long
@pytest.mark.parametrize("name", [*tiny.SAMPLERS, *WAYS, *OF_NETWORKS])
def test_no_step_of_a_sampler_uses_a_key_twice(name):
    with jax_settings.arithmetic("float32"):
        if name in WAYS:
            _look(WAYS[name], _drawn())
        elif name in OF_NETWORKS:
            _look(OF_NETWORKS[name], tiny.problem("sgld").posterior)
        else:
            _look(tiny.problem(name).sampler, tiny.problem(name).posterior)


class Twice(RandomWalk):
    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        state, stats = super().step(posterior, state, key=key)
        return state, stats | {"again": jax.random.uniform(key)}


def test_a_step_that_uses_its_key_twice_is_seen():
    """The positive control."""
    with pytest.raises(jax.errors.KeyReuseError):
        _look(Twice(), _drawn())


@pytest.mark.slow
def test_no_sampler_uses_a_key_twice(tmp_path):
    process = _run(COMMANDS, tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(list(tmp_path.glob("*.nc"))) >= 6


@pytest.mark.slow
def test_no_check_of_a_model_uses_a_key_twice(tmp_path):
    process = _run('assert cli.run(["check", "model", "mlp", "--model.hidden", "3"]) == 0', tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_a_key_that_is_used_twice_is_seen(tmp_path):
    """The positive control: the same loop with a sampler that draws from its step's key again."""
    process = _run(TWICE, tmp_path)
    assert process.returncode == 1
    assert "KeyReuseError" in process.stderr
