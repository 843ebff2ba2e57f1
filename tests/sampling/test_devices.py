"""Number of devices for the chains if JAX has already started, and the warning about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import bnnzoo

RUN = "bnnzoo.sample('linear', 'random-walk', chains=4, warmup=0, draws=5, init='prior', thin=1)"
USED = "import jax; jax.numpy.zeros(3) + 1"


def run_script(*lines: str) -> tuple[int, str, str]:
    """Return the output of a separate process; this process has four devices, as all tests do."""
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")}
    code = "\n".join(["import bnnzoo", *lines])
    how = {"capture_output": True, "text": True, "check": False, "env": environment, "timeout": 200}
    process = subprocess.run([sys.executable, "-c", code], **how)
    return process.returncode, process.stdout, process.stderr


@pytest.mark.long
def test_devices_set_after_jax_started_give_a_warning():
    """All chains share the one device: a warning says so, with what to call first; and then that is too late."""
    tried = "try:\n    bnnzoo.devices(4)\nexcept bnnzoo.UsageError as error:\n    print(error)"
    code, out, err = run_script(USED, f"print({RUN}.attributes['device'])", tried)
    assert code == 0, err
    assert out.splitlines()[0].endswith("x 1")
    assert out.splitlines()[1].startswith(
        "devices: JAX has started already, with 1 CPU devices; call bnnzoo.devices(4) before"
    )
    assert "BnnzooWarning: JAX had started with one device, so all 4 chains share it" in err
    assert "bnnzoo.devices(4)" in err


@pytest.mark.slow
def test_devices_before_anything_else():
    code, out, err = run_script("bnnzoo.devices(2)", USED, "bnnzoo.devices(2)", f"print({RUN}.attributes['device'])")
    assert code == 0, err
    assert out.endswith("x 2\n")
    assert "JAX had started" not in err


def test_zero_is_not_a_number_of_devices():
    with pytest.raises(bnnzoo.UsageError, match="at least 1"):
        bnnzoo.devices(0)


@pytest.mark.long
def test_chains_that_factorise_at_once_do_not_wait_for_ever():
    """Without a thread to spare the second call of this never came back, where there are no more cores than devices."""
    code, out, err = run_script(
        "bnnzoo.devices(4)",
        "import jax, jax.numpy as jnp",
        "from jax.sharding import PartitionSpec as P",
        "def one(a):",
        "    parts = [a[:, :n, :n] for n in range(60, 54, -1)]",
        "    units = [jnp.broadcast_to(jnp.eye(m.shape[1]), m.shape) for m in parts]",
        "    some = [jax.scipy.linalg.solve_triangular(m @ m.mT / 60 + one, one) for m, one in zip(parts, units)]",
        "    return a + 1e-9 * sum(jnp.sum(one) for one in some)",
        "mesh = jax.sharding.Mesh(jax.devices(), ('chain',))",
        "run = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P('chain'), out_specs=P('chain'), check_vma=False))",
        "a = jax.random.normal(jax.random.key(0), (12, 60, 60))",
        "for _ in range(20): jax.block_until_ready(run(a))",
        "print('done')",
    )
    assert (code, out) == (0, "done\n"), err
