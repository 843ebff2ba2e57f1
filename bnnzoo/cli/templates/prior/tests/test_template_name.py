"""Tests that the prior is registered and meets the requirements of samplers and evidence."""

from bnnzoo.plugins import registry
from bnnzoo.testing import check_prior

from bnnzoo_template_name.prior import TemplateName


def test_is_registered():
    assert registry.load("priors", "template-name") is TemplateName


def test_passes_its_checks():
    report = check_prior(TemplateName())
    assert report.passed, str(report)
