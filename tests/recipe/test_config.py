"""Recipes: precedence, limits, and errors that name the place."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from bnnzoo.errors import BnnzooError, NotFoundError, UsageError
from bnnzoo.plugins import builtin, registry
from bnnzoo.recipe import (
    Layer,
    Part,
    as_dict,
    build,
    build_all,
    fields_of,
    part_names,
    read_layer,
    recipe_from,
    resolve,
    shipped,
    shipped_names,
    to_yaml,
    yaml,
)

# The places of values are those of the command line.
pytestmark = pytest.mark.usefixtures("as_options")


@dataclasses.dataclass(frozen=True)
class Thing:
    """A stand-in for a sampler."""

    kind: ClassVar[str] = "thing"
    step_size: Annotated[float | np.float32, Gt(0), Doc("start value of eta")] = dataclasses.field(
        default=np.float32(0.1)
    )
    batch_size: Annotated[int | Literal["auto"], Ge(1), Le(4096)] = "auto"
    hidden: tuple[int, ...] = (50,)
    variance: Literal["pooled", "batch-means"] = "pooled"
    correction: Literal[0, 1, 2, 3] = 3
    scale: Annotated[float | Literal["learned"], Gt(0)] = "learned"
    swap: bool = False
    _private: int = 0
    derived: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden: every width must be >= 1 (got {self.hidden})")


def _built(**fields: object) -> Thing:
    where = {name: f"--sampler.{name.replace('_', '-')}" for name in fields}
    return build(Thing, Part("thing", fields, where), "sampler")


def _refused(**fields: object) -> str:
    with pytest.raises(UsageError) as caught:
        _built(**fields)
    return str(caught.value)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Use a separate folder of shipped recipes."""
    monkeypatch.setattr(builtin, "RECIPES", tmp_path)
    registry.reset()
    yield tmp_path
    registry.reset()


@functools.cache
def _seconds_of_the_largest(folder: Path) -> float:
    """Return the time for reading the largest permitted YAML."""

    def seconds() -> float:
        start = time.process_time()
        with pytest.raises(UsageError):
            resolve("mlp", "hmc", [_layer(folder, "a: [" + "1, " * 9_900 + "]\n")])
        return time.process_time() - start

    return min(seconds() for _ in range(2))


def _layer(tmp_path, text: str, name: str = "user.yml") -> Layer:
    path = tmp_path / name
    path.write_text(text)
    return read_layer(path)


class TestFields:
    def test_fields_are_described(self):
        fields = {field.name: field for field in fields_of(Thing)}
        assert list(fields) == [
            "step_size",
            "batch_size",
            "hidden",
            "variance",
            "correction",
            "scale",
            "swap",
        ]
        step = fields["step_size"]
        assert (step.accepts.type, step.default_text, step.accepts.allowed, step.help) == (
            "float",
            "0.1",
            "> 0",
            "start value of eta",
        )
        assert fields["batch_size"].accepts.type == "int|auto"
        assert fields["batch_size"].accepts.allowed == ">= 1, <= 4096 | auto"
        assert fields["hidden"].accepts.type == "int,..."
        assert fields["variance"].accepts.allowed == "pooled | batch-means"

    @pytest.mark.parametrize(
        ("name", "raw", "value"),
        [
            ("step_size", "1e-3", 0.001),
            ("step_size", 1, 1.0),
            ("step_size", np.float32(0.5), 0.5),
            ("batch_size", "64", 64),
            ("batch_size", "1e3", 1000),
            ("batch_size", 1e3, 1000),
            ("batch_size", "auto", "auto"),
            ("hidden", "50,50", (50, 50)),
            ("hidden", "[50, 20]", (50, 20)),
            ("hidden", 30, (30,)),
            ("hidden", [3, 4], (3, 4)),
            ("hidden", np.array([3, 4]), (3, 4)),
            ("batch_size", np.array(64), 64),
            ("hidden", "", ()),
            ("hidden", "(5,)", (5,)),
            ("variance", "batch-means", "batch-means"),
            ("correction", "0", 0),
            ("correction", 2, 2),
            ("scale", "0.5", 0.5),
            ("scale", "learned", "learned"),
            ("swap", "true", True),
            ("swap", False, False),
        ],
    )
    def test_values_are_converted_to_the_type_of_their_field(self, name, raw, value):
        result = getattr(_built(**{name: raw}), name)
        assert result == value
        assert type(result) is type(value)

    @pytest.mark.parametrize(
        ("name", "raw", "message"),
        [
            ("step_size", "-0.1", "must be > 0 (got -0.1)"),
            ("step_size", "big", "must be a number > 0 (got 'big')"),
            ("step_size", True, "must be a number > 0 (got true)"),
            ("step_size", "nan", "must be finite (got nan)"),
            ("step_size", math.inf, "must be finite (got inf)"),
            ("step_size", None, "must be a number > 0 (got nothing)"),
            ("step_size", [1.0], "must be a number > 0 (got [1.0])"),
            ("batch_size", 0, "must be >= 1 and <= 4096 or auto (got 0)"),
            ("batch_size", 3.7, "must be an integer >= 1 and <= 4096 or auto (got 3.7)"),
            ("batch_size", "many", "must be an integer >= 1 and <= 4096 or auto (got 'many')"),
            ("batch_size", True, "must be an integer >= 1 and <= 4096 or auto (got true)"),
            ("batch_size", "1_0", "must be an integer >= 1 and <= 4096 or auto (got '1_0')"),
            ("hidden", "50,x", "each entry must be an integer (got '50,x')"),
            ("hidden", "5,,5", "must be a list without empty entries, in which each entry is an integer (got '5,,5')"),
            ("hidden", "5,", "must be a list without empty entries, in which each entry is an integer (got '5,')"),
            (
                "hidden",
                [5, ""],
                "must be a list without empty entries, in which each entry is an integer (got [5, ''])",
            ),
            ("hidden", "50,0", "every width must be >= 1 (got (50, 0))"),
            ("variance", "poled", "must be one of pooled, batch-means (got 'poled')"),
            ("correction", 4, "must be one of 0, 1, 2, 3 (got 4)"),
            ("correction", True, "must be one of 0, 1, 2, 3 (got true)"),
            ("scale", "0", "must be > 0 or learned (got 0.0)"),
            ("scale", np.array([0.5, 1.0]), "must be a number > 0 or learned (got [0.5, 1.0])"),
            ("swap", 1, "must be true or false (got 1)"),
            ("swap", "maybe", "must be true or false (got 'maybe')"),
        ],
    )
    def test_refused(self, name, raw, message):
        assert _refused(**{name: raw}) == f"--sampler.{name.replace('_', '-')}: {message}"

    def test_all_problems_together(self):
        assert _refused(step_size=-1, hiden="3", swap="maybe").splitlines() == [
            "--sampler.step-size: must be > 0 (got -1.0)",
            "--sampler.hiden: unknown key; did you mean 'hidden'?",
            "--sampler.swap: must be true or false (got 'maybe')",
        ]

    def test_private_and_derived_fields_are_no_options(self):
        assert "unknown key" in _refused(_private=1)
        assert "unknown key" in _refused(derived=1)

    def test_a_field_without_default_is_needed(self):
        @dataclasses.dataclass
        class Needy:
            width: Annotated[int, Ge(1)]

        with pytest.raises(UsageError, match=r"--model\.width: missing; must be an integer >= 1"):
            build(Needy, Part("needy"), "model")


class TestResolve:
    def test_defaults(self, recipes):
        recipe = resolve("mdn", "penalty")
        assert (recipe.model, recipe.sampler) == (Part("mdn"), Part("penalty"))
        assert recipe.likelihood is recipe.prior is recipe.data is recipe.init is None
        assert (recipe.chains, recipe.warmup, recipe.draws, recipe.seed) == (4, 1000, 1000, 0)
        assert recipe.standardise is True

    def test_precedence(self, recipes):
        (recipes / "mdn.yaml").write_text("chains: 1\nwarmup: 1\ndraws: 1\nthin: 1\nseed: 1\nsplit_seed: 1\n")
        (recipes / "penalty.yaml").write_text("chains: 2\nwarmup: 2\ndraws: 2\nthin: 2\nseed: 2\n")
        (recipes / "mdn.penalty.yaml").write_text("chains: 3\nwarmup: 3\ndraws: 3\nthin: 3\n")
        early = _layer(recipes, "chains: 4\nwarmup: 4\ndraws: 4\n", "early.yml")
        late = _layer(recipes, "chains: 5\nwarmup: 5\n", "late.yml")
        recipe = resolve("mdn", "penalty", [early, late], {"chains": "6"})
        result = (recipe.chains, recipe.warmup, recipe.draws, recipe.thin, recipe.seed, recipe.split_seed)
        assert result == (6, 5, 4, 3, 2, 1)
        assert recipe.where["chains"] == "--chains"
        assert recipe.where["warmup"].endswith("late.yml:2:1")

    def test_parts_merge_by_name(self, recipes):
        (recipes / "mdn.yaml").write_text("sampler: {name: penalty, step_size: 1e-3}\nmodel: {components: 3}\n")
        same = resolve("mdn", "penalty", [], {"sampler.batch_size": "50"})
        assert same.sampler.fields == {"step_size": 0.001, "batch_size": "50"}
        assert same.sampler.where["batch_size"] == "--sampler.batch-size"
        assert same.sampler.where["step_size"].endswith("mdn.yaml:1:26")
        assert same.model == Part("mdn", {"components": 3}, {"components": same.model.where["components"]})
        assert resolve("mdn", "hmc").sampler == Part("hmc")

    def test_a_full_name_is_the_same_part(self, recipes):
        (recipes / "mdn.yaml").write_text("model: {name: mdn, components: 3}\n")
        (recipes / "mdn.hmc.yaml").write_text("sampler: {name: hmc, num_steps: 3}\n")
        recipe = resolve("bnnzoo:mdn", "bnnzoo:hmc")
        assert (recipe.model.name, recipe.model.fields) == ("bnnzoo:mdn", {"components": 3})
        assert (recipe.sampler.name, recipe.sampler.fields) == ("bnnzoo:hmc", {"num_steps": 3})

    def test_fields_without_a_name_keep_no_name(self, recipes):
        recipe = resolve("mlp", "hmc", [], {"likelihood.scale": "0.5"})
        assert recipe.likelihood == Part("", {"scale": "0.5"}, {"scale": "--likelihood.scale"})

    def test_names_may_come_from_a_config(self, recipes):
        layer = _layer(recipes, "model: mdn\nsampler: {name: Penalty, step_size: 1e-3}\n")
        recipe = resolve(None, None, [layer])
        assert (recipe.model.name, recipe.sampler.name) == ("mdn", "penalty")
        assert recipe.sampler.fields == {"step_size": 1e-3}
        assert resolve("mlp", None, [layer]).model.name == "mlp"

    def test_a_missing_sampler_is_refused(self, recipes):
        with pytest.raises(UsageError, match="no sampler; name one"):
            resolve("mdn", None)

    @pytest.mark.parametrize("by", ["option", "config"])
    def test_own_data_drops_what_belongs_to_the_example(self, recipes, by):
        (recipes / "mdn.yaml").write_text(
            "prior: {name: laplace}\nwarmup: 7\nexample:\n  data: mdn-sine\n  target: y\n  thin: 9\n"
            "  likelihood: {name: mixture, components: 2}\n"
        )
        (recipes / "mdn.hmc.yaml").write_text("example: {sampler: {num_steps: 3}}\n")
        layers = [_layer(recipes, "data: x.csv\n")] if by == "config" else []
        options = {"data": "x.csv"} if by == "option" else {}
        recipe = resolve("mdn", "hmc", layers, options)
        assert (recipe.data, recipe.target, recipe.task, recipe.likelihood) == ("x.csv", (), None, None)
        assert recipe.prior == Part("laplace")
        assert (recipe.warmup, recipe.thin, recipe.sampler.fields) == (7, 1, {})
        own = resolve("mdn", "hmc", layers, {**options, "likelihood": "gaussian", "likelihood.scale": "1"})
        assert own.likelihood is not None
        assert (own.likelihood.name, own.likelihood.fields) == ("gaussian", {"scale": "1"})
        for example in (resolve("mdn", "hmc"), resolve("mdn", "hmc", [], {"data": "mdn-sine"})):
            assert (example.data, example.target, example.thin) == ("mdn-sine", ("y",), 9)
            assert example.likelihood is not None
            assert example.sampler.fields == {"num_steps": 3}

    def test_options_of_an_example_apply_only_to_its_data(self, recipes):
        (recipes / "mdn.yaml").write_text("example: {data: mdn-sine, thin: 9, seed: 4}\n")
        layer = _layer(recipes, "model: mdn\nexample: {data: tutorial-sine, draws: 20, prior: laplace}\n")
        mine = resolve(None, "hmc", [layer])
        assert (mine.data, mine.draws, mine.prior, mine.thin, mine.seed) == (
            "tutorial-sine",
            20,
            Part("laplace"),
            1,
            0,
        )
        other = resolve(None, "hmc", [layer], {"data": "x.csv", "draws": "7"})
        assert (other.data, other.draws, other.prior) == ("x.csv", 7, None)
        assert resolve(None, "hmc", [layer], {"draws": "7"}).draws == 7

    @pytest.mark.parametrize("inner", ["example: {draws: 1}", "sweep: {seed: [0, 1]}", "requires: [here]"])
    def test_options_of_a_recipe_are_refused_in_its_example(self, recipes, inner):
        layer = _layer(recipes, f"model: mdn\nexample:\n  {inner}\n")
        with pytest.raises(UsageError) as caught:
            resolve(None, "hmc", [layer])
        key = inner.partition(":")[0]
        message = (
            f"{recipes / 'user.yml'}:3:3: example.{key}: not allowed inside the example; move it out of the example"
        )
        assert message in str(caught.value).splitlines()

    def test_all_problems_together_and_located(self, recipes):
        layer = _layer(recipes, "model: mdn\nchians: 3\nwarmup: many\nlikelihood: [a]\n")
        with pytest.raises(UsageError) as caught:
            resolve(None, "hmc", [layer], {"thin": "0"})
        path = recipes / "user.yml"
        assert str(caught.value).splitlines() == [
            f"{path}:2:1: chians: unknown key; did you mean 'chains'?",
            f"{path}:4:13: likelihood: must be the name of a likelihood, or a mapping with its fields",
            f"{path}:3:1: warmup: must be an integer >= 0 (got 'many')",
            "--thin: must be >= 1 (got 0)",
        ]

    def test_an_unknown_field_of_a_part_is_located_when_it_is_built(self, recipes):
        layer = _layer(recipes, "sampler:\n  name: thing\n  step_sise: 1\n  batch_size: many\n")
        part = resolve("mlp", None, [layer]).sampler
        path = recipes / "user.yml"
        with pytest.raises(UsageError) as caught:
            build(Thing, part, "sampler")
        assert str(caught.value).splitlines() == [
            f"{path}:3:3: sampler.step_sise: unknown key; did you mean 'step_size'?",
            f"{path}:4:3: sampler.batch_size: must be an integer >= 1 and <= 4096 or auto (got 'many')",
        ]

    def test_several_parts_report_together(self):
        bad = Part("thing", {"swap": 3}, {})
        with pytest.raises(UsageError) as caught:
            build_all([(Thing, bad, "model"), (Thing, bad, "sampler")])
        assert str(caught.value).splitlines() == [
            "model.swap: must be true or false (got 3)",
            "sampler.swap: must be true or false (got 3)",
        ]

    def test_round_trip(self, recipes):
        requested = {
            "data": "a b.csv",
            "target": ["y", "true", "1e3"],
            "sampler.step_size": 0.1 + 0.2,
            "sampler.scale": np.float32(0.1),
            "model.hidden": (5, 6),
            "model.activation": "tanh",
            "likelihood_power": 1e-05,
            "keep_warmup": True,
        }
        recipe = resolve("mdn", "penalty", [], requested)
        text = to_yaml(as_dict(recipe))
        restored = resolve(None, None, [_layer(recipes, text)])
        assert to_yaml(as_dict(restored)) == text
        assert restored.sampler.fields["step_size"] == 0.1 + 0.2
        assert np.float32(restored.sampler.fields["scale"]) == np.float32(0.1)
        assert restored.target == ("y", "true", "1e3")
        assert restored.likelihood_power == 1e-05

    def test_shipped_recipes(self, recipes):
        (recipes / "tutorial.yaml").write_text("# A first run.\n# More.\nmodel: mdn\nsampler: penalty\n")
        assert shipped_names()["tutorial"] == "A first run."
        assert resolve(None, None, [read_layer("tutorial")]).model.name == "mdn"
        assert shipped("../tutorial") is None
        with pytest.raises(NotFoundError, match=r"--config nope: no such file, .* use one of .*tutorial"):
            read_layer("nope")

    def test_a_pipe_is_read_once(self, recipes):
        pipe = recipes / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=("model: mdn\nsampler: hmc\n",))
        writer.start()
        layer = read_layer(str(pipe))
        writer.join()
        assert resolve(None, None, [layer]).sampler.name == "hmc"

    def test_every_shipped_recipe_resolves(self):
        for name in shipped_names():
            model, _, sampler = name.partition(".")
            names = part_names(None, None, [read_layer(name)])
            assert resolve(names["model"] or model, names["sampler"] or sampler or "hmc", [read_layer(name)])


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-3", 0.001),
            ("1e3", 1000.0),
            ("no", "no"),
            ("on", "on"),
            ("010", 10),
            ("1_0", "1_0"),
            ("'1'", "1"),
            ("true", True),
            ("~", None),
            ("", None),
            (".5", 0.5),
            ("-.inf", -math.inf),
            ("2020-01-01", "2020-01-01"),
            ("12:30", "12:30"),
        ],
    )
    def test_scalars_are_yaml_1_2(self, text, value):
        assert yaml.parse(f"a: {text}", "f").value["a"].value == value

    @pytest.mark.parametrize(
        "value",
        [
            *(1e-05, 0.1, 1e300, -0.0, 3, None, [1, "x"], {}),
            *("a: b", "yes", "1e3", "", "é\n", "😀.csv", "\U000e0001", "\x00\x7f\x85\xa0\u2028\ufeff\ud800", '\\"\t'),
        ],
    )
    def test_written_yaml_reads_back(self, value):
        node = yaml.parse(yaml.write({"a": value}), "f").value["a"]
        result = [item.value for item in node.value] if isinstance(node.value, list) else node.value
        assert result == value
        assert type(result) is type(value)

    def test_unreadable_yaml_is_not_written(self):
        with pytest.raises(UsageError, match="the whole recipe: larger than 250 kB"):
            yaml.write({"a": "x" * yaml.MAX_BYTES})

    def test_an_empty_recipe_sets_no_option(self, tmp_path):
        assert _layer(tmp_path, "# nothing\n").run == {}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("chains: 1\nchains: 2\n", "f:2:1: chains: repeated key (first at f:1:1)"),
            ("a: &x {b: 1}\nc:\n  <<: *x\n", "f:3:3: merge keys (<<) are not allowed"),
            ("a: !!python/object:os.system x\n", "f:1:4: tags are not allowed"),
            ("a: !!python/object/apply:os.system ['true']\n", "f:1:4: tags are not allowed"),
            ("a: *b\n", "f:1:4: the alias *b has no anchor &b before it"),
            ("a: [1\n", "f:2:1: "),
            ("a: b: c\n", "f:1:5: "),
            ("a: 1\n---\nb: 2\n", "f:3:1: a second document"),
            ("? [a]\n: 1\n", "f:1:3: a key must be a plain word"),
            ("a: \x07\n", "f: "),
        ],
    )
    def test_refused(self, text, message):
        with pytest.raises(UsageError) as caught:
            yaml.parse(text, "f")
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)

    def test_not_a_mapping(self, tmp_path):
        with pytest.raises(UsageError, match="a recipe must consist of `key: value` lines"):
            _layer(tmp_path, "- a\n- b\n")

    def test_not_utf8(self, tmp_path):
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"data: caf\xe9.csv\n")
        with pytest.raises(UsageError, match=r"latin.yaml: not UTF-8 \(byte 9\)"):
            read_layer(path)

    def test_a_byte_order_mark_is_ignored(self, tmp_path):
        path = tmp_path / "bom.yaml"
        path.write_bytes(b"\xef\xbb\xbfmodel: mdn\n")
        assert read_layer(path).parts["model"].name is not None

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: " + "[" * 200_000, "nested deeper than 50"),
            ("a: &x 1\nb: [" + "*x, " * 200 + "]\n", "more than 100 aliases"),
            ("a: [" + "1, " * 60_000 + "]\n", "more than 10000 values"),
            ("# " + "x" * 250_001 + "\na: 1\n", "larger than 250 kB"),
            (
                "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
                + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
                "unknown key",
            ),
        ],
        ids=["depth", "aliases", "values", "size", "billion laughs"],
    )
    def test_bombs_are_refused_quickly(self, tmp_path, text, message):
        start = time.process_time()
        with pytest.raises(UsageError):
            resolve("mlp", "hmc", [_layer(tmp_path, text)])
        # Seconds depend on the machine, but this ratio on the limits: without them reading would take six times as
        # long.
        assert time.process_time() - start < 3 * _seconds_of_the_largest(tmp_path.parent)
        tracemalloc.start()
        try:
            with pytest.raises(UsageError) as caught:
                resolve("mlp", "hmc", [_layer(tmp_path, text)])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert message in str(caught.value)
        assert peak < 200e6


def test_column_names_keep_their_text(tmp_path):
    """The name is not converted to the number that YAML reads."""
    path = tmp_path / "r.yaml"
    path.write_text("target: 1.10\ndrop: [007, 1e3]\ndata: 010\nseed: 007\n")
    result = resolve("mlp", "nuts", [read_layer(path)], {})
    assert (result.target, result.drop, result.data, result.seed) == (("1.10",), ("007", "1e3"), "010", 7)
    assert recipe_from(to_yaml(as_dict(result))).target == result.target


@dataclasses.dataclass
class Narrow:
    step_size: Annotated[float, Gt(0)] = 0.1
    share: Annotated[float, Lt(1)] = 0.5


@pytest.mark.parametrize(
    ("field", "raw", "message"),
    [
        ("step_size", "1e-50", "must be 0, or have an absolute value from 1.2e-38 to 3.4e+38 (got 1e-50)"),
        ("step_size", 1e300, "must be 0, or have an absolute value from 1.2e-38 to 3.4e+38 (got 1e+300)"),
        ("share", 0.999999999999, "must be < 1 in single precision (got 0.999999999999, which becomes 1.0)"),
    ],
)
def test_a_number_beyond_float32_is_refused_in_one_line(field, raw, message):
    """Samplers compute in float32, so the file would contain a value that no recipe may have."""
    with pytest.raises(UsageError) as caught:
        build(Narrow, Part("narrow", {field: raw}), "sampler")
    assert str(caught.value) == f"sampler.{field}: {message}"
    assert build(Narrow, Part("narrow", {"share": 2.0**-126}), "sampler").share == 2.0**-126


def test_a_field_called_name_is_refused():
    @dataclasses.dataclass
    class Named:
        name: str = "x"

    with pytest.raises(BnnzooError, match="Named: no field may be called name"):
        fields_of(Named)


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        (Annotated[float, Gt(0)], 0.0, "must be > 0 (got 0.0)"),
        (float, math.inf, "must be finite (got inf)"),
        (float, None, "must be a number (got nothing)"),
        (dict, {"a": 1}, "must be a value that a recipe can contain (got {'a': 1})"),
        (np.ndarray, np.ones(2), "must be a value that a recipe can contain (got [1.0, 1.0])"),
        (tuple[tuple[int, int], ...], ((1, 2), (3, 4)), "must not be a nested list (got ((1, 2), (3, 4)))"),
    ],
)
def test_a_default_that_no_recipe_can_contain_is_refused(annotation, default, message):
    """The file of a run contains all defaults, so its recipe could not be read."""
    field = dataclasses.field(default_factory=lambda: default)
    cls = dataclasses.make_dataclass("Odd", [("value", annotation, field)])
    with pytest.raises(BnnzooError) as caught:
        fields_of(cls)
    assert f"Odd: field value: its default {message}; the values of fields are numbers" in str(caught.value)


def test_an_integer_beyond_int64_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"--draws: must be an integer >= 1 \(got '1000"):
        resolve("mlp", "nuts", [], {"draws": "1" + "0" * 320})
