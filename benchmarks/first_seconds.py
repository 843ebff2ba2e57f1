"""What a user waits for: whole processes, from the typed line to its end.

    python benchmarks/first_seconds.py [--repeats 5]

Each command runs once before it is timed, so that what XLA compiled stands in the cache on disk, as in every start but
the first; the cache is a folder of this script's own. Medians, in seconds; nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = Path(sys.executable).with_name("bnnzoo")
RUN = ["--warmup", "10", "--draws", "100", "--start-steps", "250"]
PYTHON = 'import bnnzoo; print(bnnzoo.sample("mdn", "penalty", warmup=10, draws=60, start_steps=250))'

LINES: dict[str, tuple[list[str], float]] = {
    "bnnzoo --help": (["--help"], 0.25),
    "bnnzoo list": (["list"], 0.25),
    "bnnzoo zoo": (["zoo"], 0.25),
    "bnnzoo sample mlp nuts --help": (["sample", "mlp", "nuts", "--help"], 0.5),
    f"bnnzoo sample mdn penalty {' '.join(RUN)}": (["sample", "mdn", "penalty", *RUN, "-o", "run.nc", "--force"], 5),
    "the same with --thin 1": (["sample", "mdn", "penalty", *RUN, "--thin", "1", "-o", "thin.nc", "--force"], 5),
    "bnnzoo.sample of 60 draws, from Python": ([], 5),
    "bnnzoo predict run.nc, five rows": (["predict", "run.nc", "--data", "five.csv"], 3),
    "bnnzoo report run.nc": (["report", "run.nc", "-o", "report.html", "--force"], 5),
}
"""What is typed, and the seconds it should take; without words it is the program in Python."""


def seconds(words: list[str], folder: Path) -> float:
    """Of one process; it ends the script if it fails."""
    command = [str(COMMAND), *words] if words else [sys.executable, "-c", PYTHON]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print("| command | goal | first | later | largest |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "five.csv").write_text("x0\n-0.5\n0.0\n0.25\n0.5\n1.0\n")
        for what, (words, goal) in LINES.items():
            first, *later = [seconds(words, folder) for _ in range(1 + repeats)]
            numbers = (f"{each:.2f}" for each in (first, statistics.median(later), max(later)))
            print(f"| `{what}` | {goal:g} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
