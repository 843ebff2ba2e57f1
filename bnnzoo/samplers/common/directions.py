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
from bnnzoo.samplers.common import climb, curvature, damped, subspace_iteration
from bnnzoo.samplers.common.preconditioner import Factor
from bnnzoo.samplers.common.spectrum import Spectrum

EXACT_UP_TO = 1500
"""Largest number of parameters for which all eigenvalues of the Gauss-Newton matrix are computed."""
MAX_DIRECTIONS = 1024
"""Largest number of directions that subspace iteration computes."""

_MIN_DIRECTIONS = 128
_WORK, _MAX_ROWS = 4e10, 2**17
"""Two limits for a Gauss-Newton matrix: of the product rows x parameters^2, and of the number of rows. If all rows
would exceed a limit, a random subset of the rows is used. The subset has at least 4 rows per parameter and at least
`_ROWS` rows, even above the limits."""
_MAX_ELEMENTS = 1e7
"""Largest product of parameters and rows for which `find_mode` is affordable.

For every damped step to the mode, `find_mode` multiplies the Gauss-Newton matrix with about ten thousand vectors. With
2.5e7 elements, such a step takes 40 s on two cores."""
_MIN_LEADING, _MAX_LEADING = 16, 256
"""Smallest and largest number of directions of a large network: one that is too large for `find_mode` (`is_large`)."""
_LEADING_WORK, _SEARCH_WORK, _LEADING_SIZE = 3e11, 4e10, 2**26
"""Three limits of the number of directions of a large network (`is_large`). The first two limit the product
operations x rows x directions, where operations are those of one prediction. The rows of the first limit are all rows.
The rows of the second limit are those from which the directions are computed. The third limits the product
parameters x directions."""
_LEADING_ROWS = 4096
"""Number of rows from which the directions of a large network (`is_large`) are computed."""
_ROWS = 4096
"""Smallest number of rows from which the eigenvalues are computed, unless the data have fewer."""
_DAMPED_STEPS = 100
"""Largest number of damped steps of a stage (`_Stage`)."""
_SUBSET_ROWS = 2**16
"""Number of rows of the first damped steps. The later steps use all rows."""
_ROUNDS = 4
_NEAR = 0.04
"""The ascent ends if the squared distance to the mode, per parameter and in standard deviations, is below this value.
"""

_climb_to_mode, _slope = eqx.filter_jit(climb.climb_to_mode), eqx.filter_jit(climb.slope)
_full, _own_sd = eqx.filter_jit(curvature.full), eqx.filter_jit(curvature.own_sd)


class Mode(NamedTuple):
    """A mode of the posterior, with the eigenvalues and directions at the mode."""

    theta: Float[np.ndarray, " dim"]
    spectrum: Spectrum
    distance: float
    """Distance from `theta` to the mode in standard deviations, as a root mean square over the parameters.

    For a large network (`is_large`) the mean is over the directions in `spectrum`, and `spectrum` belongs to the
    trained network. Directions with a smaller eigenvalue than the last damping contribute little to the mean. The steps
    along these directions were damped, because the curvature changes along the steps.
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
    """Limit in nats: the stage ends after two consecutive steps that increase the log density by less than this."""


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
    inaccurate in the directions that the data determine worst. Steps in these directions are then too short.
    """
    dim = posterior.layout.dim
    subset = random_rows(posterior, _SUBSET_ROWS, key=key)
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
    most `MAX_DIRECTIONS` of them. If there are many rows, a random subset of the rows is used. The directions are then
    those of the subset. Inexact directions cause no bias of the draws, because any subspace may be sampled.
    """
    return _spectrum(_curvature_rows(posterior, work, key=key), theta, smallest=smallest, key=key)


def is_large(posterior: NetworkPosterior) -> bool:
    """Whether `find_mode` would take too long, because the Gauss-Newton matrix has too many elements."""
    dim = posterior.layout.dim
    rows = min(_num_curvature_rows(dim, _WORK), posterior.num_data)
    return dim > EXACT_UP_TO and float(dim) * rows > _MAX_ELEMENTS


def num_leading(posterior: NetworkPosterior) -> int:
    """Return the number of directions of a large network that are affordable; 0 if they are too few.

    XLA counts the operations of a prediction. The count that is used is at least two per parameter.
    """
    dim, row = posterior.layout.dim, jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), posterior.data.x)
    lowered = jax.jit(lambda theta, x: posterior.outputs(theta, x)).lower(jnp.zeros(dim, posterior.dtype), row)
    operations = max(2.0 * dim, float((lowered.cost_analysis() or {}).get("flops", 0.0)))
    search_rows = min(_LEADING_ROWS, posterior.num_data)
    affordable = min(_LEADING_WORK / posterior.num_data, _SEARCH_WORK / search_rows) / operations
    count = min(affordable, _LEADING_SIZE / dim, _MAX_LEADING)
    return int(count) if count >= _MIN_LEADING else 0


def leading_spectrum(posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], *, key: PRNGKeyArray) -> Spectrum:
    """Return the largest eigenvalues of I + A (see the module) for a large network, with their directions.

    A is computed from a random subset of the rows (`subspace_iteration.weighted_rows`). The number of directions
    (`num_leading`) is smaller for larger networks and for more rows. The reason is that the exact Hessian of the log
    posterior in the subspace of these directions needs one pass over all rows per direction.
    """
    count = num_leading(posterior)
    subset = subspace_iteration.weighted_rows(posterior, theta, _LEADING_ROWS, key=jax.random.fold_in(key, 0))
    spectrum = subspace_iteration.iterate(
        subset, theta, counts=(count, count), smallest=0.0, key=jax.random.fold_in(key, 1)
    )
    return spectrum._replace(own_sd=np.asarray(_own_sd(posterior, jnp.asarray(theta))))


def climb_in_subspace(
    posterior: NetworkPosterior, own_sd: Float[np.ndarray, " own"]
) -> tuple[Float[np.ndarray, " dim"], float]:
    """Return the mode of the posterior of a subspace, and its estimated error (`Mode.distance`).

    Args:
        posterior: the posterior of a subspace. The unit of a coordinate is about its posterior standard deviation.
        own_sd: posterior standard deviations of the parameters of the likelihood.
    """
    centre = posterior.centre()
    assert centre is not None
    sd = jnp.ones_like(centre).at[len(centre) - len(own_sd) :].set(jnp.asarray(own_sd, centre.dtype))
    position, distance = centre, math.inf
    for _ in range(_ROUNDS):
        position = _climb_to_mode(posterior, position, Factor(sd))
        previous_distance, distance = distance, float(jnp.mean(_slope(posterior, position, Factor(sd)) ** 2))
        if distance < _NEAR or distance > previous_distance / 2:
            break
    return np.asarray(position), math.sqrt(distance)


def _num_curvature_rows(dim: int, work: float) -> int:
    return max(4 * dim, _ROWS, min(int(work / dim**2), _MAX_ROWS))


def _curvature_rows(posterior: NetworkPosterior, work: float, *, key: PRNGKeyArray) -> NetworkPosterior:
    """Return the posterior given the rows from which the eigenvalues are computed.

    `work` is the limit of rows x parameters^2 (see `_WORK`).
    """
    num_rows = _num_curvature_rows(posterior.layout.dim, work)
    return random_rows(posterior, num_rows, key=jax.random.fold_in(key, 0))


def _spectrum(
    posterior: NetworkPosterior, theta: Float[np.ndarray, " dim"], *, smallest: float, key: PRNGKeyArray
) -> Spectrum:
    if posterior.layout.dim <= EXACT_UP_TO:
        return _exact(posterior, theta)
    counts = (_MIN_DIRECTIONS, MAX_DIRECTIONS)
    return subspace_iteration.iterate(
        posterior, theta, counts=counts, smallest=smallest, key=jax.random.fold_in(key, 1)
    )


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


def random_rows(posterior: NetworkPosterior, count: int, *, key: PRNGKeyArray) -> NetworkPosterior:
    """Return the posterior given `count` of the N rows, drawn at random. Multiply its likelihood power by N / count."""
    if count >= posterior.num_data:
        return posterior
    power = np.float32(float(posterior.likelihood_power) * posterior.num_data / count)
    rows = posterior.minibatch(count, replace=False, key=key)
    return dataclasses.replace(posterior, data=rows, likelihood_power=power)
