"""Models that predict from the draws in the file of a run, rebuilt from the file or given by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly.by_hand import identity_scaler, predicted_site
from bnnzoo.assembly.description import with_precision
from bnnzoo.assembly.problem import Problem
from bnnzoo.data import Scaler, Signature
from bnnzoo.errors import DamagedError
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.predicting import Predicting


class RestoredModel(NamedTuple):
    """The model to which the draws in a file belong, and functions that convert rows to inputs of the model."""

    posterior: Predicting
    signature: Signature
    scaler: Scaler
    inputs: Callable[[Shaped[np.ndarray, "row ..."]], Shaped[np.ndarray, "row ..."]]
    """Function that converts rows in original units to inputs of the posterior."""
    arrange: Callable[[Any], Any]
    """Function that converts scaled rows, which are in the units of the posterior, to inputs of the posterior."""
    precision: str
    data_sha256: str
    """SHA-256 hash of the training rows in a posterior that was made in Python; empty for other models."""
    linearised: bool = False
    """Whether the file has a mode for each chain, at which predictions of this chain can be linearised."""
    kept_rows: Shaped[np.ndarray, "row ..."] | None = None
    """Inputs, in original units, at which predictions are stored; None if draws of the parameters are stored."""

    def without_others(self) -> RestoredModel:
        """Return the model whose predictions leave out the directions outside the sampled subspace."""
        if not isinstance(self.posterior, NetworkPosterior) or not self.posterior.adds_unsampled:
            return self
        return self._replace(posterior=dataclasses.replace(self.posterior, adds_unsampled=False))

    @classmethod
    def from_file(
        cls,
        attributes: Mapping[str, Any],
        constant: Mapping[str, np.ndarray],
        model: AbstractModel | AbstractPosterior | None,
    ) -> RestoredModel:
        """Return the model to which the draws of a run belong.

        Args:
            attributes: the root attributes of the file.
            constant: the variables of the group constant_data of the file.
            model: an unregistered model or a posterior made in Python, which the file does not contain; otherwise None.

        Raises:
            UsageError: if the model is neither in the file nor given, or if the model cannot predict.
            DamagedError: if the file is damaged.
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
        adds_unsampled = problem.recipe.other_directions == "linearised"
        if adds_unsampled and getattr(problem.network_posterior.network, "others", None) is None:
            raise DamagedError("the file is damaged: the directions that are not sampled are missing")
        return cls(
            posterior=dataclasses.replace(problem.network_posterior, adds_unsampled=adds_unsampled),
            signature=description.signature,
            scaler=description.scaler,
            inputs=lambda x: description.inputs(x, precision),
            arrange=description.architecture.arrange,
            precision=problem.recipe.precision,
            data_sha256="",
            linearised=bool(problem.sampler.mode_field),
            kept_rows=problem.kept_rows,
        )
