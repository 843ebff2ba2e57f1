"""Commands of plugins. `--help` lists them without an import; a command is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from bnnzoo.cli.output import printable
from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.plugins.failures import is_keyboard_interrupt, one_line

PANEL = "Commands of plugins"

Prepare = Callable[[Any], None]
"""A function that changes a command in place before it runs."""


class DeferredCommand(TyperCommand):
    """A placeholder with the name and the summary of a plugin's command. The command is imported when it runs."""

    def __init__(self, name: str, entry: registry.Registered, prepare: Prepare):
        # A plugin's summary must not end a line or contain markup.
        summary = escape(printable(" ".join(entry.summary.split())))
        super().__init__(name, help=summary, rich_markup_mode="rich", rich_help_panel=PANEL)
        self._prepare = prepare

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the plugin's command and return the context of this command. Typer then runs this command."""
        assert self.name is not None
        command = _import_command(self.name)
        self._prepare(command)
        return command.make_context(info_name, args, parent, **extra)


def plugin_commands(prepare: Prepare) -> dict[str, DeferredCommand]:
    """Return the commands of all plugins by name, without importing them."""
    return {
        name: DeferredCommand(name, entry, prepare)
        for name, entry in registry.entries(registry.COMMANDS).items()
        if entry.distribution != registry.OWN
    }


def plugin_command(name: str, prepare: Prepare) -> DeferredCommand | None:
    """Return the plugin command with this name (or `distribution:name`); None if there is none.

    Raises:
        NotFoundError: if two packages have a command with this name, or if the command is from a package of this
            project that is not installed.
    """
    entry = registry.get(registry.COMMANDS, name)
    if entry is not None and entry.distribution != registry.OWN:
        return DeferredCommand(name, entry, prepare)
    if name in registry.EXTERNAL_PACKAGES[registry.COMMANDS]:
        raise NotFoundError(registry.not_found(registry.COMMANDS, name))
    return None


def _import_command(name: str) -> Any:
    """Import a plugin command and return it as a Click command.

    Raises:
        UsageError: if the command cannot be imported, is not a function or Typer application, or has an unsupported
            signature.
    """
    target = registry.load(registry.COMMANDS, name)
    app = typer.Typer(add_completion=False)
    try:
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
        return typer.main.get_group(app).commands[name]
    except BaseException as error:
        if is_keyboard_interrupt(error):
            raise
        entry = registry.find(registry.COMMANDS, name)
        origin = f"command {entry.name!r} is from {entry.distribution} {entry.version} ({entry.target})"
        raise UsageError(f"{origin}, which cannot be used as a command: {one_line(error)}") from error
