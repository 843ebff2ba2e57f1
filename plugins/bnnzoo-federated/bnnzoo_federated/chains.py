"""Chains whose log-likelihood is computed by parties: the steps of the chains, and the warm-up of the proposal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import erfc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.minibatch import MAX_STEP_SKEW
from bnnzoo.sampling.keys import Keys, keys_by_chain
from bnnzoo.sampling.loop.warmup import StepSize, StepSizeTuning, windows
from bnnzoo_federated.messages import POWERS
from bnnzoo_federated.strata import Stratum, combine_strata, degrees_of_freedom
from bnnzoo_federated.walk import decide, penalties, propose

Positions = Float[np.ndarray, "chain dim"]
Ask = Callable[[int, tuple[int, int], Positions, Positions], Float[np.ndarray, "party chain power"]]
"""Function that returns the parties' sums, given the number of a step, a random key, and two positions per chain."""
Stats = dict[str, np.ndarray]


class _Tuned(NamedTuple):
    """The part of a sampler's state that the step-size adaptation needs."""

    step_size: Array


class Chains:
    """The current positions of all chains of a run, and the current proposal."""

    def __init__(
        self,
        posterior: AbstractPosterior,
        sampler: Penalty,
        strata: Sequence[Stratum],
        ask: Ask,
        starts: Float[Array | np.ndarray, "chain dim"],
        keys: Keys,
    ):
        """Set the initial positions and the initial proposal.

        Args:
            posterior: a posterior without rows, used for its prior.
            sampler: the penalty sampler, with the step size, the targets of warm-up and the penalty's number of terms.
            strata: number of rows, sampling and added noise of each party.
            ask: function that obtains the parties' sums for a step.
            starts: initial positions.
            keys: random keys of the run.
        """
        self.posterior, self.sampler, self.strata, self._ask = posterior, sampler, strata, ask
        self.positions = jnp.asarray(starts, jnp.float32)
        self.step_size = jnp.asarray(sampler.step_size, jnp.float32)
        self.factor = jnp.eye(self.positions.shape[1], dtype=jnp.float32)
        self._keys, self._key = keys_by_chain(keys.chain, len(self.positions)), keys.settle

    def step(self, number: int, *, penalised: bool = True) -> Stats:
        """Make one step of all chains and return its statistics.

        Let -delta be the estimated log acceptance ratio, u_k the penalty for the variance of party k's estimate, and
        t^2 the known variance of the noise that the parties add. A proposal is accepted with probability
        min(1, exp(-delta - sum_k u_k - t^2/2)). The parties' estimates are independent, so the product of the
        corrections exp(-u_k) is correct for the sum of the estimates. Without `penalised`, u_k and t^2 are 0.
        """
        count = jnp.asarray(number, jnp.uint32)
        proposals = propose(self.positions, self.step_size, self.factor, self._keys, count)
        key_high, key_low = np.asarray(jax.random.key_data(jax.random.fold_in(self._key, count))).tolist()
        sums = self._ask(number, (key_high, key_low), np.asarray(self.positions), np.asarray(proposals))
        assert sums.shape == (len(self.strata), len(self.positions), POWERS)
        change = combine_strata(sums, self.strata, float(self.posterior.likelihood_power))
        dofs = degrees_of_freedom(self.strata)[:, None]
        penalty = np.zeros(len(self.positions))
        if self.sampler.correction and penalised:
            with np.errstate(over="ignore", invalid="ignore"):
                series = np.asarray(penalties(change.parts, dofs[:, 0], self.sampler.correction), float)
                penalty = series.sum(0) + change.known / 2
        decision = decide(self.posterior, self.positions, proposals, change.mean - penalty, self._keys, count)
        self.positions = decision.positions
        rate, sigma2 = np.asarray(decision.rate), change.sigma2
        skew_bias = np.abs(change.third) / 6
        stats = {
            "acceptance_rate": rate,
            "accepted": np.asarray(decision.accepted),
            "diverging": np.asarray(decision.diverging),
            "step_size": np.full(len(rate), np.asarray(self.step_size)),
            "delta": -np.asarray(decision.log_prior_change) - change.mean,
            "sigma2": sigma2,
            "penalty": penalty,
            "var_dof": change.dof(self.strata),
            "delta_skew": change.skewness,
            "regime_dof": (change.parts > dofs / 4).any(0),
            "regime_skew": skew_bias > MAX_STEP_SKEW,
            "skew_bias": rate * skew_bias,
        }
        return {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in stats.items()}

    def warm_up(self, num_steps: int, tell: Callable[[int, float], None]) -> None:
        """Adapt the size and the shape of the proposal in several windows of steps.

        In all windows except the last, the acceptance probability has no penalty: far from the posterior, the noise is
        so large that the penalty would reject every proposal. The covariance of the positions in a window becomes
        the shape of the next window's proposals. In the last window only the step size is adapted, with the penalty.
        """
        first, window_ends = 0, windows(num_steps)
        for end in window_ends:
            final, visited = end == window_ends[-1], []
            state = _Tuned(self.step_size)
            tuning = StepSize().init(state, 2 if final else 1)
            for number in range(first, end):
                stats = self.step(number, penalised=final)
                tuning, state = _adapt(tuning, state, jnp.asarray(self._headroom(stats, final), jnp.float32))
                self.step_size = state.step_size
                visited.append(np.asarray(self.positions))
                tell(number + 1, float(stats["acceptance_rate"].mean()))
            self.step_size = StepSize().final(tuning, state).step_size
            if not final:
                self._set_proposal_shape(np.stack(visited[len(visited) // 2 :]))
            first = end

    def _headroom(self, stats: Stats, final: bool) -> Float[np.ndarray, " constraint"]:
        """Return the relative margins of the acceptance above its target and of the variance below its target.

        The variance is that of the log acceptance ratio due to the batches (sigma2 without the added noise). The target
        of the acceptance is lower if the parties add noise. Before the last window (`final`), only the margin of the
        acceptance is returned.
        """
        added_noise = self.added_noise_variance if final else 0.0
        target = float(self.sampler.target_acceptance) * float(erfc((added_noise / 8) ** 0.5))
        acceptance = stats["acceptance_rate"].mean() / target - 1
        if not final:
            return np.array([acceptance])
        sigma2 = np.nan_to_num(stats["sigma2"], nan=np.inf) - added_noise
        return np.array([acceptance, 1 - np.minimum(sigma2 / float(self.sampler.target_sigma2), 10).mean()])

    @property
    def added_noise_variance(self) -> float:
        """Variance of the log acceptance ratio due to the noise that the parties add."""
        zero_sums = np.zeros((len(self.strata), 1, POWERS))
        return combine_strata(zero_sums, self.strata, float(self.posterior.likelihood_power)).known

    def _set_proposal_shape(self, visited: Float[np.ndarray, "step chain dim"]) -> None:
        """Set the proposal's shape to the covariance of the positions, and its step size to 2.38 / sqrt(dim).

        The fewer the positions, the more the covariance is shrunk towards its diagonal.
        """
        dim = visited.shape[2]
        covariance = np.atleast_2d(np.cov(visited.reshape(-1, dim).astype(np.float64), rowvar=False))
        diagonal = np.diag(np.maximum(np.diag(covariance), np.finfo(np.float32).eps))
        weight = visited.shape[1] * visited.shape[0] / (10 * dim)
        shrunk = (weight * covariance + diagonal) / (weight + 1)
        self.factor = jnp.asarray(np.linalg.cholesky(shrunk), jnp.float32)
        self.step_size = jnp.asarray(2.38 / dim**0.5, jnp.float32)


@eqx.filter_jit
def _adapt(
    tuning: StepSizeTuning, state: _Tuned, headroom: Float[Array, " constraint"]
) -> tuple[StepSizeTuning, _Tuned]:
    return StepSize().update(tuning, state, headroom)
