"""Settings of JAX for all computations: precision, the compilation cache, and a limit on compiled programs."""

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
_MAPS, _MAX_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def keep_programs() -> None:
    """Free compiled programs if necessary (`forget_programs`), and enable the cache of compiled programs on disk.

    If the user has configured a cache, it is not changed.
    """
    forget_programs()
    if jax.config.values["jax_compilation_cache_dir"] is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = Path(platformdirs.user_cache_dir("bnnzoo")) / f"jax-{jax.__version__}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        _limit_cache(folder)


@functools.cache
def _limit_cache(folder: Path) -> None:
    """Remove the oldest programs from the cache in `folder` if it exceeds `_CACHE_BYTES`, once per process.

    JAX's own size limit is not used, because it locks the cache at every access. Parallel runs would wait for each
    other, or would not use the cache while another run has locked it.
    """
    try:
        entries = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    except OSError:
        return
    excess = sum(size for _, size, _ in entries) - _CACHE_BYTES
    for _, size, path in entries:
        if excess <= 0:
            return
        with contextlib.suppress(OSError):  # another process may have removed the file already
            os.unlink(path)
        excess -= size


def forget_programs() -> None:
    """Drop this process's compiled programs if the process uses more than a third of its allowed memory maps.

    Linux allows a process 65 530 memory maps by default. A run that compiles new programs takes about 1500 maps. JAX
    frees these maps only if its caches are cleared. A process that exceeds the limit is aborted without a message. A
    dropped program that is needed again is read from the cache on disk.
    """
    try:
        max_maps = int(_MAX_MAPS.read_text())
        num_maps = _MAPS.read_bytes().count(b"\n")
    except OSError:
        return
    if num_maps > max_maps // 3:
        jax.clear_caches()


@functools.lru_cache(maxsize=1)  # an equal precision at the next call: nothing to do
def _forget_other_precision(precision: str) -> None:
    """Drop this process's compiled programs, unless the previous call had the same precision.

    JAX converts a NumPy array of 64 bits to the current precision, and remembers the converted array as long as a
    program contains it (jaxlib 0.10). If a function uses a constant array, such as the centres of a user's network, and
    is traced again in the other precision, JAX takes the remembered array, which has the wrong type. The new program
    then fails, or it uses constants in single precision without a message.
    """
    del precision
    jax.clear_caches()


@contextlib.contextmanager
def arithmetic(precision: Literal["float32", "float64"]) -> Iterator[None]:
    """Within the context, compute in single or double precision, with matrix products in full precision.

    By default a GPU would round matrix products to TF32. Random numbers always use JAX's partitionable Threefry,
    whatever mode the environment selects, because the other mode of Threefry gives different draws.
    """
    _forget_other_precision(precision)
    with arithmetic_within_run(precision):
        yield


@contextlib.contextmanager
def arithmetic_within_run(precision: Literal["float32", "float64"]) -> Iterator[None]:
    """Within the context, compute in single or double precision, and keep the compiled programs.

    A part of a run can use this context to compute in another precision than the rest of the run. All other settings
    are the same as in `arithmetic`. A function that is traced in both precisions must not use a constant NumPy array of
    64 bits, because the compiled programs are kept (see `_forget_other_precision`).
    """
    full_precision, double_precision = jax.default_matmul_precision("highest"), jax.enable_x64(precision == "float64")
    with full_precision, double_precision, jax.threefry_partitionable(True):
        yield
