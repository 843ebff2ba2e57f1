"""The public names: the same object on every access, in any order; known to type checkers."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

import bnnzoo

CHECK = """
import sys, bnnzoo
names = {names!r}
first = {{name: getattr(bnnzoo, name) for name in names}}
import bnnzoo.posterior.hyperparameter, bnnzoo.posterior.numpyro
import bnnzoo.api.run, bnnzoo.api.entrances, bnnzoo.api.compare
assert all(getattr(bnnzoo, name) is first[name] for name in reversed(names))
assert type(bnnzoo.number).__name__ == type(bnnzoo.sample).__name__ == "function"
assert not [name for name in names if "bnnzoo." + name in sys.modules]
"""


@pytest.mark.long
def test_every_name_is_one_object_in_any_order():
    names = list(bnnzoo.__all__)
    random.Random(0).shuffle(names)
    subprocess.run([sys.executable, "-c", CHECK.format(names=names)], check=True)


@pytest.mark.long
def test_the_module_first_and_then_the_name():
    code = (
        "import bnnzoo, bnnzoo.posterior.hyperparameter, bnnzoo.api.entrances; "
        "bnnzoo.api.entrances; bnnzoo.Layout; bnnzoo.number(0.1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, bnnzoo; dir(bnnzoo); assert not {'jax', 'numpy', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
