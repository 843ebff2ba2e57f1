"""Distances between predictive distributions, from distribution functions at points or from class probabilities."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int

MAX_SPLITS = 50
"""Largest number of divisions of the chains into two halves. Eight chains have 35 divisions."""


def total_variation(
    first: Float[np.ndarray, "point *row"], second: Float[np.ndarray, "point *row"]
) -> Float[np.ndarray, "*row"]:
    """Return the total variation distance, sup_A |P(A) - Q(A)|, over sets A that are unions of bins.

    The value is half of the sum of |P(bin) - Q(bin)| (Levin and Peres 2017, Markov Chains and Mixing Times, proposition
    4.2). The bins lie between neighbouring points and outside of all points, so the value is at most the distance of
    the distributions. If the variables are whole numbers, and all whole numbers are points, the value equals the
    distance.

    Args:
        first: the distribution function of P at increasing points.
        second: the distribution function of Q at the same points.
    """
    difference = first - second
    outside = np.zeros((1, *difference.shape[1:]))
    return np.abs(np.diff(difference, axis=0, prepend=outside, append=outside)).sum(0) / 2


def wasserstein(
    points: Float[np.ndarray, "point *row"],
    first: Float[np.ndarray, "point *row"],
    second: Float[np.ndarray, "point *row"],
    *,
    is_discrete: bool = False,
) -> Float[np.ndarray, "*row"]:
    """Return the 1-Wasserstein distance, the integral of |F - G| (Vallender 1974), in the units of the points.

    Args:
        points: increasing points, outside of which both distributions have almost no probability.
        first: the distribution function F at the points.
        second: the distribution function G at the points.
        is_discrete: whether F and G are constant between neighbouring points; else the trapezoidal rule is used.
    """
    return _integral(points, np.abs(first - second), is_discrete)


def energy_distance(
    points: Float[np.ndarray, "point *row"],
    first: Float[np.ndarray, "point *row"],
    second: Float[np.ndarray, "point *row"],
    *,
    is_discrete: bool = False,
) -> Float[np.ndarray, "*row"]:
    """Return the squared energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'|, in the units of the points.

    X and X' are independent with the distribution function F (`first`), Y and Y' with G (`second`). The distance equals
    twice the integral of (F - G)^2 (Szekely and Rizzo 2013, Journal of Statistical Planning and Inference
    143). The arguments are those of `wasserstein`.
    """
    return 2 * _integral(points, (first - second) ** 2, is_discrete)


def class_total_variation(
    first: Float[np.ndarray, "row class"], second: Float[np.ndarray, "row class"]
) -> Float[np.ndarray, " row"]:
    """Return the total variation distance, sum_c |p_c - q_c| / 2, of class probabilities p and q."""
    return np.abs(first - second).sum(-1) / 2


def class_energy_distance(
    first: Float[np.ndarray, "row class"], second: Float[np.ndarray, "row class"]
) -> Float[np.ndarray, " row"]:
    """Return the squared energy distance, sum_c (p_c - q_c)^2, of class probabilities p and q.

    The squared distance is 2 E d(X, Y) - E d(X, X') - E d(Y, Y') for independent X, X' from p and Y, Y' from q, where d
    is 1 for different classes and 0 for equal classes.
    """
    return ((first - second) ** 2).sum(-1)


def halves(num_chains: int) -> list[tuple[Int[np.ndarray, " half"], Int[np.ndarray, " half"]]]:
    """Return all divisions of an even number of chains into two halves, but at most `MAX_SPLITS`, evenly spaced.

    The first chain is in the first half, so that no division occurs twice.
    """
    size = num_chains // 2 - 1
    total = math.comb(num_chains - 1, size)
    divisions = []
    for number in np.linspace(0, total - 1, min(total, MAX_SPLITS)).round():
        first = np.array([0, *_combination(1, num_chains, size, int(number))])
        divisions.append((first, np.setdiff1d(np.arange(num_chains), first)))
    return divisions


def _combination(start: int, stop: int, size: int, number: int) -> list[int]:
    """Return the combination of `size` integers in [start, stop) at position `number` of the lexicographic order."""
    members: list[int] = []
    for value in range(start, stop):
        if len(members) == size:
            break
        with_value = math.comb(stop - value - 1, size - len(members) - 1)
        if number < with_value:
            members.append(value)
        else:
            number -= with_value
    return members


def _integral(
    points: Float[np.ndarray, "point *row"], values: Float[np.ndarray, "point *row"], is_discrete: bool
) -> Float[np.ndarray, "*row"]:
    widths = np.diff(points, axis=0)
    heights = values[:-1] if is_discrete else (values[1:] + values[:-1]) / 2
    return (widths * heights).sum(0)
