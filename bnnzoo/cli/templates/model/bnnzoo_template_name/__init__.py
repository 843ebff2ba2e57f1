"""The entries of this package. They name the model as text, so it is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_models() -> list[Entry]:
    """List the model of this package."""
    return [Entry("template-name", "bnnzoo_template_name.model:TemplateName", "one hidden layer")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe of this package."""
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
