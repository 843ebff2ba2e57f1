"""A diagonal plus low-rank metric, learned from the positions and gradients of warm-up.

The metric is a linear map A. A sampler moves in coordinates z with theta = A z, in which the posterior should have unit
variance in every direction. Here A = S (I + D' (diag(r) - I) D). S is the diagonal of the scales, the rows of D are
orthonormal directions, and r are the factors (stretches) by which A scales these directions.

A A' is the covariance that minimises the Fisher divergence between a Gaussian and the posterior: the solution C of
C E[g g'] C = E[x x']. Here x is the deviation of a position from the mean position, and g the deviation of the gradient
of the log density from its mean. For a Gaussian posterior, deviations that span all directions determine C exactly.
This module estimates C in a subspace. Seyboldt, Carlson and Carpenter 2026, arXiv 2603.18845.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bnnzoo.samplers.mcmc.metric import share_step_size

S = TypeVar("S")

_MAX_ROWS, _MIN_ROWS, _MAX_ELEMENTS = 64, 16, 2**20
"""Largest and smallest number of positions that each chain keeps, and the largest product of this number and dim.

The latest 64 positions come from one to two warm-up windows, or from more windows if warm-up has fewer than 640 steps.
"""
_MIN_USED, _MAX_USED = 20, 640
"""Smallest and largest number of positions, over all chains, from which a metric is estimated."""
_MAX_DIRECTIONS = 64
"""Largest number of directions of a metric. With more, A z costs as much as the gradient of a small network."""
_REGULARISATION = 1e-5


class Caution(NamedTuple):
    """Limits of the low-rank part. Directions that are mostly noise make a metric worse than its diagonal alone.

    Attributes:
        rows_per_direction: effective number of positions that each principal direction requires.
        least_stretch: smallest factor by which a direction is stretched or shrunk. The low-rank part omits directions
            with smaller factors.
    """

    rows_per_direction: float = 2.0
    least_stretch: float = 2**0.5


MICROCANONICAL = Caution()
HAMILTONIAN = Caution(8.0, 2.0)
"""Limits for `nuts` and `hmc`. With these limits, a warm-up of 150 steps gave the largest effective sample size per
gradient (`benchmarks/hamiltonian.py`)."""


class LowRankMetric(eqx.Module):
    """The map A in use, and the most recent positions and gradients of one chain."""

    scale: Float[Array, " dim"]
    directions: Float[Array, "direction dim"]
    """Orthonormal rows in units of `scale`; unused rows are 0."""
    stretches: Float[Array, " direction"]
    positions: Float[Array, "row dim"]
    gradients: Float[Array, "row dim"]
    count: Int[Array, ""]
    """Number of calls of `with_position`."""
    stride: int = eqx.field(static=True)
    """Every `stride`-th position is kept."""

    @classmethod
    def identity(cls, theta: Float[Array, " dim"], num_warmup: int) -> LowRankMetric:
        """Return the metric A = I for a warm-up of `num_warmup` steps."""
        dim = theta.shape[0]
        affordable = _MAX_ELEMENTS // dim
        empty = jnp.zeros((min(_MAX_ROWS, max(_MIN_ROWS, affordable)), dim), theta.dtype)
        directions = jnp.zeros((min(_MAX_DIRECTIONS, dim, affordable), dim), theta.dtype)
        stretches = jnp.ones(len(directions), theta.dtype)
        # In a warm-up of 200 steps or more, a window (except the final one) has a twentieth of the steps.
        stride = max(1, num_warmup // (10 * _MAX_ROWS))
        return cls(jnp.ones_like(theta), directions, stretches, empty, empty, jnp.zeros((), jnp.int32), stride)

    def correlate(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A z."""
        return self.scale * self._stretch(z)

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A' gradient, the gradient with respect to z."""
        return self._stretch(self.scale * gradient)

    def whiten(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A^-1 theta, the coordinates z of a position."""
        return self._stretch(theta / self.scale, 1 / self.stretches)

    def unproject(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return A'^-1 gradient. This converts a gradient with respect to z to one with respect to theta."""
        return self._stretch(gradient, 1 / self.stretches) / self.scale

    def _stretch(
        self, vector: Float[Array, " dim"], stretches: Float[Array, " direction"] | None = None
    ) -> Float[Array, " dim"]:
        stretches = self.stretches if stretches is None else stretches
        if not len(stretches):
            return vector
        return vector + ((stretches - 1) * (self.directions @ vector)) @ self.directions

    def with_position(self, theta: Float[Array, " dim"], gradient: Float[Array, " dim"]) -> LowRankMetric:
        """Return the metric after a step that ends at `theta`.

        At every `stride`-th call, theta and the gradient replace the oldest recorded position and gradient.
        """
        rows = len(self.positions)
        # The index `rows` is out of bounds, so `mode="drop"` records nothing there.
        place = jnp.where(self.count % self.stride == 0, (self.count // self.stride) % rows, rows)
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
    """Fields of a `LowRankMetric`, estimated from positions and gradients."""

    scale: Float[np.ndarray, " dim"]
    directions: Float[np.ndarray, "direction dim"]
    stretches: Float[np.ndarray, " direction"]


def share_metric(states: S, *, final: bool, caution: Caution = MICROCANONICAL) -> S:
    """Return the states with a metric and a step size that are the same for all chains.

    The metric is estimated from the deviations of all positions and gradients from the means of their chains. Chains in
    different modes therefore do not enlarge the metric. The step size is the median over the chains. It is rescaled
    such that the geometric mean of the step's length over all directions does not change. If `final` is true (warm-up
    has ended), the metric stays unchanged. The states must have the attributes `metric` and `step_size`.
    """
    typed_states: Any = states
    metric, log_factor = typed_states.metric, 0.0
    if not final and (estimate := _estimate_from_chains(metric, caution)) is not None:
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


def _estimate_from_chains(metric: LowRankMetric, caution: Caution) -> Estimate | None:
    """Estimate a metric from the kept positions of all chains.

    Return None if there are too few positions, or if a matrix decomposition fails.
    """
    deviations, slopes, effective = list[np.ndarray](), list[np.ndarray](), 0.0
    for positions, gradients in _kept_by_chain(metric):
        deviations.append(positions - positions.mean(0))
        slopes.append(gradients - gradients.mean(0))
        effective += _effective_rows(deviations[-1])
    if sum(map(len, deviations)) < _MIN_USED:
        return None
    x, g = np.concatenate(deviations), np.concatenate(slopes)
    every = -(-len(x) // _MAX_USED)
    try:
        return estimate_metric(
            x[::every],
            g[::every],
            old_scale=np.asarray(metric.scale[0], np.float64),
            max_directions=metric.stretches.shape[1],
            rank=int(effective / caution.rows_per_direction),
            least_stretch=caution.least_stretch,
        )
    except np.linalg.LinAlgError:
        return None


def _kept_by_chain(metric: LowRankMetric) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions and gradients that each chain has kept, from the oldest to the newest.

    A chain is left out if it has kept fewer than two positions, if a value is not finite, or if its positions are those
    of an earlier chain (a copy by `restart_stragglers`).
    """
    rows, seen = metric.positions.shape[1], set[bytes]()
    for chain, count in enumerate(np.asarray(metric.count)):
        num_kept = -(-int(count) // metric.stride)
        # The oldest position is at the place of the next one, unless places are still free.
        order = (np.arange(rows) + num_kept) % rows if num_kept > rows else np.arange(num_kept)
        positions, gradients = (
            np.asarray(values[chain], np.float64)[order] for values in (metric.positions, metric.gradients)
        )
        is_finite = np.isfinite(positions).all() and np.isfinite(gradients).all()
        if num_kept < 2 or not is_finite or (content := positions.tobytes()) in seen:
            continue
        seen.add(content)
        yield positions, gradients


def estimate_metric(
    deviations: Float[np.ndarray, "row dim"],
    slopes: Float[np.ndarray, "row dim"],
    *,
    old_scale: Float[np.ndarray, " dim"],
    max_directions: int,
    rank: int,
    least_stretch: float = MICROCANONICAL.least_stretch,
) -> Estimate:
    """Return a metric that minimises the Fisher divergence in a subspace, and is diagonal outside of it.

    The subspace contains the principal directions of the positions and of the gradients. The estimate omits directions
    whose stretch is between 1 / `least_stretch` and `least_stretch`.

    Args:
        deviations: deviations of positions from the mean of their chain.
        slopes: deviations of the gradients of the log density at these positions from the mean of their chain.
        old_scale: present scales, which are kept for parameters that have not moved.
        max_directions: number of rows of the field `directions` of the result. If there are more directions, those with
            the most extreme stretches are used; if there are fewer, the last rows are 0.
        rank: largest number of principal directions of the positions; the same limit holds for the gradients.
        least_stretch: smallest factor by which a direction is stretched or shrunk.

    Raises:
        numpy.linalg.LinAlgError: if a decomposition of a matrix fails.
    """
    num_rows, dim = deviations.shape
    spread, steepness = deviations.std(0), slopes.std(0)
    is_usable = (spread > 0) & (steepness > 0)
    scale = np.where(is_usable, np.sqrt(np.where(is_usable, spread, 1) / np.where(is_usable, steepness, 1)), old_scale)
    x, g = deviations / scale, slopes * scale
    directions, stretches = np.zeros((max_directions, dim)), np.ones(max_directions)
    rank = min(rank, num_rows, dim, 2 * max_directions)
    if rank < 1:
        return Estimate(scale, directions, stretches)
    principal = [np.linalg.svd(values, full_matrices=False)[2][:rank] for values in (x, g)]
    basis = np.linalg.qr(np.concatenate(principal).T)[0]
    ridge = _REGULARISATION * np.eye(basis.shape[1])
    x, g = x @ basis, g @ basis
    variances, vectors = np.linalg.eigh(_geometric_mean(x.T @ x / num_rows + ridge, g.T @ g / num_rows + ridge))
    log_stretches = np.log(np.maximum(variances, _REGULARISATION)) / 2
    selected = np.argsort(-np.abs(log_stretches))[:max_directions]
    selected = selected[np.abs(log_stretches[selected]) > np.log(least_stretch)]
    directions[: len(selected)] = (basis @ vectors[:, selected]).T
    stretches[: len(selected)] = np.exp(log_stretches[selected])
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


def _effective_rows(deviations: Float[np.ndarray, "row dim"]) -> float:
    """Return the effective number of positions: n (1 - a) / (1 + a), with the median a of all lag-1 autocorrelations.

    This is the effective number for the mean of a first-order autoregressive process.
    """
    squares = np.sum(deviations**2, 0)
    has_moved = squares > 0
    if not has_moved.any():
        return 0.0
    products = np.sum(deviations[1:] * deviations[:-1], 0)[has_moved]
    correlation = float(np.clip(np.median(products / squares[has_moved]), 0.0, 1.0))
    return len(deviations) * (1 - correlation) / (1 + correlation)


def _log_size(scale: Any, stretches: Any) -> float:
    """Return the mean log singular value of A."""
    return float((np.sum(np.log(np.asarray(scale))) + np.sum(np.log(np.asarray(stretches)))) / len(scale))
