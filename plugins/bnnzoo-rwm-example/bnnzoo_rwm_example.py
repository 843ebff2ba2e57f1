"""Entries of this plugin. The sampler is named as text, so that its module is imported only when it is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """Return the plugin's samplers."""
    target = "bnnzoo_rwm_example_sampler:Rwm"
    return [Entry("rwm-example", target, "random-walk Metropolis, the plugin example", "exact")]
