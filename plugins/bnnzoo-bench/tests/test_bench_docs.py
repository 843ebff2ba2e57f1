"""The commands and the class of docs/bench.md work in their order. `default` takes too long here."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

from bnnzoo_bench import read_results
from bnnzoo_bench.scores import METRICS
from conftest import make_table

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")


def test_the_tables_of_uci10_are_those_of_the_stored_results():
    script = runpy.run_path(str(ROOT / "benchmarks" / "uci10.py"))
    page = script["PAGE"].read_text(encoding="utf-8")
    assert "| airfoil | 1353 |" in page
    assert script["with_tables"](page) == page
    assert script["with_tables"](page.replace("| airfoil | 1353 |", "| airfoil | 1354 |")) == page
    assert script["sortable_page"]() == (script["RESULTS"] / "table.html").read_text(encoding="utf-8")
    lines = read_results(script["RESULTS"])
    assert {line["source"] for line in lines} == {f"UCI10/{line['problem']}" for line in lines}  # no machine's folder


def test_the_page_works_in_its_order(call, tmp_path):
    make_table(tmp_path / "houses.csv", rows=60)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "neighbours.py").write_text(block)
    commands = re.findall(r"^ {4}(bnnzoo bench .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command.replace("default,linear,gp", "mean,linear").replace("0-2", "0-1"))
        assert call(*words[2:]) == 0, command
    assert {line["method"] for line in read_results("bench")} == {"mean", "linear", "neighbours:Neighbours"}


def test_the_page_names_every_key_metric_and_option(call, tmp_path, capsys):
    make_table(tmp_path / "houses.csv")
    assert call("run", "--problems", "houses.csv", "--methods", "mean", "--folds", "0", "-o", "out", "-q") == 0
    (line,) = read_results("out")
    for name in (*line, *METRICS, "--target", "--seed", "--budget", "--retry-failed", "--metric", "--reference"):
        assert f"`{name}" in PAGE, name
