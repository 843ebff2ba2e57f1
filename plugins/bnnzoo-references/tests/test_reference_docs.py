"""The commands of docs/references.md work, and its table is that of the files."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from bnnzoo_references import PROBLEMS

from bnnzoo import cli

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_work_in_their_order(capsys):
    commands = re.findall(r"^ {4}(bnnzoo .*)$", PAGE, re.MULTILINE)
    # The plugin bnnzoo-bench and its tests type the commands of the benchmark.
    own = [command for command in commands if not command.startswith("bnnzoo bench ")]
    assert len(own) == 3
    for command in own:
        lengths = " --warmup 1000 --draws 50 -q" if " sample " in command else ""
        assert cli.run(shlex.split(command + lengths)[1:]) == 0, command
    assert "total_variation" in capsys.readouterr().out


def test_the_table_of_the_page_is_that_of_the_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "plugins" / "bnnzoo-references" / "references"))
    import table

    for name in PROBLEMS:
        cells = r" +\| +".join(re.escape(cell) for cell in table.row(name))
        assert re.search(rf"^\| {cells} +\|$", PAGE, re.MULTILINE), name
    del sys.modules["table"]
