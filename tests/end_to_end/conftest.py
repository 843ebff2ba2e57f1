"""The share of the generated tests that runs by default, and a working folder for each test."""

from __future__ import annotations

import pytest

from bnnzoo import registry
from end_to_end import rotation


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rotation.mark(items, config.getoption("markexpr"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and the registry read anew."""
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield tmp_path
    registry.reset()
