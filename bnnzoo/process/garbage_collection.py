"""Settings of the garbage collector for a process that runs a single command.

Imports and JAX traces create few reference cycles and many long-lived objects, so frequent collections are useless.
"""

from __future__ import annotations

import atexit
import gc
from functools import cache


@cache
def relax_garbage_collection() -> None:
    """Make garbage collections rarer, and skip the final one at exit. Repeated calls have no effect.

    With Python's default threshold of 700 new objects, collections take a tenth of the computation time of a command.
    At exit the interpreter would also scan all objects several times before it frees them.
    """
    gc.set_threshold(5000)
    atexit.register(gc.freeze)
