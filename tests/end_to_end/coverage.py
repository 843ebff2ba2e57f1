"""The table of docs/reliability.md: how many values of each option the generated cases type, without plugins.

python -m end_to_end.coverage          (in the folder tests; writes the table)
"""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bnnzoo.plugins import registry
from end_to_end import cases, changes, pages, tables, values

PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
_TABLE = re.compile(r"(<!-- options typed end to end -->\n).*?(<!-- end -->)", re.DOTALL)
_PARTS = {
    "model": "`MODEL`",
    "sampler": "`SAMPLER`",
    "likelihood": "`--likelihood`",
    "prior": "`--prior`",
}


def table() -> str:
    """Return the table in Markdown: options of a run by name, fields of parts by part."""
    documented = values.documented()
    used = {(name, str(value)) for case in cases.single_cases() for name, value in case.used()}
    fields: dict[str, list[str]] = defaultdict(list)
    for name in documented:
        fields[name.partition(".")[0] if "." in name else name].append(name)
    rows = ["| option | values in the list | values used by a case |", "|---|---|---|"]
    for group, names in fields.items():
        pairs = [(name, str(value)) for name in names for value in documented[name]]
        num_used = sum(pair in used for pair in pairs)
        count = "all" if num_used == len(pairs) else num_used
        share = count if pairs else "other tests"
        kind, _, part = group.partition(" ")
        label = f"fields of {kind} `{part}`" if part else _PARTS.get(kind) or f"`--{group.replace('_', '-')}`"
        rows.append(f"| {label} | {len(pairs)} | {share} |")
    return "\n".join([_words(), "", *rows, ""])


def _words() -> str:
    """Return a paragraph on the size of the suite."""
    blocks = [block for unit in pages.units() for block in unit.blocks]
    lines = sum(len(block.lines) for block in blocks if block.language in ("sh", "console"))
    python = sum(block.language == "python" for block in blocks)
    unlisted = len(changes.NOT_TYPED)
    formats = {kind for images in (False, True) for kind in tables.formats("", images=images)}
    phrases = (
        "For each option, the tests use a list of values. If the option has a fixed set of values, the list has all "
        "of them; otherwise it has one or a few numbers or texts. "
        f"There are {len(cases.single_cases())} generated cases, each from `sample` to the report. Together they use "
        "every value in the lists at least once, but not with every model and sampler. Each commit runs about two "
        "of these cases, so that forty commits in a row run all. "
        f"The option `-m slow` adds {len(cases.everything())} cases: every possible combination of model, likelihood, "
        f"task, file format ({len(formats)} formats) and initial positions (`--init map` or `prior`). Their other "
        "options are random. "
        f"The tests also run {lines} commands and {python} Python blocks of README, these pages and the pages of the "
        f"plugins. They run them in the order of each page, with short chains. {unlisted} lines are not run; "
        "`tests/end_to_end/changes.py` gives the reason for each."
    )
    return textwrap.fill(phrases, 118, break_long_words=False, break_on_hyphens=False)


def written(page: str) -> str:
    """Return the page with the current table."""
    with _zoo_alone():
        return _TABLE.sub(lambda result: f"{result[1]}{table()}{result[2]}", page)


@contextlib.contextmanager
def _zoo_alone() -> Iterator[None]:
    """Load the zoo without plugins, so that the table does not depend on the installed packages."""
    before = os.environ.get("BNNZOO_PLUGINS")
    os.environ["BNNZOO_PLUGINS"] = "bnnzoo"
    _forget()
    try:
        yield
    finally:
        del os.environ["BNNZOO_PLUGINS"]
        if before is not None:
            os.environ["BNNZOO_PLUGINS"] = before
        _forget()


def _forget() -> None:
    """Clear the caches of the registry and of everything derived from it."""
    registry.reset()
    of_cases = (cases.combinations, cases.dimensions, cases.single_cases, cases.everything)
    for expected in (values.run_values, values.part_values, *of_cases):
        expected.cache_clear()


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
