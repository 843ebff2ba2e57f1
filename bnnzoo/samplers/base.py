"""What a sampler is."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.finding import Finding, setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.statistics import Statistic

S = TypeVar("S")
Stats = dict[str, Array]
Exactness = Literal["exact", "noise-corrected", "biased", "approximate"]


class AbstractSampler(eqx.Module, Generic[S]):
    """A method. Fields are hyperparameters, methods are pure and about ONE chain (but `tune`).

    A state is any tree with the attribute `position`, the theta to keep. A sampler whose `headroom` is not empty also
    has `step_size` in its state, and warm-up adapts that number.
    """

    exactness: ClassVar[Exactness]
    density_only: ClassVar[bool] = False
    """Whether it sees the posterior through its prior and the sum of all rows' log likelihood alone."""
    """What the draws are worth; an entry's exactness is held equal to it."""
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    """What its steps report, in the order of their pictures."""
    given_step: ClassVar[str] = ""
    """The field of a step size that warm-up does not find: `longest_step` bounds it where a budget plans the run."""

    chain_state: ClassVar[tuple[str, ...]] = ()
    """The fields of the state, beside the position, that a step after warm-up changes: momenta, counters, cached
    densities, as paths such as `inner.momentum`. `check sampler` refuses a change of any other: it is adaptation."""

    @abc.abstractmethod
    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> S:
        """The state of a chain that starts at `theta`."""

    @abc.abstractmethod
    def step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """One transition, and its statistics by their ArviZ names."""

    def warmup_step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """One step of warm-up. Approximate methods train here."""
        return self.step(posterior, state, key=key)

    def settle(self, posterior: AbstractPosterior, state: S, *, final: bool, key: PRNGKeyArray) -> S:
        """Called at the end of every warm-up window: curvature, anchors, factorisations.

        `final` marks the end of the last window, after which a Metropolis sampler changes nothing.
        """
        del posterior, final, key
        return state

    def tune(
        self, posterior: AbstractPosterior, states: S, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[S], S]:
        """Called between windows, on the host, with all chains: the only place that may change a static field."""
        del posterior, final, key, num_steps
        return self, states

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """How far a step stayed within each limit of the step size; the warm-up drives the least mean to zero.

        In units of the limit, so that -1 is the worst: the default is `acceptance_rate / target_acceptance - 1` for
        samplers with that field, else nothing (not adapted).
        """
        target = getattr(self, "target_acceptance", None)
        if target is None or "acceptance_rate" not in stats:
            return jnp.zeros((0,))
        return jnp.reshape(stats["acceptance_rate"] / target - 1, (1,))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse, on the host and before anything compiles, a posterior this sampler cannot run on.

        Raises:
            UsageError: with what to type instead.
        """
        del posterior

    def moved(self, stats: Mapping[str, np.ndarray]) -> Shaped[np.ndarray, "chain draw"] | None:
        """Which draws of a chunk are from steps that were accepted, so that a chain that is stuck is seen.

        None for a sampler without an accept step. The default is the statistic `accepted`, where it is reported.
        """
        return stats["accepted"] > 0 if "accepted" in stats else None

    def failure(self, stats: dict[str, np.ndarray]) -> str:
        """Why the run must end here, given the statistics [chain, draw] of a chunk; empty if it need not."""
        del stats
        return ""

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        """Data a step looks at: per-datum likelihood or gradient evaluations, given the means of the statistics."""
        return posterior.num_data * means.get("n_steps", 1.0)

    def warmup_evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        """The same for a step of warm-up."""
        return self.evaluations(posterior, means)

    @property
    def gradients(self) -> int:
        """Gradients of all its data that a step takes at most."""
        return 1

    def within(self, gradients: float) -> AbstractSampler[S]:
        """This sampler with steps of at most so many gradients, where its fields can say so."""
        del gradients
        return self

    def longest_step(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> float:
        """The longest step size that is stable at these positions, for a sampler that does not find its own."""
        del posterior, thetas
        return math.inf

    def choose(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
        """Values of the fields that this sampler chooses by the problem, before the first step of a run with warm-up.

        Args:
            thetas: the initial positions.
        """
        del posterior, thetas
        return {}

    def linearised_at(self, state: S) -> Float[Array, " dim"] | None:
        """Where predictions take the network as linear in theta; None, as for most, where they do not."""
        del state
        return None

    def inspect(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> Stats:
        """A last look from where a chain ended, at what its statistics do not tell: numbers for the file.

        `findings` meets them beside the means.
        """
        del posterior, state, key
        return {}

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """What is wrong with a chain, the worst first, given the means of its statistics over all steps."""
        del posterior, means
        return ()

    @property
    def smaller_steps(self) -> str:
        """What to type where a chain left the numbers that there are."""
        paces = [name for name in ("learning_rate", "step_size") if name in {f.name for f in dataclasses.fields(self)}]
        if not paces:
            return f"use {setting('precision', 'float64')}, or another sampler"
        return f"use a smaller {setting(f'sampler.{paces[0]}')}"

    @property
    def guarded(self) -> bool:
        """Whether `findings` knows of every way that this instance can go wrong unseen; if not, a run is not called
        right: its `regime_ok` is not applicable."""
        return False

    @property
    def stated_exactness(self) -> Exactness:
        """The exactness of this instance, which its hyperparameters may lower."""
        return type(self).exactness
