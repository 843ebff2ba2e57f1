"""The largest eigenvalues of the Gauss-Newton matrix of a network's posterior, by randomised subspace iteration."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.errors import UsageError
from bnnzoo.posterior import NetworkPosterior, passes
from bnnzoo.posterior.base import WeightedData
from bnnzoo.posterior.subspace import normal_moments
from bnnzoo.samplers.common import curvature
from bnnzoo.samplers.common.spectrum import Spectrum

_ITERATIONS = 4
_PROBES, _SOLVER_STEPS = 8, 40
_ROWS, _COLUMNS = 4096, 32
"""Largest numbers of rows and columns of a Gauss-Newton product that are processed together."""
_ELEMENTS = 2**26
"""Largest number of elements of an intermediate array of a Gauss-Newton product. It limits the memory."""

_TRACE_PROBES = 4
_UNIFORM_SHARE = 0.1
"""Fraction of the rows of `weighted_rows` that are drawn uniformly, so that no weight is very large."""

_own_sd = eqx.filter_jit(curvature.own_sd)


def iterate(
    posterior: NetworkPosterior,
    theta: Float[np.ndarray, " dim"],
    *,
    counts: tuple[int, int],
    smallest: float,
    key: PRNGKeyArray,
) -> Spectrum:
    """Return the largest eigenvalues by randomised subspace iteration (Halko, Martinsson and Tropp 2011).

    Directions that are not computed also contribute to the effective number of parameters. Hutchinson's method
    estimates their contribution.

    Args:
        posterior: the posterior of the whole network.
        theta: the position at which the Gauss-Newton matrix is computed.
        counts: numbers of directions with which the iteration begins and ends. The number doubles until an eigenvalue
            is below `smallest`.
        smallest: smallest eigenvalue that the caller needs.
        key: random key.
    """
    layout = posterior.layout
    _, sd = normal_moments(posterior.prior, layout.network)
    own_size = layout.dim - layout.network.dim
    scale = jnp.asarray(np.concatenate([sd, np.zeros(own_size)]), posterior.dtype)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())

    def product(columns: Float[np.ndarray, "parameter column"]) -> Float[np.ndarray, "parameter column"]:
        padded = jnp.asarray(np.pad(columns, ((0, own_size), (0, 0))), posterior.dtype)
        return np.asarray(_product(posterior, jnp.asarray(theta), scale, padded), np.float64)[: layout.network.dim]

    smallest_count, largest_count = (min(count, layout.network.dim) for count in counts)
    count = smallest_count
    columns = np.linalg.qr(rng.normal(size=(layout.network.dim, count)))[0]
    while True:
        for _ in range(_ITERATIONS):
            columns = np.linalg.qr(product(columns))[0]
        inner = columns.T @ product(columns)
        eigenvalues, rotation = np.linalg.eigh((inner + inner.T) / 2)
        values, vectors = 1 + np.maximum(eigenvalues, 0)[::-1], columns @ rotation[:, ::-1]
        if values[-1] < smallest or count >= largest_count:
            break
        more = rng.normal(size=(layout.network.dim, min(count, largest_count - count)))
        columns = np.linalg.qr(np.concatenate([vectors, more], 1))[0]
        count = columns.shape[1]
    probes = rng.normal(size=(layout.network.dim, _PROBES))
    probes = probes - vectors @ (vectors.T @ probes)
    solved = _solve(lambda columns: columns + product(columns), probes)
    total = float(np.sum(1 - 1 / values) + np.sum(probes * (probes - solved)) / _PROBES)
    return Spectrum(values, vectors, total, np.asarray(_own_sd(posterior, jnp.asarray(theta))))


def weighted_rows(
    posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], count: int, *, key: PRNGKeyArray
) -> NetworkPosterior:
    """Return the posterior given `count` rows. Rows with a larger part of the curvature are drawn more often.

    The data of this posterior are `WeightedData`. Their weighted Gauss-Newton matrix is an unbiased estimate of that of
    all rows. In a classifier that is trained well, few rows have nearly all of the curvature. Rows drawn uniformly
    would therefore give a bad estimate. A row's part of the curvature is the trace of its own Gauss-Newton matrix, in
    units of the prior.

    Raises:
        UsageError: if a derivative is not finite.
    """
    if count >= posterior.num_data:
        return posterior
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    probes = np.pad(sd * rng.choice([-1.0, 1.0], (_TRACE_PROBES, len(sd))), ((0, 0), (0, len(theta) - len(sd))))
    traces = np.asarray(_traces(posterior, jnp.asarray(theta), jnp.asarray(probes, posterior.dtype)), np.float64)
    if not np.isfinite(traces).all():
        raise UsageError(
            "[[stochastic]]: the derivatives of the trained network are not finite at some training rows; use a smooth "
            "activation, or [[stochastic=last]]"
        )
    mean_trace = max(float(traces.mean()), np.finfo(float).tiny)
    shares = _UNIFORM_SHARE + (1 - _UNIFORM_SHARE) * traces / mean_trace
    probabilities = shares / shares.sum()
    rows = np.sort(rng.choice(posterior.num_data, count, p=probabilities))
    batch = posterior.take(jnp.asarray(rows))
    weights = jnp.asarray(1 / (count * probabilities[rows]), posterior.dtype)
    return dataclasses.replace(posterior, data=WeightedData(batch.x, batch.y, weights))


@eqx.filter_jit
def _traces(
    posterior: NetworkPosterior, theta: Float[Array, " dim"], probes: Float[Array, "probe dim"]
) -> Float[Array, " num_data"]:
    """Estimate the trace of the Gauss-Newton matrix of every row, in units of the prior, by Hutchinson's method.

    The elements of a probe are the prior standard deviations of the parameters with random signs.
    """

    def block(batch: Any) -> Float[Array, " batch"]:
        outputs, push = jax.linearize(lambda t: posterior.outputs(t, jnp.asarray(batch.x)), theta)
        hessian = -jax.vmap(jax.hessian(posterior.likelihood_at(theta).log_prob))(outputs, jnp.asarray(batch.y))
        slopes = jax.lax.map(push, probes)
        return jnp.maximum(jnp.einsum("pbi,bij,pbj->b", slopes, hessian, slopes) / len(probes), 0.0)

    return posterior.over_data(block)


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
        if isinstance(batch, WeightedData):
            weights = weights * batch.weight
        values = jnp.maximum(values, 0.0) * weights[:, None]

        def column(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
            slopes = jnp.einsum("bij,bi->bj", vectors, push(scale * direction))
            return pull(jnp.einsum("bij,bj->bi", vectors, values * slopes))[0]

        return jax.lax.map(column, columns.T, batch_size=_COLUMNS)

    widest = passes.widest(posterior.data, lambda batch: posterior.outputs(theta, jnp.asarray(batch.x)))
    total = posterior.sum_over_data(block, rows=min(_ROWS, max(16, _ELEMENTS // (widest * _COLUMNS))))
    return posterior.likelihood_power * scale[:, None] * total.T
