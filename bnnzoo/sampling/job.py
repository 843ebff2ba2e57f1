"""A job: a problem with its sampler, placement and random keys. All processes of a run have the same job."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator
from typing import Any

from bnnzoo.assembly import Problem
from bnnzoo.models import AbstractModel
from bnnzoo.models.own import PREFIX
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.loop import Carry, Chunk, chunks
from bnnzoo.sampling.seconds import Seconds

Stop = Callable[[], int]
"""Function that returns the number of a signal that stops the run, or 0."""
_FIRST_STOP = 100


@dataclasses.dataclass(frozen=True)
class Job:
    """A problem, its sampler, the placement of its chains and its random keys."""

    problem: Problem
    sampler: AbstractSampler
    """The problem's sampler with the chosen values of its `auto` fields; the tuned sampler if the run is resumed."""
    placement: Placement
    keys: Keys

    @property
    def posterior(self) -> AbstractPosterior:
        """The posterior of the problem."""
        return self.problem.posterior

    @property
    def recipe(self) -> Recipe:
        """The recipe of the problem."""
        return self.problem.recipe

    @property
    def own_model(self) -> AbstractModel | AbstractPosterior | None:
        """The user's own model or posterior: an unregistered model, or a posterior made in Python; otherwise None."""
        description = self.problem.description
        if description is None:
            return self.posterior
        return description.parts.model if self.recipe.model.name.startswith(PREFIX) else None

    def chunks(
        self,
        thetas: Any,
        *,
        resume: tuple[Carry, int] | None,
        seconds: Seconds | None = None,
        stop_signal: Stop | None = None,
        plan_warmup: Callable[[int], int] | None = None,
        revise_warmup: Callable[[float], int] | None = None,
        plan_thinning: Callable[[], int] | None = None,
    ) -> Generator[Chunk, None, None]:
        """Run the sampling loop of this job, chunk by chunk.

        Args:
            thetas: initial positions.
            resume: see `loop.chunks`.
            seconds: see `loop.chunks`.
            stop_signal: function that returns the number of a signal that stops all processes, or 0.
            plan_warmup: see `loop.chunks`. Without a budget, `plan_warmup`, `revise_warmup` and `plan_thinning` are
                ignored, because the lengths are fixed.
            revise_warmup: see `loop.chunks`.
            plan_thinning: see `loop.chunks`.
        """
        recipe = self.recipe
        return chunks(
            self.posterior,
            self.sampler,
            thetas,
            keys=self.keys,
            num_warmup=recipe.warmup,
            num_draws=recipe.draws,
            placement=self.placement,
            planned_warmup=recipe.windowed_warmup,
            plan_warmup=(plan_warmup or (lambda _: recipe.warmup)) if recipe.budget else None,
            revise_warmup=(revise_warmup or (lambda _: recipe.warmup)) if recipe.budget else None,
            thin=recipe.thin,
            plan_thinning=(plan_thinning or (lambda: recipe.thin)) if recipe.budget else None,
            keep_warmup=recipe.keep_warmup,
            resume=resume,
            seconds=seconds,
            stops=ladder(recipe.draws) if ends_at_test_points(recipe) else (),
            outputs=self.problem.outputs,
            stop_signal=stop_signal,
        )

    def follow(self, thetas: Any, *, resume: tuple[Carry, int] | None, stop: Stop | None) -> None:
        """Run this process's chains until the first process, which writes their draws, ends the loop.

        Raises:
            InterruptedRunError: if another process was stopped, or if `stop` returned a signal.
        """
        for _ in self.chunks(thetas, resume=resume, stop_signal=stop):
            pass


def ends_at_test_points(recipe: Recipe) -> bool:
    """Whether the run may end at one of the numbers of draws that `ladder` returns."""
    return recipe.until in ("converged", "predictions")


def ladder(draws: int) -> list[int]:
    """Return the numbers of draws at which convergence is tested: 100, 200, 400, ..., below `draws`.

    The numbers do not depend on the clock, so that a run can be repeated.
    """
    return list(itertools.takewhile(lambda stop: stop < draws, (_FIRST_STOP * 2**i for i in itertools.count())))
