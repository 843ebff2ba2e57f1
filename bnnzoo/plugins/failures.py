"""One-line descriptions of the failures of plugins, with file and line."""

from __future__ import annotations

import traceback

from bnnzoo.errors import BnnzooError, message_of
from bnnzoo.process import signals

_TRACED = (
    "ConcretizationTypeError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
)
"""Errors that JAX raises if Python code needs the value of a traced argument during compilation."""
_USE_ARRAYS = (
    "Python code needs the value of a traced number, which is unknown during compilation; compute with jax.numpy, "
    "or make the field a plain float: 0.1 instead of number(0.1)"
)


class PluginError(BnnzooError):
    """Error of an unusable plugin. Such an error ends a command only with `BNNZOO_STRICT_PLUGINS=1`."""


def is_keyboard_interrupt(error: BaseException) -> bool:
    """Whether the error is Ctrl-C of the user. False on the command line, where a handler receives Ctrl-C."""
    return isinstance(error, KeyboardInterrupt) and not signals.are_signals_handled()


def one_line(error: BaseException) -> str:
    """Return an error as one line, with its type. For an error of tracing in JAX, a remedy replaces its message."""
    text = " ".join(message_of(error).split())
    name = type(error).__name__
    if isinstance(error, PluginError):
        return text
    if name in _TRACED:
        text = _USE_ARRAYS
    return f"{name}: {text}" if text else name


def failure_place(error: BaseException, otherwise: str) -> str:
    """Return the file and line where an import failed; return `otherwise` if no module was executed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    # The frames before the first frame of the import system belong to the caller.
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    start = next((i for i, (file, _) in enumerate(frames) if file.startswith("<frozen importlib")), len(frames))
    reached = [f"{file}:{line}" for file, line in frames[start:] if not file.startswith("<frozen")]
    return reached[-1] if reached else otherwise
