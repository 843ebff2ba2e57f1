"""The chains of a run as a mixture: their weights by stacking, and the calibration of the mixture's predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bnnzoo.data.columns.bounds import uncensored_rows
from bnnzoo.evaluation.convergence import findings, outcome
from bnnzoo.evaluation.formulas.stacking import Stacking
from bnnzoo.evaluation.predictions import chain_weights, thinning
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import evaluate
from bnnzoo.finding import Finding
from bnnzoo.recipe import recipe_from
from bnnzoo.store import Attributes


class ChainMixture(NamedTuple):
    """Weights of the chains, and a sentence on the calibration of the weighted predictions, for the run's verdict."""

    weights: Stacking | None
    """Weights by stacking; None if all chains have the same weight."""
    calibration: str
    """Sentence on calibration of the predictions at the test rows; empty unless the chains are in different modes."""

    def attributes(self) -> Attributes:
        """Return the weights as root attributes of the run's file; empty if all chains have the same weight."""
        if self.weights is None:
            return {}
        return {
            "chain_weights": _as_json(self.weights),
            "chain_weights_gain": self.weights.gain,
            "chain_weights_error": self.weights.error,
        }

    def describe(self) -> str:
        """Return the text on weights and calibration for the run's verdict; empty if there is nothing to report."""
        if self.weights is None:
            return self.calibration
        listed = ", ".join(f"{weight:.2g}" for weight in self.weights.weights)
        text = (
            f"predictions weight the chains by stacking ({listed}); compared with equal weights, the leave-one-out log "
            f"score changes by {self.weights.gain:+.2g} ± {self.weights.error:.1g} nats per row"
        )
        return "; ".join(filter(None, [text, self.calibration]))


EQUAL = ChainMixture(None, "")
"""A mixture of chains with equal weights, with nothing to add to the verdict."""


def of_run(predictor: Predictor, diagnosis: Mapping[str, Any], run_findings: Sequence[Finding]) -> ChainMixture:
    """Return the mixture of a run's chains, with the weights that the recipe's `chain_weights` requests.

    With `auto`, weights by stacking are used only if the chains have settled in different modes, and if the predictions
    are clearly better than with equal weights. The field `calibration` describes the predictions with these weights.
    """
    record, has_modes = predictor.record, outcome.has_settled(diagnosis, run_findings)
    choice = recipe_from(str(record.attributes["recipe"])).chain_weights if record.names_a_model else "auto"
    weights = None
    if choice == "stacking" or (choice == "auto" and has_modes):
        weights = chain_weights.by_stacking(predictor)
        if weights is not None and choice == "auto" and not weights.is_better:
            weights = None
    return ChainMixture(weights, _describe_calibration(predictor, weights) if has_modes else "")


def _describe_calibration(predictor: Predictor, weights: Stacking | None) -> str:
    """Return a sentence on the calibration of the weighted predictions at the test rows; "" without test rows."""
    if not predictor.predicts or predictor.is_density or not predictor.record.has_test_rows:
        return ""
    weighted = thinning.for_report(predictor).thinned(1)
    if weights is not None:
        weighted.record.tree.attrs["chain_weights"] = _as_json(weights)
    x, y = weighted.record.test_rows()
    num_uncensored = int(uncensored_rows(y).sum())
    if not num_uncensored:
        return ""
    answer = findings.answer_calibrated(evaluate.of_rows(weighted, x, y).calibration, num_uncensored)
    return answer.text[:1].lower() + answer.text[1:].rstrip(".")


def _as_json(weights: Stacking) -> str:
    return json.dumps([round(float(weight), 6) for weight in weights.weights])
