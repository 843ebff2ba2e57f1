"""Fleets: all runs of one `bnnzoo zoo run`. A run is called a job and has its own local or remote process.

`row_shards` is for a single run: the workers of a cluster hold its rows, and compute sums over them.
"""

from bnnzoo.fleet.dask import DaskExecutor as DaskExecutor
from bnnzoo.fleet.executor import AbstractExecutor as AbstractExecutor
from bnnzoo.fleet.executor import Outcome as Outcome
from bnnzoo.fleet.executor import Tell as Tell
from bnnzoo.fleet.job import Job as Job
from bnnzoo.fleet.local import LocalExecutor as LocalExecutor
from bnnzoo.fleet.sweep import Point as Point
from bnnzoo.fleet.sweep import parse_seeds as parse_seeds
from bnnzoo.fleet.sweep import points as points
