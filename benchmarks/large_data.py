"""Largest memory of `sample` and `evaluate` against the number of rows of a Parquet file.

    python benchmarks/large_data.py [1e5 1e6 1e7] [--stochastic last identified]

Each line is one command in a separate process, on simulated data with 20 columns of float32 numbers and a target. All
is the largest resident memory of the process. Own is its largest anonymous memory: the memory without the pages of
files, which the operating system can take back at any time. The runs are too short to converge.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES, ROWS_OF_A_BLOCK = 20, 500_000


def write_rows(path: Path, count: int) -> None:
    """Write simulated rows in blocks, so that this process needs little memory."""
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=FEATURES) / 4).astype(np.float32)
    names = [*(f"x{i}" for i in range(FEATURES)), "y"]
    with pq.ParquetWriter(path, pa.schema([(name, pa.float32()) for name in names])) as writer:
        for start in range(0, count, ROWS_OF_A_BLOCK):
            size = min(ROWS_OF_A_BLOCK, count - start)
            x = rng.normal(size=(size, FEATURES)).astype(np.float32)
            y = (np.sin(x @ weights) + 0.3 * rng.normal(size=size)).astype(np.float32)
            writer.write_table(pa.Table.from_arrays([pa.array(column) for column in [*x.T, y]], names))


def measured(words: list[str]) -> tuple[float, float, float]:
    """Run a command of bnnzoo. Return its largest resident and anonymous memory in MB, and its seconds."""
    resident, anonymous, start = 0, 0, time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "bnnzoo", *words], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(OSError, KeyError):  # the process may have ended
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
                sizes = dict(re.findall(r"(VmHWM|RssAnon):\s+(\d+) kB", status))
                resident, anonymous = max(resident, int(sizes["VmHWM"])), max(anonymous, int(sizes["RssAnon"]))
            time.sleep(0.02)
    if process.returncode:
        sys.exit(f"bnnzoo {' '.join(words)}: ended with {process.returncode}")
    return resident * 1.024e-3, anonymous * 1.024e-3, time.perf_counter() - start


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=float, nargs="*", default=[1e5, 1e6, 1e7])
    parser.add_argument("--stochastic", nargs="*", default=["last", "identified"])
    options = parser.parse_args()
    print("| rows | command | all (MB) | own (MB) | s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        data, out = Path(name, "rows.parquet"), Path(name, "run.nc")
        for count in options.rows:
            write_rows(data, int(count))
            for stochastic in options.stochastic:
                words = ["sample", "mlp", "penalty", "--data", str(data), "--stochastic", stochastic, "-o", str(out)]
                words += ["--likelihood", "gaussian", "--start-steps", "1000", "--warmup", "400", "--draws", "100"]
                commands = {f"sample, {stochastic}": [*words, "--force", "--quiet"]}
                commands[f"evaluate, {stochastic}"] = ["evaluate", str(out), "--quiet"]
                for label, command in commands.items():
                    resident, anonymous, seconds = measured(command)
                    print(f"| {count:.0e} | {label} | {resident:.0f} | {anonymous:.0f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
