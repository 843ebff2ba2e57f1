"""Declarations of the statistics of a sampler's steps, for the sampling loop, the result file and the plots."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from bnnzoo.errors import UsageError

Reduce = Literal["mean", "last"]


class Statistic(NamedTuple):
    """A number that a step reports, under its ArviZ name."""

    name: str
    reduce: Reduce = "last"
    """Value that is stored if a draw consists of several steps: the mean over the steps, or the value of the final
    step. The mean of a boolean statistic is the fraction of steps in which it is true. If every draw is a single step,
    a boolean statistic is stored as booleans."""
    label: str = ""
    """Axis label of the statistic's plot. Without a label and a limit, a statistic is recorded but not plotted."""
    limit: float | None = None
    """Largest mean of the statistic over the run at which the draws can be trusted; None if there is no limit."""
    limit_label: str = ""
    """Label of the limit's line in the plot."""
    limit_unless: str = ""
    """Name of a diagnostic that `AbstractSampler.inspect` computes from all rows.

    If a run has this diagnostic, the mean of the statistic is not compared with `limit`.
    """


@runtime_checkable
class Reports(Protocol):
    """An object that declares the statistics of its steps, such as a sampler."""

    statistics: ClassVar[tuple[Statistic, ...]]


LOG_DENSITY = Statistic("lp", label="log posterior")
LOG_DENSITY_ESTIMATE = Statistic("lp_estimate", label="log posterior (est.)")
ACCEPTED = Statistic("accepted", "mean")
ACCEPTANCE_RATE = Statistic("acceptance_rate", "mean", "acceptance")
DIVERGING = Statistic("diverging", "mean")
STEP_SIZE = Statistic("step_size")
N_STEPS = Statistic("n_steps", "mean")
TREE_DEPTH = Statistic("tree_depth", "mean", "tree depth")
ENERGY = Statistic("energy")

METROPOLIS = (ACCEPTANCE_RATE, ACCEPTED, DIVERGING, STEP_SIZE)
"""Statistics that every Metropolis step can report."""


def reductions(sampler: Reports) -> dict[str, Reduce]:
    """Return the reduction of each declared statistic. For other statistics the value of the final step is stored."""
    return {statistic.name: statistic.reduce for statistic in sampler.statistics}


def attributes(sampler: Reports) -> dict[str, dict[str, str | float]]:
    """Return the file attributes of each statistic: its non-empty fields, with `label` stored as `long_name`.

    Raises:
        UsageError: if a statistic has an unknown `reduce`.
    """
    for statistic in sampler.statistics:
        if statistic.reduce not in get_args(Reduce):
            allowed = " or ".join(map(repr, get_args(Reduce)))
            raise UsageError(
                f"{type(sampler).__name__}: statistic {statistic.name}: reduce must be {allowed} (got "
                f"{statistic.reduce!r})"
            )
    return {
        statistic.name: {
            "long_name" if field == "label" else field: value
            for field, value in statistic._asdict().items()
            if field != "name" and value not in ("", None)
        }
        for statistic in sampler.statistics
    }
