"""One run of a fleet: what a process elsewhere must know to make it, or to go on with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bnnzoo.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """A recipe and the file that its run goes to. It is pickled, never written to a file."""

    name: str
    recipe: Recipe
    out: Path
    """Absolute: a process elsewhere has another working directory."""
    folder: Path
    """Where paths of data begin, wherever that folder is seen."""
    debug: bool = False
    packages: tuple[tuple[str, str], ...] = ()
    """bnnzoo, and what else offers a part of it, with their versions where the job was asked for."""
    replaces: str = ""
    """The complete run whose place it takes, as `store.identity_of` told it."""
