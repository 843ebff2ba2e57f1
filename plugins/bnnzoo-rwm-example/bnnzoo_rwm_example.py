"""What this plugin offers. Text only: the sampler is imported when it is used."""

from bnnzoo.hookspecs import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    target = "bnnzoo_rwm_example_sampler:Rwm"
    return [Entry("rwm-example", target, "random-walk Metropolis, the plugin example", "exact")]
