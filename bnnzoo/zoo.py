"""The front door: a recipe in, a run out. The command line and Python both come through here."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo import assembly, store
from bnnzoo.data import Dataset, from_arrays
from bnnzoo.errors import BnnzooWarning, InterruptedRunError, UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.progress import Observer, Progress
from bnnzoo.recipe import PARTS, Recipe, recipe_from, resolve, to_yaml
from bnnzoo.run import Run, fixed_leaves, train_groups
from bnnzoo.samplers import AbstractSampler
from bnnzoo.sampling import backend
from bnnzoo.sampling.drive import Job, Stop, drive
from bnnzoo.sampling.loop import Keys, carry_template
from bnnzoo.sampling.placement import Method, Placement, place
from bnnzoo.sampling.start import train
from bnnzoo.store import checkpoint


def sample(
    model: str | Mapping[str, Any] | AbstractPosterior,
    sampler: str | Mapping[str, Any] | AbstractSampler,
    *,
    data: Any = None,
    out: str | Path | None = None,
    force: bool = False,
    observer: Observer | None = None,
    **options: Any,
) -> Run:
    """Run chains and return them.

    Args:
        model: a name (`"mdn"`), a name with fields (`{"name": "mdn", "hidden": (50,)}`), or a posterior of your own.
        sampler: likewise; with a posterior of your own, a sampler object (`bnnzoo.Penalty(step_size=1e-3)`).
        data: arrays `(x, y)`, a `Dataset`, a data frame pair, or what `--data` takes. The model's example if left out.
        out: the NetCDF file; if left out a temporary one, gone when Python ends: `Run.save` keeps it.
        observer: called with a `Progress` once a chunk.
        options: the keys of a recipe file, which are the command line's options: `chains`, `warmup`, `draws`, `thin`,
            `seed`, `init`, `likelihood`, `prior`, `test_fraction`, ...

    Raises:
        UsageError: for anything wrong that can be found before the run.
    """
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="bnnzoo-"))
        try:
            run = sample(model, sampler, data=data, out=folder / "run.nc", observer=observer, **options)
        except BaseException:
            with contextlib.suppress(OSError):
                folder.rmdir()  # but for what an interrupted run left
            raise
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return run
    target = Path(out)
    if isinstance(model, AbstractPosterior):
        if not isinstance(sampler, AbstractSampler):
            raise UsageError("a posterior of your own needs a sampler object: bnnzoo.Penalty(...)")
        return _sample_posterior(model, sampler, out=target, force=force, observer=observer, **options)
    spec, dataset = data, None
    if data is not None and not isinstance(data, str | Path):
        spec = None
        task = options.get("task")
        dataset = data if isinstance(data, Dataset) else from_arrays(*data, task=task)
    recipe = recipe_of(
        model, sampler, data=None if spec is None else str(spec), in_memory=dataset is not None, **options
    )
    return run_recipe(recipe, out=target, force=force, observer=observer, dataset=dataset)


def recipe_of(model: Any, sampler: Any, *, data: str | None, in_memory: bool, **options: Any) -> Recipe:
    """The recipe of Python arguments, in the words of the command line."""
    words: dict[str, Any] = {}
    names: dict[str, str | None] = {}
    for kind, part in (("model", model), ("sampler", sampler)):
        if not isinstance(part, str | Mapping):
            raise UsageError(f"{kind}: give a name, or a mapping with a name and fields (got {type(part).__name__})")
        names[kind] = part if isinstance(part, str) else str(part.get("name", ""))
        words |= _flattened(kind, part)
    for key, value in options.items():
        words |= _flattened(key, value) if key in PARTS else {key: value}
    # Data in memory drop the shipped example and what goes with it, as named data do.
    recipe = resolve(names["model"], names["sampler"], [], {**words, "data": "memory" if in_memory else data})
    return dataclasses.replace(recipe, data=None) if in_memory else recipe


def _flattened(kind: str, part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {kind: part}
    named = {kind: part["name"]} if "name" in part else {}
    return {**named, **{f"{kind}.{key}": value for key, value in part.items() if key != "name"}}


def run_recipe(
    recipe: Recipe,
    *,
    out: Path,
    force: bool = False,
    observer: Observer | None = None,
    stop: Stop | None = None,
    dataset: Dataset | None = None,
) -> Run:
    """Run a recipe into `out`.

    Args:
        stop: polled between chunks; a signal number ends the run with a checkpoint.
        dataset: data in memory, instead of the recipe's.

    Raises:
        UsageError: before anything is compiled or written.
        InterruptedRunError: when `stop` said so.
    """
    tell = observer or _silent
    backend.prepare(recipe.chain_method, recipe.chains)
    with backend.arithmetic(recipe.precision):
        tell(Progress("start", 0, 1, note="reading data"))
        problem = assembly.assemble(recipe, dataset)
        _check_start_method(recipe)
        if not force:
            store.refuse_existing(out)
            store.check_room(out, _bytes(problem.posterior, recipe.chains, recipe.draws))
        placement = place(recipe.chain_method, recipe.chains)
        keys = Keys.of(recipe.seed)
        trained = (recipe.init or "map") == "map"
        started = time.perf_counter()
        fixed: dict[str, np.ndarray] = {}
        if named_leaves(problem.posterior.network):
            fixed = _train_fixed(problem, keys.fixed, tell, stop)
            problem = assembly.fix(problem, fixed)
        thetas = assembly.initial_positions(problem, trained=trained, key=keys.init)
        if trained:
            thetas = _train(problem.posterior, thetas, placement, keys.init, recipe, tell, stop)
        started = time.perf_counter() - started
        _check_start(problem.posterior, thetas)
        resolved = assembly.resolved(problem)
        attributes = _attributes(recipe, problem.parts.sampler, placement) | {
            "recipe": to_yaml(resolved),
            "model": recipe.model.name,
            "sampler": recipe.sampler.name,
            "signature": json.dumps(assembly.signature_words(problem.train.signature)),
            "data_sha256": _digest(problem.train),
        }
        dims = {"x": ["row", *_input_dims(problem.train.x)], "y": ["row", "target"][: problem.train.y.ndim]}
        dims |= {
            "x_test": ["test_row", *_input_dims(problem.train.x)],
            "y_test": ["test_row", *dims["y"][1:]],
        }
        dims |= {"x_mean": _input_dims(problem.train.x)[: problem.scaler.x_mean.ndim]}
        dims |= {"x_sd": dims["x_mean"], "y_mean": ["target"], "y_sd": ["target"]}
        writer = store.Store(out)
        static = train_groups(problem.train, problem.test, problem.scaler, fixed)
        writer.create(attributes, dims, static, force=force)
        job = Job(problem.posterior, problem.parts.sampler, problem.parts.sampler, recipe, placement, keys)
        drive(job, writer, thetas, started=started, tell=tell, stop=stop)
        return open(out)


def resume(
    path: str | Path,
    *,
    observer: Observer | None = None,
    stop: Stop | None = None,
    allow_inexact: bool = False,
) -> Run:
    """Go on with an unfinished run from its checkpoint: the result equals that of an uninterrupted run, bit for bit.

    Raises:
        UsageError: if there is nothing to resume, or this machine would not give the same draws and `allow_inexact`
            is not given.
    """
    out = Path(path)
    folder = store.parts_folder(out)
    if not folder.is_dir():
        raise UsageError(f"{out}: finished; nothing to resume" if out.exists() else f"{out}: no such run")
    attributes, _ = store.read_header(folder)
    if "signature" not in attributes:
        raise UsageError(
            f"{out}: the run is of a posterior made in Python, which its file cannot rebuild; run it again"
        )
    recipe = recipe_from(str(attributes["recipe"]), source=f"{folder.name}/header.json")
    if not (folder / "checkpoint.npz").exists():
        raise UsageError(f"{out}: stopped before its first checkpoint; start it again with --force")
    tell = observer or _silent
    backend.prepare(recipe.chain_method, recipe.chains)
    with backend.arithmetic(recipe.precision):
        static = store.read_static(folder)
        signature = assembly.signature_from(json.loads(str(attributes["signature"])))
        constant = static["constant_data"]
        train_rows = Dataset(
            x=constant["x"],
            y=static["observed_data"]["y"],
            task=signature.task,
            feature_names=signature.feature_names,
            target_names=signature.target_names,
            num_classes=signature.num_classes,
            name="checkpoint",
        )
        parts = assembly.make_parts(recipe, signature.task)
        scaler = assembly.fit_scaler(train_rows, parts.likelihood, standardise=recipe.standardise)
        posterior = assembly.make_posterior(recipe, parts, signature, scaler, train_rows, fixed_leaves(constant))
        placement = place(recipe.chain_method, recipe.chains)
        differences = _differences(attributes, _attributes(recipe, parts.sampler, placement))
        if differences and not allow_inexact:
            raise UsageError(
                f"{out}: here the draws would not be those of an uninterrupted run: {'; '.join(differences)}; "
                "use the environment it was started in, or --allow-inexact-resume"
            )
        words = checkpoint.read_words(folder / "checkpoint.npz")
        sampler = dataclasses.replace(parts.sampler, **words["tuned"]) if words["tuned"] else parts.sampler
        template = carry_template(posterior, sampler, recipe.chains, recipe.warmup)
        saved = checkpoint.load(folder / "checkpoint.npz", template)
        writer = store.Store(out)
        writer.reopen(saved.num_parts)
        if differences:
            writer.update({"inexact_resume": "; ".join(differences)})
        job = Job(posterior, parts.sampler, sampler, recipe, placement, Keys.of(recipe.seed))
        thetas = np.zeros((recipe.chains, posterior.layout.dim), posterior.dtype)
        drive(job, writer, thetas, saved=saved, tell=tell, stop=stop)
        return open(out)


def open(path: str | Path) -> Run:
    """A run from its file, or from its parts while it is unfinished.

    Raises:
        UsageError: if there is none.
    """
    return Run(store.open_tree(Path(path)), Path(path))


def resolved_recipe(recipe: Recipe) -> str:
    """The recipe with every field written out, as YAML."""
    backend.prepare(recipe.chain_method, recipe.chains)
    with backend.arithmetic(recipe.precision):
        return to_yaml(assembly.resolved(assembly.assemble(recipe)))


def _train(
    posterior: AbstractPosterior,
    thetas: Float[Array, "chain dim"],
    placement: Placement,
    key: PRNGKeyArray,
    recipe: Recipe,
    tell: Observer,
    stop: Stop | None,
    what: str = "each chain's start",
) -> Float[np.ndarray, "chain dim"]:
    positions = np.asarray(thetas)
    stream = train(
        posterior,
        thetas,
        placement=placement,
        key=jax.random.fold_in(key, 2**31),
        most_steps=recipe.start_steps,
        held_out=recipe.start_held_out,
    )
    for done, positions in stream:  # noqa: B007 (the last one is returned)
        tell(Progress("start", done, recipe.start_steps, note=f"training {what}"))
        number = stop() if stop else 0
        if number:
            raise InterruptedRunError(f"stopped while training {what}: nothing was written", number)
    return positions


def _train_fixed(
    problem: assembly.Problem, key: PRNGKeyArray, tell: Observer, stop: Stop | None
) -> dict[str, np.ndarray]:
    """What is not sampled, by name: of the whole network, trained once and whatever the number of chains."""
    whole = assembly.whole(problem)
    thetas = assembly.initial_positions(whole, trained=True, key=key)
    placement = place("vectorized", 1)
    thetas = _train(whole.posterior, thetas, placement, key, problem.recipe, tell, stop, "the part that is not sampled")
    trained = named_leaves(whole.posterior.network_at(jnp.asarray(thetas[0])))
    return {name: np.asarray(trained[name]) for name in named_leaves(problem.posterior.network)}


def _check_start_method(recipe: Recipe) -> None:
    if recipe.chain_method == "parallel" and recipe.chains > 1 and len(jax.local_devices()) == 1:
        warnings.warn(
            "chain method parallel: JAX had started with one device; chains run under vmap instead. Set "
            "jax_num_cpu_devices before JAX is used, or run bnnzoo from the command line",
            BnnzooWarning,
            stacklevel=3,
        )


def _check_start(posterior: AbstractPosterior, thetas: Any) -> None:
    """Refuse a start where the density or its gradient is not finite."""
    density, gradient = jax.jit(jax.vmap(jax.value_and_grad(posterior.log_density)))(jnp.asarray(thetas))
    density, gradient = np.asarray(density), np.asarray(gradient)
    if not np.isfinite(density).all():
        chain = int(np.argmin(np.isfinite(density)))
        rows = np.asarray(posterior.log_likelihoods(jnp.asarray(thetas)[chain]))
        bad = np.flatnonzero(~np.isfinite(rows))
        where = f"at training row {bad[0] + 1}" if len(bad) else "in the prior"
        raise UsageError(
            f"chain {chain}: the log density is {density[chain]} at the start, {where}; check the data, "
            "or use another --likelihood, --prior or --init"
        )
    if not np.isfinite(gradient).all():
        chain, index = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
        raise UsageError(
            f"chain {chain}: the gradient by {posterior.layout.name_of(index)} is not finite at the start; "
            "use another --init or --likelihood"
        )


def _attributes(recipe: Recipe, sampler: AbstractSampler, placement: Placement) -> store.Attributes:
    return {
        "bnnzoo_version": backend.versions()["bnnzoo"],
        "exactness": sampler.stated_exactness,
        "likelihood_power": recipe.likelihood_power,
        "regime_ok": 1,
        "complete": 0,
        "draws_requested": recipe.draws,
        "draws_done": 0,
        "seed": recipe.seed,
        "versions": json.dumps(backend.versions()),
        "device": backend.device(),
        "placement": f"{placement.method} on {placement.num_devices}",
        "precision": recipe.precision,
        "tuned": "{}",
        "seconds_compile": 0.0,
        "seconds_warmup": 0.0,
        "seconds_sampling": 0.0,
        "target_evaluations": 0.0,
    }


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What would change the draws of a resumed run."""
    found = [f"{k} was {then[k]}, is {now[k]}" for k in ("device", "placement", "precision") if then[k] != now[k]]
    old, new = json.loads(then["versions"]), json.loads(now["versions"])
    return found + [f"{k} was {old.get(k)}, is {new[k]}" for k in new if old.get(k) != new[k]]


def _digest(train: Dataset) -> str:
    import hashlib

    digest = hashlib.sha256()
    for array in (train.x, train.y):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _input_dims(x: np.ndarray) -> list[str]:
    return {2: ["feature"], 3: ["height", "width"], 4: ["channel", "height", "width"]}[x.ndim]


def _bytes(posterior: AbstractPosterior, num_chains: int, num_draws: int) -> int:
    return num_chains * num_draws * (posterior.layout.dim + 16) * np.dtype(posterior.dtype).itemsize


def _silent(progress: Progress) -> None:
    del progress


def _sample_posterior(
    posterior: AbstractPosterior,
    sampler: AbstractSampler,
    *,
    out: Path,
    force: bool = False,
    observer: Observer | None = None,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    thin: int = 1,
    seed: int = 0,
    init: Literal["map", "prior"] | Float[Array | np.ndarray, "chain dim"] = "map",
    chain_method: Method = "auto",
    keep_warmup: bool = False,
    precision: Literal["float32", "float64"] = "float32",
) -> Run:
    """`sample` for a posterior that no recipe describes: the file holds its draws, and cannot rebuild it."""
    words: dict[str, Any] = {
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "thin": thin,
        "seed": seed,
        "chain_method": chain_method,
        "keep_warmup": keep_warmup,
        "precision": precision,
    }
    recipe = resolve(type(posterior).__name__, type(sampler).__name__, [], words)
    if not force:
        store.refuse_existing(out)
    backend.prepare(chain_method, chains)
    with backend.arithmetic(precision):
        sampler.check(posterior)
        # What a posterior of one's own refuses, such as mini-batches, it says when a step is traced.
        carry_template(posterior, sampler, chains, max(1, warmup))
        _check_start_method(recipe)
        placement = place(chain_method, chains)
        keys = Keys.of(seed)
        if isinstance(init, str):
            fold = jax.vmap(lambda c: posterior.start(key=jax.random.fold_in(keys.init, c)))
            thetas: Any = fold(jnp.arange(chains, dtype=jnp.uint32))
            if init == "map":
                thetas = _train(posterior, thetas, placement, keys.init, recipe, observer or _silent, None)
        else:
            thetas = np.asarray(init)
            if thetas.shape != (chains, posterior.layout.dim):
                raise UsageError(f"init: has shape {list(thetas.shape)}, not [{chains}, {posterior.layout.dim}]")
        _check_start(posterior, thetas)
        writer = store.Store(out)
        power = {"likelihood_power": float(posterior.likelihood_power)}
        names = {"model": type(posterior).__name__, "sampler": type(sampler).__name__, "recipe": ""}
        writer.create(_attributes(recipe, sampler, placement) | power | names, {}, {}, force=force)
        job = Job(posterior, sampler, sampler, recipe, placement, keys)
        drive(job, writer, thetas, tell=observer or _silent)
        return open(out)
