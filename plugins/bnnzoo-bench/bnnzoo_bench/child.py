"""One fit of the benchmark in a separate process: `python -m bnnzoo_bench.child JOB.json RESULT.json`.

The benchmark process holds the other end of the child's stdin. When stdin closes, the benchmark process has ended. The
child then removes the folder of JOB.json and ends too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo_bench.distributions import Distribution
from bnnzoo_bench.methods import Method, data_keywords, keywords_of, load_peer, peer_version, posterior_keywords
from bnnzoo_bench.problems import Problem, Rows, read_rows
from bnnzoo_bench.scores import score


def main(job_file: str, result_file: str) -> None:
    """Run the fit that `job_file` describes, and write its scores or its error to `result_file`."""
    threading.Thread(target=_end_with_parent, args=(Path(job_file).parent,), daemon=True).start()
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: dict[str, Any] = {"status": "done", "reason": "", **fit(job)}
    except BnnzooError as error:
        result = {"status": "failed", "reason": _one_line(str(error))}
    except Exception as error:
        result = {"status": "failed", "reason": _one_line(f"{type(error).__name__}: {error}")}
    result["peak_memory_mb"] = _peak_memory_mb()
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")


def fit(job: dict[str, Any]) -> dict[str, Any]:
    """Fit a method on a fold and return the scores, the times, the recipe, the versions and the hardware.

    Args:
        job: a mapping with the keys `problem` (name, path and target), `fold` (its number), `method` (the fields of
            `Method`), `seed`, `budget` (seconds) and `recipe`. `recipe` is "" for a new fit. To repeat an earlier fit
            exactly, `recipe` is the text of the recipe of that fit.
    """
    name, path, target = job["problem"]
    method = Method(*job["method"])
    problem = Problem(name, Path(path), target)
    if problem.is_reference:
        return _fit_reference(method, problem, job)
    rows = read_rows(problem, job["fold"], job["seed"])
    result: dict[str, Any] = {"rows": len(rows.y), "test_rows": len(rows.y_test), "features": rows.x.shape[1]}
    if not job["recipe"]:
        result["recipe_sha256"] = method.sha256  # the file can have changed since the benchmark started
    fit_method = _fit_peer if method.kind == "peer" else _fit_bnnzoo
    details, predict, y_test, unit = fit_method(method, rows, job)
    start = time.perf_counter()
    metrics = score(predict(), y_test, unit, method.name)
    return {**result, **details, "seconds_predict": time.perf_counter() - start, "metrics": metrics}


_MAX_DRAWS = 2000
"""Largest number of posterior draws in a scored prediction.

The predictive distribution is a mixture with one component per draw. With many more components of Student's t, the
evaluation of the distribution function takes minutes.
"""

Fitted = tuple[dict[str, Any], Callable[[], Distribution], np.ndarray, float]
"""Result of a fit: details, prediction function, test targets and unit.

The details are fields of the result line, such as the seconds of the fit. The function returns the predictive
distribution of the test rows. The scores are divided by the unit.
"""


def _fit_bnnzoo(method: Method, rows: Rows, job: dict[str, Any]) -> Fitted:
    import bnnzoo

    options: dict[str, Any] = {"budget": f"{job['budget']:g}s"}
    if job["recipe"]:
        options = keywords_of(job["recipe"])
    elif method.kind == "recipe":
        options |= keywords_of(Path(method.target).read_text(encoding="utf-8"), method.target)
    elif method.kind == "pair":
        options["model"], _, options["sampler"] = method.target.partition(":")
    sample: Any = bnnzoo.sample  # imports JAX, before the clock starts
    start = time.perf_counter()
    run = sample(
        data=(rows.x, rows.y),
        task="regression",
        test_fraction=0,
        seed=job["seed"],
        progress=False,
        **options,
    )
    details = _details(run.attributes, time.perf_counter() - start)
    return details, partial(run.predictive, rows.x_test, draws=_MAX_DRAWS), rows.y_test, float(rows.y.std())


def _fit_reference(method: Method, problem: Problem, job: dict[str, Any]) -> dict[str, Any]:
    """Sample the posterior of a reference problem, and return the distances of the predictions from the reference.

    The training rows are the data that the recipe in the file of the reference names.
    """
    import bnnzoo
    from bnnzoo.api.references import Reference
    from bnnzoo.store.schema import KEPT_ROWS

    reference = Reference(problem.name, bnnzoo.open(problem.path))
    stored_recipe = str(reference.run.attributes["recipe"])
    data = data_keywords(stored_recipe)
    if "data" not in data:
        raise UsageError(
            f"reference {problem.name}: the recipe names no data, because the reference was sampled from arrays; "
            "sample the reference again from a data set or a file (data=...)"
        )
    options = keywords_of(job["recipe"]) if job["recipe"] else posterior_keywords(stored_recipe)
    if not job["recipe"]:
        options |= {"sampler": method.target, "budget": f"{job['budget']:g}s", "until": "budget"}
    sample: Any = bnnzoo.sample
    start = time.perf_counter()
    run = sample(seed=job["seed"], progress=False, **data, **options)
    details = _details(run.attributes, time.perf_counter() - start)
    start = time.perf_counter()
    distances = reference.distances(run, method.name)
    inputs = reference.run.posterior["constant_data"][KEPT_ROWS]
    return {
        "rows": int(run.attributes["rows"]),
        "test_rows": inputs.shape[0],
        "features": int(np.prod(inputs.shape[1:])),
        **details,
        "seconds_predict": time.perf_counter() - start,
        "metrics": {name: number.value for name, number in distances.numbers.items()},
        "mcse": {name: number.mcse for name, number in distances.numbers.items()},
        "floor": distances.floor,
    }


def _details(about: Any, seconds: float) -> dict[str, Any]:
    """Return costs, convergence verdict, recipe, versions and hardware from the attributes `about` of a run."""
    evaluations = about.get("target_evaluations")
    phases = ("start", "warmup", "sampling")
    return {
        "seconds_fit": seconds,
        "seconds_run": sum(float(about.get(f"seconds_{phase}", 0.0)) for phase in phases),
        "gradients": None if evaluations is None else float(evaluations) / int(about["rows"]),
        "verdict": str(about.get("verdict", "")),
        "recipe": str(about["recipe"]),
        "versions": _versions("bnnzoo", "jax", "numpy") | _plugin_versions(about),
        "hardware": _hardware(str(about.get("device", ""))),
    }


def _plugin_versions(about: Any) -> dict[str, str]:
    """Return the versions of the plugins that a run used, from the attributes `about` of the run."""
    plugins = json.loads(about.get("plugins") or "{}")
    return {name: value for name, value in plugins.items() if isinstance(value, str)}


def _fit_peer(method: Method, rows: Rows, job: dict[str, Any]) -> Fitted:
    peer = load_peer(method)
    centre, spread = rows.x.mean(0), rows.x.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    mean, unit = rows.y.mean(), rows.y.std()
    start = time.perf_counter()
    peer.fit((rows.x - centre) / spread, (rows.y - mean) / unit, job["budget"], job["seed"])
    seconds = time.perf_counter() - start
    details = {
        "seconds_fit": seconds,
        "gradients": None,
        "verdict": "",
        "recipe": "",
        "versions": _versions("bnnzoo", "numpy") | peer_version(type(peer), method),
        "hardware": _hardware("cpu"),
    }
    return details, partial(peer.predict, (rows.x_test - centre) / spread), (rows.y_test - mean) / unit, 1.0


def _versions(*packages: str) -> dict[str, str]:
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def _hardware(device: str) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu_model(), "cores": cores, "device": device}


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _peak_memory_mb() -> float:
    try:
        # On Linux the value of getrusage includes the memory of the parent process at the start.
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        peak = None
    if peak:
        return int(peak[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _end_with_parent(folder: Path) -> None:
    # os.read, because a thread that holds the lock of sys.stdin would block the end of the interpreter.
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:3])
