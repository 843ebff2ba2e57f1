"""Construction of posteriors from a recipe and its rows, from a run's file, or by hand."""

from bnnzoo.assembly.problem import Problem
from bnnzoo.assembly.restored_model import RestoredModel

__all__ = ["Problem", "RestoredModel"]
