"""Import of the optional library of an observer."""

from __future__ import annotations

import importlib
from typing import Any

from bnnzoo.errors import UsageError


def require_library(module: str, extra: str) -> Any:
    """Import and return a library that the optional dependency `extra` of bnnzoo installs.

    Raises:
        UsageError: if the library cannot be imported. The message contains the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"requires {module} ({error}); pip install 'bnnzoo[{extra}]'") from error
