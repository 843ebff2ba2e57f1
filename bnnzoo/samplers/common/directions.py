"""Directions in the space of the parameters in which the data make the posterior narrower than the prior.

In units of the prior the posterior's precision is I + A, where A is the generalised Gauss-Newton matrix of the data. If
a direction has the eigenvalue 1 of I + A, the posterior is as wide as the prior there, even with very many data. If the
eigenvalue is 10 000, the standard deviation of the posterior is a hundredth of the prior's.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.subspace import normal_moments
from bnnzoo.samplers.common import climb, curvature, damped

EXACT_UP_TO = 1500
"""Largest number of parameters for which all eigenvalues of the Gauss-Newton matrix are computed."""
MOST_DIRECTIONS = 1024
"""Largest number of directions that subspace iteration computes."""

_FEWEST_DIRECTIONS, _ITERATIONS = 128, 4
_PROBES, _SOLVER_STEPS = 8, 40
_WORK = 4e9
"""Limit of the number of rows times the squared number of parameters. Above it, a random subset of rows is used."""
_ROWS, _COLUMNS = 4096, 32
"""Numbers of rows and columns of a Gauss-Newton product that are processed together. They limit the memory."""
_DAMPED_STEPS, _SMALL_RISE = 100, 1.0
"""Largest number of damped steps, and the increase of the log density, in nats, of the last two of them."""
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
    factor: climb.Factor
    """Factor of the Gaussian with this precision. It covers all parameters, also those of the likelihood."""

    def variance_fraction(self, num_directions: int) -> float:
        """Return the fraction of the variance of the network's outputs that the first directions contribute.

        A linearised network has a Gaussian posterior. Consider the variance of each output in units of the noise. The
        sum of these variances over the data is the trace of A (I + A)^-1. An eigenvalue e of I + A contributes
        1 - 1 / e to this trace.
        """
        return float(np.sum(1 - 1 / self.values[:num_directions])) / max(self.total, np.finfo(float).tiny)


class Mode(NamedTuple):
    """A mode of the posterior, with the eigenvalues and directions at the mode."""

    theta: Float[np.ndarray, " dim"]
    spectrum: Spectrum
    distance: float
    """Distance from `theta` to the exact mode: the root mean square over the parameters, in standard deviations."""


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
    position, spectrum, distance = jnp.asarray(theta), None, math.inf
    for _ in range(_ROUNDS):
        # The damped steps move only the network. The climb after them also moves the noise scale.
        position = _approach(posterior, position, smallest=smallest, key=key)
        spectrum = compute_spectrum(posterior, np.asarray(position), smallest=smallest, key=key)
        position = _climb_to_mode(posterior, position, spectrum.factor)
        spectrum = compute_spectrum(posterior, np.asarray(position), smallest=smallest, key=key)
        distance = float(jnp.mean(_slope(posterior, position, spectrum.factor) ** 2))
        if distance < _NEAR:
            break
    assert spectrum is not None
    return Mode(np.asarray(position), spectrum, math.sqrt(distance))


def _approach(
    posterior: NetworkPosterior, position: Float[Array, " dim"], *, smallest: float, key: PRNGKeyArray
) -> Float[Array, " dim"]:
    """Return a position near the mode, by damped Gauss-Newton steps.

    Training with mini-batches ends far from the mode if there are many rows: the distance in posterior standard
    deviations grows with the square root of the number of rows.
    """
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    scale, damping, small_rises = jnp.asarray(sd, position.dtype), None, 0
    for _ in range(_DAMPED_STEPS):
        spectrum = compute_spectrum(posterior, np.asarray(position), smallest=smallest, work=_WORK / 10, key=key)
        values, vectors = (jnp.asarray(array, position.dtype) for array in (spectrum.values, spectrum.vectors))
        damping = damped.first_damping(values) if damping is None else damping
        position, damping, rise = damped.step_up(posterior, position, scale, values, vectors, damping)
        small_rises = small_rises + 1 if rise < _SMALL_RISE else 0
        if small_rises == 2:  # after the first one, the damping may have been wrong
            break
    return position


def compute_spectrum(
    posterior: NetworkPosterior,
    theta: Float[np.ndarray, " dim"],
    *,
    smallest: float,
    work: float = _WORK,
    key: PRNGKeyArray,
) -> Spectrum:
    """Return all eigenvalues that are at least `smallest`, and some smaller ones, with their directions.

    With up to `EXACT_UP_TO` parameters the eigenvalues are exact. With more parameters subspace iteration computes at
    most `MOST_DIRECTIONS` of them. If there are many rows, a random subset of the rows is used. The directions are then
    those of the subset. They need not be exact, because any subspace may be sampled.
    """
    dim = posterior.layout.dim
    num_rows = max(4 * dim, int(work / dim**2), _ROWS)
    subset = _random_rows(posterior, num_rows, key=jax.random.fold_in(key, 0))
    if dim <= EXACT_UP_TO:
        return _exact(subset, theta)
    return _iterated(subset, theta, smallest=smallest, key=jax.random.fold_in(key, 1))


def _exact(posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"]) -> Spectrum:
    """Return all eigenvalues, from the triangular factor of the precision."""
    factor = _full(posterior, jnp.asarray(theta), "ggn")
    size = posterior.layout.network.dim
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    vectors, lengths, _ = np.linalg.svd(np.asarray(factor.factor, np.float64)[:size, :size] / sd[:, None])
    # The singular values are the posterior's standard deviations in units of the prior.
    values = np.maximum(lengths**-2.0, 1.0)[::-1]
    return Spectrum(values, vectors[:, ::-1], float(np.sum(1 - 1 / values)), factor)


class LowRank(eqx.Module):
    """The Gaussian N(0, F F') with F = diag(scale) (I + U diag(change) U') and orthonormal columns U."""

    scale: Float[Array, " dim"]
    vectors: Float[Array, "dim direction"]
    change: Float[Array, " direction"]

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps."""
        return self.scale * self._stretch(eps)

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g."""
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
    own_scale = _diagonal(posterior, jnp.asarray(theta), "ggn").factor[layout.network.dim :]
    factor = LowRank(
        jnp.concatenate([scale[: layout.network.dim], own_scale]),
        jnp.asarray(np.pad(vectors, ((0, own_size), (0, 0))), posterior.dtype),
        jnp.asarray(values**-0.5 - 1, posterior.dtype),
    )
    return Spectrum(values, vectors, total, factor)


def _solve(operator, columns: Float[np.ndarray, "parameter column"]) -> Float[np.ndarray, "parameter column"]:
    """Return X with operator(X) = columns, by conjugate gradients. The operator must be positive definite."""
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
    """Return the posterior given a random subset of the rows. A larger likelihood power replaces the other rows."""
    if count >= posterior.num_data:
        return posterior
    power = np.float32(float(posterior.likelihood_power) * posterior.num_data / count)
    rows = posterior.minibatch(count, replace=False, key=key)
    return dataclasses.replace(posterior, data=rows, likelihood_power=power)
