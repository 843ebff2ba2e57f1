"""The named keys of a run: all its randomness, from one seed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PRNGKeyArray


class Keys(NamedTuple):
    """The keys of a seed; nothing shares a key with anything else."""

    positions: PRNGKeyArray
    """Where the chains start."""
    states: PRNGKeyArray
    """The samplers' first states there."""
    tune: PRNGKeyArray
    settle: PRNGKeyArray
    chain: PRNGKeyArray
    """The steps: that of step t of chain c is `fold_in(fold_in(chain, c), t)`."""
    fixed: PRNGKeyArray
    """The part of the network that is not sampled."""
    transport: PRNGKeyArray
    """From draws of the prior to the posterior."""
    restart: PRNGKeyArray
    """Where chains that were left behind begin again."""
    noise: PRNGKeyArray
    """Networks that a likelihood is chosen by."""

    @classmethod
    def of(cls, seed: int) -> Keys:
        """Threefry whatever JAX's default is: the draws of a seed shall not depend on a setting."""
        root = jax.random.key(seed, impl="threefry2x32")
        # The numbers are in the order in which the keys came to be; another number is another run.
        return cls(*(jax.random.fold_in(root, i) for i in (0, 4, 1, 2, 3, 5, 6, 7, 8)))


def by_chain(key: PRNGKeyArray, num_chains: int) -> Key[Array, " chain"]:
    """A key for each chain, the same for chain c however many there are."""
    return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(num_chains, dtype=jnp.uint32))
