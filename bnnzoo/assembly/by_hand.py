"""Training rows, predicted site and scaler of a posterior that was made in Python."""

from __future__ import annotations

import numpy as np

from bnnzoo.data import Dataset, Scaler
from bnnzoo.data.rows.arrays import as_inputs
from bnnzoo.data.rows.dataset import from_arrays, from_rows
from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.numpyro import NumpyroPosterior
from bnnzoo.posterior.site import Site


def predicted_site(posterior: AbstractPosterior) -> tuple[Site, Dataset]:
    """Return the observed site of a NumPyro posterior (the site that bnnzoo predicts) and the training rows.

    Raises:
        UsageError: if the posterior is not a NumPyro model, if it has labels but no inputs, or if its rows are invalid.
    """
    if not isinstance(posterior, NumpyroPosterior):
        raise UsageError(
            f"{type(posterior).__name__}: a posterior made in Python cannot predict for new inputs; write it as "
            "a NumPyro model (bnnzoo.NumpyroPosterior.of), or give bnnzoo.sample a network and data=(x, y)"
        )
    site = Site.from_posterior(posterior)
    x, y, name = site.x(posterior), site.y(posterior), getattr(posterior.model, "__name__", "model")
    features = tuple(column for argument in site.inputs for column in argument.columns) if x.ndim < 3 else ()
    targets = site.observed.columns
    if site.num_classes:
        if not site.inputs:
            raise UsageError(
                f"site {site.name}: labels without inputs cannot be predicted; pass the inputs to the "
                "NumPyro model as an argument"
            )
        classes = tuple(map(str, range(site.num_classes)))
        inputs = as_inputs(x, "x", features)
        return site, Dataset(inputs, y.reshape(-1).astype(np.int32), "classification", features, targets, classes, name)
    if not site.inputs:
        return site, from_rows(y, name=name, names=targets)
    return site, from_arrays(x, y, task="regression", name=name, feature_names=features, target_names=targets)


def identity_scaler(rows: Dataset) -> Scaler:
    """Return a scaler that leaves the rows of a posterior made in Python unchanged."""
    return Scaler.fit(rows, standardise=False)
