"""The observer of docs/plugins.md, installed and used in a run."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import fake_plugins
import pytest

from bnnzoo import cli

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.long
def test_the_observer_of_the_page_works(site, tmp_path, capsys, monkeypatch):
    section = PAGE[PAGE.index("## A log\n") : PAGE.index("## Contents of a plugin")]
    files = dict(re.findall(r"`bnnzoo-alarm/([\w/.]+)`:\n\n```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    assert list(files) == ["pyproject.toml", "bnnzoo_alarm/__init__.py", "bnnzoo_alarm/alarm.py"]
    project = tomllib.loads(files["pyproject.toml"])["project"]
    fake_plugins.install(site, project["name"], "")
    (site / "bnnzoo_alarm.py").unlink()
    (site / "bnnzoo_alarm").mkdir()
    for name in list(files)[1:]:
        (site / name).write_text(files[name])
    (point,) = project["entry-points"]["bnnzoo"].items()
    (next(site.glob("*.dist-info")) / "entry_points.txt").write_text("[bnnzoo]\n{} = {}\n".format(*point))

    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^bnnzoo (sample .*)$", section, re.MULTILINE)
    quick = "--data linear-line --warmup 0 --draws 10 --init prior --seed 1 --sampler.step-size 10 --quiet"
    assert cli.run([*command.split(), *quick.split()]) == 0
    assert re.search(r"^alarm: acceptance 0\.\d\d after \d+ steps$", capsys.readouterr().err, re.MULTILINE)
    assert cli.run(["sample", "linear", "random-walk", "--log-to", "alarm:low", "--quiet", "--force"]) == 2
    expected = "bnnzoo: --log-to: alarm:low: expected a rate, such as alarm:0.1 (got 'low')\n"
    assert capsys.readouterr().err == expected
    for name in [name for name in sys.modules if name.startswith("bnnzoo_alarm")]:
        monkeypatch.delitem(sys.modules, name)
