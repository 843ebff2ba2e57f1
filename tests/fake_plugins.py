"""Fake distributions on disk: a module and its `dist-info`, as an installer leaves them."""

from __future__ import annotations

from pathlib import Path

GOOD = """
from bnnzoo import Entry, hookimpl

@hookimpl
def bnnzoo_samplers():
    return [Entry("{name}", "{module}_target:Thing", "a thing", "exact")]
"""

BROKEN = {
    "import-error": ("import a_module_that_is_missing\n", "ModuleNotFoundError: No module named"),
    "exit": ("import sys\nsys.exit(7)\n", "SystemExit: 7"),
    "signature": (
        "from bnnzoo import hookimpl\n@hookimpl\ndef bnnzoo_samplers(config): return []\n",
        "PluginValidationError",
    ),
    "raises": (
        "from bnnzoo import hookimpl\n@hookimpl\ndef bnnzoo_models(): raise ZeroDivisionError('oops')\n",
        "ZeroDivisionError: oops",
    ),
    "returns-none": (
        "from bnnzoo import hookimpl\n@hookimpl\ndef bnnzoo_models(): pass\n",
        "bnnzoo_models: must return a list of bnnzoo.Entry (got NoneType)",
    ),
    "returns-strings": (
        "from bnnzoo import hookimpl\n@hookimpl\ndef bnnzoo_models(): return ['mlp2']\n",
        "must return a list of bnnzoo.Entry (got a list with str)",
    ),
    "misspelt": (
        "from bnnzoo import hookimpl\n@hookimpl\ndef bnnzoo_sampler(): return []\n",
        "unknown hook bnnzoo_sampler; did you mean bnnzoo_samplers?",
    ),
    "unmarked": ("def bnnzoo_samplers(): return []\n", "the hook bnnzoo_samplers has no decorator"),
    "api": ("BNNZOO_API = 99\n", "requires plugin API 99"),
    "bad-name": (
        "from bnnzoo import Entry, hookimpl\n@hookimpl\ndef bnnzoo_models(): return [Entry('../etc', 'a.b:C', 'x')]\n",
        "invalid name '../etc'",
    ),
    "bad-target": (
        "from bnnzoo import Entry, hookimpl\n@hookimpl\ndef bnnzoo_models(): return [Entry('fine', 'a.b', 'x')]\n",
        "invalid target 'a.b'",
    ),
    "bad-exactness": (
        "from bnnzoo import Entry, hookimpl\n"
        "@hookimpl\ndef bnnzoo_samplers(): return [Entry('fine', 'a.b:C', 'x', 'perfect')]\n",
        "invalid exactness 'perfect'",
    ),
}
"""Broken plugins: the module, and the text that the one-line report must contain."""


THING = """
from bnnzoo import AbstractSampler

class Thing(AbstractSampler):
    exactness = 'exact'
    def init(self, posterior, theta, *, num_warmup, key): ...
    def step(self, posterior, state, *, key): ...
"""


def install(site: Path, distribution: str, source: str, version: str = "0.2") -> str:
    """Write a distribution with one plugin module into `site`; return the name of the module."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[bnnzoo]\n{distribution} = {module}\n")
    return module


def install_good(site: Path, distribution: str, name: str) -> str:
    """Install a plugin that offers one sampler with an existing module."""
    module = distribution.replace("-", "_")
    (site / f"{module}_target.py").write_text(THING)
    return install(site, distribution, GOOD.format(name=name, module=module))
