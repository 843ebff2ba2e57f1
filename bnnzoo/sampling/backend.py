"""JAX as a run needs it: host devices before it starts, and what decides its draws."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version

import jax

from bnnzoo.errors import UsageError
from bnnzoo.posterior.backend import arithmetic as arithmetic
from bnnzoo.posterior.backend import keep_programs
from bnnzoo.sampling.processes import LostProcessError, Processes

_PATIENCE = 120
"""Seconds that processes wait for each other at their start."""
_SILENCE = 30
"""Seconds without a sign of life after which a process is lost; JAX's own 100 are long for what a checkpoint keeps."""
_VERSIONS = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")


def prepare(num_devices: int = 1) -> None:
    """Split the CPU into so many devices, if JAX has not started, and turn the cache on."""
    with contextlib.suppress(RuntimeError):
        # Refused once JAX runs: then the devices there are must do.
        split_cpu(num_devices)
    keep_programs()


def split_cpu(num_devices: int) -> None:
    """So many devices of the CPU, and more threads than devices for them to work with.

    A factorisation holds the thread that its device runs on until other threads of the one pool have done its parts.
    XLA's pool has as many threads as there are cores, or devices where those are more: then every thread can be held,
    and the program waits for ever (jaxlib 0.10, where all chains factorise at once on fewer cores than chains). It
    takes the size of the pool from NPROC.

    Raises:
        RuntimeError: once JAX runs.
    """
    jax.config.update("jax_num_cpu_devices", num_devices)
    if num_devices > 1:
        threads = num_devices + len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else (0, 1))
        asked = os.environ.get("NPROC", "")
        os.environ["NPROC"] = str(max(threads, int(asked) if asked.isdecimal() else 0))


@contextlib.contextmanager
def joined(coordinator: str | None = None, count: int | None = None, rank: int | None = None) -> Iterator[None]:
    """Make this process one of several that share a run, inside the block; before it nothing may use JAX.

    Args:
        coordinator: the address and port of the first of them, such as `10.0.0.1:1234`; none of the three is needed
            under Slurm, Open MPI or Kubernetes.
        count: how many they are.
        rank: which of them this is, from 0.

    Raises:
        UsageError: where they do not find each other.
    """
    # The first process outlives the others, and keeps what they have drawn; otherwise JAX would end it with them.
    jax.config.update("jax_enable_recoverability", True)
    # SIGTERM is ours: JAX would take it, and only note that it came.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator, count, rank, initialization_timeout=_PATIENCE, heartbeat_timeout_seconds=_SILENCE
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"--distributed: {' '.join(str(error).split())}; outside Slurm, Open MPI and Kubernetes say --coordinator, "
            "--processes and --rank, in each process"
        ) from error
    lost = False
    try:
        with _no_stdout():
            yield
    except LostProcessError:
        lost = True  # and with it the others' end: they would wait for one another
        raise
    finally:
        processes = Processes.here()
        if not lost:
            processes.part()
        processes.take_leave()


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """What C++ code prints goes to stderr: standard output is for what was asked for."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def devices(count: int) -> None:
    """Start JAX with this machine's CPU split into `count` devices, so that as many chains run side by side.

    To be called before anything else uses JAX: a notebook's first cell, before a network of your own is made. Runs from
    the command line, and those that start JAX themselves, do it for their chains.

    Raises:
        UsageError: for fewer than one, or where JAX has started with another number.
    """
    if count < 1:
        raise UsageError(f"devices: must be at least 1 (got {count})")
    with contextlib.suppress(RuntimeError):  # JAX runs: what it has is seen below
        split_cpu(count)
    if (found := len(jax.devices("cpu"))) != count:
        raise UsageError(
            f"devices: JAX has started already, with {found} on the CPU; call bnnzoo.devices({count}) before anything "
            "uses JAX (in a notebook: restart, and call it first)"
        )


def versions() -> dict[str, str]:
    """Of everything that decides a draw."""
    return {name: version(name) for name in _VERSIONS}


def device(count: int) -> str:
    """The kind of device, and how many of them a run uses: "cpu x 4"."""
    return f"{jax.local_devices()[0].device_kind} x {count}"
