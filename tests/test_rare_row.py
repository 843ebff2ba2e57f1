"""A row that decides a weight, by the public road: uniform batches that do not see it are refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import bnnzoo
from bnnzoo import cli

pytestmark = pytest.mark.slow

ROWS, CHAINS = 20_000, 16


def test_uniform_batches_that_miss_a_row_are_refused(tmp_path):
    """Five ordinary features and one that is 1 in a single row: the variance of its weight would be twice too large."""
    rng = np.random.default_rng(7)
    x = np.column_stack([rng.normal(size=(ROWS, 5)), np.zeros(ROWS)]).astype(np.float32)
    x[123, 5] = 1.0
    y = (x @ [0.5, -0.3, 0.2, 0.1, -0.4, 1.0] + rng.normal(size=ROWS)).astype(np.float32)
    path, out = tmp_path / "rows.csv", tmp_path / "run.nc"
    pd.DataFrame(np.column_stack([x, y]), columns=[*"abcdef", "y"]).to_csv(path, index=False)
    words = ["sample", "linear", "penalty", "--data", str(path), "-o", str(out), "--quiet", "--chains", str(CHAINS)]
    words += ["--likelihood", "gaussian", "--likelihood.scale", "1", "--no-standardise", "--test-fraction", "0"]
    assert cli.run([*words, "--sampler.batch-size", "50", "--sampler.num-batches", "2"]) == 0
    run = bnnzoo.open(out)
    assert run.attributes["regime_ok"] == 0
    assert "unseen" in {finding["kind"] for finding in json.loads(run.attributes["findings"])}
    assert "--sampler.sampling importance" in run.attributes["regime"]
