"""What every generated test needs: its share of the suite, the zoo alone, and a folder of its own."""

from __future__ import annotations

import pytest

from bnnzoo import registry
from end_to_end import rotation


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rotation.mark(items, config.getoption("markexpr"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with nothing but the zoo itself loaded."""
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield tmp_path
    registry.reset()
