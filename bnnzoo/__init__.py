"""A zoo of Bayesian neural networks on JAX: any model with any sampler.

Names are imported on first use, so that `import bnnzoo` does not import JAX.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

# Each line of the stub `__init__.pyi` is `from MODULE import NAME as NAME`. The stub is the only list of public names:
# type checkers and this module both read it.
_LINE = re.compile(r"^from (\S+) import \w+ as (\w+)$", re.MULTILINE)
_HOME_OF = {name: home for home, name in _LINE.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    value = getattr(import_module(_HOME_OF[name]), name) if name in _HOME_OF else _from_another_package(name)
    globals()[name] = value  # later accesses return the same object without this function
    return value


def _from_another_package(name: str) -> Any:
    """Import a class that moved from bnnzoo to a separate package.

    Raises:
        AttributeError: if the name is unknown, or if its package is not installed; the message then names the package.
    """
    distribution = import_module("bnnzoo.plugins.builtin").EXTERNAL_CLASSES.get(name)
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
