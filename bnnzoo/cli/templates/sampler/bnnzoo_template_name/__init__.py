"""The entries of this package. They name the sampler as text, so it is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """List the sampler of this package."""
    return [Entry("template-name", "bnnzoo_template_name.sampler:TemplateName", "random-walk Metropolis", "exact")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe of this package."""
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
