"""Gibbs sampling, with Metropolis steps for unknown conditionals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt, Lt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers._conjugate import Conjugate, conjugate, draw_layer, draw_scale, is_affine
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose, metropolis, standard_normal
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic

Blocks = Literal["layer", "array", "coordinate"]


class GibbsState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    scales: Float[Array, " block"]
    """Standard deviation of the proposal of each block."""
    count: Float[Array, ""]


class Gibbs(AbstractSampler[GibbsState]):
    """Draws from the posterior. A step updates the blocks of theta in order, each by random-walk Metropolis.

    Tierney 1994, section 2.4. For every block b in turn, theta' equals theta except for
    theta'_b = theta_b + eta_b eps, and is accepted with min(1, e^-Delta) over all data. Warm-up changes each log eta_b
    by t^-0.6 (acceptance - target) (Robbins and Monro 1951); then they are fixed.

    `conditionals: conjugate` draws parameters with a known conditional from it (Geman and Geman 1984), after the other
    blocks. These are the last layer under Gaussian noise and a normal prior, a multivariate normal, and the noise
    scale, whose square has a generalised inverse Gaussian distribution (`_conjugate`). Such a draw is always accepted,
    unless it is not finite: it then counts as rejected and as `diverging`.
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_prior", "log_likelihoods")
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    blocks: Annotated[Blocks, Doc("what moves together: a layer, one array (weights or bias), or one number")] = "layer"
    conditionals: Annotated[
        Literal["metropolis", "conjugate"],
        Doc("conjugate: a last layer and a noise scale are drawn from their conditionals, where those are known"),
    ] = "metropolis"
    step_size: Annotated[Number, Gt(0), Doc("eta of every block at the start")] = number(0.01)
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("acceptance that warm-up tunes each eta to")] = number(0.35)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> GibbsState:
        """Return the state at `theta` with all step sizes at `step_size`."""
        del num_warmup, key
        # If everything is drawn from conditionals, keep one unused eta: some loops cannot handle arrays of size 0.
        number_of_blocks = max(self._count(posterior), 1)
        return GibbsState(
            theta,
            posterior.log_prior(theta),
            posterior.log_likelihoods(theta),
            jnp.full((number_of_blocks,), self.step_size, theta.dtype),
            jnp.zeros((), theta.dtype),
        )

    def members(self, posterior: AbstractPosterior) -> Int[np.ndarray, " dim"]:
        """Return the block index of each coordinate, from 0; -1 for coordinates drawn from their conditional."""
        layout = posterior.layout
        if self.blocks == "coordinate":
            found = np.arange(layout.dim)
        elif self.blocks == "layer":
            found = layout.layer_index()
        else:
            found = np.repeat(np.arange(len(layout.blocks)), [block.size for block in layout.blocks])
        free = ~self._known(posterior).drawn(layout.dim)
        numbers = np.full(layout.dim, -1)
        numbers[free] = np.unique(found[free], return_inverse=True)[1]
        return numbers

    def _count(self, posterior: AbstractPosterior) -> int:
        """Return the number of blocks that move by Metropolis."""
        return int(self.members(posterior).max()) + 1

    def _known(self, posterior: AbstractPosterior) -> Conjugate:
        return conjugate(posterior) if self.conditionals == "conjugate" else Conjugate(slice(0, 0), slice(0, 0))

    def check(self, posterior: AbstractPosterior) -> None:
        """Reject `conditionals: conjugate` if no conditional is known, or outputs are not affine in the last layer."""
        if self.conditionals == "metropolis":
            return
        known = conjugate(posterior)
        if not known.any:
            raise UsageError(
                "[[sampler.conditionals=conjugate]]: requires a last layer with [[likelihood=gaussian]] and a "
                "normal prior, or a learned scale of gaussian; use [[sampler.conditionals=metropolis]]"
            )
        if known.layer.stop and isinstance(posterior, NetworkPosterior) and not is_affine(posterior):
            first = posterior.layout.name_of(known.layer.start)
            raise UsageError(
                f"[[sampler.conditionals=conjugate]]: the outputs are not affine in {first} and the rest of its "
                "layer; use [[sampler.conditionals=metropolis]]"
            )

    def warmup_step(
        self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray
    ) -> tuple[GibbsState, Stats]:
        """Make one sweep and adapt the step size of each block."""
        state, stats, rates = self._sweep(posterior, state, key=key)
        if not rates.size:
            return state, stats
        count = state.count + 1
        scales = state.scales * jnp.exp(count**-0.6 * (rates - self.target_acceptance))
        return eqx.tree_at(lambda s: (s.scales, s.count), state, (scales, count)), stats

    def step(self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray) -> tuple[GibbsState, Stats]:
        """Make one sweep over all blocks."""
        state, stats, _ = self._sweep(posterior, state, key=key)
        return state, stats

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Return no limits, because the sweep adapts its own step sizes."""
        del stats
        return jnp.zeros((0,))

    def _sweep(
        self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray
    ) -> tuple[GibbsState, Stats, Float[Array, " block"]]:
        members, known = jnp.asarray(self.members(posterior)), self._known(posterior)

        def visit(carry: Any, block: Int[Array, ""]) -> Any:
            theta, log_prior, log_likelihoods = carry
            key_propose, key_accept = jax.random.split(jax.random.fold_in(key, block))
            eps = jnp.where(members == block, standard_normal(theta, key=key_propose), 0.0)
            proposal = theta + state.scales[block] * eps
            new_prior, new_likelihoods = posterior.log_prior(proposal), posterior.log_likelihoods(proposal)
            change = jnp.sum(new_likelihoods - log_likelihoods)
            log_ratio = new_prior - log_prior + posterior.likelihood_power * change
            accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
            return choose(accepted, (proposal, new_prior, new_likelihoods), carry), (accepted, rate, diverging)

        number_of_blocks = self._count(posterior)
        start = (state.position, state.log_prior, state.log_likelihoods)
        end, (accepted, rates, diverging) = jax.lax.scan(visit, start, jnp.arange(number_of_blocks))
        told = rates
        if known.any:
            end, broken = _from_conditionals(posterior, known, end, key=jax.random.fold_in(key, number_of_blocks))
            # Draws from conditionals count as accepted.
            told = jnp.append(rates, jnp.where(broken, 0.0, 1.0))
            accepted, diverging = jnp.append(accepted, ~broken), jnp.append(diverging, broken)
        theta, log_prior, log_likelihoods = end
        return (
            GibbsState(theta, log_prior, log_likelihoods, state.scales, state.count),
            {
                "lp": log_prior + posterior.likelihood_power * jnp.sum(log_likelihoods),
                "accepted": jnp.any(accepted),
                "acceptance_rate": jnp.mean(told),
                "diverging": jnp.any(diverging),
                "step_size": jnp.mean(state.scales),
            },
            rates,
        )

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        """Count one pass per block, and those of the conditional draws."""
        del means
        known = self._known(posterior)
        # A draw of the layer evaluates outputs and their derivatives, one of the scale evaluates outputs. One more pass
        # follows for the densities.
        draws = 2.0 * (known.layer.stop > 0) + (known.scale.stop > 0)
        return posterior.num_data * (self._count(posterior) + draws + (draws > 0))


def _from_conditionals(
    posterior: Any, known: Conjugate, start: Any, *, key: PRNGKeyArray
) -> tuple[Any, Bool[Array, ""]]:
    """Return the position after the conditional draws and its densities; revert and return True if not finite."""
    key_layer, key_scale = jax.random.split(key)
    theta = start[0]
    if known.layer.stop:
        theta = draw_layer(posterior, known.layer, theta, key=key_layer)
    if known.scale.stop:
        theta = draw_scale(posterior, known.scale, theta, key=key_scale)
    end = (theta, posterior.log_prior(theta), posterior.log_likelihoods(theta))
    broken = ~jnp.isfinite(jnp.sum(theta) + end[1] + jnp.sum(end[2]))
    return choose(broken, start, end), broken
