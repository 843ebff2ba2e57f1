"""The pictures of a run: which there are, and the arrays behind each, for `bnnzoo.plots` to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Float

from bnnzoo import plots
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation import predictive, scores
from bnnzoo.plots import Picture, Slice
from bnnzoo.samplers._regime import MOST_SIGMA2

if TYPE_CHECKING:
    from bnnzoo.run import Run

_LEVELS = (0.05, 0.25, 0.75, 0.95)
_PROBES = 50
_MOST_SLICES = 6
_MOST_ROWS = 5000


def band(run: Run, *, target: str | None = None) -> Picture:
    """The predictive distribution over the only input, 60 % of the data's half range beyond them on each side.

    Args:
        target: one of the targets; the first unless given.

    Raises:
        UsageError: for a classification, or more inputs than one.
    """
    like = run._signature
    if like.task != "regression" or like.shape != (1,):
        raise UsageError("a band is for a regression on one input; slices are for more")
    index = _target(run, target)
    x = run._array("constant_data", "x")[:, 0].astype(float)
    grid = _around(x, 1.6, 161)
    said = _regression(run, grid[:, None], index)
    y = run._array("observed_data", "y")[:, index]
    return plots.band(grid, said, x, y, feature=like.feature_names[0], target=like.target_names[index])


def slices(run: Run, *, target: str | None = None) -> Picture:
    """What is predicted along one feature, the others at their medians; the six features that move it most.

    Args:
        target: one of the targets, or the number of a class; the first target, or class 1, unless given.

    Raises:
        UsageError: for images.
    """
    like = run._signature
    if len(like.shape) != 1:
        raise UsageError("slices are for features of a table; these inputs are images")
    x = run._array("constant_data", "x").astype(float)
    middle = np.median(x, axis=0)
    grids = np.stack([_around(column, 1.0, 41) for column in x.T])
    points = np.broadcast_to(middle, (*grids.shape, len(middle))).copy()
    for feature, grid in enumerate(grids):
        points[feature, :, feature] = grid
    classify = like.task == "classification"
    index = _class(run, target) if classify else _target(run, target)
    flat = points.reshape(-1, len(middle))
    mean = run._moments(flat.astype(np.float32), None).mean[:, index].reshape(grids.shape)
    chosen = sorted(np.argsort(-np.ptp(mean, axis=1))[:_MOST_SLICES])
    found = []
    for feature in chosen:
        if classify:
            draws = run.functions(points[feature])[..., index].reshape(-1, grids.shape[1])
            line = np.average(draws, 0, run._weights)
            copies = draws[predictive.copies(len(draws), run._weights)]
            quantiles = scores.quantiles(np.sort(copies, 0)[..., None], _LEVELS)[..., 0]
        else:
            said = _regression(run, points[feature], index)
            line, quantiles = said["mean"].to_numpy(), said[["q05", "q25", "q75", "q95"]].to_numpy().T
        found.append(Slice(like.feature_names[feature], grids[feature], line, quantiles, x[:, feature]))
    name = like.target_names[index if not classify else 0]
    few = "" if len(found) == len(grids) else f"; the {len(found)} of {len(grids)} that move it most"
    return plots.slices(
        found,
        value=f"probability of {name} = {index}" if classify else name,
        interval="intervals of the draws' probabilities" if classify else "predictive intervals",
        held=f"the other inputs at their medians{few}",
    )


def trace(run: Run) -> Picture:
    """The predictions that agree least, middling and best between chains, draw by draw."""
    values, rhat, _ = _probed(run)
    return plots.trace(values, rhat)


def rank(run: Run) -> Picture:
    """The ranks of each chain's draws among all, for the predictions of `trace`."""
    values, _, ess = _probed(run)
    return plots.rank(values, ess)


def autocorrelation(run: Run) -> Picture:
    """The autocorrelation of the predictions of `trace`."""
    values, _, ess = _probed(run)
    return plots.autocorrelation(values, ess)


def steps(run: Run) -> Picture:
    """What the sampler said of its steps, over the run; warm-up too where it was kept.

    Raises:
        UsageError: if the sampler said nothing that is drawn.
    """
    groups = {}
    for group in ("sample_stats", "warmup_sample_stats"):
        some = run.posterior[group].data_vars if group in run.posterior.children else {}
        groups[group] = {str(name): value.values for name, value in some.items() if value.ndim == 2 and value.size}
    if not set(groups["sample_stats"]) & set(plots.STATISTICS):
        raise UsageError("the sampler reports no statistics of its steps")
    limits = {"sigma2": (MOST_SIGMA2, "trusted up to here, in the mean")}
    return plots.steps(groups["sample_stats"], groups["warmup_sample_stats"], limits=limits)


def calibration(run: Run) -> Picture:
    """Regression: coverage against the probability of central intervals. Classification: a reliability diagram.

    Raises:
        UsageError: if the run kept no test rows.
    """
    x, y = _test(run)
    if run._signature.task == "classification":
        return plots.reliability(y, run._moments(x, None).mean)
    return plots.coverage(run._drawn(x, y).pit.ravel())


def pit(run: Run) -> Picture:
    """The histogram of the probability integral transform of the test targets.

    Raises:
        UsageError: for a classification, or if the run kept no test rows.
    """
    if run._signature.task == "classification":
        raise UsageError("the probability integral transform is for regression")
    return plots.pit(run._drawn(*_test(run)).pit.ravel())


def ood(run: Run, *, spec: Any = "noise") -> Picture:
    """Histograms of the uncertainty on the test rows and on unfamiliar ones, of the posterior and its best draw.

    Args:
        spec: what the unfamiliar ones are, as for `Run.ood`.

    Raises:
        UsageError: if the run kept no test rows.
    """
    found = run.ood(spec)
    posterior = {name: (values, found.outside[name]) for name, values in found.inside.items()}
    single = {name: (values, found.single_outside[name]) for name, values in found.single_inside.items()}
    return plots.ood(posterior, single, name=Path(found.name).stem)


PICTURES: dict[str, Callable[[Run], Picture]] = {
    made.__name__: made for made in (band, slices, ood, calibration, pit, trace, rank, autocorrelation, steps)
}
"""All there are, by name, in the order of a report."""


def draw(run: Run, names: Iterable[str], *, spec: Any = "noise") -> Iterator[tuple[str, Picture | BnnzooError]]:
    """The pictures of those names, or for one that this run does not have, the reason.

    Args:
        spec: the unfamiliar inputs of `ood`.
    """
    for name in names:
        try:
            # With a band there is nothing left for slices to show.
            if name == "slices" and run._signature.task == "regression" and run._signature.shape == (1,):
                raise UsageError("one input only: the band shows it")
            yield name, ood(run, spec=spec) if name == "ood" else PICTURES[name](run)
        except BnnzooError as error:
            yield name, error


def write(
    run: Run, out: Path, formats: Sequence[str], names: Sequence[str] | None, *, ood: Any, force: bool
) -> list[dict[str, Any]]:
    """Draw into the folder `out`; everything wrong is found before anything is drawn."""
    for format in formats:
        if format not in plots.FORMATS:
            raise UsageError(f"--format {format}: pictures are {', '.join(plots.FORMATS[:-1])} or {plots.FORMATS[-1]}")
    for name in names or ():
        if name not in PICTURES:
            raise UsageError(f"--only {name}: no such picture; there are: {', '.join(PICTURES)}")
    chosen = list(dict.fromkeys(names or PICTURES))
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is no folder; use another -o")
    paths = {(name, format): out / f"{name}.{format}" for name in chosen for format in dict.fromkeys(formats)}
    taken = [path for path in paths.values() if path.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]}: exists; use another -o, or --force to replace it")
    rows: list[dict[str, Any]] = []
    for name, found in draw(run, chosen, spec=ood):
        if isinstance(found, BnnzooError):
            rows.append({"picture": name, "file": None, "why": str(found)})
            continue
        out.mkdir(parents=True, exist_ok=True)
        rows += [
            {"picture": name, "file": found.save(path), "alt": found.alt}
            for (of, _), path in paths.items()
            if of == name
        ]
    return rows


def _around(x: Float[np.ndarray, " row"], factor: float, points: int) -> Float[np.ndarray, " point"]:
    middle, half = (x.max() + x.min()) / 2, (x.max() - x.min()) / 2 or 0.5
    return np.linspace(middle - factor * half, middle + factor * half, points)


def _regression(run: Run, x: Float[np.ndarray, "row feature"], index: int) -> pd.DataFrame:
    """mean, sd, its parts and the quantiles of one target."""
    said = run.predict(x)
    prefix = f"{run._signature.target_names[index]}_" if len(run._signature.target_names) > 1 else ""
    found = {name: said[f"{prefix}{name}"].to_numpy() for name in ("mean", "sd", "aleatoric_sd", "epistemic_sd")}
    quantiles = run._quantiles(x.astype(np.float32), seed=0, levels=_LEVELS)
    levels = {f"q{round(100 * q):02d}": quantiles[i, :, index] for i, q in enumerate(_LEVELS)}
    return pd.DataFrame(found | levels)


def _test(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The test rows, at most 5000."""
    x, y = run.test_rows()
    return x[:_MOST_ROWS], y[:_MOST_ROWS]


def _probed(run: Run) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """Three predictions at the probe inputs of `Run.diagnose`, [chain, draw] each, their R-hat and bulk ESS.

    Those of the largest, the median and the smallest R-hat; of a posterior made in Python, three of its parameters.
    """
    values, names = _values(run)
    with np.errstate(invalid="ignore", divide="ignore"):
        moving = np.ptp(values, axis=(0, 1)) > 0
        if values.shape[1] < 4:
            rhat, ess = np.full(len(names), np.inf), np.zeros(len(names))
        else:
            flat = np.moveaxis(values, 2, 0).astype(float)
            rhat = np.array([array_stats.rhat(one) for one in flat])
            ess = np.array([array_stats.ess(one, method="bulk") for one in flat])
        rhat = np.where(moving & np.isfinite(rhat), rhat, np.inf)
        ess = np.where(moving & np.isfinite(ess), ess, 0.0)
    order = np.argsort(-rhat, kind="stable")
    chosen = sorted({0, len(order) // 2, len(order) - 1})
    return (
        {names[order[k]]: values[..., order[k]] for k in chosen},
        {names[order[k]]: float(rhat[order[k]]) for k in chosen},
        {names[order[k]]: float(ess[order[k]]) for k in chosen},
    )


def _values(run: Run) -> tuple[Float[np.ndarray, "chain draw value"], list[str]]:
    """What convergence is judged by, in original units, and what each value is."""
    chains, _ = run._shape
    if not run._is_rebuildable:
        positions = run._draws.reshape(chains, -1, run._draws.shape[-1])
        return positions, [f"parameter {index}" for index in range(positions.shape[2])]
    like = run._signature
    where, probes = run._probes(_PROBES)
    values = run.functions(probes)
    if like.task == "regression":
        values = run._scaler.unscale_targets(values)
        what = [f"mean of {target}" for target in like.target_names]
    else:
        what = [f"p({like.target_names[0]} = {index})" for index in range(like.num_classes)]
    names = [f"{one} at {where} {row}" for row in range(values.shape[2]) for one in what]
    return values.reshape(*values.shape[:2], -1), names


def _target(run: Run, name: str | None) -> int:
    names = run._signature.target_names
    if name is None:
        return 0
    if name not in names:
        raise UsageError(f"no target {name!r}; there are: {', '.join(names)}")
    return names.index(name)


def _class(run: Run, name: str | None) -> int:
    count = run._signature.num_classes
    if name is None:
        return min(1, count - 1)
    if not name.isdigit() or int(name) >= count:
        raise UsageError(f"no class {name!r}; classes are 0 to {count - 1}")
    return int(name)
