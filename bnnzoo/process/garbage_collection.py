"""Settings of Python's garbage collector for a process that runs a single command.

Imports and JAX traces create many objects that are never freed, and few reference cycles. Frequent garbage collections
are therefore useless.
"""

from __future__ import annotations

import atexit
import gc
from functools import cache


@cache
def relax_garbage_collection() -> None:
    """Make garbage collections rarer, and skip the garbage collection at exit. Repeated calls have no effect.

    With the default of Python 3.11 (a collection after 700 new objects), collections take a tenth of the computation
    time of a command. At exit the interpreter would also scan all objects several times before it frees them.
    """
    gc.set_threshold(5000)
    atexit.register(gc.freeze)
