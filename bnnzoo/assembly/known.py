"""A model whose draws a file holds, ready to predict: rebuilt from the file's words, or given beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly.by_hand import as_they_are, predicted
from bnnzoo.assembly.problem import Problem, precise
from bnnzoo.data import Scaler, Signature
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.samplers import AbstractSampler


class Known(NamedTuple):
    """What predicts, and how rows in original units become its inputs."""

    posterior: Predicting
    signature: Signature
    scaler: Scaler
    inputs: Callable[[Shaped[np.ndarray, "row ..."]], Shaped[np.ndarray, "row ..."]]
    """Rows in original units as the posterior takes them."""
    arrange: Callable[[Any], Any]
    """The same of rows in the units that the posterior sees."""
    precision: str
    data_sha256: str
    """Of the training rows, where they were given with the model; else empty."""
    linearised: bool = False
    """Whether predictions may be linear in a draw about its chain's mode."""
    kept_rows: Shaped[np.ndarray, "row ..."] | None = None
    """The inputs, in original units, at which predictions were kept instead of draws of the parameters."""

    @classmethod
    def of(
        cls,
        attributes: Mapping[str, Any],
        constant: Mapping[str, np.ndarray],
        model: AbstractModel | AbstractPosterior | None,
    ) -> Known:
        """What a run's draws are of.

        Args:
            attributes: the file's root attributes.
            constant: the variables of its group constant_data.
            model: what no file can hold: a model that no registry knows, or a posterior made in Python.

        Raises:
            UsageError: if the model is neither in the file nor given, or predicts nothing; or the file is damaged.
        """
        precision = str(attributes["precision"])
        if isinstance(model, AbstractPosterior):
            site, rows = predicted(model)
            return cls(
                posterior=site,
                signature=rows.signature,
                scaler=as_they_are(rows),
                inputs=lambda x: precise(x, precision),
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
            linearised=type(problem.sampler).linearised_at is not AbstractSampler.linearised_at,
            kept_rows=problem.kept_rows,
        )
