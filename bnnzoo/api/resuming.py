"""The entry point `resume`, which continues an interrupted run or adds draws to a finished one."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx

from bnnzoo import store
from bnnzoo.api import entrances
from bnnzoo.api.run import Run
from bnnzoo.errors import UsageError
from bnnzoo.files import user_paths
from bnnzoo.models import AbstractModel
from bnnzoo.observers.selection import LogTo
from bnnzoo.process import clock
from bnnzoo.process.interrupt import refuse_late_interrupt, stop_on_interrupt
from bnnzoo.progress import Observer
from bnnzoo.progress_bar import observer_in_python
from bnnzoo.recipe import Recipe, recipe_from
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.extension import extend
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.launch import relaunch
from bnnzoo.store.run_parts import Unfinished


def resume(
    path: str | Path,
    *,
    draws: int | None = None,
    budget: str | None = None,
    progress: bool = True,
    observer: Observer | None = None,
    log_to: LogTo = None,
    stop: Stop | None = None,
    allow_inexact: bool = False,
    from_part: int | None = None,
    break_lock: bool = False,
    model: eqx.Module | None = None,
) -> Run:
    """Resume an unfinished run from its checkpoint, or add draws to a finished run.

    The result equals the result of an uninterrupted run, bit for bit. If the run is finished, but a killed process left
    part files beside it, these files are removed, and the run is opened.

    With `draws` or `budget`, the chains of a finished run continue from their last state. The file stays until the
    longer run replaces it. Groups that `evaluate` has added are not in the new file.

    Args:
        path: the NetCDF file of the run.
        draws: for a finished run: the new number of draws per chain, including the present draws.
        budget: for a finished run: additional time, such as "2m". The run ends earlier if the chains have converged.
        progress: show the progress, as in `sample`.
        observer: a function that is called with a `Progress` after each chunk of steps, instead of the progress bar.
        log_to: a log of the run, as in `sample`. Name it again when you resume, because the file does not store it.
        stop: a function that is called between chunks of steps. If it returns a signal number, the run writes a
            checkpoint and ends.
        allow_inexact: resume even if the draws will differ from those of an uninterrupted run.
        from_part: number of a damaged part file. The run then continues from the newest checkpoint that needs only the
            part files before this number.
        break_lock: take over the run from another process that has locked the run but is no longer active.
        model: your own network, if the run has one.

    Raises:
        UsageError: if there is nothing to resume, if draws cannot be added, if a needed file is damaged, if another
            process is writing the run, or if the draws would differ from those of an uninterrupted run and
            `allow_inexact` is false.
        InterruptedRunError: if the run was interrupted; the message shows how to continue it, or how to open it if it
            was complete.
        BnnzooError: if the chains cannot continue; the message states where the draws so far are.
    """
    began, out, own_part = clock.run_start(), user_paths.checked_path(path), entrances.own_model(model)
    if out.is_symlink() and store.parts_state(out) == "absent":
        out = out.resolve()  # the longer run must replace the target of a link, not the link itself
    adds_draws = draws is not None or budget is not None
    if adds_draws and from_part is not None:
        raise UsageError(
            f"{out}: [[from_part]] is for an unfinished run, but [[draws]] and [[budget]] add draws to a finished "
            "run; remove [[from_part]], or remove [[draws]] and [[budget]]"
        )
    if from_part is None and store.remove_leftovers(out) and not adds_draws:
        return entrances.open(out, model=model)
    unfinished = None if adds_draws else store.resumable(out, from_part)
    recipe = _stored_recipe(out, store.attributes_of(out) if unfinished is None else unfinished[0].attributes)
    with (
        observer_in_python(progress=progress and observer is None) as screen,
        stop_on_interrupt() as interrupt,
        entrances.jax_for(recipe),
    ):
        log = entrances.first_process_log(log_to)
        if unfinished is None:
            unfinished = _extended(out, draws=draws, budget=budget, model=own_part)
        relaunch(
            *unfinished,
            extends=adds_draws,
            allow_inexact=allow_inexact,
            break_lock=break_lock,
            start_time=began,
            model=own_part,
            tell=entrances.first_process_observer(observer or screen),
            stop=stop or interrupt,
            log=log,
        )
        run = entrances.open(out, model=model)
        refuse_late_interrupt(interrupt, run.path)
    return run


def _stored_recipe(out: Path, attributes: store.Attributes) -> Recipe:
    """Return the recipe of a run from its root attributes.

    Raises:
        UsageError: if the posterior was made in Python, because no recipe describes it.
    """
    if "signature" not in attributes:
        raise UsageError(
            f"{out}: the posterior of this run was made in Python and is not stored in the file; start the run again"
        )
    return recipe_from(str(attributes["recipe"]), source=f"{out}: recipe")


def _extended(
    out: Path, *, draws: int | None, budget: str | None, model: AbstractModel | None
) -> tuple[Unfinished, store.Checkpoint]:
    """Turn a finished run into an unfinished run with more draws. Return the unfinished run and its checkpoint."""
    # Only the first process checks the file, because the part files that `extend` writes would fail the check.
    with Processes.current().share_first_error():
        if Processes.current().is_first:
            extend(out, draws=draws, budget=budget, model=model)
    return store.resumable(out)
