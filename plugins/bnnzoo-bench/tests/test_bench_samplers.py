"""Samplers of bnnzoo and of its plugins in a benchmark."""

from __future__ import annotations

from bnnzoo_bench import read_results
from conftest import make_table


def test_a_sampler_of_a_plugin_takes_part_and_its_recipe_repeats_it(call, tmp_path, capsys):
    make_table(tmp_path / "t.csv")
    assert call("run", "--problems", "t.csv", "--methods", "linear:rwm-example", "--folds", "0", "--budget", "1s",
                "-o", "out", "--quiet") == 0  # fmt: skip
    (line,) = read_results("out")
    assert line["status"] == "done", line["reason"]
    assert "rwm-example" in line["recipe"]
    assert {"jax", "bnnzoo-rwm-example"} <= set(line["versions"])
    assert line["gradients"] > 0
    assert line["verdict"]
    assert call("verify", "out", "--rows", 1, "--tolerance", 1e-6) == 0
    assert "NO" not in capsys.readouterr().out
