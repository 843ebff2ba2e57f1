"""`bnnzoo zoo`: what can be run, and one table of what it gave."""

from __future__ import annotations

import json

import pytest

from bnnzoo import cli, config
from bnnzoo.cli.zoo import runnable


def test_the_list_has_the_shipped_recipes_that_name_all_they_need(capsys):
    assert cli.run(["zoo", "--json"]) == 0
    listed = {row["recipe"] for row in json.loads(capsys.readouterr().out)}
    assert {"airfoil-hmc", "mdn.penalty", "tutorial"} <= listed
    assert not listed & {"mlp", "hmc", "tempered"}
    assert listed <= set(config.shipped_names())


def test_a_pair_without_a_file_can_be_run_too():
    assert "mdn.hmc" not in config.shipped_names()
    assert "mdn.hmc" in runnable()


@pytest.mark.parametrize(
    ("words", "said"), [(["zzz-*"], "no recipe 'zzz-*'"), (["hmc"], "no recipe 'hmc'"), (["linear.zzz"], "linear.zzz")]
)
def test_what_cannot_be_run_is_refused(words, said, capsys):
    assert cli.run(["zoo", "run", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_of_two_where_one_fails(tmp_path, capsys):
    """Each in a process of its own; the other's row is there, and the exit code says that not all went well."""
    words = ["zoo", "run", "linear.ensemble", "airfoil-ensemble", "-o", str(tmp_path), "--quiet"]
    assert cli.run([*words, "--json"]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 recipes failed: airfoil-ensemble" in captured.err
    good, bad = json.loads(captured.out)
    assert (good["recipe"], good["sampler"], bad["recipe"]) == ("linear.ensemble", "ensemble", "airfoil-ensemble")
    assert good["nll"] > 0
    assert good["seconds"] > good["seconds_warmup"] > 0
    assert "exit code 2" in bad["error"]
    assert (tmp_path / "linear.ensemble.nc").exists()
    assert cli.run(words) == 2
    assert "linear.ensemble.nc: exists" in capsys.readouterr().err
