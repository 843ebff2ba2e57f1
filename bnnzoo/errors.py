"""Errors people read: one line that says what happened, where, and what to type instead."""

from __future__ import annotations


class BnnzooError(Exception):
    """Something failed while running. The command line prints it as `bnnzoo: MESSAGE` and exits with `exit_code`."""

    exit_code = 1


class UsageError(BnnzooError, ValueError):
    """Wrong usage or bad input, found before anything is compiled or written."""

    exit_code = 2


class NotFoundError(UsageError, LookupError):
    """A name that is not in the zoo; the message lists near names."""


class DamagedError(UsageError):
    """A file that does not hold what its own words promise: nothing in it can be relied on."""


class BusyError(UsageError):
    """Another process is writing the run: what was asked for can be done once it has ended."""


class GateError(BnnzooError):
    """A gate that was asked for does not hold."""

    exit_code = 3


class InterruptedRunError(BnnzooError):
    """The run was stopped by SIGINT or SIGTERM; a checkpoint is on disk and the message holds the resume command."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def words_of(error: BaseException) -> str:
    """What an exception says: also a stranger's, which may fail at that too."""
    try:
        return str(error)
    except BaseException as another:
        return f"(what it says cannot be read: {type(another).__name__})"


class BnnzooWarning(UserWarning):
    """A warning the command line prints as `bnnzoo: warning: MESSAGE`, also with --quiet."""
