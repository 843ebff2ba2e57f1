"""The interface of observers, and the reports that a run sends to them."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal


@dataclasses.dataclass(frozen=True)
class RunStart:
    """The report before the first step of a run, or before the first step after a run is resumed."""

    event: ClassVar[str] = "start"
    file: str
    version: str
    """The version of bnnzoo."""
    model: str
    sampler: str
    chains: int
    warmup: int
    draws: int
    thin: int
    """Steps per kept draw. With a time budget, `warmup`, `draws` and `thin` are planned values that can change."""
    steps: int
    """Steps per chain before this report: 0, or the step of the checkpoint from which the run is resumed."""
    recipe: dict[str, Any]
    """The resolved recipe, with the keys of a recipe file; empty for a posterior made in Python."""


@dataclasses.dataclass(frozen=True)
class ChunkReport:
    """The report after a chunk of steps. Numbers that the sampler does not report are None."""

    event: ClassVar[str] = "chunk"
    phase: Literal["warm-up", "sampling"]
    steps: int
    """Steps per chain since the start of warm-up."""
    draws: int
    """Kept draws per chain."""
    seconds: float
    """Seconds of the run so far, without the time between an interruption and its resumption."""
    acceptance: float | None
    """Mean acceptance rate in this chunk."""
    divergences: int | None
    """Number of divergent steps in this chunk, over all chains."""
    step_size: list[float] | None
    """Step size of each chain at the end of the chunk."""
    log_density: list[float] | None
    """Log density of each chain, or its estimate, at the end of the chunk."""
    statistics: dict[str, float]
    """Mean, in this chunk, of every other statistic that the sampler reports, such as `sigma2` or `n_steps`."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers of curves by name, such as `sampling/acceptance` and `sampling/log_density/chain-0`."""
        numbers: dict[str, float | None] = {"acceptance": self.acceptance, "divergences": self.divergences}
        for name, values in (("step_size", self.step_size), ("log_density", self.log_density)):
            numbers |= {f"{name}/chain-{chain}": value for chain, value in enumerate(values or [])}
        numbers |= self.statistics
        return {f"{self.phase}/{name}": float(value) for name, value in numbers.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class RunEnd:
    """The report after the file of a complete run is written."""

    event: ClassVar[str] = "end"
    verdict: str
    """Result of the convergence test in words; empty if the test had an error, or if a large run has too few draws."""
    draws: int
    """Kept draws per chain."""
    seconds: float
    metrics: dict[str, float]
    """Summary numbers in the file of the run, such as `converged`, `rhat`, `ess_bulk` and `seconds_sampling`."""


@dataclasses.dataclass(frozen=True)
class RunFailure:
    """The report about a run that stops before its end."""

    event: ClassVar[str] = "failure"
    reason: Literal["interrupted", "failed"]
    message: str
    draws: int
    """Kept draws per chain."""


Report = RunStart | ChunkReport | RunEnd | RunFailure


class AbstractObserver(abc.ABC):
    """An object that logs a run while it is running.

    A run calls `observe` between chunks of steps, in the first of its processes. The draws do not depend on observers.
    The run warns about the first exception that `observe` raises, ignores later ones, and continues.

    For `--log-to NAME:TEXT`, the class that a plugin registers as NAME is called with TEXT before the run
    starts. Without `:TEXT`, the argument is an empty string. Raise `bnnzoo.UsageError` in `__init__` if TEXT is invalid
    or a library is missing.
    """

    @abc.abstractmethod
    def observe(self, report: Report) -> None:
        """Handle a report. Ignore reports of unknown types, which later versions may add."""
