"""Tests that the sampler is registered and exact on posteriors with known answers."""

from bnnzoo.plugins import registry
from bnnzoo.testing import assert_exact

from bnnzoo_template_name.sampler import TemplateName


def test_is_registered():
    assert registry.load("samplers", "template-name") is TemplateName
    assert registry.find("samplers", "template-name").exactness == TemplateName.exactness


def test_is_exact():
    # This takes seconds; `bnnzoo check sampler template-name` uses all targets.
    assert_exact(TemplateName(), targets=("gaussian", "skewed"))
