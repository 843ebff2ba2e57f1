"""Commands that must not import heavy modules, and the output of the command line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from rich.text import Text

from bnnzoo import cli
from bnnzoo.cli import output
from bnnzoo.cli.output import echo, echo_csv, print_json, print_record, print_rows, print_table, print_warning
from bnnzoo.cli.part_command import split_fields
from bnnzoo.errors import BnnzooWarning, GateError
from bnnzoo.files.shell import quoted, resume_call, sample_call
from bnnzoo.finding import Finding, from_json, sentences, setting, spell_settings, spelling_of, to_json
from bnnzoo.plugins import registry
from bnnzoo.progress import Progress
from bnnzoo.progress_bar import Pace, PlainLines, describe_progress
from bnnzoo.suggestions import near_names

HEAVY = ("jax", "numpy", "equinox", "numpyro", "xarray", "scipy", "pandas")


@pytest.fixture(autouse=True)
def _only_our_own(monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["list", "samplers", "--json"],
        ["plugins"],
        ["zoo"],
        ["zoo", "run", "--help"],
        ["zoo", "run", "zzz"],
        ["sample", "--help"],
        ["sample", "mdn", "zzz"],
        ["check", "sampler", "--help"],
        ["check", "sampler", "zzz"],
        ["check", "model", "zzz"],
        ["new", "--help"],
        ["new", "sampler", "nuts"],
    ],
)
def test_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom bnnzoo import cli\n"
        f"cli.run({arguments!r})\n"
        f"sys.stderr.write(repr(sorted(set({HEAVY!r}) & set(sys.modules))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1].endswith("[]")


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_without_a_command_there_is_help(arguments, capsys):
    assert cli.run(arguments) == 0
    assert "Usage: bnnzoo" in capsys.readouterr().out


def test_list_without_a_kind_groups_the_zoo_and_only_counts_the_recipes(capsys):
    assert cli.run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{kind}:" for kind in (*registry.KINDS, "observers")]
    assert any(line.startswith("configs: ") and "bnnzoo list configs" in line for line in lines)
    assert not any("mdn.penalty" in line for line in lines)
    assert len(lines) < 80
    assert cli.run(["list", "configs"]) == 0
    assert "mdn.penalty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "headings"),
    [
        ("mdn", ["model mdn, from bnnzoo"]),
        ("jsonl", ["observer jsonl, from bnnzoo"]),
        ("penalty", ["sampler penalty (noise-corrected), from bnnzoo"]),
        ("gaussian", ["likelihood gaussian, from bnnzoo"]),
        ("laplace", ["sampler laplace (approximate), from bnnzoo", "prior laplace, from bnnzoo"]),
        ("diabetes", ["dataset diabetes, from bnnzoo"]),
        ("tutorial", ["# the tutorial"]),
    ],
)
def test_show_describes_a_name_of_any_kind(name, headings, capsys):
    assert cli.run(["show", name]) == 0
    out = capsys.readouterr().out
    assert all(heading in out for heading in headings)


@pytest.mark.parametrize(
    "command",
    [
        ["sample"],
        ["resume"],
        ["evaluate"],
        ["zoo", "run"],
        *(["check", kind] for kind in ("sampler", "model", "prior")),
    ],
)
def test_q_is_short_for_quiet_wherever_there_is_quiet(command, capsys):
    assert cli.run([*command, "--help"]) == 0
    line = next(line for line in Text.from_ansi(capsys.readouterr().out).plain.splitlines() if "--quiet" in line)
    assert "-q" in line.split()


def test_numbers_of_a_table_are_plain_up_to_a_million():
    texts = [output.number(value) for value in (0.00012345, 1.23456, 12345.6, 999999.0, 1234567.0, 1e-7, -54321.0)]
    assert texts == ["0.0001234", "1.235", "12346", "999999", "1.235e+06", "1e-07", "-54321"]


def test_version(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_list_json_is_flat_rows(capsys):
    assert cli.run(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == {"kind", "name", "summary", "exactness", "distribution"} for row in rows)
    assert {"kind": "sampler", "name": "hmc"}.items() <= next(r for r in rows if r["name"] == "hmc").items()


def test_observers_are_listed_and_described_without_options(capsys):
    assert cli.run(["list", "observers"]) == 0
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert names == {"jsonl", "tensorboard", "wandb"}
    for name in names:
        assert cli.run(["info", "observer", name]) == 0
        assert "--observer" not in capsys.readouterr().out
    assert cli.run(["show", "jsonll"]) == 2
    assert "did you mean jsonl (an observer)?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["models", "model", "Samplers", "configs"])
def test_list_a_kind(word, capsys):
    assert cli.run(["list", word]) == 0
    assert capsys.readouterr().out.startswith("name")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smaple"], "bnnzoo: No such command 'smaple' (did you mean 'sample'?); try bnnzoo --help"),
        (["sample", "--chians", "3", "mdn", "mala"], "No such option: --chians (did you mean --chains?)"),
        (
            ["sample", "mdn", "mala", "--chains"],
            "Option '--chains' requires an argument; try bnnzoo sample --help",
        ),
        (["sample", "mdn", "penalt"], "bnnzoo: no sampler named 'penalt'; did you mean penalty?"),
        (["sample", "mdn"], "bnnzoo: no sampler; name one (bnnzoo sample MODEL SAMPLER)"),
        (["sample", "mdn", "mala", "--sampler.stepsize", "1"], "(did you mean --sampler.step-size?)"),
        (["sample", "mdn", "mala", "--chains", "0"], "bnnzoo: --chains: must be >= 1 (got 0)"),
        (["sample", "mdn", "mala", "--config", "nope"], "bnnzoo: --config nope: no such file"),
        (["sample", "--config", "gone/x.yaml"], "bnnzoo: gone/x.yaml: no such file or directory"),
        (["sample", "mdn", "mala", "extra"], "bnnzoo: Got unexpected extra argument(s) (extra)"),
        (["list", "zoos"], "bnnzoo: unknown kind 'zoos'; use one of models, samplers"),
        (["evaluate"], "bnnzoo: Missing argument 'RUN'; try bnnzoo evaluate --help"),
        (["sample", "mdn", "mala", "--sampler.step-size"], "Option '--sampler.step-size' requires an argument"),
        (
            ["sample", "mdn", "mala", "--sampler.step-size", "--chains", "2"],
            "Option '--sampler.step-size' requires an argument (got the option --chains); type --sampler.step-size ",
        ),
        (["sample", "mdn", "mala", "--smapler.step-size", "1"], "No such option: --smapler.step-size (did you mean"),
        (
            ["sample", "mdn", "mala", "--likelihood.scale", "1"],
            "model mdn has its own likelihood; use the options of the model (",
        ),
        (["sample", "--model.hidden", "50"], "--model.hidden: requires a model; add a name from `bnnzoo list models`"),
        (
            ["sample", "mlp", "barker"],
            "no sampler named 'barker'; it is in the package bnnzoo-blackjax, which is",
        ),
        (
            ["sample"],
            "no model and no sampler; name both, such as bnnzoo sample mdn penalty, or give only --data FILE",
        ),
        (
            ["show", "run.nc", "--chains", "8"],
            "--chains: conflicts with the run file run.nc, whose recipe is fixed; remove --chains",
        ),
        (
            ["check", "model", "mlp", "--sbc", "--sampler", "sgld", "--sampler.step-size", "1"],
            "--sampler.step-size: bnnzoo check model accepts no options of a sampler; remove --sampler.step-size",
        ),
        (["show", "mdnn"], "show: unknown name 'mdnn'; did you mean mdn (a model)"),
        (["predict"], "an example: bnnzoo predict run.nc --data new.csv -o predictions.csv"),
        (
            ["resume", __file__],
            "test_cli_light.py: not a NetCDF file of bnnzoo, or damaged (no HDF5 signature; a run is",
        ),
        (["sample", "mlp", "nuts", __file__], f"use --data {__file__} to name a data file; try bnnzoo sample --help"),
        (
            ["sample", "mlp", "nuts", "--likelihood", "poisson", "--likelihood.scale", "0.3"],
            "--likelihood.scale: likelihood poisson has no options; see bnnzoo info",
        ),
        (["info", "sampler", "hm"], "no sampler named 'hm'; did you mean hmc?"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
    assert err.startswith("bnnzoo: ")


def test_several_problems_are_several_lines(capsys):
    assert cli.run(["sample", "mdn", "mala", "--chains", "0", "--draws", "many"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "bnnzoo: --chains: must be >= 1 (got 0)",
        "bnnzoo: --draws: must be an integer >= 1 (got 'many')",
    ]


def test_help_of_a_pair_lists_its_options(capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    assert cli.run(["sample", "mdn", "penalty", "--help"]) == 0
    text = " ".join(Text.from_ansi(capsys.readouterr().out).plain.replace("│", " ").split())
    for part in ("--model.hidden INT,...", "--sampler.num-batches INT", "--prior.scale", "> 0", "--mesh", "Examples:"):
        assert part in text


def test_each_command_shows_examples(capsys):
    for command in ("sample", "show", "resume", "evaluate", "predict", "check sampler", "list", "info", "plugins"):
        assert cli.run([*command.split(), "--help"]) == 0
        assert "Examples:" in capsys.readouterr().out


def test_info_says_range_and_meaning(capsys):
    assert cli.run(["info", "prior", "normal"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("prior normal, from bnnzoo")
    assert "--prior.scale" in out
    assert "> 0" in out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (GateError("r-hat 1.4"), 3, "bnnzoo: r-hat 1.4"),
        (
            ZeroDivisionError("a\nb"),
            1,
            "bnnzoo: internal error: ZeroDivisionError: a b (run again with --debug",
        ),
        (BrokenPipeError(32, "Broken pipe"), 1, "internal error: BrokenPipeError"),  # stdout has a reader
    ],
)
def test_exit_codes(error, code, message, capsys, monkeypatch):
    def fail() -> None:
        raise error

    monkeypatch.setattr(registry, "plugins", fail)
    assert cli.run(["plugins"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert cli.run(["plugins", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_outside_of_a_run(capsys, monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "plugins", interrupt)
    assert cli.run(["plugins"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m bnnzoo list | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("models:")
    assert result.stderr == ""


def test_our_warnings_are_shown_and_those_of_libraries_are_not(capsys, monkeypatch):
    def warn() -> list[registry.Plugin]:
        warnings.warn("the sampler's own check failed: mean sigma2 6.3", BnnzooWarning, stacklevel=2)
        warnings.warn("a library mumbles", UserWarning, stacklevel=2)
        return []

    monkeypatch.setattr(registry, "plugins", warn)
    assert cli.run(["plugins"]) == 0
    assert capsys.readouterr().err == "bnnzoo: warning: the sampler's own check failed: mean sigma2 6.3\n"
    assert cli.run(["plugins", "--debug"]) == 0
    assert "mumbles" in capsys.readouterr().err


def test_fields_of_parts_are_taken_out_of_the_arguments():
    arguments = ["mdn", "--chains=3", "--sampler.step-size", "-1", "-orun.nc", "--model.hidden=5,5", "--", "-x"]
    options, fields = split_fields(arguments)
    assert options == ["mdn", "--chains=3", "-orun.nc", "--", "-x"]
    assert fields == {"--sampler.step-size": "-1", "--model.hidden": "5,5"}


@pytest.mark.parametrize("before", [True, False])
def test_arguments_of_every_form_reach_the_recipe(before, capsys):
    """The value of a field is never a positional argument; of two values the later one is used."""
    fields = ["--sampler.step-size", "1", "--sampler.step_size=0.5", "--model.hidden", "7,8"]
    rest = ["mlp", "mala", "--chains=3", "--seed", "5", "--no-standardise"]
    assert cli.run(["show", *(fields + rest if before else rest + fields)]) == 0
    printed = capsys.readouterr().out
    for line in ("step_size: 0.5", "hidden: [7, 8]", "chains: 3", "seed: 5", "standardise: false"):
        assert f"{line}\n" in printed


def test_plain_progress_lines():
    clock = [0.0]
    written: list[str] = []
    lines = PlainLines(written.append, clock=lambda: clock[0])
    for second, steps_done in enumerate([0, 10, 20, 30, 40, 50, 60, 100]):
        clock[0] = float(second)
        lines(Progress("sampling", steps_done, 100, 0.7))
    assert written == [
        "bnnzoo: sampling 50/100, 10/s, acceptance 0.70, 5 s left",
        "bnnzoo: sampling 100/100, 14.3/s, acceptance 0.70",
    ]


@pytest.mark.parametrize(
    ("seconds", "remaining"),
    [
        (6.0, "6 s"),
        (59.2, "60 s"),
        (60.0, "1 min 0 s"),
        (125.4, "2 min 5 s"),
        (3599.7, "1 h 0 min"),
        (2 * 3600 + 2 * 60 + 20, "2 h 2 min"),
    ],
)
def test_the_remaining_time_extrapolates_the_pace(seconds, remaining):
    line = describe_progress(Progress("sampling", 30, 90, 0.5), 60 / seconds)
    assert line == f"sampling 30/90, {60 / seconds:.3g}/s, acceptance 0.50, {remaining} left"


def test_the_pace_is_that_of_the_current_phase():
    """After a resume, the pace excludes earlier work and other phases."""
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    results = []
    for second, phase, steps_done in (
        (3, "warm-up", 0),
        (5, "warm-up", 30),
        (9, "sampling", 400),
        (11, "sampling", 420),
    ):
        clock[0] = float(second)
        results.append(pace.update(Progress(phase, steps_done, 1000)))
    assert [None if math.isnan(rate) else rate for rate in results] == [None, 15.0, None, 10.0]
    assert describe_progress(Progress("compile", 0, 0), math.nan) == "compile"
    assert describe_progress(Progress("warm-up", 5, 10, note="128 rows"), math.nan) == "warm-up 5/10, 128 rows"


def test_results_as_json_and_as_lines(capsys):
    values = {
        "mean": 1.5,
        "none": None,
        "bad": [math.nan, -math.inf, 2],
        "file": Path("a/b.nc"),
        "ok": True,
        "inner": {"x": (1, math.inf)},
        "bell": "a\x07b",
    }
    print_json(values)
    out = capsys.readouterr().out
    assert json.loads(out) == {
        "mean": 1.5,
        "none": None,
        "bad": [None, None, 2],
        "file": "a/b.nc",
        "ok": True,
        "inner": {"x": [1, None]},
        "bell": "a\x07b",
    }
    assert "\x07" not in out
    print_record({"a": 1 / 3, "long": ["x", 2], "none": None, "ok": False, "empty": [], "bell": "\x07"})
    expected = ["a      0.3333", "long   x", "       2", "ok     no", "empty", "bell   \\u0007"]
    assert capsys.readouterr().out.splitlines() == expected
    print_rows([{"name": "a", "value": 1234567.0}, {"value": 2, "more": True}])
    assert capsys.readouterr().out.splitlines() == ["name  value      more", "a     1.235e+06", "      2          yes"]


def test_advice_in_common_is_given_once_after_the_last():
    def finding(kind: str, value: float, limit: float, advice: str = "") -> Finding:
        return Finding("convergence", kind, kind, value, limit, advice)

    result = [
        finding("rhat", 1.2, 1.01, "draw more"),
        finding("sigma2", 6.3, 2, "use more batches"),
        finding("ess", 20.0, 400, "draw more"),
        finding("close", 1.01004, 1.01),
        finding("long", 1.0100242137857478, 1.01),
        finding("none", math.nan, 1.01),
    ]
    assert sentences(result) == [
        "rhat 1.2, trusted up to 1.01",
        "sigma2 6.3, trusted up to 2; use more batches",
        "ess 20, must be at least 400; draw more",
        "close 1.01004, trusted up to 1.01",
        "long 1.01002, trusted up to 1.01",
        "none is not a number (limit 1.01)",
    ]
    restored = from_json(to_json(result))
    assert restored[:5] == tuple(result[:5])
    assert restored[5].kind == "none"


def test_near_names_are_nearest_first_whatever_their_case():
    expected = ["step-size", "num_steps", "StepSize", "step_sizes", "hidden"]
    assert near_names("STEP_SIZE", expected, 1) == ["step-size"]
    assert near_names("step_size", expected)[:2] == ["step-size", "step_sizes"]
    assert near_names("zzz", expected) == []
    assert near_names("a_b", ["a-b", "A_B", "a_b"], 2) == ["a-b", "A_B"]


@pytest.mark.parametrize(
    ("path", "pasted"),
    [("run.nc", "run.nc"), ("-o.nc", "./-o.nc"), ("my run.nc", "'my run.nc'"), ("-a b", "'./-a b'")],
)
def test_a_file_can_be_pasted_whatever_its_name(path, pasted):
    assert quoted(path) == quoted(Path(path)) == pasted


def test_a_message_names_the_shell_command_or_the_call_in_python():
    with spelling_of("options"):
        call = resume_call("a b.nc", setting("from_part", 3))
    assert spell_settings(call, "options") == "bnnzoo resume 'a b.nc' --from-part 3"
    assert spell_settings(resume_call(Path("a b.nc"), setting("from_part", 3)), "keywords") == (
        "bnnzoo.resume('a b.nc', from_part=3)"
    )
    with spelling_of("options"):
        command = sample_call("mlp", "nuts", setting("data", "a b.csv"))
    assert spell_settings(command, "options") == "bnnzoo sample mlp nuts --data 'a b.csv'"
    assert spell_settings(sample_call("mlp", "nuts", setting("data", "a b.csv")), "keywords") == (
        'bnnzoo.sample("mlp", "nuts", data="a b.csv")'
    )


FORGED = "a\nbnnzoo: warning: all is well \x1b[2J\r\u202e"


def test_a_hostile_name_cannot_forge_an_output_line(capsys):
    """This holds for stdout and for messages."""
    print_table(("name", FORGED), [(FORGED, "b")])
    print_record({FORGED: FORGED, "more": [FORGED, "c"]})
    print_rows([{"metric": FORGED}])
    print_warning(FORGED)
    echo(FORGED.replace("\n", " "))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 + 3 + 2 + 1
    assert len(err.splitlines()) == 1
    assert (out + err).replace("\n", "").isprintable()


def test_csv_has_the_characters_of_a_file_unless_a_terminal_shows_it(capsys, monkeypatch):
    table = "p_New\u00a0York,p_a\tb\n0.5,0.5\n"
    echo_csv(table)
    assert capsys.readouterr().out == table
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    echo_csv(table)
    assert capsys.readouterr().out == "p_New\\u00a0York,p_a\\tb\n0.5,0.5\n"
