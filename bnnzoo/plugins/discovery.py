"""Discovery of plugins, with checks of their entries.

A plugin is an entry point of the group `bnnzoo`. The built-in parts form such a plugin too. Each plugin is loaded
separately. If a plugin fails, the failure is recorded, and the other plugins are not affected.

Two environment variables select the plugins: `BNNZOO_PLUGINS=a,b` loads only these distributions, and
`BNNZOO_DISABLE_PLUGINS=1` loads only bnnzoo itself. `BNNZOO_STRICT_PLUGINS=1` raises an error if a plugin fails, for
plugin authors and CI.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import distributions
from typing import Any, NamedTuple

import pluggy

from bnnzoo.errors import UsageError
from bnnzoo.plugins.failures import PluginError, failure_place, is_keyboard_interrupt, one_line
from bnnzoo.plugins.hookspecs import API_VERSION, Entry, Hooks
from bnnzoo.suggestions import near_names

GROUP = OWN = "bnnzoo"
KINDS = ("models", "samplers", "datasets", "likelihoods", "priors")
RECIPES = "configs"
"""The kind of recipes. The target of a recipe is a file that is read and not imported."""
COMMANDS = "commands"
"""The kind of commands of the command line. They are not parts of a recipe."""
OBSERVERS = "observers"
"""The kind of observers, which log runs. They are not parts of a recipe."""
REFERENCES = "references"
"""The kind of reference posteriors. The target of a reference is the file of a run, which is not imported."""
EXACTNESS = ("exact", "noise-corrected", "biased", "approximate")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_RECIPE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_FILE_TARGETS = {
    kind: re.compile(rf"[^\W\d]\w*:([\w-]+/)*[\w.-]+\.{suffix}")
    for kind, suffix in ((RECIPES, "yaml"), (REFERENCES, "nc"))
}
_FORMS = {RECIPES: "package:folder/file.yaml", REFERENCES: "package:folder/file.nc"}
_HOOKS = {f"bnnzoo_{kind}": kind for kind in (*KINDS, COMMANDS, OBSERVERS, REFERENCES)} | {"bnnzoo_recipes": RECIPES}
_Point = Any
"""The type of an entry point, from importlib.metadata or from its backport (installed by packages such as Dask)."""


class Registered(NamedTuple):
    """A checked entry with its kind and its origin.

    `distribution` is the installed package. `declared` is the file and line of the hook that returned the entry.
    """

    kind: str
    name: str
    summary: str
    exactness: str
    target: str
    distribution: str
    version: str
    declared: str

    @property
    def full_name(self) -> str:
        """The unambiguous name `PACKAGE:NAME`, where PACKAGE is the installed package."""
        return f"{self.distribution}:{self.name}"


class Plugin(NamedTuple):
    """An entry point of the group `bnnzoo`, and the result of loading this entry point.

    Attributes:
        name: the name of the entry point.
        distribution: the distribution (installed package) with the entry point.
        version: the version of the distribution; "" if it is not installed.
        error: one line about the problem, such as a failure to load or a name that two plugins use; "" if none.
        where: file and line of the failure, if the plugin could not be loaded.
        traceback: the traceback, if the plugin could not be loaded.
        counts: the number of entries of each kind.
    """

    name: str
    distribution: str
    version: str
    error: str
    where: str
    traceback: str
    counts: dict[str, int]


class LoadedPlugins(NamedTuple):
    """The plugins, their entries by kind, and the problems about which no warning was issued yet."""

    plugins: list[Plugin]
    entries_by_kind: dict[str, list[Registered]]
    unreported: list[str]


@functools.cache
def load_plugins() -> LoadedPlugins:
    """Load every plugin that the environment variables allow. The result is cached.

    Raises:
        PluginError: if a plugin has a problem and `BNNZOO_STRICT_PLUGINS` is set.
    """
    points, plugins = _allowed_entry_points()
    entries_by_kind: dict[str, list[Registered]] = {kind: [] for kind in _HOOKS.values()}
    for point in points:
        distribution, version = _origin(point)
        try:
            plugin_entries = _entries_of(point, distribution, version)
            _refuse_duplicates(plugin_entries, entries_by_kind)
            error = where = traceback_text = ""
        except BaseException as failure:
            if is_keyboard_interrupt(failure):
                raise
            plugin_entries, error, traceback_text = [], one_line(failure), traceback.format_exc()
            where = failure_place(failure, point.value)
        counts = {kind: sum(entry.kind == kind for entry in plugin_entries) for kind in entries_by_kind}
        plugins.append(Plugin(point.name, distribution, version, error, where, traceback_text, counts))
        for entry in plugin_entries:
            entries_by_kind[entry.kind].append(entry)
    plugins += _missing_plugins({plugin.distribution for plugin in plugins})
    plugins = [_with_conflicts(plugin, entries_by_kind) for plugin in plugins]
    reports = [report(plugin) for plugin in plugins if plugin.error]
    if reports and _is_flag_set("BNNZOO_STRICT_PLUGINS"):
        raise PluginError("\n".join(reports))
    return LoadedPlugins(plugins, entries_by_kind, reports)


def report(plugin: Plugin) -> str:
    """Return the problem of a plugin as one line."""
    if not plugin.version:
        return f"plugin {plugin.distribution}: {plugin.error}"
    return f"plugin {plugin.name} of {plugin.distribution} {plugin.version}: {plugin.error}"


def singular(kind: str) -> str:
    """Return the singular of a kind: models -> model."""
    return kind.removesuffix("s")


def check_name(name: str) -> str:
    """Return the name in lower case, as the registry stores it.

    Raises:
        UsageError: if the name cannot be registered.
    """
    folded = name.casefold()
    if not _NAME.fullmatch(folded):
        raise UsageError(
            f"invalid name {name!r}; use letters, digits, - and _, with a letter or digit first, and at most 64 "
            "characters"
        )
    return folded


def canonical(distribution: str) -> str:
    """Normalise the name of a distribution as PEP 503 does: Bnnzoo_BlackJAX becomes bnnzoo-blackjax."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def stdout_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Return a context that sends stdout to stderr. Plugins are imported in this context: stdout is for results."""
    return contextlib.redirect_stdout(sys.stderr)


def _is_flag_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("", "0", "false", "no")


def _requested_distributions() -> set[str]:
    return {canonical(name) for name in os.environ.get("BNNZOO_PLUGINS", "").split(",") if name.strip()}


def _allowed_entry_points() -> tuple[list[_Point], list[Plugin]]:
    """Return the entry points to load, and a record of each distribution whose list of entry points is damaged.

    The entry points of bnnzoo come first; the others are sorted by distribution.
    """
    points: list[_Point] = []
    damaged: list[Plugin] = []
    seen_names: set[str] = set()
    for distribution in distributions():
        name = _distribution_name(distribution)
        if name in seen_names or not _is_allowed(name):
            continue  # of several installations, only the first one on the path counts
        seen_names.add(name)
        try:
            points += distribution.entry_points.select(group=GROUP)
        except Exception as failure:  # the file may have any content
            problem = f"its entry_points.txt is damaged ({one_line(failure)}); install it again"
            damaged.append(Plugin("?", name, _version(distribution), problem, "", traceback.format_exc(), {}))
    return sorted(points, key=lambda point: (_origin(point)[0] != OWN, *_origin(point), point.name)), damaged


def _is_allowed(distribution: str) -> bool:
    """Whether the environment variables allow loading the plugins of a distribution (an installed package)."""
    if distribution == OWN:
        return True
    requested = _requested_distributions()
    return not _is_flag_set("BNNZOO_DISABLE_PLUGINS") and (not requested or distribution in requested)


def _missing_plugins(distributions: set[str]) -> list[Plugin]:
    """Return a record for each distribution that is named in BNNZOO_PLUGINS but has no plugin."""
    if _is_flag_set("BNNZOO_DISABLE_PLUGINS"):
        return []
    missing = sorted(_requested_distributions() - distributions)
    return [
        Plugin("?", name, "", "in BNNZOO_PLUGINS, but no such plugin is installed; install or remove it", "", "", {})
        for name in missing
    ]


def _origin(point: _Point) -> tuple[str, str]:
    return _distribution_name(point.dist), _version(point.dist)


def _distribution_name(distribution: Any) -> str:
    """Return the name of a distribution from the name of its folder, which is fast, or from its metadata."""
    try:
        return canonical(getattr(distribution, "_normalized_name", None) or distribution.name)
    except Exception:  # the metadata are damaged
        return "?"


def _version(distribution: Any) -> str:
    try:
        return str(distribution.version)
    except Exception:
        return "?"


def _entries_of(point: _Point, distribution: str, version: str) -> list[Registered]:
    """Return the checked entries of one plugin. If one of its hooks fails, the plugin has no entries."""
    with stdout_to_stderr():
        plugin = point.load()
        api_version = getattr(plugin, "BNNZOO_API", API_VERSION)
        if api_version != API_VERSION:
            raise PluginError(
                f"requires plugin API {api_version!r}, but this bnnzoo has {API_VERSION}; update the plugin or bnnzoo"
            )
        # Each plugin has its own manager, so a plugin that fails leaves no hooks there.
        manager = pluggy.PluginManager(OWN)
        manager.add_hookspecs(Hooks)
        _check_hook_names(manager, plugin)
        manager.register(plugin)
        return [
            Registered(
                kind,
                entry.name.casefold(),
                *entry[2:],
                entry.target,
                distribution,
                version,
                _declaration_place(implementation.function),
            )
            for hook, kind in _HOOKS.items()
            for implementation in getattr(manager.hook, hook).get_hookimpls()
            for entry in _check_entries(kind, hook, implementation.function())
        ]


def _declaration_place(hook: Any) -> str:
    code = getattr(inspect.unwrap(hook), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def _refuse_duplicates(new_entries: list[Registered], entries_by_kind: dict[str, list[Registered]]) -> None:
    """Raise if the distribution already has an entry of this kind and name, so that full names are unambiguous."""
    for entry in new_entries:
        if any(existing.full_name == entry.full_name for existing in entries_by_kind[entry.kind]):
            raise PluginError(f"{entry.distribution} offers {singular(entry.kind)} {entry.name!r} twice; rename one")


def _check_hook_names(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raise for a misspelt or undecorated hook, because pluggy ignores such a hook without a message."""
    for name in dir(plugin):
        if not name.startswith("bnnzoo_") or not inspect.isroutine(getattr(plugin, name, None)):
            continue
        if name not in _HOOKS:
            similar_names = near_names(name, _HOOKS, 1)
            remedy = f"did you mean {similar_names[0]}?" if similar_names else f"use one of {', '.join(_HOOKS)}"
            raise PluginError(f"unknown hook {name}; {remedy}")
        if manager.parse_hookimpl_opts(plugin, name) is None:
            raise PluginError(f"the hook {name} has no decorator; put @bnnzoo.hookimpl above it")


def _check_entries(kind: str, hook: str, entries: Any) -> Iterable[Entry]:
    if not isinstance(entries, list):
        raise PluginError(f"{hook}: must return a list of bnnzoo.Entry (got {type(entries).__name__})")
    names: set[str] = set()
    for entry in entries:
        if not isinstance(entry, Entry):
            raise PluginError(f"{hook}: must return a list of bnnzoo.Entry (got a list with {type(entry).__name__})")
        if not all(isinstance(text, str) for text in entry):
            raise PluginError(f"{hook}: the fields of an Entry must be text (got {entry!r})")
        name = entry.name.casefold()
        if not (_RECIPE_NAME if kind == RECIPES else _NAME).fullmatch(name):
            marks = "-, _ and ." if kind == RECIPES else "- and _"
            raise PluginError(
                f"{hook}: invalid name {entry.name!r}; use letters, digits, {marks}, with a letter or digit first, and "
                "at most 64 characters"
            )
        if name in names:
            raise PluginError(f"{hook}: the name {entry.name!r} is used twice; rename one of the entries")
        if not _FILE_TARGETS.get(kind, _TARGET).fullmatch(entry.target):
            expected_form = _FORMS.get(kind, "package.module:Attribute")
            raise PluginError(f"{hook}: {name}: invalid target {entry.target!r}; write {expected_form!r}")
        allowed = EXACTNESS if kind == "samplers" else ("",)
        if entry.exactness not in allowed:
            expected = (
                f"use {', '.join(EXACTNESS)}" if kind == "samplers" else "leave it out, because only samplers have one"
            )
            raise PluginError(f"{hook}: {name}: invalid exactness {entry.exactness!r}; {expected}")
        names.add(name)
    return entries


def _with_conflicts(plugin: Plugin, entries_by_kind: dict[str, list[Registered]]) -> Plugin:
    """Return the record of a plugin. If other plugins use some of its names, the `error` of the record lists them."""
    if plugin.error or plugin.distribution == OWN:
        return plugin
    conflicts: list[str] = []
    for kind in entries_by_kind:
        for own_entry in (entry for entry in entries_by_kind[kind] if entry.distribution == plugin.distribution):
            rival_distributions = {
                entry.distribution for entry in entries_by_kind[kind] if entry.name == own_entry.name
            } - {plugin.distribution}
            part_name = f"{singular(kind)} {own_entry.name!r}"
            if OWN in rival_distributions:
                conflicts.append(
                    f"{part_name} has the name of a built-in part and cannot replace that part; to use the part of "
                    f"the plugin, write {own_entry.full_name}"
                )
            elif rival_distributions:
                conflicts.append(
                    f"{part_name} is also provided by {', '.join(sorted(rival_distributions))}; to use the part of "
                    f"this plugin, write {own_entry.full_name}"
                )
    return plugin._replace(error="; ".join(conflicts))
