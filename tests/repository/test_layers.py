"""Rules for imports that the contracts in pyproject.toml cannot express."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bnnzoo.plugins.builtin import bnnzoo_samplers

ROOT = Path(__file__).parents[2]
METHODS = sorted({entry.target.partition(":")[0] for entry in bnnzoo_samplers()})


def imported(module: str) -> set[str]:
    """Return the modules that a file imports from; `from package import module` counts as the module."""
    return imported_by(ROOT / f"{module.replace('.', '/')}.py")


def imported_by(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    results: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            results |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return results


@pytest.mark.parametrize("method", METHODS)
def test_no_sampler_imports_another(method):
    assert not imported(method) & (set(METHODS) - {method})


def test_every_sampler_file_has_an_entry():
    from bnnzoo import samplers

    for entry in bnnzoo_samplers():
        module, _, name = entry.target.partition(":")
        assert getattr(samplers, name).__module__ == module
    with pytest.raises(AttributeError, match="Nothing"):
        _ = samplers.Nothing


PLUGIN_FILES = sorted(ROOT.glob("plugins/bnnzoo-*/bnnzoo_*/*.py")) + sorted(ROOT.glob("plugins/bnnzoo-*/*.py"))


def test_plugins_import_no_private_name():
    assert len(PLUGIN_FILES) > 20
    for path in PLUGIN_FILES:
        names = {name for name in imported_by(path) if name.partition(".")[0] == "bnnzoo"}
        private = sorted(name for name in names if any(part.startswith("_") for part in name.split(".")))
        assert not private, path


def test_moved_classes_name_their_package(monkeypatch):
    import bnnzoo

    monkeypatch.setitem(sys.modules, "bnnzoo_minibatch_tests", SimpleNamespace(Confidence="the class"))
    monkeypatch.delitem(vars(bnnzoo), "Confidence", raising=False)
    assert bnnzoo.Confidence == "the class"
    monkeypatch.delitem(vars(bnnzoo), "Confidence")
    monkeypatch.setitem(sys.modules, "bnnzoo_minibatch_tests", None)
    with pytest.raises(AttributeError, match=r"bnnzoo\.Confidence is in the package bnnzoo-minibatch-tests: pip"):
        _ = bnnzoo.Confidence
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = bnnzoo.Nothing
