"""This plugin and the example sampler, and small tables, for every test."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bnnzoo import cli
from bnnzoo.plugins import registry

Call = Callable[..., int]


@pytest.fixture(autouse=True)
def _plugins(monkeypatch, tmp_path):
    """Load this plugin and the example sampler, and work in an empty folder; child processes do the same."""
    monkeypatch.setenv("BNNZOO_PLUGINS", "bnnzoo-bench,bnnzoo-rwm-example")
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield
    registry.reset()


@pytest.fixture
def call() -> Call:
    """Run `bnnzoo bench` in this process and return its exit code."""
    return lambda *words: cli.run(["bench", *map(str, words)])


def make_table(path: Path, rows: int = 40, seed: int = 0) -> Path:
    """Write a CSV file whose last column is linear in the others, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    table = np.column_stack([x, x @ [1.0, -2.0] + 0.3 * rng.normal(size=rows)])
    np.savetxt(path, table, delimiter=",", header="a,b,y", comments="")
    return path


def make_folder(path: Path, table: Any, mask: Any) -> Path:
    """Write a problem folder."""
    path.mkdir(parents=True)
    for name, values in (("data", table), ("test_mask", mask)):
        with gzip.open(path / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, values, delimiter=",")
    return path
