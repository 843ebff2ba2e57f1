"""Milliseconds per row of the predictions of a run and of its student, for one row and for a thousand rows at once.

python plugins/bnnzoo-distill/benchmarks/speed.py run.nc student.nc
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_SECONDS = 1.0


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median duration of a call in milliseconds, after a first call that compiles."""
    call()
    durations: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < _SECONDS or len(durations) < 3:
        before = time.perf_counter()
        call()
        durations.append(time.perf_counter() - before)
    return 1000 * float(np.median(durations))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("student")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before the first import of JAX

    import bnnzoo_distill

    import bnnzoo

    student, run = bnnzoo_distill.load(arguments.student), bnnzoo.open(arguments.run)
    if student.classifies:
        raise SystemExit(f"{arguments.student}: predicts classes; use a student for regression")
    rng = np.random.default_rng(0)
    rows = rng.uniform(student.x_low, student.x_high, size=(1000, *student.signature.shape)).astype(np.float32)

    def teacher(x: np.ndarray) -> None:
        distribution = run.predictive(x)
        _ = distribution.mean, distribution.aleatoric_sd, distribution.epistemic_sd

    print("predictor          one row [ms]  row of 1000 [ms]")
    for name, predict in [("run", teacher), ("student: mean", student.mean), ("student: predict", student.predict)]:
        alone = milliseconds(lambda: predict(rows[:1]))  # noqa: B023
        in_batch = milliseconds(lambda: predict(rows)) / len(rows)  # noqa: B023
        print(f"{name:<18} {alone:>12.3f}  {in_batch:>16.5f}", flush=True)


if __name__ == "__main__":
    main()
