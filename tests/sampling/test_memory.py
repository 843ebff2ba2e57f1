"""The memory of a run does not grow with its length, and only little with its network."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny

from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.loop.loop import Keys, chunks
from bnnzoo.store import parts_folder

CHUNKS = 100_000
FLAT = 8 * 2**20
MOST = 1.2e9
"""Memory limit of a run with four chains of a million parameters, libraries included; its draws take 3.2 GB."""
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
"""Return freed arrays to the system at once, because the memory that glibc keeps varies by 100 MB."""


def resident() -> int:
    """Return the memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])


def highest(process: int) -> int:
    """Return the peak memory of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return 1024 * int(match[1]) if match else 0
    return 0


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_chunks():
    """Each chunk has one draw; after the ten thousandth the memory does not grow."""
    problem = tiny.problem("random-walk", 1)
    thetas, held = 0.1 * np.ones((1, problem.posterior.layout.dim), "float32"), []
    with jax_settings.arithmetic("float32"):
        placement = place_chains("vectorized", 1)
        arguments = {
            "keys": Keys.from_seed(0),
            "placement": placement,
            "num_warmup": 0,
            "num_draws": CHUNKS,
            "most_draws": 1,
        }
        for number, _ in enumerate(chunks(problem.posterior, problem.sampler, thetas, **arguments), 1):
            if number % (CHUNKS // 10) == 0:
                held.append(resident())
    assert len(held) == 10
    print([round(bytes / 2**20, 1) for bytes in held], "MiB")
    assert held[-1] < held[0] + FLAT


@pytest.mark.slow
def test_a_million_parameters_take_little_more_than_their_chunk(tmp_path):
    out = tmp_path / "run.nc"
    arguments = [
        "sample",
        "mlp",
        "sgld",
        "--data",
        "diabetes",
        "--model.hidden",
        "1000,980",
        "--init",
        "prior",
        "--quiet",
    ]
    arguments += ["--chains", "4", "--warmup", "0", "--draws", "200", "--thin", "1", "--sampler.batch-size", "20"]
    arguments += ["--sampler.step-size", "1e-8", "-o", str(out)]
    command, environment = [sys.executable, "-m", "bnnzoo", *arguments], {**os.environ, **RETURNED}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        most = 0
        while process.poll() is None:
            # Not ru_maxrss, which includes the memory of this process when it forked.
            most = max(most, highest(process.pid))
            time.sleep(0.05)
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read()
    assert out.stat().st_size > 200 * 4 * 4e6 * 0.99
    assert not parts_folder(out).exists()
    out.unlink()
    print(f"{most / 2**20:.0f} MiB")
    assert 2e8 < most < MOST
