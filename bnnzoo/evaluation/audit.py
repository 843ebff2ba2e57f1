"""The audit of a run: exact chains from its draws, and whether predictions drift away from what the run says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import diagnostics, drift, predictive
from bnnzoo.evaluation.convergence import convergence
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.predicting import Predicting

LEVEL = 1e-3
"""Chance that draws of the posterior fail."""
SHARE = 0.5
"""Of the time that the run took, what an audit takes by itself."""
_PROBES = 10
FEWEST_STEPS, MOST_STEPS = 8, 256
_LIMIT = 1.96
"""Standard errors beyond which a bias is told even if nothing else drifts."""
_SEEN = _LIMIT + 1.645
"""Standard errors of a bias that is beyond that in 95 % of all repeats."""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        p: of no drift; below `level` the draws are not the posterior's.
        drifted: what moved most, and `score`, by how much and which way, about a standard normal variable if nothing
            drifts.
        bias_sd: of the sd of predictions between draws, (run - exact) / exact: 0.1 is a tenth too wide. `bias_sd_se`:
            its standard error; `bias_sd_seen`: a bias that would be two standard errors in 95 % of all repeats.
        moved: 1 - the slope of predictions at the end on those at the start: near 0 the chains hardly moved, and say
            little.
        chains, steps: short chains, and steps of each; `acceptance` of them.
        cost: seconds over those of the run.
    """

    p: float
    drifted: str
    score: float
    bias_sd: float
    bias_sd_se: float
    bias_sd_seen: float
    moved: float
    chains: int
    steps: int
    acceptance: float
    cost: float
    seconds: float
    level: float = LEVEL

    @property
    def passed(self) -> bool:
        return self.p >= self.level

    @property
    def verdict(self) -> str:
        """One line."""
        width = "of a width that so few starts do not tell"
        if np.isfinite(self.bias_sd_se):
            width = f"{abs(self.bias_sd):.0%} ± {self.bias_sd_se:.0%} too {'wide' if self.bias_sd > 0 else 'narrow'}"
        if not self.passed:
            way = "fell" if self.score < 0 else "rose"
            return (
                f"not the posterior: on exact chains from the draws {self.drifted} {way} (p = {self.p:.1g}); "
                f"predictions are {width}"
            )
        where = f"(p = {self.p:.2g}) in {self.chains} exact chains of {self.steps} steps; predictions are {width}"
        if abs(self.bias_sd) > _LIMIT * self.bias_sd_se:
            return f"no drift that chance does not make {where}: take more --chains to tell"
        seen = f", a bias of {self.bias_sd_seen:.0%} would have stood out with 95 % power"
        return f"no drift found {where}{seen if np.isfinite(self.bias_sd_seen) else ''}"

    def record(self) -> dict[str, Any]:
        """All numbers and the verdict, flat."""
        return {"verdict": self.verdict, "passed": self.passed, **asdict(self)}


def of_run(predictor: Predictor, *, chains: int = 128, seconds: float | None = None, seed: int = 0) -> Audit:
    """Start exact chains from thinned draws of a run and test whether anything drifts.

    Args:
        chains: short chains, at most: fewer where the draws are worth fewer independent ones.
        seconds: what it may take, about; unless given, half of what the run took.

    Raises:
        UsageError: of a posterior made in Python, a run that kept predictions, weighted draws, or fewer than two draws.
    """
    began, record = time.perf_counter(), predictor.record
    if not record.names_a_model:
        raise UsageError(
            "audit: the run is of a posterior made in Python, and chains start from parameters of a model by name; run "
            "nuts on it with another seed, and look whether they agree"
        )
    if record.keeps_predictions:
        raise UsageError("audit: the run keeps predictions: there are no parameters from which chains could start")
    if record.weights is not None:
        raise UsageError("audit: the draws are weighted: chains would start from draws of the prior")
    theirs = sum(float(value) for name, value in record.attributes.items() if name.startswith("seconds_"))
    allowed = SHARE * theirs if seconds is None else seconds
    starts, pilots = _chosen(predictor, chains)
    x = predictor.inputs(record.probes(_PROBES)[1])
    with backend.arithmetic(predictor.precision):
        groups = (record.group("constant_data"), record.group("observed_data"))
        assert not isinstance(predictor.model, AbstractPosterior)  # the file names a model
        posterior = Problem.restored(record.attributes, *groups, predictor.model).network_posterior
        said = predictive.functions(predictor.posterior, predictor.thetas[starts], x)
        thetas = [np.stack([posterior.unconstrained(d) for d in predictor.draws[kept]]) for kept in (starts, pilots)]
        key_tune, key_move = jax.random.split(jax.random.key(seed))
        kernel = drift.kernel_for(posterior, thetas[1], key=key_tune)
        steps = _steps(kernel, posterior, thetas[0], until=began + allowed)
        ends, acceptance = drift.moved(kernel, posterior, thetas[0], steps=steps, key=key_move)
        centre = predictive.functions(predictor.posterior, predictor.draws[pilots], x).mean(0)
        before, after = (functions(posterior, predictor.posterior, t, x, centre) for t in (thetas[0], ends))
    return judged(said, before, after, steps, acceptance, began, theirs, seed=seed)


def judged(
    said: Float[np.ndarray, "unit row value"],
    before: Mapping[str, Float[np.ndarray, "unit _"]],
    after: Mapping[str, Float[np.ndarray, "unit _"]],
    steps: int,
    acceptance: float,
    began: float,
    theirs: float,
    *,
    seed: int,
) -> Audit:
    """What starts and ends say.

    Args:
        said: what the run predicts by each start: of Laplace the linearised network. before, after: `functions`.
        began: by `time.perf_counter`. theirs: the seconds that the run took.
    """
    found, units = drift.compared(before, after, seed=seed), len(said)
    width = drift.width(said.reshape(units, -1), before["predictive means"], after["predictive means"])
    seconds = time.perf_counter() - began
    return Audit(
        p=found.p_value,
        drifted=found.function,
        score=found.score,
        bias_sd=float(np.expm1(width.log_ratio)),
        bias_sd_se=float(np.exp(width.log_ratio) * width.error),
        bias_sd_seen=_SEEN * width.error,
        moved=width.moved,
        chains=units,
        steps=steps,
        acceptance=acceptance,
        cost=seconds / theirs if theirs else np.inf,
        seconds=seconds,
    )


def _steps(kernel: drift.Kernel, posterior: NetworkPosterior, starts: Any, *, until: float) -> int:
    """So many steps as there is time for, a power of two: they depend on the machine's speed, on no result."""
    key = jax.random.key(0)
    drift.moved(kernel, posterior, starts, steps=1, key=key)  # compiles
    tick = time.perf_counter()
    drift.moved(kernel, posterior, starts, steps=2, key=key)
    tock = time.perf_counter()
    affordable = max(1.0, 2 * (until - tock) / (tock - tick))
    return int(np.clip(2 ** int(np.log2(affordable)), FEWEST_STEPS, MOST_STEPS))


def functions(
    posterior: NetworkPosterior,
    predicting: Predicting,
    thetas: Float[np.ndarray, "unit dim"],
    x: Any,
    centre: Float[np.ndarray, "row value"],
) -> dict[str, Float[np.ndarray, "unit _"]]:
    """The test functions of each position: predictions at the probes, their squares, densities, noise."""
    natural = posterior.natural(thetas)
    flat = np.concatenate([natural[b.name].reshape(len(thetas), -1) for b in posterior.layout.blocks], 1)
    means = predictive.functions(predicting, flat.astype(thetas.dtype), x)
    squares = (means.astype(float) - centre) ** 2

    @jax.jit
    def densities(thetas: jax.Array) -> jax.Array:
        def one(theta: jax.Array) -> jax.Array:
            return jnp.stack([jnp.sum(posterior.log_likelihoods(theta)), posterior.log_prior(theta)])

        return jax.lax.map(one, thetas)

    density = np.asarray(densities(jnp.asarray(thetas)), float)
    found = {
        "predictive means": means.reshape(len(thetas), -1),
        "the spread of predictive means": squares.reshape(len(thetas), -1),
        "the training rows' log density": density[:, :1],
        "the log prior": density[:, 1:],
        "the log posterior": density.sum(1, keepdims=True),
    }
    own = [i for b in posterior.layout.blocks if b.name.startswith("likelihood_") for i in range(b.start, b.stop)]
    return found | ({"the likelihood's own parameters": thetas[:, own]} if own else {})


def _chosen(predictor: Predictor, most: int) -> tuple[Int[np.ndarray, " start"], Int[np.ndarray, " pilot"]]:
    """Draws to start from, as independent as they are, evenly through all chains; and others to tune with.

    Raises:
        UsageError: if there are fewer than two different draws.
    """
    chains, count = predictor.record.shape
    total = chains * count
    if not predictor.weights.moved.any():
        # Each chain is one draw: an ensemble.
        starts = count * np.arange(chains)
        if chains < 2:
            raise UsageError("audit: all draws are the same; take more --chains")
        return starts[:most], starts
    worth = total
    if diagnostics.is_chain(predictor.record.attributes["exactness"]):
        judged = diagnostics.quantities(predictor, _PROBES).values()
        # At half of the effective number neighbours are all but independent.
        worth = int(min(convergence(values.reshape(chains, count, -1))["ess_bulk"] for values in judged) / 2)
    number = min(most, total, max(worth, 2))
    starts = ((np.arange(number) + 0.5) * total / number).astype(int)
    rest = np.setdiff1d(np.arange(total), starts)
    pool = rest if len(rest) else starts
    return starts, pool[np.linspace(0, len(pool) - 1, min(16, len(pool))).round().astype(int)]
