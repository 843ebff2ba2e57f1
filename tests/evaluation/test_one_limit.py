"""Each number has one limit: pictures show only tested limits, and messages name the limit that was tested."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from bnnzoo import plots
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import findings
from bnnzoo.evaluation.formulas import calibration_distance
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.scores import row_scores
from bnnzoo.samplers import Penalty
from bnnzoo.samplers.statistics import attributes


def record(**about: Any) -> Record:
    tree = xr.DataTree()
    tree.attrs.update({key: json.dumps(value) for key, value in about.items()})
    return Record(tree, None)


def test_a_limit_that_another_number_replaces_is_not_declared_to_the_pictures():
    declared = attributes(Penalty())
    assert "limit" in record(statistics=declared, inspected={"unseen": [0.0]}).declarations["skew_bias"]
    replaced = record(statistics=declared, inspected={"unseen_shift": [0.0]}).declarations
    assert "limit" not in replaced["skew_bias"]
    assert "limit" in replaced["sigma2"]


def test_the_picture_of_steps_states_limits_and_judges_nothing():
    values = np.full((2, 50), 3.0)
    picture = plots.steps([plots.Statistic("sigma2", values, None, "", 2.0, "here")])
    assert "Dashed lines: limits that the mean must not exceed, sigma2 at 2." in picture.alt
    assert "above" not in picture.alt


def test_calibrated_states_gap_interval_and_tolerance():
    curve = calibration_distance.Calibration(0.05, 0.01, 0.09, "intervals too wide")
    answer = findings.answer_calibrated(curve, 400)
    assert answer.outcome == "yes"
    assert "differ by at most 5.0 % (99% interval 1.0 to 9.0 %; calibrated if" in answer.text
    assert "the lower end is at most 2% and the upper end at most 15%" in answer.text


def test_a_coverage_curve_leaves_its_band_exactly_where_the_answer_is_no():
    """Intervals are too wide by a gap that grows from 0 to 0.2."""
    rows = 1000
    band = calibration_distance.MARGIN + calibration_distance.half_width(rows, 1)
    for gap in np.linspace(0, 0.2, 9):
        # The inner mass gap is moved to the centre: |2 pit - 1| has the largest distance there.
        inside = np.sort(np.clip(np.linspace(0, 1, rows) * (1 - gap), 0, 1))
        curve = calibration_distance.of_intervals(((1 + inside) / 2)[:, None])
        observed = np.array([np.mean(inside <= level) for level in plots.COVERAGE_LEVELS])
        picture = plots.coverage({"y": observed}, rows, band)
        table = picture.table
        answer = findings.answer_calibrated(curve, rows).outcome
        outside = (table["observed"] > table["high"] + 1e-9).any()
        assert not (outside and answer == "yes")


def test_converged_names_its_limits():
    diagnosis = {"exactness": "exact", "rhat": 1.003, "rhat_of": "f", "ess_bulk": 900.0, "ess_bulk_of": "f"}
    text = findings.answer_converged(diagnosis | {"ess_tail": 800.0, "chains": 4, "draws": 1000}, ()).text
    assert "limit 1.01" in text
    assert "(limit 400)" in text


def test_sampled_metrics_have_a_monte_carlo_error():
    """Twenty batches of four chains are compared with independent repeats; different chains have larger errors."""
    rng = np.random.default_rng(0)

    def batches(between: float) -> list[dict[str, Estimate]]:
        chains = np.repeat(between * rng.normal(size=4), 5)
        return [{"crps": Estimate(shift + float(rng.normal()))} for shift in chains]

    errors = [row_scores.errors_of_batches(batches(0.0), 4)["crps"] for _ in range(200)]
    # The larger of two estimates of 1 / sqrt(20) = 0.22.
    assert 0.2 < np.mean(errors) < 0.35
    assert np.mean([row_scores.errors_of_batches(batches(5.0), 4)["crps"] for _ in range(200)]) > 1
    assert row_scores.errors_of_batches([], 4) == {}
