"""Every documented combination and option is typed, by every entrance, from sampling to the report."""

from __future__ import annotations

import pytest
from rotation import rotating

from end_to_end import cases, entrances

pytestmark = pytest.mark.filterwarnings("ignore")

ONCE = list(enumerate(cases.single_cases()))


@pytest.mark.parametrize("numbered", rotating(ONCE, [f"{i}+{case.label}" for i, case in ONCE]))
def test_every_option_works_from_sampling_to_the_report(numbered, folder, capsys):
    number, case = numbered
    entrances.ENTRANCES[case.entrance](entrances.typed(case, number), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(cases.everything())))
def test_every_combination_format_and_start_works_from_sampling_to_the_report(number, folder, capsys):
    case = cases.all_of(number)
    entrances.ENTRANCES[case.entrance](entrances.typed(case, number), capsys)
