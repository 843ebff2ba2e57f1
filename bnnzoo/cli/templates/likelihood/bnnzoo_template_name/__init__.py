"""The entries of this package. They name the likelihood as text, so it is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_likelihoods() -> list[Entry]:
    """List the likelihood of this package."""
    return [Entry("template-name", "bnnzoo_template_name.likelihood:TemplateName", "Laplace noise: absolute errors")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe of this package."""
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
