"""The table of docs/reliability.md: how many values of each option the generated suite types end to end.

python -m end_to_end.coverage          (in the folder tests; writes the table)
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from pathlib import Path

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
    """The table in Markdown: options of a run by name, fields of parts by the part."""
    documented = values.documented()
    seen = {(name, str(value)) for case in cases.once() for name, value in case.used()}
    fields: dict[str, list[str]] = defaultdict(list)
    for name in documented:
        fields[name.partition(".")[0] if "." in name else name].append(name)
    rows = ["| option | values | typed |", "|---|---|---|"]
    for group, names in fields.items():
        pairs = [(name, str(value)) for name in names for value in documented[name]]
        typed = sum(pair in seen for pair in pairs)
        kind, _, part = group.partition(" ")
        label = f"fields of {kind} `{part}`" if part else _PARTS.get(kind) or f"`--{group.replace('_', '-')}`"
        rows.append(f"| {label} | {len(pairs)} | {'all' if typed == len(pairs) else typed} |")
    return "\n".join([_words(), "", *rows, ""])


def _words() -> str:
    """What the suite consists of."""
    blocks = [block for unit in pages.units() for block in unit.blocks]
    lines = sum(len(block.lines) for block in blocks if block.language in ("sh", "console"))
    python = sum(block.language == "python" for block in blocks)
    left = len(changes.NOT_TYPED)
    formats = {kind for images in (False, True) for kind in tables.formats("", images=images)}
    words = (
        f"{len(cases.once())} generated cases give each value at least once, a tenth of them with each commit; with "
        f"`-m slow`, {len(cases.everything())} more are every model, likelihood, task, format (of {len(formats)}) "
        "and start. "
        f"{lines} commands and {python} Python blocks of README and these pages are typed in their order; "
        f"{left} lines are not, each with its reason in `tests/end_to_end/changes.py`."
    )
    return textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False)


def written(page: str) -> str:
    """The page with the table of today."""
    return _TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
