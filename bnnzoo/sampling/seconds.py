"""Wall-clock seconds of a run by phase."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator


@dataclasses.dataclass
class Seconds:
    """Wall-clock seconds of a run by phase. Their sum is the time of the whole command."""

    start: float = 0.0
    """Work before the loop that is not in `warmup`: imports, loading the data, compilation, and timing for a budget."""
    compile: float = 0.0
    """Compilation of the chains' programs, and computation of the sampler's first states."""
    warmup: float = 0.0
    """Warm-up, and the work before it that a budget covers.

    This work is the selection of the likelihood and the model, and the search for the initial positions (training, or
    moves from prior draws).
    """
    sampling: float = 0.0
    judging: float = 0.0
    """The sampler's final inspection of the chains, and the test of convergence."""
    writing: float = 0.0
    """Writing the file."""

    @property
    def total(self) -> float:
        """Sum over all phases, in seconds."""
        return sum(dataclasses.astuple(self))

    @contextlib.contextmanager
    def time_compilation(self) -> Iterator[None]:
        """Count the time spent inside the block as compilation."""
        start_time = time.perf_counter()
        yield
        self.compile += time.perf_counter() - start_time
