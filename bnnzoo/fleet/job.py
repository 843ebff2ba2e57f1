"""One run of a fleet, with all information that a remote process needs to start or resume it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bnnzoo.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """A recipe, and the file to write. Jobs are sent to other processes as pickles, but never stored."""

    name: str
    recipe: Recipe
    out: Path
    """Absolute path, because a remote process has another working directory."""
    folder: Path
    """Folder for relative paths of data. A machine without this folder uses the folder of `out`."""
    debug: bool = False
    packages: tuple[tuple[str, str], ...] = ()
    """Name and version of bnnzoo and of each plugin that the recipe uses, on the machine of the main command."""
    replaces: str = ""
    """Identity (`store.identity_of`) of the complete run that this job replaces; empty if there is none."""
