"""Time and memory for reading a large table, compared with pandas on the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

READ = """
import json, sys, time
import pandas as pd
import sklearn.model_selection
import bnnzoo.data as data
def now(name):
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith(name)).split()[1])
open("/proc/self/clear_refs", "w").write("5")
before, started = now("VmRSS"), time.process_time()
if sys.argv[1] == "pandas":
    found = pd.read_csv(sys.argv[2])
else:
    found = data.split(data.load(sys.argv[2]), test_fraction=0.1, seed=0)
print(json.dumps([time.process_time() - started, now("VmHWM") - before]))
"""


def cost(reader: str, path: Path) -> tuple[float, float]:
    """Return the CPU seconds, and the memory beyond that of the libraries."""
    process = subprocess.run(
        [sys.executable, "-c", READ, reader, str(path)], capture_output=True, text=True, check=True
    )
    seconds, grown = json.loads(process.stdout)
    return seconds, grown


def written(path: Path, rows: int, columns: int) -> Path:
    values = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    pd.DataFrame(values, columns=[f"c{i}" for i in range(columns)]).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_a_long_table_costs_less_than_four_times_pandas_time_and_three_times_its_memory(tmp_path):
    path = written(tmp_path / "long.csv", 1_000_000, 20)
    # CPU seconds vary by half on a shared machine, so use the smallest of three alternating measurements.
    each = [(cost("pandas", path), cost("bnnzoo", path)) for _ in range(3)]
    pandas, ours = (np.min(costs, axis=0) for costs in zip(*each, strict=True))
    assert ours[0] < 4 * pandas[0]
    assert ours[1] < 3 * pandas[1]


@pytest.mark.slow
def test_a_wide_table_costs_what_its_columns_do(tmp_path):
    """With ten times the columns, a quadratic cost would be a hundred times as large."""
    narrow, wide = (cost("bnnzoo", written(tmp_path / f"{n}.csv", 200, n)) for n in (1000, 10_000))
    assert wide[0] < 25 * narrow[0]
    assert wide[1] < 2**30
