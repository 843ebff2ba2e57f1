"""Write the tables of docs/uci10.md and its sortable page from the stored results of `bnnzoo bench run`.

    bnnzoo bench run --problems UCI10 --methods default,gp,catboost,ngboost --folds 0-2 --budget 2m \\
        -o docs/results/uci10
    python benchmarks/uci10.py

UCI10 holds folders NAME/data.csv.gz (target last) and NAME/test_mask.csv.gz (column k marks the test rows of split k).
The first command adds missing fits to the results. The second command only reads the results, and takes a second.
"""

from __future__ import annotations

import re
from pathlib import Path

from bnnzoo_bench import read_results
from bnnzoo_bench.page import to_html, to_markdown, write
from bnnzoo_bench.tables import Heading, Part, sections

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "results" / "uci10", DOCS / "uci10.md"
_BLOCK = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Return the tables in Markdown: ranks by three metrics, and scores by problem for two of them."""
    lines = read_results(RESULTS)
    parts: list[Part] = []
    selection = {"nll": ("Mean ranks", "Verdicts", "NLL by"), "crps": ("Mean ranks",), "rmse": ("RMSE by",)}
    for metric, headings in selection.items():
        parts += _under_headings(sections(lines, metric), headings)
    return to_markdown(parts)


def _under_headings(parts: list[Part], headings: tuple[str, ...]) -> list[Part]:
    """Return the sections whose heading begins with one of the given words."""
    selected: list[Part] = []
    is_selected = False
    for part in parts:
        if isinstance(part, Heading):
            is_selected = part.text.startswith(headings)
        if is_selected:
            selected.append(part)
    return selected


def with_tables(page: str) -> str:
    """Return the text of the page with the current tables."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{tables()}\n\n{block[2]}", page)


def sortable_page() -> str:
    """Return the HTML of `bnnzoo bench table --metric nll`."""
    return to_html(sections(read_results(RESULTS), "nll"))


def main() -> None:
    """Replace the tables of the page and the sortable page."""
    write(RESULTS / "table.html", sortable_page())
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
