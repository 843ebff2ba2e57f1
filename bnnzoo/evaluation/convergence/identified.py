"""Parameters whose convergence can be tested directly, because no symmetry of the network permutes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, Shaped

from bnnzoo.evaluation.contents.draws import draw_slices
from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.formulas.combination import FALSE_ALARM, MIN_DRAWS, rhat_and_limit
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.affine import is_affine_along

_ALL_UP_TO, _EVENLY, _WORST = 100, 50, 20
"""Numbers of tested weights.

If the network has at most `_ALL_UP_TO` weights, all weights are tested. In a larger network, `_EVENLY` evenly spaced
weights are tested, and at most `_WORST` other weights whose R-hat is larger than chance explains.
"""
_ROWS = 8
"""Largest number of training rows at which the outputs are tested for being affine."""
_MAX_NAMES = 3
"""Largest number of parameters that a finding names."""


class NamedParameters(NamedTuple):
    """Parameters over the draws, with readable names."""

    names: list[str]
    values: Float[np.ndarray, "chain draw value"]


def identified_weights(predictor: Predictor) -> NamedParameters | None:
    """Return the weights to test if the outputs of the network are affine in all weights; otherwise None.

    The outputs are affine for a network without hidden layers, and for a last layer on fixed features. Then no symmetry
    permutes the weights, unless the likelihood is a mixture. Chains that sample the posterior therefore agree on the
    distribution of each weight. For a mixture, the result is None.
    """
    if not predictor.predicts or predictor.record.keeps_predictions or not predictor.record.has_training_rows:
        return None
    posterior = predictor.posterior
    if not isinstance(posterior, NetworkPosterior) or not posterior.layout.network.dim:
        return None
    x = predictor.inputs(predictor.record.array("constant_data", "x")[:_ROWS])
    with backend.arithmetic(predictor.precision):
        inputs = jnp.asarray(x)
        if not bool(_is_affine(posterior, inputs)) or _is_mixture(posterior, x):
            return None
    dim = posterior.layout.network.dim
    numbers = np.arange(dim) if dim <= _ALL_UP_TO else _weights_to_test(predictor, dim)
    return NamedParameters([posterior.layout.name_of(int(i)) for i in numbers], predictor.columns(numbers))


def names_of(block: str, shape: Sequence[int]) -> list[str]:
    """Return the names of all elements of a block, in order, such as `weight[0, 3]`."""
    return [_element_name(block, place) for place in np.ndindex(*shape)]


def _element_name(block: str, place: Iterable[int]) -> str:
    indices = ", ".join(map(str, place))
    return f"{block}[{indices}]" if indices else block


def unmoving_parameters(predictor: Predictor) -> list[str] | None:
    """Return the names of the parameters that changed at most once in some chain.

    Whenever a chain moves, all sampled parameters change, so such a parameter is stuck. For a posterior without a
    network, a block is listed only if none of its elements moves: single elements may be constant by definition, such
    as the diagonal of a correlation matrix. The result is None with too few draws, or for a run that keeps predictions.
    """
    record = predictor.record
    if record.keeps_predictions or record.shape[1] < MIN_DRAWS // 10:
        return None
    has_elements = predictor.predicts and isinstance(predictor.posterior, NetworkPosterior)
    is_still = np.asarray((predictor.weights.changes < 2).any(0))
    names: list[str] = []
    for name, still in zip(predictor.blocks, np.split(is_still, np.cumsum(predictor.draws.widths)[:-1]), strict=True):
        if has_elements:
            shape = record.tree["posterior"][name].shape[2:]
            names += [_element_name(name, place) for place in np.argwhere(still.reshape(shape)).tolist()]
        elif len(still) and still.all():
            names.append(name)
    return names


def list_names(names: Sequence[str]) -> str:
    """Return at most three names, and the number of the other names, as text."""
    other_names = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + other_names


@eqx.filter_jit
def _is_affine(posterior: NetworkPosterior, inputs: Shaped[Array, "row ..."]) -> Bool[Array, ""]:
    key_theta, key_move, key_other = jax.random.split(jax.random.key(0), 3)
    is_network = jnp.arange(posterior.layout.dim) < posterior.layout.network.dim

    def random(key: Array) -> Float[Array, " dim"]:
        return jnp.where(is_network, jax.random.normal(key, is_network.shape), 0.0).astype(posterior.dtype)

    theta, rows = random(key_theta), jnp.asarray(inputs)
    moves = jnp.stack([random(key_move), random(key_other)])
    return jnp.all(jax.lax.map(lambda move: is_affine_along(posterior, theta, move, rows), moves))


def _is_mixture(posterior: AbstractPosterior, inputs: Shaped[np.ndarray, "row ..."]) -> bool:
    """Whether the distribution of a target is a mixture of several components, so that components can be permuted."""
    theta = jnp.zeros((posterior.layout.dim,), posterior.dtype)
    output = jax.eval_shape(lambda t: posterior.outputs(t, jnp.asarray(inputs)), theta)
    distribution = posterior.likelihood_at(theta).distribution(jnp.zeros(output.shape[1:], output.dtype))
    while isinstance(distribution, dist.Independent):
        distribution = distribution.base_dist
    if isinstance(distribution, dist.MixtureSameFamily | dist.MixtureGeneral):
        return distribution.mixture_size > 1
    return False


def _weights_to_test(predictor: Predictor, dim: int) -> Int[np.ndarray, " weight"]:
    """Return the indices of evenly spaced weights, and of weights whose R-hat is larger than chance explains.

    The limit for chance takes into account that the largest R-hats of all `dim` weights are tested.
    """
    evenly_spaced = evenly(dim, _EVENLY)
    if predictor.record.shape[1] < MIN_DRAWS:
        return evenly_spaced
    candidates = np.argsort(_rough_rhats(predictor, dim))[::-1][:_WORST]
    values = predictor.columns(candidates)
    badly_mixing = []
    for number, column in zip(candidates, np.moveaxis(values, 2, 0), strict=True):
        rhat, limit = rhat_and_limit(column, FALSE_ALARM / dim)
        badly_mixing += [number] if rhat > limit else []
    return np.unique(np.concatenate([evenly_spaced, np.array(badly_mixing, int)]))


def _rough_rhats(predictor: Predictor, dim: int) -> Float[np.ndarray, " weight"]:
    """Return, for each weight, the variance of the means of the half chains over the variance within half chains."""
    (chains, count), draws = predictor.record.shape, predictor.draws
    sums, square_sums, counts = (np.zeros((2 * chains, size)) for size in (dim, dim, 1))
    reference = np.asarray(draws[0:1][:, :dim], float)
    for piece in draw_slices(draws, chains * count):
        values = np.asarray(draws[piece][:, :dim], float) - reference
        chain, draw = np.divmod(np.arange(piece.start, piece.stop), count)
        part = 2 * chain + (draw >= count // 2)
        for part_number in np.unique(part):
            part_values = values[part == part_number]
            sums[part_number] += part_values.sum(0)
            square_sums[part_number] += np.einsum("ij,ij->j", part_values, part_values)
            counts[part_number] += len(part_values)
    means = sums / counts
    within = (square_sums / counts - means**2).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(means.var(0) / within, nan=0.0)
