"""The recipes that the zoo and its plugins ship, by name."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from bnnzoo import plugin, registry
from bnnzoo.errors import UsageError


def shipped(name: str) -> Path | None:
    """The file of a recipe that the zoo or a plugin ships, or None."""
    entry = registry.get(registry.RECIPES, name)
    return _file(entry) if entry else None


def shipped_names() -> dict[str, str]:
    """The recipes that are shipped, each with its summary: its plugin's, or its first comment line."""
    found = registry.entries(registry.RECIPES)
    return {name: found[name].summary or _first_comment(_file(found[name])) for name in sorted(found)}


def _file(entry: registry.Registered) -> Path:
    package, _, path = entry.target.partition(":")
    if entry.distribution == registry.OWN:
        return plugin.RECIPES / path
    # A top-level name is found without importing it; a plugin of one module has no folder of its own.
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    folder = folders[0] if folders else str(Path(spec.origin).parent) if spec and spec.origin else ""
    if not folder or not Path(folder, path).is_file():
        raise UsageError(f"recipe {entry.full_name} ({entry.target}): no such file; declared at {entry.declared}")
    return Path(folder, path)


def _first_comment(path: Path) -> str:
    match = re.search(r"^#\s*(.*\S)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""
