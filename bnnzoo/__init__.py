"""A zoo of Bayesian neural networks on JAX: any model with any sampler.

Names are imported on first use, so that `import bnnzoo` does not import JAX.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

# Each line of the stub is `from MODULE import NAME as NAME`. The stub is the only list of names, for type checkers and
# for this module.
_LINE = re.compile(r"^from (\S+) import \w+ as (\w+)$", re.MULTILINE)
_HOME_OF = {name: home for home, name in _LINE.findall(Path(__file__).with_suffix(".pyi").read_text("utf-8"))}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    value = getattr(import_module(_HOME_OF[name]), name) if name in _HOME_OF else _from_another_package(name)
    globals()[name] = value  # a later access returns the same object, whatever was imported in between
    return value


def _from_another_package(name: str) -> Any:
    """Return a class that moved to another package, from that package.

    Raises:
        AttributeError: if the name is unknown, or with the package if it is not installed.
    """
    distribution = import_module("bnnzoo.plugins.builtin").CLASSES_ELSEWHERE.get(name)
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
