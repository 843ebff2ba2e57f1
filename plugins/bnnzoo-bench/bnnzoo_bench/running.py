"""Fit every combination of problem, fold and method that has no result yet, each in a separate process."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bnnzoo.errors import UsageError
from bnnzoo_bench.methods import Method, check_methods, keywords_of
from bnnzoo_bench.problems import Problem, count_folds, digest, mask_digest
from bnnzoo_bench.results import Key, Line, ProblemData, Results, key_of

_LONGEST_MULTIPLE, _LONGEST_EXTRA = 10, 600
"""Time limit of a fit: a multiple of the budget, plus extra seconds."""

Report = Callable[[str], None]
"""A function that receives and shows a line of progress."""


class Plan(NamedTuple):
    """The fits of a benchmark and the settings that they share."""

    problems: Sequence[Problem]
    folds: Sequence[int]
    methods: Sequence[Method]
    budget: float
    seed: int

    def fits(self) -> Iterator[tuple[Problem, int, Method]]:
        """Yield the fits in the order in which they run: all problems and methods of a fold before the next fold."""
        for fold, problem, method in itertools.product(self.folds, self.problems, self.methods):
            if fold < count_folds(problem):
                yield problem, fold, method


def parse_folds(text: str) -> list[int]:
    """Return the numbers of the folds in a text such as 0-2 or 0,3,5-7.

    Raises:
        UsageError: if the text has another form.
    """
    folds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"--folds: expected numbers and ranges such as 0-2 or 0,3,5-7, got {text!r}")
        folds += range(first, last + 1)
    return sorted(set(folds))


def parse_budget(text: str, place: str = "--budget") -> float:
    """Return the number of seconds for a text such as 90s, 5m or 2h. Error messages start with `place`.

    Raises:
        UsageError: if the text has another form, or if the time is not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not seconds > 0:
        raise UsageError(f"{place}: expected a time such as 90s, 5m or 2h, got {text!r}")
    return seconds


def recipe_budget(method: Method) -> float | None:
    """Return the seconds of the budget in a method's recipe; None without a recipe, or for a recipe without budget.

    Raises:
        UsageError: if the recipe or its budget is invalid.
    """
    if method.kind != "recipe":
        return None
    budget = keywords_of(Path(method.target).read_text(encoding="utf-8"), method.target).get("budget")
    return None if budget is None else parse_budget(str(budget), f"{method.target}: budget")


def check_plan(plan: Plan) -> None:
    """Check the methods and the folds before anything is written.

    Raises:
        UsageError: if a method cannot be used or does not match the problems, or if no problem has any of the folds.
    """
    if next(plan.fits(), None) is None:
        raise UsageError("--folds: no problem has any of these folds; use lower numbers (the first fold is 0)")
    has_references = any(problem.is_reference for problem in plan.problems)
    for method in plan.methods:
        if has_references and method.kind != "sampler":
            raise UsageError(
                f"--methods: {method.name}: a reference fixes the model, so a method must be a sampler, such as nuts"
            )
        if method.kind == "sampler" and not has_references:
            raise UsageError(
                f"--methods: {method.name}: is a sampler without a model; write MODEL:{method.name}, or use "
                "--problems references"
            )
        recipe_budget(method)
    check_methods(plan.methods)


def run_plan(plan: Plan, results: Results, *, retry_failed: bool = False, report: Report | None = None) -> list[Line]:
    """Run the fits that have no result yet, append one line for each fit, and return the new lines.

    Args:
        plan: the fits.
        results: the results so far.
        retry_failed: whether to repeat failed fits.
        report: a function that shows progress.

    Raises:
        UsageError: before the first fit, if the settings, data, recipes or own classes differ from those of the stored
            results.
    """
    sources = {method.name: (method.kind, method.sha256) for method in plan.methods}
    budgets = {method.name: recipe_budget(method) or plan.budget for method in plan.methods}
    data = {
        problem.name: ProblemData(digest(problem), mask_digest(problem), problem.target) for problem in plan.problems
    }
    has_references = any(problem.is_reference for problem in plan.problems)
    settings = {"budget": plan.budget, "seed": plan.seed}
    results.refuse_changes(settings, data, sources, has_references=has_references)
    finished = {key_of(line) for line in results.lines if line["status"] == "done" or not retry_failed}
    pending = [fit for fit in plan.fits() if _key(*fit) not in finished]
    new: list[Line] = []
    for number, (problem, fold, method) in enumerate(pending, 1):
        if report:
            left = _seconds_left([method.name for _, _, method in pending[number - 1 :]], results.lines, budgets)
            report(f"{number} of {len(pending)}: {problem.name}, fold {fold}, {method.name}; about {_time(left)} left")
        result = fit_in_child(problem, fold, method, budgets[method.name], plan.seed)
        line = {
            "problem": problem.name,
            "fold": fold,
            "method": method.name,
            "status": result.pop("status"),
            "reason": result.pop("reason"),
            "budget": budgets[method.name],
            "own_budget": recipe_budget(method) is not None,
            "seed": plan.seed,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": str(problem.path),
            **data[problem.name]._asdict(),
            "definition": method.target if method.kind != "recipe" else str(Path(method.target).resolve()),
            "kind": method.kind,
            "recipe_sha256": sources[method.name][1],
            **result,
        }
        results.append(line)
        new.append(line)
        if report and line["status"] == "failed":
            report(f"{problem.name}, fold {fold}, {method.name}: failed: {line['reason']}")
    return new


def _key(problem: Problem, fold: int, method: Method) -> Key:
    return problem.name, fold, method.name


def fit_in_child(
    problem: Problem, fold: int, method: Method, budget: float, seed: int, recipe: str = ""
) -> dict[str, Any]:
    """Fit a method on a fold in a separate process, and return the result.

    The status of the result is "failed" if the fit failed, or if the process crashed or exceeded the time limit.

    Args:
        problem: the table or the reference.
        fold: the number of the table's division into training and test rows.
        method: the method.
        budget: time budget of the fit, in seconds.
        seed: the seed of the fit, and of the folds of a CSV file.
        recipe: the text of a bnnzoo recipe that replaces the method's recipe; empty to use the method as it is.
    """
    with tempfile.TemporaryDirectory(prefix="bnnzoo-bench-") as name:
        job, output, errors = (Path(name) / file for file in ("job.json", "result.json", "stderr"))
        names = [problem.name, str(problem.path.resolve()), problem.target]
        content = {"problem": names, "fold": fold, "method": list(method), "budget": budget, "seed": seed}
        job.write_text(json.dumps({**content, "recipe": recipe}), encoding="utf-8")
        command = [sys.executable, "-m", "bnnzoo_bench.child", str(job), str(output)]
        limit = _LONGEST_MULTIPLE * budget + _LONGEST_EXTRA
        environment = os.environ | {"TMPDIR": name}
        with errors.open("wb") as stderr:
            # The pipe closes when this process ends in any way, and then the child ends too.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stderr, stderr=stderr, env=environment)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                process.kill()
                process.communicate()
        if code == 0 and output.exists():
            return json.loads(output.read_text(encoding="utf-8"))
        reason = f"the fit exceeded the time limit of {_time(limit)}" if code is None else _crash(code, errors)
        return {"status": "failed", "reason": reason}


def _crash(code: int, errors: Path) -> str:
    """Return the reason why a process ended without a result, from its exit code and the file of its output."""
    text = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f": {text[-1][:300]}" if text else ""
    if code >= 0:
        return f"the process ended with exit code {code}{last}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = " (perhaps for lack of memory)" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{memory}{last}"


def _seconds_left(methods: Sequence[str], lines: Sequence[Line], budgets: Mapping[str, float]) -> float:
    """Estimate the total seconds of the remaining fits, one for each name in `methods`.

    The estimate for a fit is the mean of the earlier fits of its method, or the method's budget if there are none.
    """
    seconds: dict[str, list[float]] = {}
    for line in lines:
        if "seconds_fit" in line:
            seconds.setdefault(line["method"], []).append(line["seconds_fit"] + line["seconds_predict"])
    means = {name: sum(values) / len(values) for name, values in seconds.items()}
    return sum(means.get(name, budgets[name]) for name in methods)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
