"""Execution of a run: chunks of draws go to part files, checkpoints are saved, and the final file is written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo import store
from bnnzoo.assembly import Problem
from bnnzoo.errors import BnnzooError, BnnzooWarning, InterruptedRunError, UsageError, message_of
from bnnzoo.files.shell import resume_call
from bnnzoo.finding import sentence, spelling
from bnnzoo.observers.broadcast import Broadcast
from bnnzoo.progress import Observer, Progress
from bnnzoo.recipe import to_yaml
from bnnzoo.samplers import statistics
from bnnzoo.sampling import chain_findings, run_log, stopping, verdict, whole_run
from bnnzoo.sampling.devices.processes import LostProcessError
from bnnzoo.sampling.evaluations import WARMUP_STEPS
from bnnzoo.sampling.initial import budget, measured_lengths
from bnnzoo.sampling.job import Job, Stop
from bnnzoo.sampling.length_plan import LengthPlan
from bnnzoo.sampling.loop import carry
from bnnzoo.sampling.loop.loop import Carry, Chunk
from bnnzoo.sampling.loop.worker import Submit, worker
from bnnzoo.sampling.seconds import Seconds
from bnnzoo.sampling.tuned import refuse_lost_fields, tuned_fields
from bnnzoo.store import Checkpoint, schema

_INSPECTION_COMPILE_SECONDS = 5.0
"""Seconds of sampling after which the program of the sampler's final `inspect` is compiled in the background."""


def drive(
    job: Job,
    writer: store.Store,
    thetas: Any,
    *,
    saved: Checkpoint | None = None,
    restored: Carry | None = None,
    start_time: float,
    start_seconds: float = 0.0,
    tell: Observer,
    stop: Stop | None = None,
    log: Broadcast,
) -> None:
    """Run a job to its end. Checkpoints are saved regularly, and whenever the run stops early.

    Args:
        thetas: initial positions, `[chain, dim]`. They are ignored if `saved` is given.
        restored: the state of all chains in the checkpoint `saved`.
        start_time: value of `time.perf_counter` from which the seconds of the run are counted.
        start_seconds: seconds that were spent on the initial positions. They count as warm-up.
        log: the observers that log the run.

    Raises:
        InterruptedRunError: if `stop` returned a signal. The message contains the command that resumes the run.
        UsageError: if the run is refused before its first step. Its part files are removed.
        BnnzooError: if the chains cannot continue. The earlier draws are kept.
    """
    is_refused = False
    try:
        writer.update({"statistics": json.dumps(statistics.attributes(job.sampler))})
        seconds = Seconds(warmup=start_seconds) if saved is None else Seconds(**saved.seconds)
        seconds.start += time.perf_counter() - start_time - start_seconds
        driver = _Driver(job, writer, saved, restored, seconds, log)
        log.observe(run_log.run_start(job, str(writer.out), writer.run.attributes, saved.next_step if saved else 0))
        try:
            _drive(driver, thetas, tell, stop)
        except BaseException as error:
            log.observe(run_log.run_failure(error, driver.num_draws))
            is_refused = driver.is_refused_by(error)
            raise
    finally:
        if is_refused:
            writer.abandon()
        writer.release()


def _drive(driver: _Driver, thetas: Any, tell: Observer, stop: Stop | None) -> None:
    job, writer = driver.job, driver.writer
    try:
        driver.run(thetas, tell, stop)
    except InterruptedRunError as error:
        num_draws = driver.stop_early()
        name = signal.Signals(error.exit_code - 128).name
        message = f"{name}: stopped after {num_draws} of {job.recipe.draws} draws{_remedy(job, writer.out)}"
        raise InterruptedRunError(message, error.exit_code - 128) from None
    except BnnzooError as error:
        if driver.is_refused_by(error):
            raise
        num_draws = driver.stop_early()
        # If this run was meant to replace a complete file, that file is still at `out`.
        location = writer.folder if store.is_complete(writer.out) else writer.out
        kept_draws = f"the {num_draws} draws before the error are in {location}" if num_draws else "no draws were kept"
        remedy = _remedy(job, writer.out) if isinstance(error, LostProcessError) else ""
        # The error class of a plugin may need arguments other than a message, so raise the nearest bnnzoo class.
        own_class = next(kind for kind in type(error).__mro__ if kind.__module__.startswith("bnnzoo."))
        raise own_class(f"{message_of(error)}; {kept_draws}{remedy}") from error
    driver.finish(tell)


def _remedy(job: Job, out: Path) -> str:
    """Return the end of a message: the command that continues the run. A posterior made in Python has none."""
    if job.problem.description is None:
        return ""
    own_model = [] if job.own_model is None else ["model=..."]
    return f"; continue: {resume_call(out, *own_model)}"


class _Driver:
    """The state of a job while it runs."""

    def __init__(
        self,
        job: Job,
        writer: store.Store,
        saved: Checkpoint | None,
        restored: Carry | None,
        seconds: Seconds,
        log: Broadcast,
    ):
        self.job, self.writer, self.log = job, writer, log
        self.seconds = seconds
        # The time at which the run would have started if it had never been interrupted.
        self.adjusted_start = time.perf_counter() - seconds.total
        self.totals: chain_findings.Totals = {} if saved is None else dict(saved.totals)
        self.chunk: Chunk | None = None
        self.ended = "draws"
        self.inspection_program: Future[chain_findings.InspectionProgram] | None = None
        self.resume = None if saved is None or restored is None else (restored, saved.next_step)
        if self.resume is not None:
            # An empty chunk stands for the work before the checkpoint. If no draw is missing, only the file is written.
            no_draws = np.zeros((job.recipe.chains, 0, job.posterior.layout.dim), np.float32)
            self.chunk = Chunk("sampling", no_draws, {}, *self.resume, job.sampler)

    @property
    def num_draws(self) -> int:
        """Number of kept draws per chain so far."""
        recipe = self.job.recipe
        return 0 if self.chunk is None else max(0, self.chunk.next_step - recipe.warmup) // recipe.thin

    def is_refused_by(self, error: BaseException) -> bool:
        """Whether `error` means that the run was refused before its first step."""
        return isinstance(error, UsageError) and self.chunk is None

    def run(self, thetas: Any, tell: Observer, stop: Stop | None) -> None:
        """Run the chains until the run ends, and set `ended` to the reason for its end."""
        # A run that was interrupted at a test point has not been tested there yet.
        if self.resume is not None and (reason := self._reason_to_end()):
            self.ended = reason
            self.job.placement.processes.announce_end()
            self._record_lengths()
            return
        plan = LengthPlan(self.seconds, measured_lengths.seconds_of_start(self.writer.run.attributes), tell)
        tell(Progress("compile", 0, 1))
        try:
            # Always close the generator of chunks: other processes may be waiting for the next chunk.
            with (
                worker() as submit,
                contextlib.closing(
                    self.job.chunks(
                        thetas,
                        resume=self.resume,
                        seconds=self.seconds,
                        plan_warmup=lambda step: self._adopt_warmup(
                            plan.after_window(self.job.problem, self.job.sampler, step)
                        ),
                        revise_warmup=lambda seconds: self._adopt_warmup(
                            plan.after_pilot(self.job.problem, self.job.sampler, seconds)
                        ),
                        plan_thinning=lambda: self.job.recipe.thin,
                    )
                ) as stream,
            ):
                self._store_chunks(stream, submit, plan, tell, stop)
        finally:
            # Count the time that the loop itself does not count, such as the end of the last chunk.
            self.seconds.sampling += self._uncounted()
        self._record_lengths()

    def _uncounted(self) -> float:
        """Return the seconds of the run that do not yet belong to a phase in `seconds`."""
        return time.perf_counter() - self.adjusted_start - self.seconds.total

    def _store_chunks(
        self, stream: Iterable[Chunk], submit: Submit, plan: LengthPlan, tell: Observer, stop: Stop | None
    ) -> None:
        last_checkpoint, modes_written = time.monotonic(), False
        for chunk in stream:
            recipe = self.job.recipe  # the end of a window of warm-up can change the number of steps
            if self.job.problem.description is not None:  # a posterior made in Python cannot be resumed
                refuse_lost_fields(self.job.problem.sampler, chunk.sampler)
            is_sampling = chunk.phase == "sampling"
            if is_sampling and not modes_written:
                # Write the modes before the first draw, so that every file with draws can be used for predictions.
                self._write_modes(chunk)
                modes_written = True
            if is_sampling or recipe.keep_warmup:
                self._write(chunk)
            if not is_sampling and "n_steps" in chunk.stats:
                chain_findings.add_totals(self.totals, {WARMUP_STEPS: chunk.stats["n_steps"]})
            if is_sampling and self.inspection_program is None and self.seconds.sampling > _INSPECTION_COMPILE_SECONDS:
                self.inspection_program = submit(
                    chain_findings.compile_inspection, chunk.sampler, self.job.posterior, chunk.carry.states
                )
            # Set `chunk` after writing: a checkpoint must not count draws that could not be written.
            self.chunk = chunk
            rate = float(chunk.stats["acceptance_rate"].mean()) if "acceptance_rate" in chunk.stats else float("nan")
            progress_counts = (chunk.next_step, recipe.warmup)
            if is_sampling:
                progress_counts = (self.num_draws, stopping.expected_draws(recipe, self.num_draws, self.seconds))
            tell(Progress(chunk.phase, *progress_counts, acceptance=rate))
            elapsed = time.perf_counter() - self.adjusted_start
            self.log.observe(run_log.chunk_report(chunk, draws=self.num_draws, thin=recipe.thin, seconds=elapsed))
            # Keep the checkpoint at the end of warm-up: if part files are damaged, all draws can be repeated from it.
            is_warmup_end = not is_sampling and chunk.next_step == recipe.warmup
            if not is_sampling:
                self._adopt(plan.after_chunk(self.job.problem, chunk))
                recipe = self.job.recipe
            if is_warmup_end or time.monotonic() - last_checkpoint >= recipe.checkpoint_every:
                self._checkpoint(chunk, keep=is_warmup_end)
                last_checkpoint = time.monotonic()
            number = stop() if stop else 0
            if number and self.num_draws < recipe.draws:
                raise InterruptedRunError("", number)
            if is_sampling and (reason := self._reason_to_end()):
                self.ended = reason
                break

    def _adopt_warmup(self, problem: Problem) -> int:
        """Replace the job's problem (see `_adopt`), and return the new number of warm-up steps."""
        self._adopt(problem)
        return problem.recipe.warmup

    def _adopt(self, problem: Problem) -> None:
        """Replace the job's problem by one with other numbers of steps or draws, and write its recipe to the file."""
        if problem is not self.job.problem:
            self.job = dataclasses.replace(self.job, problem=problem)
            self.writer.update({"recipe": to_yaml(problem.resolved_recipe())} if problem.description else {})

    def _reason_to_end(self) -> str:
        return stopping.reason_to_end(self.job, self.writer.out, self.num_draws, self.seconds)

    def _record_lengths(self) -> None:
        """Replace the budget in the file's recipe by the number of draws made, so that the recipe repeats this run."""
        recipe = self.job.recipe
        if not recipe.budget and not recipe.until:
            return
        attributes = {"ended": self.ended} | stopping.length_attributes(self.job, self.num_draws)
        repeated = budget.with_drawn_lengths(recipe, self.num_draws)
        self._adopt(dataclasses.replace(self.job.problem, recipe=repeated))
        self.writer.update(attributes)

    def stop_early(self) -> int:
        """Save a checkpoint, write a file with the draws so far, and return their number per chain."""
        if self.chunk is not None:
            self._checkpoint(self.chunk)
        self.writer.update({"draws_done": self.num_draws, **self._seconds()})
        if self.num_draws:
            self.writer.finish(complete=False, last=self._written)
        return self.num_draws

    def finish(self, tell: Observer) -> None:
        """Test the finished run, and write the final file with the findings about the whole run."""
        chunk, recipe = self.chunk, self.job.recipe
        assert chunk is not None
        self._checkpoint(chunk)
        tell(Progress("judging", 0, 1, note="testing convergence"))
        program = self.inspection_program and self.inspection_program.result()
        findings = whole_run.describe(self.job, self.writer, chunk, self.totals, program=program, tell=tell)
        num_bytes = stopping.num_bytes(self.job, recipe.draws)
        self.writer.update(verdict.verdict(self.writer.out, num_bytes, recipe.draws, self.job.own_model))
        self.seconds.judging += self._uncounted()
        self.writer.update(self._seconds())
        tell(Progress("judging", 1, 1, note="testing convergence"))
        tell(Progress("writing", 0, 1))
        self.writer.finish(complete=True, last=self._written)
        tell(Progress("writing", 1, 1))
        self.log.observe(run_log.run_end(self.writer.run.attributes, self._seconds(), self.num_draws))
        if findings:
            text = f"the sampler's own check failed: {sentence(findings[0], spelling())}"
            warnings.warn(text, BnnzooWarning, stacklevel=4)

    def _written(self) -> store.Attributes:
        """Add the time since the last phase to the phase `writing`, and return the seconds of all phases."""
        self.seconds.writing += self._uncounted()
        return self._seconds()

    def _seconds(self) -> store.Attributes:
        return {f"seconds_{name}": value for name, value in dataclasses.asdict(self.seconds).items()}

    def _checkpoint(self, chunk: Chunk, *, keep: bool = False) -> None:
        tuned, seconds = tuned_fields(self.job.problem.sampler, chunk.sampler), dataclasses.asdict(self.seconds)
        arrays = carry.flatten(chunk.carry)
        state = Checkpoint(arrays, chunk.next_step, self.writer.num_parts, tuned, seconds, self.totals)
        self.writer.save(state, keep=keep)

    def _write(self, chunk: Chunk) -> None:
        is_sampling = chunk.phase == "sampling"
        prefix = "" if is_sampling else "warmup_"
        drawn_values = self.job.problem.outputs or self.job.posterior
        draws = drawn_values.natural(chunk.draws)
        self.writer.append({f"{prefix}posterior": draws, f"{prefix}sample_stats": chunk.stats})
        if is_sampling:
            chain_findings.add_totals(self.totals, chunk.stats)

    def _write_modes(self, chunk: Chunk) -> None:
        """Write the parameters at which the predictions of each chain are linearised, if there is a `mode_field`."""
        if not chunk.sampler.mode_field or self.job.problem.outputs is not None:
            return
        points = np.asarray(getattr(chunk.carry.states, chunk.sampler.mode_field))
        values, dims = schema.linearised_group(self.job.posterior.natural(points))
        self.writer.add_static(schema.CONSTANT_DATA, values, dims)
