"""A working folder for each test."""

from __future__ import annotations

import pytest

from bnnzoo.plugins import registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield an empty working folder, with a newly read registry."""
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield tmp_path
    registry.reset()
