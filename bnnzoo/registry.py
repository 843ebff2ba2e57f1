"""Lookup of zoo and plugin entries by name. An entry is imported when it is used."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import warnings
from pathlib import Path
from typing import Any

from bnnzoo.discovery import (
    COMMANDS,
    EXACTNESS,
    KINDS,
    OWN,
    RECIPES,
    Loaded,
    Plugin,
    PluginError,
    Registered,
    canonical,
    checked_name,
    is_of_keyboard,
    loaded,
    one_line,
    place,
    quiet_stdout,
    report,
    singular,
)
from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError
from bnnzoo.near import near_names
from bnnzoo.plugin import ELSEWHERE

__all__ = [
    "COMMANDS",
    "ELSEWHERE",
    "EXACTNESS",
    "KINDS",
    "OWN",
    "RECIPES",
    "Plugin",
    "PluginError",
    "Registered",
    "canonical",
    "changed",
    "checked_name",
    "described",
    "entries",
    "failures",
    "find",
    "full_name",
    "get",
    "in_use",
    "load",
    "not_found",
    "plugins",
    "reset",
    "singular",
    "source_sha256",
]

_BASES = {
    "models": ("bnnzoo.models", "AbstractModel"),
    "samplers": ("bnnzoo.samplers", "AbstractSampler"),
    "likelihoods": ("bnnzoo.posterior.likelihoods", "AbstractLikelihood"),
    "priors": ("bnnzoo.posterior.priors", "AbstractPrior"),
}
"""The base class of each kind as text, so that nothing is imported before it is used."""
_in_use: list[Registered] = []


def entries(kind: str) -> dict[str, Registered]:
    """Return all entries of a kind by name. The key is `distribution:name` if the bare name is taken."""
    found: dict[str, Registered] = {}
    for name, candidates in _by_name(kind).items():
        chosen = _choose(candidates)
        for entry in candidates:
            found[name if entry is chosen else entry.full_name] = entry
    return found


def find(kind: str, name: str) -> Registered:
    """Return the entry with this name.

    Raises:
        NotFoundError: if the name is unknown (the message lists near names, or all names), or if two plugins offer it.
    """
    found = get(kind, name)
    if found is None:
        raise NotFoundError(not_found(kind, name))
    return found


def full_name(kind: str, name: str) -> str:
    """Return the name that a file stores for a part. The name of a plugin's part includes the package that offers it.

    Raises:
        NotFoundError: if two plugins offer the name.
    """
    found = get(kind, name)
    return name if found is None or found.distribution == OWN else found.full_name


def source_sha256(kind: str, name: str) -> str:
    """Return the SHA-256 of the part's module, or "" if it is unknown.

    It detects an edited plugin whose version number did not change.
    """
    found = get(kind, name)
    try:
        spec = importlib.util.find_spec(found.target.partition(":")[0]) if found else None
        return hashlib.sha256(Path(str(spec.origin)).read_bytes()).hexdigest() if spec else ""
    except Exception:  # find_spec imports the package of the module, which can raise anything
        return ""


def changed(made_with: str, sources: str) -> list[str]:
    """List the differences between a run's plugins and the plugins that are installed now.

    Args:
        made_with: the file's attribute `plugins`, a JSON object with the version of each distribution.
        sources: the file's attribute `plugin_sources`, a JSON object with the SHA-256 of each part.

    Returns:
        One phrase for each changed version and each changed source.
    """
    now = {plugin.distribution: plugin.version for plugin in plugins()}
    then = {canonical(name): version for name, version in json.loads(made_with).items()}
    found = [
        f"{name} was {version}, is {now[name]}"
        for name, version in then.items()
        if name in now and now[name] not in version.split(", ")  # joined runs have several versions
    ]
    for part, sha256 in json.loads(sources).items():
        kind, _, name = part.partition("/")
        if kind in KINDS and source_sha256(kind, name) not in ("", *sha256.split(", ")):
            found.append(f"the source of {singular(kind)} {name} was changed")
    return found


def get(kind: str, name: str) -> Registered | None:
    """Return the entry with this name, or None if the name is unknown.

    Raises:
        NotFoundError: if two plugins offer the name; the message lists both.
    """
    distribution, _, bare = name.casefold().rpartition(":")
    candidates = _by_name(kind).get(bare, [])
    if distribution:
        candidates = [entry for entry in candidates if entry.distribution == canonical(distribution)]
    chosen = _choose(candidates)
    if chosen is not None:
        return chosen
    if candidates:
        offers = " and ".join(f"{entry.distribution} {entry.version}" for entry in candidates)
        names = " or ".join(entry.full_name for entry in candidates)
        raise NotFoundError(f"{singular(kind)} {bare!r} is offered by {offers}; write {names}")
    return None


def name_of(kind: str, part: object) -> str | None:
    """Return the registered name of an object's class, or None if the class is not registered.

    An entry may name its class where another module imports it again. The function therefore imports the entries of the
    class's own package and compares them with the class.
    """
    cls = type(part)
    listed = entries(kind)
    target, package = f"{cls.__module__}:{cls.__qualname__}", re.split(r"[.:]", cls.__module__)[0]
    said = [name for name, entry in listed.items() if entry.target == target]
    near = (name for name, entry in listed.items() if re.split("[.:]", entry.target)[0] == package)
    return next(iter(said), None) or next((name for name in near if _is(listed[name], cls)), None)


def not_found(kind: str, name: str) -> str:
    """Return the message for an unknown name. It lists near names, all names, or the package that offers the name."""
    known = sorted(entries(kind))
    near = near_names(name, known)
    message = f"no {singular(kind)} named {name!r}; "
    distribution, _, bare = name.casefold().rpartition(":")
    package = ELSEWHERE.get(kind, {}).get(bare, "")
    if package and distribution in ("", package):
        return f"{message}it is in the package {package}, which is not installed: pip install {package}"
    message += f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    broken = [f"{p.distribution} {p.version}" for p in loaded().plugins if p.error and not any(p.counts.values())]
    if broken:
        message += f" (failed to load: {', '.join(broken)}; see bnnzoo plugins)"
    return message


def with_packages(error: NotFoundError, made_with: str) -> NotFoundError:
    """Return the error with the packages that the run's file names and that are not loaded.

    Args:
        error: the error for a part that was not found.
        made_with: the file's attribute `plugins`.
    """
    try:
        versions = dict(json.loads(made_with))
    except (TypeError, ValueError):
        return error
    loaded = {plugin.distribution for plugin in plugins()}
    gone = [f"{name}=={v.split(', ')[-1]}" for name, v in versions.items() if canonical(name) not in loaded]
    if not gone:
        return error
    missing = str(error).partition(";")[0]
    return NotFoundError(
        f"{missing}; the run was made with packages that are not installed: pip install {' '.join(gone)}"
    )


def load(kind: str, name: str) -> Any:
    """Import and return the class or function with this name.

    Raises:
        NotFoundError: see `find`.
        UsageError: if its module cannot be imported, lacks the attribute, or holds an object of the wrong type.
    """
    entry = find(kind, name)
    origin = f"{singular(kind)} {entry.name!r} is from {entry.distribution} {entry.version} ({entry.target}), which"
    try:
        thing = _imported(entry)
    except BaseException as error:
        if is_of_keyboard(error):
            raise
        raise UsageError(f"{origin} fails to import: {one_line(error)}") from error
    if fault := _fault(entry, thing):
        raise UsageError(f"{origin} {fault}")
    if entry.distribution != OWN and entry not in _in_use:
        _in_use.append(entry)
    return thing


def in_use() -> str:
    """Return the plugin parts that this process has loaded, for error messages; empty if there are none."""
    return ", ".join(f"{singular(one.kind)} {one.name} of {one.distribution} {one.version}" for one in _in_use)


def described(kind: str, part: object) -> str:
    """Return a part's kind and name for a message, with the package that offers it unless the part is built in."""
    name = name_of(kind, part)
    entry = None if name is None else get(kind, name)
    if entry is None:
        return f"{singular(kind)} {type(part).__name__}"
    return f"{singular(kind)} {entry.name}" + (
        "" if entry.distribution == OWN else f" of {entry.distribution} {entry.version} ({entry.target})"
    )


def failures() -> list[str]:
    """Import every entry and return one line for each unusable one: file, line, name and reason."""
    found = [f"{p.where}: {report(p)}" for p in loaded().plugins if p.traceback]
    for kind in (*KINDS, COMMANDS):
        for entry in loaded().offered[kind]:
            what = f"{singular(kind)} {entry.full_name} ({entry.target})"
            try:
                fault = _fault(entry, _imported(entry))
            except BaseException as error:
                if is_of_keyboard(error):
                    raise
                found.append(f"{place(error, entry.declared)}: {what}: {one_line(error)}")
            else:
                found += [f"{entry.declared}: {what} {fault}"] if fault else []
    return found


def plugins() -> list[Plugin]:
    """Return every plugin, the zoo itself first. Broken plugins are included."""
    return list(loaded().plugins)


def reset() -> None:
    """Clear the cache. The next call reads the environment variables and the distributions again."""
    loaded.cache_clear()
    _in_use.clear()


def _imported(entry: Registered) -> Any:
    module, _, attribute = entry.target.partition(":")
    with quiet_stdout():
        return getattr(importlib.import_module(module), attribute)


def _is(entry: Registered, cls: type) -> bool:
    """Whether an entry is this class. An entry that cannot be imported is not."""
    try:
        return _imported(entry) is cls
    except Exception:
        return False


def _fault(entry: Registered, thing: Any) -> str:
    """Return the reason why the object of an entry has the wrong type; empty if it has the right one."""
    if entry.kind == COMMANDS:
        return "" if _is_command(thing) else f"is neither a Typer app nor a function (got {type(thing).__name__})"
    if entry.kind not in _BASES:
        return "" if callable(thing) else f"is not a function (got {type(thing).__name__})"
    module, name = _BASES[entry.kind]
    if not (isinstance(thing, type) and issubclass(thing, getattr(importlib.import_module(module), name))):
        return f"is not a subclass of bnnzoo.{name}"
    if lacks := sorted(getattr(thing, "__abstractmethods__", ())):
        return f"does not implement all of bnnzoo.{name}: {', '.join(lacks)}"
    stated = getattr(thing, "exactness", "")
    if entry.kind == "samplers" and stated != entry.exactness:
        return f"is listed as {entry.exactness}, but its class declares {stated or 'nothing'}"
    return ""


def _is_command(thing: Any) -> bool:
    """Whether an object can be a command: a Typer app or a function."""
    from typer import Typer

    return inspect.isroutine(thing) or isinstance(thing, Typer)


def _by_name(kind: str) -> dict[str, list[Registered]]:
    grouped: dict[str, list[Registered]] = {}
    for entry in _registry().offered[kind]:
        grouped.setdefault(entry.name, []).append(entry)
    return grouped


def _choose(candidates: list[Registered]) -> Registered | None:
    """Return the entry that a bare name selects. A built-in entry has priority; two plugins with one name give None."""
    own = [entry for entry in candidates if entry.distribution == OWN]
    if own:
        return own[0]
    return candidates[0] if len(candidates) == 1 else None


def _registry() -> Loaded:
    """Return the loaded plugins, and warn once about each plugin that failed."""
    registry = loaded()
    while registry.unreported:
        warnings.warn(registry.unreported.pop(0), BnnzooWarning, stacklevel=2)
    return registry
