"""Observers, which log a run while it is running: their interface, the built-in ones, and their lookup by name."""

from bnnzoo.observers.base import AbstractObserver as AbstractObserver
from bnnzoo.observers.base import ChunkReport as ChunkReport
from bnnzoo.observers.base import Report as Report
from bnnzoo.observers.base import RunEnd as RunEnd
from bnnzoo.observers.base import RunFailure as RunFailure
from bnnzoo.observers.base import RunStart as RunStart
