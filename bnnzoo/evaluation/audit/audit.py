"""Audit of a run by exact Markov chains that start at draws of the run.

An exact chain has the posterior as its stationary distribution. If the draws of the run are from the posterior, the
chains therefore have this distribution at every step. The audit tests whether their distribution changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.audit import bias, drift
from bnnzoo.evaluation.audit.audit_result import TOLERANCE, Audit, Effort, decide
from bnnzoo.evaluation.audit.bias import Biases
from bnnzoo.evaluation.audit.estimands import Estimands, audited_inputs, varying
from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.convergence import diagnostics
from bnnzoo.evaluation.formulas.rhat import convergence
from bnnzoo.evaluation.predictions import thinning
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.store.schema import ROW_SOURCE

SHARE, MIN_SECONDS = 0.5, 20.0
"""Default time limit of the exact chains: the fraction `SHARE` of the run's duration, but at least `MIN_SECONDS`."""
MIN_STEPS, FIRST_STEPS, MAX_STEPS = 8, 32, 4096
"""Smallest and largest number of steps in the first round, and limit of the number of steps of each chain.

Each later round has as many steps as all earlier rounds together.
"""
_SNAPSHOTS = 32
"""Largest number of snapshots per round. A snapshot is the positions of all exact chains at one step.

The means and sds of the exact chains are estimated from the snapshots of the last round.
"""
_MAX_DRAWS = 8000
"""Largest number of draws of the run, evenly spaced, from which the means and sds of the run are computed."""
_DENSITY_DRAWS = 1000
"""Largest number of draws at which the log density is computed for the estimate of the effective sample size."""
_MARGIN = 4.5
"""More steps are useful while this multiple of the standard error of a bias exceeds the tolerance."""
_PILOTS = 16
"""Largest number of draws that are used to tune the exact chains."""

Values = dict[str, Float[np.ndarray, "..."]]


def of_run(
    predictor: Predictor,
    *,
    chains: int = 128,
    seconds: float | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Audit:
    """Audit a run: start exact chains at some draws of the run, test for drift, and bound the bias of means and sds.

    Args:
        predictor: the run.
        chains: largest number of exact chains. The audit uses at most half as many chains as the run has effective
            draws.
        seconds: approximate limit of the total duration of the audit. By default, only the exact chains are limited:
            after compilation and tuning, they run for half of the duration of the run, but for at least 20 seconds.
        tolerance: limit of the biases; the audit passes only if it excludes every larger bias.
        seed: seed of the exact chains.

    Raises:
        UsageError: for a posterior defined in Python, a run that keeps predictions, weighted draws, a file without
            training rows, or a single chain whose draws are all equal.
    """
    record = predictor.record
    if not record.names_a_model:
        raise UsageError(
            "audit: not supported for a posterior made in Python, because chains must start from named "
            "parameters of a model; run nuts on this posterior with another seed, and compare the two runs"
        )
    if record.keeps_predictions:
        raise UsageError(
            "audit: not supported for a run that keeps predictions, because chains must start from draws of the "
            "parameters; sample again with [[keep=draws]]"
        )
    if record.draw_weights is not None:
        raise UsageError(
            "audit: not supported for weighted draws, because draws without their weights are not from the posterior; "
            "use a sampler without weights"
        )
    if ROW_SOURCE not in record.attributes:
        record.require_training_rows("audit")
    thinned = _thin_draws(predictor)
    with backend.arithmetic(predictor.precision):
        groups = (record.group("constant_data"), record.group("observed_data"))
        assert not isinstance(predictor.model, AbstractPosterior)  # the file names a model
        problem = Problem.restored(record.attributes, *groups, predictor.model)
        x = predictor.inputs(audited_inputs(predictor, problem.train))
        posterior = problem.network_posterior
        return of_draws(
            posterior,
            thinned.thetas[:].reshape(*thinned.record.shape, -1),
            x,
            predicting=thinned.posterior,
            are_chains=diagnostics.is_chain(record.attributes["exactness"]),
            chains=chains,
            seconds=seconds,
            run_seconds=sum(
                float(seconds) for name, seconds in record.attributes.items() if name.startswith("seconds_")
            ),
            tolerance=tolerance,
            seed=seed,
        )


def of_draws(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "chain draw both"],
    x: Shaped[np.ndarray, "probe ..."],
    *,
    predicting: Predicting | None = None,
    are_chains: bool = True,
    chains: int = 128,
    seconds: float | None = None,
    run_seconds: float = 0.0,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Audit:
    """Audit draws of a posterior; for arguments that are not listed below, see `of_run`.

    Args:
        posterior: the posterior, which the exact chains preserve.
        draws: draws on their natural scale. If predictions are linearised, the point of linearisation is appended to
            each draw.
        x: inputs at which predictions are compared, in the form that the network takes.
        predicting: the posterior that makes the predictions; by default `posterior`.
        are_chains: whether the draws of a chain are dependent, as in a Markov chain.
        run_seconds: duration of the run, in seconds.

    Raises:
        UsageError: if there is one chain and all its draws are equal.
    """
    start_time, dim = time.perf_counter(), posterior.layout.dim
    end_time, min_seconds = (
        (-np.inf, max(SHARE * run_seconds, MIN_SECONDS)) if seconds is None else (start_time + seconds, 0.0)
    )
    flat = draws.reshape(-1, draws.shape[2])
    predicting = posterior if predicting is None else predicting
    estimands = Estimands(posterior, predicting, x, flat[evenly(len(flat), _PILOTS)][:, :dim])
    run = {name: values.reshape(*draws.shape[:2], -1) for name, values in estimands(flat).items()}
    starts, pilots = _select_starts(posterior, draws[..., :dim], run, are_chains=are_chains, max_starts=chains)
    starts, pilots = (
        np.stack([posterior.unconstrained(draw[:dim]) for draw in flat[selected]]) for selected in (starts, pilots)
    )
    key_tune, key_move = jax.random.split(jax.random.key(seed))
    kernel = drift.kernel_for(posterior, pilots, key=key_tune)
    start_values = functions(posterior, estimands, starts)
    moments = {name: bias.run_moments(values) for name, values in run.items()}
    step_seconds = _seconds_per_step(kernel, posterior, starts)
    end_time = max(end_time, time.perf_counter() + min_seconds)
    positions, snapshot_values, biases, rates, steps = starts, {}, {}, [], 0
    next_steps = _first_steps(step_seconds, end_time)
    while next_steps:
        key, snapshots = jax.random.fold_in(key_move, steps), min(_SNAPSHOTS, next_steps)
        path = list(drift.trace(kernel, posterior, positions, steps=next_steps, snapshots=snapshots, key=key))
        values = [estimands(_natural(posterior, positions)) for positions, _ in path]
        snapshot_values = {name: np.stack([snapshot[name] for snapshot in values]) for name in values[0]}
        positions, steps = path[-1][0], steps + next_steps
        rates += [rate for _, rate in path]
        biases = _biases(moments, run, start_values, snapshot_values)
        is_affordable = steps < MAX_STEPS and time.perf_counter() + steps * step_seconds < end_time
        next_steps = steps if is_affordable and _more_steps_help(biases, tolerance) else 0
    means = {name: moment.mean for name, moment in moments.items()}
    end_values = functions(posterior, estimands, positions)
    test = drift.find_drift(with_squares(start_values, means), with_squares(end_values, means), seed=seed)
    first, seconds_used = estimands.first, time.perf_counter() - start_time
    pooled = bias.pooled_sd(moments[first], start_values[first], snapshot_values[first])
    cost = seconds_used / run_seconds if run_seconds else np.inf
    effort = Effort(len(starts), steps, float(np.mean(rates)), seconds_used, cost)
    return decide(
        test,
        biases,
        pooled,
        bias.forgotten_fraction(start_values[first], end_values[first]),
        effort,
        max_chains=chains,
        tolerance=tolerance,
    )


def _biases(
    moments: Mapping[str, bias.Moments], run: Values, starts: Values, snapshot_values: Values
) -> dict[str, Biases]:
    """Estimate the biases of the mean and the sd of every function that is not constant, by name of the function."""
    biases_by_name = {}
    for name, varying_values in varying(run, snapshot_values).items():
        if len(varying_values):
            function_moments = bias.Moments(*(np.asarray(values)[varying_values] for values in moments[name]))
            biases_by_name[name] = bias.estimate(
                function_moments, starts[name][:, varying_values], snapshot_values[name][..., varying_values]
            )
    return biases_by_name


def _seconds_per_step(kernel: drift.Kernel, posterior: NetworkPosterior, starts: Any) -> float:
    key = jax.random.key(0)
    drift.advance(kernel, posterior, starts, steps=1, key=key)  # compiles
    tick = time.perf_counter()
    drift.advance(kernel, posterior, starts, steps=2, key=key)
    return (time.perf_counter() - tick) / 2


def _first_steps(step_seconds: float, end_time: float) -> int:
    """Return the number of steps of the first round, a power of two.

    The number depends on the speed of the machine, never on a result of the audit.
    """
    affordable_steps = max(1.0, (end_time - time.perf_counter()) / step_seconds) if step_seconds else float(FIRST_STEPS)
    return int(np.clip(2 ** int(np.log2(affordable_steps)), MIN_STEPS, FIRST_STEPS))


def _more_steps_help(biases: Mapping[str, Biases], tolerance: float) -> bool:
    """Whether more steps of the exact chains may make the audit conclusive.

    The result is true if a function of the exact chains still depends on the starts. It is also true if the standard
    error of a bias is too large for the tolerance, and the exact chains contribute much of this error.
    """
    for function_biases in biases.values():
        if np.any(function_biases.remembered > bias.MAX_REMEMBERED):
            return True
        exact_errors, is_too_large = function_biases.exact_errors, _MARGIN * function_biases.errors > tolerance
        if np.any(np.isfinite(exact_errors) & is_too_large & (exact_errors > function_biases.run_errors / 2)):
            return True
    return False


def _natural(posterior: NetworkPosterior, thetas: Float[np.ndarray, "unit dim"]) -> Float[np.ndarray, "unit dim"]:
    """Convert positions from the sampled scale to the natural scale, on which a run file stores draws."""
    natural = posterior.natural(thetas)
    flat = np.concatenate([natural[b.name].reshape(len(thetas), -1) for b in posterior.layout.blocks], 1)
    return flat.astype(thetas.dtype)


def functions(
    posterior: NetworkPosterior, estimands: Estimands, thetas: Float[np.ndarray, "unit dim"]
) -> dict[str, Float[np.ndarray, "unit value"]]:
    """Return the values of all test functions at each position, by name.

    The test functions are the estimands, the log-likelihood of the training rows, the log prior density, and the log
    posterior density up to a constant.
    """
    density = densities(posterior, thetas)
    return estimands(_natural(posterior, thetas)) | {
        "the log-likelihood of the training rows": density[:, :1],
        "the log prior": density[:, 1:],
        "the log posterior": density.sum(1, keepdims=True),
    }


def densities(posterior: NetworkPosterior, thetas: Float[np.ndarray, "unit dim"]) -> Float[np.ndarray, "unit two"]:
    """Return the log-likelihood of the training rows and the log prior density at each position."""
    return np.asarray(_densities(posterior, jnp.asarray(thetas)), float)


@eqx.filter_jit
def _densities(posterior: NetworkPosterior, thetas: Float[jax.Array, "unit dim"]) -> Float[jax.Array, "unit two"]:
    def likelihood_and_prior(theta: jax.Array) -> jax.Array:
        return jnp.stack([posterior.total_log_likelihood(theta), posterior.log_prior(theta)])

    return jax.lax.map(likelihood_and_prior, thetas)


def with_squares(
    values: Mapping[str, Float[np.ndarray, "unit value"]], centre: Mapping[str, Float[np.ndarray, " value"]]
) -> dict[str, Float[np.ndarray, "unit value"]]:
    """Add the squared deviations of the functions from a centre; the deviations drift if the sd of the draws is wrong.

    Args:
        values: values of the functions, by name.
        centre: the centre of each function whose squared deviations are added.
    """
    with np.errstate(invalid="ignore"):
        squares = {f"the variance of {name}": (values[name] - middle) ** 2 for name, middle in centre.items()}
    return dict(values) | squares


def _thin_draws(predictor: Predictor) -> Predictor:
    """Return the same run with about 8000 draws or fewer, evenly spaced in each chain."""
    thinned = thinning.for_diagnosis(predictor)
    chains, count = thinned.record.shape
    stride = -(-chains * count // _MAX_DRAWS)
    return thinned if stride == 1 else thinned.thinned(stride)


def _select_starts(
    posterior: NetworkPosterior,
    draws: Float[np.ndarray, "chain draw dim"],
    run: Values,
    *,
    are_chains: bool,
    max_starts: int,
) -> tuple[Int[np.ndarray, " start"], Int[np.ndarray, " pilot"]]:
    """Return the indices of nearly independent draws as starts, and of other draws as pilots for tuning.

    The starts are evenly spaced over all chains. Their number is at most half of the smallest effective sample size of
    the functions, and at least two. A function that is constant over the draws, such as a fixed noise scale, is
    ignored. If no other draws are left, the starts are also the pilots.

    Raises:
        UsageError: if there is one chain and all its draws are equal.
    """
    chains, count = draws.shape[:2]
    total = chains * count
    if np.all(draws == draws[:, :1]):
        # Each chain repeats one draw, as in an ensemble.
        if chains < 2:
            raise UsageError(
                "audit: the run has one chain, and all its draws are equal; sample again with more [[chains]]"
            )
        first_draws = count * np.arange(chains)
        return first_draws[:max_starts], first_draws
    effective_draws = float(total)
    if are_chains:
        density_draws = draws[:, :: -(-total // _DENSITY_DRAWS)]
        thetas = np.stack([posterior.unconstrained(draw) for draw in density_draws.reshape(-1, density_draws.shape[2])])
        tested_values = [run[name][..., varying_values] for name, varying_values in varying(run, run).items()]
        tested_values.append(densities(posterior, thetas).reshape(*density_draws.shape[:2], -1))
        moving_values = [values for values in tested_values if values.shape[2] and np.ptp(values, axis=(0, 1)).any()]
        effective_draws = min((convergence(values)["ess_bulk"] for values in moving_values), default=0.0)
    # With half as many starts as effective draws, neighbouring starts are almost independent.
    number = int(min(max_starts, total, max(effective_draws / 2, 2)))
    starts = ((np.arange(number) + 0.5) * total / number).astype(int)
    other_draws = np.setdiff1d(np.arange(total), starts)
    pool = other_draws if len(other_draws) else starts
    return starts, pool[evenly(len(pool), _PILOTS)]
