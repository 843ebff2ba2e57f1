"""The measurement of the time of a step before warm-up."""

from __future__ import annotations

import pytest

from bnnzoo.sampling.loop import pilot


@pytest.mark.parametrize(
    ("step_seconds", "counts"),
    [
        (20.0, [1]),  # slow, so it is not repeated
        (2.0, [1, 1]),
        (0.3, [1, 1]),
        (0.1, [1, 1, 2, 4]),
        (1e-6, [1, 1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_the_number_of_steps_doubles_until_a_call_takes_a_quarter_of_a_second(monkeypatch, step_seconds, counts):
    calls, clock = [], [0.0]

    def run_steps(count):
        calls.append(count)
        clock[0] += step_seconds * count + (0.5 if len(calls) == 1 and step_seconds < 0.1 else 0.0)

    monkeypatch.setattr(pilot.time, "perf_counter", lambda: clock[0])
    assert pilot.measure_step(run_steps) == pytest.approx(step_seconds)
    assert calls == counts
