"""A background thread for calls that block: on a CPU, a compiled program returns only when it has finished."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

_SETTINGS: tuple[Callable[[Any], Any], ...] = (
    jax.default_matmul_precision,
    jax.enable_x64,
    jax.default_device,
    jax.default_prng_impl,
    jax.threefry_partitionable,
    jax.debug_nans,
    jax.debug_infs,
)


Submit = Callable[..., Future]
"""Type of `submit(function, *arguments)`, which calls the function in the thread of a `worker`."""


@contextlib.contextmanager
def worker() -> Iterator[Submit]:
    """Yield `submit(function, *arguments)`, which calls a function in a background thread.

    The thread has the JAX settings of the caller, because JAX keeps settings separately for each thread.
    """
    config: Any = jax.config
    settings = [(setting, getattr(config, f"jax_{setting.__name__}")) for setting in _SETTINGS]

    def call_with_settings(function: Callable[..., Any], *arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for setting, value in settings:
                stack.enter_context(setting(value))
            return function(*arguments)

    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(call_with_settings, function, *arguments)
