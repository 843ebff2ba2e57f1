"""The runs of a fleet on disk: which of them are missing, and one table of what they gave."""

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
"""The table's columns: the first of these numbers that a row has. All others are in the JSON."""

_OF_ROWS = (
    *("data", "target", "columns", "drop", "categories", "missing", "missing_code", "unseen", "censored"),
    *("separator", "decimal", "skip_rows", "encoding", "test_fraction", "split_seed"),
)
"""What of a recipe, beside the task, says which rows train."""

MOST_COMPARED = 4
"""Runs that are compared pair by pair without being asked."""


def missing_of(jobs: Sequence[Job], *, force: bool) -> list[Job]:
    """The jobs whose runs are not complete; all of them with `force`.

    Raises:
        UsageError: where a run of another recipe or of other rows is in the way, or one that is damaged.
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
            raise UsageError(f"{job.out}: exists, by another recipe; use another -o, or --force to replace it")
        if there == "partial":
            raise UsageError(f"{job.out}: stopped before its end, and what it could go on from is gone; use --force")
        try:
            about = store.attributes_of(job.out)
        except UsageError as error:
            raise UsageError(f"{error}; remove it, or --force to replace it") from error
        try:
            now = rows_now.sha256(job.recipe, str(about["task"]))
        except UsageError as error:  # what is not here cannot be seen to have changed
            warnings.warn(f"{job.out}: were its rows changed? not known: {error}", BnnzooWarning, stacklevel=2)
            continue
        if now != about["data_sha256"]:
            raise UsageError(
                f"{job.out}: exists, of other rows than {job.recipe.data} has now; "
                "use another -o, or --force to replace it"
            )
    return missing


class Room:
    """Where a fleet's runs go: beside each lies what was asked for, NAME.nc.yaml.

    A complete run stays until another takes its place, and so do the words that it was asked for in.
    """

    def __init__(self) -> None:
        self._made: set[Path] = set()

    def prepare(self, jobs: Sequence[Job], *, force: bool) -> list[Job]:
        """The jobs, each with the run that it replaces. With `force` what is unfinished there is removed.

        Raises:
            UsageError: where there can be no folder for them.
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
        """Say what a new run was asked for in, once it has taken an old one's place."""
        if not outcome.code and job.replaces:
            _write_recipe(job)

    def tidy(self, jobs: Sequence[Job]) -> None:
        """Remove what was prepared for runs that nobody has begun."""
        from bnnzoo import store

        for job in jobs:
            begun = store.parts_folder(job.out).exists() or store.how_far(job.out) != "absent"
            if not begun and _recipe_file(job) in self._made:
                _recipe_file(job).unlink(missing_ok=True)


def row_of(job: Job, outcome: Outcome | None) -> dict[str, Any]:
    """What a job's file says; its outcome is None where it was there before."""
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
    except Exception as error:  # also of a plugin: one row is lost, not the table
        return {**found, "error": str(error) if isinstance(error, BnnzooError) else one_line(error)}


def print_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as a table, without the columns that no row has."""
    cells = [[_cell(row, keys) for keys in COLUMNS.values()] for row in rows]
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
    print_table([list(COLUMNS)[i] for i in used], [[line[i] for i in used] for line in cells])


def compared(files: Sequence[Path]) -> list[str]:
    """Which of a few runs on the same rows is better, a sentence a pair; nothing of many, or of runs on other rows."""
    if not 2 <= len(files) <= MOST_COMPARED:
        return []
    from bnnzoo.comparison import compare

    try:
        return compare(files).words
    except UsageError:
        return []


def next_command(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """What one does with such runs: join those that differ in their seed, compare others, look at a single one."""
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
    """The training rows of recipes as they are now; those of several jobs are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], str] = {}

    def sha256(self, recipe: Recipe, task: str) -> str:
        """Of the rows that the recipe would train on."""
        from bnnzoo.data import load_asked, split

        which = (*(getattr(recipe, name) for name in _OF_ROWS), task)
        if which not in self._known:
            rows = load_asked(recipe).as_task(task)
            train, _ = split(rows, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
            self._known[which] = train.sha256()
        return self._known[which]


def _is_of(job: Job) -> bool:
    """Whether what lies where a job's run belongs was asked for in the same words, and is what they ask for."""
    from bnnzoo import store

    try:
        if _recipe_file(job).read_text(encoding="utf-8") != _text(job):
            return False
        about = store.attributes_of(job.out)
    except (OSError, UnicodeDecodeError):
        return False
    except UsageError:  # damaged: that is said where it is looked at
        return True
    # A run that was to take its place may have been gone on with by hand.
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
