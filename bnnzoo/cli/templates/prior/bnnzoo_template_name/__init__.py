"""The entries of this package. They name the prior as text, so it is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_priors() -> list[Entry]:
    """List the prior of this package."""
    return [Entry("template-name", "bnnzoo_template_name.prior:TemplateName", "Student's t on every parameter")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe of this package."""
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
