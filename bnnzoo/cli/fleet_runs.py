"""The runs of a fleet on disk: the missing ones, and a table of the results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnnzoo.cli.output import print_table
from bnnzoo.discovery import one_line
from bnnzoo.errors import BnnzooError, BnnzooWarning, UsageError
from bnnzoo.fleet import Job, Outcome
from bnnzoo.recipe import Recipe, as_dict, to_yaml
from bnnzoo.shell import quoted

COLUMNS = {
    "recipe": ("recipe",),
    "sampler": ("sampler",),
    "acceptance": ("acceptance_rate",),
    "R-hat": ("rhat",),
    "ESS": ("ess_bulk",),
    "NLL": ("nll_standardised", "nll"),
    "NLL moments": ("nll_moment_standardised",),
    "RMSE": ("rmse_standardised", "rmse"),
    "accuracy": ("accuracy",),
    "seconds": ("seconds",),
    "error": ("error",),
}
"""The table's columns with the keys of a row; the first present key is shown. The JSON has all values."""

_OF_ROWS = (
    *("data", "target", "columns", "drop", "categories", "missing", "missing_code", "unseen", "censored"),
    *("separator", "decimal", "skip_rows", "encoding", "test_fraction", "split_seed"),
)
"""The recipe keys that determine the training rows, apart from the task."""

MOST_COMPARED = 4
"""Maximal number of runs that are compared pair by pair automatically."""


def missing_of(jobs: Sequence[Job], *, force: bool) -> list[Job]:
    """Return the jobs whose runs are not complete, or all jobs with `force`.

    Raises:
        UsageError: if a run with another recipe, other rows or damage has the same file.
    """
    from bnnzoo import store

    missing, rows_now = [], _RowsNow()
    for job in jobs:
        there = store.how_far(job.out)
        if there != "complete" or force:
            missing.append(job)
        if there == "absent" or force:
            continue
        if not _is_of(job):
            raise UsageError(f"{job.out}: exists, made by another recipe; use another -o, or --force to replace it")
        if there == "partial":
            raise UsageError(
                f"{job.out}: stopped before its end, and its parts are gone; use --force to start it again"
            )
        try:
            about = store.attributes_of(job.out)
        except UsageError as error:
            raise UsageError(f"{error}; remove it, or --force to replace it") from error
        try:
            now = rows_now.sha256(job.recipe, str(about["task"]))
        except UsageError as error:  # without the data a change cannot be detected
            warnings.warn(f"{job.out}: cannot test whether its rows were changed: {error}", BnnzooWarning, stacklevel=2)
            continue
        if now != about["data_sha256"]:
            raise UsageError(
                f"{job.out}: exists, made from other rows than {job.recipe.data} has now; use another -o, or "
                "--force to replace it"
            )
    return missing


class Room:
    """The files of a fleet's runs. Beside each run lies its requested recipe, NAME.nc.yaml.

    A complete run stays until another one replaces it, and so does its recipe file.
    """

    def __init__(self) -> None:
        self._made: set[Path] = set()

    def prepare(self, jobs: Sequence[Job], *, force: bool) -> list[Job]:
        """Return the jobs, each with the run that it replaces. With `force`, unfinished runs are removed.

        Raises:
            UsageError: if their folder cannot be made.
        """
        from bnnzoo import store
        from bnnzoo.store.atomic import make_folder

        found = []
        for job in jobs:
            make_folder(job.out.parent)
            there = store.how_far(job.out)
            replaces = store.identity_of(job.out) if force and there == "complete" else ""
            if force:
                store.discard(job.out, finished=not replaces)
            if not replaces:
                if not _recipe_file(job).exists():
                    self._made.add(_recipe_file(job))
                _write_recipe(job)
            found.append(replace(job, replaces=replaces))
        return found

    def end(self, job: Job, outcome: Outcome) -> None:
        """Write the recipe of a new run once it has replaced an old one."""
        if not outcome.code and job.replaces:
            _write_recipe(job)

    def tidy(self, jobs: Sequence[Job]) -> None:
        """Remove the prepared files of runs that never started."""
        from bnnzoo import store

        for job in jobs:
            begun = store.parts_folder(job.out).exists() or store.how_far(job.out) != "absent"
            if not begun and _recipe_file(job) in self._made:
                _recipe_file(job).unlink(missing_ok=True)


def row_of(job: Job, outcome: Outcome | None) -> dict[str, Any]:
    """Return the table row of a job's file; the outcome is None if the run existed before."""
    found: dict[str, Any] = {"recipe": job.name, "sampler": job.recipe.sampler.name}
    found |= {} if outcome is None else {"seconds": outcome.seconds}
    if outcome is not None and outcome.code:
        said = f": {outcome.said}" if outcome.said else ""
        return {**found, "error": f"exit code {outcome.code}{said}"}
    from bnnzoo import zoo

    try:
        run = zoo.open(job.out)
        about = run.attributes
        found |= {"model": about["model"], "sampler": about["sampler"]}
        found |= {key: float(about[key]) for key in about if key.startswith("seconds_") or key == "target_evaluations"}
        scores = run.evaluate(save=False) if run.predictor.record.has_test_rows else {}
        return {**found, **run.diagnose(), **scores}
    except Exception as error:  # also errors of a plugin, so that one row is lost and not the table
        return {**found, "error": str(error) if isinstance(error, BnnzooError) else one_line(error)}


def print_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows as a table without empty columns."""
    cells = [[_cell(row, keys) for keys in COLUMNS.values()] for row in rows]
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
    print_table([list(COLUMNS)[i] for i in used], [[line[i] for i in used] for line in cells])


def compared(files: Sequence[Path]) -> list[str]:
    """Return a sentence for each pair of a few runs on the same rows; empty for many runs, or for other rows."""
    if not 2 <= len(files) <= MOST_COMPARED:
        return []
    from bnnzoo.comparison import compare

    try:
        return compare(files).words
    except UsageError:
        return []


def next_command(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the next useful command: merge runs with different seeds, compare several runs, or report a single one."""
    names = [str(row["recipe"]) for row in rows if "error" not in row]
    shared: dict[str, int] = {}
    for name in names:
        stem, by_seed, _ = name.rpartition(",seed=")
        if by_seed:
            shared[stem] = shared.get(stem, 0) + 1
    several = [stem for stem, count in shared.items() if count > 1]
    if several:
        stem = quoted(folder / several[0])
        return f"bnnzoo merge {stem},seed=*.nc -o {stem}.nc"
    if len(names) > 1:
        return f"bnnzoo compare {' '.join(quoted(folder / f'{name}.nc') for name in names)}"
    return f"bnnzoo report {quoted(folder / names[0])}.nc -o report.html" if names else ""


class _RowsNow:
    """The current training rows of recipes; equal rows of several jobs are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], str] = {}

    def sha256(self, recipe: Recipe, task: str) -> str:
        """Return the SHA-256 of the rows that the recipe would train on."""
        from bnnzoo.data import load_asked, split

        which = (*(getattr(recipe, name) for name in _OF_ROWS), task)
        if which not in self._known:
            rows = load_asked(recipe).as_task(task)
            train, _ = split(rows, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
            self._known[which] = train.sha256()
        return self._known[which]


def _is_of(job: Job) -> bool:
    """Whether the existing run of a job was requested with the same recipe, and has its seed, model and sampler."""
    from bnnzoo import store

    try:
        if _recipe_file(job).read_text(encoding="utf-8") != _text(job):
            return False
        about = store.attributes_of(job.out)
    except (OSError, UnicodeDecodeError):
        return False
    except UsageError:  # damage is reported where the file is read
        return True
    # The user may have resumed by hand a run that was to replace this one.
    asked = {"seed": job.recipe.seed, "model": job.recipe.model.name, "sampler": job.recipe.sampler.name}
    return all(str(about.get(name)).rpartition(":")[2] == str(v).rpartition(":")[2] for name, v in asked.items())


def _recipe_file(job: Job) -> Path:
    return job.out.with_name(f"{job.out.name}.yaml")


def _write_recipe(job: Job) -> None:
    from bnnzoo.store.atomic import write_whole

    content = _text(job).encode()
    write_whole(_recipe_file(job), lambda file: file.write(content))


def _text(job: Job) -> str:
    return to_yaml(as_dict(job.recipe))


def _cell(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    value = next((row[key] for key in keys if key in row), "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
