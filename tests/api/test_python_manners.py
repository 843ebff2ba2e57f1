"""The Python interface: progress only if it is visible, keywords in advice, and short representations of objects."""

import builtins
import io
import re
import sys
import types

import numpy as np
import pytest
from gaussian_mean import GaussianMean

import bnnzoo
from bnnzoo import progress_bar
from bnnzoo.api import keywords
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.evaluation.convergence import findings
from bnnzoo.finding import Finding, sentence, setting, spell_settings, spelling_of
from bnnzoo.progress import Progress
from bnnzoo.samplers.base import AbstractSampler
from bnnzoo.samplers.subsampled.penalty import Penalty

TINY = {"chains": 2, "warmup": 20, "draws": 40, "init": "prior"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return bnnzoo.sample("linear", "random-walk", out=tmp_path_factory.mktemp("manners") / "run.nc", **TINY)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.long
def test_a_script_whose_errors_go_to_a_pipe_sees_no_progress(tmp_path, capfd):
    bnnzoo.sample("linear", "random-walk", out=tmp_path / "run.nc", **TINY)
    out, err = capfd.readouterr()
    assert (out, [line for line in err.splitlines() if "sampling" in line or "start" in line]) == ("", [])


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_sees_progress_unless_it_asks_for_none(progress, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar.observer_in_python(progress=progress) as watch:
        assert (watch is not None) == progress
        if watch is not None:
            watch(Progress("sampling", 1, 10))
    assert ("sampling" in terminal.getvalue()) == progress


def test_a_notebook_shows_one_line_that_is_redrawn(monkeypatch):
    lines: list[str] = []

    class Handle:
        def update(self, bundle, *, raw):
            lines.append(bundle["text/plain"])

    def display(bundle, *, raw, display_id):
        assert raw
        assert display_id
        lines.append(bundle["text/plain"])
        return Handle()

    fake = types.ModuleType("IPython.display")
    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(builtins, "get_ipython", lambda: types.SimpleNamespace(kernel=1), raising=False)
    with progress_bar.observer_in_python(progress=True) as watch:
        assert watch is not None
        for steps_done in range(1, 11):
            watch(Progress("sampling", steps_done, 10))
    # The first and the last report are shown; those between came within half a second.
    assert [line.split(",")[0] for line in lines] == ["sampling 1/10", "sampling 10/10"]


@pytest.mark.long
def test_sample_tells_its_progress_to_a_terminal(tmp_path, monkeypatch):
    calls: list[Progress] = []
    monkeypatch.setattr(sys, "stderr", Terminal())

    class Bar:
        def __enter__(self):
            return calls.append

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(progress_bar, "_bar", Bar)
    bnnzoo.sample("linear", "random-walk", out=tmp_path / "a.nc", **TINY)
    assert {"start", "sampling", "writing"} <= {progress.phase for progress in calls}
    calls.clear()
    bnnzoo.sample("linear", "random-walk", out=tmp_path / "b.nc", progress=False, **TINY)
    assert calls == []


def test_advice_is_data_that_each_caller_reads_in_its_own_words():
    likelihood = setting("likelihood", "gaussian")
    advice = f"use {setting('sampler.step_size', 0.01)}, a longer {setting('warmup')}, or {likelihood}"
    finding = Finding("validity", "sigma2", "mean sigma2", 6.3, 2, advice)
    assert finding.settings == (("sampler.step_size", "0.01"), ("warmup", None), ("likelihood", "gaussian"))
    options = "use --sampler.step-size 0.01, a longer --warmup, or --likelihood gaussian"
    keywords = 'use step_size=0.01, a longer warmup, or likelihood="gaussian"'
    assert sentence(finding) == f"mean sigma2 6.3, trusted up to 2; {options}"
    assert str(finding) == f"mean sigma2 6.3, trusted up to 2; {keywords}"
    with spelling_of("options"):
        assert str(finding).endswith(options)
    assert "[[" not in spell_settings(advice, "options") + spell_settings(advice, "keywords")


def test_a_warning_in_python_names_keywords_and_the_file_options(tmp_path):
    with pytest.warns(BnnzooWarning, match=r"bnnzoo\.resume and draws=60") as caught:
        run = bnnzoo.sample("linear", "random-walk", out=tmp_path / "run.nc", **{**TINY, "draws": 30})
    assert not [w for w in caught if re.search(r"--[a-z]", str(w.message))]
    assert "bnnzoo resume and --draws 60" in run.attributes["verdict"]
    assert "--" not in run._repr_html_()


@pytest.mark.parametrize(
    ("sampler", "more", "message"),
    [
        ("nuts", {"warmup": "ten"}, "warmup: must be an integer >= 0 (got 'ten')"),
        ("nuts", {"warmups": 10}, "warmups: unknown key; did you mean 'warmup'?"),
        ({"name": "mala", "step_size": -1}, {}, "step_size: must be "),
    ],
)
def test_an_error_in_python_names_the_keyword(sampler, more, message):
    with pytest.raises(UsageError) as raised:
        bnnzoo.sample("linear", sampler, **more)
    assert str(raised.value).startswith(message)


def test_a_class_in_place_of_an_object_is_named():
    with pytest.raises(UsageError, match=r"sampler: must be an object, not a class; write Penalty\(\)"):
        keywords.options_of({"sampler": bnnzoo.Penalty})


def test_no_advice_of_a_finding_spells_an_option_itself():
    """This covers all findings of the gate and the penalty: the reader determines the notation."""
    bad = {"sigma2": 50.0, "regime_dof": 1.0, "regime_skew": 1.0, "skew_bias": 1.0, "unseen": 1.0, "unseen_shift": 9.0}
    posterior = GaussianMean(np.zeros(1000))
    means = {**bad, "acceptance_rate": 0.0, "step_size": 0.1}
    sampler: AbstractSampler = Penalty(batch_size=50, num_batches=20)
    result = list(sampler.findings(posterior, means))
    diagnosis = {"rhat": 2.0, "ess_bulk": 1.0, "ess_tail": 1.0, "diverging": 1.0, "still_chains": 1, "draws": 1}
    options = {"rhat_of": "a", "ess_bulk_of": "b", "ess_tail_of": "c", "draws_requested": 2, "chains": 1}
    result += findings.gate_findings({**diagnosis, **options, "exactness": "exact"})
    assert len(result) > 8
    assert [finding.advice for finding in result if "--" in finding.advice] == []


def test_a_run_shows_four_digits_and_a_picture_one_line(run):
    cells = re.findall(r"<td>([^<]*)</td>", run._repr_html_())
    fractions = [cell for cell in cells if re.fullmatch(r"-?[0-9]+\.[0-9]+(e[-+][0-9]+)?", cell)]
    assert fractions
    assert all(len(re.sub(r"e.*|[^0-9]", "", cell).lstrip("0")) <= 4 for cell in fractions)
    picture = repr(run.plot("trace"))
    assert picture.startswith("<Picture trace: ")
    assert len(picture) < 130
    assert "\n" not in picture


def test_fields_of_parts_are_searched_over(monkeypatch):
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    from bnnzoo.sklearn import BayesianRegressor

    tried: list[tuple[object, object]] = []

    def fit(self, X, y):
        tried.append((self.model["hidden"], self.sampler["step_size"]))
        self.score_ = -abs(self.model["hidden"][0] - 16) - self.sampler["step_size"]
        return self

    monkeypatch.setattr(BayesianRegressor, "fit", fit)
    monkeypatch.setattr(BayesianRegressor, "score", lambda self, X, y: self.score_)
    grid = {"model__hidden": [(8,), (16,)], "sampler__step_size": [0.1, 0.2]}
    search = GridSearchCV(BayesianRegressor(model="mlp", sampler="mala"), grid, cv=2)
    search.fit(np.zeros((8, 1)), np.zeros(8))
    assert search.best_params_ == {"model__hidden": (16,), "sampler__step_size": 0.1}
    assert set(tried) == {((a,), b) for a in (8, 16) for b in (0.1, 0.2)}
    best = clone(search.best_estimator_)
    assert best.model == {"name": "mlp", "hidden": (16,)}
    assert best.get_params()["model__hidden"] == (16,)


def test_a_field_is_set_in_a_part_that_is_a_mapping_or_an_object():
    from bnnzoo.sklearn import BayesianRegressor

    of_mapping = BayesianRegressor(model={"name": "mlp", "hidden": (8,)}, sampler=bnnzoo.Mala(step_size=0.5))
    assert of_mapping.get_params()["sampler__step_size"] == pytest.approx(0.5)
    of_mapping.set_params(model__hidden=(4, 4), sampler__step_size=0.25)
    assert of_mapping.model == {"name": "mlp", "hidden": (4, 4)}
    assert float(of_mapping.sampler.step_size) == 0.25
    with pytest.raises(bnnzoo.UsageError, match=r"model__hidden: requires a named model; .*model=.mlp."):
        BayesianRegressor().set_params(model__hidden=(4,))


def test_weights_of_rows_are_refused_with_a_sentence():
    from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor

    x, y = np.zeros((4, 1)), np.array([0, 1, 0, 1])
    for estimator in (BayesianRegressor(), BayesianClassifier()):
        with pytest.raises(bnnzoo.UsageError, match="sample_weight: is not supported"):
            estimator.fit(x, y, sample_weight=[1, 2, 1, 1])
        with pytest.raises(TypeError, match="unknown argument 'weights'"):
            estimator.fit(x, y, weights=1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
@pytest.mark.usefixtures("programs_kept")
def test_folds_that_differ_by_a_few_rows_compile_the_chains_once(monkeypatch):
    """Tracing calls the likelihood: the next fold does not call it, but a control with many more rows does."""
    from bnnzoo.posterior import NetworkPosterior
    from bnnzoo.sklearn import BayesianRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    y = x[:, 0] + 0.1 * rng.normal(size=160)
    traced: list[int] = []
    original = NetworkPosterior.log_likelihood

    def log_likelihood(self, theta, batch):
        traced.append(len(batch.x))
        return original(self, theta, batch)

    monkeypatch.setattr(NetworkPosterior, "log_likelihood", log_likelihood)
    how = {"model": "linear", "sampler": "mala", "chains": 2, "warmup": 20, "draws": 30, "start_steps": 250}
    compiled = []
    for rows in (118, 117, 160):
        traced.clear()
        BayesianRegressor(**how).fit(x[:rows], y[:rows])
        compiled.append(len(traced))
    first, next_fold, many_more = compiled
    assert next_fold == 0, compiled
    assert min(first, many_more) > 5, compiled


@pytest.mark.long
def test_rows_that_do_not_count_leave_the_density_as_it_is():
    import jax
    import jax.numpy as jnp

    from bnnzoo.models.mlp import Mlp
    from bnnzoo.posterior import NetworkPosterior
    from bnnzoo.posterior.likelihoods import Gaussian
    from bnnzoo.posterior.priors import Normal

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(117, 3)).astype(np.float32), rng.normal(size=(117, 1)).astype(np.float32)
    network = Mlp(hidden=(5,)).build((3,), 1, key=jax.random.key(0))
    exact = NetworkPosterior.of(network, Gaussian(scale=0.5), Normal(), x, y)
    filled = exact.in_bucket()
    assert filled.num_data == 120 + 8
    theta = exact.position(network) + 0.1
    assert float(filled.log_density(theta)) == pytest.approx(float(exact.log_density(theta)), rel=1e-5)
    slopes = [jax.grad(posterior.log_density)(theta) for posterior in (exact, filled)]
    np.testing.assert_allclose(*slopes, rtol=1e-3, atol=1e-3)
    assert float(jnp.sum(filled.log_likelihoods(theta)[117:])) == 0


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: bnnzoo.open("gone.nc"), 'create it with bnnzoo.sample("MODEL", "SAMPLER", out="gone.nc")'),
        (bnnzoo.sample, 'name both, such as bnnzoo.sample("mdn", "penalty"), or give only data="FILE", so'),
        (lambda: bnnzoo.sample("mlp"), 'no sampler; name one (bnnzoo.sample("MODEL", "SAMPLER")); bnnzoo list'),
    ],
)
def test_a_message_in_python_has_no_shell_command_with_keywords(use, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        use()
