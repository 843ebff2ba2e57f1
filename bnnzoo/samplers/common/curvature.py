"""The curvature of the log posterior at a point, and the Gaussian that has this curvature as its precision."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from bnnzoo.posterior import AbstractPosterior, passes
from bnnzoo.posterior.hashing import hash_key
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers.common.preconditioner import Factor, prior_precision
from bnnzoo.samplers.common.triangle import join_factors, triangle

Kind = Literal["ggn", "fisher", "hessian"]
_MAX_DERIVATIVES = 5e9
"""Largest product of rows, outputs and parameters for which `ggn` uses the derivative of every output."""
_ELEMENTS = 2**22
"""Largest number of derivatives (parameters x rows) that are computed together. It limits the memory."""


class Matrix(eqx.Module):
    """The map from a matrix eps to left (scale * eps) right'; * is elementwise, `left` and `right` are orthogonal."""

    left: Float[Array, "row row"]
    right: Float[Array, "column column"]
    scale: Float[Array, "row column"]


class Kronecker(eqx.Module):
    """A Gaussian N(0, F F') with independent blocks.

    The matrix of the eigenvectors of each block's covariance is a Kronecker product.
    """

    blocks: tuple[Matrix, ...]

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps, which maps N(0, I) to this Gaussian."""
        block_parts = self._matrices(eps)
        parts = [block.left @ (block.scale * part) @ block.right.T for block, part in block_parts]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g for a gradient g."""
        block_parts = self._matrices(gradient)
        parts = [block.scale * (block.left.T @ part @ block.right) for block, part in block_parts]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    def _matrices(self, vector: Float[Array, " dim"]) -> list[tuple[Matrix, Float[Array, "row column"]]]:
        """Return the map of each block, and the block's part of the vector, reshaped to a matrix."""
        ends = list(accumulate(block.scale.size for block in self.blocks))
        parts = jnp.split(vector, ends[:-1])
        return [(block, part.reshape(block.scale.shape)) for block, part in zip(self.blocks, parts, strict=True)]

    @property
    def log_det(self) -> Float[Array, ""]:
        """log |det F|."""
        return sum((jnp.sum(jnp.log(block.scale)) for block in self.blocks), jnp.zeros(()))


def full(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Factor:
    """Return the Gaussian whose precision is the full curvature matrix at `theta`.

    For `ggn` and `fisher` the precision is beta sum_i R_i' R_i plus the diagonal matrix of `_base` (the prior). R_i is
    the matrix that `_rows` returns for datum i, and beta is the likelihood power. In units of the prior the precision
    is T'T. T is the triangular factor of a matrix with the rows of all R_i, in these units, and of the identity. The
    product T'T is never computed. For `hessian` the precision is minus the Hessian of the log density, with its
    eigenvalues raised to at least a millionth of the largest eigenvalue.
    """
    if kind == "hessian":
        precision = _negative_hessian(posterior, theta)
        values, vectors = jnp.linalg.eigh((precision + precision.T) / 2)
        return Factor(triangle((vectors / jnp.sqrt(_floor_eigenvalues(values))).T).T)
    scale = jax.lax.rsqrt(_base(posterior, theta))
    unit = jnp.sqrt(jnp.asarray(posterior.likelihood_power, theta.dtype)) * scale
    rows_per_datum = num_rows(posterior, kind)
    upper = _sum(
        posterior,
        theta,
        kind,
        lambda rows: triangle(rows * unit),
        add=join_factors,
        min_data=-(-len(theta) // rows_per_datum),
    )
    identity = jnp.eye(len(theta), dtype=theta.dtype)
    upper = join_factors(upper, identity)
    upper = upper * jnp.sign(jnp.diag(upper))[:, None]
    return Factor(scale[:, None] * jax.scipy.linalg.solve_triangular(upper, identity))


def diagonal(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Factor:
    """Return the Gaussian whose precision is the diagonal of the curvature matrix at `theta` (see `full`)."""
    if kind == "hessian":
        return Factor(jax.lax.rsqrt(_floor_eigenvalues(_negative_second_derivatives(posterior, theta))))
    total = _sum(posterior, theta, kind, lambda rows: jnp.sum(rows**2, 0))
    return Factor(jax.lax.rsqrt(posterior.likelihood_power * total + _base(posterior, theta)))


def kronecker(posterior: AbstractPosterior, theta: Float[Array, " dim"], kind: Kind) -> Kronecker:
    """Return the Gaussian whose precision is a Kronecker product for each block, plus the precision of the prior.

    A block is an array of parameters. Different blocks are independent. Let R_i be the matrix that `_rows` returns for
    datum i. The part of a row that belongs to the block is reshaped to a matrix G. Let A be the sum of G G' over all
    rows and data, and B the sum of G' G. The precision of the block is approximated by the Kronecker product of A and
    B, multiplied by the likelihood power and divided by tr A. This is the first step of the power iteration to the
    nearest Kronecker product (Van Loan and Pitsianis 1993). The approximation has the exact trace. K-FAC uses other
    factors for dense layers (Ritter, Botev and Barber 2018). The mean of `_base` over the block is added to the
    eigenvalues. Parameters of the likelihood are independent, and `_base` contains their precisions.

    A and B are stored as triangular factors. The eigenvalues of A are the squared singular values of its factor. If the
    data that are processed together have too few rows for a triangular factor, A or B itself is stored. A small number
    is then added to the diagonal of the stored matrix, because of float32 rounding errors.
    """
    blocks, rows_per_datum = posterior.layout.blocks, num_rows(posterior, kind)
    longest = max(-(-max(a, b) // min(a, b)) for a, b in map(_sides, blocks))
    min_data = min(longest, 4 * _ELEMENTS // len(theta))
    height = min(_block(len(theta), rows_per_datum, min_data), posterior.num_data) * rows_per_datum
    # For each block: whether A is stored as a triangular factor, and whether B is.
    stored_as_triangle = [(height * b >= a, height * a >= b) for a, b in map(_sides, blocks)]

    def accumulate(rows: Float[Array, "row side"], triangular: bool) -> Float[Array, "side side"]:
        return triangle(rows) if triangular else rows.T @ rows

    def factors(rows: Float[Array, "row dim"]) -> PyTree:
        block_factors = []
        for block, (left, right) in zip(blocks, stored_as_triangle, strict=True):
            gradient = rows[:, block.start : block.stop].reshape(len(rows), *_sides(block))
            flat = jnp.moveaxis(gradient, 0, 1).reshape(gradient.shape[1], -1)
            tall = gradient.reshape(-1, gradient.shape[2])
            block_factors.append((accumulate(flat.T, left), accumulate(tall, right)))
        return tuple(block_factors)

    def add(sums: PyTree, added: PyTree) -> PyTree:
        add_rules = [
            tuple(join_factors if triangular else jnp.add for triangular in pair) for pair in stored_as_triangle
        ]
        return jax.tree.map(lambda plus, a, b: plus(a, b), tuple(add_rules), sums, added)

    def spectrum(matrix: Float[Array, "side side"], triangular: bool) -> tuple[Array, Array]:
        if triangular:
            _, singular, vectors = jnp.linalg.svd(matrix)
            return singular**2, vectors.T
        values, vectors = jnp.linalg.eigh(_lift_diagonal(matrix))
        return jnp.maximum(values - _ridge(matrix), 0.0), vectors

    base = _base(posterior, theta)
    matrices = []
    factored = _sum(posterior, theta, kind, factors, add=add, min_data=min_data)
    for block, (left, right), (is_left_triangular, is_right_triangular) in zip(
        blocks, factored, stored_as_triangle, strict=True
    ):
        if block.owner == "likelihood":
            scale = jax.lax.rsqrt(base[block.start : block.stop]).reshape(_sides(block))
            left, right = (jnp.eye(side, dtype=scale.dtype) for side in scale.shape)
            matrices.append(Matrix(left, right, scale))
            continue
        (low, u), (high, v) = spectrum(left, is_left_triangular), spectrum(right, is_right_triangular)
        product = low[:, None] * (high / jnp.maximum(jnp.sum(low), jnp.finfo(low.dtype).tiny))
        precision = posterior.likelihood_power * product + jnp.mean(base[block.start : block.stop])
        matrices.append(Matrix(u, v, jax.lax.rsqrt(precision)))
    return Kronecker(tuple(matrices))


def own_sd(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, " own"]:
    """Return the conditional posterior standard deviations of the likelihood's parameters, from their curvature."""
    return jax.lax.rsqrt(_base(posterior, theta)[posterior.layout.network.dim :])


def _negative_hessian(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """Return minus the Hessian of the log density, including the prior."""
    slope = jax.grad(posterior.log_density)
    identity = jnp.eye(len(theta), dtype=theta.dtype)
    return -jax.lax.map(lambda direction: jax.jvp(slope, (theta,), (direction,))[1], identity, batch_size=64)


def _negative_second_derivatives(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Return the diagonal of `_negative_hessian`, without storing the matrix."""
    slope = jax.grad(posterior.log_density)

    def element(index: Int[Array, ""]) -> Float[Array, ""]:
        direction = jnp.zeros_like(theta).at[index].set(1.0)
        return -jax.jvp(slope, (theta,), (direction,))[1][index]

    return jax.lax.map(element, jnp.arange(len(theta)), batch_size=64)


def _floor_eigenvalues(values: Float[Array, " dim"]) -> Float[Array, " dim"]:
    return jnp.maximum(values, 1e-6 * jnp.max(values))


def kronecker_work(layout: Layout, num_rows: int) -> float:
    """Return the number of multiplications that `kronecker` needs for `num_rows` rows (all rows of all data)."""
    return float(num_rows) * sum(a * b * (a + b) for a, b in map(_sides, layout.blocks))


def num_rows(posterior: AbstractPosterior, kind: Kind) -> int:
    """Return the number of rows that `_rows` returns for a datum.

    For `ggn` the number is that of the outputs, or 1 if the derivatives of all outputs would take very long to compute.
    For `fisher` and `hessian` it is 1.
    """
    if kind != "ggn":
        return 1
    num_outputs = _num_outputs(posterior)
    num_derivatives = float(posterior.num_data) * num_outputs * posterior.layout.dim
    return num_outputs if num_derivatives <= _MAX_DERIVATIVES else 1


def _num_outputs(posterior: AbstractPosterior) -> int:
    return jax.eval_shape(lambda: posterior.outputs(jnp.zeros(posterior.layout.dim), _first(posterior).x)).shape[1]


def _lift_diagonal(matrix: Float[Array, "row row"]) -> Float[Array, "row row"]:
    """Return the symmetric matrix after an increase of its diagonal by the size of the rounding errors.

    Without the increase, LAPACK's float32 eigenvectors of a rank-deficient matrix are occasionally NaN.
    """
    return matrix + _ridge(matrix) * jnp.eye(len(matrix), dtype=matrix.dtype)


def _ridge(matrix: Float[Array, "row row"]) -> Float[Array, ""]:
    return jnp.finfo(matrix.dtype).eps * jnp.sum(jnp.abs(jnp.diag(matrix)))


def _sides(block: Block) -> tuple[int, int]:
    rows = block.shape[0] if block.shape else 1
    return rows, prod(block.shape[1:])


def _first(posterior: AbstractPosterior) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), posterior.data)


def _base(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Return the diagonal of the prior's precision, plus the curvature of the likelihood's own parameters.

    These parameters, such as a noise scale, are not part of the network. A prior that is flat or has a kink has no
    curvature. If the scales of the prior are fixed, the prior's precision is therefore raised to at least the inverse
    of the prior's variance, so that draws are no wider than the prior.
    """
    base, inner = prior_precision(posterior, theta), posterior.layout.network.dim
    prior = posterior.fixed_prior()
    if prior is not None:
        variance = jnp.asarray(prior.distribution(posterior.layout.network).variance)
        base = base.at[:inner].max(jnp.where(jnp.isfinite(variance), 1 / variance, 0.0))
    if inner == posterior.layout.dim:
        return base

    def total(likelihood_parameters: Array) -> Array:
        return jnp.sum(posterior.log_likelihoods(jnp.concatenate([theta[:inner], likelihood_parameters])))

    hessian = jax.jacfwd(jax.grad(total))(theta[inner:])
    return base.at[inner:].add(jnp.maximum(-posterior.likelihood_power * jnp.diag(hessian), 0.0))


def _rows(
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    datum: Any,
    kind: Kind,
    signs: Float[Array, " output"] | None,
) -> Float[Array, "row dim"]:
    """Return a matrix R_i such that R_i' R_i is the curvature that datum i adds.

    For `fisher` R_i has one row, the gradient of the datum's log-likelihood. For `ggn`, the generalised Gauss-Newton
    matrix (Schraudolph 2002), R_i is U' J. J is the Jacobian of the outputs, and U U' is the Hessian of
    -log p(y | output), with its negative eigenvalues set to 0. If `signs` is not None, R_i is one row,
    s' U' J with these random signs s. Then R_i' R_i is an unbiased estimate of the curvature, because the
    expectation of s s' is the identity (Martens, Sutskever and Swersky 2012).
    """
    inner = posterior.layout.network.dim
    if kind == "fisher":
        rows = jax.grad(lambda t: posterior.log_likelihood(t, datum)[0])(theta)[None]
    else:
        log_prob = posterior.likelihood_at(theta).log_prob
        outputs, pull_back = jax.vjp(lambda t: posterior.outputs(t, jnp.asarray(datum.x))[0], theta)
        target = jnp.asarray(datum.y)[0]
        output_hessian = -jax.hessian(log_prob)(outputs, target)
        values, vectors = jnp.linalg.eigh(_lift_diagonal(output_hessian))
        factor = (vectors * jnp.sqrt(jnp.maximum(values, 0.0))).T
        if signs is not None:
            factor = signs[None] @ factor
        (rows,) = jax.vmap(pull_back)(factor)
    # `_base` adds the curvature of the likelihood's own parameters.
    return rows.at[:, inner:].set(0.0)


def _signs(posterior: AbstractPosterior, batch: Any, kind: Kind) -> Float[Array, "batch output"] | None:
    """Return random signs for each output of each datum of a block; None if the derivatives of all outputs are used.

    The key is a hash of the block, so that equal data of different blocks have different signs.
    """
    num_outputs = _num_outputs(posterior) if kind == "ggn" else 1
    if num_rows(posterior, kind) == num_outputs:
        return None
    numbers = [jnp.ravel(jnp.asarray(leaf)).astype(jnp.float32) for leaf in (batch.x, batch.y)]
    return jax.random.rademacher(hash_key(jnp.concatenate(numbers)), (len(batch.x), num_outputs), posterior.dtype)


def _block(dim: int, rows_per_datum: int, min_data: int) -> int:
    """Return the number of data, at least `min_data`, whose derivatives are computed together."""
    return max(1, min_data, _ELEMENTS // (dim * rows_per_datum))


def _sum(
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    kind: Kind,
    summary: Callable[[Float[Array, "row dim"]], PyTree],
    *,
    add: Callable[[PyTree, PyTree], PyTree] = passes.add_trees,
    min_data: int = 1,
) -> PyTree:
    """Compute `summary` of the rows R_i of each block of data, and combine the results with `add`.

    A block has at least `min_data` data.
    """
    size = _block(len(theta), num_rows(posterior, kind), min_data)

    def part(batch: Any, weights: Float[Array, " batch"]) -> PyTree:
        data = jax.tree.map(lambda leaf: leaf[:, None], batch)
        signs = _signs(posterior, batch, kind)
        rows = jax.vmap(lambda datum, sign: _rows(posterior, theta, datum, kind, sign))(data, signs)
        return summary((rows * weights[:, None, None]).reshape(-1, theta.shape[0]))

    return posterior.sum_over_data(part, rows=size, add=add)
