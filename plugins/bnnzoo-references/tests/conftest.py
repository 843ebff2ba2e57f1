"""This plugin alone, in an empty folder, for every test."""

from __future__ import annotations

import pytest

from bnnzoo.plugins import registry


@pytest.fixture(autouse=True)
def _plugins(monkeypatch, tmp_path):
    """Load this plugin alone, and work in an empty folder; child processes do the same."""
    monkeypatch.setenv("BNNZOO_PLUGINS", "bnnzoo-references")
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield
    registry.reset()
