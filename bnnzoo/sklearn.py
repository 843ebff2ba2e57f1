"""scikit-learn estimators for any model with any sampler.

    BayesianRegressor(model="mlp", sampler="nuts", draws=500).fit(X, y).predict(X, return_std=True)

The options have the names and the defaults of `bnnzoo sample`. By default the data determine model and sampler, and a
fit has a `budget` of two minutes unless `warmup` or `draws` is given. The attribute `run_` is the run. A pickle
contains its NetCDF file.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y, check_is_fitted, column_or_1d, validate_data

from bnnzoo import zoo
from bnnzoo.data import from_arrays
from bnnzoo.data.check import is_coarse
from bnnzoo.data.columns import as_text
from bnnzoo.data.frames import is_frame
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import predictive_samples
from bnnzoo.evaluation.predictive_distribution import PredictiveDistribution
from bnnzoo.run import Run

Part = Any
"""A name, a mapping of a name and fields, or an object of a registered class, such as `bnnzoo.Penalty()`."""
_PARTS = ("model", "sampler", "likelihood", "prior")
_EXAMPLES: dict[str, str] = {"model": "mlp", "sampler": "nuts", "likelihood": "gaussian", "prior": "normal"}
_MODEL, _SAMPLER = "mlp", "nuts"
"""Default model and sampler if the other one is given; without both, the data determine them."""


class _Bayesian(BaseEstimator):
    """Common base of both estimators: options, the run, and pickling."""

    _is_table: bool
    """Whether it was fitted to a data frame whose columns it encodes itself."""

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
        self.precision = precision
        self.progress = progress

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name; with `deep` also the given fields of parts, such as `model__hidden`."""
        parameters: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for part in _PARTS:
                parameters |= {f"{part}__{name}": value for name, value in _fields(parameters[part]).items()}
        return parameters

    def set_params(self, **params: Any) -> _Bayesian:
        """Set options by name, and fields of parts as `model__hidden`, for example in a grid search."""
        nested = {name: params.pop(name) for name in list(params) if name.partition("__")[0] in _PARTS and "__" in name}
        super().set_params(**params)
        for name, value in nested.items():
            part, _, field = name.partition("__")
            setattr(self, part, _with_field(part, getattr(self, part), field, value))
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
        # Without `out`, a run's folder exists until Python ends, which is too long for the many runs of a grid search.
        folder = tempfile.mkdtemp(prefix="bnnzoo-")
        try:
            out = Path(folder) / "run.nc"
            settings = {"task": task, "test_fraction": 0, "share_programs": True, **options}
            run = zoo.sample(model, sampler, data=data, out=out, **settings)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.run_ = _delete_folder_with(run, folder)

    def _with_targets(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return the rows with a known target if `missing` is "drop", else all rows."""
        if y is None or self.missing != "drop" or not len(y):
            return X, y
        check_consistent_length(X, y)
        known_rows = np.flatnonzero(~np.reshape(pd.isna(np.asarray(y, object)), (len(y), -1)).any(1))
        return (X, y) if len(known_rows) == len(y) else (_safe_indexing(X, known_rows), _safe_indexing(y, known_rows))

    def _names(self) -> tuple[str, ...]:
        return tuple(getattr(self, "feature_names_in_", ()))

    def _inputs(self, X: Any) -> Shaped[np.ndarray, "row feature"]:
        """Return the rows as inputs of the predictor."""
        check_is_fitted(self)
        if self._is_table:
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=self._finite_setting())
            X = self._to_table(X)
        return self.run_.predictor.rows_of(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _finite_setting(self) -> Any:
        """Return scikit-learn's setting for missing cells."""
        return True if self.missing == "error" else "allow-nan"

    def _to_table(self, X: Any) -> Any:
        """Convert an array to a table if its cells may be missing or its targets censored."""
        return (
            X
            if is_frame(X) or not self._reads_cells()
            else pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
        )

    def _reads_cells(self) -> bool:
        """Whether options that apply to tables are set."""
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
            self.run_ = _delete_folder_with(zoo.open(Path(folder) / "run.nc"), folder)


class BayesianRegressor(RegressorMixin, _Bayesian):
    """Bayesian neural network for regression with the options of `bnnzoo sample`; all rows are training rows.

    A data frame may hold text, dates, booleans and missing cells, as described in docs/data.md.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, **others: Any) -> BayesianRegressor:
        """Sample the posterior for X [row, feature] and y [row] or [row, target].

        With `censored`, y is text (<0.5, >100, 1..2) or the smallest and the largest value of each target: [row, 2] or
        [row, target, 2]. The two are equal for a known value, and infinite where there is no limit.

        Raises:
            UsageError: for sample weights other than one.
            ValueError: if `exposure` is set and X is no data frame.
        """
        _refuse_weights(others)
        if self.exposure is not None and not is_frame(X):
            raise ValueError("exposure names a column, so X must be a data frame with that column")
        if self.censored:
            return self._fit_censored(X, y)
        X, y = self._with_targets(X, y)
        # A table matches columns by name, so the exposure can be moved to the last column.
        self._is_table = _is_table(X) or self.exposure is not None
        if self._is_table:
            validate_data(self, X, skip_check_array=True)
            y = _check_y(y, multi_output=True, y_numeric=True, estimator=self)
        else:
            checks = {"dtype": np.float64, "ensure_all_finite": self._finite_setting()}
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, **checks)
            X = self._to_table(X)
        self._flat = np.ndim(y) == 1
        self._sample(X, np.asarray(y, np.float64), "regression")
        return self

    def _fit_censored(self, X: Any, y: Any) -> BayesianRegressor:
        self._is_table = _is_table(X) or self.exposure is not None
        if self._is_table:
            validate_data(self, X, skip_check_array=True)
        else:
            X = self._to_table(validate_data(self, X, dtype=np.float64, ensure_all_finite=self._finite_setting()))
        check_consistent_length(X, y)
        self._sample(X, y, "regression")
        self._flat = len(self.run_.predictor.signature.target_names) == 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of the predictive distribution [row], and with `return_std` its standard deviation."""
        x = self._inputs(X)
        predictor = self.run_.predictor
        moments, scaler = predictor.moments(x), predictor.scaler
        mean = self._shape_targets(moments.mean * scaler.y_sd.astype(np.float64) + scaler.y_mean)
        return (
            (mean, self._shape_targets(np.sqrt(moments.aleatoric + moments.epistemic) * scaler.y_sd))
            if return_std
            else mean
        )

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Float[np.ndarray, "row ..."]:
        """Return predictive quantiles, [row, quantile]; for several targets [row, target, quantile]."""
        x = self._inputs(X)
        quantile_values = predictive_samples.quantiles(self.run_.predictor, x, tuple(quantiles), seed=self.seed)
        return np.moveaxis(self._shape_targets(np.moveaxis(quantile_values, 2, -1)), 0, -1)

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Return the predictive distribution as an object with `mean`, `sd`, `cdf`, `log_prob`, `quantile`, ....

        Arrays have shape [row], and for several targets [row, target], as those of `Run.predictive`.
        """
        return PredictiveDistribution(self.run_.predictor, self._inputs(X), seed=self.seed)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float[np.ndarray, "row ..."]:
        """Return samples of the predictive distribution, [row, sample]; for several targets [row, target, sample]."""
        x = self._inputs(X)
        seed = _seed(random_state)
        blocks, sample_numbers = [], None
        for _, samples in predictive_samples.samples(self.run_.predictor, x, seed=seed):
            if sample_numbers is None:  # all rows use the same draws, so each sample belongs to one function
                sample_numbers = np.random.default_rng(seed).choice(
                    len(samples), n_samples, replace=n_samples > len(samples)
                )
            blocks.append(samples[sample_numbers])
        return np.moveaxis(self._shape_targets(np.concatenate(blocks, 1)), 0, -1)

    def _shape_targets(self, values: Float[np.ndarray, "*other row target"]) -> Float[np.ndarray, "..."]:
        return values[..., 0] if self._flat else values


class BayesianClassifier(ClassifierMixin, _Bayesian):
    """Bayesian neural network for classification with the options of `bnnzoo sample`; all rows are training rows.

    A data frame may hold text, dates, booleans and missing cells, as described in docs/data.md.
    """

    def fit(self, X: Any, y: Any, **others: Any) -> BayesianClassifier:
        """Sample the posterior for X [row, feature] and labels y [row].

        Raises:
            UsageError: for sample weights other than one.
            ValueError: for missing labels or a single class.
        """
        _refuse_weights(others)
        X, y = self._with_targets(X, y)
        self._is_table = _is_table(X)
        if self._is_table:
            validate_data(self, X, skip_check_array=True)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=self._finite_setting())
            X = self._to_table(X)
        y = column_or_1d(y, warn=True)
        if pd.isna(y).any():
            raise ValueError("y contains missing labels (NaN, None); leave such rows out, or use missing='drop'")
        check_classification_targets(y)
        if y.dtype.kind in "OU":  # labels that differ only in spaces are equal
            y = np.array([as_text(label) if isinstance(label, str) else label for label in y], y.dtype)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("classification needs at least two classes, and y has 1 class")
        self._sample(X, y, "classification")
        # A class that occurs only in dropped rows is removed.
        class_names = self.run_.predictor.signature.class_names
        self.classes_ = np.array(
            [label for label in self.classes_ if as_text(label) in class_names], self.classes_.dtype
        )
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "row class"]:
        """Return the probability of each class [row, class], in the order of `classes_`."""
        x = self._inputs(X)
        predictor = self.run_.predictor
        names = predictor.signature.class_names
        order = [names.index(as_text(label)) for label in self.classes_]
        probabilities = np.asarray(predictor.moments(x).mean[:, order], np.float64)
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict(self, X: Any) -> Shaped[np.ndarray, " row"]:
        """Return the likeliest class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Return the predictive distribution as an object, whose classes are `classes_`.

        Its members `probabilities`, `mode`, `log_prob`, `sample` and `entropy` apply to classes.
        """
        return PredictiveDistribution(self.run_.predictor, self._inputs(X), seed=self.seed, classes=self.classes_)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Shaped[np.ndarray, "row sample"]:
        """Return labels drawn from the predictive distribution, [row, sample]."""
        chances = self.predict_proba(X).cumsum(1)
        uniform = np.random.default_rng(_seed(random_state)).uniform(size=(len(chances), n_samples))
        index = (uniform[:, :, None] > chances[:, None, :]).sum(2)
        return self.classes_[np.minimum(index, len(self.classes_) - 1)]


def _fields(part: Part) -> dict[str, Any]:
    """Return the given fields of a part; for an object all fields."""
    if isinstance(part, Mapping):
        return {str(name): value for name, value in part.items() if name != "name"}
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else {}


def _with_field(kind: str, part: Part, field: str, value: Any) -> Part:
    """Return the part with a field set.

    Raises:
        UsageError: if no part is named that could have the field.
    """
    if part is None or part == "auto":
        raise UsageError(
            f"{kind}__{field}: set before its {kind} is named; name the {kind} first, such as "
            f"{kind}={_EXAMPLES[kind]!r}"
        )
    if isinstance(part, str):
        return {"name": part, field: value}
    if isinstance(part, Mapping):
        return {**part, field: value}
    return dataclasses.replace(part, **{field: value})


def _refuse_weights(others: Mapping[str, Any]) -> None:
    """Refuse other arguments of `fit` than X and y.

    Raises:
        UsageError: for sample weights other than one.
        TypeError: for any other argument.
    """
    for name, value in others.items():
        if name != "sample_weight":
            raise TypeError(f"fit: unknown argument {name!r}")
        if value is not None and not np.all(np.asarray(value) == 1):
            raise UsageError(
                "sample_weight: is not supported, because each row counts once in the likelihood; repeat rows "
                "that count several times, or fit without sample_weight"
            )


def _seed(random_state: Any) -> int:
    """Return an integer seed from scikit-learn's `random_state`: an integer, a RandomState, or None."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _is_table(X: Any) -> bool:
    """Whether X is a data frame that must be read as a table.

    It is if it has non-numeric columns, missing cells, or numbers that float32 cannot distinguish.
    """
    if not is_frame(X):
        return False
    from bnnzoo.data.frames import FrameTable

    table = FrameTable(X, "X")
    return any(
        column.dtype.kind not in "iuf" or column.isna().any() or is_coarse(column.to_numpy(np.float64))
        for _, column in table.frame(table.names).items()
    )


def _delete_folder_with(run: Run, folder: str) -> Run:
    """Delete the folder when the run is garbage-collected, and return the run."""
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run
