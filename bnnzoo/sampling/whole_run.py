"""Attributes of the file about a whole run: the sampler's tuned fields, its inspection, and its findings."""

from __future__ import annotations

import json

import jax
import numpy as np

from bnnzoo import store
from bnnzoo.evaluation.formulas import weight_tail
from bnnzoo.finding import Finding, sentence, spell_settings, spelling, to_json
from bnnzoo.progress import Observer, Progress
from bnnzoo.sampling import chain_findings
from bnnzoo.sampling.evaluations import count_evaluations
from bnnzoo.sampling.job import Job
from bnnzoo.sampling.loop.loop import Chunk
from bnnzoo.sampling.loop.stuck_chains import find_stuck_chains, stuck_finding
from bnnzoo.sampling.tuned import tuned_fields


def describe(
    job: Job,
    writer: store.Store,
    chunk: Chunk,
    totals: chain_findings.Totals,
    *,
    program: chain_findings.InspectionProgram | None,
    tell: Observer,
) -> tuple[Finding, ...]:
    """Inspect the chains after the last draw, write the attributes about the whole run, and return the findings.

    Args:
        job: the running job.
        writer: the store of the run.
        chunk: the last chunk of draws.
        totals: sums of the statistics over all draws, for each chain.
        program: the compiled program of the inspection; None if it has not been compiled.
        tell: the observer, which gets the sampler's remark as a note.
    """
    recipe, posterior = job.recipe, job.posterior
    inspection = chain_findings.inspect_chains(
        chunk.sampler,
        posterior,
        chunk.carry.states,
        key=jax.random.fold_in(job.keys.settle, chunk.next_step),
        program=program,
    )
    inspection_means = {name: float(np.mean(values)) for name, values in inspection.items()}
    if remark := chunk.sampler.remark(posterior, inspection_means):
        tell(Progress("note", 0, 0, note=spell_settings(f"{recipe.sampler.name}: {remark}", spelling())))
    stuck: dict[int, int] = {}
    if "accepted" in totals:
        stuck = find_stuck_chains(writer.values("sample_stats", "accepted") > 0, recipe.thin)
    # The finding of stuck chains comes before the sampler's findings, because `regime` contains only the first finding.
    findings = stuck_finding(stuck) + _sampler_findings(job, writer, chunk, totals, inspection)
    start_evaluations = float(writer.run.header.attributes["start_evaluations"])
    writer.update(
        {
            "regime_ok": chain_findings.regime_ok(chunk.sampler, findings),
            "regime": sentence(findings[0]) if findings else "",
            "findings": to_json(findings),
            "stuck_chains": json.dumps(list(stuck)),
            "restarted": int(np.sum(np.asarray(chunk.carry.restarted))),
            "inspected": json.dumps(inspection),
            "tuned": json.dumps(_tuned(job, chunk)),
            "draws_done": recipe.draws,
            "target_evaluations": count_evaluations(posterior, chunk.sampler, recipe, totals, start_evaluations),
        }
    )
    return findings


def _sampler_findings(
    job: Job,
    writer: store.Store,
    chunk: Chunk,
    totals: chain_findings.Totals,
    inspection: dict[str, list[float]],
) -> tuple[Finding, ...]:
    """Return the sampler's findings, from the means of the statistics over all draws and from the inspection."""
    recipe = job.recipe
    chain_means = {name: [value / recipe.draws for value in sums] for name, sums in totals.items()}
    findings = chain_findings.gate_findings(
        chunk.sampler, job.posterior, chain_means, inspection=inspection, num_steps=recipe.draws * recipe.thin
    )
    if "log_weight" in totals:
        findings += weight_tail.of_weights(writer.values("sample_stats", "log_weight"))
    return findings


def _tuned(job: Job, chunk: Chunk) -> dict[str, object]:
    """Return the fields that the sampler has tuned, with the step size of each chain."""
    tuned = tuned_fields(job.problem.sampler, chunk.sampler)
    step_size = getattr(chunk.carry.states, "step_size", None)
    if job.recipe.warmup and step_size is not None:
        tuned["step_size"] = [float(str(value)) for value in np.asarray(step_size)]
    return tuned
