"""Many runs at once: a sweep's jobs, and the executors that run each in a process of its own, here or elsewhere."""

from bnnzoo.fleet.dask import DaskExecutor
from bnnzoo.fleet.executor import AbstractExecutor, Outcome, Tell
from bnnzoo.fleet.job import Job
from bnnzoo.fleet.local import LocalExecutor
from bnnzoo.fleet.sweep import Point, points, seeds_of

__all__ = [
    "AbstractExecutor",
    "DaskExecutor",
    "Job",
    "LocalExecutor",
    "Outcome",
    "Point",
    "Tell",
    "points",
    "seeds_of",
]
