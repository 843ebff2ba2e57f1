"""The fields of parts as options. They are cached as text, because reading them from the class imports JAX."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from bnnzoo.cli.options import OptionText, option_text
from bnnzoo.plugins import registry
from bnnzoo.recipe import fields_of


class PartOptions(NamedTuple):
    """The options of a part and, for a model, the default likelihood of each task.

    `brings_likelihood` is true for a model that has its own likelihood.
    """

    options: list[OptionText]
    likelihoods: dict[str, str]
    brings_likelihood: bool


def part_options(kind: str, name: str) -> PartOptions:
    """Return the options of a part, from the cache if its code is unchanged.

    Raises:
        NotFoundError: if no installed part has the name, or if parts of several packages have it.
        UsageError: if the module of the part cannot be imported.
    """
    entry = registry.find(f"{kind}s", name)
    file = platformdirs.user_cache_path("bnnzoo") / "options" / f"{_fingerprint(kind, entry)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        cached = json.loads(file.read_text(encoding="utf-8"))
        return PartOptions(**{**cached, "options": [OptionText(*option) for option in cached["options"]]})
    options = _read(kind, registry.load(f"{kind}s", name))
    with suppress(OSError):  # the cache is optional
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(options._asdict()), encoding="utf-8")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    return options


def _read(kind: str, cls: Any) -> PartOptions:
    likelihoods: dict[str, str] = {}
    for task in ("regression", "classification"):
        with suppress(AttributeError, ValueError):
            likelihoods[task] = str(cls.default_likelihood(task))
    options = [option_text(spec, prefix=kind) for spec in fields_of(cls)]
    return PartOptions(options, likelihoods, bool(getattr(cls, "brings_likelihood", False)))


def _fingerprint(kind: str, entry: registry.Registered) -> str:
    """Return a hash of all files of bnnzoo and of the part's package, because a class may inherit fields from them."""
    digest = hashlib.sha256(repr((kind, entry, sys.version)).encode())
    for package in dict.fromkeys(["bnnzoo", entry.target.partition(":")[0].partition(".")[0]]):
        for path, state in sorted(_files(package)):
            digest.update(f"{path} {state.st_mtime_ns} {state.st_size}".encode())
    return digest.hexdigest()


def _files(package: str) -> Iterator[tuple[str, os.stat_result]]:
    spec = find_spec(package)
    if spec and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            yield from ((str(path), path.stat()) for path in Path(folder).rglob("*.py"))
    elif spec and spec.origin:
        yield spec.origin, Path(spec.origin).stat()
