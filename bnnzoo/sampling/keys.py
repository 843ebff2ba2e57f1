"""The named random keys of a run, all derived from one seed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PRNGKeyArray


class Keys(NamedTuple):
    """The random keys of a seed, with a separate key for each use."""

    positions: PRNGKeyArray
    """Initial positions of the chains."""
    states: PRNGKeyArray
    """First states of the sampler at the initial positions."""
    tune: PRNGKeyArray
    """The sampler's `tune`."""
    settle: PRNGKeyArray
    """The sampler's `settle`, and its `inspect` after the last draw."""
    chain: PRNGKeyArray
    """Sampling steps: step t of chain c uses `fold_in(fold_in(chain, c), t)`."""
    fixed: PRNGKeyArray
    """Training of the parameters that are not sampled, and search for the sampled directions (`subspace_start`)."""
    transport: PRNGKeyArray
    """Moving chains from prior draws to the posterior."""
    restart: PRNGKeyArray
    """New positions of stragglers."""
    noise: PRNGKeyArray
    """Networks compared to select a likelihood or a model; derived from the recipe's `split_seed`, not from `seed`."""

    @classmethod
    def from_seed(cls, seed: int) -> Keys:
        """Derive the keys of a seed, with Threefry, so that the draws do not depend on JAX's default generator."""
        root = jax.random.key(seed, impl="threefry2x32")
        # A key that is added later gets the next free number, so the numbers are not in the order of the fields. Other
        # numbers would change the draws of a seed.
        return cls(*(jax.random.fold_in(root, i) for i in (0, 4, 1, 2, 3, 5, 6, 7, 8)))


def keys_by_chain(key: PRNGKeyArray, num_chains: int) -> Key[Array, " chain"]:
    """Return a key for each chain. The key of chain c does not depend on the number of chains."""
    return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(num_chains, dtype=jnp.uint32))
