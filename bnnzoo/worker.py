"""A thread for calls that would keep the host waiting: on a CPU JAX returns from a program only when it is done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax


@contextlib.contextmanager
def worker() -> Iterator[Callable[..., Future]]:
    """`submit(function, *arguments)` to a thread, in the arithmetic of this one: JAX keeps that by thread."""
    config: Any = jax.config
    precision, x64 = config.jax_default_matmul_precision, config.jax_enable_x64

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        with jax.default_matmul_precision(precision), jax.enable_x64(x64):
            return function(*arguments)

    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(call, function, *arguments)
