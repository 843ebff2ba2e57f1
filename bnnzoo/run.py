"""A run in hand: its tree of samples, and everything one does with them. Nothing but the file is needed."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Int, Shaped
from scipy import special

from bnnzoo import assembly, store
from bnnzoo.data import Scaler, Signature, load_inputs, load_like
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation import diagnostics, loo, metrics, predictive, scores
from bnnzoo.evaluation import ood as ood_scores
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.progress import Observer, Progress
from bnnzoo.sampling import backend
from bnnzoo.store import schema
from bnnzoo.store.atomic import write_whole

if TYPE_CHECKING:
    from bnnzoo.plots import Picture

_GROUP_BYTES = 2**25
_LOO_ROWS = 2000
_QUANTILES = (0.05, 0.5, 0.95)
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
            write_whole(out, lambda file: file.write(frame.to_csv(index=False).encode()))
        else:
            store.write_table(out, {str(name): values.to_numpy() for name, values in frame.items()}, "row")
        return out

    def functions(self, x: Any) -> Float[np.ndarray, "chain draw row value"]:
        """What each draw predicts of the inputs `x`, in the units the network sees: what convergence is judged by."""
        inputs = self._arrange(load_inputs(x, self._signature))
        with backend.arithmetic(self._precision):
            values = predictive.functions(self._predictor, self._seen, inputs)
        return values.reshape(self.posterior["posterior"].sizes["chain"], -1, *values.shape[1:])

    def diagnose(self, *, num_probes: int = 50) -> dict[str, Any]:
        """Whether the run has converged and was right: `bnnzoo.diagnostics`, over predictions at probe inputs.

        The probes are the first test rows (training rows where there are none). Weights are told of, and not judged:
        a network's symmetries make their R-hat large without harm. Works on an unfinished run.
        """
        chains, count = self._shape
        positions = self._draws.reshape(chains, count, -1)
        values, scale = positions, 1.0
        if self._is_rebuildable:
            values = self.functions(self._probes(num_probes)[1])
            scale = self._scaler.y_sd if self._signature.task == "regression" else 1.0
        about = self.attributes
        return {
            "exactness": about["exactness"],
            "complete": about["complete"],
            "chains": chains,
            "draws": count,
            **diagnostics.of_predictions(values * scale, exactness=about["exactness"], weights=self._weights),
            "weights_rhat": max(row["rhat"] for row in self.blocks()),
            "still_chains": diagnostics.still_chains(positions),
            **diagnostics.of_statistics(self._statistics, thin=self._thin),
            "regime_ok": about["regime_ok"],
            "regime": about.get("regime", ""),
        }

    def _probes(self, count: int) -> tuple[str, np.ndarray]:
        """The inputs at which convergence is judged, and of which rows they are."""
        name, where = ("x_test", "test row") if "x_test" in self.posterior["constant_data"] else ("x", "training row")
        return where, self._array("constant_data", name)[:count]

    def blocks(self) -> list[dict[str, Any]]:
        """A row for each block of parameters: its size, and norm, mean, sd and R-hat over the draws."""
        chains, count = self._shape
        draws = self._draws.reshape(chains, count, -1)
        group = self.posterior["posterior"]
        sizes = [group[name].size // (chains * count) for name in self._names]
        pairs = zip(self._names, itertools.pairwise(np.cumsum([0, *sizes])), strict=True)
        return [{"block": name, **diagnostics.of_block(draws[:, :, a:b])} for name, (a, b) in pairs]

    def evaluate(
        self, data: Any = None, *, ood: Any = None, observer: Observer | None = None, save: bool = True
    ) -> dict[str, int | float]:
        """Metrics of the predictions on the test rows, or on `data`: a flat dictionary, see docs/evaluation.md.

        NAME is followed by NAME_se, its standard error over rows, and NAME_mcse, that of the Monte Carlo, where there
        are such. On the run's own test rows `loo_` metrics of the training rows are added, and with `save` the groups
        `posterior_predictive` (test rows) and `log_likelihood` (training rows) to a finished file; each keeps every
        k-th draw where it would pass 32 MB.

        Args:
            ood: unfamiliar inputs to add the metrics of, see `ood`.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        x, y = self.test_rows(data)
        tell = observer or (lambda _: None)
        tell(Progress("evaluating", 0, len(x)))
        sums = self._sums(x, y)
        score = self._scorer(y)
        estimates = score(sums.moments())
        errors = scores.monte_carlo_errors(sums, self._shape[0], score)
        found: dict[str, int | float] = {}
        more: dict[str, float] = {}
        if self._signature.task == "regression":
            drawn = self._drawn(x, y)
            estimates |= scores.sampled(y, drawn)
            more["pit_ks"], more["pit_p"] = metrics.pit_uniformity(drawn.pit)
        for name, estimate in estimates.items():
            found[name] = estimate.value
            found[f"{name}_se"] = estimate.se
            if name in errors:
                found[f"{name}_mcse"] = errors[name]
        found |= more
        if data is None:
            found |= self._loo()
            if save and self.path is not None and self.attributes["complete"]:
                self._add_groups(self._groups(x))
        if ood is not None:
            found |= self.ood(ood, data).summary()
        tell(Progress("evaluating", len(x), len(x)))
        return {**found, "rows": len(y)}

    def test_rows(self, data: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of the test rows, or of `data`, in original units.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        like = self._signature
        if data is not None:
            test = load_like(data, like)
            return test.x, test.y
        if "x_test" not in self.posterior["constant_data"]:
            raise UsageError("the run kept no test rows (--test-fraction 0); give some with --data")
        return self._array("constant_data", "x_test"), self._array("constant_data", "y_test")

    def estimates(self, data: Any = None) -> dict[str, metrics.Estimate]:
        """The metrics of `evaluate` with what each row contributes to their errors: for paired comparisons."""
        x, y = self.test_rows(data)
        found = self._scorer(y)(self._sums(x, y).moments())
        if self._signature.task == "regression":
            found |= scores.sampled(y, self._drawn(x, y))
        return found

    def pit(self, data: Any = None) -> Float[np.ndarray, "row target"]:
        """Probability integral transforms of the targets: uniform where predictions are calibrated. Regression only."""
        x, y = self.test_rows(data)
        return self._drawn(x, y).pit

    def ood(self, spec: Any, data: Any = None) -> ood_scores.OodScores:
        """Scores of unfamiliar inputs against those of the test rows (or `data`), of the posterior and its best draw.

        Args:
            spec: what `predict` takes as inputs (labels are not needed), or "noise", as many rows as are tested.

        The best draw has the highest log density, or where the file has none the highest log-likelihood of (at most
        2000 of) the training rows.
        """
        inside, _ = self.test_rows(data)
        if isinstance(spec, str) and spec == "noise":
            outside = ood_scores.noise(self._array("constant_data", "x"), len(inside))
        else:
            outside = load_inputs(spec, self._signature)
        classify = self._signature.task == "classification"
        best = self._seen[[self._best_draw()]]
        found = []
        for single in (False, True):
            for x in (inside, outside):
                with backend.arithmetic(self._precision):
                    arranged = self._arrange(x)
                    draws, weights = (best, None) if single else (self._seen, self._weights)
                    moments = predictive.moments(self._predictor, draws, arranged, weights=weights)
                found.append(ood_scores.scores(moments, classify=classify, single=single))
        return ood_scores.OodScores(str(spec) if isinstance(spec, str | Path) else "data", *found)

    def plot_band(self, *, target: str | None = None) -> Picture:
        """The predictive distribution over the only input; see `bnnzoo.pictures` for this and the next."""
        return self._picture("band", target=target)

    def plot_slices(self, *, target: str | None = None) -> Picture:
        """What is predicted along one feature at a time, the others at their medians."""
        return self._picture("slices", target=target)

    def plot_calibration(self) -> Picture:
        """Coverage of intervals, or a reliability diagram, on the test rows."""
        return self._picture("calibration")

    def plot_pit(self) -> Picture:
        """The histogram of the probability integral transform on the test rows."""
        return self._picture("pit")

    def plot_trace(self) -> Picture:
        """Predictions draw by draw: those that agree least, middling and best between chains."""
        return self._picture("trace")

    def plot_rank(self) -> Picture:
        """The ranks of each chain's draws among all, of the same predictions."""
        return self._picture("rank")

    def plot_autocorrelation(self) -> Picture:
        """The autocorrelation of the same predictions."""
        return self._picture("autocorrelation")

    def plot_ood(self, spec: Any = "noise") -> Picture:
        """Histograms of the uncertainty on the test rows and on unfamiliar ones, as `ood` takes them."""
        return self._picture("ood", spec=spec)

    def plot_steps(self) -> Picture:
        """Acceptance, sigma2 with its limit, penalty, log density over the run."""
        return self._picture("steps")

    def _picture(self, name: str, **options: Any) -> Picture:
        from bnnzoo.report import pictures

        return pictures.PICTURES[name](self, **options)

    def plot_to(
        self,
        out: str | Path,
        *,
        formats: Sequence[str] = ("png",),
        names: Sequence[str] | None = None,
        ood: Any = "noise",
        force: bool = False,
    ) -> list[dict[str, Any]]:
        """Draw pictures into the folder `out`: for each its name and file, or why this run does not have it.

        Raises:
            UsageError: for a format or picture that does not exist, or a file that does.
        """
        from bnnzoo.report import pictures

        return pictures.write(self, Path(out), formats, names, ood=ood, force=force)

    def report(self, out: str | Path, *, force: bool = False) -> Path:
        """Write the run as one HTML page that needs nothing else.

        Raises:
            UsageError: if the file exists and `force` is not given.
        """
        from bnnzoo.report import page

        out = Path(out)
        if out.suffix not in (".html", ".htm"):
            raise UsageError(f"{out}: a report goes to a .html file")
        if out.exists() and not force:
            raise UsageError(f"{out}: exists; use another -o, or --force to replace it")
        text = page.page(self)
        write_whole(out, lambda file: file.write(text.encode()))
        return out

    def _best_draw(self) -> int:
        if "lp" in self._statistics:
            return int(np.argmax(self._statistics["lp"]))
        values = self._log_likelihood(*self._some_training_rows(), np.arange(self._shape[1]))
        return int(np.argmax(values.sum(2, dtype=np.float64)))

    def _some_training_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of at most `_LOO_ROWS` rows, evenly through the data."""
        x, y = self._array("constant_data", "x"), self._array("observed_data", "y")
        chosen = np.linspace(0, len(x) - 1, min(_LOO_ROWS, len(x))).round().astype(int)
        return x[chosen], y[chosen]

    def _scorer(self, y: np.ndarray) -> Callable[[predictive.Moments], dict[str, metrics.Estimate]]:
        if self._signature.task == "classification":
            return lambda moments: scores.classification(y, moments)
        return lambda moments: scores.regression(y, moments, self._scaler)

    def _loo(self) -> dict[str, int | float]:
        """Leave-one-out metrics of at most 2000 training rows, as far as the draws are the posterior's."""
        chains, count = self._shape
        if self.attributes["exactness"] == "approximate" or chains * count < 10:
            return {}
        x, y = self._some_training_rows()
        values = self._log_likelihood(x, y, self._kept(len(x)))
        found = loo.leave_one_out(values, power=float(self.attributes["likelihood_power"]))
        nll = metrics.negative_log_likelihood(found.log_density)
        return {
            "loo_nll": nll.value,
            "loo_nll_se": nll.se,
            "loo_pareto_k": float(np.max(found.pareto_k)),
            "loo_pareto_k_bad": float(np.mean(~(found.pareto_k <= found.good_k))),
            "loo_rows": len(x),
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

    def _sums(self, x: np.ndarray, y: np.ndarray | None) -> predictive.Sums:
        parts = predictive.batches(*self._shape)
        with backend.arithmetic(self._precision):
            target = None if y is None else self._scaler.scale_targets(y)
            return predictive.sums(
                self._predictor, self._seen, self._arrange(x), target, weights=self._weights, parts=parts
            )

    def _moments(self, x: np.ndarray, y: np.ndarray | None) -> predictive.Moments:
        return self._sums(x, y).moments()

    def _samples(self, x: np.ndarray, *, seed: int) -> Iterator[tuple[slice, Float[np.ndarray, "sample row target"]]]:
        """Blocks of rows: samples of their predictive distribution in original units."""
        arranged, key = self._arrange(x), jax.random.key(seed)
        index = predictive.copies(len(self._seen), self._weights, least=_LEAST_SAMPLES)
        draws = self._seen if len(index) == len(self._seen) and self._weights is None else self._seen[index]
        with backend.arithmetic(self._precision):
            for rows in predictive.blocks(len(arranged), len(draws), len(self._signature.target_names)):
                found = predictive.samples(self._predictor, draws, arranged[rows], first_row=rows.start, key=key)
                yield rows, self._scaler.unscale_targets(found)

    def _quantiles(
        self, x: np.ndarray, *, seed: int, levels: tuple[float, ...] = _QUANTILES
    ) -> Float[np.ndarray, "quantile row target"]:
        """Quantiles of the predictive distribution in original units."""
        blocks = self._samples(x, seed=seed)
        return np.concatenate([scores.quantiles(np.sort(values, 0), levels) for _, values in blocks], 1)

    def _drawn(self, x: np.ndarray, y: np.ndarray) -> scores.Drawn:
        uniform = np.random.default_rng(0).uniform(size=y.shape)
        parts = [scores.drawn(values, y[rows], uniform[rows]) for rows, values in self._samples(x, seed=0)]
        quantiles, crps, pit = zip(*parts, strict=True)
        return scores.Drawn(np.concatenate(quantiles, 1), np.concatenate(crps), np.concatenate(pit))

    def _groups(self, x_test: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        """posterior_predictive and log_likelihood, in original units, of every k-th draw of each chain."""
        x, y = self._array("constant_data", "x"), self._array("observed_data", "y")
        kept = self._kept(max(len(x), len(x_test) * len(self._signature.target_names)))
        draws, key = self._thinned(kept), jax.random.key(int(self.attributes["seed"]))
        with backend.arithmetic(self._precision):
            drawn = predictive.samples(self._predictor, draws, self._arrange(x_test), key=key)
        if self._signature.task == "regression":
            drawn = self._scaler.unscale_targets(drawn)
        return {
            "posterior_predictive": {"y": drawn.reshape(self._shape[0], len(kept), *drawn.shape[1:]), "draw": kept},
            "log_likelihood": {"y": self._log_likelihood(x, y, kept), "draw": kept},
        }

    def _kept(self, numbers: int) -> Int[np.ndarray, " kept"]:
        """Every k-th draw, with k such that so many numbers a draw fit into `_GROUP_BYTES`."""
        chains, count = self._shape
        return np.arange(0, count, -(-count * 4 * chains * numbers // _GROUP_BYTES))

    def _thinned(self, kept: Int[np.ndarray, " kept"]) -> Float[np.ndarray, "sample dim"]:
        chains, count = self._shape
        return self._seen.reshape(chains, count, -1)[:, kept].reshape(chains * len(kept), -1)

    def _log_likelihood(
        self, x: np.ndarray, y: np.ndarray, kept: Int[np.ndarray, " kept"]
    ) -> Float[np.ndarray, "chain kept row"]:
        """Of these rows in original units, by every kept draw."""
        target = self._scaler.scale_targets(y)
        with backend.arithmetic(self._precision):
            found = predictive.log_likelihoods(self._predictor, self._thinned(kept), self._arrange(x), target)
        if self._signature.task == "regression":
            found = found - np.sum(np.log(self._scaler.y_sd)).astype(np.float32)
        return found.reshape(self._shape[0], len(kept), -1)

    def _add_groups(self, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """What `_groups` made, into the file."""
        assert self.path is not None
        self.posterior.close()
        for group, values in groups.items():
            names = schema.DIMS[group]["y"][: values["y"].ndim]
            coords = {"chain": np.arange(values["y"].shape[0]), "draw": values["draw"]}
            store.add_groups(self.path, {group: {"y": values["y"]}}, {"y": names}, {group: coords})
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
    def _problem(self) -> assembly.Problem:
        group = self.posterior["constant_data"].data_vars if "constant_data" in self.posterior.children else {}
        constant = {str(k): v.values for k, v in group.items()}
        with backend.arithmetic(self._precision):
            return assembly.Problem.restored(self.attributes, constant)

    @property
    def _signature(self) -> Signature:
        return self._problem.require_description().signature

    @property
    def _parts(self) -> assembly.Parts:
        return self._problem.require_description().parts

    @property
    def _scaler(self) -> Scaler:
        return self._problem.require_description().scaler

    @property
    def _posterior(self) -> NetworkPosterior:
        return self._problem.network_posterior

    @property
    def _precision(self) -> Any:
        return self.attributes["precision"]

    @property
    def _shape(self) -> tuple[int, int]:
        """Chains, and draws of each."""
        sizes = self.posterior["posterior"].sizes if "posterior" in self.posterior.children else {}
        if not sizes.get("draw", 0):
            raise BnnzooError(f"{self.path}: no draws yet; bnnzoo resume {self.path}")
        return sizes["chain"], sizes["draw"]

    @functools.cached_property
    def _names(self) -> list[str]:
        """The blocks of theta in order. The tree keeps none; the layout of a rebuilt model does."""
        if self._is_rebuildable:
            return [block.name for block in self._posterior.layout.blocks]
        return [str(name) for name in self.posterior["posterior"].data_vars]

    @functools.cached_property
    def _draws(self) -> Float[np.ndarray, "draw dim"]:
        """All chains' draws one after the other, flattened, on their natural scale."""
        chains, draws_each = self._shape
        # A copy of a variable shares no cache with it: the tree does not keep the draws a second time.
        group = self.posterior["posterior"]
        variables = [group[name].variable.copy(deep=False) for name in self._names]
        count = chains * draws_each
        widths = [variable.size // count for variable in variables]
        draws = np.empty((count, sum(widths)), variables[0].dtype)
        for stop, width, variable in zip(np.cumsum(widths), widths, variables, strict=True):
            draws[:, stop - width : stop] = np.asarray(variable.values).reshape(count, -1)
        return draws

    @functools.cached_property
    def _weights(self) -> Float[np.ndarray, " draw"] | None:
        """The weights of all chains' draws, summing to one; None where all are equal."""
        if "log_weight" not in self._statistics:
            return None
        return special.softmax(self._statistics["log_weight"].astype(np.float64).reshape(-1))

    @functools.cached_property
    def _statistics(self) -> dict[str, np.ndarray]:
        """sample_stats by name, [chain, draw]."""
        group = self.posterior["sample_stats"].data_vars if "sample_stats" in self.posterior.children else {}
        return {str(name): np.asarray(values.values) for name, values in group.items()}

    @property
    def _thin(self) -> int:
        return self._problem.recipe.thin if self._is_rebuildable else 1

    @functools.cached_property
    def _predictor(self) -> NetworkPosterior:
        """The posterior that predicts: linear in theta where the file holds a point to be linear at."""
        return self._posterior

    @functools.cached_property
    def _seen(self) -> Float[np.ndarray, "draw seen"]:
        """The draws as `_predictor` takes them: each followed by its chain's mode where there are modes."""
        if self._modes is None:
            return self._draws
        return np.concatenate([self._draws, np.repeat(self._modes, len(self._draws) // len(self._modes), 0)], 1)

    @functools.cached_property
    def _modes(self) -> Float[np.ndarray, "chain dim"] | None:
        constant = self.posterior["constant_data"].data_vars if "constant_data" in self.posterior.children else {}
        points = {str(k): v.values for k, v in constant.items() if str(k).startswith(schema.LINEARISED_AT)}
        arrays = schema.linearised_points(points, [block.name for block in self._posterior.layout.blocks])
        if arrays is None:
            return None
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)
