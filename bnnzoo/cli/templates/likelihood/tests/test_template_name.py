"""Tests that the likelihood is registered and meets the requirements of samplers, predictions and scores."""

from bnnzoo.plugins import registry
from bnnzoo.testing import check_likelihood

from bnnzoo_template_name.likelihood import TemplateName


def test_is_registered():
    assert registry.load("likelihoods", "template-name") is TemplateName


def test_passes_its_checks():
    report = check_likelihood(TemplateName())
    assert report.passed, str(report)
