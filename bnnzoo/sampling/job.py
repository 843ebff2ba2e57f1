"""A problem with what its loop needs beside it: the same in every process that shares the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from bnnzoo.assembly import Problem
from bnnzoo.models import AbstractModel
from bnnzoo.models.own import PREFIX
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.recipe import Recipe
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling import budget
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop import Carry, Chunk, Seconds, chunks
from bnnzoo.sampling.placement import Placement

Stop = Callable[[], int]
"""Tells whether the run shall stop, and with which signal's number; 0 if not."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is being run."""

    problem: Problem
    sampler: AbstractSampler
    """The problem's sampler, or what warm-up's `tune` has made of it."""
    placement: Placement
    keys: Keys

    @property
    def posterior(self) -> AbstractPosterior:
        return self.problem.posterior

    @property
    def recipe(self) -> Recipe:
        return self.problem.recipe

    @property
    def own_model(self) -> AbstractModel | AbstractPosterior | None:
        """The model, where it is one that no registry knows; the posterior, where it was made by hand."""
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
        leaving: Stop | None = None,
    ) -> Generator[Chunk, None, None]:
        """The run's loop."""
        recipe = self.recipe
        return chunks(
            self.posterior,
            self.sampler,
            thetas,
            keys=self.keys,
            num_warmup=recipe.warmup,
            num_draws=recipe.draws,
            placement=self.placement,
            thin=recipe.thin,
            keep_warmup=recipe.keep_warmup,
            resume=resume,
            seconds=seconds,
            stops=budget.ladder(recipe.draws) if recipe.until == "converged" else (),
            outputs=self.problem.outputs,
            leaving=leaving,
        )

    def follow(self, thetas: Any, *, resume: tuple[Carry, int] | None, stop: Stop | None) -> None:
        """Run this process's share of the chains until the first process, which keeps what they draw, has enough."""
        for _ in self.chunks(thetas, resume=resume, leaving=stop):
            pass
