"""Files and results of a fleet, which is the set of all runs of one `bnnzoo zoo run`."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnnzoo.cli.output import print_table, scores_or_warning
from bnnzoo.errors import BnnzooError, BnnzooWarning, DamagedError, UsageError
from bnnzoo.files.shell import quoted
from bnnzoo.fleet import Job, Outcome
from bnnzoo.plugins.failures import one_line
from bnnzoo.recipe import Recipe, as_dict, to_yaml

if TYPE_CHECKING:
    from bnnzoo.data import Signature

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
"""Columns of the table. Each has a list of keys, and a cell shows the value of the first key that the row has."""

MAX_COMPARED = 4
"""Largest number of runs that are compared pair by pair automatically."""


def missing_jobs(jobs: Sequence[Job], *, force: bool) -> list[Job]:
    """Return the jobs whose runs are not complete; with `force`, return all jobs.

    Raises:
        UsageError: without `force`, if the file of a job is damaged, contains a run with another recipe or other rows,
            or contains a run that stopped before its end and has no checkpoint.
    """
    from bnnzoo import store

    missing, current_rows = [], _CurrentRows()
    for job in jobs:
        state = store.run_state(job.out)
        if state != "complete" or force:
            missing.append(job)
        if state == "absent" or force:
            continue
        if not _is_run_of_job(job):
            raise UsageError(
                f"{job.out}: was made with another recipe; use another folder with -o, or --force to replace the run"
            )
        if state == "partial":
            raise UsageError(
                f"{job.out}: the run stopped before its end, and has no checkpoint; use --force to start the run again"
            )
        try:
            attributes = store.attributes_of(job.out)
        except UsageError as error:
            raise UsageError(f"{error}; remove the file, or use --force to replace it") from error
        try:
            current_sha256 = current_rows.sha256(job.recipe, str(attributes["task"]))
        except UsageError as error:  # without the data file, a change of the rows cannot be detected
            warnings.warn(f"{job.out}: cannot test whether its rows have changed: {error}", BnnzooWarning, stacklevel=2)
            continue
        if current_sha256 != attributes["data_sha256"]:
            raise UsageError(
                f"{job.out}: the rows of {job.recipe.data} have changed since this run; use another folder with -o, or "
                "--force to replace the run"
            )
    return missing


class RunFiles:
    """The files of a fleet's runs: NAME.nc, and next to it the requested recipe, NAME.nc.yaml.

    A complete run and its recipe stay until a new run replaces them.
    """

    def __init__(self) -> None:
        self._made: set[Path] = set()

    def prepare(self, jobs: Sequence[Job], *, force: bool) -> list[Job]:
        """Return the jobs, each with the identity of the old run that it replaces.

        The recipes of the jobs are written, except for jobs that replace a complete run. With `force`, unfinished runs
        are removed.

        Raises:
            UsageError: if the folder cannot be created.
        """
        from bnnzoo import store
        from bnnzoo.files.atomic import make_folder

        prepared = []
        for job in jobs:
            make_folder(job.out.parent)
            state = store.run_state(job.out)
            replaces = store.identity_of(job.out) if force and state == "complete" else ""
            if force:
                store.discard(job.out, finished=not replaces)
            if not replaces:
                if not _recipe_file(job).exists():
                    self._made.add(_recipe_file(job))
                _write_recipe(job)
            prepared.append(replace(job, replaces=replaces))
        return prepared

    def end(self, job: Job, outcome: Outcome) -> None:
        """Write the recipe of a job if its run has replaced an old run."""
        if not outcome.code and job.replaces:
            _write_recipe(job)

    def tidy(self, jobs: Sequence[Job]) -> None:
        """Remove the recipe files that `prepare` made for runs that never started."""
        from bnnzoo import store

        for job in jobs:
            has_begun = store.parts_folder(job.out).exists() or store.run_state(job.out) != "absent"
            if not has_begun and _recipe_file(job) in self._made:
                _recipe_file(job).unlink(missing_ok=True)


def row_of(job: Job, outcome: Outcome | None) -> dict[str, Any]:
    """Return the row of a job in the table of results. `outcome` is None if the run was complete before the command."""
    row: dict[str, Any] = {"recipe": job.name, "sampler": job.recipe.sampler.name}
    row |= {} if outcome is None else {"seconds": outcome.seconds}
    if outcome is not None and outcome.code:
        last_line = f": {outcome.last_message}" if outcome.last_message else ""
        return {**row, "error": f"exit code {outcome.code}{last_line}"}
    from bnnzoo.api import entrances

    try:
        run = entrances.open(job.out)
        attributes = run.attributes
        row |= {"model": attributes["model"], "sampler": attributes["sampler"]}
        row |= {
            key: float(attributes[key])
            for key in attributes
            if key.startswith("seconds_") or key == "target_evaluations"
        }
        has_test_rows = run.predictor.record.has_test_rows
        scores = scores_or_warning(job.out, lambda: run.evaluate(save=False)) if has_test_rows else {}
        return {**row, **run.diagnose(), **scores}
    except Exception as error:  # one failure, for example of a plugin, must not end the table
        return {**row, "error": str(error) if isinstance(error, BnnzooError) else one_line(error)}


def print_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows as a table without empty columns."""
    cells = [[_cell(row, keys) for keys in COLUMNS.values()] for row in rows]
    used_columns = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
    print_table([list(COLUMNS)[i] for i in used_columns], [[line[i] for i in used_columns] for line in cells])


def compare_files(files: Sequence[Path]) -> list[str]:
    """Return sentences that compare two to `MAX_COMPARED` runs with the same rows; empty for other numbers or rows.

    If a file is damaged, the only sentence states the damage.
    """
    if not 2 <= len(files) <= MAX_COMPARED:
        return []
    from bnnzoo.api.compare import compare

    try:
        return compare(files).words
    except DamagedError as error:
        return [str(error)]
    except UsageError:
        return []


def next_command(folder: Path, rows: Sequence[Mapping[str, Any]], recipes: Mapping[str, Recipe]) -> str:
    """Return the next useful command: merge runs with different seeds, compare several runs, or report the first one.

    Runs are merged only if all parameters are sampled, because the seed determines the fixed parameters.
    """
    names = [str(row["recipe"]) for row in rows if "error" not in row]
    files_by_stem: dict[str, list[Path]] = {}
    for name in names:
        stem, separator, _ = name.rpartition(",seed=")
        if separator and recipes[name].stochastic == "all":
            files_by_stem.setdefault(stem, []).append(folder / f"{name}.nc")
    for stem, files in files_by_stem.items():
        if len(files) > 1:
            # The folder may also contain files of failed runs, which cannot be merged.
            has_others = not set(folder.glob(f"{glob.escape(stem)},seed=*.nc")) <= {*files}
            merged = " ".join(map(quoted, files)) if has_others else f"{quoted(folder / stem)},seed=*.nc"
            return f"bnnzoo merge {merged} -o {quoted(folder / stem)}.nc"
    if len(names) > 1 and _are_comparable([folder / f"{name}.nc" for name in names]):
        return f"bnnzoo compare {' '.join(quoted(folder / f'{name}.nc') for name in names)}"
    return f"bnnzoo report {quoted(folder / names[0])}.nc -o report.html" if names else ""


def _are_comparable(files: Sequence[Path]) -> bool:
    """Whether `bnnzoo compare` accepts the runs: each run has test rows, and all runs have the same training rows."""
    from bnnzoo import store
    from bnnzoo.evaluation.contents.record import Record
    from bnnzoo.store.schema import ROW_SOURCE

    with ExitStack() as trees:
        records = [Record(trees.enter_context(store.open_tree(file)), file) for file in files]
        return len({record.attributes["data_sha256"] for record in records}) == 1 and all(
            record.has_test_rows and (record.has_training_rows or ROW_SOURCE in record.attributes) for record in records
        )


class _CurrentRows:
    """Hashes of the training rows that the data files contain now. Rows that several jobs share are read only once."""

    def __init__(self) -> None:
        self._sha256_by_rows: dict[tuple[Any, ...], str] = {}

    def sha256(self, recipe: Recipe, task: str) -> str:
        """Return the SHA-256 of the rows that the recipe would train on."""
        from bnnzoo.data import load_recipe_data, split
        from bnnzoo.data.loading.load import ROW_FIELDS

        fields = (*ROW_FIELDS, "test_fraction", "split_seed", "prior_from")
        row_key = (*(getattr(recipe, name) for name in fields), task)
        if row_key not in self._sha256_by_rows:
            rows = load_recipe_data(recipe, signature=_prior_signature(recipe)).as_task(task)
            train, _ = split(rows, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
            self._sha256_by_rows[row_key] = train.sha256()
        return self._sha256_by_rows[row_key]


def _prior_signature(recipe: Recipe) -> Signature | None:
    """Return the signature of the run in `prior_from`, by which new rows are encoded; None without `prior_from`."""
    if recipe.prior_from is None:
        return None
    from bnnzoo import store
    from bnnzoo.data import Signature

    return Signature.from_json(store.attributes_of(Path(recipe.prior_from))["signature"])


def _is_run_of_job(job: Job) -> bool:
    """Whether the existing file of a job was made with the recipe of the job."""
    from bnnzoo import store

    try:
        if _recipe_file(job).read_text(encoding="utf-8") != _text(job):
            return False
        attributes = store.attributes_of(job.out)
    except (OSError, UnicodeDecodeError):
        return False
    except UsageError:  # the caller reads the file and reports the damage
        return True
    # The user may have resumed a replacement of this run by hand. The recipe file then still has the old recipe.
    expected = {"seed": job.recipe.seed, "model": job.recipe.model.name, "sampler": job.recipe.sampler.name}
    return all(
        str(attributes.get(name)).rpartition(":")[2] == str(value).rpartition(":")[2]
        for name, value in expected.items()
    )


def _recipe_file(job: Job) -> Path:
    return job.out.with_name(f"{job.out.name}.yaml")


def _write_recipe(job: Job) -> None:
    from bnnzoo.files.atomic import write_atomically

    content = _text(job).encode()
    write_atomically(_recipe_file(job), lambda file: file.write(content))


def _text(job: Job) -> str:
    return to_yaml(as_dict(job.recipe))


def _cell(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    value = next((row[key] for key in keys if key in row), "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
