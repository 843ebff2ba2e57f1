"""What more draws would add to the predictions: the estimate against its closed form, and what it must detect."""

from __future__ import annotations

import numpy as np
import pytest

import bnnzoo
from bnnzoo.evaluation.convergence import remaining_gain

RNG_SEED = 3
CHAINS, ROWS = 4, 40_000


def log_normal(count: int, sd: float) -> np.ndarray:
    """Log densities of independent draws whose density has mean 1."""
    rng = np.random.default_rng(RNG_SEED)
    return sd * rng.normal(size=(CHAINS, count, ROWS)) - sd**2 / 2


@pytest.mark.parametrize(("count", "sd"), [(10, 0.5), (20, 0.5), (40, 1.0)])
def test_the_gain_of_the_second_half_is_the_loss_that_is_left(count, sd):
    """The mean of S densities with mean 1 and variance v has an expected logarithm of about -v / (2 S).

    The rows are independent. The estimate is tested at 4.5 standard errors, plus a tenth for the next order.
    """
    log_densities = log_normal(count, sd)
    gain = remaining_gain.of_densities(log_densities)
    loss = np.expm1(sd**2) / (2 * CHAINS * count)
    assert gain is not None
    assert abs(gain.value - loss) < 4.5 * gain.se + 0.1 * loss
    assert gain.value > 4.5 * gain.se  # the test has power: zero would be refused


def test_chains_that_move_to_better_predictions_have_a_gain():
    log_densities = log_normal(50, 0.1)
    still = remaining_gain.of_densities(log_densities)
    moving = remaining_gain.of_densities(log_densities + np.linspace(-0.1, 0.1, 50)[:, None])
    assert still is not None
    assert moving is not None
    assert still.is_negligible
    assert not moving.is_negligible


@pytest.mark.long
def test_the_gain_of_the_runs_own_draws(tmp_path):
    run = bnnzoo.sample(
        "linear", "nuts", data="linear-line", warmup=100, draws=60, progress=False, out=tmp_path / "run.nc"
    )
    gain = remaining_gain.of_run(run.predictor)
    x, y = run.predictor.record.training_rows()
    expected = remaining_gain.of_densities(run.predictor.log_likelihoods(x, y, np.arange(60)))
    assert gain == expected


def test_with_too_few_draws_or_rows_nothing_is_estimated():
    assert remaining_gain.of_densities(np.zeros((4, 1, 9))) is None
    assert remaining_gain.of_densities(np.zeros((4, 9, 1))) is None
