"""The command that started a run. Messages show this command if the run must be started again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import write_atomically
from bnnzoo.store import npz

COMMAND = "command.json"
_MAX_BYTES = 2**16
_PIPES = ("/dev/fd/", "/proc/", "/dev/stdin")
"""Inputs that can be read only once. A command that reads one of them cannot be repeated."""


class Command(BaseModel):
    """A call of `bnnzoo sample` on the command line, or of `bnnzoo.sample` in Python.

    Only the arguments are stored. A manipulated file therefore cannot make a message show another program.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    folder: str
    """The working directory, to which paths in the command are relative."""
    words: list[str] = []
    """Arguments of `bnnzoo sample`."""
    keywords: dict[str, JsonValue] = {}
    """Arguments of `bnnzoo.sample`; None for a value without a short literal, such as an array."""

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Command | None:
        """Return the command with these arguments. Return None if an argument is a pipe."""
        values = [word.rpartition("=")[2] for word in words]
        return (
            None if any(value.startswith(_PIPES) for value in values) else cls(folder=_working_folder(), words=[*words])
        )

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> Command:
        """Return the call of `bnnzoo.sample` with these arguments. Arguments that are None are left out."""
        return cls(
            folder=_working_folder(),
            keywords={name: _literal(value) for name, value in keywords.items() if value is not None},
        )

    def text(self, *, force: bool) -> str:
        """Return the text of the command that a user types to repeat it.

        Args:
            force: add the option --force or force=True, which replaces an unfinished run.
        """
        if self.words:
            words = [*self.words, *(["--force"] if force and "--force" not in self.words else [])]
            command = shlex.join(["bnnzoo", "sample", *words])
            return command if self.folder == _working_folder() else f"cd {shlex.quote(self.folder)} && {command}"
        keywords = self.keywords | ({"force": True} if force else {})
        arguments = [f"{name}={name if value is None else repr(value)}" for name, value in keywords.items()]
        return f"bnnzoo.sample({', '.join(arguments)})"


def write(folder: Path, command: Command) -> None:
    """Write the command into the folder of an unfinished run."""
    write_atomically(folder / COMMAND, lambda file: file.write(command.model_dump_json().encode()))


def restart_advice(folder: Path, *, force: bool) -> str:
    """Return the end of a message: start the run again, with the stored command of the run if its folder has one."""
    with suppress(UsageError, OSError, ValidationError):
        if npz.check_regular(folder / COMMAND) <= _MAX_BYTES:
            command = Command.model_validate_json((folder / COMMAND).read_bytes())
            if command.words or all(name.isidentifier() for name in command.keywords):
                return f"start the run again with: {command.text(force=force)}"
    return "start the run again" + (" with [[force=True]]" if force else "")


def _working_folder() -> str:
    with suppress(OSError):  # the working directory was removed
        return os.getcwd()
    return ""


def _literal(value: Any) -> JsonValue:
    """Return the value if it can be written as a short Python literal, otherwise None. A path becomes text."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        values = {str(key): _literal(item) for key, item in value.items()}
        return None if None in values.values() else dict(values)
    if isinstance(value, list | tuple) and len(value) <= 20:
        items = [_literal(item) for item in value]
        return None if None in items else items
    return None
