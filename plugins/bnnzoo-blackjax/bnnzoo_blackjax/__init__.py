"""Entries of this plugin. Samplers are named as text, so that BlackJAX is imported only when a sampler is used."""

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """Return the plugin's samplers."""
    return [
        Entry(
            "adjusted-mclmc",
            "bnnzoo_blackjax.adjusted_mclmc:AdjustedMclmc",
            "microcanonical Langevin trajectories, accepted or rejected (BlackJAX)",
            "exact",
        ),
        Entry("blackjax-nuts", "bnnzoo_blackjax.kernels:Nuts", "BlackJAX's No-U-Turn sampler", "exact"),
        Entry("blackjax-hmc", "bnnzoo_blackjax.kernels:Hmc", "BlackJAX's Hamiltonian Monte Carlo", "exact"),
        Entry("barker", "bnnzoo_blackjax.kernels:Barker", "BlackJAX's Barker proposal: one gradient per step", "exact"),
    ]
