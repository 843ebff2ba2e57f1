"""One-line descriptions of plugins that failed (with file and line), and of packages that are not available."""

from __future__ import annotations

import importlib.metadata
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
ENABLE = "remove the option no-plugins and BNNZOO_DISABLE_PLUGINS; if BNNZOO_PLUGINS is set, name the package there"
"""Remedy if the command line or the environment disables an installed package."""


class PluginError(BnnzooError):
    """Error of an unusable plugin. Such an error ends a command only with `BNNZOO_STRICT_PLUGINS=1`."""


def is_keyboard_interrupt(error: BaseException) -> bool:
    """Whether the error is Ctrl-C of the user. False on the command line, where a handler receives Ctrl-C."""
    return isinstance(error, KeyboardInterrupt) and not signals.are_signals_handled()


def one_line(error: BaseException) -> str:
    """Return an error as one line, with its type. For an error of tracing in JAX, a remedy replaces the message."""
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


def is_installed(package: str) -> bool:
    """Whether a package is installed, even if its plugin is disabled or failed to load."""
    try:
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # ValueError: the name is empty
        return False
    return True


def reason_of_absence(package: str, version: str | None, error: str) -> str:
    """Return the reason why a part is not found in the package that offers it, with the remedy.

    Args:
        package: the package.
        version: version of the package's plugin; None if no such plugin was loaded.
        error: reason why the plugin failed to load; "" if it did not fail.
    """
    if not is_installed(package):
        return f"which is not installed: pip install {package}"
    if version is None:
        return f"which is installed but disabled; {ENABLE}"
    if error:
        return f"which failed to load ({error}); see bnnzoo plugins"
    return f"which offers it in another version (installed: {version}); pip install -U {package}"
