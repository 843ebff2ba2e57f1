"""Checks of samplers (on posteriors with known moments), models, likelihoods and priors, for plugin authors."""

from bnnzoo.testing.calibration import check_calibration
from bnnzoo.testing.calibration_report import CalibrationReport
from bnnzoo.testing.likelihood import check_likelihood
from bnnzoo.testing.model import check_model
from bnnzoo.testing.model_report import ModelReport, Result
from bnnzoo.testing.part_report import PartReport, PartResult
from bnnzoo.testing.prior import check_prior
from bnnzoo.testing.sampler import assert_exact, check_sampler
from bnnzoo.testing.sampler_report import Outcome, Row, SamplerReport
from bnnzoo.testing.targets import TARGETS, Target, conjugate_line

__all__ = [
    "TARGETS",
    "CalibrationReport",
    "ModelReport",
    "Outcome",
    "PartReport",
    "PartResult",
    "Result",
    "Row",
    "SamplerReport",
    "Target",
    "assert_exact",
    "check_calibration",
    "check_likelihood",
    "check_model",
    "check_prior",
    "check_sampler",
    "conjugate_line",
]
