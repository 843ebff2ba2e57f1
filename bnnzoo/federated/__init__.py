"""Posteriors of rows that stay where they are: parties that send sums, and a coordinator that runs the chains."""

from bnnzoo.federated.coordinator import Coordinator
from bnnzoo.federated.lines import DaskLine, Line, security
from bnnzoo.federated.log import read_log, show_log
from bnnzoo.federated.party import Party
from bnnzoo.federated.server import serve

__all__ = ["Coordinator", "DaskLine", "Line", "Party", "read_log", "security", "serve", "show_log"]
