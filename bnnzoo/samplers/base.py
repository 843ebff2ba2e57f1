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
    """A sampling method. Its fields are hyperparameters; its methods are pure and, except `tune`, concern ONE chain.

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
    """Method `inspect(posterior, state, *, key)` that computes diagnostics at a chain's last position which the
    statistics of its steps cannot show. They are stored in the result file, and `findings` receives them with the
    means. None for a sampler without such diagnostics."""
    budget_field: ClassVar[str] = ""
    """Name of a field that a time budget chooses by `fit_budget`, unless the user sets it."""
    chain_state: ClassVar[tuple[str, ...]] = ()
    """State fields, beside the position, that a step after warm-up may change: momenta, counters, cached densities.
    Paths such as `inner.momentum` are allowed. `check sampler` rejects a change of any other field as adaptation."""

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
        """Return the distance of a step from each limit of the step size; warm-up moves the smallest mean to zero.

        The values are in units of the limit, so that -1 is the worst. The default is
        `acceptance_rate / target_acceptance - 1` for samplers with that field. An empty array means no adaptation.
        """
        target = getattr(self, "target_acceptance", None)
        if target is None or "acceptance_rate" not in stats:
            return jnp.zeros((0,))
        return jnp.reshape(stats["acceptance_rate"] / target - 1, (1,))

    def check(self, posterior: AbstractPosterior) -> None:
        """Reject a posterior that this sampler cannot run on. Called on the host, before anything compiles.

        Raises:
            UsageError: if the posterior is not supported; the message names the remedy.
        """
        del posterior

    def failure(self, stats: dict[str, np.ndarray]) -> str:
        """Return why the run must end, given a chunk's statistics [chain, draw]; empty if the run can continue."""
        del stats
        return ""

    @property
    def gradients(self) -> int:
        """Maximum number of gradients over all the data of a step."""
        return 1

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the per-datum likelihood or gradient evaluations of a step.

        Args:
            posterior: the target distribution.
            means: the means of the statistics.
            warmup: whether it is a step of warm-up.
        """
        del warmup
        return posterior.num_data * means.get("n_steps", float(self.gradients))

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> Any:
        """Return the value of `budget_field` in a run with a time budget.

        Args:
            posterior: the target distribution.
            thetas: the initial positions.
            gradients: affordable number of gradients over all the data of a step.
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
        """Name of the state's field about which predictions linearise the network in theta; "" for no linearisation."""
        return ""

    def remark(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> str:
        """Return a sentence for the user, given the means over chains of the values of `inspect`; "" for none."""
        del posterior, means
        return ""

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Return the problems found in a chain, most severe first, given the means of its statistics over all steps."""
        del posterior, means
        return ()

    @property
    def stated_exactness(self) -> Exactness:
        """Exactness of this instance, which its hyperparameters may lower."""
        return type(self).exactness
