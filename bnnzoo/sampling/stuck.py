"""Chains that stand still after warm-up: one is named and the others go on; all of them end the run."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from bnnzoo.errors import BnnzooError
from bnnzoo.finding import Finding, setting, spelling, spelt

STUCK_STEPS = 1000
"""Steps in a row without an acceptance after which a chain is given up."""

_CURE = f"use a smaller {setting('sampler.step_size')}, or a longer {setting('warmup')}"


def steps_in_a_row(
    moved: Bool[np.ndarray, "chain draw"] | None, quiet: Int[np.ndarray, " chain"], thin: int
) -> Int[np.ndarray, " chain"]:
    """How many steps each chain has now rejected in a row, up to the precision of a thinned draw.

    Args:
        moved: which draws of a chunk are from steps that were accepted; None where none is ever rejected.
        quiet: what this returned for the chunk before.
    """
    if moved is None:
        return quiet
    length = moved.shape[1]
    since = np.where(moved.any(1), length - 1 - moved[:, ::-1].argmax(1), -1)
    return np.where(since >= 0, (length - 1 - since) * thin, quiet + length * thin)


def refuse_all_stuck(quiet: Int[np.ndarray, " chain"], next_step: int) -> None:
    """End a run in which no chain moves.

    Raises:
        BnnzooError: with the cure.
    """
    if (quiet < STUCK_STEPS).any():
        return
    who = "chain 0" if len(quiet) == 1 else f"each of the {len(quiet)} chains"
    raise BnnzooError(
        f"{who}: no proposal accepted for {quiet.min()} steps up to step {next_step}; {spelt(_CURE, spelling())}"
    )


def stuck_chains(moved: Bool[np.ndarray, "chain draw"], thin: int) -> dict[int, int]:
    """The chains that at some time accepted nothing for 1000 steps, and their longest such time, from a whole run."""
    found = {}
    for chain, steps in enumerate(moved):
        ends = np.concatenate([[-1], np.flatnonzero(steps), [len(steps)]])
        longest = int(np.diff(ends).max() - 1) * thin
        if longest >= STUCK_STEPS:
            found[chain] = longest
    return found


def finding_of(stuck: dict[int, int]) -> tuple[Finding, ...]:
    """What a run's file and its summary say of such chains; nothing where there are none."""
    if not stuck:
        return ()
    names = f"chain {next(iter(stuck))}" if len(stuck) == 1 else f"chains {', '.join(map(str, stuck))}"
    label = f"{names} accepted nothing for {max(stuck.values())} steps: stuck chains"
    return (Finding("convergence", "stuck", label, len(stuck), 0, f"{_CURE}; the other chains' draws are kept"),)
