"""JAX as a run needs it: host devices before it starts, precision, and the compilation cache on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import jax
import platformdirs

from bnnzoo.sampling.placement import Method, host_devices

_CACHE_BYTES = 2 * 2**30
_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_VERSIONS = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")


def prepare(method: Method, num_chains: int) -> None:
    """Split the CPU into as many devices as the chains want, if JAX has not started, and turn the cache on."""
    forget_programs()
    with contextlib.suppress(RuntimeError):
        # Refused once JAX runs: then the devices there are must do.
        jax.config.update("jax_num_cpu_devices", host_devices(method, num_chains))
    if jax.config.values["jax_compilation_cache_dir"] is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = Path(platformdirs.user_cache_dir("bnnzoo")) / f"jax-{jax.__version__}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.config.update("jax_compilation_cache_max_size", _CACHE_BYTES)


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
    """Full-precision matrix products (a GPU would round them to TF32), in single or double precision."""
    with jax.default_matmul_precision("highest"), jax.enable_x64(precision == "float64"):
        yield


def versions() -> dict[str, str]:
    """Of everything that decides a draw."""
    return {name: version(name) for name in _VERSIONS}


def device() -> str:
    """The kind of device and how many there are: "cpu x 4"."""
    devices = jax.local_devices()
    return f"{devices[0].device_kind} x {len(devices)}"
