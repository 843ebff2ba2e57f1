"""What a sampler is, and what the Metropolis samplers share."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bnnzoo.posterior import AbstractPosterior

S = TypeVar("S")
Stats = dict[str, Array]
Exactness = Literal["exact", "noise-corrected", "biased", "approximate"]


class AbstractSampler(eqx.Module, Generic[S]):
    """A method. Fields are hyperparameters, methods are pure and about ONE chain (but `tune`).

    A state is any tree with the attribute `position`, the theta to keep. If it also has `step_size`, and the
    sampler's `headroom` is not empty, warm-up adapts that number.
    """

    exactness: ClassVar[Exactness]
    """What the draws are worth; an entry's exactness is held equal to it."""

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

    def linearised_at(self, state: S) -> Float[Array, " dim"] | None:
        """Where predictions take the network as linear in theta; None, as for most, where they do not."""
        del state
        return None

    def verdict(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> str:
        """What is wrong with the run, given the means of its statistics over all steps; empty if nothing is."""
        del posterior, means
        return ""

    @property
    def stated_exactness(self) -> Exactness:
        """The exactness of this instance, which its hyperparameters may lower."""
        return type(self).exactness


AVERAGED = frozenset(
    {
        "accepted",
        "acceptance_rate",
        "sigma2",
        "penalty",
        "regime_dof",
        "regime_skew",
        "skew_bias",
        "n_steps",
        "tree_depth",
    }
)
"""Statistics that a thinned draw holds the mean of, over its steps; of the others it holds the last."""

ANY = frozenset({"diverging"})
"""Statistics that are true of a thinned draw if they were of one of its steps."""


def metropolis(
    log_ratio: Float[Array, ""], *, key: PRNGKeyArray
) -> tuple[Bool[Array, ""], Float[Array, ""], Bool[Array, ""]]:
    """Accept with probability min(1, exp(log_ratio)); a ratio that is not a number rejects.

    Returns:
        accepted, the acceptance probability, diverging (the ratio was not finite).
    """
    diverging = ~jnp.isfinite(log_ratio)
    rate = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return jax.random.uniform(key, dtype=rate.dtype) < rate, rate, diverging


def choose(accepted: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` if accepted, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)


def standard_normal(like: Float[Array, " dim"], *, key: PRNGKeyArray) -> Float[Array, " dim"]:
    """eps ~ N(0, I), shaped like a position."""
    return jax.random.normal(key, like.shape, like.dtype)
