"""The garbage collector in a process that is one command: imports and traces make few cycles and much that stays."""

from __future__ import annotations

import atexit
import gc
from functools import cache


@cache
def spare() -> None:
    """Look for garbage less often, from here to the end of the process, and not at its end; once.

    With Python's 700 new objects between two looks they take a tenth of all that a command computes itself. At the end
    the interpreter would look through everything several times, only to let go of it.
    """
    gc.set_threshold(5000)
    atexit.register(gc.freeze)
