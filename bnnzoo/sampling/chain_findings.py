"""Findings about each chain of a run. Chains are tested one by one, because an average could hide a faulty chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree, Shaped

from bnnzoo.finding import Finding
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import AbstractSampler

_FEW_STEPS = 400
"""Steps per chain below which the mean of a statistic over one chain is too noisy for a test."""

Totals = dict[str, list[float]]
"""Sums of each statistic over the kept draws, one number per chain."""


def add_totals(totals: Totals, stats: Mapping[str, Shaped[np.ndarray, "chain draw"]]) -> None:
    """Add the statistics of a chunk to the totals, in place."""
    for name, values in stats.items():
        previous_totals = np.asarray(totals.get(name, np.zeros(len(values))))
        totals[name] = (previous_totals + np.sum(values, 1, dtype=np.float64)).tolist()


InspectionProgram = Callable[..., Mapping[str, Any]]
"""Compiled program of `inspect_chains`: it takes sampler, posterior, states and keys, and returns statistics."""


def compile_inspection(sampler: AbstractSampler, posterior: AbstractPosterior, states: PyTree) -> InspectionProgram:
    """Compile the program of `inspect_chains` for the shapes and types of the arrays in `states`.

    The compilation takes seconds, so callers may run it in a background thread.
    """
    if sampler.inspect is None:
        return _inspect_all
    host = jax.tree.map(np.asarray, states)
    return _inspect_all.lower(
        sampler, posterior, host, jax.random.split(jax.random.key(0), len(host.position))
    ).compile()


def inspect_chains(
    sampler: AbstractSampler,
    posterior: AbstractPosterior,
    states: PyTree,
    *,
    key: PRNGKeyArray,
    program: InspectionProgram | None = None,
) -> dict[str, list[float]]:
    """Call the sampler's `inspect` for the last state of each chain, and return its statistics, one value per chain.

    The chains are inspected one after the other, because one call may need the memory for all data.

    Args:
        sampler: the tuned sampler.
        posterior: the posterior of the run.
        states: the last states of all chains.
        key: random key of the inspection.
        program: the program from `compile_inspection`; None to compile it in this call.
    """
    if sampler.inspect is None:
        return {}
    host = jax.tree.map(np.asarray, states)
    inspection = (program or _inspect_all)(sampler, posterior, host, jax.random.split(key, len(host.position)))
    return {name: np.asarray(values, np.float64).tolist() for name, values in inspection.items()}


@eqx.filter_jit  # at module level, because a nested function would be traced again in every run
def _inspect_all(sampler: Any, posterior: Any, states: PyTree, keys: Any) -> dict[str, Any]:
    return jax.lax.map(
        lambda state_and_key: sampler.inspect(posterior, state_and_key[0], key=state_and_key[1]), (states, keys)
    )


def gate_findings(
    sampler: AbstractSampler,
    posterior: AbstractPosterior,
    means: Mapping[str, Sequence[float]],
    *,
    inspection: Mapping[str, Sequence[float]] = MappingProxyType({}),
    num_steps: int = _FEW_STEPS,
) -> tuple[Finding, ...]:
    """Return the sampler's findings about the chains, merged to one finding of each kind, that of the worst chain.

    Args:
        sampler: the tuned sampler.
        posterior: the posterior of the run.
        means: the mean of each statistic by name, one value for each chain.
        inspection: the result of `inspect_chains`. Its values are noisy. Therefore the value that is tested for a chain
            is the larger of two numbers: the mean over all chains, and half of the value of that chain.
        num_steps: steps per chain. Below `_FEW_STEPS` steps, the means of single chains are too noisy, and the mean
            over all chains is tested for each chain.
    """
    if num_steps < _FEW_STEPS:
        means = {name: [float(np.mean(values))] * len(values) for name, values in means.items()}
    means = {
        **means,
        **{name: np.maximum(np.asarray(values) / 2, np.mean(values)).tolist() for name, values in inspection.items()},
    }
    chains = range(max((len(values) for values in means.values()), default=0))
    chain_findings = [
        sampler.findings(posterior, {name: float(values[c]) for name, values in means.items()}) for c in chains
    ]
    return _merge_by_chain(chain_findings)


def combine_findings(runs: Iterable[tuple[int, Iterable[Finding]]]) -> tuple[Finding, ...]:
    """Combine the findings of several runs, as if they were one run.

    Args:
        runs: the number of chains and the findings of each run.
    """
    findings_by_chain: list[tuple[Finding, ...]] = []
    for chains, findings in runs:
        run_findings: list[list[Finding]] = [[] for _ in range(chains)]
        for finding in findings:
            for chain in set(finding.chains or range(chains)) & set(range(chains)):
                run_findings[chain].append(finding._replace(chains=()))
        findings_by_chain += map(tuple, run_findings)
    return _merge_by_chain(findings_by_chain)


def regime_ok(sampler: AbstractSampler, findings: Iterable[Finding]) -> int | Literal["not-applicable"]:
    """Return the value of the file's attribute `regime_ok`: whether the sampler's own test of its validity passed.

    The value is 0 if there are findings. Without findings, it is 1 if the sampler tests its own validity (`guarded`),
    and "not-applicable" if the sampler has no such test.
    """
    if any(findings):
        return 0
    return 1 if sampler.guarded else "not-applicable"


def _merge_by_chain(findings_by_chain: Sequence[tuple[Finding, ...]]) -> tuple[Finding, ...]:
    """Return one finding for each kind: the finding of the worst chain, with the list of all affected chains."""
    findings_by_kind: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for chain, findings in enumerate(findings_by_chain):
        for finding in findings:
            findings_by_kind.setdefault((finding.kind, finding.label), []).append((chain, finding))
    merged_findings = []
    for affected in findings_by_kind.values():
        finding = max((candidate for _, candidate in affected), key=_excess)
        chains = tuple(chain for chain, _ in affected)
        merged_findings.append(finding._replace(chains=chains if len(chains) < len(findings_by_chain) else ()))
    return tuple(merged_findings)


def _excess(finding: Finding) -> float:
    """Return the distance of a finding's value from its limit; infinite if the value is not finite."""
    distance = abs(finding.value - finding.limit)
    return distance if np.isfinite(distance) else np.inf
