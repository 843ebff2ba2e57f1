"""The interface of samplers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.finding import Finding
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.statistics import Statistic

S = TypeVar("S")
Stats = dict[str, Array]
Exactness = Literal["exact", "noise-corrected", "biased", "approximate"]


class AbstractSampler(eqx.Module, Generic[S]):
    """A sampling method, whose fields are its hyperparameters.

    `init`, `step`, `warmup_step`, `settle` and `inspect` are pure functions of ONE chain. `tune` sees all chains.

    A state is any tree with the attribute `position`, the parameters theta of the draw. A sampler whose `headroom` is
    not empty also has `step_size` in its state, and warm-up adapts it.
    """

    exactness: ClassVar[Exactness]
    """Relation of the draws to the posterior. It must equal the exactness of the sampler's zoo entry."""
    density_only: ClassVar[bool] = False
    """Whether the sampler uses the posterior only through its prior and the sum of all rows' log-likelihoods."""
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    """Statistics that the steps report, in the order of their plots."""
    guarded: ClassVar[bool] = False
    """Whether `findings` detects every known way in which a run can fail silently. If not, a run's `regime_ok` is not
    applicable."""
    inspect: ClassVar[Callable[..., Stats] | None] = None
    """Method `inspect(posterior, state, *, key)`, or None. It computes diagnostics at the last position of a chain that
    cannot be computed from the statistics of the steps. They are stored in the result file, and `findings` receives
    them together with the means of the statistics."""
    budget_field: ClassVar[str] = ""
    """Name of the field that `fit_budget` chooses in a run with a time budget, unless the user sets it; "" for none."""
    chain_state: ClassVar[tuple[str, ...]] = ()
    """State fields, beside the position, that a step after warm-up may change: momenta, counters, cached densities.
    Paths such as `inner.momentum` are allowed. If any other field changes, `check sampler` reports that the sampler
    still adapts after warm-up."""

    @abc.abstractmethod
    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> S:
        """Return the state of a chain whose initial position is `theta`.

        Args:
            posterior: the target distribution.
            theta: the initial position, of shape [dim].
            num_warmup: number of warm-up steps that will follow; 0 for a run without warm-up.
            key: random key of the chain.
        """

    @abc.abstractmethod
    def step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """Make one transition. Return the new state and the step's statistics by their ArviZ names."""

    def warmup_step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """Make one step of warm-up. Approximate methods train here."""
        return self.step(posterior, state, key=key)

    def settle(self, posterior: AbstractPosterior, state: S, *, final: bool, key: PRNGKeyArray) -> S:
        """Update a chain's curvature, anchor or factorisation at the end of a warm-up window.

        `final` marks the end of the last window, after which a Metropolis sampler changes nothing.
        """
        del posterior, final, key
        return state

    def tune(
        self, posterior: AbstractPosterior, states: S, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[S], S]:
        """Adapt the sampler between two windows, on the host and given all chains.

        This is the only method that may change a static field.

        Args:
            posterior: the target distribution.
            states: the states of all chains, each leaf with a leading chain axis.
            final: whether the last window of warm-up has ended.
            key: random key.
            num_steps: number of steps of the window.

        Returns:
            The adapted sampler and the adapted states.
        """
        del posterior, final, key, num_steps
        return self, states

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Return a step's relative margin to each limit that bounds the step size.

        A margin is positive if the limit is satisfied and negative if it is exceeded. Warm-up adapts the step size
        until the smallest of the mean margins is 0. For samplers with the field `target_acceptance` the default is
        `acceptance_rate / target_acceptance - 1`. An empty array means that warm-up does not adapt the step size.
        """
        target = getattr(self, "target_acceptance", None)
        if target is None or "acceptance_rate" not in stats:
            return jnp.zeros((0,))
        return jnp.reshape(stats["acceptance_rate"] / target - 1, (1,))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a posterior that this sampler cannot run on. This is called on the host, before anything is compiled.

        Raises:
            UsageError: if the posterior is not supported; the message names the remedy.
        """
        del posterior

    def failure(self, stats: dict[str, np.ndarray]) -> str:
        """Return the reason why the run must end; an empty string if it can continue.

        Args:
            stats: the statistics of a chunk of draws, each of shape [chain, draw].
        """
        del stats
        return ""

    @property
    def gradients(self) -> int:
        """Maximum number of gradients that a step computes, each over all the data."""
        return 1

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of evaluations in a step: likelihoods or gradients, each of a single datum.

        Args:
            posterior: the target distribution.
            means: the means of the statistics.
            warmup: whether the step is one of warm-up.
        """
        del warmup
        return posterior.num_data * means.get("n_steps", float(self.gradients))

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> Any:
        """Return the value of `budget_field` in a run with a time budget.

        Args:
            posterior: the target distribution.
            thetas: the initial positions.
            gradients: number of gradients that a step can afford, each over all the data.
        """
        del posterior, thetas, gradients
        raise NotImplementedError(f"{type(self).__name__} has no field that a budget chooses")

    def choose(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
        """Return the values of the `auto` fields for this problem, before the first step of a run with warm-up.

        Args:
            posterior: the target distribution.
            thetas: the initial positions.
        """
        del posterior, thetas
        return {}

    @property
    def mode_field(self) -> str:
        """Name of the state field that holds the position at which predictions linearise the network; "" for none."""
        return ""

    def remark(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> str:
        """Return a sentence for the user about the diagnostics of `inspect`; "" for none.

        Args:
            posterior: the target distribution.
            means: the mean of each diagnostic over the chains.
        """
        del posterior, means
        return ""

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Return the problems found in a chain, most severe first.

        Args:
            posterior: the target distribution.
            means: the mean of each statistic over all steps of the chain, and the diagnostics of `inspect`.
        """
        del posterior, means
        return ()

    @property
    def stated_exactness(self) -> Exactness:
        """Exactness of this instance, which its hyperparameters may lower."""
        return type(self).exactness
