"""A run in hand: its tree of samples, and everything one does with them. Nothing but the file is needed."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Shaped

from bnnzoo import assembly, backend, config, diagnostics, metrics, predict, store
from bnnzoo.data import Dataset, Scaler, Signature, load_inputs, load_like
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.files import write_whole
from bnnzoo.posterior import LinearisedPosterior, NetworkPosterior
from bnnzoo.progress import Observer, Progress

_GROUP_BYTES = 2**25
_QUANTILES = (0.05, 0.5, 0.95)
_FIXED = "fixed_"
LINEARISED_AT = "linearised_at_"
"""How the variables of constant_data begin that hold the point where each chain's predictions are linearised."""
_LEAST_SAMPLES = 1000
"""Quantiles are of at least so many samples, several a draw where there are few draws."""


class Run:
    """A finished or unfinished run. `posterior` is the ArviZ tree; `path` its file, None for one only in memory."""

    def __init__(self, posterior: xr.DataTree, path: Path | None):
        self.posterior = posterior
        self.path = path
        backend.prepare("vectorized", 1)

    @property
    def attributes(self) -> dict[str, Any]:
        """The root attributes of the file."""
        return {str(k): v.item() if hasattr(v, "item") else v for k, v in self.posterior.attrs.items()}

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Copy the file.

        Raises:
            UsageError: if it exists and `force` is not given, or the run has no file yet.
        """
        if Path(path).exists() and not force:
            raise UsageError(f"{path}: exists; give force=True to replace it")
        if self.path is None or not self.path.exists():
            raise UsageError("the run is not finished: resume it first")
        shutil.copyfile(self.path, path)

    def summary(self) -> dict[str, Any]:
        """The run in a dozen numbers."""
        about = self.attributes
        stats = self.posterior["sample_stats"].data_vars if "sample_stats" in self.posterior.children else {}
        found: dict[str, Any] = {
            "file": str(self.path) if self.path else None,
            **{k: about[k] for k in ("model", "sampler", "exactness")},
            "chains": self.posterior["posterior"].sizes["chain"],
            "draws": about["draws_done"],
            "parameters": sum(v[0, 0].size for v in self.posterior["posterior"].data_vars.values()),
        }
        for name in ("acceptance_rate", "sigma2", "step_size"):
            if name in stats:
                found[name] = float(np.mean(stats[name].values))
        found["divergences"] = int(np.sum(stats["diverging"].values)) if "diverging" in stats else 0
        found |= {k: about[k] for k in ("regime_ok", "complete")}
        found |= {k: round(float(about[k]), 2) for k in ("seconds_compile", "seconds_warmup", "seconds_sampling")}
        return found

    def predict(self, x: Any, *, seed: int = 0) -> pd.DataFrame:
        """The predictive distribution of inputs, in original units, one row each.

        Regression: mean, sd, aleatoric_sd, epistemic_sd, q05, q50, q95, with a prefix `<target>_` for several
        targets. Classification: p_<class>..., entropy.
        """
        return self._predict(load_inputs(x, self._signature), seed)

    def predict_to(self, data: Any, out: str | Path, *, force: bool = False) -> Path:
        """`predict` into a .csv or .nc file.

        Raises:
            UsageError: for another kind of file, or one that exists.
        """
        out = Path(out)
        if out.suffix not in (".csv", ".nc"):
            raise UsageError(f"{out}: predictions go to a .csv or a .nc file")
        if out.exists() and not force:
            raise UsageError(f"{out}: exists; use another -o, or --force to replace it")
        frame = self.predict(data)
        if out.suffix == ".csv":
            write_whole(out, lambda file: file.write(frame.to_csv(index=False).encode()))  # type: ignore[arg-type,return-value]
        else:
            temporary = out.with_name(f".{out.name}.tmp")
            frame.rename_axis("row").to_xarray().to_netcdf(temporary, engine="h5netcdf")
            temporary.replace(out)
        return out

    def functions(self, x: Any) -> Float[np.ndarray, "chain draw row value"]:
        """What each draw predicts of the inputs `x`, in the units the network sees: what convergence is judged by."""
        inputs = self._arrange(load_inputs(x, self._signature))
        with backend.arithmetic(self._precision):
            values = predict.functions(self._predictor, self._seen, inputs)
        return values.reshape(self.posterior["posterior"].sizes["chain"], -1, *values.shape[1:])

    def diagnose(self, *, num_probes: int = 50) -> dict[str, Any]:
        """Whether the run has converged and was right: `bnnzoo.diagnostics`, over predictions at probe inputs.

        The probes are the first test rows (training rows where there are none). `weights_rhat` is told, and not
        judged: a network's symmetries make it large without harm. Works on an unfinished run.
        """
        chains = self.posterior["posterior"].sizes["chain"]
        positions = self._draws.reshape(chains, -1, self._draws.shape[-1])
        values = positions
        if self._is_rebuildable:
            constant = self.posterior["constant_data"]
            probes = self._array("constant_data", "x_test" if "x_test" in constant else "x")[:num_probes]
            values = self.functions(probes)
        stats = self.posterior["sample_stats"].data_vars if "sample_stats" in self.posterior.children else {}
        about = self.attributes
        return {
            "exactness": about["exactness"],
            "complete": about["complete"],
            "draws": positions.shape[1],
            **diagnostics.convergence(values.reshape(*values.shape[:2], -1)),
            "weights_rhat": diagnostics.convergence(positions)["rhat"],
            "still_chains": diagnostics.still_chains(positions),
            **diagnostics.statistics({str(name): values.values for name, values in stats.items()}),
            "regime_ok": about["regime_ok"],
            "regime": about.get("regime", ""),
        }

    def evaluate(self, data: Any = None, *, observer: Observer | None = None, save: bool = True) -> dict[str, float]:
        """Metrics of the predictions on the test rows, or on `data`; in original units.

        Regression: nll (of the mixture over draws), rmse, coverage_90. Classification: nll, accuracy, brier, ece.
        With `save` the groups `posterior_predictive` (test rows) and `log_likelihood` (training rows) are added to a
        finished file; each keeps every k-th draw where it would pass 32 MB.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        like = self._signature
        if data is not None:
            test = load_like(data, like)
            x, y = test.x, test.y
        else:
            if "x_test" not in self.posterior["constant_data"]:
                raise UsageError("the run kept no test rows (--test-fraction 0); give some with --data")
            x, y = (self._array("constant_data", name) for name in ("x_test", "y_test"))
        tell = observer or (lambda _: None)
        tell(Progress("evaluating", 0, len(x)))
        found = self._metrics(x, y)
        tell(Progress("evaluating", len(x), len(x)))
        if save and data is None and self.path is not None and self.attributes["complete"]:
            self._add_groups(x)
        return found

    def _metrics(self, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        moments = self._moments(x, y)
        log_density = moments.log_density
        if self._signature.task == "classification":
            return {
                "nll": metrics.negative_log_likelihood(log_density),
                "accuracy": metrics.accuracy(y, moments.mean),
                "brier": metrics.brier(y, moments.mean),
                "ece": metrics.expected_calibration_error(y, moments.mean),
                "rows": len(y),
            }
        # A density in original units: the scaling's Jacobian.
        log_density = log_density - np.sum(np.log(self._scaler.y_sd.astype(np.float64)))
        quantiles = self._quantiles(x, seed=0)
        return {
            "nll": metrics.negative_log_likelihood(log_density),
            "rmse": metrics.rmse(y, self._scaler.unscale_targets(moments.mean)),
            "coverage_90": metrics.coverage(y, quantiles[0], quantiles[2]),
            "rows": len(y),
        }

    def _predict(self, x: np.ndarray, seed: int) -> pd.DataFrame:
        like = self._signature
        moments = self._moments(x, None)
        if like.task == "classification":
            columns = {f"p_{c}": moments.mean[:, c] for c in range(like.num_classes)}
            return pd.DataFrame({**columns, "entropy": metrics.entropy(moments.mean.astype(np.float64))})
        scale = self._scaler.y_sd
        values = {
            "mean": self._scaler.unscale_targets(moments.mean),
            "sd": np.sqrt(moments.aleatoric + moments.epistemic) * scale,
            "aleatoric_sd": np.sqrt(moments.aleatoric) * scale,
            "epistemic_sd": np.sqrt(moments.epistemic) * scale,
        }
        quantiles = self._quantiles(x, seed=seed)
        values |= {f"q{round(100 * q):02d}": quantiles[i] for i, q in enumerate(_QUANTILES)}
        several = len(like.target_names) > 1
        return pd.DataFrame(
            {
                (f"{target}_{name}" if several else name): array[:, i]
                for i, target in enumerate(like.target_names)
                for name, array in values.items()
            }
        )

    def _moments(self, x: np.ndarray, y: np.ndarray | None) -> predict.Moments:
        with backend.arithmetic(self._precision):
            target = None if y is None else self._scaler.scale_targets(y)
            return predict.moments(self._predictor, self._seen, self._arrange(x), target)

    def _quantiles(self, x: np.ndarray, *, seed: int) -> Float[np.ndarray, "quantile row target"]:
        """Quantiles of the predictive distribution in original units, from as many samples of each draw."""
        arranged, key = self._arrange(x), jax.random.key(seed)
        draws = np.tile(self._seen, (-(-_LEAST_SAMPLES // len(self._seen)), 1))
        targets = len(self._signature.target_names)
        parts = []
        with backend.arithmetic(self._precision):
            sizes = (len(arranged), len(draws), int(np.prod(arranged.shape[1:])), targets)
            for rows in predict.blocks(*sizes):
                drawn = predict.samples(self._predictor, draws, arranged[rows], first_row=rows.start, key=key)
                parts.append(np.quantile(drawn, _QUANTILES, axis=0))
        return self._scaler.unscale_targets(np.concatenate(parts, 1))

    def _add_groups(self, x_test: np.ndarray) -> None:
        """posterior_predictive and log_likelihood into the file, every k-th draw of each chain."""
        assert self.path is not None
        chains, count = (self.posterior["posterior"].sizes[d] for d in ("chain", "draw"))
        x, y = self._array("constant_data", "x"), self._array("observed_data", "y")
        per_draw = 4 * chains * max(len(x), len(x_test) * len(self._signature.target_names))
        every = -(-count * per_draw // _GROUP_BYTES)
        kept = np.arange(0, count, every)
        draws = self._seen.reshape(chains, count, -1)[:, kept].reshape(chains * len(kept), -1)
        key = jax.random.key(int(self.attributes["seed"]))
        with backend.arithmetic(self._precision):
            drawn = predict.samples(self._predictor, draws, self._arrange(x_test), key=key)
            target = self._scaler.scale_targets(y)
            log_likelihood = predict.log_likelihoods(self._predictor, draws, self._arrange(x), target)
        if self._signature.task == "regression":
            drawn = self._scaler.unscale_targets(drawn)
            log_likelihood = log_likelihood - np.sum(np.log(self._scaler.y_sd)).astype(np.float32)
        shape = (chains, len(kept))
        coords = {"chain": np.arange(chains), "draw": kept}
        groups = {
            "posterior_predictive": {"y": drawn.reshape(*shape, *drawn.shape[1:])},
            "log_likelihood": {"y": log_likelihood.reshape(*shape, -1)},
        }
        self.posterior.close()
        for group, variables in groups.items():
            rows = ["test_row", "target"] if group == "posterior_predictive" else ["row"]
            names = ["chain", "draw", *rows][: variables["y"].ndim]
            store.add_groups(self.path, {group: variables}, {"y": names}, {group: coords})
        self.posterior = store.open_tree(self.path)

    def _arrange(self, x: Shaped[np.ndarray, "row ..."]) -> Shaped[np.ndarray, "row ..."]:
        arranged = self._parts.model.arrange(self._scaler.scale_inputs(x))
        return arranged.astype(self._precision) if arranged.dtype.kind == "f" else arranged

    def _array(self, group: str, name: str) -> np.ndarray:
        return np.asarray(self.posterior[f"{group}/{name}"].values)

    @property
    def _is_rebuildable(self) -> bool:
        """Whether the file says what the model is; a posterior made in Python is beyond words."""
        return "signature" in self.attributes

    @functools.cached_property
    def _recipe(self) -> config.Recipe:
        return config.recipe_from(self.attributes["recipe"])

    @functools.cached_property
    def _signature(self) -> Signature:
        if not self._is_rebuildable:
            raise UsageError("the run is of a posterior made in Python: its file holds the draws, but not the model")
        return assembly.signature_from(json.loads(self.attributes["signature"]))

    @functools.cached_property
    def _parts(self) -> assembly.Parts:
        return assembly.make_parts(self._recipe, self._signature.task)

    @functools.cached_property
    def _scaler(self) -> Scaler:
        return Scaler(*(self._array("constant_data", name) for name in ("x_mean", "x_sd", "y_mean", "y_sd")))

    @functools.cached_property
    def _posterior(self) -> NetworkPosterior:
        with backend.arithmetic(self._precision):
            fixed = fixed_leaves({str(k): v.values for k, v in self.posterior["constant_data"].data_vars.items()})
            return assembly.make_posterior(self._recipe, self._parts, self._signature, self._scaler, None, fixed)

    @property
    def _precision(self) -> Any:
        return self.attributes["precision"]

    @functools.cached_property
    def _draws(self) -> Float[np.ndarray, "draw dim"]:
        """All chains' draws one after the other, flattened, on their natural scale."""
        group = self.posterior["posterior"] if "posterior" in self.posterior.children else {}
        # The tree keeps no order of its variables; the layout of a rebuilt model is the order of theta.
        known = [b.name for b in self._posterior.layout.blocks] if self._is_rebuildable else list(group)
        arrays = [np.asarray(group[name].values) for name in known if name in group]
        if not arrays or not arrays[0].shape[1]:
            raise BnnzooError(f"{self.path}: no draws yet; bnnzoo resume {self.path}")
        count = arrays[0].shape[0] * arrays[0].shape[1]
        return np.concatenate([array.reshape(count, -1) for array in arrays], 1)

    @functools.cached_property
    def _predictor(self) -> NetworkPosterior:
        """The posterior that predicts: linear in theta where the file holds a point to be linear at."""
        return self._posterior if self._modes is None else LinearisedPosterior.like(self._posterior)

    @functools.cached_property
    def _seen(self) -> Float[np.ndarray, "draw seen"]:
        """The draws as `_predictor` takes them: each followed by its chain's mode where there are modes."""
        if self._modes is None:
            return self._draws
        return np.concatenate([self._draws, np.repeat(self._modes, len(self._draws) // len(self._modes), 0)], 1)

    @functools.cached_property
    def _modes(self) -> Float[np.ndarray, "chain dim"] | None:
        constant = self.posterior["constant_data"].data_vars if "constant_data" in self.posterior.children else {}
        names = [LINEARISED_AT + block.name for block in self._posterior.layout.blocks]
        if names[0] not in constant:
            return None
        arrays = [np.asarray(constant[name].values) for name in names]
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)


def fixed_leaves(constant: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters that were not sampled, by name, from the variables of constant_data."""
    return {name.removeprefix(_FIXED): value for name, value in constant.items() if name.startswith(_FIXED)}


def train_groups(
    train: Dataset, test: Dataset | None, scaler: Scaler, fixed: Mapping[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
    """observed_data and constant_data of a run, in original units; and in the latter what was not sampled."""
    constant = {
        "x": train.x,
        "x_mean": scaler.x_mean,
        "x_sd": scaler.x_sd,
        "y_mean": scaler.y_mean,
        "y_sd": scaler.y_sd,
    }
    if test is not None:
        constant |= {"x_test": test.x, "y_test": test.y}
    constant |= {_FIXED + name: value for name, value in fixed.items()}
    return {"observed_data": {"y": train.y}, "constant_data": constant}
