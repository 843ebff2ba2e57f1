"""Selection of the generated tests that run by default, and a working folder for each test."""

from __future__ import annotations

import pytest

from bnnzoo import registry
from end_to_end import rotation


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rotation.mark(items, config.getoption("markexpr"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield an empty working folder, with a newly read registry."""
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield tmp_path
    registry.reset()
