"""The mode and the sampled directions for `--stochastic identified` and `linearised`, from one trained network.

The eigenvalue of a direction is the curvature of the log posterior divided by the curvature of the log prior. A
direction is sampled if its eigenvalue is above a threshold (`tau`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.subspace import SubspaceChoice, normal_moments
from bnnzoo.samplers.common import directions
from bnnzoo.samplers.common.directions import Mode
from bnnzoo.samplers.subsampled import rows_needed as _rows_needed
from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.initial import positions

SMALLEST = {"identified": 100.0, "linearised": 0.0}
"""Smallest threshold that is tried if the recipe sets none. A linear model needs no threshold.

If half of the largest eigenvalue is smaller than this threshold, this half is tried first."""
_LADDER = 10.0 ** np.arange(2, 8.01, 0.25)
"""Further thresholds that are tried if the recipe sets none."""
_ROWS = 2000
"""Size of the mini-batch for which the threshold is chosen: with this size, sigma2 must be at most `_SIGMA2`.

Here sigma2 is the variance of the log acceptance ratio over mini-batches, in a step of the sampler `penalty`. The worst
case is assumed: the proposal is a new draw from the posterior, independent of the current position."""
_SIGMA2 = 1.5
_MIN_CURVATURE = 0.2
"""Smallest curvature of the log posterior at the mode that every combination of the sampled directions must have.

The value is a fraction of the curvature of the generalised Gauss-Newton matrix. That curvature is never negative. In a
direction that the data hardly determine, the exact curvature can be negative. In such a direction, the posterior mass
is not near the mode, and a control variate at the mode does not work."""
_LANCZOS_STEPS = 24


class Subspace(NamedTuple):
    """The arrays that define a subspace, and its description for the file."""

    values: dict[str, np.ndarray]
    """Arrays of a `SubspaceNetwork`: `mode`, `basis`, `centre`; `others` if predictions include other directions."""
    kind: str
    tau: float
    """Threshold of the eigenvalues."""
    num_parameters: int
    variance_fraction: float
    """Fraction of the variance of the network's outputs that the sampled directions contribute."""
    rows_needed: float
    """Predicted size of a mini-batch for which sigma2 (see `_ROWS`) is 1; 0 if the recipe sets `tau`."""
    mode_distance: float
    """Distance from the computed mode to the exact mode, in standard deviations (`Mode.distance`)."""
    is_complete: bool
    """Whether all directions with an eigenvalue above `tau` are sampled. If not, some of them were not computed."""
    is_large: bool
    """Whether the other directions keep the trained values, because the full mode takes too long to find."""

    @property
    def num_directions(self) -> int:
        """Number of sampled directions."""
        return self.values["basis"].shape[1]

    def to_json(self) -> str:
        """Return the description as JSON, for the attribute `subspace` of the file."""
        fields = self._asdict() | {"directions": self.num_directions}
        fields.pop("values")
        fields["other_directions"] = "linearised" if "others" in self.values else "fixed"
        fields["parameters"] = fields.pop("num_parameters")
        fields["complete"] = fields.pop("is_complete")
        fields["large"] = fields.pop("is_large")
        return json.dumps(fields)

    @property
    def sentence(self) -> str:
        """A sentence that describes the sampled directions."""
        network = "linearised network" if self.kind == "linearised" else "network"
        rest = self.num_parameters - self.num_directions
        if not rest:
            return f"all {self.num_parameters} directions in the parameter space of the {network} are sampled"
        if "others" in self.values:
            rest_text = f"; predictions add draws of the other {rest} from their Gaussian approximation at the mode"
        else:
            place = "trained values" if self.is_large else "the mode"
            rest_text = f"; the other {rest} stay at {place}, so the draws are conditional on them"
        direction_text = "those with the largest ratio of the posterior's curvature to that of the prior"
        if self.is_complete:
            direction_text = (
                f"those in which the posterior has more than {self.tau:.4g} times the curvature of the prior"
            )
        return (
            f"{self.num_directions} of {self.num_parameters} directions in the parameter space of the {network} are "
            f"sampled: {direction_text}; "
            f"they contribute {100 * self.variance_fraction:.2g} % of the variance of the network's outputs at the "
            f"training rows{rest_text}"
        )


def find_subspace(
    problem: Problem, choice: SubspaceChoice, *, work: positions.StartWork, key: PRNGKeyArray
) -> Subspace:
    """Train all parameters, find the mode near the trained network, and return the directions to sample at the mode.

    A direction is sampled if its eigenvalue at the mode exceeds the threshold.

    Args:
        problem: the problem of the run.
        choice: the kind of subspace and the threshold that the recipe sets.
        work: observer, stop signal and cost of the initial positions.
        key: random key.

    Raises:
        UsageError: if no direction has a curvature above the threshold of the recipe, if the network and its data
            are too large, if the recipe's `other_directions` is not supported, or if the user's network cannot be used.
        InterruptedRunError: if `work.stop` returned a signal.
    """
    _check_others(problem)
    _check_size(problem, choice)
    whole_problem, theta = positions.train_whole_network(problem, work=work, key=key)
    work.note("finding the mode and the directions that the data determine")
    posterior = whole_problem.network_posterior
    smallest = SMALLEST[choice.kind] if choice.tau is None else choice.tau
    if directions.is_large(posterior):
        mode = _mode_in_subspace(problem, theta, key=jax.random.fold_in(key, 1))
    else:
        mode = directions.find_mode(posterior, theta, smallest=smallest, key=jax.random.fold_in(key, 1))
    largest = float(mode.spectrum.values[0])
    if choice.tau is not None and largest <= choice.tau:
        raise UsageError(
            f"[[stochastic={choice.kind}:{choice.tau:g}]]: no direction has a ratio of posterior curvature to prior "
            f"curvature above {choice.tau:g} (the largest ratio is {largest:.3g}); use a smaller threshold, or "
            "[[stochastic=all]]"
        )
    tau, rows_needed = choice.tau, 0.0
    if tau is None:
        floor = min(SMALLEST[choice.kind], largest / 2)
        candidate = problem.with_fixed(_values(problem, mode, floor)).posterior
        # A linearised network is concave at its mode for all usual likelihoods.
        is_concave = choice.kind == "linearised"
        tau, rows_needed = _choose_threshold(
            candidate, mode, floor, is_concave=is_concave, key=jax.random.fold_in(key, 2)
        )
    values = _values(problem, mode, tau, others=problem.recipe.other_directions == "linearised")
    num_computed = len(mode.spectrum.values)
    subspace = Subspace(
        values=values,
        kind=choice.kind,
        tau=tau,
        num_parameters=posterior.layout.network.dim,
        variance_fraction=min(mode.spectrum.variance_fraction(values["basis"].shape[1]), 1.0),
        rows_needed=rows_needed,
        mode_distance=mode.distance,
        is_large=directions.is_large(posterior),
        is_complete=values["basis"].shape[1] < num_computed or num_computed == posterior.layout.network.dim,
    )
    # Rounding differs between machines, and the chains of all processes must have the same posterior.
    subspace = subspace._replace(values=Processes.current().broadcast_first(values))
    work.note(subspace.sentence)
    return subspace


def _check_size(problem: Problem, choice: SubspaceChoice) -> None:
    """Refuse a network for which finding the directions would take very long.

    Raises:
        UsageError: if finding the directions would take very long.
    """
    posterior = problem.with_all_sampled().network_posterior
    if directions.is_large(posterior) and not directions.num_leading(posterior):
        raise UsageError(
            f"[[stochastic={choice.kind}]]: finding the directions of {posterior.layout.dim} parameters from "
            f"{posterior.num_data} rows would take very long; use [[stochastic=last]], a smaller network, or fewer rows"
        )


def _mode_in_subspace(problem: Problem, theta: Float[np.ndarray, " dim"], *, key: PRNGKeyArray) -> Mode:
    """Return the mode of a large network in the subspace of the directions with the largest curvature at `theta`.

    In the other directions, the parameters keep the values of the trained network `theta`.
    """
    posterior = problem.with_all_sampled().network_posterior
    spectrum = directions.leading_spectrum(posterior, theta, key=key)
    values = _values(problem, Mode(theta, spectrum, math.nan), 0.0)
    recipe = dataclasses.replace(problem.recipe, stochastic="identified")  # the network itself, not its linearisation
    subspace_posterior = dataclasses.replace(problem, recipe=recipe).with_fixed(values).network_posterior
    position, distance = directions.climb_in_subspace(subspace_posterior, spectrum.own_sd)
    count = values["basis"].shape[1]
    weights = values["mode"] + values["basis"] @ position[:count]
    return Mode(np.concatenate([weights, position[count:]]), spectrum, distance)


def _check_others(problem: Problem) -> None:
    """Refuse `other_directions: linearised` if not all eigenvalues are computed, or if predictions are stored.

    Raises:
        UsageError: if `other_directions: linearised` cannot be used.
    """
    if problem.recipe.other_directions == "fixed":
        return
    if problem.recipe.keep == "predictions":
        raise UsageError(
            "[[other_directions=linearised]]: not supported with [[keep=predictions]]; use [[keep=draws]], or "
            "[[other_directions=fixed]]"
        )
    num_parameters = problem.with_all_sampled().posterior.layout.dim
    if num_parameters > directions.EXACT_UP_TO:
        raise UsageError(
            "[[other_directions=linearised]]: supported for networks of at most "
            f"{directions.EXACT_UP_TO} parameters (got {num_parameters}); use a smaller network, or "
            "[[other_directions=fixed]]"
        )


def _values(problem: Problem, mode: Mode, tau: float, *, others: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays that define the subspace of all directions with an eigenvalue above `tau`.

    Each column of `basis` is a direction, scaled to the posterior standard deviation in this direction. If
    `others` is true, the array `others` has the other directions as its columns.
    """
    posterior = problem.with_all_sampled().network_posterior
    dim, dtype = posterior.layout.network.dim, mode.theta.dtype
    _, sd = normal_moments(posterior.prior, posterior.layout.network)
    spectrum, count = mode.spectrum, max(1, int(np.sum(mode.spectrum.values > tau)))
    scaled = sd[:, None] * spectrum.vectors * spectrum.values**-0.5
    centre = np.concatenate([np.zeros(count), mode.theta[dim:]])
    values = {"mode": mode.theta[:dim], "basis": scaled[:, :count], "centre": centre}
    if others:
        values["others"] = scaled[:, count:]
    return {name: array.astype(dtype) for name, array in values.items()}


def _choose_threshold(
    posterior: AbstractPosterior, mode: Mode, floor: float, *, is_concave: bool, key: PRNGKeyArray
) -> tuple[float, float]:
    """Return the smallest threshold for which mini-batches of `_ROWS` rows suffice, and the number of rows needed.

    Mini-batches suffice if sigma2 is at most `_SIGMA2`, and if the log posterior is concave at the mode
    (`_MIN_CURVATURE`). If mini-batches suffice for no threshold, the largest threshold is returned. The number of rows
    needed is the size of a mini-batch for which sigma2 is 1 (see `_ROWS`).

    Args:
        posterior: the posterior of all directions with eigenvalues above `floor`.
        mode: the mode and the spectrum of the directions.
        floor: the smallest threshold.
        is_concave: whether the log posterior density is known to be concave; its curvature is then not tested.
        key: random key of the prediction of sigma2.
    """
    num_data, values = posterior.num_data, mode.spectrum.values
    left_out = max(1 / _ROWS - 1 / num_data, 0.0)
    tau, rows_needed = floor, math.inf
    for tau in [floor, *_LADDER[(floor < _LADDER) & (values[0] > _LADDER)].tolist()]:
        mask = np.zeros(posterior.layout.dim, bool)
        mask[: max(1, int(np.sum(values > tau)))] = True
        is_sampled = jnp.asarray(mask)
        rows_needed = float(_predict(posterior, is_sampled, key))
        if rows_needed * left_out > _SIGMA2:
            continue
        if is_concave or _smallest_curvature(posterior, is_sampled, key) >= _MIN_CURVATURE:
            break
    return tau, rows_needed


@eqx.filter_jit
def _smallest_curvature(
    posterior: AbstractPosterior, is_sampled: Bool[Array, " dim"], key: PRNGKeyArray
) -> Float[Array, ""]:
    """Return the smallest eigenvalue of the negative Hessian of the log density at the centre of a subspace.

    The Lanczos method makes `_LANCZOS_STEPS` steps, each with one pass over the rows. These steps are enough, because
    the eigenvalues of interest are far below 1, and most of the others are near 1.

    Args:
        posterior: the posterior of a subspace. Each coordinate is in units of its posterior standard deviation.
        is_sampled: mask of the coordinates that are sampled. The other coordinates stay at the centre.
        key: random key of the first direction.
    """
    centre = posterior.centre()
    assert centre is not None

    def curvature_times(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
        change = jax.jvp(jax.grad(posterior.log_density), (centre,), (direction,))[1]
        return -jnp.where(is_sampled, change, 0.0)

    def unit(vector: Float[Array, " dim"], smallest: float) -> Float[Array, " dim"]:
        """Return the normalised vector; 0 if the earlier directions span all sampled coordinates."""
        length = jnp.linalg.norm(vector)
        return jnp.where(length > smallest, vector / jnp.maximum(length, smallest), 0.0)

    def extend(step: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, images = state
        image = curvature_times(basis[step])
        rest = image - basis.T @ (basis @ image)
        rest = rest - basis.T @ (basis @ rest)  # once more, because of rounding
        basis = basis.at[step + 1].set(unit(rest, 1e-4), mode="drop")
        return basis, images.at[step].set(image)

    first = unit(jnp.where(is_sampled, jax.random.normal(key, centre.shape, centre.dtype), 0.0), 0.0)
    basis = jnp.zeros((_LANCZOS_STEPS, len(centre)), centre.dtype).at[0].set(first)
    basis, images = jax.lax.fori_loop(0, _LANCZOS_STEPS, extend, (basis, jnp.zeros_like(basis)))
    inner = basis @ images.T
    is_unused = jnp.linalg.norm(basis, axis=1) == 0
    return jnp.linalg.eigvalsh((inner + inner.T) / 2 + jnp.diag(jnp.where(is_unused, 1.0, 0.0)))[0]


@eqx.filter_jit
def _predict(posterior: AbstractPosterior, is_sampled: Array, key: PRNGKeyArray) -> Float[Array, ""]:
    return _rows_needed.near_centre(posterior, is_sampled, key=key)
