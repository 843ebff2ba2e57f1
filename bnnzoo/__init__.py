"""A zoo of Bayesian neural networks on JAX: any model with any sampler.

Names are resolved on first use: importing bnnzoo imports no JAX.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

# `from MODULE import NAME as NAME`, a line a name: the stub is the one list, for type checkers and for us.
_LINE = re.compile(r"^from (\S+) import \w+ as (\w+)$", re.MULTILINE)
_HOME_OF = {name: home for home, name in _LINE.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    value = getattr(import_module(_HOME_OF[name]), name) if name in _HOME_OF else _from_another_package(name)
    globals()[name] = value  # the second access meets the same object, whatever was imported in between
    return value


def _from_another_package(name: str) -> Any:
    """Return a class that was taken out of this package, from the package that has it.

    Raises:
        AttributeError: naming that package, where it is not installed.
    """
    distribution = import_module("bnnzoo.plugin").CLASSES_ELSEWHERE.get(name)
    if distribution is None:
        raise AttributeError(f"module 'bnnzoo' has no attribute {name!r}")
    module = distribution.replace("-", "_")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"bnnzoo.{name} is in the package {distribution}: pip install {distribution}") from error


def __dir__() -> list[str]:
    return __all__
