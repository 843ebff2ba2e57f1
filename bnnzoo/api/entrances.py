"""The entry points `sample` and `open`, which return a run.

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
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from bnnzoo import store
from bnnzoo.api.choose_recipe import recipe_and_data
from bnnzoo.api.data_notes import report_notes
from bnnzoo.api.keywords import options_of
from bnnzoo.api.run import Run
from bnnzoo.assembly import Problem, sequential
from bnnzoo.assembly.network_posterior import subspace_choice
from bnnzoo.data import Dataset
from bnnzoo.data.formats.frames import EXPOSURE, with_exposure
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import user_paths
from bnnzoo.finding import setting
from bnnzoo.fleet.row_shards import row_shards
from bnnzoo.models import AbstractModel
from bnnzoo.models.own import Own
from bnnzoo.observers.broadcast import Broadcast
from bnnzoo.observers.selection import LogTo, select_observers
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.process import clock
from bnnzoo.process.interrupt import refuse_late_interrupt, stop_on_interrupt
from bnnzoo.progress import Observer, Progress, ignore
from bnnzoo.progress_bar import observer_in_python
from bnnzoo.recipe import Recipe, resolve, to_yaml
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import host_devices
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import budget as time_budget
from bnnzoo.sampling.initial import likelihood_choice
from bnnzoo.sampling.job import Stop
from bnnzoo.sampling.launch import launch

_POSTERIOR_OPTIONS = {"chains", "warmup", "draws", "thin", "seed", "chain_method", "mesh", "keep_warmup", "precision"}
_POSTERIOR_OPTIONS |= {"checkpoint_every", "start_steps", "start_held_out", "budget", "until"}
"""The options that a posterior made in Python supports, besides `init`."""


def sample(
    model: str | Mapping[str, Any] | eqx.Module | None = None,
    sampler: str | Mapping[str, Any] | AbstractSampler | None = None,
    *,
    data: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool = True,
    observer: Observer | None = None,
    log_to: LogTo = None,
    share_programs: bool = False,
    scheduler: str | None = None,
    **options: Any,
) -> Run:
    """Sample a Bayesian neural network and return the run.

    Args:
        model: a name (`"mdn"`), a name with fields (`{"name": "mdn", "hidden": (50,)}`), your own network (any Equinox
            module that maps one input to its outputs), or your own posterior (an `AbstractPosterior`).
        sampler: a name, a name with fields, or a sampler object (`bnnzoo.Penalty(step_size=1e-3)`). Your own posterior
            requires a sampler object. If you give neither model nor sampler, both are chosen from the data.
        data: a pair `(x, y)` of arrays or data frames, a data frame, a `Dataset`, or any value that `--data` accepts.
            The default is the example data set of the model.
        out: the NetCDF file. The default is a temporary file, which is deleted when Python exits; `Run.save` copies it.
        force: overwrite an existing file or an unfinished run.
        progress: show a progress bar in a notebook or on a terminal. Nothing is shown if the output goes to a pipe.
        observer: a function that is called with a `Progress` after each chunk of steps, instead of the progress bar.
        log_to: a log of the run, such as `"jsonl:log.jsonl"`; an `AbstractObserver` of your own; or a list of these.
        share_programs: pad the data with rows of weight zero to a round number of rows, so that runs with similar
            numbers of rows share one compiled program. The posterior is the same, but the draws differ from the draws
            without padding. The data are padded only if all parameters are sampled, and only for samplers that use
            the density of all rows (random-walk, mala, hmc, nuts, mams, mclmc).
        scheduler: address of a Dask scheduler, such as tcp://host:8786. With `stochastic` "identified" or "linearised",
            its workers compute the derivatives at the mode, which are sums over all rows.
        options: the options of the command line, under the names that recipe files use: `chains`, `warmup`, `draws`,
            `thin`, `seed`, `init`, `likelihood`, `prior`, `test_fraction`, ... `exposure` is the name of a column, or
            an array with one number per row.

    Returns:
        The finished run, opened from its file.

    An interrupt (Ctrl-C, or the stop button of a notebook) stops the run after the current chunk of steps, with a
    checkpoint from which `resume` continues it. A second interrupt stops at once.

    Warns:
        BnnzooWarning: if the run has not converged, or if its predictions contradict the data.

    Raises:
        UsageError: if an error can be detected before the run, for example in an option or in the data.
        InterruptedRunError: if the run was interrupted; the message shows how to continue it, or how to open it if it
            was complete.
        BnnzooError: if the chains cannot continue; the message states where the draws so far are.
    """
    with observer_in_python(progress=progress and observer is None) as default_observer, stop_on_interrupt() as stop:
        settings = {
            "force": force,
            "observer": observer or default_observer,
            "stop": stop,
            "share_programs": share_programs,
            "log_to": log_to,
            "scheduler": scheduler,
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
        refuse_late_interrupt(stop, run.path)
    if out is None:
        atexit.register(shutil.rmtree, Path(str(run.path)).parent, ignore_errors=True)
    if doubt := run.predictor.record.doubt:
        message = f"{run.attributes['model']} by {run.attributes['sampler']}: {doubt}"
        warnings.warn(message, BnnzooWarning, stacklevel=2)
    return run


def _sample(
    model: Any, sampler: Any, data: Any, out: Path, settings: Mapping[str, Any], options: dict[str, Any]
) -> Run:
    """Run `sample` and write the run to `out`. `settings` are keywords of `run_recipe`, `options` keys of a recipe."""
    arguments = {"model": model, "sampler": sampler, "data": data, **options, "out": out, "log_to": settings["log_to"]}
    started_by = store.Command.from_keywords(arguments)
    if isinstance(model, AbstractPosterior):
        if settings["scheduler"] is not None:
            raise UsageError("[[scheduler]]: is not supported for a posterior made in Python")
        if data is not None or settings["share_programs"]:
            name = "data" if data is not None else "share_programs"
            raise UsageError(f"{name}: is not supported for a posterior made in Python, which has its own data")
        by_hand = {name: settings[name] for name in ("force", "observer", "stop", "log_to")} | {
            "started_by": started_by
        }
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
    log_to: LogTo = None,
    stop: Stop | None = None,
    dataset: Dataset | None = None,
    model: AbstractModel | None = None,
    started_by: store.Command | None = None,
    began: float | None = None,
    share_programs: bool = False,
    scheduler: str | None = None,
) -> Run:
    """Run a recipe and write the result to `out`.

    Args:
        recipe: the resolved recipe.
        out: the NetCDF file.
        force: overwrite an existing file or an unfinished run.
        observer: a function that is called with a `Progress` after each chunk of steps.
        log_to: see `sample`.
        started_by: the command or the Python call. It is shown if the user must start the run again.
        share_programs: see `sample`.
        scheduler: see `sample`.
        began: the start of the run, as a value of `time.perf_counter`. The default is the value of `clock.run_start()`.
        stop: a function that is called between chunks of steps. If it returns a signal number, the run writes a
            checkpoint and ends.
        dataset: the loaded data. By default the data of the recipe are loaded.
        model: an unregistered model, instead of the model of the recipe.

    Raises:
        UsageError: if the recipe or the data are invalid. In most cases nothing has then been compiled or written.
        InterruptedRunError: if `stop` returned a signal number.
        BnnzooError: if the chains cannot continue; the message states where the draws so far are.
    """
    began = clock.run_start() if began is None else began
    user_paths.refuse_input_as_output(out, [recipe.data, recipe.keep_at, recipe.init_file, recipe.prior_from])
    if scheduler is not None and subspace_choice(recipe) is None:
        raise UsageError(
            f"{setting('scheduler', scheduler)}: requires [[stochastic=identified]] or [[stochastic=linearised]], "
            "because only such a run makes a pass over all rows before it samples; to run several recipes on a "
            "cluster, use bnnzoo zoo run"
        )
    with jax_for(recipe), row_shards(scheduler) as shards:
        log = first_process_log(log_to)
        tell = first_process_observer(observer)
        tell(Progress("start", 0, 1, note="reading data"))
        problem = sequential.build_problem(recipe, dataset, model)
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
            log=log,
            row_map=shards,
        )
    return open(out, model=model)


def open(path: str | Path, *, model: eqx.Module | None = None) -> Run:
    """Open a run from its file. An unfinished run has only the draws so far.

    Args:
        path: the NetCDF file of the run.
        model: your own network or posterior, if the run has one. The file contains the draws, but not your code.

    Raises:
        UsageError: if there is no run at this path, or if the file is damaged or was not written by bnnzoo.
    """
    own_part = model if isinstance(model, AbstractPosterior) else own_model(model)
    path = user_paths.checked_path(path)
    return Run(store.open_tree(path), path, model=own_part)


def opened(run: Run | str | Path) -> Run:
    """Return the run if it is already open; otherwise open the file at this path."""
    return run if isinstance(run, Run) else open(run)


def resolved_recipe(recipe: Recipe, dataset: Dataset | None = None) -> str:
    """Return the recipe as YAML with the values of all fields that are known before the run.

    With a time budget, values that are determined during the run, possibly the likelihood, are left out.
    """
    with jax_for(recipe):
        problem = sequential.build_problem(recipe, dataset)
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
    log_to: LogTo,
    started_by: store.Command,
    init: str | Float[Array | np.ndarray, "chain dim"] = "map",
    **options: Any,
) -> Run:
    """Run `sample` for a posterior made in Python. The file contains the draws, but not the posterior."""
    if not isinstance(sampler, AbstractSampler):
        raise UsageError("sampler: a posterior made in Python needs a sampler object, such as bnnzoo.Penalty(...)")
    if unsupported := sorted(set(options) - _POSTERIOR_OPTIONS):
        raise UsageError(
            f"{', '.join(unsupported)}: not supported for a posterior made in Python, which has its own data, prior "
            "and likelihood; remove these arguments"
        )
    began = clock.run_start()
    is_named = isinstance(init, str)
    if is_named and init not in ("map", "prior"):
        raise UsageError(
            f"{setting('init', init)}: for a posterior made in Python, must be map, prior or an array of initial "
            "positions [chain, dim]"
        )
    words = {**options, "init": init if is_named else None}
    recipe = resolve(type(posterior).__name__, type(sampler).__name__, [], words)
    with jax_for(recipe):
        log = first_process_log(log_to)
        problem = Problem.by_hand(recipe, posterior, sampler)
        starts = None if is_named else init
        launch(
            problem,
            out,
            force=force,
            starts=starts,
            started_by=started_by,
            start_time=began,
            tell=first_process_observer(observer),
            stop=stop,
            log=log,
        )
    return open(out, model=posterior)


def own_model(model: eqx.Module | None) -> AbstractModel | None:
    """Return a model unchanged; wrap a network in the model `Own`."""
    return model if model is None or isinstance(model, AbstractModel) else Own(model)


@contextlib.contextmanager
def jax_for(recipe: Recipe) -> Iterator[None]:
    """Prepare JAX for the devices of the recipe, and use its precision inside the context."""
    jax_settings.prepare(host_devices(recipe))
    with jax_settings.arithmetic(recipe.precision):
        yield


def first_process_observer(observer: Observer | None) -> Observer:
    """Return the observer in the first process of a run, and an observer that does nothing in its other processes."""
    return observer if observer is not None and Processes.current().is_first else ignore


def first_process_log(log_to: LogTo) -> Broadcast:
    """Return the observers of a run in its first process. In other processes return none, as they write no log."""
    processes = Processes.current()
    with processes.share_first_error():
        return select_observers(log_to if processes.is_first else None)
