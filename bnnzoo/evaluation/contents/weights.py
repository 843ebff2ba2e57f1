"""Statistics of each block of parameters over the draws, computed in one pass over the draws."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from bnnzoo.evaluation.contents.draws import Draws, draw_slices
from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.formulas.rhat import worst_rhat

_STANDSTILL = 10
"""Smallest number of consecutive equal draws in a stuck chain."""
_MAX_SAMPLED_WEIGHTS = 50
"""Largest number of weights of a block, evenly spaced, whose R-hats are computed."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Statistics of a block of parameters at each draw: squared norm, sum of the weights, and some of the weights."""

    size: int
    squares: Float[np.ndarray, "chain draw"]
    totals: Float[np.ndarray, "chain draw"]
    sampled_weights: Float[np.ndarray, "chain draw weight"]

    def row(self) -> dict[str, int | float]:
        """Return one row of a table of blocks.

        - `parameters`: number of weights in the block.
        - `norm`: mean over the draws of the Euclidean norm of the block.
        - `mean`, `sd`: mean and standard deviation over all weights and draws.
        - `rhat`: largest R-hat of at most 50 evenly spaced weights.
        - `rhat_norm`: R-hat of the Euclidean norm. The norm does not depend on the order of the units of a layer.
        """
        norm = np.sqrt(self.squares)
        mean = float(self.totals.mean()) / self.size
        return {
            "parameters": self.size,
            "norm": float(norm.mean()),
            "mean": mean,
            "sd": float(max(self.squares.mean() / self.size - mean**2, 0.0) ** 0.5),
            "rhat": worst_rhat(self.sampled_weights),
            "rhat_norm": worst_rhat(norm[:, :, None]),
        }


@dataclasses.dataclass(frozen=True)
class Weights:
    """Statistics of all blocks, by name, and changes between consecutive draws of a chain."""

    blocks: dict[str, Block]
    has_moved: Bool[np.ndarray, "chain step"]
    """Whether each draw, from the second on, differs from the previous draw of the chain."""
    changes: UInt8[np.ndarray, "chain dim"]
    """Number of draws in which each parameter differs from the previous draw of the chain; 2 means two or more."""

    @classmethod
    def from_draws(
        cls, draws: Draws | Float[np.ndarray, "draw dim"], sizes: Mapping[str, int], shape: tuple[int, int]
    ) -> Weights:
        """Read the draws once, in pieces, and compute the statistics.

        Args:
            draws: the draws of all chains, one chain after the other.
            sizes: number of parameters of each block, by name, in the order of theta.
            shape: number of chains, and number of draws per chain.
        """
        count, stops = shape[0] * shape[1], itertools.accumulate(sizes.values())
        spans = {name: slice(stop - size, stop) for stop, (name, size) in zip(stops, sizes.items(), strict=True)}
        squares, totals = (np.empty((len(sizes), count)) for _ in range(2))
        sampled_indices = {
            name: span.start + evenly(span.stop - span.start, _MAX_SAMPLED_WEIGHTS) for name, span in spans.items()
        }
        sampled_values = {name: np.empty((count, len(index))) for name, index in sampled_indices.items()}
        has_moved, last_theta = np.zeros(count, bool), None
        changes = np.zeros((shape[0], draws[0:1].shape[1]), np.uint8)
        for piece in draw_slices(draws, count):
            thetas = draws[piece]
            for number, (name, span) in enumerate(spans.items()):
                values = thetas[:, span]
                squares[number, piece] = np.einsum("ij,ij->i", values, values, dtype=np.float64)
                totals[number, piece] = np.sum(values, 1, dtype=np.float64)
                sampled_values[name][piece] = thetas[:, sampled_indices[name]]
            previous = thetas[:-1] if last_theta is None else np.concatenate([last_theta[None], thetas[:-1]])
            differs = thetas[len(thetas) - len(previous) :] != previous
            steps = np.arange(piece.stop - len(previous), piece.stop)
            has_moved[steps] = differs.any(1)
            # The first draw of a chain has no previous draw.
            for chain in np.unique(steps // shape[1]):
                chain_changes = differs[(steps // shape[1] == chain) & (steps % shape[1] > 0)]
                changes[chain] = np.minimum(changes[chain] + np.minimum(chain_changes.sum(0), 2), 2)
            last_theta = thetas[-1].copy()
        blocks_by_name = {
            name: Block(
                size, squares[i].reshape(shape), totals[i].reshape(shape), sampled_values[name].reshape(*shape, -1)
            )
            for i, (name, size) in enumerate(sizes.items())
        }
        return cls(blocks_by_name, has_moved.reshape(shape)[:, 1:], changes)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per block."""
        return [{"block": name, **block.row()} for name, block in self.blocks.items()]

    def still_chains(self) -> int:
        """Return the number of stuck chains.

        A chain is stuck if at least half of its draws, and at least ten draws, are consecutive and equal. A few
        rejections in a row are therefore not counted.
        """
        num_still, num_draws = 0, self.has_moved.shape[1] + 1
        for chain_moves in self.has_moved:
            longest_standstill = np.diff(np.concatenate([[-1], np.flatnonzero(chain_moves), [num_draws - 1]])).max()
            num_still += int(longest_standstill >= max(num_draws / 2, _STANDSTILL))
        return num_still
