"""A tenth of the published fits of docs/uci10.md, repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from bnnzoo_bench import read_results
from bnnzoo_bench.methods import check_methods, parse_methods
from bnnzoo_bench.problems import find_problems
from bnnzoo_bench.verifying import verify_fits

from bnnzoo.errors import BnnzooError

ROOT = Path(__file__).parents[3]
RESULTS, TABLES = ROOT / "docs" / "results" / "uci10", ROOT.parent / "shared" / "data" / "uci10"


def _is_installed(method: str) -> bool:
    try:
        check_methods(parse_methods([method]))
    except BnnzooError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not TABLES.exists(), reason="the twenty tables are not on this machine")
def test_a_random_tenth_of_the_published_fits_has_the_same_scores():
    """Another tenth in each call; the message of a failure lists the fits and their scores."""
    lines = read_results(RESULTS)
    methods = [method for method in dict.fromkeys(line["method"] for line in lines) if _is_installed(method)]
    count = round(0.1 * sum(line["method"] in methods for line in lines))
    checks = verify_fits(lines, count, 0.05, problems=find_problems([TABLES]), methods=methods)
    assert len({check[:3] for check in checks}) == count
    assert all(check.agrees for check in checks), [check.cells() for check in checks if not check.agrees]
