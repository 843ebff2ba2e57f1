"""The entry points `sample`, `resume` and `open`, which return a run.

The command line and the Python interface both use them.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from bnnzoo import store
from bnnzoo.api.choose_recipe import recipe_and_data
from bnnzoo.api.data_notes import report_notes
from bnnzoo.api.keywords import options_of
from bnnzoo.api.run import Run
from bnnzoo.assembly import Problem
from bnnzoo.data import Dataset
from bnnzoo.data.formats.frames import EXPOSURE, with_exposure
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import user_paths
from bnnzoo.models import AbstractModel
from bnnzoo.models.own import Own
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.process import clock
from bnnzoo.process.interrupt import stop_on_interrupt
from bnnzoo.progress import Observer, Progress, ignore
from bnnzoo.progress_bar import observer_in_python
from bnnzoo.recipe import Recipe, recipe_from, resolve, to_yaml
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import host_devices
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.extension import extend
from bnnzoo.sampling.initial import budget as time_budget
from bnnzoo.sampling.initial import likelihood_choice
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.launch import launch, relaunch
from bnnzoo.store.run_parts import Unfinished

_LENGTHS = {"chains", "warmup", "draws", "thin", "seed", "chain_method", "mesh", "keep_warmup", "precision"}
_LENGTHS |= {"checkpoint_every", "start_steps", "start_held_out", "budget", "until"}
"""The options that apply to a posterior made in Python."""


def sample(
    model: str | Mapping[str, Any] | eqx.Module | None = None,
    sampler: str | Mapping[str, Any] | AbstractSampler | None = None,
    *,
    data: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool = True,
    observer: Observer | None = None,
    share_programs: bool = False,
    **options: Any,
) -> Run:
    """Sample a Bayesian neural network and return the run.

    Args:
        model: a name (`"mdn"`), a name with fields (`{"name": "mdn", "hidden": (50,)}`), your own network (any Equinox
            module that maps one input to its outputs), or your own posterior.
        sampler: a name, a name with fields, or a sampler object (`bnnzoo.Penalty(step_size=1e-3)`). Your own posterior
            requires a sampler object. If you give neither model nor sampler, both are chosen from the data.
        data: a pair `(x, y)` of arrays or data frames, a data frame, a `Dataset`, or any value that `--data` accepts.
            The default is the example data set of the model.
        out: the NetCDF file. The default is a temporary file, which is deleted when Python exits; `Run.save` copies it.
        force: overwrite an existing file.
        progress: show a progress bar in a notebook or on a terminal. Nothing is shown if the output goes to a pipe.
        observer: a function that is called with a `Progress` after each chunk, instead of the progress bar.
        share_programs: pad the data with rows of weight zero to a round number of rows, so that runs with similar
            numbers of rows share one compiled program. The posterior is the same, but the draws differ from the draws
            without padding. It affects only samplers that use all rows in every step (random-walk, mala, hmc, nuts,
            mclmc).
        options: the keys of a recipe file, which are also the options of the command line: `chains`, `warmup`, `draws`,
            `thin`, `seed`, `init`, `likelihood`, `prior`, `test_fraction`, ... `exposure` is the name of a column, or
            an array with one number per row.

    Returns:
        The finished run, opened from its file.

    An interrupt (Ctrl-C, or the stop button of a notebook) stops the run after the current chunk of draws, with a
    checkpoint from which `resume` continues it. A second interrupt stops at once.

    Warns:
        BnnzooWarning: if the run has not converged, or if its predictions contradict the data.

    Raises:
        UsageError: if an error can be detected before the run, for example in an option or in the data.
        InterruptedRunError: if the run was interrupted; the message shows how to continue it.
    """
    with observer_in_python(progress=progress and observer is None) as default_observer, stop_on_interrupt() as stop:
        settings = {
            "force": force,
            "observer": observer or default_observer,
            "stop": stop,
            "share_programs": share_programs,
        }
        if out is not None:
            run = _sample(model, sampler, data, user_paths.checked_path(out), settings, options)
        else:
            folder = Path(tempfile.mkdtemp(prefix="bnnzoo-"))
            try:
                run = _sample(model, sampler, data, folder / "run.nc", settings, options)
            except BaseException:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # the folder stays if an interrupted run left files in it
                raise
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if doubt := run.predictor.record.doubt:
        message = f"{run.attributes['model']} by {run.attributes['sampler']}: {doubt}"
        warnings.warn(message, BnnzooWarning, stacklevel=2)
    return run


def _sample(
    model: Any, sampler: Any, data: Any, out: Path, settings: Mapping[str, Any], options: dict[str, Any]
) -> Run:
    """Run `sample` and write the result to the file `out`."""
    arguments = {"model": model, "sampler": sampler, "data": data, **options, "out": out}
    started_by = store.Command.from_keywords(arguments)
    if isinstance(model, AbstractPosterior):
        by_hand = {name: settings[name] for name in ("force", "observer", "stop")} | {"started_by": started_by}
        return _run_by_hand(model, sampler, out=out, **by_hand, **options)
    start_time, own_model = clock.run_start(), None
    if isinstance(model, eqx.Module) and registry.name_of("models", model) is None:
        own_model = model if isinstance(model, AbstractModel) else Own(model)
        model = Own(model).name
    if (exposure := options.get("exposure")) is not None and not isinstance(exposure, str):
        if not isinstance(data, tuple) or len(data) != 2:
            raise UsageError("exposure: an array requires data=(x, y); for other data, give the name of a column")
        data, options["exposure"] = (with_exposure(data[0], exposure), data[1]), EXPOSURE
    in_memory = data is not None and not isinstance(data, str | Path)
    spec = None if data is None or in_memory else str(data)
    words = options_of({"model": model, "sampler": sampler, **options}) | {"data": spec}
    has_own_model = own_model is not None
    recipe, dataset, _ = recipe_and_data([], words, data if in_memory else None, has_own_model=has_own_model)
    run_options = {"dataset": dataset, "model": own_model, "started_by": started_by, "began": start_time}
    return run_recipe(recipe, out=out, **run_options, **settings)


def run_recipe(
    recipe: Recipe,
    *,
    out: Path,
    force: bool = False,
    observer: Observer | None = None,
    stop: Stop | None = None,
    dataset: Dataset | None = None,
    model: AbstractModel | None = None,
    started_by: store.Command | None = None,
    began: float | None = None,
    share_programs: bool = False,
) -> Run:
    """Run a recipe and write the result to `out`.

    Args:
        recipe: the resolved recipe.
        out: the NetCDF file.
        force: overwrite an existing file.
        observer: a function that is called with a `Progress` after each chunk.
        started_by: the command or the Python call. It is shown if the user must start the run again.
        share_programs: see `sample`.
        began: the start of the run, as a value of `time.perf_counter`. The default is the time of `clock.run_start`.
        stop: a function that is called between chunks of steps. If it returns a signal number, the run writes a
            checkpoint and ends.
        dataset: data in memory, instead of the data of the recipe.
        model: an unregistered model, instead of the model of the recipe.

    Raises:
        UsageError: if the recipe or the data are invalid. The error is raised before anything is compiled or written.
        InterruptedRunError: if `stop` returned a signal number.
    """
    began = clock.run_start() if began is None else began
    user_paths.refuse_input_as_output(out, [recipe.data, recipe.keep_at, recipe.init_file])
    with _jax_for(recipe):
        tell = _without_repeated_notes(observer)
        tell(Progress("start", 0, 1, note="reading data"))
        problem = Problem.from_recipe(recipe, dataset, model)
        report_notes(problem, observer, tell)
        launch(
            problem,
            out,
            force=force,
            started_by=started_by,
            start_time=began,
            in_bucket=share_programs,
            tell=tell,
            stop=stop,
        )
    return open(out, model=model)


def resume(
    path: str | Path,
    *,
    draws: int | None = None,
    budget: str | None = None,
    progress: bool = True,
    observer: Observer | None = None,
    stop: Stop | None = None,
    allow_inexact: bool = False,
    from_part: int | None = None,
    break_lock: bool = False,
    model: eqx.Module | None = None,
) -> Run:
    """Resume an unfinished run from its checkpoint, or add draws to a finished run.

    The result equals the result of an uninterrupted run, bit for bit. If the run is finished, but a killed process left
    part files beside it, these files are removed, and the run is opened.

    With `draws` or `budget`, the chains of a finished run continue from their last state. Its file stays until the
    longer run replaces it. Groups that `evaluate` has added are not in the new file.

    Args:
        path: the NetCDF file of the run.
        draws: for a finished run: the new number of draws per chain, with the present draws.
        budget: for a finished run: additional time, such as "2m". The run ends earlier if the chains have converged.
        progress: show the progress, as in `sample`.
        observer: a function that is called with a `Progress` after each chunk, instead of the progress bar.
        stop: a function that is called between chunks of steps. If it returns a signal number, the run writes a
            checkpoint and ends.
        allow_inexact: resume even if this machine would not produce the same draws.
        from_part: number of a damaged part file. The run then continues from the newest checkpoint that needs only the
            part files before this number.
        break_lock: take over the run from another process that holds its lock but is no longer active.
        model: your own network, if the run has one.

    Raises:
        UsageError: if there is nothing to resume, if draws cannot be added, or if this machine would not produce the
            same draws and `allow_inexact` is false.
    """
    began, out, own = clock.run_start(), user_paths.checked_path(path), _own(model)
    adds_draws = draws is not None or budget is not None
    if adds_draws and from_part is not None:
        raise UsageError(
            f"{out}: [[from_part]] is only for an unfinished run, and draws are added to a finished one; use "
            "[[from_part]], or [[draws]] or [[budget]]"
        )
    if from_part is None and store.remove_leftovers(out) and not adds_draws:
        return open(out, model=model)
    unfinished = None if adds_draws else store.resumable(out, from_part)
    recipe = _stored_recipe(out, store.attributes_of(out) if unfinished is None else unfinished[0].attributes)
    with (
        observer_in_python(progress=progress and observer is None) as shown,
        stop_on_interrupt() as interrupt,
        _jax_for(recipe),
    ):
        if unfinished is None:
            unfinished = _extended(out, draws=draws, budget=budget, model=own)
        relaunch(
            *unfinished,
            extends=adds_draws,
            allow_inexact=allow_inexact,
            break_lock=break_lock,
            start_time=began,
            model=own,
            tell=_without_repeated_notes(observer or shown),
            stop=stop or interrupt,
        )
    return open(out, model=model)


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
    """Turn a finished run into an unfinished run with more draws; return it and its checkpoint."""
    # Only the first process checks the file, because the part files that `extend` writes would fail the check.
    with Processes.current().share_first_error():
        if Processes.current().is_first:
            extend(out, draws=draws, budget=budget, model=model)
    return store.resumable(out)


def open(path: str | Path, *, model: eqx.Module | None = None) -> Run:
    """Open a run from its file. An unfinished run has only the draws so far.

    Args:
        path: the NetCDF file of the run.
        model: your own network or posterior, if the run has one. The file contains the draws, but not your code.

    Raises:
        UsageError: if there is no run at this path.
    """
    own = model if isinstance(model, AbstractPosterior) else _own(model)
    path = user_paths.checked_path(path)
    return Run(store.open_tree(path), path, model=own)


def opened(run: Run | str | Path) -> Run:
    """Return a run as it is, or open the file of a run that is given as a path."""
    return run if isinstance(run, Run) else open(run)


def resolved_recipe(recipe: Recipe, dataset: Dataset | None = None) -> str:
    """Return the recipe as YAML with the values of all fields that are known before the run.

    If there is a time budget, some fields are determined later, and the likelihood may be one of them.
    """
    with _jax_for(recipe):
        problem = Problem.from_recipe(recipe, dataset)
        words = time_budget.recipe_to_write(problem)
        if likelihood_choice.is_likelihood_open(problem):
            del words["likelihood"]
        return to_yaml(words)


def _run_by_hand(
    posterior: AbstractPosterior,
    sampler: Any,
    *,
    out: Path,
    force: bool,
    observer: Observer | None,
    stop: Stop | None,
    started_by: store.Command,
    init: Literal["map", "prior"] | Float[Array | np.ndarray, "chain dim"] = "map",
    **options: Any,
) -> Run:
    """Run `sample` for a posterior made in Python. The file contains the draws, but not the posterior."""
    if not isinstance(sampler, AbstractSampler):
        raise UsageError("sampler: a posterior made in Python needs a sampler object, such as bnnzoo.Penalty(...)")
    if void := sorted(set(options) - _LENGTHS):
        raise UsageError(
            f"{', '.join(void)}: not supported for a posterior made in Python, which has its own data, prior "
            "and likelihood"
        )
    began = clock.run_start()
    named = isinstance(init, str)
    words = {**options, "init": init if named else None}
    recipe = resolve(type(posterior).__name__, type(sampler).__name__, [], words)
    with _jax_for(recipe):
        problem = Problem.by_hand(recipe, posterior, sampler)
        starts = None if named else init
        launch(
            problem,
            out,
            force=force,
            starts=starts,
            started_by=started_by,
            start_time=began,
            tell=_without_repeated_notes(observer),
            stop=stop,
        )
    return open(out, model=posterior)


def _own(model: eqx.Module | None) -> AbstractModel | None:
    return model if model is None or isinstance(model, AbstractModel) else Own(model)


@contextlib.contextmanager
def _jax_for(recipe: Recipe) -> Iterator[None]:
    """Use the devices and the precision of the recipe in JAX."""
    jax_settings.prepare(host_devices(recipe))
    with jax_settings.arithmetic(recipe.precision):
        yield


def _without_repeated_notes(observer: Observer | None) -> Observer:
    """Return the observer in the first process of a run, and an observer that does nothing in its other processes."""
    return observer if observer is not None and Processes.current().is_first else ignore
