"""The teacher: the posterior predictive distribution of a run, evaluated at many rows."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo import PredictiveDistribution, Run, UsageError
from bnnzoo.data import load_inputs
from bnnzoo.finding import setting
from bnnzoo.progress import Observer, Progress, ignore

Kind = Literal["regression", "classification"]
_SUPPORTED = "bnnzoo distill supports tables of inputs with one real target, or with classes"
_ROWS = 1024
"""Number of rows that are evaluated at once."""
_SAMPLES = 32
"""Number of samples of the target per row, from which the student learns the tails of the distribution."""


class Answers(NamedTuple):
    """Predictions of the teacher at some rows, in original units.

    Regression: `mean`, `aleatoric` and `epistemic` are the mean and the aleatoric and epistemic standard deviations
    [row]. `residuals` are samples of the target [row, sample], standardised with the predictive mean and standard
    deviation of the row.

    Classification: `mean` are the class probabilities [row, class]. `epistemic` is the mutual information between
    class label and posterior draw in nats [row]. `aleatoric` and `residuals` are empty.
    """

    mean: Float[np.ndarray, "row *value"]
    aleatoric: Float[np.ndarray, " row"]
    epistemic: Float[np.ndarray, " row"]
    residuals: Float[np.ndarray, "row sample"]

    def take(self, rows: Shaped[np.ndarray, " some"] | slice) -> Answers:
        """Return the answers at the rows with these indices."""
        return Answers(*(values[rows] for values in self))


def check_supported(run: Run) -> Kind:
    """Check that a student can learn the predictions of a run, and return the task.

    Raises:
        UsageError: if the data of the run are not a table with one real target or with classes, if the run has an
            exposure, censored targets or a single draw, or if the run cannot predict new inputs.
    """
    predictor, record = run.predictor, run.predictor.record
    if not predictor.predicts:
        raise UsageError(
            f"{record.name}: the posterior was defined in Python, so bnnzoo cannot compute predictions; {_SUPPORTED}"
        )
    if record.keeps_predictions:
        raise UsageError(
            f"{record.name}: keeps predictions at fixed inputs instead of draws, but a student needs predictions at "
            "new inputs; sample again with [[keep=draws]]"
        )
    signature = predictor.signature
    if signature.task == "density":
        problem = "estimates a density without inputs"
    elif len(signature.shape) != 1 or signature.dtype != "float32":
        problem = f"has images as inputs (shape {list(signature.shape)})"
    elif signature.exposure:
        problem = "has an exposure"
    elif signature.task == "regression" and len(signature.target_names) > 1:
        problem = f"has {len(signature.target_names)} targets"
    elif signature.reading.censored:
        problem = "has censored targets"
    elif signature.task == "regression" and not predictor.has_continuous_targets:
        problem = "has a likelihood of counts or labels instead of a real target"
    elif np.prod(record.shape) < 2:
        problem = "has a single draw and therefore no epistemic uncertainty"
    else:
        return "classification" if predictor.classifies else "regression"
    raise UsageError(f"{record.name}: {problem}; {_SUPPORTED}")


def rows_near(run: Run, data: Any = None) -> Float[np.ndarray, "row feature"]:
    """Return encoded inputs in original units: the rows of `data`, or the training rows if `data` is None.

    Raises:
        UsageError: if `data` is None and the file of the run has no training rows, or if `data` does not have the
            columns of the training rows.
    """
    predictor = run.predictor
    if data is not None:
        return load_inputs(data, predictor.signature)
    if not predictor.record.has_training_rows:
        example = setting("data", "rows.csv")
        raise UsageError(f"{predictor.record.name}: the file has no training rows; give rows with {example}")
    return predictor.record.training_rows()[0]


def ask(
    run: Run, kind: Kind, x: Float[np.ndarray, "row feature"], seed: int, observer: Observer | None = None
) -> Answers:
    """Return the predictions of a run at encoded inputs `x` in original units."""
    tell, blocks = observer or ignore, []
    for start in range(0, len(x), _ROWS):
        tell(Progress("predicting", start, len(x)))
        # Copies of the last row fill up the last block, so that all blocks use the same compiled programs.
        index = np.minimum(np.arange(start, start + min(_ROWS, len(x))), len(x) - 1)
        blocks.append(_block_answers(run, kind, x[index], seed + start).take(slice(len(x) - start)))
    tell(Progress("predicting", len(x), len(x)))
    return Answers(*(np.concatenate(values) for values in zip(*blocks, strict=True)))


def _block_answers(run: Run, kind: Kind, x: Float[np.ndarray, "row feature"], seed: int) -> Answers:
    distribution = PredictiveDistribution(run.predictor, x, seed=seed)
    if kind == "classification":
        empty = np.empty((len(x), 0))
        return Answers(distribution.probabilities, empty, distribution.mutual_information, empty)
    mean, sd = distribution.mean, distribution.sd
    residuals = (distribution.sample(_SAMPLES).T - mean[:, None]) / sd[:, None]
    return Answers(mean, distribution.aleatoric_sd, distribution.epistemic_sd, residuals.astype(np.float32))
