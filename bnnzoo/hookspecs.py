"""The seven hooks of a plugin, each returning a list of `Entry`. Text: nothing is imported until it is used."""

from __future__ import annotations

from typing import NamedTuple

import pluggy

API_VERSION = 1
"""Raised when a hook or `Entry` changes incompatibly. A plugin module may pin it with `BNNZOO_API = 1`."""

hookspec = pluggy.HookspecMarker("bnnzoo")
hookimpl = pluggy.HookimplMarker("bnnzoo")


class Entry(NamedTuple):
    """One thing in the zoo.

    `target` is "package.module:Attribute", imported only when the entry is used; of a recipe, "package:file.yaml", a
    path below the package's folder. `exactness` is for samplers: "exact", "noise-corrected", "biased" or
    "approximate", as the class itself says. `summary` is one line; `bnnzoo list` and `bnnzoo --help` show it.
    """

    name: str
    target: str
    summary: str
    exactness: str = ""


class Hooks:
    """The hooks of the group `bnnzoo`."""

    @hookspec
    def bnnzoo_models(self) -> list[Entry]:
        """Architectures: classes derived from `bnnzoo.models.AbstractModel`."""
        ...

    @hookspec
    def bnnzoo_samplers(self) -> list[Entry]:
        """Methods: classes derived from `bnnzoo.samplers.AbstractSampler`."""
        ...

    @hookspec
    def bnnzoo_datasets(self) -> list[Entry]:
        """Data sets: functions without arguments that return `bnnzoo.data.Dataset`."""
        ...

    @hookspec
    def bnnzoo_likelihoods(self) -> list[Entry]:
        """Likelihoods: classes derived from `bnnzoo.posterior.likelihoods.AbstractLikelihood`."""
        ...

    @hookspec
    def bnnzoo_priors(self) -> list[Entry]:
        """Priors: classes derived from `bnnzoo.posterior.priors.AbstractPrior`."""
        ...

    @hookspec
    def bnnzoo_recipes(self) -> list[Entry]:
        """Recipe files: what `--config NAME` and `bnnzoo zoo run NAME` find; without a summary, their first comment."""
        ...

    @hookspec
    def bnnzoo_commands(self) -> list[Entry]:
        """Commands of `bnnzoo`: a `typer.Typer` becomes a group of commands, a function a single one."""
        ...
