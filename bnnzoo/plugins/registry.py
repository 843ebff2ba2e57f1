"""Lookup of the entries of bnnzoo and of plugins by name. The target of an entry is imported when it is used."""

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

from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError
from bnnzoo.plugins.builtin import EXTERNAL_PACKAGES
from bnnzoo.plugins.discovery import (
    COMMANDS,
    KINDS,
    OBSERVERS,
    OWN,
    REFERENCES,
    LoadedPlugins,
    Plugin,
    Registered,
    canonical,
    load_plugins,
    report,
    singular,
    stdout_to_stderr,
)
from bnnzoo.plugins.discovery import RECIPES as RECIPES
from bnnzoo.plugins.discovery import check_name as check_name
from bnnzoo.plugins.entry_files import file_of
from bnnzoo.plugins.failures import (
    ENABLE,
    failure_place,
    is_installed,
    is_keyboard_interrupt,
    one_line,
    reason_of_absence,
)
from bnnzoo.suggestions import near_names

_BASES = {
    "models": ("bnnzoo.models", "AbstractModel"),
    "samplers": ("bnnzoo.samplers", "AbstractSampler"),
    "likelihoods": ("bnnzoo.posterior.likelihoods", "AbstractLikelihood"),
    "priors": ("bnnzoo.posterior.priors", "AbstractPrior"),
    OBSERVERS: ("bnnzoo.observers", "AbstractObserver"),
}
"""Module and name of the base class of each kind. The module is imported when it is used."""

_parts_in_use: list[Registered] = []


def entries(kind: str) -> dict[str, Registered]:
    """Return all entries of a kind by name.

    If several packages use a name, the key is `distribution:name`, except for an entry of bnnzoo itself.
    """
    entries_by_name: dict[str, Registered] = {}
    for name, candidates in _by_name(kind).items():
        preferred = _choose(candidates)
        for entry in candidates:
            entries_by_name[name if entry is preferred else entry.full_name] = entry
    return entries_by_name


def find(kind: str, name: str) -> Registered:
    """Return the entry with this name.

    Raises:
        NotFoundError: if the name is unknown, or if two plugins have entries of this name.
    """
    entry = get(kind, name)
    if entry is None:
        raise NotFoundError(not_found(kind, name))
    return entry


def full_name(kind: str, name: str) -> str:
    """Return the name of a part in a recipe or a run's file: `name` if it is built in, else `distribution:name`.

    Raises:
        NotFoundError: if two plugins have an entry of this name.
    """
    entry = get(kind, name)
    return name if entry is None else entry.name if entry.distribution == OWN else entry.full_name


def source_sha256(kind: str, name: str) -> str:
    """Return the SHA-256 of the source file of a part; "" if the file cannot be found.

    A changed digest shows that a plugin was edited, even if its version is the same.
    """
    entry = get(kind, name)
    try:
        spec = importlib.util.find_spec(entry.target.partition(":")[0]) if entry else None
        return hashlib.sha256(Path(str(spec.origin)).read_bytes()).hexdigest() if spec else ""
    except Exception:  # find_spec imports the package of the module, which can raise anything
        return ""


def plugin_differences(made_with: str, sources: str) -> list[str]:
    """List the differences between the plugins of a run and the plugins that are installed now.

    Args:
        made_with: the attribute `plugins` of the file, a JSON object with the version of each distribution.
        sources: the attribute `plugin_sources` of the file, a JSON object with the SHA-256 of each part.

    Returns:
        one phrase for each changed version and each changed source file.
    """
    installed = {plugin.distribution: plugin.version for plugin in plugins()}
    recorded = {canonical(name): version for name, version in json.loads(made_with).items()}
    differences = [
        f"{name} was {version}, is {installed[name]}"
        for name, version in recorded.items()
        if name in installed and installed[name] not in version.split(", ")  # joined runs have several versions
    ]
    for part, sha256 in json.loads(sources).items():
        kind, _, name = part.partition("/")
        if kind in KINDS and source_sha256(kind, name) not in ("", *sha256.split(", ")):
            differences.append(f"the source of {singular(kind)} {name} was changed")
    return differences


def get(kind: str, name: str) -> Registered | None:
    """Return the entry with this name; None if the name is unknown.

    Raises:
        NotFoundError: if two plugins have an entry of this name; the message lists both.
    """
    distribution, _, bare_name = name.casefold().rpartition(":")
    candidates = _by_name(kind).get(bare_name, [])
    if distribution:
        candidates = [entry for entry in candidates if entry.distribution == canonical(distribution)]
    preferred = _choose(candidates)
    if preferred is not None:
        return preferred
    if candidates:
        offering_packages = " and ".join(f"{entry.distribution} {entry.version}" for entry in candidates)
        names = " or ".join(entry.full_name for entry in candidates)
        raise NotFoundError(
            f"{singular(kind)} {bare_name!r} is provided by {offering_packages}; use the full name {names}"
        )
    return None


def name_of(kind: str, part: object) -> str | None:
    """Return the registered name of the class of an object; None if the class is not registered.

    A target may be the path of a re-exported class, not of the module that defines the class. If no target matches, the
    entries of the same package are therefore imported and compared with the class.
    """
    cls = type(part)
    registered = entries(kind)
    target, package = f"{cls.__module__}:{cls.__qualname__}", re.split(r"[.:]", cls.__module__)[0]
    exact_names = [name for name, entry in registered.items() if entry.target == target]
    package_names = (name for name, entry in registered.items() if re.split("[.:]", entry.target)[0] == package)
    return next(iter(exact_names), None) or next(
        (name for name in package_names if _is_entry_of(registered[name], cls)), None
    )


def not_found(kind: str, name: str) -> str:
    """Return the message for an unknown name, with the package that offers the part, similar names, or all names."""
    names = sorted(entries(kind))
    similar_names = near_names(name, names)
    message = f"no {singular(kind)} named {name!r}; "
    distribution, _, bare_name = name.casefold().rpartition(":")
    package = EXTERNAL_PACKAGES.get(kind, {}).get(bare_name, "")
    if package and distribution in ("", package):
        plugin = next((plugin for plugin in plugins() if plugin.distribution == canonical(package)), None)
        error = "" if plugin is None or any(plugin.counts.values()) else plugin.error
        reason = reason_of_absence(package, plugin and plugin.version, error)
        return f"{message}it is in the package {package}, {reason}"
    message += f"did you mean {' or '.join(similar_names)}?" if similar_names else f"use one of {', '.join(names)}"
    if not names:
        message = f"no {singular(kind)} named {name!r}; no installed package offers {kind}; see bnnzoo plugins"
    failed_plugins = [
        f"{plugin.distribution} {plugin.version}"
        for plugin in load_plugins().plugins
        if plugin.error and not any(plugin.counts.values())
    ]
    if failed_plugins:
        message += f" (plugins that failed to load: {', '.join(failed_plugins)}; see bnnzoo plugins)"
    return message


def with_packages(error: NotFoundError, made_with: str) -> NotFoundError:
    """Return the error. If packages of the run are not loaded, the message names these packages.

    Args:
        error: the error for a part that was not found.
        made_with: the attribute `plugins` of the file.
    """
    try:
        versions = dict(json.loads(made_with))
    except (TypeError, ValueError):
        return error
    loaded_names = {plugin.distribution for plugin in plugins()}
    absent_names = [name for name in versions if canonical(name) not in loaded_names]
    if not absent_names:
        return error
    missing = str(error).partition(";")[0]
    missing_packages = [f"{name}=={versions[name].split(', ')[-1]}" for name in absent_names if not is_installed(name)]
    reason = f"not installed: pip install {' '.join(missing_packages)}"
    if not missing_packages:
        reason = f"disabled: {', '.join(absent_names)}; {ENABLE}"
    return NotFoundError(f"{missing}; packages of the run are {reason}")


def load(kind: str, name: str) -> Any:
    """Import and return the class or function with this name.

    Raises:
        NotFoundError: if the name is unknown, or if two plugins have entries of this name.
        UsageError: if the module cannot be imported or lacks the attribute, or if the object has the wrong type.
    """
    entry = find(kind, name)
    origin = f"{singular(kind)} {entry.name!r} is from {entry.distribution} {entry.version} ({entry.target}), which"
    try:
        part = _import_target(entry)
    except BaseException as error:
        if is_keyboard_interrupt(error):
            raise
        raise UsageError(f"{origin} fails to import: {one_line(error)}") from error
    if fault := _fault_of_part(entry, part):
        raise UsageError(f"{origin} {fault}")
    if entry.distribution != OWN and entry not in _parts_in_use:
        _parts_in_use.append(entry)
    return part


def parts_in_use() -> str:
    """Return the parts of plugins that this process has loaded, as text for error messages."""
    return ", ".join(
        f"{singular(entry.kind)} {entry.name} of {entry.distribution} {entry.version}" for entry in _parts_in_use
    )


def describe_part(kind: str, part: object) -> str:
    """Return the kind and the name of a part for a message. For a part of a plugin, add the package."""
    name = name_of(kind, part)
    entry = None if name is None else get(kind, name)
    if entry is None:
        return f"{singular(kind)} {type(part).__name__}"
    return f"{singular(kind)} {entry.name}" + (
        "" if entry.distribution == OWN else f" of {entry.distribution} {entry.version} ({entry.target})"
    )


def import_failures() -> list[str]:
    """Import all entries. Return one line (place, name, reason) for each plugin or entry that cannot be used."""
    failures_found = [f"{plugin.where}: {report(plugin)}" for plugin in load_plugins().plugins if plugin.traceback]
    for kind in (*KINDS, COMMANDS, OBSERVERS):
        for entry in load_plugins().entries_by_kind[kind]:
            part_name = f"{singular(kind)} {entry.full_name} ({entry.target})"
            try:
                fault = _fault_of_part(entry, _import_target(entry))
            except BaseException as error:
                if is_keyboard_interrupt(error):
                    raise
                failures_found.append(f"{failure_place(error, entry.declared)}: {part_name}: {one_line(error)}")
            else:
                failures_found += [f"{entry.declared}: {part_name} {fault}"] if fault else []
    for entry in load_plugins().entries_by_kind[REFERENCES]:
        try:
            file_of(entry)
        except UsageError as error:
            failures_found.append(f"{entry.declared}: {error}")
    return failures_found


def plugins() -> list[Plugin]:
    """Return all plugins, also those that failed: first plugins with a damaged list of entry points, then bnnzoo."""
    return list(load_plugins().plugins)


def reset() -> None:
    """Clear the cache and the list of parts in use. The next lookup loads all plugins again."""
    load_plugins.cache_clear()
    _parts_in_use.clear()


def _import_target(entry: Registered) -> Any:
    module, _, attribute = entry.target.partition(":")
    with stdout_to_stderr():
        return getattr(importlib.import_module(module), attribute)


def _fault_of_part(entry: Registered, part: Any) -> str:
    """Return the reason why the imported object of an entry cannot be used; empty if it can be used."""
    if entry.kind == COMMANDS:
        return "" if _is_command(part) else f"is neither a Typer app nor a function (got {type(part).__name__})"
    if entry.kind not in _BASES:
        return "" if callable(part) else f"is not a function (got {type(part).__name__})"
    module, name = _BASES[entry.kind]
    if not (isinstance(part, type) and issubclass(part, getattr(importlib.import_module(module), name))):
        return f"is not a subclass of bnnzoo.{name}"
    if abstract_methods := sorted(getattr(part, "__abstractmethods__", ())):
        return f"does not implement all methods of bnnzoo.{name}: it lacks {', '.join(abstract_methods)}"
    class_exactness = getattr(part, "exactness", "")
    if entry.kind == "samplers" and class_exactness != entry.exactness:
        return f"is listed with exactness {entry.exactness}, but its class declares {class_exactness or 'nothing'}"
    return ""


def _is_command(candidate: Any) -> bool:
    """Whether an object can be a command: a Typer app or a function."""
    from typer import Typer

    return inspect.isroutine(candidate) or isinstance(candidate, Typer)


def _is_entry_of(entry: Registered, cls: type) -> bool:
    """Whether the entry refers to this class; false if the entry cannot be imported."""
    try:
        return _import_target(entry) is cls
    except Exception:
        return False


def _by_name(kind: str) -> dict[str, list[Registered]]:
    grouped: dict[str, list[Registered]] = {}
    for entry in _registry().entries_by_kind[kind]:
        grouped.setdefault(entry.name, []).append(entry)
    return grouped


def _choose(candidates: list[Registered]) -> Registered | None:
    """Return the entry to which a name without a package refers; None if two plugins have entries of this name.

    A built-in entry has priority.
    """
    built_in = [entry for entry in candidates if entry.distribution == OWN]
    if built_in:
        return built_in[0]
    return candidates[0] if len(candidates) == 1 else None


def _registry() -> LoadedPlugins:
    """Return the loaded plugins, and warn once about each plugin with a problem."""
    registry = load_plugins()
    while registry.unreported:
        warnings.warn(registry.unreported.pop(0), BnnzooWarning, stacklevel=2)
    return registry
