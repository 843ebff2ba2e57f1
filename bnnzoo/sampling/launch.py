"""Start of a run in a new folder, and resumption of a run from a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from bnnzoo import store
from bnnzoo.assembly import Problem, row_source, sequential
from bnnzoo.assembly.by_hand import identity_scaler
from bnnzoo.assembly.network_posterior import subspace_choice
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import setting
from bnnzoo.models import AbstractModel
from bnnzoo.observers.broadcast import Broadcast
from bnnzoo.posterior.row_map import RowMap
from bnnzoo.progress import Observer
from bnnzoo.recipe import Recipe, to_yaml
from bnnzoo.sampling import provenance
from bnnzoo.sampling.devices.placement import host_devices, place_run
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.drive import drive
from bnnzoo.sampling.initial import (
    budget,
    likelihood_choice,
    measured_lengths,
    model_choice,
    positions,
    shared_anchor,
    subspace_start,
)
from bnnzoo.sampling.job import Job, Stop
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop import carry
from bnnzoo.sampling.loop.loop import Carry, carry_template
from bnnzoo.store import Checkpoint
from bnnzoo.store.run_parts import Unfinished
from bnnzoo.store.schema import CONSTANT_DATA, PADDED_ROWS, row_dims, train_groups


def launch(
    problem: Problem,
    out: Path,
    *,
    force: bool = False,
    starts: Float[Array | np.ndarray, "chain dim"] | None = None,
    start_time: float,
    started_by: store.Command | None = None,
    in_bucket: bool = False,
    tell: Observer,
    stop: Stop | None = None,
    log: Broadcast | None = None,
    row_map: RowMap | None = None,
) -> None:
    """Start a new run of a problem and write the file `out`.

    Args:
        problem: the assembled recipe, data and parts.
        out: the file to write.
        force: replace a file or an unfinished run at `out`, and do not check the free disk space.
        starts: initial positions, used instead of the recipe's `init`.
        start_time: value of `time.perf_counter` from which the seconds of the run are counted.
        started_by: the command or the Python call that started the run, for messages that ask to start it again.
        in_bucket: whether to add rows of padding up to a round number of rows, see `Problem.in_bucket`.
        tell: observer that is called with the progress.
        stop: function that returns the number of a signal that stops the run, or 0.
        log: the observers that log the run.
        row_map: makes the pass over all rows on other machines if a subspace is sampled; None to use this machine.

    Raises:
        UsageError: if the problem or the file cannot be used; in most cases before anything is compiled or written.
        InterruptedRunError: if `stop` returned a signal.
        BnnzooError: if the chains cannot continue.
    """
    recipe, processes, writer = problem.recipe, Processes.current(), None
    if processes.is_first:
        _warn_of_one_device(recipe)
    with processes.share_first_error():
        if problem.description is None:
            # A posterior made in Python raises its errors, such as missing mini-batches, only when a step is traced.
            carry_template(problem.posterior, problem.sampler, recipe.chains, max(1, recipe.warmup))
        if processes.is_first:
            if not force:
                store.check_room(out, disk_bytes(problem))
            writer = store.Store(out)
            writer.claim(force=force, started_by=started_by)
    try:
        with processes.share_first_error():
            _same_everywhere(problem, out, processes)
            _begin(
                problem,
                writer,
                starts,
                tell,
                stop,
                log or Broadcast(),
                start_time=start_time,
                in_bucket=in_bucket,
                check_room=not force,
                row_map=row_map,
            )
    finally:
        if writer is not None:
            writer.release()


def _begin(
    problem: Problem,
    writer: store.Store | None,
    given_positions: Float[Array | np.ndarray, "chain dim"] | None,
    tell: Observer,
    stop: Stop | None,
    log: Broadcast,
    *,
    start_time: float,
    in_bucket: bool,
    check_room: bool,
    row_map: RowMap | None,
) -> None:
    """Select the likelihood and the model, find the initial positions, choose the lengths, and run the chains.

    Only the process with a `writer` writes the draws.
    """
    keys, work = Keys.from_seed(problem.recipe.seed), positions.StartWork(tell, stop)
    if problem.recipe.budget:
        work.note(budget.describe_overhead(problem))
    # The key depends only on the seed of the split, so that runs that differ only in `seed` have the same posterior.
    choice_key = Keys.from_seed(problem.recipe.split_seed).noise
    problem, comparisons = likelihood_choice.select_likelihood(problem, work=work, key=choice_key)
    one_layer_losses = comparisons[-1].selected_losses if comparisons else None
    problem, model_comparison = model_choice.select_model(
        problem, one_layer_losses=one_layer_losses, work=work, key=choice_key
    )
    problem = problem.in_bucket() if in_bucket else problem
    recipe = problem.recipe
    placement = place_run(recipe, problem.posterior, problem.sampler)
    problem = budget.with_start(problem, placement, choice_seconds=work.seconds, key=keys.positions)
    with work.time_block():
        choice = subspace_choice(recipe) if problem.description is not None else None
        subspace = choice and subspace_start.find_subspace(problem, choice, key=keys.fixed, work=work)
        fixed = subspace.values if subspace else positions.fixed_values(problem, key=keys.fixed, work=work)
        if fixed:  # the rows of the posterior may now be features, and its directions were not known before
            problem = problem.with_fixed(fixed)
            problem.sampler.check(problem.posterior)
            placement = place_run(recipe, problem.posterior, problem.sampler)
        thetas = positions.initial_positions(
            problem, placement, given_positions=given_positions, key=keys.positions, work=work
        )
    positions.check_start(problem.posterior, placement, thetas)
    with work.time_block():
        thetas = positions.transport_starts(problem, placement, thetas, key=keys.transport, work=work)
        chosen_fields = positions.choose_fields(problem, placement, thetas)
    if chosen_fields:
        work.note(positions.describe_chosen_fields(problem, chosen_fields))
    problem = budget.plan_lengths(problem, placement, thetas, start_seconds=work.seconds, chosen_fields=chosen_fields)
    if recipe.budget:
        work.note(budget.sentence(problem))
        if check_room and writer is not None:
            store.check_room(writer.out, disk_bytes(problem))
    sampler = dataclasses.replace(problem.sampler, **chosen_fields)
    num_shards = 0
    if row_map is not None:
        work.note("computing the derivatives at the mode on the workers")
        problem, num_shards = shared_anchor.with_shared_anchor(problem, fixed, sampler, row_map)
        if not num_shards:
            work.note(f"{setting('scheduler')}: not used, because the sampler needs no pass over all rows")
    job = Job(problem, sampler, placement, keys)
    if writer is None:
        job.follow(thetas, resume=None, stop=stop)
        return
    attributes = provenance.attributes(problem, placement) | {"start_evaluations": work.evaluations}
    attributes |= row_source.row_attributes(recipe, problem.train)
    attributes |= measured_lengths.length_plan(problem, work.seconds)
    attributes |= {PADDED_ROWS: problem.posterior.num_data} if in_bucket else {}
    attributes |= {"noise_comparison": likelihood_choice.to_json(comparisons)} if comparisons else {}
    attributes |= {"model_comparison": model_comparison.to_json()} if model_comparison else {}
    attributes |= {"subspace": subspace.to_json()} if subspace else {}
    attributes |= {"row_shards": num_shards} if num_shards else {}
    writer.create(attributes, *_rows(problem, fixed))
    drive(job, writer, thetas, start_time=start_time, start_seconds=work.seconds, tell=tell, stop=stop, log=log)


def relaunch(
    run: Unfinished,
    saved: Checkpoint,
    *,
    extends: bool,
    allow_inexact: bool,
    model: AbstractModel | None,
    break_lock: bool,
    start_time: float,
    tell: Observer,
    stop: Stop | None = None,
    log: Broadcast | None = None,
) -> None:
    """Resume an unfinished run from one of its checkpoints.

    Args:
        run: the unfinished run.
        saved: the checkpoint.
        extends: whether draws are added to a finished run. If such a run is refused before its first step, the part
            files are removed, and the finished run is unchanged. After the first step, the part files are kept.
        allow_inexact: whether to resume even if the environment has changed, so that the draws would not be the same.
        model: the user's own model, if it is not registered.
        break_lock: whether to take the lock of the run from another process that no longer responds.
        start_time: as for `launch`.
        tell: as for `launch`.
        stop: as for `launch`.
        log: as for `launch`.

    Raises:
        UsageError: if the run is damaged, or if the environment differs and `allow_inexact` is false.
        InterruptedRunError: if `stop` returned a signal.
        BnnzooError: if the chains cannot continue.
    """
    processes = Processes.current()
    try:
        job, writer, restored = _reopen(run, saved, allow_inexact=allow_inexact, model=model, break_lock=break_lock)
    except UsageError:
        if extends and processes.is_first:
            store.discard(run.out, finished=False)
        raise
    recipe = job.recipe
    thetas = np.zeros((recipe.chains, job.posterior.layout.dim), job.posterior.dtype)
    with processes.share_first_error():
        if processes.is_first:
            drive(
                job,
                writer,
                thetas,
                saved=saved,
                restored=restored,
                start_time=start_time,
                tell=tell,
                stop=stop,
                log=log or Broadcast(),
            )
        else:
            job.follow(thetas, resume=(restored, saved.next_step), stop=stop)


def _reopen(
    run: Unfinished, saved: Checkpoint, *, allow_inexact: bool, model: AbstractModel | None, break_lock: bool
) -> tuple[Job, store.Store, Carry]:
    """Check an unfinished run, and open it for writing in the first process.

    Returns:
        the job, the writer, and the state of all chains in the checkpoint.

    Raises:
        UsageError: as for `relaunch`.
    """
    attributes, static = run.attributes, run.static()
    problem = Problem.restored(attributes, static.get("constant_data", {}), static.get("observed_data", {}), model)
    problem = problem.in_bucket() if PADDED_ROWS in attributes else problem
    problem = measured_lengths.with_open_lengths(problem, attributes)
    recipe = problem.recipe
    placement = place_run(recipe, problem.posterior, problem.sampler)
    current_attributes = provenance.attributes(problem, placement)
    if current_attributes["data_sha256"] != attributes.get("data_sha256"):
        raise UsageError(
            f"{run.folder}: damaged: its rows differ from the rows at the start of the run; start the run again with "
            "[[force=True]]"
        )
    differences = provenance.differences(attributes, current_attributes)
    if differences and not allow_inexact:
        raise UsageError(
            f"{run.out}: the draws would differ from those of an uninterrupted run: {'; '.join(differences)}; "
            "use the environment in which the run was started, or [[allow_inexact_resume=True]]"
        )
    carry.check(saved, run, problem)
    tuned: dict[str, Any] = saved.tuned
    sampler = dataclasses.replace(problem.sampler, **tuned)
    template = carry_template(problem.posterior, sampler, recipe.chains, recipe.windowed_warmup)
    restored = carry.restore(saved.arrays, template)
    job, processes = Job(problem, sampler, placement, Keys.from_seed(recipe.seed)), Processes.current()
    writer = store.Store(run.out)
    with processes.share_first_error():
        _same_everywhere(problem, run.out, processes, step=saved.next_step)
        if processes.is_first:
            writer.reopen(saved.num_parts, expected=run, break_lock=break_lock)
            if differences:
                writer.update({"inexact_resume": "; ".join(differences)})
    return job, writer, restored


def _same_everywhere(problem: Problem, out: Path, processes: Processes, *, step: int = 0) -> None:
    """Check that all processes have the same recipe, data and checkpoint, and see the folder of the run.

    Raises:
        UsageError: if the recipes, data or checkpoints differ, or if a process cannot see the folder. Every process
            raises the error.
    """
    if processes.count == 1:
        return
    recipe = to_yaml(problem.resolved_recipe()) if problem.description else repr(problem.sampler)
    rows = problem.train.sha256() if problem.train else ""
    digest = np.frombuffer(hashlib.sha256(f"{recipe}{rows}{step}".encode()).digest(), np.uint8)
    if (processes.gather(digest[None]) != processes.broadcast_first(digest)).any():
        raise UsageError(
            "the processes of this run have different recipes, data or checkpoints; give all processes the same "
            "arguments"
        )
    if blind_process := processes.largest(0 if store.Store(out).folder.is_dir() else processes.rank + 1):
        raise UsageError(
            f"{out}: the process with rank {blind_process - 1} cannot see the folder of this run; write to a folder "
            "that all processes share"
        )


def _rows(
    problem: Problem, fixed: Mapping[str, np.ndarray]
) -> tuple[dict[str, list[str]], dict[str, dict[str, np.ndarray]]]:
    """Return the dimension names and the groups that store the data in the file; both are empty without rows."""
    if problem.train is None:
        return {}, {}
    scaler = identity_scaler(problem.train) if problem.description is None else problem.description.scaler
    train, test = row_source.stored_rows(problem.recipe, problem.train, problem.test)
    groups = train_groups(train, test, scaler, fixed, problem.kept_rows)
    groups[CONSTANT_DATA] |= sequential.constants(problem)
    return row_dims(train, scaler), groups


def disk_bytes(problem: Problem) -> int:
    """Estimate the size, in bytes, of all draws and kept warm-up steps, assuming 16 statistics per draw or step."""
    recipe, posterior = problem.recipe, problem.posterior
    rows = recipe.draws + (recipe.warmup if recipe.keep_warmup else 0)
    return recipe.chains * rows * (problem.num_kept + 16) * np.dtype(posterior.dtype).itemsize


def _warn_of_one_device(recipe: Recipe) -> None:
    """Warn if JAX has started with one CPU device, although the chains need several."""
    wanted_devices = 1 if recipe.mesh else host_devices(recipe)
    local_devices = jax.local_devices()
    if wanted_devices > 1 and len(local_devices) == 1 and local_devices[0].platform == "cpu":
        warnings.warn(
            f"JAX had started with one device, so all {recipe.chains} chains share it and do not run in "
            f"parallel; call bnnzoo.devices({wanted_devices}) before anything uses JAX, or use "
            "[[chain_method=vectorized]]",
            BnnzooWarning,
            stacklevel=3,
        )
