"""JAX as a run needs it: host devices before it starts, and what decides its draws."""

from __future__ import annotations

import contextlib
from importlib.metadata import version

import jax

from bnnzoo.errors import UsageError
from bnnzoo.posterior.backend import arithmetic as arithmetic
from bnnzoo.posterior.backend import keep_programs

_VERSIONS = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")


def prepare(num_devices: int = 1) -> None:
    """Split the CPU into so many devices, if JAX has not started, and turn the cache on."""
    with contextlib.suppress(RuntimeError):
        # Refused once JAX runs: then the devices there are must do.
        jax.config.update("jax_num_cpu_devices", num_devices)
    keep_programs()


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
        jax.config.update("jax_num_cpu_devices", count)
    if (found := len(jax.devices("cpu"))) != count:
        raise UsageError(
            f"devices: JAX has started already, with {found} on the CPU; call bnnzoo.devices({count}) before anything "
            "uses JAX (in a notebook: restart, and call it first)"
        )


def versions() -> dict[str, str]:
    """Of everything that decides a draw."""
    return {name: version(name) for name in _VERSIONS}


def device() -> str:
    """The kind of device and how many there are: "cpu x 4"."""
    devices = jax.local_devices()
    return f"{devices[0].device_kind} x {len(devices)}"
