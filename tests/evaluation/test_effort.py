"""The amount of a large run that is analysed."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from bnnzoo.evaluation.contents import draws
from bnnzoo.evaluation.predictions import thinning
from bnnzoo.evaluation.predictions.predictor import Predictor


class Sized:
    def __init__(self, count: int, row_bytes: int):
        self.count, self.row_bytes = count, row_bytes

    def __len__(self) -> int:
        return self.count


def sized(chains: int, count: int, *, row_bytes: int = 4, row_cost: float = 1.0, held: int = 0) -> Any:
    """A predictor that has only sizes, and records how it is thinned."""
    result: Any = Predictor.__new__(Predictor)
    result.record = types.SimpleNamespace(
        shape=(chains, count),
        names_a_model=held >= 0,
        has_training_rows=True,
        has_test_rows=held > 0,
        array=lambda group, name: np.zeros(held),
    )
    result.model = None
    result.draws, result.row_cost = Sized(chains * count, row_bytes), row_cost
    result.thinned = lambda *how: lightened(result, *how)
    result.of_sampled_directions = lambda: result  # there is no model
    return result


def lightened(result: Any, *how: int) -> Any:
    other: Any = Predictor.__new__(Predictor)
    other.how = how
    return other


def test_diagnosis_uses_an_affordable_number_of_draws():
    """Cost and bytes limit the draws used of 4 chains of 10 000 draws, but at least 250 per chain are used."""
    work, limit = 5e10 / 150, 2**27

    def judge(**more: Any) -> Any:
        result = sized(4, 10_000, **more)
        lighter = thinning.for_diagnosis(result)
        return 1 if lighter is result else lighter.how[0]

    assert judge() == 1
    assert judge(row_cost=work / 40_000) == 1
    assert judge(row_cost=work / 39_000) == 2
    assert judge(row_cost=work / 10_000) == 4
    assert judge(row_cost=work / 9_999) == 5
    assert judge(row_cost=work) == 40
    assert judge(row_bytes=limit // 20_000) == 2
    assert judge(row_bytes=limit // 20_000, held=-1) == 2
    assert judge(row_cost=1e30, held=-1) == 1


def test_rows_of_the_log_density_are_as_many_as_are_affordable():
    for rows, expected in ((2000.0, 500), (400.0, 300), (120.0, 50)):
        assert thinning.density_rows(sized(2, 50, row_cost=5e10 / 100 / rows), 50) == expected


def test_the_report_uses_an_affordable_number_of_draws_and_rows():
    """2 chains of 1000 draws: 50 of each predict the rows eight times."""

    def make_page(rows: float, **more: Any) -> Any:
        result = sized(2, 1000, row_cost=5e10 / (8 * 100 * rows), **more)
        lighter = thinning.for_report(result)
        return None if lighter is result else lighter.how

    assert make_page(1e9, held=4000) is None
    assert make_page(1e9, held=6000) == (1, 5000)
    assert make_page(400, held=1000) == (20, 400)
    assert make_page(100, held=1000) == (20, 250)
    assert make_page(4000, held=1000) == (5, 1000)
    assert make_page(1e9, row_bytes=2**26 // 500, held=100) == (4, 100)
    assert make_page(1e9, row_bytes=2**26 // 500, held=-1) == (4,)
    assert make_page(1e9, held=-1) is None


def test_pieces_are_of_one_length_but_for_the_last():
    def lengths(most: int, count: int) -> list[int]:
        result = draws.draw_slices(np.zeros((most, 1), np.float32), count)
        assert [piece.start for piece in result] == [0, *(piece.stop for piece in result[:-1])][: len(result)]
        return [piece.stop - piece.start for piece in result]

    assert lengths(7, 7) == [7]
    assert lengths(3, 7) == [3, 3, 1]
    assert lengths(4, 9) == [3, 3, 3]
    assert lengths(1, 3) == [1, 1, 1]
    assert lengths(5, 0) == []


@pytest.mark.parametrize("numbers", [[3], [2, 5, 8], [0, 1, 2], [3, 2, 1], [1, 1, 1], [0, 2, 3], [], [4, 6]])
def test_numbers_that_are_a_slice_become_one(numbers):
    index = np.array(numbers, int)
    result = draws._as_slice(index)
    np.testing.assert_array_equal(np.arange(10)[result], index)
    assert isinstance(result, slice) == (numbers in ([3], [2, 5, 8], [0, 1, 2], [4, 6]))
