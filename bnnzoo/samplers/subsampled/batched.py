"""Metropolis-Hastings on mini-batches without a noise penalty."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from typing_extensions import Doc

from bnnzoo.samplers.base import Exactness
from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty


class Batched(AbstractPenalty):
    """Draws wider than the posterior: the sampler `penalty` without its noise penalty, for comparison.

    A proposal is accepted with probability min(1, exp(-delta) q(theta|theta') / q(theta'|theta)). delta is the
    mini-batch estimate of the decrease of the log posterior density. The noise of delta is ignored. The smaller the
    batches, the wider the draws. The distribution of the draws is not known.
    """

    exactness: ClassVar[Exactness] = "biased"

    correction: Annotated[Literal[0], Doc("0: no penalty")] = 0
    proposal: Annotated[Literal["random-walk", "langevin", "hmc"], Doc("proposal, as for `penalty`")] = "random-walk"
    sampling: Annotated[
        Literal["replacement", "disjoint"],
        Doc("replacement: rows are drawn independently; disjoint: no row is used twice in a step"),
    ] = "replacement"
