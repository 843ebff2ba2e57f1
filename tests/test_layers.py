"""What the import contracts of pyproject.toml cannot say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bnnzoo.plugin import bnnzoo_samplers

ROOT = Path(__file__).parent.parent
METHODS = sorted({entry.target.partition(":")[0] for entry in bnnzoo_samplers()})


def imported(module: str) -> set[str]:
    """The modules that a module's file imports from, `from package import module` spelt out."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_method_knows_no_other_method(method):
    assert not imported(method) & (set(METHODS) - {method})


def test_every_method_is_found_by_its_entry():
    from bnnzoo import samplers

    for entry in bnnzoo_samplers():
        module, _, name = entry.target.partition(":")
        assert getattr(samplers, name).__module__ == module
    with pytest.raises(AttributeError, match="Nothing"):
        _ = samplers.Nothing
