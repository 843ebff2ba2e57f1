"""Revision of the lengths of a run with a time budget, from the measured time of warm-up steps."""

from __future__ import annotations

import time

import numpy as np

from bnnzoo.assembly import Problem
from bnnzoo.progress import Observer, Progress
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling import stopping
from bnnzoo.sampling.initial import budget, measured_lengths
from bnnzoo.sampling.loop.loop import Chunk
from bnnzoo.sampling.seconds import Seconds


class LengthPlan:
    """The clock of warm-up. Each method returns the problem, with new lengths if they must change."""

    def __init__(self, seconds: Seconds, start_seconds: float, tell: Observer):
        """Start the clock.

        Args:
            seconds: the time of each phase of the run so far.
            start_seconds: seconds that were spent on the initial positions.
            tell: observer that receives notes about new lengths.
        """
        self._seconds, self._start_seconds, self._tell = seconds, start_seconds, tell
        self._window_start = (0, 0.0)
        """Number of warm-up steps, and the clock time, at the start of the current window of warm-up."""
        self._second_half: tuple[int, float] | None = None
        """Number of warm-up steps, and the clock time, after the first chunk that reaches the second half."""

    def after_pilot(self, problem: Problem, sampler: AbstractSampler, step_seconds: float) -> Problem:
        """Choose the number of warm-up steps before the first step, given the measured seconds of a step.

        Raises:
            UsageError: if the budget is far too short.
        """
        planned = measured_lengths.with_measured_step(
            problem, sampler, start_seconds=self._start_seconds, step_seconds=step_seconds
        )
        if planned is not problem:
            self._note(f"steps are slower than expected; {budget.sentence(planned)}")
        return planned

    def after_window(self, problem: Problem, sampler: AbstractSampler, step: int) -> Problem:
        """Choose the number of warm-up steps at the end of a window: fewer than planned if warm-up takes too long."""
        first_step, start_clock = self._window_start
        self._window_start = (step, clock := time.perf_counter())
        if not first_step:  # the first window since the start, or since the run was resumed
            return problem
        planned = measured_lengths.with_shorter_warmup(
            problem,
            sampler,
            step=step,
            warmup_seconds=self._seconds.warmup,
            start_seconds=self._start_seconds,
            step_seconds=(clock - start_clock) / (step - first_step),
        )
        if planned is not problem:
            self._note(measured_lengths.describe_shorter_warmup(planned))
        return planned

    def after_chunk(self, problem: Problem, chunk: Chunk) -> Problem:
        """Choose the thinning at the end of warm-up, from the time of a step in the second half of warm-up.

        The new recipe is written before the checkpoint at the end of warm-up, so a resumed run has the same thinning.
        """
        recipe, clock = problem.recipe, time.perf_counter()
        if not recipe.budget:
            return problem
        if chunk.next_step < recipe.warmup:
            if self._second_half is None and 2 * chunk.next_step >= recipe.warmup:
                self._second_half = (chunk.next_step, clock)
            return problem
        if self._second_half is None or not (budget_left := stopping.budget_left(recipe, self._seconds)) > 0:
            return problem
        step, start_clock = self._second_half
        return measured_lengths.with_thinning(
            problem,
            chunk.sampler,
            warmup_step_seconds=(clock - start_clock) / (chunk.next_step - step),
            seconds_left=budget_left,
            means={name: float(np.mean(values)) for name, values in chunk.stats.items()},
        )

    def _note(self, text: str) -> None:
        self._tell(Progress("note", 0, 0, note=text))
