"""The entries of this package. They name the data set as text, so it is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_datasets() -> list[Entry]:
    """List the data set of this package."""
    return [Entry("template-name", "bnnzoo_template_name.dataset:load", "a noisy wave")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe of this package."""
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
