"""Models that can predict: rebuilt from a run's file, or given together with the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly.by_hand import identity_scaler, predicted_site
from bnnzoo.assembly.description import with_precision
from bnnzoo.assembly.problem import Problem
from bnnzoo.data import Scaler, Signature
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.predicting import Predicting


class RestoredModel(NamedTuple):
    """A model whose draws are in a file, and functions that convert rows to inputs of the model."""

    posterior: Predicting
    signature: Signature
    scaler: Scaler
    inputs: Callable[[Shaped[np.ndarray, "row ..."]], Shaped[np.ndarray, "row ..."]]
    """Conversion of rows in original units to inputs of the posterior."""
    arrange: Callable[[Any], Any]
    """Conversion of rows that are in the units of the posterior already to inputs of the posterior."""
    precision: str
    data_sha256: str
    """SHA-256 of the training rows if they came with the model; otherwise empty."""
    linearised: bool = False
    """Whether the predictions of a draw can be linearised about the mode of its chain."""
    kept_rows: Shaped[np.ndarray, "row ..."] | None = None
    """Inputs, in original units, at which predictions are stored; None if draws of the parameters are stored."""

    @classmethod
    def from_file(
        cls,
        attributes: Mapping[str, Any],
        constant: Mapping[str, np.ndarray],
        model: AbstractModel | AbstractPosterior | None,
    ) -> RestoredModel:
        """Return the model to which the draws of a run belong.

        Args:
            attributes: the file's root attributes.
            constant: the variables of the file's group constant_data.
            model: a model that the file does not contain: an unregistered model, or a posterior made in Python.

        Raises:
            UsageError: if the model is neither in the file nor given, if it cannot predict, or if the file is damaged.
        """
        precision = str(attributes["precision"])
        if isinstance(model, AbstractPosterior):
            site, rows = predicted_site(model)
            return cls(
                posterior=site,
                signature=rows.signature,
                scaler=identity_scaler(rows),
                inputs=lambda x: with_precision(x, precision),
                arrange=lambda x: x,
                precision=precision,
                data_sha256=rows.sha256(),
            )
        problem = Problem.restored(attributes, constant, model=model)
        description = problem.require_description()
        return cls(
            posterior=problem.network_posterior,
            signature=description.signature,
            scaler=description.scaler,
            inputs=lambda x: description.inputs(x, precision),
            arrange=description.architecture.arrange,
            precision=problem.recipe.precision,
            data_sha256="",
            linearised=bool(problem.sampler.mode_field),
            kept_rows=problem.kept_rows,
        )
