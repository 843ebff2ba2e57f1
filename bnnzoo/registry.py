"""Names -> entries -> objects. Each plugin is loaded on its own, guarded; a failure is a record, not a crash.

A plugin is an entry point of the group `bnnzoo`; the zoo itself is one. Three environment variables choose
what is loaded: `BNNZOO_PLUGINS=a,b` (these distributions only), `BNNZOO_DISABLE_PLUGINS=1` (nothing but
the zoo itself) and `BNNZOO_STRICT_PLUGINS=1` (a plugin that fails is an error: for its author and for CI).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import re
import traceback
import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import pluggy

from bnnzoo.errors import BnnzooError, BnnzooWarning, NotFoundError, UsageError
from bnnzoo.hookspecs import API_VERSION, Entry, Hooks

GROUP = OWN = "bnnzoo"
KINDS = ("models", "samplers", "datasets", "likelihoods", "priors")
EXACTNESS = ("exact", "noise-corrected", "biased", "approximate")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_HOOKS = tuple(f"bnnzoo_{kind}" for kind in KINDS)


class Registered(NamedTuple):
    """An entry and where it comes from."""

    kind: str
    name: str
    summary: str
    exactness: str
    target: str
    distribution: str
    version: str

    @property
    def full_name(self) -> str:
        """The name that always picks this one: `distribution:name`."""
        return f"{self.distribution}:{self.name}"


class Plugin(NamedTuple):
    """An entry point of the group and what became of it; `error` is one line, empty when all went well."""

    name: str
    distribution: str
    version: str
    error: str
    traceback: str
    counts: dict[str, int]


class PluginError(BnnzooError):
    """A plugin that cannot be used, with `BNNZOO_STRICT_PLUGINS=1`."""


class _Registry(NamedTuple):
    plugins: list[Plugin]
    offered: dict[str, list[Registered]]
    unreported: list[str]


def entries(kind: str) -> dict[str, Registered]:
    """Everything of a kind, by the name that reaches it: `distribution:name` where the bare one is taken."""
    found: dict[str, Registered] = {}
    for name, candidates in _by_name(kind).items():
        chosen = _choose(candidates)
        for entry in candidates:
            found[name if entry is chosen else entry.full_name] = entry
    return found


def find(kind: str, name: str) -> Registered:
    """The entry of that name.

    Raises:
        NotFoundError: with the near names, or all there are; or naming the two plugins that offer the name.
    """
    distribution, _, bare = name.casefold().rpartition(":")
    candidates = _by_name(kind).get(bare, [])
    if distribution:
        candidates = [entry for entry in candidates if entry.distribution == _canonical(distribution)]
    chosen = _choose(candidates)
    if chosen is not None:
        return chosen
    if candidates:
        offers = " and ".join(f"{entry.distribution} {entry.version}" for entry in candidates)
        names = " or ".join(entry.full_name for entry in candidates)
        raise NotFoundError(f"{singular(kind)} {bare!r} is offered by {offers}; write {names}")
    raise NotFoundError(_not_found(kind, name))


def load(kind: str, name: str) -> Any:
    """The class or function of that name, imported now.

    Raises:
        NotFoundError: as `find` does.
        UsageError: when its module cannot be imported or lacks the attribute.
    """
    entry = find(kind, name)
    module, _, attribute = entry.target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(
            f"{singular(kind)} {entry.name!r} is from {entry.distribution} {entry.version} ({entry.target}), "
            f"which fails to import: {_one_line(error)}"
        ) from error


def plugins() -> list[Plugin]:
    """Every plugin found, the zoo itself first, broken ones included."""
    return list(_loaded().plugins)


def singular(kind: str) -> str:
    """models -> model."""
    return kind.removesuffix("s")


def reset() -> None:
    """Forget what was loaded: the next call looks at the environment and the distributions again."""
    _loaded.cache_clear()


def _by_name(kind: str) -> dict[str, list[Registered]]:
    grouped: dict[str, list[Registered]] = {}
    for entry in _registry().offered[kind]:
        grouped.setdefault(entry.name, []).append(entry)
    return grouped


def _choose(candidates: list[Registered]) -> Registered | None:
    """The zoo's own entry cannot be shadowed; of several strangers none is chosen."""
    own = [entry for entry in candidates if entry.distribution == OWN]
    if own:
        return own[0]
    return candidates[0] if len(candidates) == 1 else None


def _not_found(kind: str, name: str) -> str:
    known = sorted(entries(kind))
    near = difflib.get_close_matches(name.casefold(), known, 3)
    message = f"no {singular(kind)} named {name!r}; "
    message += f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    broken = [f"{p.distribution} {p.version}" for p in _loaded().plugins if p.error and not any(p.counts.values())]
    if broken:
        message += f" (failed to load: {', '.join(broken)}; see bnnzoo plugins)"
    return message


def _registry() -> _Registry:
    """What is loaded, having warned once of each plugin that failed."""
    registry = _loaded()
    while registry.unreported:
        warnings.warn(registry.unreported.pop(0), BnnzooWarning, stacklevel=2)
    return registry


@functools.cache
def _loaded() -> _Registry:
    """Load every plugin that the environment allows, once per process."""
    found: list[Plugin] = []
    offered: dict[str, list[Registered]] = {kind: [] for kind in KINDS}
    for point in _chosen_points():
        distribution, version = _origin(point)
        try:
            given = _entries_of(point, distribution, version)
            _refuse_twice(given, offered)
            error = trace = ""
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            given, error, trace = [], _one_line(failure), traceback.format_exc()
        counts = {kind: sum(entry.kind == kind for entry in given) for kind in KINDS}
        found.append(Plugin(point.name, distribution, version, error, trace, counts))
        for entry in given:
            offered[entry.kind].append(entry)
    found += _absent({plugin.distribution for plugin in found})
    found = [_with_conflicts(plugin, offered) for plugin in found]
    reports = [_report(plugin) for plugin in found if plugin.error]
    if reports and _flag("BNNZOO_STRICT_PLUGINS"):
        raise PluginError("\n".join(reports))
    return _Registry(found, offered, reports)


def _report(plugin: Plugin) -> str:
    if not plugin.version:
        return f"plugin {plugin.distribution}: {plugin.error}"
    return f"plugin {plugin.name} of {plugin.distribution} {plugin.version}: {plugin.error}"


def _flag(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no")


def _only() -> set[str]:
    return {_canonical(name) for name in os.environ.get("BNNZOO_PLUGINS", "").split(",") if name.strip()}


def _chosen_points() -> list[EntryPoint]:
    """The entry points to load: the zoo's own first, then by distribution."""
    points = sorted(
        entry_points(group=GROUP), key=lambda point: (_origin(point)[0] != OWN, *_origin(point), point.name)
    )
    if _flag("BNNZOO_DISABLE_PLUGINS"):
        return [point for point in points if _origin(point)[0] == OWN]
    only = _only()
    return [point for point in points if not only or _origin(point)[0] in {OWN, *only}]


def _absent(distributions: set[str]) -> list[Plugin]:
    """A record for each distribution that was asked for and is not there."""
    if _flag("BNNZOO_DISABLE_PLUGINS"):
        return []
    missing = sorted(_only() - distributions)
    return [Plugin("?", name, "", "asked for by BNNZOO_PLUGINS, offers no plugin here", "", {}) for name in missing]


def _origin(point: EntryPoint) -> tuple[str, str]:
    try:
        if point.dist is not None:
            return _canonical(point.dist.name), str(point.dist.version)
    except Exception:  # a distribution whose metadata is damaged
        return "?", "?"
    return "?", "?"


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def _entries_of(point: EntryPoint, distribution: str, version: str) -> list[Registered]:
    """Everything one plugin offers, checked; or an exception, and then it offers nothing."""
    plugin = point.load()
    wanted = getattr(plugin, "BNNZOO_API", API_VERSION)
    if wanted != API_VERSION:
        raise PluginError(f"written for plugin API {wanted!r}; this bnnzoo has {API_VERSION}: update one of them")
    # A manager of its own for each plugin: what fails here leaves nothing behind.
    manager = pluggy.PluginManager(OWN)
    manager.add_hookspecs(Hooks)
    _check_hook_names(manager, plugin)
    manager.register(plugin)
    given: list[Registered] = []
    for kind, hook in zip(KINDS, _HOOKS, strict=True):
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            for entry in _checked(kind, hook, implementation.function()):
                given.append(
                    Registered(
                        kind,
                        entry.name.casefold(),
                        entry.summary,
                        entry.exactness,
                        entry.target,
                        distribution,
                        version,
                    )
                )
    return given


def _refuse_twice(given: list[Registered], offered: dict[str, list[Registered]]) -> None:
    """Two plugins of one distribution cannot be told apart by `distribution:name`."""
    for entry in given:
        if any(other.full_name == entry.full_name for other in offered[entry.kind]):
            raise PluginError(f"{entry.distribution} offers {singular(entry.kind)} {entry.name!r} twice")


def _check_hook_names(manager: pluggy.PluginManager, plugin: Any) -> None:
    """pluggy ignores a misspelt or unmarked hook in silence; this says so."""
    for name in dir(plugin):
        if not name.startswith("bnnzoo_") or not inspect.isroutine(getattr(plugin, name, None)):
            continue
        if name not in _HOOKS:
            near = difflib.get_close_matches(name, _HOOKS, 1)
            cure = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_HOOKS)}"
            raise PluginError(f"unknown hook {name}; {cure}")
        if manager.parse_hookimpl_opts(plugin, name) is None:
            raise PluginError(f"{name} is not marked; put @bnnzoo.hookspecs.hookimpl above it")


def _checked(kind: str, hook: str, given: Any) -> Iterable[Entry]:
    if not isinstance(given, list):
        raise PluginError(f"{hook} returned {type(given).__name__}, not a list of bnnzoo.hookspecs.Entry")
    seen: set[str] = set()
    for entry in given:
        if not isinstance(entry, Entry):
            raise PluginError(f"{hook} returned a list with {type(entry).__name__}, not bnnzoo.hookspecs.Entry")
        if not all(isinstance(text, str) for text in entry):
            raise PluginError(f"{hook}: the parts of an Entry are text: {entry!r}")
        name = entry.name.casefold()
        if not _NAME.fullmatch(name):
            raise PluginError(f"{hook}: bad name {entry.name!r}: letters, digits, - and _, at most 64")
        if name in seen:
            raise PluginError(f"{hook}: the name {entry.name!r} comes twice")
        if not _TARGET.fullmatch(entry.target):
            raise PluginError(f"{hook}: {name}: bad target {entry.target!r}: write 'package.module:Attribute'")
        allowed = EXACTNESS if kind == "samplers" else ("",)
        if entry.exactness not in allowed:
            said = ", ".join(EXACTNESS) if kind == "samplers" else "only samplers have one"
            raise PluginError(f"{hook}: {name}: bad exactness {entry.exactness!r}: {said}")
        seen.add(name)
    return given


def _with_conflicts(plugin: Plugin, offered: dict[str, list[Registered]]) -> Plugin:
    """The plugin's record, saying which of its names are taken."""
    if plugin.error or plugin.distribution == OWN:
        return plugin
    taken: list[str] = []
    for kind in KINDS:
        for mine in (entry for entry in offered[kind] if entry.distribution == plugin.distribution):
            rivals = {entry.distribution for entry in offered[kind] if entry.name == mine.name} - {plugin.distribution}
            what = f"{singular(kind)} {mine.name!r}"
            if OWN in rivals:
                taken.append(f"{what} is a built-in name and stays so: write {mine.full_name}")
            elif rivals:
                taken.append(f"{what} is also offered by {', '.join(sorted(rivals))}: write {mine.full_name}")
    return plugin._replace(error="; ".join(taken))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = type(error).__name__
    if isinstance(error, PluginError):
        return text
    return f"{name}: {text}" if text else name
