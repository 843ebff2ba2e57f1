"""The recipes that the zoo and its plugins ship, by name."""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path

from bnnzoo import plugin, registry
from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError


def shipped(name: str) -> Path | None:
    """The file of a recipe that the zoo or a plugin ships, or None."""
    entry = registry.get(registry.RECIPES, name)
    return _file(entry) if entry else None


def recipes_of(model: str, sampler: str) -> list[Path]:
    """The recipes shipped for a model, a sampler and the pair of them, the weakest first.

    They are of the distribution that offers the part, those of a pair also of the zoo: a stranger's recipe that bears
    the name of somebody's part changes no run but one that asks for it.
    """
    parts = [entry for entry in (offered("models", model), offered("samplers", sampler)) if entry]
    owners = [(entry.name, [entry.distribution]) for entry in parts]
    if len(parts) == 2:
        owners.append((".".join(e.name for e in parts), [registry.OWN, *(e.distribution for e in parts)]))
    found = [[registry.get(registry.RECIPES, f"{owner}:{stem}") for owner in own] for stem, own in owners]
    return [_file(next(filter(None, entries))) for entries in found if any(entries)]


def offered(kind: str, name: str) -> registry.Registered | None:
    """The entry of that name; None where nobody offers it or several do, which is said where the part is used."""
    try:
        return registry.get(kind, name)
    except NotFoundError:
        return None


def shipped_names() -> dict[str, str]:
    """The recipes that are shipped, each with its summary: its plugin's, or its first comment line.

    One that cannot be read is a warning, and left out.
    """
    found = registry.entries(registry.RECIPES)
    summaries: dict[str, str] = {}
    for name in sorted(found):
        try:
            summaries[name] = found[name].summary or _first_comment(_file(found[name]))
        except (UsageError, OSError, ValueError) as error:
            warn_of(name, error)
    return summaries


def warn_of(name: str, error: Exception) -> None:
    """Say that a recipe cannot be used, where others can."""
    warnings.warn(f"recipe {name}: {' '.join(str(error).split())}", BnnzooWarning, stacklevel=2)


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
