"""Growth of time and memory with parameters, chains, rows and draws, one at a time.

    python benchmarks/growth.py [parameters chains rows draws] [--largest]

Each line is one `bnnzoo sample` in a separate process, on simulated data, without warm-up. Seconds are those of
sampling, including writing, divided by the steps of all chains. Memory is the largest memory of the process, minus that
of the smallest run of its table. The slope is that of the logarithms between a line and the line before: 1 means
proportional growth, and 0 means no growth. `--largest` adds the last line of each table, which takes minutes and
gigabytes.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

import bnnzoo

FEATURES = 10
WIDTHS = {1e3: 26, 1e4: 94, 1e5: 310, 1e6: 994, 1e7: 3155}
"""Width of two hidden layers for each number of parameters."""
DRAWS = {1e3: 2000, 1e4: 1000, 1e5: 100, 1e6: 20, 1e7: 4}
"""Numbers of draws of ten steps each, which take a second or more of sampling."""


class Line(NamedTuple):
    """One run: the quantity that grows, and the settings."""

    sampler: str
    size: float
    width: int = WIDTHS[1e3]
    chains: int = 1
    rows: int = 1000
    draws: int = 200
    thin: int = 1


TABLES: dict[str, tuple[str, list[Line]]] = {
    "parameters": (
        "time 1, memory 1 (a chunk of draws, a chain's state, its gradient and its noise)",
        [Line("sgld", size, width=width, draws=DRAWS[size], thin=10) for size, width in WIDTHS.items()],
    ),
    "chains": (
        "time of a chain's step 0 or less, memory 1",
        [Line("sgld", chains, chains=chains, draws=2000) for chains in (1, 4, 16, 64)],
    ),
    "rows": (
        "SGLD: time 0, memory 1 (the rows, once); MALA: time 1, memory 1",
        [
            *(Line("sgld", rows, rows=int(rows), draws=2000) for rows in (1e3, 1e4, 1e5, 1e6)),
            *(Line("mala", rows, rows=int(rows), draws=int(2e6 / rows)) for rows in (1e3, 1e4, 1e5, 1e6)),
        ],
    ),
    "draws": (
        "time of a step 0, memory 0",
        [Line("sgld", draws, draws=int(draws)) for draws in (1e3, 1e4, 1e5, 1e6)],
    ),
}


class Spent(NamedTuple):
    """Microseconds per chain-step, MiB of memory at the peak, MB of the file."""

    microseconds: float
    memory: float
    file: float


def measured(line: Line, folder: Path) -> Spent:
    """Run one line and return its cost."""
    data, out = folder / f"{line.rows}.npz", folder / "run.nc"
    if not data.exists():
        rng = np.random.default_rng(0)
        x = rng.normal(size=(line.rows, FEATURES)).astype(np.float32)
        np.savez(data, x=x, y=np.sin(x.sum(1)) + 0.1 * rng.normal(size=line.rows).astype(np.float32))
    out.unlink(missing_ok=True)
    words = ["sample", "mlp", line.sampler, "--data", str(data), "-o", str(out), "--quiet", "--init", "prior"]
    words += ["--model.hidden", f"{line.width},{line.width}", "--chains", str(line.chains), "--warmup", "0"]
    words += ["--draws", str(line.draws), "--thin", str(line.thin), "--test-fraction", "0"]
    words += ["--sampler.step-size", "1e-9", "--likelihood", "gaussian"]
    words += ["--sampler.batch-size", "256"] if line.sampler == "sgld" else []
    peak_kb = 0
    command = [sys.executable, "-m", "bnnzoo", *words]
    # These runs are too short to converge, so their warnings are discarded.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
                if match := re.search(r"VmHWM:\s+(\d+) kB", status):
                    peak_kb = max(peak_kb, int(match[1]))
            time.sleep(0.02)
    if process.returncode:
        sys.exit(f"bnnzoo {' '.join(words)}: ended with {process.returncode}")
    steps = line.chains * line.draws * line.thin
    seconds = float(bnnzoo.open(out).attributes["seconds_sampling"])
    return Spent(1e6 * seconds / steps, peak_kb / 1024, os.stat(out).st_size / 1e6)


def rows_of(lines: list[Line], folder: Path) -> Iterator[str]:
    """Yield the rows of a table as they are measured."""
    before: dict[str, tuple[Line, Spent]] = {}
    least: dict[str, float] = {}
    for line in lines:
        spent = measured(line, folder)
        least.setdefault(line.sampler, spent.memory)
        slopes = ["", ""]
        if line.sampler in before:
            old, then = before[line.sampler]
            wider = math.log(line.size / old.size)
            slopes[0] = f"{math.log(spent.microseconds / then.microseconds) / wider:.2f}"
            more, less = spent.memory - least[line.sampler], then.memory - least[line.sampler]
            if min(more, less) > 20:
                slopes[1] = f"{math.log(more / less) / wider:.2f}"
        before[line.sampler] = line, spent
        cells = (line.sampler, f"{line.size:g}", f"{spent.microseconds:.3g}", slopes[0])
        yield " | ".join(("", *cells, f"{spent.memory:.0f}", slopes[1], f"{spent.file:.1f}", "")).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES])
    parser.add_argument("--largest", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.tables or TABLES:
            expected, lines = TABLES[name]
            largest = {max(line.size for line in lines)} if not given.largest else set()
            print(f"\nGrowth with {name}; expected slopes: {expected}\n")
            print(f"| sampler | {name} | us a chain's step | slope | MiB | slope | file, MB |")
            print("|---|---|---|---|---|---|---|")
            for row in rows_of([line for line in lines if line.size not in largest], Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
