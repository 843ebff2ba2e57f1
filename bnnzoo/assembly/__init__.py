"""The one road to a posterior: from a recipe and its rows, from a run's file, or a posterior made by hand."""

from bnnzoo.assembly.known import Known
from bnnzoo.assembly.problem import Problem

__all__ = ["Known", "Problem"]
