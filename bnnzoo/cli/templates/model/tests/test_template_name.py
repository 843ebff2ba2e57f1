"""Tests that the model is registered and its networks meet the requirements of every sampler."""

from bnnzoo.plugins import registry
from bnnzoo.testing import check_model

from bnnzoo_template_name.model import TemplateName


def test_is_registered():
    assert registry.load("models", "template-name") is TemplateName


def test_networks():
    report = check_model(TemplateName(width=3), inputs=[(2,), (4, 4)])
    assert report.passed, str(report)
