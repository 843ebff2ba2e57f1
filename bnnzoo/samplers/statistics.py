"""What a sampler reports of its steps: it declares them; the loop, the file and the plots go by that."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from bnnzoo.errors import UsageError

Reduce = Literal["mean", "last"]


class Statistic(NamedTuple):
    """A number that a step reports, under its ArviZ name."""

    name: str
    reduce: Reduce = "last"
    """What a thinned draw holds of its steps: their mean, or the value of the last. The mean of one step that says yes
    or no is its answer, a boolean; of several it is their share."""
    label: str = ""
    """What the axis of its picture says; without one it is kept but not drawn."""
    limit: float | None = None
    """What its mean over the run is trusted up to."""
    limit_label: str = ""
    """What the line of the limit says."""
    limit_unless: str = ""
    """The number of a last look at all rows (`inspect`) that is tested in place of this limit, where it is known."""


@runtime_checkable
class Reports(Protocol):
    """A sampler."""

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
"""What any accept step can tell."""


def reductions(sampler: Reports) -> dict[str, Reduce]:
    """How each declared statistic is thinned; one that is not declared keeps its last value."""
    return {statistic.name: statistic.reduce for statistic in sampler.statistics}


def attributes(sampler: Reports) -> dict[str, dict[str, str | float]]:
    """The attributes of each statistic in a file: its fields, those that are empty left out; `label` as `long_name`.

    Raises:
        UsageError: for a statistic that is reduced as none can be.
    """
    for s in sampler.statistics:
        if s.reduce not in get_args(Reduce):
            ways = " or ".join(map(repr, get_args(Reduce)))
            raise UsageError(f"{type(sampler).__name__}: statistic {s.name}: reduce is {s.reduce!r}; it must be {ways}")
    return {
        s.name: {
            "reduce": s.reduce,
            **({"long_name": s.label} if s.label else {}),
            **({"limit": s.limit} if s.limit is not None else {}),
            **({"limit_label": s.limit_label} if s.limit_label else {}),
            **({"limit_unless": s.limit_unless} if s.limit_unless else {}),
        }
        for s in sampler.statistics
    }
