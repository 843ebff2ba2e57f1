"""Construction of posteriors from a recipe and its rows, from a run's file, or by hand."""

from bnnzoo.assembly.known import Known
from bnnzoo.assembly.problem import Problem

__all__ = ["Known", "Problem"]
