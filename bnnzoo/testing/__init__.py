"""One suite for every sampler, the zoo's and those of plugins: draws against posteriors with known answers."""

from bnnzoo.testing.check import assert_exact, check_sampler
from bnnzoo.testing.report import Outcome, Report, Row
from bnnzoo.testing.targets import TARGETS, Target

__all__ = ["TARGETS", "Outcome", "Report", "Row", "Target", "assert_exact", "check_sampler"]
