"""JAX as a run needs it: host devices before it starts, and what decides its draws."""

from __future__ import annotations

import contextlib
from importlib.metadata import version

import jax

from bnnzoo.posterior.backend import arithmetic as arithmetic
from bnnzoo.posterior.backend import keep_programs
from bnnzoo.sampling.placement import Method, host_devices

_VERSIONS = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")


def prepare(method: Method, num_chains: int) -> None:
    """Split the CPU into as many devices as the chains want, if JAX has not started, and turn the cache on."""
    with contextlib.suppress(RuntimeError):
        # Refused once JAX runs: then the devices there are must do.
        jax.config.update("jax_num_cpu_devices", host_devices(method, num_chains))
    keep_programs()


def versions() -> dict[str, str]:
    """Of everything that decides a draw."""
    return {name: version(name) for name in _VERSIONS}


def device() -> str:
    """The kind of device and how many there are: "cpu x 4"."""
    devices = jax.local_devices()
    return f"{devices[0].device_kind} x {len(devices)}"
