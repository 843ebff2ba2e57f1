"""The posterior predictive distribution, by an accumulating scan over blocks of draws.

Nothing holds draws x rows x outputs but the samples that quantiles need, and those a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped, UInt32

from bnnzoo.likelihoods import AbstractLikelihood
from bnnzoo.posterior import NetworkPosterior

_DRAW_BLOCK = 8
_SAMPLE_ELEMENTS = 2**24
_INPUT_ELEMENTS = 2**22


class Moments(NamedTuple):
    """What the predictive distribution of each row is, in the units the network sees.

    Regression: `mean` [row, target] of y, `aleatoric` and `epistemic` variances [row, target]. Classification: `mean`
    [row, class] the class probabilities, `aleatoric` [row, 1] the expected entropy of a draw. `log_density` [row] is
    log mean_s p(y | x, theta_s), where targets were given.
    """

    mean: Float[np.ndarray, "row value"]
    aleatoric: Float[np.ndarray, "row value"]
    epistemic: Float[np.ndarray, "row value"]
    log_density: Float[np.ndarray, " row"]


class _Sums(NamedTuple):
    weight: Float[Array, ""]
    mean: Float[Array, "row value"]
    square: Float[Array, "row value"]
    aleatoric: Float[Array, "row value"]
    log_density: Float[Array, " row"]


def blocks(num_rows: int, num_draws: int, row_size: int, targets: int) -> Iterator[slice]:
    """Row blocks in which both the inputs and the predictive samples stay small."""
    rows = max(1, min(_INPUT_ELEMENTS // max(1, row_size), _SAMPLE_ELEMENTS // max(1, num_draws * targets)))
    for start in range(0, num_rows, rows):
        yield slice(start, min(num_rows, start + rows))


def moments(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."] | None = None,
) -> Moments:
    """The predictive moments of the rows `x`, and the log predictive density of `y` where given."""
    whole, rest, count = _draw_blocks(draws)
    parts = []
    for rows in blocks(len(x), 1, int(np.prod(x.shape[1:])) * _DRAW_BLOCK, 1):
        target = None if y is None else jnp.asarray(y[rows])
        sums = _accumulate(posterior, whole, rest, jnp.asarray(x[rows]), target)
        mean = np.asarray(sums.mean) / count
        spread = np.maximum(np.asarray(sums.square) / count - mean**2, 0.0)
        if posterior.likelihood.task == "classification":
            centre = mean
        else:
            # The sums are about the first draw's means, so that float32 keeps the variance between draws.
            first = np.asarray(_first_mean(posterior, jnp.asarray(draws[0]), jnp.asarray(x[rows])))
            centre = mean + first
        log_density = np.asarray(sums.log_density) - np.log(count)
        parts.append(Moments(centre, np.asarray(sums.aleatoric) / count, spread, log_density))
    return Moments(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def samples(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    *,
    first_row: int = 0,
    key: PRNGKeyArray,
) -> Shaped[np.ndarray, "draw row ..."]:
    """One target a draw and row, from p(y | x, theta_s): samples of the predictive distribution.

    A row's samples depend on its number, `first_row` and on, not on the rows it is asked with.
    """
    numbers = np.arange(first_row, first_row + len(x), dtype=np.uint32)
    return np.asarray(_samples(posterior, jnp.asarray(draws), jnp.asarray(x), jnp.asarray(numbers), key))


def functions(
    posterior: NetworkPosterior, draws: Float[np.ndarray, "draw dim"], x: Shaped[np.ndarray, "row ..."]
) -> Float[np.ndarray, "draw row value"]:
    """What each draw predicts: the mean of its distribution, or its class probabilities. Convergence is judged here."""
    return np.asarray(_functions(posterior, jnp.asarray(draws), jnp.asarray(x)))


def log_likelihoods(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "draw dim"],
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
) -> Float[np.ndarray, "draw row"]:
    """log p(y_i | x_i, theta_s), for ArviZ's group `log_likelihood`."""
    return np.asarray(_log_likelihoods(posterior, jnp.asarray(draws), jnp.asarray(x), jnp.asarray(y)))


def _draw_blocks(draws: Float[np.ndarray, "draw dim"]) -> tuple[Array, Array, int]:
    whole = len(draws) // _DRAW_BLOCK * _DRAW_BLOCK
    head = jnp.asarray(draws[:whole]).reshape(-1, _DRAW_BLOCK, draws.shape[1])
    return head, jnp.asarray(draws[whole:]), len(draws)


@eqx.filter_jit
def _first_mean(posterior: NetworkPosterior, draw: Float[Array, " dim"], x: Shaped[Array, "row ..."]) -> Array:
    return _centre(*posterior.predictive(draw, x))


def _centre(likelihood: AbstractLikelihood, outputs: Float[Array, "row output"]) -> Float[Array, "row value"]:
    """The mean of one draw's distribution of each row, or its class probabilities."""
    if likelihood.task == "classification":
        return jax.vmap(likelihood.class_probabilities)(outputs)
    return jax.vmap(lambda output: likelihood.distribution(output).mean)(outputs)


@eqx.filter_jit
def _functions(
    posterior: NetworkPosterior, draws: Float[Array, "draw dim"], x: Shaped[Array, "row ..."]
) -> Float[Array, "draw row value"]:
    return jax.lax.map(lambda draw: _centre(*posterior.predictive(draw, x)), draws, batch_size=_DRAW_BLOCK)


@eqx.filter_jit
def _accumulate(
    posterior: NetworkPosterior,
    whole: Float[Array, "block draw dim"],
    rest: Float[Array, "rest dim"],
    x: Shaped[Array, "row ..."],
    y: Shaped[Array, "row ..."] | None,
) -> _Sums:
    classify = posterior.likelihood.task == "classification"

    def one(draw: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
        likelihood, outputs = posterior.predictive(draw, x)
        mean = _centre(likelihood, outputs)
        if classify:
            log_mean = jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))
            aleatoric = -jnp.sum(mean * log_mean, 1, keepdims=True)
        else:
            aleatoric = jax.vmap(lambda o: likelihood.distribution(o).variance)(outputs)
        log_density = jnp.zeros(len(x)) if y is None else jax.vmap(likelihood.log_prob)(outputs, y)
        return mean, aleatoric, log_density

    first = whole[0, 0] if whole.shape[0] else rest[0]
    mean, aleatoric, log_density = jax.eval_shape(one, first)
    shift = jnp.zeros((), mean.dtype) if classify else one(first)[0]
    zero = _Sums(
        jnp.zeros(()),
        jnp.zeros(mean.shape, mean.dtype),
        jnp.zeros(mean.shape, mean.dtype),
        jnp.zeros(aleatoric.shape, aleatoric.dtype),
        jnp.full(log_density.shape, -jnp.inf, log_density.dtype),
    )

    def add(sums: _Sums, draws: Float[Array, "draw dim"]) -> _Sums:
        mean, aleatoric, log_density = jax.vmap(one)(draws)
        mean = mean - shift
        return _Sums(
            sums.weight + len(draws),
            sums.mean + mean.sum(0),
            sums.square + (mean**2).sum(0),
            sums.aleatoric + aleatoric.sum(0),
            jnp.logaddexp(sums.log_density, jax.scipy.special.logsumexp(log_density, 0)),
        )

    sums = zero
    if whole.shape[0]:
        sums, _ = jax.lax.scan(lambda s, d: (add(s, d), None), sums, whole)
    return add(sums, rest) if rest.shape[0] else sums


@eqx.filter_jit
def _samples(
    posterior: NetworkPosterior,
    draws: Float[Array, "draw dim"],
    x: Shaped[Array, "row ..."],
    numbers: UInt32[Array, " row"],
    key: PRNGKeyArray,
) -> Shaped[Array, "draw row ..."]:
    def one(pair: tuple[Array, Array]) -> Array:
        draw, index = pair
        likelihood, outputs = posterior.predictive(draw, x)
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(key, index), number))(numbers)
        return jax.vmap(lambda o, k: likelihood.sample(o, key=k))(outputs, keys)

    return jax.lax.map(one, (draws, jnp.arange(len(draws))), batch_size=_DRAW_BLOCK)


@eqx.filter_jit
def _log_likelihoods(
    posterior: NetworkPosterior, draws: Float[Array, "draw dim"], x: Any, y: Any
) -> Float[Array, "draw row"]:
    def one(draw: Float[Array, " dim"]) -> Array:
        likelihood, outputs = posterior.predictive(draw, x)
        return jax.vmap(likelihood.log_prob)(outputs, y)

    return jax.lax.map(one, draws, batch_size=_DRAW_BLOCK)
