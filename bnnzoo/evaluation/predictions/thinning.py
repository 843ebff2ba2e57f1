"""Limits on the computing time of an analysis.

For a large run, only every k-th draw and fewer rows are used, so that an analysis takes seconds. A run of ordinary size
is analysed completely. The limits depend only on the sizes of arrays, never on a clock.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from bnnzoo.evaluation.contents.draws import IN_MEMORY_BYTES
from bnnzoo.evaluation.predictions.predictor import Predictor

PROBES = 50
"""Number of inputs at which convergence is tested."""
_WORK = 5e10
"""Largest number of floating-point operations for predictions, about ten seconds of work on two cores."""
_DIAGNOSIS_BYTES, _PAGE_BYTES = IN_MEMORY_BYTES // 2, IN_MEMORY_BYTES // 4
"""Largest size of the draws that are used for a verdict, and of the draws that are used for a report.

All these draws are read once and cached, because it would take minutes to read a compressed file again for every
quantity.
"""
_MIN_DRAWS, _MIN_PAGE_DRAWS = 250, 50
"""Smallest numbers of draws per chain for a verdict and for a report, regardless of the computing time.

A verdict requires 100 effective draws per chain; a report requires fewer.
"""
_DENSITY_ROWS, _MIN_DENSITY_ROWS = 500, 50
"""Largest and smallest number of training rows, evenly spaced, whose log-likelihood is tested."""
_PAGE_ROWS, _MIN_PAGE_ROWS = 5000, 250
"""Largest number of test rows in a report, and smallest number to which the computing time may limit them."""
_PAGE_PASSES = 8
"""Approximate number of times that a report predicts each test row."""


def for_diagnosis(predictor: Predictor, num_probes: int = PROBES) -> Predictor:
    """Return a predictor for convergence diagnostics, with only every k-th draw of a large run.

    Its predictions leave out the variation along directions that are not sampled.
    """
    predictor = predictor.of_sampled_directions()
    rows = 2 * num_probes + _MIN_DENSITY_ROWS if predictor.has_rows else 0
    stride = _stride(predictor, rows, fewest=_MIN_DRAWS, most_bytes=_DIAGNOSIS_BYTES)
    return predictor if stride == 1 else predictor.thinned(stride)


def density_rows(predictor: Predictor, num_probes: int) -> int:
    """Return the number of training rows whose log-likelihood is tested with the draws of `predictor`."""
    affordable = _WORK / (len(predictor.draws) * predictor.row_cost) - 2 * num_probes
    return int(np.clip(affordable, _MIN_DENSITY_ROWS, _DENSITY_ROWS))


def for_report(predictor: Predictor) -> Predictor:
    """Return a predictor with the draws and the test rows that are used for a report."""
    record = predictor.record
    if not predictor.has_rows:
        stride = _stride(predictor, 0, fewest=_MIN_DRAWS, most_bytes=_PAGE_BYTES)
        return predictor if stride == 1 else predictor.thinned(stride)
    chains, count = record.shape
    fewest = min(chains * count, chains * _MIN_PAGE_DRAWS)
    affordable_rows = _WORK / (_PAGE_PASSES * fewest * predictor.row_cost)
    num_test_rows = len(record.array("constant_data", "x_test")) if record.has_test_rows else 0
    rows = min(num_test_rows, int(np.clip(affordable_rows, _MIN_PAGE_ROWS, _PAGE_ROWS)))
    rows_to_predict = _PAGE_PASSES * max(rows, 1)
    stride = _stride(predictor, rows_to_predict, fewest=_MIN_PAGE_DRAWS, most_bytes=_PAGE_BYTES)
    return predictor if stride == 1 and rows == num_test_rows else predictor.thinned(stride, rows)


def _stride(predictor: Predictor, rows: int, *, fewest: int, most_bytes: int) -> int:
    """Return the stride k with which every k-th draw of each chain is used.

    It is the smallest stride with which the draws take at most `most_bytes` bytes, and the predictions of `rows` rows
    cost at most `_WORK` operations. A smaller stride is used if fewer than `fewest` draws per chain would be left.
    """
    chains, count = predictor.record.shape
    affordable_draws = most_bytes / predictor.draws.row_bytes
    if rows:
        affordable_draws = min(affordable_draws, _WORK / (rows * predictor.row_cost))
    # `ceil` keeps the draws within the limits, and `//` keeps at least `fewest` draws.
    return max(1, min(ceil(chains * count / affordable_draws), count // fewest))
