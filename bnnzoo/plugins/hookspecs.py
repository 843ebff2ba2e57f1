"""The nine hooks of a plugin. Each hook returns a list of `Entry`. An entry names its target as text."""

from __future__ import annotations

from typing import NamedTuple

import pluggy

API_VERSION = 1
"""Version of the plugin API. It increases when a hook or `Entry` changes incompatibly.

A plugin module can require this version with `BNNZOO_API = 1`.
"""

hookspec = pluggy.HookspecMarker("bnnzoo")
hookimpl = pluggy.HookimplMarker("bnnzoo")


class Entry(NamedTuple):
    """One model, sampler, likelihood, prior, data set, recipe, command, observer or reference.

    Attributes:
        name: the name in recipes and on the command line.
        target: "package.module:Attribute", the object to import when the entry is used. For a recipe, the target is
            "package:file.yaml", and for a reference "package:file.nc": a path relative to the folder of the package.
        summary: one line that `bnnzoo list` and `bnnzoo --help` show.
        exactness: required for samplers: "exact", "noise-corrected", "biased" or "approximate", as in the class
            attribute `exactness`; empty for all other entries.
    """

    name: str
    target: str
    summary: str
    exactness: str = ""


class Hooks:
    """The hooks that a plugin can implement. A plugin is an entry point of the group `bnnzoo`."""

    @hookspec
    def bnnzoo_models(self) -> list[Entry]:
        """List models: classes derived from `bnnzoo.models.AbstractModel`."""
        ...

    @hookspec
    def bnnzoo_samplers(self) -> list[Entry]:
        """List samplers: classes derived from `bnnzoo.samplers.AbstractSampler`."""
        ...

    @hookspec
    def bnnzoo_datasets(self) -> list[Entry]:
        """List data sets: functions without arguments that return `bnnzoo.data.Dataset`."""
        ...

    @hookspec
    def bnnzoo_likelihoods(self) -> list[Entry]:
        """List likelihoods: classes derived from `bnnzoo.posterior.likelihoods.AbstractLikelihood`."""
        ...

    @hookspec
    def bnnzoo_priors(self) -> list[Entry]:
        """List priors: classes derived from `bnnzoo.posterior.priors.AbstractPrior`."""
        ...

    @hookspec
    def bnnzoo_recipes(self) -> list[Entry]:
        """List recipe files for `--config NAME` and `bnnzoo zoo run NAME`.

        The default summary of a recipe is the first comment of its file.
        """
        ...

    @hookspec
    def bnnzoo_commands(self) -> list[Entry]:
        """List commands of `bnnzoo`: a `typer.Typer` becomes a group of commands, a function a single command."""
        ...

    @hookspec
    def bnnzoo_observers(self) -> list[Entry]:
        """List observers for `--log-to NAME:TEXT`: classes derived from `bnnzoo.observers.AbstractObserver`."""
        ...

    @hookspec
    def bnnzoo_references(self) -> list[Entry]:
        """List reference posteriors for `bnnzoo compare --reference NAME`: run files that keep predictions."""
        ...
