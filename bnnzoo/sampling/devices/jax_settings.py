"""JAX settings of a run (devices and processes), and the versions of packages that affect the draws."""

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
from bnnzoo.sampling.devices.processes import LostProcessError, Processes

_PATIENCE = 120
"""Seconds that processes wait for each other at the start. After this time the connection counts as failed."""
_SILENCE = 30
"""Seconds without a heartbeat after which a process counts as lost.

JAX's default of 100 s would delay the last checkpoint.
"""
_VERSIONS = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")


def prepare(num_devices: int = 1) -> None:
    """Split the CPU into `num_devices` devices if JAX has not started, and enable JAX's compilation cache."""
    with contextlib.suppress(RuntimeError):
        # After its start JAX raises an error. The run then uses the existing devices.
        split_cpu(num_devices)
    keep_programs()


def split_cpu(num_devices: int) -> None:
    """Split the CPU into `num_devices` devices, and give XLA's thread pool more threads than devices.

    XLA's thread pool has one thread per core by default, or one thread per device if there are more devices than cores.
    A matrix factorisation blocks the thread of its device until other threads of the pool have done the subtasks. If
    all chains factorise a matrix at the same time on fewer cores than chains, all threads are blocked and the program
    never ends (jaxlib 0.10). XLA reads the size of the pool from the environment variable NPROC.

    Raises:
        RuntimeError: if JAX has already started.
    """
    jax.config.update("jax_num_cpu_devices", num_devices)
    if num_devices > 1:
        threads = num_devices + len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else (0, 1))
        requested_threads = os.environ.get("NPROC", "")
        os.environ["NPROC"] = str(max(threads, int(requested_threads) if requested_threads.isdecimal() else 0))


@contextlib.contextmanager
def join_processes(coordinator: str | None = None, count: int | None = None, rank: int | None = None) -> Iterator[None]:
    """Connect this process to the other processes of a shared run inside the block.

    JAX must not be used before the block. Under Slurm, Open MPI and Kubernetes no argument is needed.

    Args:
        coordinator: the address and the port of the first process, such as `10.0.0.1:1234`.
        count: the number of processes.
        rank: the number of this process, from 0.

    Raises:
        UsageError: if the processes cannot connect to each other.
    """
    # If another process fails, the first process must still save the draws. By default JAX would end this process too.
    jax.config.update("jax_enable_recoverability", True)
    # bnnzoo handles SIGTERM itself. JAX's service would catch the signal and only record it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator, count, rank, initialization_timeout=_PATIENCE, heartbeat_timeout_seconds=_SILENCE
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"[[distributed]]: {' '.join(str(error).split())}; outside Slurm, Open MPI and Kubernetes, "
            "give each process [[coordinator]], [[processes]] and [[rank]]"
        ) from error
    is_lost = False
    try:
        with _no_stdout():
            yield
    except LostProcessError:
        is_lost = True  # do not wait for a process that has ended
        raise
    finally:
        processes = Processes.current()
        if not is_lost:
            processes.wait_for_all()
        processes.disconnect()


@contextlib.contextmanager
def _no_stdout() -> Iterator[None]:
    """Send all output in the block to stderr. The C++ code of JAX writes to stdout, which is reserved for results."""
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)


def devices(count: int) -> None:
    """Start JAX with this machine's CPU split into `count` devices, so that `count` chains run in parallel.

    Call this function before anything else uses JAX, for example in the first cell of a notebook, before you build a
    network. The call is not needed on the command line, or if nothing uses JAX before the run: the run then splits the
    CPU itself.

    Raises:
        UsageError: if `count` is less than one, or if JAX has already started with another number of devices.
    """
    if count < 1:
        raise UsageError(f"devices: must be at least 1 (got {count})")
    with contextlib.suppress(RuntimeError):  # JAX has started; its devices are counted below
        split_cpu(count)
    if (num_devices := len(jax.devices("cpu"))) != count:
        raise UsageError(
            f"devices: JAX has started already, with {num_devices} CPU devices; call bnnzoo.devices({count}) before "
            "anything uses JAX (in a notebook, restart the kernel and call it first)"
        )


def versions() -> dict[str, str]:
    """Return the versions of all packages that affect the draws."""
    return {name: version(name) for name in _VERSIONS}


def device(count: int) -> str:
    """Describe `count` devices of this machine by their kind and number, such as "cpu x 4"."""
    return f"{jax.local_devices()[0].device_kind} x {count}"
