"""The keys, lengths and timing options of a run of the sampling loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Key

from bnnzoo.sampling.devices.processes import Processes
from bnnzoo.sampling.keys import Keys
from bnnzoo.sampling.loop.chunk import Carry, Setup, Work
from bnnzoo.sampling.seconds import Seconds


class Plan(NamedTuple):
    """Keys, lengths and timing options of a run."""

    keys: Keys
    num_chains: int
    chain_keys: Key[Array, " chain"]
    num_warmup: int
    planned_warmup: int
    plan_warmup: Callable[[int], int] | None
    num_draws: int
    thin: int
    keep_warmup: bool
    chunk_seconds: float
    most_draws: int
    seconds: Seconds
    stops: tuple[int, ...]
    stop_signal: Callable[[], int]

    def revise_warmup(self, step: int, processes: Processes) -> Plan:
        """Return the plan with the number of warm-up steps that `plan_warmup(step)` returns."""
        if self.plan_warmup is None or step == self.num_warmup:
            return self
        return self._replace(num_warmup=int(processes.broadcast_first(self.plan_warmup(step))))

    def max_rows(self, step: int) -> int:
        """Return the largest number of draws of a chunk that starts at this step."""
        done = (step - self.num_warmup) // self.thin
        return min((stop for stop in self.stops if stop > done), default=self.num_draws) - done

    def warmup_work(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Return `count` warm-up steps as work for the device. Each step is one row, because it updates the tuning."""
        return Work(setup, carry, self.chain_keys, start, count, 1, "warm-up", self.keep_warmup)

    def sampling_work(self, setup: Setup, carry: Carry, *, start: int, count: int) -> Work:
        """Return `count` kept draws as work for the device. Each draw is one row and takes `thin` steps."""
        return Work(setup, carry, self.chain_keys, start, count, self.thin, "sampling", True)
