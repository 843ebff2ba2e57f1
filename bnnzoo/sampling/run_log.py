"""Reports about a running job for its observers, from values that the run loop already has on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bnnzoo.errors import BnnzooError, InterruptedRunError, message_of
from bnnzoo.finding import spelling
from bnnzoo.observers import ChunkReport, RunEnd, RunFailure, RunStart
from bnnzoo.plugins.failures import one_line
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE, DIVERGING, LOG_DENSITY, LOG_DENSITY_ESTIMATE, STEP_SIZE
from bnnzoo.sampling.job import Job
from bnnzoo.sampling.loop.loop import Chunk

_OWN_KEYS = {statistic.name for statistic in (ACCEPTANCE_RATE, DIVERGING, LOG_DENSITY, LOG_DENSITY_ESTIMATE, STEP_SIZE)}
"""Names of statistics that have their own fields in a `ChunkReport`, such as `acceptance`."""
_METRICS = ("converged", "rhat", "ess_bulk", "regime_ok", "restarted", "target_evaluations")


def run_start(job: Job, out: str, attributes: Mapping[str, Any], steps: int) -> RunStart:
    """Return the report at the start of a job; `steps` is the step of the checkpoint of a resumed run, else 0."""
    recipe = job.recipe
    lengths = {name: getattr(recipe, name) for name in ("chains", "warmup", "draws", "thin")}
    resolved_recipe = {} if job.problem.description is None else job.problem.resolved_recipe()
    names = {name: str(attributes[name]) for name in ("model", "sampler")}
    version = str(attributes["bnnzoo_version"])
    return RunStart(file=out, version=version, **names, **lengths, steps=steps, recipe=resolved_recipe)


def chunk_report(chunk: Chunk, *, draws: int, thin: int, seconds: float) -> ChunkReport:
    """Return the report about a chunk, after `draws` draws per chain and `seconds` seconds of the run."""
    stats = {name: values for name, values in chunk.stats.items() if values.ndim == 2}  # one number per chain and draw
    with np.errstate(all="ignore"):  # statistics can be infinite
        means = {name: float(np.mean(values, dtype=np.float64)) for name, values in stats.items()}
    divergences = None
    if DIVERGING.name in stats:  # a fraction of the steps of a draw
        steps_per_row = thin if chunk.phase == "sampling" else 1
        divergences = round(means[DIVERGING.name] * stats[DIVERGING.name].size * steps_per_row)
    last_values = {name: np.asarray(values[:, -1], np.float64).tolist() for name, values in stats.items()}
    return ChunkReport(
        phase=chunk.phase,
        steps=int(chunk.next_step),
        draws=draws,
        seconds=seconds,
        acceptance=means.get(ACCEPTANCE_RATE.name),
        divergences=divergences,
        step_size=last_values.get(STEP_SIZE.name),
        log_density=last_values.get(LOG_DENSITY.name, last_values.get(LOG_DENSITY_ESTIMATE.name)),
        statistics={name: mean for name, mean in means.items() if name not in _OWN_KEYS},
    )


def run_end(attributes: Mapping[str, Any], seconds: Mapping[str, Any], draws: int) -> RunEnd:
    """Return the report at the end of a run, from the attributes of its file and the seconds of each phase."""
    metrics = {name: attributes[name] for name in _METRICS if isinstance(attributes.get(name), int | float)}
    return RunEnd(
        verdict=str(attributes.get("verdict" if spelling() == "options" else "verdict_in_python", "")),
        draws=draws,
        seconds=sum(seconds.values()),
        metrics={name: float(value) for name, value in {**metrics, **seconds}.items()},
    )


def run_failure(error: BaseException, draws: int) -> RunFailure:
    """Return the report about an error or an interruption that stops a run."""
    is_interrupted = isinstance(error, InterruptedRunError | KeyboardInterrupt)
    message = message_of(error) if isinstance(error, BnnzooError) else one_line(error)
    return RunFailure("interrupted" if is_interrupted else "failed", message, draws)
