"""The curvature of the log posterior at a point, and the Gaussian that has it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers._preconditioner import prior_precision

Kind = Literal["ggn", "fisher"]
_ELEMENTS = 2**22
"""Numbers in one block of derivatives: what bounds their memory."""


class Full(eqx.Module):
    """N(0, F F')."""

    factor: Float[Array, "dim dim"]

    def draw(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A draw from N(0, I)'s."""
        return self.factor @ eps

    @property
    def log_det(self) -> Float[Array, ""]:
        """log |det F|, of a triangular F."""
        return jnp.sum(jnp.log(jnp.abs(jnp.diag(self.factor))))


class Diagonal(eqx.Module):
    """N(0, diag(scale^2))."""

    scale: Float[Array, " dim"]

    def draw(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A draw from N(0, I)'s."""
        return self.scale * eps

    @property
    def log_det(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.scale))


class Matrix(eqx.Module):
    """left (scale * eps) right' for a matrix eps; left and right are orthogonal."""

    left: Float[Array, "row row"]
    right: Float[Array, "column column"]
    scale: Float[Array, "row column"]


class Kronecker(eqx.Module):
    """Independent blocks, each as a matrix."""

    blocks: tuple[Matrix, ...]

    def draw(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A draw from N(0, I)'s."""
        parts, start = [], 0
        for block in self.blocks:
            end = start + block.scale.size
            rotated = block.scale * eps[start:end].reshape(block.scale.shape)
            parts.append(jnp.ravel(block.left @ rotated @ block.right.T))
            start = end
        return jnp.concatenate(parts)

    @property
    def log_det(self) -> Float[Array, ""]:
        return sum((jnp.sum(jnp.log(block.scale)) for block in self.blocks), jnp.zeros(()))


def full(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Full:
    """The whole matrix: precision = beta sum_i R_i' R_i + that of the prior, R_i the rows of `_rows`."""
    scale = jax.lax.rsqrt(_base(posterior, theta))
    total = _sum(posterior, theta, kind, lambda rows: rows.T @ rows)
    # In units of the prior no eigenvalue is below 1, but for rounding: what that may take is added.
    inner = _lifted(posterior.likelihood_power * total * scale[:, None] * scale)
    one = jnp.eye(len(theta), dtype=theta.dtype)
    lower = jnp.linalg.cholesky(one + inner)
    return Full(scale[:, None] * jax.scipy.linalg.solve_triangular(lower, one, lower=True).T)


def diagonal(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Diagonal:
    """The diagonal of the precision."""
    total = _sum(posterior, theta, kind, lambda rows: jnp.sum(rows**2, 0))
    return Diagonal(jax.lax.rsqrt(posterior.likelihood_power * total + _base(posterior, theta)))


def kronecker(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Kronecker:
    """Block by block, sum_i R_i' R_i as a Kronecker product of row and column factors.

    With G the rows R as matrices, L = sum G G' and R = sum G' G: L (x) R / trace is the first step of the power
    iteration to the nearest Kronecker product (Van Loan and Pitsianis 1993), and has the right trace. For dense
    layers it takes the place of K-FAC's factors (Ritter, Botev and Barber 2018). The prior's precision is added to
    the eigenvalues, as its mean over the block.
    """
    blocks = posterior.layout.blocks

    def factors(rows: Float[Array, "row dim"]) -> PyTree:
        found = []
        for block in blocks:
            gradient = rows[:, block.start : block.stop].reshape(len(rows), *_sides(block))
            flat = jnp.moveaxis(gradient, 0, 1).reshape(gradient.shape[1], -1)
            tall = gradient.reshape(-1, gradient.shape[2])
            found.append((flat @ flat.T, tall.T @ tall))
        return tuple(found)

    base = _base(posterior, theta)
    made = []
    for block, (left, right) in zip(blocks, _sum(posterior, theta, kind, factors), strict=True):
        low, u = jnp.linalg.eigh(_lifted(left))
        high, v = jnp.linalg.eigh(_lifted(right))
        trace = jnp.maximum(jnp.trace(left), jnp.finfo(left.dtype).tiny)
        product = jnp.maximum(low, 0.0)[:, None] * (jnp.maximum(high, 0.0) / trace)
        precision = posterior.likelihood_power * product + jnp.mean(base[block.start : block.stop])
        made.append(Matrix(u, v, jax.lax.rsqrt(precision)))
    return Kronecker(tuple(made))


def kronecker_work(layout: Layout, num_rows: int) -> float:
    """Multiplications that the factors of `kronecker` cost."""
    return float(num_rows) * sum(a * b * (a + b) for a, b in map(_sides, layout.blocks))


def num_rows(posterior: AbstractPosterior, kind: Kind) -> int:
    """Rows a datum gives: its outputs for the Gauss-Newton matrix, one gradient for the Fisher information."""
    if kind == "fisher" or not posterior.has_outputs:
        return 1
    return jax.eval_shape(lambda: posterior.outputs(jnp.zeros(posterior.layout.dim), _first(posterior).x)).shape[1]


def _lifted(matrix: Float[Array, "row row"]) -> Float[Array, "row row"]:
    """A symmetric matrix, its diagonal raised by the size of its rounding errors.

    LAPACK's float32 eigenvectors of a matrix of deficient rank are now and then not a number.
    """
    ridge = jnp.finfo(matrix.dtype).eps * jnp.sum(jnp.abs(jnp.diag(matrix)))
    return matrix + ridge * jnp.eye(len(matrix), dtype=matrix.dtype)


def _sides(block: Block) -> tuple[int, int]:
    rows = block.shape[0] if block.shape else 1
    return rows, prod(block.shape[1:])


def _first(posterior: AbstractPosterior) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), posterior.data)


def _base(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """The prior's precision, and of the likelihood's own parameters also that of the data.

    Where a prior is flat or pointed, and so has no curvature, one over its variance: a draw is no wider than it.
    """
    base, inner = prior_precision(posterior, theta), posterior.layout.network.dim
    prior = posterior.fixed_prior()
    if prior is not None:
        variance = jnp.asarray(prior.distribution(posterior.layout.network).variance)
        base = base.at[:inner].max(jnp.where(jnp.isfinite(variance), 1 / variance, 0.0))
    if inner == posterior.layout.dim:
        return base

    def total(own: Array) -> Array:
        return jnp.sum(posterior.log_likelihoods(jnp.concatenate([theta[:inner], own])))

    hessian = jax.jacfwd(jax.grad(total))(theta[inner:])
    return base.at[inner:].add(jnp.maximum(-posterior.likelihood_power * jnp.diag(hessian), 0.0))


def _rows(posterior: AbstractPosterior, theta: Float[Array, " dim"], datum: Any, kind: Kind) -> Float[Array, "row dim"]:
    """Rows R_i with R_i' R_i the curvature that one datum adds.

    `ggn`: U' J, J the Jacobian of the outputs and U U' minus the Hessian of log p(y | output), its negative part left
    out: the generalised Gauss-Newton matrix (Schraudolph 2002). `fisher`: the gradient of the datum's log-likelihood.
    """
    inner = posterior.layout.network.dim
    if kind == "fisher" or not posterior.has_outputs:
        rows = jax.grad(lambda t: posterior.log_likelihood(t, datum)[0])(theta)[None]
    else:
        log_prob = posterior.likelihood_at(theta).log_prob
        outputs, pull = jax.vjp(lambda t: posterior.outputs(t, jnp.asarray(datum.x))[0], theta)
        target = jnp.asarray(datum.y)[0]
        head = -jax.hessian(log_prob)(outputs, target)
        values, vectors = jnp.linalg.eigh(_lifted(head))
        (rows,) = jax.vmap(pull)((vectors * jnp.sqrt(jnp.maximum(values, 0.0))).T)
    # The likelihood's own parameters are in `_base`.
    return rows.at[:, inner:].set(0.0)


def _sum(
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    kind: Kind,
    summary: Callable[[Float[Array, "row dim"]], PyTree],
) -> PyTree:
    """The sum of `summary` of the rows of all data, block after block."""
    size = max(1, _ELEMENTS // (theta.shape[0] * num_rows(posterior, kind)))

    def part(batch: Any, weights: Float[Array, " batch"]) -> PyTree:
        data = jax.tree.map(lambda leaf: leaf[:, None], batch)
        rows = jax.vmap(lambda datum: _rows(posterior, theta, datum, kind))(data)
        return summary((rows * weights[:, None, None]).reshape(-1, theta.shape[0]))

    return posterior.sum_over_data(part, rows=size)
