"""Files of entries that are read and not imported: recipes and references."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from bnnzoo.errors import UsageError
from bnnzoo.plugins import builtin
from bnnzoo.plugins.discovery import OWN, RECIPES, Registered, singular

_NAME = re.compile(r"([\w.-]{1,64}:)?[\w-]{1,64}")


def is_reference_name(text: str) -> bool:
    """Whether a text is the name of a reference: it has the form of a name, and no file has this path."""
    return bool(_NAME.fullmatch(text)) and not Path(text).exists()


def file_of(entry: Registered) -> Path:
    """Return the path of a recipe or of a reference.

    Raises:
        UsageError: if the file does not exist.
    """
    package, _, path = entry.target.partition(":")
    if entry.distribution == OWN:
        return builtin.RECIPES / path
    # `find_spec` locates a top-level package without importing it. If a plugin is a single module and not a folder, its
    # files are beside the module.
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    folder = folders[0] if folders else str(Path(spec.origin).parent) if spec and spec.origin else ""
    if not folder or not Path(folder, path).is_file():
        kind = "recipe" if entry.kind == RECIPES else singular(entry.kind)
        raise UsageError(f"{kind} {entry.full_name} ({entry.target}): no such file; declared at {entry.declared}")
    return Path(folder, path)
