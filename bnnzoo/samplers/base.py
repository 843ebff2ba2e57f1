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

    `init`, `step`, `warmup_step`, `settle` and `inspect` are pure functions of ONE chain. `tune` receives the states of
    all chains.

    A state is any JAX pytree with the attribute `position`: the vector theta of all parameters. If `headroom` returns a
    non-empty array, the state also needs the attribute `step_size`, which warm-up then adapts.

    Warm-up is divided into windows. `settle` and `tune` are called at the end of each window.
    """

    exactness: ClassVar[Exactness]
    """Accuracy of the draws. `exact`: the stationary distribution is the posterior. `noise-corrected`: a correction for
    mini-batch noise makes it the posterior, if this noise is small. `biased`: it differs from the posterior.
    `approximate`: the draws come from another distribution, such as a fitted Gaussian. The registered entry of the
    sampler must state the same value."""
    density_only: ClassVar[bool] = False
    """Whether the sampler uses the posterior only through its prior and the sum of all rows' log-likelihoods."""
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    """Statistics that the steps report, in the order of their plots."""
    guarded: ClassVar[bool] = False
    """Whether `findings` detects every known way in which a run can fail silently. If the value is False and a run has
    no findings, the attribute `regime_ok` of the result file is `not-applicable`."""
    inspect: ClassVar[Callable[..., Stats] | None] = None
    """Method `inspect(posterior, state, *, key)`, or None. This method receives the last state of a chain and computes
    diagnostics that the statistics of the steps do not contain. The result file stores the diagnostics, and `findings`
    receives them together with the means of the statistics."""
    budget_field: ClassVar[str] = ""
    """Name of the field whose value `fit_budget` chooses in a run with a time budget, unless the user sets this field.
    It is "" if `fit_budget` chooses no field."""
    can_end_warmup: ClassVar[bool] = False
    """Whether warm-up may end early, after any window, if it takes longer than planned in a run with a time budget. Set
    this to True if each window adapts the sampler anew. Set it to False if a schedule is fixed for all steps of
    warm-up, such as a decreasing learning rate."""
    chain_state: ClassVar[tuple[str, ...]] = ()
    """State fields that a step after warm-up may change, in addition to `position`: momenta, counters, cached
    densities. Paths such as `inner.momentum` are allowed. If any other field changes, `check sampler` reports that the
    sampler still adapts after warm-up."""

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

    def prepare(self, posterior: AbstractPosterior) -> AbstractPosterior:
        """Return the posterior with additional precomputed values that all chains share, such as a common anchor.

        The method is called once, before `init`. By default the posterior is returned unchanged. `init` must also work
        for a posterior that was not prepared.
        """
        return posterior

    @abc.abstractmethod
    def step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """Make one transition. Return the new state and a dictionary from ArviZ names to the step's statistics."""

    def warmup_step(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> tuple[S, Stats]:
        """Make one step of warm-up. Approximate methods train here."""
        return self.step(posterior, state, key=key)

    def settle(self, posterior: AbstractPosterior, state: S, *, final: bool, key: PRNGKeyArray) -> S:
        """Update the state of a chain at the end of a warm-up window, for example an estimate of the curvature.

        `final` is true at the end of the last window. A Metropolis sampler should then leave the state unchanged,
        because its step size cannot adapt to the change any more.
        """
        del posterior, final, key
        return state

    def tune(
        self, posterior: AbstractPosterior, states: S, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[S], S]:
        """Adapt the sampler at the end of a warm-up window, from the states of all chains.

        The method runs on the host, not in compiled code. It is the only method that may change a static field.

        Args:
            posterior: the target distribution.
            states: the states of all chains, each leaf with a leading chain axis.
            final: whether the last window of warm-up has ended.
            key: random key.
            num_steps: number of warm-up steps so far.

        Returns:
            The adapted sampler and the adapted states. A field of the sampler that changes must become a finite number,
            a text or a boolean, because a resumed run must restore it.
        """
        del posterior, final, key, num_steps
        return self, states

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Return a step's relative margin to each limit that bounds the step size, such as a target acceptance rate.

        A margin is positive if the step satisfies the limit, and negative if it violates the limit. Warm-up adapts the
        step size until the smallest of the mean margins is 0. For samplers with the field `target_acceptance` the
        default is `acceptance_rate / target_acceptance - 1`. If the array is empty, warm-up does not adapt the step
        size.
        """
        target = getattr(self, "target_acceptance", None)
        if target is None or "acceptance_rate" not in stats:
            return jnp.zeros((0,))
        return jnp.reshape(stats["acceptance_rate"] / target - 1, (1,))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a posterior that this sampler does not support. The check runs before anything is compiled.

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
        """Maximum number of full-data gradients that a step computes."""
        return 1

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the mean number of evaluations per step. Each likelihood or gradient of one datum is one evaluation.

        Args:
            posterior: the target distribution.
            means: the mean of each statistic over the steps.
            warmup: whether the step belongs to warm-up.
        """
        del warmup
        return posterior.num_data * means.get("n_steps", float(self.gradients))

    def trajectory_gradient(
        self, posterior: AbstractPosterior, position: Float[Array, " dim"]
    ) -> Float[Array, " dim"] | None:
        """Return the gradient of a step's trajectory; None if it takes as long as the gradient of the log density.

        Define this method if a trajectory moves in other coordinates than theta. A run with a time budget measures the
        time of the method. The returned values are not used.

        Args:
            posterior: the target distribution.
            position: any position, in the coordinates of the steps.
        """
        del posterior, position
        return None

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> Any:
        """Return the value of `budget_field` in a run with a time budget.

        Args:
            posterior: the target distribution.
            thetas: the initial positions.
            gradients: number of full-data gradients per step that the time budget allows.

        Raises:
            NotImplementedError: if the sampler does not define this method. Every sampler with a `budget_field` must
                define it.
        """
        del posterior, thetas, gradients
        raise NotImplementedError(
            f"{type(self).__name__}: fit_budget is missing; a sampler with a budget_field must define it"
        )

    def choose(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
        """Return values for fields that are set to `auto`. The method is called before warm-up begins.

        A run without warm-up does not call the method.

        Args:
            posterior: the target distribution.
            thetas: the initial positions.
        """
        del posterior, thetas
        return {}

    @property
    def mode_field(self) -> str:
        """Name of the state field with the point at which the network is linearised for predictions.

        It is "" if predictions use the network itself.
        """
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
        """Exactness of this instance. Some hyperparameter values make an instance less exact than its class."""
        return type(self).exactness
