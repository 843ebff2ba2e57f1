"""Many runs at once: the jobs of a sweep, and executors that run each job in its own process, local or remote."""

from bnnzoo.fleet.dask import DaskExecutor
from bnnzoo.fleet.executor import AbstractExecutor, Outcome, Tell
from bnnzoo.fleet.job import Job
from bnnzoo.fleet.local import LocalExecutor
from bnnzoo.fleet.sweep import Point, parse_seeds, points

__all__ = [
    "AbstractExecutor",
    "DaskExecutor",
    "Job",
    "LocalExecutor",
    "Outcome",
    "Point",
    "Tell",
    "parse_seeds",
    "points",
]
