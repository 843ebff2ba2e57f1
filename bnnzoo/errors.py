"""Errors for users. Each line of a message states one problem, with its place and its remedy."""

from __future__ import annotations

from bnnzoo.finding import spell_settings, spelling


class BnnzooError(Exception):
    """The base class of all errors for users, and the class of failures during a run.

    The command line prints each line of the message as `bnnzoo: LINE` and exits with `exit_code`.

    A setting in the message is written as a placeholder, such as `[[warmup=500]]` (see `bnnzoo.finding.setting`). The
    user sees `--warmup 500` on the command line and `warmup=500` in Python.
    """

    exit_code = 1

    def __str__(self) -> str:
        return spell_settings(super().__str__(), spelling())


class UsageError(BnnzooError, ValueError):
    """Wrong usage or bad input, found before anything is compiled or written."""

    exit_code = 2


class NotFoundError(UsageError, LookupError):
    """An unknown or ambiguous name. The message lists names that exist, or the package that offers the name."""


class DamagedError(UsageError):
    """A file whose content contradicts its own metadata, so that nothing in it can be trusted."""


class BusyError(UsageError):
    """A run that another process is writing now. The run can be used after that process has ended."""


class GateError(BnnzooError):
    """A requested check that failed, such as `--gate`. The command line exits with code 3."""

    exit_code = 3


class InterruptedRunError(BnnzooError):
    """SIGINT or SIGTERM during a run. The message states how to continue the run, or that the run is complete."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def message_of(error: BaseException) -> str:
    """Return the message of an exception. If its method `__str__` fails, return a replacement."""
    try:
        return str(error)
    except BaseException as str_error:
        return f"(its message cannot be read: {type(str_error).__name__})"


class BnnzooWarning(UserWarning):
    """A warning that the command line prints as `bnnzoo: warning: MESSAGE`, also with --quiet.

    A setting in the message is written as a placeholder, as in a `BnnzooError`.
    """

    def __str__(self) -> str:
        return spell_settings(super().__str__(), spelling())
