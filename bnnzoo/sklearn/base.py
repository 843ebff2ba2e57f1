"""The common base class of `BayesianRegressor` and `BayesianClassifier`: options, sampling and pickling."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pandas as pd
from jaxtyping import Shaped
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing, check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data

from bnnzoo.api import entrances
from bnnzoo.api.run import Run
from bnnzoo.data import from_arrays
from bnnzoo.data.formats.frames import is_frame
from bnnzoo.evaluation.predictions import new_rows
from bnnzoo.plugins import registry
from bnnzoo.sklearn.parts import PARTS, Part, part_fields, with_field

_MODEL, _SAMPLER = "mlp", "nuts"
"""Default model if only a sampler is given, and default sampler if only a model is given.

If neither a model nor a sampler is given, the data determine both.
"""


class AbstractBayesian(BaseEstimator):
    """Common base class of `BayesianRegressor` and `BayesianClassifier`: options, sampling and pickling."""

    _is_table: bool
    """Whether the estimator was fitted to a data frame whose columns bnnzoo encodes."""

    run_: Run

    def __init__(
        self,
        model: Part = "auto",
        sampler: Part = "auto",
        *,
        likelihood: Part | None = None,
        prior: Part | None = None,
        chains: int | None = None,
        warmup: int | None = None,
        draws: int | None = None,
        thin: int | None = None,
        budget: str | None = None,
        until: str | None = None,
        seed: int = 0,
        init: str | None = None,
        start_steps: int | None = None,
        start_held_out: float | None = None,
        standardise: bool = True,
        units: str = "standardised",
        stochastic: str = "all",
        likelihood_power: float = 1.0,
        missing: str = "error",
        missing_code: Any = (),
        censored: bool = False,
        unseen: str = "error",
        exposure: str | None = None,
        chain_method: str = "auto",
        mesh: str | None = None,
        chain_weights: str = "auto",
        precision: str = "float32",
        progress: bool = False,
    ):
        self.model = model
        self.sampler = sampler
        self.likelihood = likelihood
        self.prior = prior
        self.chains = chains
        self.warmup = warmup
        self.draws = draws
        self.thin = thin
        self.budget = budget
        self.until = until
        self.seed = seed
        self.init = init
        self.start_steps = start_steps
        self.start_held_out = start_held_out
        self.standardise = standardise
        self.units = units
        self.stochastic = stochastic
        self.likelihood_power = likelihood_power
        self.missing = missing
        self.missing_code = missing_code
        self.censored = censored
        self.unseen = unseen
        self.exposure = exposure
        self.chain_method = chain_method
        self.mesh = mesh
        self.chain_weights = chain_weights
        self.precision = precision
        self.progress = progress

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name. With `deep`, add the fields of parts that are set, such as `model__hidden`."""
        parameters: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for part in PARTS:
                parameters |= {f"{part}__{name}": value for name, value in part_fields(parameters[part]).items()}
        return parameters

    def set_params(self, **params: Any) -> AbstractBayesian:
        """Set options by name, and fields of parts by names such as `model__hidden`, for example in a grid search."""
        nested = {name: params.pop(name) for name in list(params) if name.partition("__")[0] in PARTS and "__" in name}
        super().set_params(**params)
        for name, value in nested.items():
            part, _, field = name.partition("__")
            setattr(self, part, with_field(part, getattr(self, part), field, value))
        return self

    def _sample(self, X: Any, y: Any, task: str) -> None:
        options = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        data = (
            (X, y)
            if is_frame(X) and (self._is_table or self._reads_cells())
            else from_arrays(X, y, task=task, feature_names=self._names())
        )
        if not isinstance(data, tuple):
            del options["missing"], options["unseen"], options["missing_code"]
        model, sampler = (None if options[part] == "auto" else options[part] for part in ("model", "sampler"))
        del options["model"], options["sampler"]
        if (model is None) != (sampler is None):
            model, sampler = model or _MODEL, sampler or _SAMPLER
        # Without `out`, the folder of a run exists until Python ends. A grid search would keep too many folders.
        folder = tempfile.mkdtemp(prefix="bnnzoo-")
        try:
            out = Path(folder) / "run.nc"
            settings = {"task": task, "test_fraction": 0, "share_programs": True, **options}
            run = entrances.sample(model, sampler, data=data, out=out, **settings)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()  # the folder stays if an interrupted run left files in it
            raise
        self.run_ = delete_folder_with(run, folder)

    def _with_targets(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return X and y. If `missing` is "drop", leave out the rows whose target is missing."""
        if y is None or self.missing != "drop" or not len(y):
            return X, y
        check_consistent_length(X, y)
        known_rows = np.flatnonzero(~np.reshape(pd.isna(np.asarray(y, object)), (len(y), -1)).any(1))
        return (X, y) if len(known_rows) == len(y) else (_safe_indexing(X, known_rows), _safe_indexing(y, known_rows))

    def _names(self) -> tuple[str, ...]:
        return tuple(getattr(self, "feature_names_in_", ()))

    def _inputs(self, X: Any) -> Shaped[np.ndarray, "row feature"]:
        """Check X and return its rows, encoded as inputs of the networks."""
        check_is_fitted(self)
        return new_rows.inputs_of(self.run_.predictor, self._validated(X, reset=False))

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Return X after the checks of scikit-learn. With `reset`, store the names and the number of features."""
        if self._is_table:
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        checks = {"dtype": np.float64, "ensure_all_finite": self._finite_setting()}
        return self._to_table(validate_data(self, X, reset=reset, **checks))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _finite_setting(self) -> Any:
        """Return the argument `ensure_all_finite` of scikit-learn. It allows NaN unless `missing` is "error"."""
        return True if self.missing == "error" else "allow-nan"

    def _to_table(self, X: Any) -> Any:
        """Convert an array to a data frame if `missing`, `missing_code` or `censored` is set."""
        if is_frame(X) or not self._reads_cells():
            return X
        return pd.DataFrame(X, columns=pd.Index(self._names() or [f"x{i}" for i in range(X.shape[1])]))

    def _reads_cells(self) -> bool:
        """Whether an option is set that requires a table: `missing`, `missing_code` or `censored`."""
        return self.missing != "error" or self.censored or bool(np.size(self.missing_code))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().__getstate__()}  # pyright: ignore[reportGeneralTypeIssues]
        if "run_" in state:
            state["run_"] = Path(str(self.run_.path)).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        netcdf = state.pop("run_", None)
        super().__setstate__(state)
        if netcdf is not None:
            folder = tempfile.mkdtemp(prefix="bnnzoo-")
            (Path(folder) / "run.nc").write_bytes(netcdf)
            # A run of the user's own network needs this network.
            is_own = isinstance(self.model, eqx.Module) and registry.name_of("models", self.model) is None
            model = self.model if is_own else None
            self.run_ = delete_folder_with(entrances.open(Path(folder) / "run.nc", model=model), folder)


def delete_folder_with(run: Run, folder: str) -> Run:
    """Return the run, and delete the folder when Python garbage-collects the run."""
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run
