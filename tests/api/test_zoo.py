"""The entry points: names or objects as input, and a file that can be repeated, resumed and read by ArviZ."""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import xarray as xr
from jaxtyping import Array, Float

import bnnzoo
from bnnzoo import store
from bnnzoo.api import entrances, keywords, resuming
from bnnzoo.errors import BnnzooError, InterruptedRunError, UsageError
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.recipe import Recipe, recipe_from
from bnnzoo.samplers import AbstractSampler, RandomWalk
from bnnzoo.sampling import provenance, verdict
from bnnzoo.sampling.devices import jax_settings


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory):
    """Return a function that makes an uninterrupted run of a sampler, once."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def make(sampler: str, **more: Any) -> bnnzoo.Run:
        out = folder / f"{sampler}-{len(list(folder.iterdir()))}.nc"
        return entrances.run_recipe(tiny.recipe(sampler, **more), out=out)

    return make


def groups(run: bnnzoo.Run) -> dict[str, np.ndarray]:
    names = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")
    result = [name for name in names if name in run.posterior.children]
    return {f"{g}/{n}": v.values for g in result for n, v in run.posterior[g].data_vars.items()}


def steady(run: bnnzoo.Run) -> dict[str, Any]:
    """Return the root attributes without the durations."""
    return {k: v for k, v in run.attributes.items() if not k.startswith("seconds_")}


# ---- T18 through files ---------------------------------------------------------------------------


def _check_resume(recipe: Recipe, expected_run: bnnzoo.Run, polls: tuple[int, ...], folder: Any) -> None:
    for poll in polls:
        out = folder / f"stopped-{poll}.nc"
        with pytest.raises(InterruptedRunError, match=r"continue: bnnzoo\.resume\(") as caught:
            entrances.run_recipe(recipe, out=out, **tiny.stopped(poll))
        assert caught.value.exit_code == 130
        result = bnnzoo.open(out)
        assert result.attributes["complete"] == 0
        draws_done = result.attributes["draws_done"]
        assert 0 <= draws_done < recipe.draws
        if draws_done:
            for tree in (result.posterior, xr.open_datatree(out, engine="h5netcdf")):
                assert tree["posterior"].sizes["draw"] == draws_done
            before = expected_run.posterior["posterior"]["weight"].values[:, :draws_done]
            np.testing.assert_array_equal(result.posterior["posterior"]["weight"].values, before)
        resumed = resuming.resume(out)
        tiny.assert_same_bits(groups(resumed), groups(expected_run))
        assert steady(resumed) == steady(expected_run)
        assert not store.parts_folder(out).exists()


# `test_run` resumes every sampler bit for bit. This test compares files, for a sampler of bnnzoo and one of NumPyro.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")  # bbb does not converge in so few steps
@pytest.mark.parametrize(
    "sampler",
    [name if name in ("penalty", "nuts") else pytest.param(name, marks=pytest.mark.slow) for name in tiny.SAMPLERS],
)
@pytest.mark.long
def test_an_interrupted_run_resumes_to_the_same_bits(sampler, finished_runs, tmp_path):
    """The run is stopped in warm-up and during sampling."""
    _check_resume(tiny.recipe(sampler), finished_runs(sampler), (3, 7), tmp_path)


@pytest.mark.long
def test_an_interrupted_run_resumes_twice(finished_runs, tmp_path):
    out = tmp_path / "run.nc"
    for chunk, start in (
        (2, functools.partial(entrances.run_recipe, tiny.recipe("mala"), out=out)),
        (1, functools.partial(resuming.resume, out)),
        (3, functools.partial(resuming.resume, out)),
    ):
        with pytest.raises(InterruptedRunError):
            start(**tiny.stopped(chunk))
    tiny.assert_same_bits(groups(resuming.resume(out)), groups(finished_runs("mala")))


@pytest.mark.long
def test_a_run_with_thinning_and_kept_warm_up_resumes_to_the_same_bits(finished_runs, tmp_path):
    more = {"thin": 3, "keep_warmup": True, "draws": 12}
    reference = finished_runs("random-walk", **more)
    assert reference.posterior["warmup_posterior"].sizes["draw"] == tiny.WARMUP
    _check_resume(tiny.recipe("random-walk", **more), reference, (3, 7), tmp_path)


@pytest.mark.long
def test_an_mlp_that_trains_its_starts_resumes_to_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=np.sin(x[:, 0]) + 0.1 * rng.normal(size=60))
    more = {"data": str(path), "init": "map", "model.hidden": [3], "likelihood.scale": "learned"}
    recipe = tiny.recipe("mala", "mlp", **more)
    complete = entrances.run_recipe(recipe, out=tmp_path / "whole.nc")
    assert "likelihood_scale" in complete.posterior["posterior"]
    assert (complete.posterior["posterior"]["likelihood_scale"].values > 0).all()
    out = tmp_path / "run.nc"
    polls = []
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(recipe, out=out, observer=lambda p: polls.append(p), stop=lambda: 15 * _sampling(polls))
    tiny.assert_same_bits(groups(resuming.resume(out)), groups(complete))


def _sampling(polls: list[Any]) -> int:
    return int(bool(polls) and polls[-1].phase == "sampling")


@pytest.mark.long
def test_a_run_that_was_killed_after_its_last_chunk_resumes(finished_runs, tmp_path, monkeypatch):
    """After the last checkpoint no step is left, and only the file is written."""
    out = tmp_path / "run.nc"
    monkeypatch.setattr(store.Store, "finish", _killed)
    with pytest.raises(KeyboardInterrupt):
        entrances.run_recipe(tiny.recipe("random-walk", checkpoint_every=0), out=out)
    monkeypatch.undo()
    tiny.assert_same_bits(groups(resuming.resume(out)), groups(finished_runs("random-walk")))


def test_a_file_that_cannot_be_written_can_be_written_later(finished_runs, tmp_path, monkeypatch):
    """T21: the disk is full when the file is built from the parts, and no draw is lost."""
    out = tmp_path / "run.nc"
    monkeypatch.setattr("bnnzoo.store.netcdf.Unfinished.static", _full)
    with pytest.raises(BnnzooError, match=r"run\.nc: cannot be written") as caught:
        entrances.run_recipe(tiny.recipe("random-walk"), out=out)
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    assert not out.exists()
    tiny.assert_same_bits(groups(resuming.resume(out)), groups(finished_runs("random-walk")))


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def _full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_finished_run_has_nothing_to_resume(finished_runs, tmp_path):
    path = finished_runs("random-walk").path
    with pytest.raises(UsageError, match="is finished, so there is nothing to resume"):
        resuming.resume(path)
    with pytest.raises(UsageError, match="no such run"):
        resuming.resume(tmp_path / "gone.nc")


@pytest.mark.usefixtures("as_options")
def test_another_environment_does_not_resume_silently(finished_runs, tmp_path, monkeypatch):
    out = tmp_path / "run.nc"
    monkeypatch.setattr(jax_settings, "versions", lambda versions=jax_settings.versions: versions() | {"jax": "0.0.1"})
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("random-walk"), out=out, **tiny.stopped(7))
    monkeypatch.undo()
    with pytest.raises(UsageError, match=r"jax was 0\.0\.1.*--allow-inexact-resume"):
        resuming.resume(out)
    result = resuming.resume(out, allow_inexact=True)
    assert "jax was 0.0.1" in result.attributes["inexact_resume"]
    tiny.assert_same_bits(groups(result), groups(finished_runs("random-walk")))


def test_resume_reports_changes_that_affect_the_draws():
    about = {"device": "cpu x 4", "placement": "parallel on 4", "precision": "float32"}
    packages = ("bnnzoo", "jax", "jaxlib", "numpyro", "equinox", "numpy")
    attributes = {**about, "versions": json.dumps(dict.fromkeys(packages, "2"))}
    assert set(jax_settings.versions()) == set(packages)
    assert provenance.differences(attributes, attributes) == []
    for name, value in about.items():
        assert provenance.differences({**attributes, name: "another"}, attributes) == [
            f"{name} was another, is {value}"
        ]
    for name in packages:
        changed = {**attributes, "versions": json.dumps({**dict.fromkeys(packages, "2"), name: "1"})}
        assert provenance.differences(changed, attributes) == [f"{name} was 1, is 2"]


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")  # bbb does not converge in so few steps
@tiny.EACH
def test_the_file_keeps_the_contract(sampler, finished_runs):
    run = finished_runs(sampler)
    about = run.attributes
    expected = {
        "bnnzoo_version", "recipe", "tuned", "model", "sampler", "exactness", "likelihood_power", "regime_ok",
        "complete", "draws_requested", "draws_done", "seed", "versions", "device", "precision", "data_sha256",
        "seconds_compile", "seconds_warmup", "seconds_sampling", "target_evaluations",
    }  # fmt: skip
    assert expected <= set(about)
    assert (about["model"], about["sampler"]) == ("linear", sampler)
    assert (about["complete"], about["draws_requested"], about["draws_done"]) == (1, tiny.DRAWS, tiny.DRAWS)
    assert about["regime_ok"] in (0, 1, "not-applicable")
    assert about["target_evaluations"] > 0
    tree = run.posterior
    assert set(tree["posterior"].data_vars) == {"weight", "bias"}
    assert tree["posterior"]["weight"].dims[:2] == ("chain", "draw")
    assert tree["posterior"]["weight"].shape == (tiny.CHAINS, tiny.DRAWS, 1, 10)
    assert tree["posterior"]["bias"].shape == (tiny.CHAINS, tiny.DRAWS, 1)
    assert {"observed_data", "constant_data"} <= set(tree.children)
    assert tree["constant_data"]["x"].shape == (397, 10)
    assert tree["constant_data"]["x_test"].shape == (45, 10)
    stats = tree["sample_stats"]
    if sampler in tiny.APPROXIMATE:  # a draw takes no steps
        own = {"swag": ["snapshots"], "bbb": ["log_q"], "laplace": ["log_q"]}
        assert set(stats.data_vars) == {"diverging", *own.get(sampler, [])}
        return
    assert all(v.dims == ("chain", "draw") for v in stats.data_vars.values())
    assert {"diverging", "step_size"} <= set(stats)
    assert ("lp_estimate" in stats) == (sampler in tiny.MINI_BATCH)
    assert ("lp" in stats) != ("lp_estimate" in stats)
    if sampler == "penalty":
        assert {"delta", "sigma2", "penalty", "var_dof", "delta_skew"} <= set(stats)
    for name in ("accepted", "diverging"):
        if name in stats:
            assert stats[name].dtype == bool


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["random-walk", "mala"])
def test_the_log_density_in_the_file_is_that_of_the_draw(sampler, finished_runs):
    posterior = tiny.problem(sampler).posterior
    result = finished_runs(sampler).posterior
    theta = np.concatenate(
        [result["posterior"][b.name].values[:, -1].reshape(4, -1) for b in posterior.layout.blocks], 1
    )
    lp = jax.vmap(posterior.log_density)(jnp.asarray(theta))
    np.testing.assert_allclose(result["sample_stats"]["lp"].values[:, -1], lp, rtol=1e-4)


def test_the_file_is_read_by_xarray_and_arviz(finished_runs):
    import arviz_stats

    tree = xr.open_datatree(finished_runs("nuts").path, engine="h5netcdf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = arviz_stats.summary(tree, round_to="none")
    assert len(summary) == 11
    assert np.isfinite(summary["mean"].to_numpy(float)).all()
    expected = tree["posterior"]["bias"].values.mean()
    np.testing.assert_allclose(float(summary.loc["bias[0]", "mean"]), expected, rtol=1e-5)


def test_the_recipe_in_the_file_repeats_the_run(finished_runs, tmp_path):
    first = finished_runs("penalty")
    recipe = recipe_from(first.attributes["recipe"])
    repeated_run = entrances.run_recipe(recipe, out=tmp_path / "again.nc")
    tiny.assert_same_bits(groups(repeated_run), groups(first))
    assert steady(repeated_run) == steady(first)


def test_another_seed_is_another_run(finished_runs):
    first, other = groups(finished_runs("random-walk")), groups(finished_runs("random-walk", seed=1))
    assert not np.isin(first["posterior/weight"], other["posterior/weight"]).any()


@pytest.mark.long
def test_the_digest_is_of_the_training_rows(finished_runs):
    constant = finished_runs("random-walk").posterior
    x, y = constant["constant_data"]["x"].values, constant["observed_data"]["y"].values
    digest = hashlib.sha256()
    for array in (x, y[:, None]):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    assert finished_runs("random-walk").attributes["data_sha256"] == digest.hexdigest()
    assert finished_runs("mala").attributes["data_sha256"] == digest.hexdigest()


def test_the_summary_is_short_and_plain(finished_runs):
    result = finished_runs("penalty").summary()
    json.dumps(result)
    assert result["parameters"] == 11
    assert result["chains"] == tiny.CHAINS
    assert 0 <= result["acceptance_rate"] <= 1


def test_an_existing_file_is_refused_and_force_replaces_it(finished_runs, tmp_path):
    out = tmp_path / "run.nc"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        entrances.run_recipe(tiny.recipe("random-walk"), out=out)
    assert out.read_text() == "mine"
    repeated_run = entrances.run_recipe(tiny.recipe("random-walk"), out=out, force=True)
    tiny.assert_same_bits(groups(repeated_run), groups(finished_runs("random-walk")))
    with pytest.raises(UsageError, match="exists"):
        repeated_run.save(out)
    repeated_run.save(tmp_path / "copy.nc")
    assert (tmp_path / "copy.nc").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data": "nothing.csv"}, "nothing.csv"),
        (
            {"likelihood": "categorical", "likelihood.scale": None, "task": "regression"},
            "categorical is for classif",
        ),
        ({"sampler.step_size": -1.0}, "step.size"),
        ({"sampler.sampling": "disjoint", "sampler.batch_size": 100}, "the number of rows .got 500."),
    ],
)
def test_bad_input_writes_nothing(more, message, tmp_path):
    with pytest.raises(UsageError, match=message) as caught:
        entrances.run_recipe(tiny.recipe("penalty", **more), out=tmp_path / "run.nc")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


# ---- Python --------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "chains": 2,
    "warmup": 10,
    "draws": 12,
    "init": "prior",
    "chain_method": "vectorized",
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")
def test_sample_by_names_with_arrays(tmp_path, monkeypatch):
    at_exit = []
    monkeypatch.setattr("atexit.register", lambda *arguments, **more: at_exit.append((arguments, more)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -1.0, 0.5]
    model: Any = {"name": "mlp", "hidden": (4,)}
    sampler: Any = {"name": "penalty", "batch_size": 6, "num_batches": 3}
    run = bnnzoo.sample(model, sampler, data=(x, y), seed=3, prior={"name": "laplace", "scale": 0.5}, **SHORT)
    posterior = run.posterior["posterior"]
    assert posterior["layers_0_weight"].shape == (2, 12, 4, 3)
    recipe = recipe_from(run.attributes["recipe"])
    assert recipe.model.fields["hidden"] == [4]
    assert (recipe.sampler.name, recipe.sampler.fields["batch_size"]) == ("penalty", 6)
    assert (recipe.prior.name, recipe.prior.fields["scale"]) == ("laplace", 0.5)
    assert recipe.seed == run.attributes["seed"] == 3
    assert run.posterior["constant_data"]["x"].shape == (36, 3)
    assert len(run.predict(x[:5])) == 5
    assert {"nll", "rmse", "coverage_90", "rows"} <= set(run.evaluate())
    assert len(list(tmp_path.glob("*/run.nc"))) == 1
    ((function, *arguments), more) = at_exit[-1]
    function(*arguments, **more)
    assert list(tmp_path.iterdir()) == []


def test_any_part_is_a_name_its_fields_or_an_object():
    options = {"data": None, "in_memory": True}
    recipe = keywords.recipe_of("mlp", RandomWalk(), **options, likelihood=Gaussian(scale=0.5), prior=None)
    assert (recipe.sampler.name, recipe.prior) == ("random-walk", None)
    assert (recipe.likelihood.name, recipe.likelihood.fields) == ("gaussian", {"scale": 0.5})
    with pytest.raises(UsageError, match=r"prior: must be a name, a mapping .* \(got int\)"):
        keywords.recipe_of("mlp", "hmc", **options, prior=3)


def test_sample_needs_names_or_a_pair_of_objects(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError, match="needs a sampler object"):
        bnnzoo.sample(Plane(), "mala")
    with pytest.raises(UsageError, match="chians"):
        bnnzoo.sample("linear", "mala", chians=3)
    assert list(tmp_path.iterdir()) == []


class Plane(bnnzoo.AbstractPosterior):
    """N((1, -1), diag(4, 0.25)) as one datum with a flat prior."""

    data: Any
    likelihood_power: Any
    layout: Layout = eqx.field(static=True)

    def __init__(self) -> None:
        self.data, self.likelihood_power = np.array([[1.0, -1.0]], np.float32), np.float32(1)
        self.layout = Layout((Block("place", (2,), 0),))

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.zeros((), theta.dtype)

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Any) -> Float[Array, " batch"]:
        return -jnp.sum((theta - batch) ** 2 / jnp.asarray([4.0, 0.25]), 1) / 2


@pytest.mark.long
def test_a_posterior_of_your_own(tmp_path):
    """t statistics of both means and both variances over 32 chains, against N((1, -1), diag(4, 0.25))."""
    options: dict[str, Any] = {"chains": 32, "warmup": 200, "draws": 400, "chain_method": "vectorized"}
    run = bnnzoo.sample(Plane(), bnnzoo.Mala(step_size=0.1), out=tmp_path / "run.nc", init="prior", **options)
    place = run.posterior["posterior"]["place"].values.astype(float)
    mean, variance = np.array([1.0, -1.0]), np.array([4.0, 0.25])
    averages = np.concatenate([place.mean(1), ((place - mean) ** 2).mean(1)], 1)
    expected = np.concatenate([mean, variance])
    t = (averages.mean(0) - expected) / (averages.std(0, ddof=1) / 32**0.5)
    assert (np.abs(t) < 6.07).all()
    assert (run.attributes["model"], run.attributes["sampler"]) == ("Plane", "Mala")
    with pytest.raises(UsageError, match="made in Python"):
        run.predict(np.zeros((1, 2)))
    assert xr.open_datatree(run.path, engine="h5netcdf")["posterior"].sizes["chain"] == 32


def test_a_given_posterior_starts_at_given_positions(tmp_path):
    start = np.array([[5.0, 5.0], [-5.0, -5.0]], np.float32)
    options: dict[str, Any] = {"chains": 2, "warmup": 0, "draws": 3, "chain_method": "vectorized"}
    run = bnnzoo.sample(Plane(), RandomWalk(step_size=1e-6), init=start, **options)
    np.testing.assert_allclose(run.posterior["posterior"]["place"].values[:, 0], start, atol=1e-4)
    with pytest.raises(UsageError, match=r"init: must have shape \[2, 2\] \(got \[3, 2\]\)"):
        bnnzoo.sample(Plane(), RandomWalk(), init=np.zeros((3, 2)), **options)
    for init in ("given", "run.nc"):
        with pytest.raises(UsageError, match=rf'^init="{init}": for a posterior made in Python, must be map, prior or'):
            bnnzoo.sample(Plane(), RandomWalk(), init=init, **options)


@pytest.mark.long
def test_any_module_is_a_network():
    class Wave(eqx.Module):
        frequency: Array
        steps: int = eqx.field(static=True, default=2)

        def __call__(self, x: Array) -> Array:
            return jnp.sin(self.frequency * x)

    x = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    y = np.sin(1.7 * x)
    posterior = bnnzoo.NetworkPosterior.of(Wave(jnp.ones(1)), Gaussian(0.1), Normal(3.0), x, y)
    start = np.full((2, 1), 1.6, np.float32)
    run = bnnzoo.sample(
        posterior, bnnzoo.RandomWalk(step_size=0.02), init=start, chains=2, warmup=100, draws=200,
        chain_method="vectorized",
    )  # fmt: skip
    assert list(run.posterior["posterior"].data_vars) == ["frequency"]
    np.testing.assert_allclose(run.posterior["posterior"]["frequency"].values.mean(), 1.7, atol=0.05)


class _Breaks(AbstractSampler[Any]):
    """A sampler whose position becomes NaN after 30 steps."""

    exactness = "biased"

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> Any:
        return _Position(theta, jnp.zeros((), theta.dtype))

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        count = state.count + 1
        value = jnp.where(count > 30, jnp.nan, count)
        return _Position(jnp.full_like(state.position, value), count), {"lp": value}


class _Position(eqx.Module):
    position: Array
    count: Array


def test_a_run_that_breaks_keeps_the_draws_before(tmp_path):
    out = tmp_path / "run.nc"
    with pytest.raises(BnnzooError, match=r"place\[0\] is not finite.*the \d+ draws before the error are in") as caught:
        bnnzoo.sample(Plane(), _Breaks(), out=out, chains=2, warmup=5, draws=500, init="prior")
    assert caught.value.exit_code == 1
    result = bnnzoo.open(out)
    place = result.posterior["posterior"]["place"].values
    assert result.attributes["complete"] == 0
    assert result.attributes["draws_done"] == place.shape[1] > 0
    assert np.isfinite(place).all()
    np.testing.assert_array_equal(place[0, :, 0], 6 + np.arange(place.shape[1]))


def test_a_run_without_a_verdict_is_written(tmp_path, monkeypatch):
    def fails(predictor: object) -> None:
        raise NotImplementedError("no classes")

    monkeypatch.setattr(verdict.diagnostics, "of_run", fails)
    with pytest.warns(
        bnnzoo.BnnzooWarning, match="the convergence of the draws cannot be tested: NotImplementedError: no classes"
    ):
        run = entrances.run_recipe(tiny.recipe("random-walk", until="converged"), out=tmp_path / "run.nc")
    assert run.attributes["complete"] == 1
    assert "converged" not in run.attributes


def test_a_start_without_density_is_refused(tmp_path):
    start = np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32)
    with pytest.raises(
        UsageError, match="chain 1: the log density at the initial position is nan because of training row 1"
    ):
        bnnzoo.sample(Plane(), RandomWalk(), init=start, chains=2, out=tmp_path / "run.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_noisy_regime_warns_and_is_written(tmp_path):
    with pytest.warns(bnnzoo.BnnzooWarning, match="the sampler's own check failed: mean sigma2"):
        run = entrances.run_recipe(
            tiny.recipe("penalty", warmup=0, **{"sampler.step_size": 0.3, "sampler.preconditioner": "auto"}),
            out=tmp_path / "run.nc",
        )
    assert run.attributes["regime_ok"] == 0
    assert "sigma2" in run.attributes["regime"]


@pytest.mark.long
def test_double_precision(tmp_path):
    run = entrances.run_recipe(
        tiny.recipe("random-walk", precision="float64", warmup=5, draws=5, chains=1), out=tmp_path / "run.nc"
    )
    assert run.posterior["posterior"]["weight"].dtype == np.float64
    assert run.attributes["precision"] == "float64"
    assert np.isfinite(run.evaluate()["nll"])
    assert not jax.config.jax_enable_x64


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the sampler's own check")
@pytest.mark.parametrize("sampler", ["sms-ubu", "bbb"])
def test_samplers_that_keep_a_seed_run_in_double_precision(sampler, tmp_path):
    """The seed has 32 bits in either precision."""
    recipe = tiny.recipe(sampler, precision="float64", warmup=5, draws=5, chains=1)
    run = entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    assert run.posterior["posterior"]["weight"].dtype == np.float64


@pytest.mark.slow
def test_python_is_warned_of_a_run_that_has_not_converged_and_of_no_other():
    """Without a warning, a Python user would have to read the verdict in the file."""
    with pytest.warns(bnnzoo.BnnzooWarning, match="^linear by random-walk: not settled: .*bnnzoo.resume"):
        bnnzoo.sample("linear", "random-walk", chains=2, warmup=2, draws=20, thin=1, init="prior")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = bnnzoo.sample("linear", "nuts", chains=4, warmup=300, draws=1500, thin=1)
    assert run.attributes["converged"] == 1
