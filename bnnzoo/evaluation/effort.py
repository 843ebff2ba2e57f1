"""How much of a large run is looked at, so that a look takes seconds: every k-th draw, and fewer rows.

Of a run of ordinary size, everything is. What is chosen depends on sizes alone, never on a clock.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from bnnzoo.evaluation.draws import WHOLE_BYTES
from bnnzoo.evaluation.predictor import Predictor

PROBES = 50
"""At how many inputs convergence is judged."""
_WORK = 5e10
"""Floating-point operations that predictions may take: some ten seconds of two cores."""
_DIAGNOSIS_BYTES, _PAGE_BYTES = WHOLE_BYTES // 2, WHOLE_BYTES // 4
"""Of draws that verdicts are made of, and that a page is beside them: all are read once and kept, for reading a
compressed file again for every question takes minutes."""
_LEAST_DRAWS, _LEAST_PAGE_DRAWS = 250, 50
"""Of each chain, whatever they take: the gate asks for 100 effective ones. A page asks for less."""
_DENSITY_ROWS, _LEAST_DENSITY_ROWS = 500, 50
"""Of how many training rows, evenly through the data, the log density is judged."""
_PAGE_ROWS, _LEAST_PAGE_ROWS = 5000, 250
"""Of how many test rows a page is made."""
_PAGE_PASSES = 8
"""How often it predicts each of them, about."""


def for_diagnosis(predictor: Predictor, num_probes: int = PROBES) -> Predictor:
    """The draws by which convergence is judged."""
    rows = 2 * num_probes + _LEAST_DENSITY_ROWS if predictor.has_rows else 0
    every = _stride(predictor, rows, fewest=_LEAST_DRAWS, most_bytes=_DIAGNOSIS_BYTES)
    return predictor if every == 1 else predictor.lighter(every)


def density_rows(predictor: Predictor, num_probes: int) -> int:
    """Of how many training rows the log density by these draws is judged."""
    affordable = _WORK / (len(predictor.draws) * predictor.row_cost) - 2 * num_probes
    return int(np.clip(affordable, _LEAST_DENSITY_ROWS, _DENSITY_ROWS))


def for_a_page(predictor: Predictor) -> Predictor:
    """The draws and the test rows of which a report is made."""
    record = predictor.record
    if not predictor.has_rows:
        every = _stride(predictor, 0, fewest=_LEAST_DRAWS, most_bytes=_PAGE_BYTES)
        return predictor if every == 1 else predictor.lighter(every)
    chains, count = record.shape
    fewest = min(chains * count, chains * _LEAST_PAGE_DRAWS)
    affordable = _WORK / (_PAGE_PASSES * fewest * predictor.row_cost)
    held = len(record.array("constant_data", "x_test")) if record.has_test_rows else 0
    rows = min(held, int(np.clip(affordable, _LEAST_PAGE_ROWS, _PAGE_ROWS)))
    asked = _PAGE_PASSES * max(rows, 1)
    every = _stride(predictor, asked, fewest=_LEAST_PAGE_DRAWS, most_bytes=_PAGE_BYTES)
    return predictor if every == 1 and rows == held else predictor.lighter(every, rows)


def _stride(predictor: Predictor, rows: int, *, fewest: int, most_bytes: int) -> int:
    """k, such that every k-th draw of each chain, but at least so many, predicts so many rows within bounds."""
    chains, count = predictor.record.shape
    affordable = most_bytes / predictor.draws.row_bytes
    if rows:
        affordable = min(affordable, _WORK / (rows * predictor.row_cost))
    # As many as fit, but for the fewest: of these rather one too many than one too few.
    return max(1, min(ceil(chains * count / affordable), count // fewest))
