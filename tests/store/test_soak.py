"""A run that is killed every minute for an hour resumes each time, loses no part, and uses no more memory.

pytest -m soak -n 0 tests/store/test_soak.py                              an hour
BNNZOO_SOAK_SECONDS=300 pytest -m soak -n 0 tests/store/test_soak.py      five minutes
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import store
from bnnzoo.store import run_parts

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("BNNZOO_SOAK_SECONDS", "3600"))
BETWEEN = min(60.0, SECONDS / 5)
WORDS = tiny.arguments("random-walk", thin=1000, draws=10**6, checkpoint_every=2)
"""A command with more draws than an hour allows."""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bnnzoo", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def draws_of(out: Path) -> int:
    """Return the number of committed draws per chain."""
    folder = store.parts_folder(out)
    return run_parts.load(folder).draws.get("posterior", 0) if run_parts.holds_run(folder) else 0


def wait_until(condition, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.1)


def resident(process: subprocess.Popen[str]) -> int:
    """Return the memory in bytes."""
    memory = Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1]
    return 1024 * int(memory.split()[0])


def test_an_hour_of_kills(tmp_path):
    out = tmp_path / "run.nc"
    process, end = start(*WORDS, "-o", out), time.monotonic() + SECONDS
    kills, memory = 0, []
    while time.monotonic() < end:
        wait_until(lambda least=kills: draws_of(out) > least, process)
        time.sleep(BETWEEN)
        memory.append(resident(process))
        process.kill()
        process.communicate()
        loaded_data = run_parts.load(store.parts_folder(out))
        loaded_data.check()
        assert loaded_data.draws["posterior"] > kills
        kills = loaded_data.draws["posterior"]
        process = start("resume", out, "--quiet")
    wait_until(lambda: draws_of(out) > kills, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 143, errors
    run = bnnzoo.open(out)
    assert run.attributes["draws_done"] >= kills
    assert np.isfinite(run.posterior["posterior"]["weight"].values).all()
    megabytes = [round(bytes / 2**20) for bytes in memory]
    print(f"{len(memory)} kills, {run.attributes['draws_done']} draws, {megabytes} MiB before each kill")
    # The first process also includes warm-up.
    assert len(memory) < 3 or max(memory[1:]) <= 1.2 * min(memory[1:])
