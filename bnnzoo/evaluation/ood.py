"""Does a model know what it does not know? Scores of familiar and unfamiliar inputs, and how well they part them."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.evaluation import metrics
from bnnzoo.evaluation.predictive import Moments

Scores = dict[str, Float[np.ndarray, " _"]]


@dataclasses.dataclass(frozen=True)
class OodScores:
    """One score a row and kind, of the test rows (`inside`) and the unfamiliar ones (`outside`).

    Classification: `max_probability`, `entropy`, and of the posterior `mutual_information`, in nats. Regression, in
    training standard deviations of the targets: `sd`, and of the posterior `epistemic_sd`. `single` is the best draw
    alone.
    """

    name: str
    inside: Scores
    outside: Scores
    single_inside: Scores
    single_outside: Scores

    def summary(self) -> dict[str, int | float]:
        """Flat: the mean of each score, and by each the AUROC (unfamiliar rows higher) and the FPR at 95 % TPR."""
        found: dict[str, int | float] = {"ood_rows": len(next(iter(self.outside.values())))}
        pairs = (("", self.inside, self.outside), ("_single", self.single_inside, self.single_outside))
        for end, inside, outside in pairs:
            for name in inside:
                sign = -1.0 if name == "max_probability" else 1.0
                values = sign * np.concatenate([inside[name], outside[name]])
                is_outside = np.arange(len(values)) >= len(inside[name])
                area = metrics.auroc(values, is_outside)
                found[f"test_{name}{end}"] = float(np.mean(inside[name]))
                found[f"ood_{name}{end}"] = float(np.mean(outside[name]))
                found[f"ood_auroc_{name}{end}"] = area.value
                found[f"ood_auroc_{name}{end}_se"] = area.se
                found[f"ood_fpr95_{name}{end}"] = metrics.false_positive_rate(sign * inside[name], sign * outside[name])
        return found


def scores(moments: Moments, *, classify: bool, single: bool) -> Scores:
    """The scores of rows with these moments; those about the spread of draws are left out of a `single` one."""
    if classify:
        found = {"max_probability": moments.mean.max(1), "entropy": metrics.entropy(moments.mean)}
        return found if single else {**found, "mutual_information": moments.epistemic[:, 0]}
    found = {"sd": np.sqrt(np.mean(moments.aleatoric + moments.epistemic, 1))}
    return found if single else {**found, "epistemic_sd": np.sqrt(np.mean(moments.epistemic, 1))}


def noise(x: Shaped[np.ndarray, "row ..."], rows: int, *, seed: int = 0) -> Shaped[np.ndarray, "rows ..."]:
    """Inputs of pure noise, shaped like the training inputs `x`.

    Images: every pixel uniform between the darkest and the brightest of `x`. Features: each uniform over three times
    its range, so that two thirds of the values lie where there are no data.
    """
    generator = np.random.default_rng(seed)
    shape = (rows, *x.shape[1:])
    if x.dtype == np.uint8:
        return generator.integers(x.min(), int(x.max()) + 1, shape).astype(np.uint8)
    axis = 0 if x.ndim == 2 else None
    low, high = x.min(axis).astype(np.float64), x.max(axis).astype(np.float64)
    beyond = (high - low) if x.ndim == 2 else 0.0
    return generator.uniform(low - beyond, high + beyond, shape).astype(x.dtype)
