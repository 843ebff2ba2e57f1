"""One run of a fleet, with everything that a remote process needs to start or resume it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bnnzoo.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """A recipe and the file of its run. Jobs are pickled between processes, never stored."""

    name: str
    recipe: Recipe
    out: Path
    """Absolute path, because a remote process has another working directory."""
    folder: Path
    """Folder that relative paths of data refer to, if the process can see it."""
    debug: bool = False
    packages: tuple[tuple[str, str], ...] = ()
    """Names and versions of bnnzoo and of other packages with parts of it, where the job was requested."""
    replaces: str = ""
    """Identity (`store.identity_of`) of the complete run that this one replaces."""
