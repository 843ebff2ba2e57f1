"""The suite uses every documented value of every option, and the table in the documentation is current."""

from __future__ import annotations

import pytest
import rotation

from bnnzoo.data.loading.sources import READERS
from end_to_end import cases, coverage, tables


def test_every_value_of_every_option_is_given():
    """An option of free text needs a line in `values.FREE`; one that requires others, a line in `rules.RULES`."""
    assert cases.missing(cases.single_cases()) == []


def test_every_combination_format_and_entrance_is_in_a_turn():
    generated = cases.single_cases()
    assert {case.combination for case in generated} == set(cases.combinations())
    formats = {kind for images in (False, True) for kind in tables.formats("", images=images)}
    assert {case.kind for case in generated} == formats
    assert {case.entrance for case in generated} == set(cases.ENTRANCES)
    assert set(tables.WRITERS) == set(READERS) - {".npy"}


def test_every_combination_format_and_start_has_a_case():
    for number, (combination, kind, init) in enumerate(cases.everything()):
        case = cases.all_of(number)
        assert (case.combination, case.kind, case.options["init"]) == (combination, kind, init)


@pytest.mark.parametrize("position", [0, 7, 123])
def test_ten_commits_in_a_row_run_everything_once(position):
    runs = [
        number for turn in range(rotation.TURN) for number in range(35) if rotation.runs_at(number, position + turn)
    ]
    assert sorted(runs) == list(range(35))


def test_the_table_of_the_documentation_is_that_of_today():
    page = coverage.PAGE.read_text(encoding="utf-8")
    assert "<!-- options typed end to end -->" in page
    assert coverage.written(page) == page, "run: cd tests && python -m end_to_end.coverage"
