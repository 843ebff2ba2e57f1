"""What this package offers. Text only: the likelihood is imported when it is used."""

from bnnzoo.hookspecs import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_likelihoods() -> list[Entry]:
    return [Entry("template-name", "bnnzoo_template_name.likelihood:TemplateName", "Laplace noise: absolute errors")]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    return [Entry("template-name", "bnnzoo_template_name:recipes/template-name.yaml", "")]
