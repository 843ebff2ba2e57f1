"""The correction variable of Barker's test: a discrete variable whose sum with N(0, 1) is nearly logistic.

    python benchmarks/barker_correction.py

Seita et al. 2017 compute this variable by ridge regression on a fine grid, and set negative weights to zero. Here it is
computed by a linear program. The weights w_k >= 0 of the points -a_k and a_k minimise the largest error of the log odds
of the acceptance, |G(x) - F(x)| / (F(x) (1 - F(x))) over |x| <= 12, with the logistic distribution function F and

    G(x) = sum_k w_k (Phi(x - a_k) + Phi(x + a_k)) / 2.

The script prints the table of `bnnzoo_minibatch_tests.correction` and the errors of the printed numbers. No sum of a
normal and another variable is exactly logistic: the characteristic function of the other variable would be
pi t / sinh(pi t) exp(t^2 / 2), which is unbounded.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit, ndtr

SPACING, FARTHEST, REACH = 0.2, 17.0, 12.0


def normal_sum(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return P(N(0, 1) + X <= x) as a matrix [x, point], where X is -a or a with equal probability for the point a."""
    return (ndtr(x[:, None] - points) + ndtr(x[:, None] + points)) / 2


def solve_weights(points: np.ndarray) -> np.ndarray:
    """Return the weights of the points that minimise the largest error of the log odds.

    The variables of the linear program are w_k e^a_k, because these numbers have similar sizes.
    """
    x = -np.linspace(0, REACH, 481)
    scale = expit(x) * expit(-x)
    columns = normal_sum(x, points) * np.exp(-points) / scale[:, None]
    target, ones = expit(x) / scale, np.ones((len(x), 1))
    above, below = np.hstack([columns, -ones]), np.hstack([-columns, -ones])
    solution = linprog(
        np.r_[np.zeros(len(points)), 1.0],
        A_ub=np.vstack([above, below]),
        b_ub=np.r_[target, -target],
        A_eq=np.r_[np.exp(-points), 0.0][None],
        b_eq=[1.0],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return solution.x[:-1] * np.exp(-points)


def main() -> None:
    """Print the table of points and weights, and the largest errors of the probability and of its log odds."""
    points = np.arange(0.0, FARTHEST + SPACING / 2, SPACING)
    weights = solve_weights(points)
    is_positive = weights > 1e-12
    points, weights = points[is_positive], np.array([float(f"{w:.10g}") for w in weights[is_positive]])
    for point, weight in zip(points, weights, strict=True):
        print(f"    ({point:.4g}, {weight:.10g}),")
    x = -np.linspace(0, REACH, 20_001)
    error = np.abs(normal_sum(x, points) @ weights / weights.sum() - expit(x))
    print(f"{len(points)} points; largest error of the probability {error.max():.2g},", end=" ")
    print(f"of the log odds {(error / expit(x) / expit(-x)).max():.2g}")


if __name__ == "__main__":
    main()
