"""The command line. This module imports only modules that load fast; a command imports JAX when it needs it."""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import printable, reserve_stdout, shorten_line
from bnnzoo.cli.part_command import SETTINGS
from bnnzoo.cli.plugin_commands import plugin_command, plugin_commands
from bnnzoo.errors import BnnzooError, BnnzooWarning, message_of
from bnnzoo.files.shell import quoted
from bnnzoo.finding import spelling_of
from bnnzoo.plugins import registry
from bnnzoo.plugins.builtin import COMMANDS
from bnnzoo.plugins.failures import is_keyboard_interrupt, one_line
from bnnzoo.process import signals, standard_streams
from bnnzoo.suggestions import near_names

_DISABLE_PLUGINS = "BNNZOO_DISABLE_PLUGINS"
_DEBUG = "run again with --debug for the traceback"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Commands(TyperGroup):
    """The group of all commands. It imports the module of a command, and loads the plugins, only when needed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Apply --no-plugins, then parse the arguments."""
        # This runs before --help lists the commands of plugins, and before a plugin's command is looked up.
        if "--no-plugins" in args:
            os.environ[_DISABLE_PLUGINS] = "1"
            registry.reset()
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands: first the commands of bnnzoo, then the commands of plugins."""
        del ctx
        deferred = plugin_commands(_prepare_plugin_command)
        self.commands.update(deferred)
        return [*COMMANDS, *deferred]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command of bnnzoo. For a command of a plugin, return a placeholder."""
        if cmd_name not in self.commands:
            if cmd_name in COMMANDS:
                self._import(COMMANDS[cmd_name])
            elif command := plugin_command(cmd_name, _prepare_plugin_command):
                self.commands[cmd_name] = command
            else:  # for an unknown name, the parser suggests similar names of all commands
                self.list_commands(ctx)
                for home in dict.fromkeys(COMMANDS.values()):
                    self._import(home)
        return super().get_command(ctx, cmd_name)

    def _import(self, home: str) -> None:
        """Import a module of this package and add its commands."""
        part = typer.Typer()
        import_module(f"bnnzoo.cli.{home}").add_to(part)
        commands = typer.main.get_group(part).commands
        _wrap(commands, _separate_results)
        self.commands.update(commands)


class _CommandError(Exception):
    """A wrapper for an exception that a command raised.

    Without the wrapper, the parser (Typer) would itself catch exits, keyboard interrupts and EOFError.
    """

    def __init__(self, cause: BaseException):
        super().__init__()
        self.cause = cause


class _ParserError(BnnzooError):
    """A usage error from Typer, or an exception of Typer's classes that a plugin's command raised."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def _wrap(commands: Mapping[str, Any], wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the functions of all commands and subcommands."""
    for command in commands.values():
        if command.callback is not None:
            command.callback = wrapper(command.callback)
        _wrap(getattr(command, "commands", {}), wrapper)


def _hide_from_parser(
    work: Callable[..., Any], *, is_for_parser: Callable[[BaseException], bool] = lambda _: False
) -> Callable[..., Any]:
    """Wrap a function so that the parser catches only the exceptions for which `is_for_parser` is true.

    The parser would return the value of the function as the exit code, so the wrapper returns None.
    """

    @functools.wraps(work)
    def wrapped(*words: Any, **options: Any) -> None:
        try:
            work(*words, **options)
        except BaseException as error:
            if is_for_parser(error):
                raise
            raise _CommandError(error) from error

    return wrapped


def _separate_results(work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command so that only its results go to stdout and the parser catches no exception of the command."""

    @functools.wraps(work)
    def wrapped(*words: Any, **options: Any) -> Any:
        with reserve_stdout():
            return work(*words, **options)

    return _hide_from_parser(wrapped)


def _prepare_plugin_command(command: Any) -> None:
    """Prepare a plugin's command. All of its output is a result, so nothing is redirected to stderr."""
    _wrap({"": command}, functools.partial(_hide_from_parser, is_for_parser=_is_of_parser))


def _is_of_parser(error: BaseException) -> bool:
    """Whether an exception belongs to Typer: an exit, an abort, or a usage error.

    The base class of usage errors is not public in Typer. They are therefore identified by the method `format_message`.
    """
    return isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "format_message")


app = typer.Typer(
    name="bnnzoo",
    cls=_Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _print_version(is_requested: bool) -> bool:
    if is_requested:
        from importlib.metadata import version  # takes as long as all other imports together

        typer.echo(version("bnnzoo"))
        raise typer.Exit
    return is_requested


@app.callback()
def _bnnzoo(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit"),
    ] = False,
    no_plugins: common.NoPlugins = False,
    debug: common.Debug = False,
) -> None:
    """A zoo of Bayesian neural networks: any model with any sampler, one command, one file.

    \b
    Examples:
      bnnzoo sample mdn penalty -o run.nc
      bnnzoo evaluate run.nc
      bnnzoo list
    """
    del show_version, no_plugins, debug


def main() -> None:
    """Run the command in `sys.argv` and end the process with the exit code of the command."""
    standard_streams.protect_standard_streams()
    signals.handle_signals()
    if "--debug" not in sys.argv and logging.lastResort is not None:
        logging.lastResort.setLevel(logging.ERROR)  # hides warnings of libraries for developers
    code = run(sys.argv[1:])
    try:
        if sys.stdout is not None:  # it is None if the parent process closed stdout
            sys.stdout.flush()
    except OSError as error:
        code = code or _exit_code(error)
        # Discard output that cannot be written. The interpreter would otherwise try again at exit and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code."""

    def command() -> int:
        click_command: Any = typer.main.get_command(app)
        try:
            return click_command.main(list(arguments) or ["--help"], prog_name="bnnzoo", standalone_mode=False) or 0
        except _CommandError as raised:
            cause = raised.cause
        except SystemExit as error:  # raised by shell completion
            if _broken_pipe(error) or _find_plugin(error):
                raise
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        except Exception as error:
            if not _is_of_parser(error):
                raise
            is_abort = isinstance(error, typer.Abort)  # for example, the user answered no to a prompt of a plugin
            message = "aborted" if is_abort else _usage_message(error, arguments)
            raise _ParserError(message, getattr(error, "exit_code", 1)) from error
        raise cause

    before = os.environ.get(_DISABLE_PLUGINS)
    try:
        return run_guarded(command, debug="--debug" in arguments)
    finally:
        if os.environ.get(_DISABLE_PLUGINS) != before:  # --no-plugins applies to this command only
            os.environ.pop(_DISABLE_PLUGINS)
            if before is not None:
                os.environ[_DISABLE_PLUGINS] = before
            registry.reset()


def run_guarded(work: Callable[[], int], *, debug: bool) -> int:
    """Run a function and return its exit code. Print errors on stderr, with a traceback only if `debug` is true."""
    with warnings.catch_warnings(), spelling_of("options"):
        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("always", BnnzooWarning)
        warnings.showwarning = _show_warning
        try:
            return work()
        except BaseException as error:
            cause = _broken_pipe(error) or error
            if debug:
                traceback.print_exception(cause)
            return _exit_code(cause)


def _broken_pipe(error: BaseException) -> BrokenPipeError | None:
    """Return the BrokenPipeError that Typer or Rich replaced by this SystemExit; None for other errors."""
    hidden = error.__context__ if isinstance(error, SystemExit) else None
    return hidden if isinstance(hidden, BrokenPipeError) else None


def _exit_code(error: BaseException) -> int:
    """Print an error and return its exit code."""
    if isinstance(error, BnnzooError):
        _print_error(message_of(error))
        return error.exit_code or 1  # a plugin may define an error class with exit code 0
    if isinstance(error, BrokenPipeError) and standard_streams.has_no_reader():
        return 0  # the reader of stdout, such as head, has ended
    plugin = _find_plugin(error)
    if plugin and not is_keyboard_interrupt(error):
        _print_error(f"{plugin}: {one_line(error)} ({_DEBUG})")
        return 1
    if isinstance(error, KeyboardInterrupt):
        _print_error("interrupted")
        return 130
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS and error.filename is None:
        # An error without a file name comes from stdout; `files.atomic` adds the name of the file to other errors.
        _print_error(f"standard output: cannot be written: {error.strerror}")
        return 1
    plugin_parts = registry.parts_in_use()
    _print_error(f"internal error{f', with {plugin_parts}' if plugin_parts else ''}: {one_line(error)} ({_DEBUG})")
    return 1


def _find_plugin(error: BaseException) -> str:
    """Return the innermost plugin in the error's traceback, with file and line; empty if there is none."""
    packages = {}
    with suppress(Exception):  # broken plugins may make the list fail
        for kind in (*registry.KINDS, registry.COMMANDS, registry.OBSERVERS):
            for entry in registry.entries(kind).values():
                if entry.distribution != registry.OWN:
                    packages[entry.target.partition(":")[0].partition(".")[0]] = f"{entry.distribution} {entry.version}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if plugin := packages.get(str(frame.f_globals.get("__name__", "")).partition(".")[0]):
            return f"plugin {plugin} ({frame.f_code.co_filename}:{line})"
    return ""


def _usage_message(error: Any, arguments: Sequence[str]) -> str:
    """Return the message of a usage error of the parser."""
    # The message is empty if a group without a command has printed its help instead (`no_args_is_help`).
    message = " ".join(error.format_message().split()).rstrip(".").replace("'?", "'") or "Missing command"
    message = re.sub(r"\. Did you mean ('.*')$", r" (did you mean \1?)", message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else " ".join(["bnnzoo", *arguments[:1]])
    remedy = f"try {command} --help"
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        similar_names = near_names(error.option_name, error.possibilities or [], 1)
        message = f"No such option: {error.option_name}" + (
            f" (did you mean {similar_names[0]}?)" if similar_names else ""
        )
    elif message.startswith("Missing argument") and (example := _example(context)):
        remedy += f"; an example: {example}"
    elif "unexpected extra argument" in message:
        files = [word for word in arguments if not word.startswith("-") and Path(word).suffix and Path(word).is_file()]
        if command == "bnnzoo sample" and files:
            remedy = f"use --data {quoted(files[0])} to name a data file; {remedy}"
    return f"{message}; {remedy}"


def _example(context: Any) -> str:
    """Return the first example of a command's help; empty if there is none."""
    text = getattr(getattr(context, "command", None), "help", "") or ""
    examples = (line.strip() for line in text.partition("Examples:")[2].splitlines())
    return next((line for line in examples if line.startswith("bnnzoo ")), "")


def _print_error(message: str) -> None:
    for line in message.split("\n") or [""]:
        print(f"bnnzoo: {shorten_line(printable(line))}", file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    if issubclass(category, BnnzooWarning):
        print(f"bnnzoo: warning: {shorten_line(printable(' '.join(str(message).split())))}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)
