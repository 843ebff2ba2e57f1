"""A class is abstract or final: no class that can be instantiated is the base of another."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import equinox as eqx

import bnnzoo.models
import bnnzoo.posterior
import bnnzoo.samplers
import bnnzoo.sampling

PACKAGES = (bnnzoo.posterior, bnnzoo.models, bnnzoo.samplers, bnnzoo.sampling)


def test_no_concrete_module_class_has_subclasses():
    result, count = [], 0
    for package in PACKAGES:
        for about in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            module = importlib.import_module(about.name)
            for _, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == module.__name__ and issubclass(kind, eqx.Module):
                    ours = [base for base in kind.__bases__ if base.__module__.startswith("bnnzoo")]
                    result += [f"{kind.__name__}({b.__name__})" for b in ours if not b.__name__.startswith("Abstract")]
                    count += len(ours)
    assert count > 30
    assert result == []
