"""Construction of posteriors: from a recipe and training rows, from the file of a run, or from a NumPyro model."""

from bnnzoo.assembly.problem import Problem
from bnnzoo.assembly.restored_model import RestoredModel

__all__ = ["Problem", "RestoredModel"]
