"""Directions in the space of the parameters in which the data make the posterior narrower than the prior.

In units of the prior the posterior's precision is I + A, where A is the generalised Gauss-Newton matrix of the data. If
a direction has the eigenvalue 1 of I + A, the posterior is as wide as the prior there, even with very many data. If the
eigenvalue is 10 000, the standard deviation of the posterior is a hundredth of the prior's.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.subspace import normal_moments
from bnnzoo.samplers.common import climb, curvature, damped
from bnnzoo.samplers.common.preconditioner import Factor

EXACT_UP_TO = 1500
"""Largest number of parameters for which all eigenvalues of the Gauss-Newton matrix are computed."""
MOST_DIRECTIONS = 1024
"""Largest number of directions that subspace iteration computes."""

_FEWEST_DIRECTIONS, _ITERATIONS = 128, 4
_PROBES, _SOLVER_STEPS = 8, 40
_WORK, _MOST_ROWS = 4e10, 2**17
"""Limits of rows x parameters^2 and of rows for a Gauss-Newton matrix. Above them, a random subset of the rows is used.
The subset has at least 4 rows per parameter and at least `_ROWS` rows, even above the limits."""
_MOST_ELEMENTS = 2e8
"""Largest product of parameters and rows for subspace iteration, which multiplies the Gauss-Newton matrix with about
ten thousand vectors for every damped step to the mode."""
_ROWS, _COLUMNS = 4096, 32
"""Numbers of rows and columns of a Gauss-Newton product that are processed together. They limit the memory."""
_DAMPED_STEPS = 100
"""Largest number of damped steps of a stage (`_Stage`)."""
_SUBSET_ROWS = 2**16
"""Number of rows of the first damped steps. The later steps use all rows."""
_ROUNDS = 4
_NEAR = 0.04
"""The ascent ends if the squared distance to the mode, per parameter and in standard deviations, is below this value.
"""

_climb_to_mode, _slope = eqx.filter_jit(climb.climb_to_mode), eqx.filter_jit(climb.slope)
_full, _diagonal = eqx.filter_jit(curvature.full), eqx.filter_jit(curvature.diagonal)


class Spectrum(NamedTuple):
    """The largest eigenvalues of the posterior's precision in units of the prior, in descending order."""

    values: Float[np.ndarray, " direction"]
    vectors: Float[np.ndarray, "parameter direction"]
    """Orthonormal eigenvectors, in units of the prior."""
    total: float
    """Effective number of parameters: the sum of 1 - 1 / eigenvalue over all directions. It includes directions whose
    eigenvalue is not in `values`."""
    own_sd: Float[np.ndarray, " own"]
    """Posterior standard deviations of the parameters of the likelihood."""

    def variance_fraction(self, num_directions: int) -> float:
        """Return the fraction of the variance of the network's outputs due to the first `num_directions` directions.

        A linearised network has a Gaussian posterior. Consider the variance of each output in units of the noise. The
        sum of these variances over the data is the trace of A (I + A)^-1. An eigenvalue e of I + A contributes
        1 - 1 / e to this trace.
        """
        return float(np.sum(1 - 1 / self.values[:num_directions])) / max(self.total, np.finfo(float).tiny)

    def factor(self, sd: Float[np.ndarray, " parameter"], damping: float, dtype: Any) -> climb.Factor:
        """Return the factor F of the Gaussian whose precision has the eigenvalues `values` + `damping`.

        Args:
            sd: prior standard deviations of the network's parameters.
            damping: number that is added to all eigenvalues. Eigenvalues that are not in `values` count as 1.
            dtype: type of the numbers.
        """
        size, num_own = len(sd), len(self.own_sd)
        lengths = (self.values + damping) ** -0.5
        if len(lengths) == size:
            matrix = np.zeros((size + num_own, size + num_own))
            matrix[:size, :size] = sd[:, None] * self.vectors * lengths
            matrix[size:, size:] = np.diag(self.own_sd)
            return Factor(jnp.asarray(matrix, dtype))
        other = (1 + damping) ** -0.5
        return LowRank(
            jnp.asarray(np.concatenate([sd * other, self.own_sd]), dtype),
            jnp.asarray(np.pad(self.vectors, ((0, num_own), (0, 0))), dtype),
            jnp.asarray(lengths / other - 1, dtype),
        )


class Mode(NamedTuple):
    """A mode of the posterior, with the eigenvalues and directions at the mode."""

    theta: Float[np.ndarray, " dim"]
    spectrum: Spectrum
    distance: float
    """Root mean square over the parameters of the distance from `theta` to the mode, in standard deviations.

    Directions with a smaller eigenvalue than the last damping hardly count: steps along them were damped, because the
    curvature changes along them.
    """


def find_mode(
    posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], *, smallest: float, key: PRNGKeyArray
) -> Mode:
    """Return the mode near a trained network, with the eigenvalues at the mode that are at least `smallest`.

    Args:
        posterior: the posterior of the whole network.
        theta: the trained parameters, from which the ascent to the mode begins.
        smallest: smallest eigenvalue that the caller needs.
        key: random key for the subset of rows and for the subspace iteration.
    """
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    position, spectrum, distance = jnp.asarray(theta), None, math.inf
    for step in range(_ROUNDS):
        position, damping = _approach(posterior, position, is_near=step > 0, smallest=smallest, key=key)
        spectrum = compute_spectrum(posterior, np.asarray(position), smallest=smallest, key=key)
        position = _climb_to_mode(posterior, position, spectrum.factor(sd, damping, position.dtype))
        spectrum = compute_spectrum(posterior, np.asarray(position), smallest=smallest, key=key)
        slope = _slope(posterior, position, spectrum.factor(sd, damping, position.dtype))
        previous_distance, distance = distance, float(jnp.mean(slope**2))
        if distance < _NEAR or distance > previous_distance / 2:
            break
    assert spectrum is not None
    return Mode(np.asarray(position), spectrum, math.sqrt(distance))


class _Stage(NamedTuple):
    """Settings of a series of damped steps that use the same rows."""

    posterior: NetworkPosterior
    """The posterior given the rows from which slopes and increases of the log density are computed."""
    curvature_posterior: NetworkPosterior
    """The posterior given the rows from which the curvature is computed."""
    small_rise: float
    """Limit in nats: the stage ends after two consecutive steps that increase the log density by less."""


def _approach(
    posterior: NetworkPosterior,
    position: Float[Array, " dim"],
    *,
    is_near: bool,
    smallest: float,
    key: PRNGKeyArray,
) -> tuple[Float[Array, " dim"], float]:
    """Make damped Gauss-Newton steps to a position near the mode. Return this position and the last damping.

    Training with mini-batches ends far from the mode if there are many rows: the distance in posterior standard
    deviations grows with the square root of the number of rows. The first steps use a subset of the rows, unless the
    position `is_near` the mode given all rows. The curvature of the last steps needs many rows: with few rows it is too
    inaccurate in the directions that the data determine worst, and the steps there are too short.
    """
    dim = posterior.layout.dim
    subset = _random_rows(posterior, _SUBSET_ROWS, key=key)
    # The mode of a subset is itself about (N / n) dim / 2 nats below the mode of all N rows. The ascent after the last
    # step gains the last few nats.
    subset_rise = dim / 20 * posterior.num_data / _SUBSET_ROWS
    stages = [
        _Stage(subset, _curvature_rows(subset, _WORK / 40, key=key), subset_rise),
        _Stage(posterior, _curvature_rows(posterior, _WORK, key=key), dim / 20),
    ]
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    scale, damping = jnp.asarray(sd, position.dtype), None
    for stage in stages[is_near or subset is posterior :]:
        small_rises = 0
        for _ in range(_DAMPED_STEPS):
            spectrum = _spectrum(stage.curvature_posterior, np.asarray(position), smallest=smallest, key=key)
            curvature_arrays = (spectrum.values, spectrum.vectors, spectrum.own_sd)
            values, vectors, own_sd = (jnp.asarray(array, position.dtype) for array in curvature_arrays)
            damping = damped.first_damping(values) if damping is None else damping
            position, damping, rise = damped.step_up(
                stage.posterior, position, sd=scale, own_sd=own_sd, values=values, vectors=vectors, damping=damping
            )
            small_rises = small_rises + 1 if rise < stage.small_rise else 0
            if small_rises == 2:  # after the first one, the damping may have been wrong
                break
    assert damping is not None  # there is at least one stage, and each makes a step
    return position, float(damping)


def compute_spectrum(
    posterior: NetworkPosterior,
    theta: Float[np.ndarray, " dim"],
    *,
    smallest: float,
    work: float = _WORK,
    key: PRNGKeyArray,
) -> Spectrum:
    """Return all eigenvalues >= `smallest` of I + A (see the module) and some smaller ones, with their directions.

    With up to `EXACT_UP_TO` parameters the eigenvalues are exact. With more parameters subspace iteration computes at
    most `MOST_DIRECTIONS` of them. If there are many rows, a random subset of the rows is used. The directions are then
    those of the subset. Inexact directions cause no error, because any subspace may be sampled.
    """
    return _spectrum(_curvature_rows(posterior, work, key=key), theta, smallest=smallest, key=key)


def is_too_large(posterior: NetworkPosterior) -> bool:
    """Whether subspace iteration would take too long, because the Gauss-Newton matrix has too many elements."""
    dim = posterior.layout.dim
    rows = min(_num_curvature_rows(dim, _WORK), posterior.num_data)
    return dim > EXACT_UP_TO and float(dim) * rows > _MOST_ELEMENTS


def _num_curvature_rows(dim: int, work: float) -> int:
    return max(4 * dim, _ROWS, min(int(work / dim**2), _MOST_ROWS))


def _curvature_rows(posterior: NetworkPosterior, work: float, *, key: PRNGKeyArray) -> NetworkPosterior:
    """Return the posterior given the rows from which the eigenvalues are computed, for a limit `work` of the cost."""
    num_rows = _num_curvature_rows(posterior.layout.dim, work)
    return _random_rows(posterior, num_rows, key=jax.random.fold_in(key, 0))


def _spectrum(
    posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], *, smallest: float, key: PRNGKeyArray
) -> Spectrum:
    if posterior.layout.dim <= EXACT_UP_TO:
        return _exact(posterior, theta)
    return _iterated(posterior, theta, smallest=smallest, key=jax.random.fold_in(key, 1))


def _exact(posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"]) -> Spectrum:
    """Return all eigenvalues, from the triangular factor of the precision."""
    factor = _full(posterior, jnp.asarray(theta), "ggn")
    size = posterior.layout.network.dim
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    vectors, lengths, _ = np.linalg.svd(np.asarray(factor.factor, np.float64)[:size, :size] / sd[:, None])
    # The singular values are the posterior's standard deviations in units of the prior.
    values = np.maximum(lengths**-2.0, 1.0)[::-1]
    own_sd = np.linalg.norm(np.asarray(factor.factor)[size:], axis=1)
    return Spectrum(values, vectors[:, ::-1], float(np.sum(1 - 1 / values)), own_sd)


class LowRank(eqx.Module):
    """The Gaussian N(0, F F') with F = diag(scale) (I + U diag(change) U') and orthonormal columns U."""

    scale: Float[Array, " dim"]
    vectors: Float[Array, "dim direction"]
    change: Float[Array, " direction"]

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps."""
        return self.scale * self._stretch(eps)

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g for a gradient g."""
        return self._stretch(self.scale * gradient)

    def _stretch(self, vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return vector + self.vectors @ (self.change * (self.vectors.T @ vector))


def _iterated(
    posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], *, smallest: float, key: PRNGKeyArray
) -> Spectrum:
    """Return the largest eigenvalues by randomised subspace iteration (Halko, Martinsson and Tropp 2011).

    The number of directions doubles until an eigenvalue is below `smallest`, or until `MOST_DIRECTIONS` is reached. The
    other directions also contribute to the effective number of parameters. Hutchinson's method estimates this part.
    """
    layout = posterior.layout
    _, sd = normal_moments(posterior.prior, layout.network)
    own_size = layout.dim - layout.network.dim
    scale = jnp.asarray(np.concatenate([sd, np.zeros(own_size)]), posterior.dtype)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())

    def product(columns: Float[np.ndarray, "parameter column"]) -> Float[np.ndarray, "parameter column"]:
        padded = jnp.asarray(np.pad(columns, ((0, own_size), (0, 0))), posterior.dtype)
        return np.asarray(_product(posterior, jnp.asarray(theta), scale, padded), np.float64)[: layout.network.dim]

    count = min(_FEWEST_DIRECTIONS, layout.network.dim)
    columns = np.linalg.qr(rng.normal(size=(layout.network.dim, count)))[0]
    while True:
        for _ in range(_ITERATIONS):
            columns = np.linalg.qr(product(columns))[0]
        inner = columns.T @ product(columns)
        eigenvalues, rotation = np.linalg.eigh((inner + inner.T) / 2)
        values, vectors = 1 + np.maximum(eigenvalues, 0)[::-1], columns @ rotation[:, ::-1]
        if values[-1] < smallest or count >= min(MOST_DIRECTIONS, layout.network.dim):
            break
        more = rng.normal(size=(layout.network.dim, min(count, layout.network.dim - count)))
        columns = np.linalg.qr(np.concatenate([vectors, more], 1))[0]
        count = columns.shape[1]
    probes = rng.normal(size=(layout.network.dim, _PROBES))
    probes = probes - vectors @ (vectors.T @ probes)
    solved = _solve(lambda columns: columns + product(columns), probes)
    total = float(np.sum(1 - 1 / values) + np.sum(probes * (probes - solved)) / _PROBES)
    own_sd = np.asarray(_diagonal(posterior, jnp.asarray(theta), "ggn").factor[layout.network.dim :])
    return Spectrum(values, vectors, total, own_sd)


def _solve(operator, columns: Float[np.ndarray, "parameter column"]) -> Float[np.ndarray, "parameter column"]:
    """Solve operator(X) = columns approximately by conjugate gradients, for a positive definite operator."""
    solution, residual = np.zeros_like(columns), columns.copy()
    direction, square = residual.copy(), np.sum(residual**2, 0)
    start = square.copy()
    for _ in range(_SOLVER_STEPS):
        image = operator(direction)
        step = square / np.maximum(np.sum(direction * image, 0), np.finfo(float).tiny)
        solution, residual = solution + step * direction, residual - step * image
        square, previous_square = np.sum(residual**2, 0), square
        if np.all(square < 1e-6 * start):
            break
        direction = residual + square / np.maximum(previous_square, np.finfo(float).tiny) * direction
    return solution


@eqx.filter_jit
def _product(
    posterior: NetworkPosterior,
    theta: Float[Array, " dim"],
    scale: Float[Array, " dim"],
    columns: Float[Array, "dim column"],
) -> Float[Array, "dim column"]:
    """Return A X, where A is the Gauss-Newton matrix of all rows in units of `scale`, and X is `columns`."""

    def block(batch, weights: Float[Array, " batch"]) -> Float[Array, "column dim"]:
        outputs, push = jax.linearize(lambda t: posterior.outputs(t, jnp.asarray(batch.x)), theta)
        pull = jax.linear_transpose(push, theta)
        hessian = -jax.vmap(jax.hessian(posterior.likelihood_at(theta).log_prob))(outputs, jnp.asarray(batch.y))
        values, vectors = jnp.linalg.eigh(hessian)
        values = jnp.maximum(values, 0.0) * weights[:, None]

        def column(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
            slopes = jnp.einsum("bij,bi->bj", vectors, push(scale * direction))
            return pull(jnp.einsum("bij,bj->bi", vectors, values * slopes))[0]

        return jax.lax.map(column, columns.T, batch_size=_COLUMNS)

    total = posterior.sum_over_data(block, rows=_ROWS)
    return posterior.likelihood_power * scale[:, None] * total.T


def _random_rows(posterior: NetworkPosterior, count: int, *, key: PRNGKeyArray) -> NetworkPosterior:
    """Return the posterior given `count` of the N rows, at random, with its likelihood power times N / count."""
    if count >= posterior.num_data:
        return posterior
    power = np.float32(float(posterior.likelihood_power) * posterior.num_data / count)
    rows = posterior.minibatch(count, replace=False, key=key)
    return dataclasses.replace(posterior, data=rows, likelihood_power=power)
