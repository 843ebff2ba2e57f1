"""Detection of stuck chains after warm-up. Stuck chains are reported, and the run ends if all chains are stuck."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from bnnzoo.errors import BnnzooError
from bnnzoo.finding import Finding, setting, spell_settings, spelling

STUCK_STEPS = 1000
"""Consecutive steps without an accepted proposal after which a chain counts as stuck."""

_CURE = f"use a smaller {setting('sampler.step_size')}, or a longer {setting('warmup')}"


def count_rejected_steps(
    moved: Bool[np.ndarray, "chain draw"], steps_rejected: Int[np.ndarray, " chain"], thin: int
) -> Int[np.ndarray, " chain"]:
    """Return the number of steps since each chain last accepted a proposal, rounded down to a multiple of `thin`.

    Args:
        moved: for each draw of a chunk, whether one of its steps was accepted.
        steps_rejected: the numbers that this function returned for the previous chunk.
        thin: steps per draw.
    """
    length = moved.shape[1]
    last_accepted = np.where(moved.any(1), length - 1 - moved[:, ::-1].argmax(1), -1)
    return np.where(last_accepted >= 0, (length - 1 - last_accepted) * thin, steps_rejected + length * thin)


def refuse_all_stuck(steps_rejected: Int[np.ndarray, " chain"], next_step: int) -> None:
    """End the run if all of its chains are stuck.

    Raises:
        BnnzooError: if every chain is stuck; the message contains the remedy.
    """
    if (steps_rejected < STUCK_STEPS).any():
        return
    subject = "chain 0" if len(steps_rejected) == 1 else f"each of the {len(steps_rejected)} chains"
    raise BnnzooError(
        f"{subject}: no proposal accepted for {steps_rejected.min()} steps up to step {next_step}; "
        f"{spell_settings(_CURE, spelling())}"
    )


def find_stuck_chains(moved: Bool[np.ndarray, "chain draw"], thin: int) -> dict[int, int]:
    """Return the chains that accepted no proposal in at least 1000 consecutive steps.

    The keys are the numbers of the chains. A value is the length of the chain's longest sequence of rejected steps.
    """
    longest_by_chain = {}
    for chain, steps in enumerate(moved):
        ends = np.concatenate([[-1], np.flatnonzero(steps), [len(steps)]])
        longest = int(np.diff(ends).max() - 1) * thin
        if longest >= STUCK_STEPS:
            longest_by_chain[chain] = longest
    return longest_by_chain


def stuck_finding(stuck: dict[int, int]) -> tuple[Finding, ...]:
    """Return the finding about stuck chains for the file and the summary; empty if no chain is stuck."""
    if not stuck:
        return ()
    names = f"chain {next(iter(stuck))}" if len(stuck) == 1 else f"chains {', '.join(map(str, stuck))}"
    label = f"{names} accepted no proposal for {max(stuck.values())} steps; number of stuck chains"
    return (
        Finding("convergence", "stuck", label, len(stuck), 0, f"{_CURE}; the file contains the draws of all chains"),
    )
