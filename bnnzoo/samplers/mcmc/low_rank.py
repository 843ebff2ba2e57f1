"""A diagonal plus low-rank metric, learned from the positions and gradients of warm-up.

The metric is a linear map A. A sampler moves in coordinates z with theta = A z, in which the posterior should have unit
variance in every direction. Here A = S (I + D' (diag(r) - I) D). S is the diagonal of the scales, the rows of D are
orthonormal directions, and r are their stretches.

A A' is the covariance that minimises the Fisher divergence between a Gaussian and the posterior: the solution C of
C E[g g'] C = E[x x'], for deviations x of the positions and g of the gradients of the log density. It is exact for a
Gaussian as soon as there are as many positions as parameters. Seyboldt, Carlson and Carpenter 2026, arXiv 2603.18845.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.samplers.mcmc.metric import share_step_size

S = TypeVar("S")

_ROWS = 64
"""Number of positions that each chain keeps, about those of the last two warm-up windows."""
_FEWEST_ROWS = 20
"""Smallest number of positions of all chains from which a metric is computed."""
_MOST_DIRECTIONS = 64
"""Largest number of directions. With more, their products cost as much as the gradient of a small network."""
_MOST_PARAMETERS = 20_000
"""Largest number of parameters for which positions are kept. With more, only unit scales are used."""
_LEAST_STRETCH = 2**0.5
"""Smallest factor by which a direction must be stretched or shrunk; smaller factors do not differ from noise."""
_REGULARISATION = 1e-5


class LowRankMetric(eqx.Module):
    """The map A in use, and the most recent positions and gradients of one chain."""

    scale: Float[Array, " dim"]
    directions: Float[Array, "direction dim"]
    """Orthonormal rows in units of `scale`; unused rows are 0."""
    stretches: Float[Array, " direction"]
    positions: Float[Array, "row dim"]
    gradients: Float[Array, "row dim"]
    count: Float[Array, ""]
    """Number of steps that were offered to `with_position`."""
    stride: int = eqx.field(static=True)
    """Every `stride`-th position is kept."""

    @classmethod
    def identity(cls, theta: Float[Array, " dim"], num_warmup: int) -> LowRankMetric:
        """Return the metric A = I for a warm-up of `num_warmup` steps."""
        dim = theta.shape[0]
        rows = _ROWS if dim <= _MOST_PARAMETERS else 0
        none = jnp.zeros((rows, dim), theta.dtype)
        directions = jnp.zeros((min(_MOST_DIRECTIONS, dim) if rows else 0, dim), theta.dtype)
        stretches = jnp.ones(len(directions), theta.dtype)
        # A window has a twentieth of the steps of warm-up.
        stride = max(1, num_warmup // (10 * _ROWS))
        return cls(jnp.ones_like(theta), directions, stretches, none, none, jnp.zeros((), theta.dtype), stride)

    def correlate(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A z."""
        return self.scale * self._stretch(z)

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A' gradient, the gradient with respect to z."""
        return self._stretch(self.scale * gradient)

    def _stretch(self, vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
        if not len(self.stretches):
            return vector
        return vector + ((self.stretches - 1) * (self.directions @ vector)) @ self.directions

    def with_position(self, theta: Float[Array, " dim"], gradient: Float[Array, " dim"]) -> LowRankMetric:
        """Return the metric that keeps one more position, in place of the oldest one."""
        rows = len(self.positions)
        if not rows:
            return self
        number = self.count.astype(jnp.int32)
        place = jnp.where(number % self.stride == 0, (number // self.stride) % rows, rows)  # `rows` is out of bounds
        return LowRankMetric(
            self.scale,
            self.directions,
            self.stretches,
            self.positions.at[place].set(theta, mode="drop"),
            self.gradients.at[place].set(gradient, mode="drop"),
            self.count + 1,
            self.stride,
        )


class Estimate(NamedTuple):
    """Fields of a metric, estimated from positions and gradients."""

    scale: Float[np.ndarray, " dim"]
    directions: Float[np.ndarray, "direction dim"]
    stretches: Float[np.ndarray, " direction"]


def share_metric(states: S, *, final: bool) -> S:
    """Return the states with a metric and a step size that are the same for all chains.

    The metric is estimated from the deviations of all positions and gradients from the means of their chains, so chains
    in different modes do not enlarge it. The step size is the median over the chains, in units of the new metric: on
    average over all directions, a step moves as far as before. If warm-up has ended (`final`), only the step size
    changes. The states must have the attributes `metric` and `step_size`.
    """
    typed_states: Any = states
    metric, log_factor = typed_states.metric, 0.0
    if not final and (estimate := _estimate_from_chains(metric)) is not None:
        log_factor = _log_size(metric.scale[0], metric.stretches[0]) - _log_size(estimate.scale, estimate.stretches)
        metric = eqx.tree_at(
            lambda m: (m.scale, m.directions, m.stretches),
            metric,
            tuple(
                jnp.broadcast_to(jnp.asarray(new, old.dtype), old.shape)
                for old, new in zip((metric.scale, metric.directions, metric.stretches), estimate, strict=True)
            ),
        )
    step_sizes = typed_states.step_size * np.exp(log_factor)
    return share_step_size(eqx.tree_at(lambda s: s.metric, states, metric), step_sizes)


def _estimate_from_chains(metric: LowRankMetric) -> Estimate | None:
    """Estimate a metric from what all chains have kept; None if they have kept too little, or if it is not finite."""
    rows = metric.positions.shape[1]
    kept = [min(rows, -(-int(count) // metric.stride)) for count in np.asarray(metric.count)]
    if not rows or sum(kept) < _FEWEST_ROWS or min(kept) < 2:
        return None
    positions, gradients = (
        [np.asarray(chain, np.float64)[:count] for chain, count in zip(values, kept, strict=True)]
        for values in (metric.positions, metric.gradients)
    )
    effective = sum(_effective_rows(_in_order(chain, metric, i)) for i, chain in enumerate(positions))
    if not all(np.isfinite(chain).all() for chain in (*positions, *gradients)):
        return None
    deviations, slopes = (
        np.concatenate([chain - chain.mean(0) for chain in chains]) for chains in (positions, gradients)
    )
    return estimate_metric(
        deviations,
        slopes,
        old_scale=np.asarray(metric.scale[0], np.float64),
        most=metric.stretches.shape[1],
        rank=int(effective / 2),
    )


def estimate_metric(
    deviations: Float[np.ndarray, "row dim"],
    slopes: Float[np.ndarray, "row dim"],
    *,
    old_scale: Float[np.ndarray, " dim"],
    most: int,
    rank: int,
) -> Estimate:
    """Return the metric that minimises the Fisher divergence in a subspace, and the diagonal one outside of it.

    The subspace contains the principal directions of the positions and of the gradients.

    Args:
        deviations: deviations of positions from their mean.
        slopes: deviations of the gradients of the log density at these positions from their mean.
        old_scale: scales of parameters that have not moved.
        most: number of rows of `directions`. If there are more directions, those with the most extreme stretches are
            used; if there are fewer, the last rows are 0.
        rank: largest number of principal directions of the positions, and of the gradients.
    """
    num_rows, dim = deviations.shape
    spread, steepness = deviations.std(0), slopes.std(0)
    is_usable = (spread > 0) & (steepness > 0)
    scale = np.where(is_usable, np.sqrt(np.where(is_usable, spread, 1) / np.where(is_usable, steepness, 1)), old_scale)
    x, g = deviations / scale, slopes * scale
    directions, stretches = np.zeros((most, dim)), np.ones(most)
    rank = min(rank, num_rows, dim)
    if rank < 1 or not most:
        return Estimate(scale, directions, stretches)
    principal = [np.linalg.svd(values, full_matrices=False)[2][:rank] for values in (x, g)]
    basis = np.linalg.qr(np.concatenate(principal).T)[0]
    ridge = _REGULARISATION * np.eye(basis.shape[1])
    x, g = x @ basis, g @ basis
    variances, vectors = np.linalg.eigh(_geometric_mean(x.T @ x / num_rows + ridge, g.T @ g / num_rows + ridge))
    log_stretches = np.log(np.maximum(variances, _REGULARISATION)) / 2
    chosen = np.argsort(-np.abs(log_stretches))[:most]
    chosen = chosen[np.abs(log_stretches[chosen]) > np.log(_LEAST_STRETCH)]
    directions[: len(chosen)] = (basis @ vectors[:, chosen]).T
    stretches[: len(chosen)] = np.exp(log_stretches[chosen])
    return Estimate(scale, directions, stretches)


def _geometric_mean(
    covariance: Float[np.ndarray, "rank rank"], precision: Float[np.ndarray, "rank rank"]
) -> Float[np.ndarray, "rank rank"]:
    """Return the positive definite solution C of C `precision` C = `covariance`."""
    root, inverse_root = _powers(precision)
    inner, _ = _powers(root @ covariance @ root)
    return inverse_root @ inner @ inverse_root


def _powers(
    matrix: Float[np.ndarray, "rank rank"],
) -> tuple[Float[np.ndarray, "rank rank"], Float[np.ndarray, "rank rank"]]:
    """Return the square root of a positive definite matrix, and the inverse of the root."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    roots = np.sqrt(np.maximum(values, np.finfo(float).tiny))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def _in_order(positions: Float[np.ndarray, "row dim"], metric: LowRankMetric, chain: int) -> np.ndarray:
    """Return the kept positions of a chain from the oldest to the newest."""
    rows = metric.positions.shape[1]
    num_kept = -(-int(metric.count[chain]) // metric.stride)
    return np.roll(positions, -(num_kept % rows), 0) if num_kept > rows else positions


def _effective_rows(positions: Float[np.ndarray, "row dim"]) -> float:
    """Return the effective number of positions: n (1 - a) / (1 + a), with the median a of all lag-1 autocorrelations.

    This is the effective number for the mean of a first-order autoregressive process.
    """
    deviations = positions - positions.mean(0)
    squares = np.sum(deviations**2, 0)
    moved = squares > 0
    if not moved.any():
        return 0.0
    products = np.sum(deviations[1:] * deviations[:-1], 0)[moved]
    correlation = float(np.clip(np.median(products / squares[moved]), 0.0, 1.0))
    return len(positions) * (1 - correlation) / (1 + correlation)


def _log_size(scale: Any, stretches: Any) -> float:
    """Return the mean log singular value of A."""
    return float((np.sum(np.log(np.asarray(scale))) + np.sum(np.log(np.asarray(stretches)))) / len(scale))
