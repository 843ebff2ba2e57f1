"""JAX as any computation needs it: precision, the compilation cache on, programs dropped before they fill a process."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import platformdirs

_CACHE_BYTES = 2 * 2**30
_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def keep_programs() -> None:
    """Turn the cache on disk on, unless the user has chosen one, and make room in the process."""
    forget_programs()
    if jax.config.values["jax_compilation_cache_dir"] is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = Path(platformdirs.user_cache_dir("bnnzoo")) / f"jax-{jax.__version__}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        _bound(folder)


@functools.cache
def _bound(folder: Path) -> None:
    """Remove the oldest programs of a cache that has grown too large, once a process.

    JAX's own bound takes one lock for every look into the cache: runs side by side would wait for each other, and at
    a busy moment go without.
    """
    try:
        entries = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    except OSError:
        return
    excess = sum(size for _, size, _ in entries) - _CACHE_BYTES
    for _, size, path in entries:
        if excess <= 0:
            return
        with contextlib.suppress(OSError):  # another process may have been first
            os.unlink(path)
        excess -= size


def forget_programs() -> None:
    """Drop what this process has compiled once that fills a third of the memory maps Linux lets it have.

    A run of a new kind takes some 1500 of the 65 530, JAX keeps them all, and a process that wants one more is aborted
    without a word. What is needed again comes from the cache on disk.
    """
    try:
        most = int(_MOST_MAPS.read_text())
        used = _MAPS.read_bytes().count(b"\n")
    except OSError:
        return
    if used > most // 3:
        jax.clear_caches()


@contextlib.contextmanager
def arithmetic(precision: Literal["float32", "float64"]) -> Iterator[None]:
    """Full-precision matrix products (a GPU would round them to TF32), in single or double precision.

    Random numbers are those that can be made piece by piece, whatever the environment says: others are other draws.
    """
    precise, wide = jax.default_matmul_precision("highest"), jax.enable_x64(precision == "float64")
    with precise, wide, jax.threefry_partitionable(True):
        yield
