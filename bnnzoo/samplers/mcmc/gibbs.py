"""Gibbs sampling, with Metropolis steps for blocks whose conditional distribution is unknown."""

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
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose, metropolis, standard_normal
from bnnzoo.samplers.mcmc.conjugate import Conjugate, conjugate, draw_layer, draw_scale, is_affine
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic

Blocks = Literal["layer", "array", "coordinate"]


class GibbsState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    scales: Float[Array, " block"]
    """Step size eta of each block, the standard deviation of its proposal."""
    count: Float[Array, ""]


class Gibbs(AbstractSampler[GibbsState]):
    """Draws from the posterior. A step updates the blocks of theta in order, each by random-walk Metropolis.

    Tierney 1994, section 2.4. For every block b in turn, the proposal theta' changes only this block:
    theta'_b = theta_b + eta_b eps, with eps ~ N(0, I). It is accepted with probability min(1, e^-Delta), where Delta is
    the decrease of the log posterior density over all data. Step t of warm-up adds t^-0.6 (acceptance - target) to each
    log eta_b (Robbins and Monro 1951). After warm-up each eta_b is fixed.

    With `conditionals: conjugate`, the last layer and the noise scale are drawn from their conditional distributions,
    if these are known (Geman and Geman 1984). A step first updates the other blocks, then makes these draws. For
    Gaussian noise and a normal prior, the conditional of the last layer is a multivariate normal distribution. The
    conditional of the squared noise scale is a generalised inverse Gaussian distribution. A finite draw from a
    conditional is always accepted. A draw that is not finite counts as rejected and as `diverging`.
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_prior", "log_likelihoods")
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    blocks: Annotated[
        Blocks, Doc("parameters updated together: a layer, one array (weights or bias), or one number")
    ] = "layer"
    conditionals: Annotated[
        Literal["metropolis", "conjugate"],
        Doc("conjugate: draw the last layer and the noise scale from their conditionals, if these are known"),
    ] = "metropolis"
    step_size: Annotated[Number, Gt(0), Doc("initial step size (eta) of every block")] = number(0.01)
    target_acceptance: Annotated[
        Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up, which tunes each eta")
    ] = number(0.35)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> GibbsState:
        """Return the state at `theta`, with the step size of every block equal to `step_size`."""
        del num_warmup, key
        # If all parameters are drawn from conditionals, keep one unused eta: some loops cannot handle arrays of size 0.
        number_of_blocks = max(self._count(posterior), 1)
        return GibbsState(
            theta,
            posterior.log_prior(theta),
            posterior.log_likelihoods(theta),
            jnp.full((number_of_blocks,), self.step_size, theta.dtype),
            jnp.zeros((), theta.dtype),
        )

    def block_indices(self, posterior: AbstractPosterior) -> Int[np.ndarray, " dim"]:
        """Return the index of each parameter's block; -1 for parameters that are drawn from their conditional."""
        layout = posterior.layout
        if self.blocks == "coordinate":
            labels = np.arange(layout.dim)
        elif self.blocks == "layer":
            labels = layout.layer_index()
        else:
            labels = np.repeat(np.arange(len(layout.blocks)), [block.size for block in layout.blocks])
        is_metropolis = ~self._conjugate_parameters(posterior).mask(layout.dim)
        numbers = np.full(layout.dim, -1)
        numbers[is_metropolis] = np.unique(labels[is_metropolis], return_inverse=True)[1]
        return numbers

    def _count(self, posterior: AbstractPosterior) -> int:
        """Return the number of blocks that are updated by Metropolis steps."""
        return int(self.block_indices(posterior).max()) + 1

    def _conjugate_parameters(self, posterior: AbstractPosterior) -> Conjugate:
        return conjugate(posterior) if self.conditionals == "conjugate" else Conjugate(slice(0, 0), slice(0, 0))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse `conditionals: conjugate` for an unsupported posterior.

        Raises:
            UsageError: if no conditional is known, or if the outputs are not affine in the last layer's parameters.
        """
        if self.conditionals == "metropolis":
            return
        conjugate_parameters = conjugate(posterior)
        if not conjugate_parameters.is_any_known:
            raise UsageError(
                "[[sampler.conditionals=conjugate]]: requires [[likelihood=gaussian]], and either a normal prior of "
                "the last layer or a learned noise scale; use [[sampler.conditionals=metropolis]]"
            )
        if conjugate_parameters.layer.stop and isinstance(posterior, NetworkPosterior) and not is_affine(posterior):
            first = posterior.layout.name_of(conjugate_parameters.layer.start)
            raise UsageError(
                "[[sampler.conditionals=conjugate]]: the outputs are not affine in the parameters of the last "
                f"layer, such as {first}; use [[sampler.conditionals=metropolis]]"
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
        """Return an empty array, because `warmup_step` adapts the step sizes itself."""
        del stats
        return jnp.zeros((0,))

    def _sweep(
        self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray
    ) -> tuple[GibbsState, Stats, Float[Array, " block"]]:
        conjugate_parameters = self._conjugate_parameters(posterior)
        block_of_coordinate = jnp.asarray(self.block_indices(posterior))

        def visit(carry: Any, block: Int[Array, ""]) -> Any:
            theta, log_prior, log_likelihoods = carry
            key_propose, key_accept = jax.random.split(jax.random.fold_in(key, block))
            eps = jnp.where(block_of_coordinate == block, standard_normal(theta, key=key_propose), 0.0)
            proposal = theta + state.scales[block] * eps
            new_prior, new_likelihoods = posterior.log_prior(proposal), posterior.log_likelihoods(proposal)
            change = jnp.sum(new_likelihoods - log_likelihoods)
            log_ratio = new_prior - log_prior + posterior.likelihood_power * change
            accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
            return choose(accepted, (proposal, new_prior, new_likelihoods), carry), (accepted, rate, diverging)

        number_of_blocks = self._count(posterior)
        start = (state.position, state.log_prior, state.log_likelihoods)
        end, (accepted, rates, diverging) = jax.lax.scan(visit, start, jnp.arange(number_of_blocks))
        acceptance_rates = rates
        if conjugate_parameters.is_any_known:
            end, is_not_finite = _draw_conditionals(
                posterior, conjugate_parameters, end, key=jax.random.fold_in(key, number_of_blocks)
            )
            # Finite draws from conditionals count as accepted.
            acceptance_rates = jnp.append(rates, jnp.where(is_not_finite, 0.0, 1.0))
            accepted, diverging = jnp.append(accepted, ~is_not_finite), jnp.append(diverging, is_not_finite)
        theta, log_prior, log_likelihoods = end
        return (
            GibbsState(theta, log_prior, log_likelihoods, state.scales, state.count),
            {
                "lp": log_prior + posterior.likelihood_power * jnp.sum(log_likelihoods),
                "accepted": jnp.any(accepted),
                "acceptance_rate": jnp.mean(acceptance_rates),
                "diverging": jnp.any(diverging),
                "step_size": jnp.mean(state.scales),
            },
            rates,
        )

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of evaluations per step: a pass over the data for each block that Metropolis steps update.

        Draws from conditional distributions need up to four more passes.
        """
        del means, warmup
        conjugate_parameters = self._conjugate_parameters(posterior)
        # A draw of the layer evaluates the outputs and their derivatives (two passes), a draw of the scale the outputs
        # (one pass). After these draws, one more pass computes the densities.
        conditional_passes = 2.0 * (conjugate_parameters.layer.stop > 0) + (conjugate_parameters.scale.stop > 0)
        return posterior.num_data * (self._count(posterior) + conditional_passes + (conditional_passes > 0))


def _draw_conditionals(
    posterior: Any, conjugate_parameters: Conjugate, start: Any, *, key: PRNGKeyArray
) -> tuple[Any, Bool[Array, ""]]:
    """Draw the parameters with a known conditional. Return position, densities, and whether the draw failed.

    The draw fails if the new position or one of its densities is not finite. Then `start` is returned.
    """
    key_layer, key_scale = jax.random.split(key)
    theta = start[0]
    if conjugate_parameters.layer.stop:
        theta = draw_layer(posterior, conjugate_parameters.layer, theta, key=key_layer)
    if conjugate_parameters.scale.stop:
        theta = draw_scale(posterior, conjugate_parameters.scale, theta, key=key_scale)
    end = (theta, posterior.log_prior(theta), posterior.log_likelihoods(theta))
    is_not_finite = ~jnp.isfinite(jnp.sum(theta) + end[1] + jnp.sum(end[2]))
    return choose(is_not_finite, start, end), is_not_finite
