"""What this package offers. Text only: the data set is imported when it is used."""

from bnnzoo.hookspecs import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_datasets() -> list[Entry]:
    return [Entry("template-name", "bnnzoo_template_name.dataset:load", "a noisy wave")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
