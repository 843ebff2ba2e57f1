"""Named recipe files that bnnzoo and its plugins ship."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.plugins.entry_files import file_of


def shipped(name: str) -> Path | None:
    """Return the file of the shipped recipe with this name, or None if there is no such recipe."""
    entry = registry.get(registry.RECIPES, name)
    return file_of(entry) if entry else None


def recipes_of(model: str, sampler: str) -> list[Path]:
    """Return the files of the recipes for a model, a sampler, and both together, in order of increasing precedence.

    The recipe for a model or for a sampler must come from the package that offers this model or sampler. The recipe for
    both together must come from the package of the model, from the package of the sampler, or from bnnzoo. Other
    recipes of plugins are used only if the user names them.
    """
    parts = [entry for entry in (find_entry("models", model), find_entry("samplers", sampler)) if entry]
    stems = [(entry.name, [entry.distribution]) for entry in parts]
    if len(parts) == 2:
        stems.append(
            (
                ".".join(entry_found.name for entry_found in parts),
                [registry.OWN, *(entry_found.distribution for entry_found in parts)],
            )
        )
    candidates = [
        [registry.get(registry.RECIPES, f"{package}:{stem}") for package in packages] for stem, packages in stems
    ]
    return [file_of(next(filter(None, entries))) for entries in candidates if any(entries)]


def find_entry(kind: str, name: str) -> registry.Registered | None:
    """Return the registered part with this name, or None if the name is unknown or ambiguous.

    No error is raised for an ambiguous name here, but later, when the part is used.
    """
    try:
        return registry.get(kind, name)
    except NotFoundError:
        return None


def shipped_names() -> dict[str, str]:
    """Return the names and the summaries of all shipped recipes.

    A plugin can register a summary of its recipe. Otherwise the summary is the first comment of the recipe file. A
    recipe that cannot be read is left out, with a warning.
    """
    entries_by_name = registry.entries(registry.RECIPES)
    summaries: dict[str, str] = {}
    for name in sorted(entries_by_name):
        try:
            summaries[name] = entries_by_name[name].summary or _first_comment(file_of(entries_by_name[name]))
        except (UsageError, OSError, ValueError) as error:
            warn_of(name, error)
    return summaries


def warn_of(name: str, error: Exception) -> None:
    """Warn that a shipped recipe cannot be used."""
    warnings.warn(f"recipe {name}: {' '.join(str(error).split())}", BnnzooWarning, stacklevel=2)


def _first_comment(path: Path) -> str:
    match = re.search(r"^#\s*(.*\S)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""
