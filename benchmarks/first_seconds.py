"""Time that a user waits for whole processes, from the start of a command to its end.

    python benchmarks/first_seconds.py [--repeats 5]
    python benchmarks/first_seconds.py --profile       # where three of them spend their time

Each command runs once before it is timed. The results of XLA's compiler are then in the cache on disk, as in every
start but the first. The cache is a folder of this script. The tables show medians in seconds; run nothing else
meanwhile. A profile shows the main thread, which includes its waiting for the chains. Python's profiler makes the
process slower, so that only the fractions are meaningful.
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
"""Commands and their goals in seconds; an entry without words is the program in Python."""


PROFILED = """
import cProfile, pstats, sys
from time import perf_counter
began, profile = perf_counter(), cProfile.Profile()
profile.enable()
from bnnzoo import cli
code = cli.run(sys.argv[1:])
profile.disable()
took = {("", ""): perf_counter() - began}
for (file, _, name), (*_, seconds, _) in pstats.Stats(profile).stats.items():
    took[file.rpartition("/")[2], name] = seconds
print(*(f"{file}\\t{name}\\t{seconds}" for (file, name), seconds in took.items()), sep="\\n")
sys.exit(code)
"""
PARTS = {
    "importing": ("<frozen importlib._bootstrap>", "_find_and_load"),
    "tracing": ("partial_eval.py", "trace_to_jaxpr"),
    "lowering": ("mlir.py", "lower_jaxpr_to_module"),
    "programs from the cache": ("compiler.py", "compile_or_get_cached"),
    "pictures": ("figure.py", "savefig"),
}
"""Function whose cumulative time is the time of a part of the process."""


def profile(words: list[str], folder: Path) -> dict[str, float]:
    """Return the fraction of a process's time that each part takes."""
    command = [sys.executable, "-c", PROFILED, *words]
    lines = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split("\t") for line in lines if line.count("\t") == 2]
    took = {(file, name): float(seconds) for file, name, seconds in rows}
    fractions = {part: took.get(place, 0.0) / took["", ""] for part, place in PARTS.items()}
    return {**fractions, "the rest": 1 - sum(fractions.values())}


def seconds(words: list[str], folder: Path) -> float:
    """Return the seconds of one process; end the script if it fails."""
    command = [str(COMMAND), *words] if words else [sys.executable, "-c", PYTHON]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return took


def print_profiles(folder: Path) -> None:
    """Print a table with one column per command and one row per part."""
    typed = [words for words, _ in LINES.values() if words and "--help" not in words]
    last = {words[0]: words for words in typed if words[0] in ("sample", "predict", "report")}
    seconds([*last["sample"][:-3], "-o", "run.nc", "--force"], folder)
    profiles = {}
    for kind, words in last.items():
        seconds(words, folder)
        profiles[kind] = profile(words, folder)
    print(f"| | {' | '.join(profiles)} |\n|---|{'---|' * len(profiles)}")
    for part in profiles["sample"]:
        print(f"| {part} | {' | '.join(f'{100 * fractions[part]:.0f} %' for fractions in profiles.values())} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        (folder / "five.csv").write_text("x0\n-0.5\n0.0\n0.25\n0.5\n1.0\n")
        if given.profile:
            print_profiles(folder)
            return
        print("| command | goal | first | later | largest |\n|---|---|---|---|---|")
        for what, (words, goal) in LINES.items():
            first, *later = [seconds(words, folder) for _ in range(1 + given.repeats)]
            numbers = (f"{each:.2f}" for each in (first, statistics.median(later), max(later)))
            print(f"| `{what}` | {goal:g} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
