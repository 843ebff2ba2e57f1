"""Time that a run with a budget takes beyond the budget, divided by the time to trace one gradient.

    python benchmarks/seconds.py

Each run is the command, with a separate compilation cache that is empty at first and filled the second time. The
sentence before the start of a run (`bnnzoo.sampling.initial.budget.describe_overhead`) multiplies by the number for an
empty cache.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = (("linear", "nuts"), ("mlp", "nuts"), ("mdn", "hmc"))
ON_TOP = ("start", "compile", "judging", "writing")


def seconds(model: str, sampler: str, folder: Path) -> tuple[float, float]:
    """Return the time beyond the budget, and the estimate that the run printed before."""
    command = [sys.executable, "-m", "bnnzoo", "sample", model, sampler, "--budget", "5s", "--json", "--force"]
    done = subprocess.run(
        [*command, "-o", str(folder / "run.nc")],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    summary, estimate = json.loads(done.stdout), re.search(r"take about (\S+) s more", done.stderr)
    assert estimate
    return sum(summary[f"seconds_{part}"] for part in ON_TOP), float(estimate[1])


def main() -> None:
    """Print one row per run."""
    from bnnzoo.sampling.initial.budget import OVERHEAD_TRACES as FACTOR

    print("model   sampler  cache   on top  said   factor")
    for model, sampler in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                took, guess = seconds(model, sampler, Path(folder))
                print(
                    f"{model:7} {sampler:8} {cache:6} {took:7.1f} {guess:5g} {FACTOR * took / guess:8.0f}", flush=True
                )


if __name__ == "__main__":
    main()
