"""What a run with a budget takes beside it, over the time in which the machine traces one gradient.

    python benchmarks/seconds.py

Each run is the command, with a compilation cache of its own that is empty at first and filled the second time. The
sentence before the start of a run (`bnnzoo.sampling.budget.describe_overhead`) multiplies by the number for an empty
cache.
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
    """What came on top of a budget, and what the run had said before."""
    command = [sys.executable, "-m", "bnnzoo", "sample", model, sampler, "--budget", "5s", "--json", "--force"]
    done = subprocess.run(
        [*command, "-o", str(folder / "run.nc")],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    summary, said = json.loads(done.stdout), re.search(r"take about (\S+) s more", done.stderr)
    assert said
    return sum(summary[f"seconds_{part}"] for part in ON_TOP), float(said[1])


def main() -> None:
    """Print a row a run."""
    from bnnzoo.sampling.budget import OVERHEAD_TRACES as FACTOR

    print("model   sampler  cache   on top  said   factor")
    for model, sampler in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                took, said = seconds(model, sampler, Path(folder))
                print(f"{model:7} {sampler:8} {cache:6} {took:7.1f} {said:5g} {FACTOR * took / said:8.0f}", flush=True)


if __name__ == "__main__":
    main()
