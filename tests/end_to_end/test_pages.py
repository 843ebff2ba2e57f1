"""Every command block and Python block of README and docs is typed, in the order of the page."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from rotation import rotating

from end_to_end import changes, pages

pytestmark = pytest.mark.filterwarnings("ignore")

UNITS = pages.units()


@pytest.mark.parametrize("unit", rotating(UNITS, [unit.name.replace(" ", "-") for unit in UNITS]))
def test_the_blocks_of_the_page_work_one_after_the_other(unit, folder, monkeypatch, capfd):
    if unit.plugin and find_spec(unit.plugin.replace("-", "_")) is None:
        pytest.skip(f"{unit.plugin} is not installed")
    pages.Reader(unit, monkeypatch, capfd).type_all()


def test_every_line_that_is_not_typed_as_it_stands_is_in_the_documentation():
    lines = set()
    for page in pages.PAGES:
        for block in pages.blocks(page):
            lines |= {(block.page, line) for line in block.lines}
            lines.add((block.page, block.text.strip().splitlines()[0]))
    assert set(changes.NOT_TYPED) | set(changes.INSTEAD) <= lines
    assert {*changes.ELSEWHERE, *changes.FULL_LENGTH, *changes.LONGER} <= {page for page, _ in lines}


@pytest.mark.parametrize(
    "text",
    [
        "bnnzoo sample mlp nuts -o made.nc",
        'run = bnnzoo.sample("mlp", "nuts", out="made.nc")',
        "bnnzoo list > made.csv",
    ],
)
def test_files_that_a_block_writes_are_not_made_beforehand(text, folder):
    changes.prepare("README.md", text)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("table", [changes.SHORTER, changes.CODES], ids=["shorter", "codes"])
def test_every_changed_command_is_in_the_documentation(table):
    typed = [
        line.split()[1:]
        for page in pages.PAGES
        for b in pages.blocks(page)
        for line in b.lines
        if b.language != "python"
    ]
    for start in table:
        assert any(tuple(arguments[: len(start)]) == start for arguments in typed), start
