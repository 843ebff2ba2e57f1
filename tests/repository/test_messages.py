"""All messages are in tests/golden/messages.txt for review, and no message spells a setting itself."""

from __future__ import annotations

import pickle
import warnings

import pytest
from tools import messages

from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError
from bnnzoo.finding import Finding, setting, spell_settings, spelling_of

WHOLE_COMMAND = "a command line of bnnzoo that is typed as it stands"
STYLE_SHEET = "a variable of the style sheet"
EXCEPTIONS = {
    "bnnzoo.api.choose_recipe": ("--config", WHOLE_COMMAND),
    "bnnzoo.fleet.connection": ("--nthreads", "an option of dask worker"),
    "bnnzoo.fleet.row_shards": ("--nthreads", "an option of dask worker"),
    "bnnzoo.report.page": ("--config -o", WHOLE_COMMAND),
    "bnnzoo.store.command": ("--force", WHOLE_COMMAND),
    "bnnzoo.store.hdf5_validation": ("-o", WHOLE_COMMAND),
    "bnnzoo.finding": ("--no- -o", "turns settings into options"),
    "bnnzoo.recipe.fields": ("--units", "help of an option"),
    "bnnzoo.plots._style": ("--amber --blue --green --ink --muted --orange --purple --sky", STYLE_SHEET),
}
"""Modules outside `bnnzoo.cli` that name options themselves: the options and the reason."""

SOURCE = '''
"""A module, with --option in its docstring."""
import re
PATTERN = re.compile("a pattern of words")
def check(path, n, many):
    """Docstring of a function."""
    if n:
        raise UsageError(f"{path}: {n} rows {'are' if many else 'is'} missing; use [[drop=NAME]]")
    warnings.warn("no rows", BnnzooWarning)
    cure = "give more of them with " + option(n)
    kind = "short"
    raise UsageError(f"no {kind}; {cure or 'use --force'}")
'''


def test_the_golden_file_holds_all_messages():
    result = messages.written(messages.collect(messages.package(), messages.ROOT))
    golden = messages.GOLDEN.read_text(encoding="utf-8") if messages.GOLDEN.exists() else ""
    assert result == golden, f"messages have changed: read them, and run `{messages.COMMAND}`"


def test_templates_are_collected_in_order_without_lines(tmp_path):
    path = tmp_path / "part.py"
    path.write_text(SOURCE)
    assert messages.written(messages.collect([path], tmp_path)) == (
        "[part]\n"
        "UsageError: {...}: {...} rows {are|is} missing; use [[drop=NAME]]\n"
        "warn: no rows\n"
        "text: give more of them with {...}\n"
        "UsageError: no {...}; {...}\n"
    )


def test_an_option_outside_the_command_line_is_found(tmp_path):
    path = tmp_path / "part.py"
    path.write_text(SOURCE)
    assert messages.options_outside_the_command_line([path], tmp_path) == {("part", "--force")}


def test_messages_outside_the_command_line_spell_no_option_themselves():
    """Advice is a setting, `[[warmup=500]]`, so that Python users read `warmup=500`."""
    named = messages.options_outside_the_command_line(messages.package(), messages.ROOT)
    allowed = {(module, option) for module, (options, _) in EXCEPTIONS.items() for option in options.split()}
    assert sorted(named - allowed) == []
    assert sorted(allowed - named) == [], "these exceptions are needed no more"


@pytest.mark.parametrize("kind", [UsageError, NotFoundError, BnnzooWarning])
def test_each_reader_of_an_error_sees_settings_in_their_own_notation(kind):
    error = kind("no rows; use [[task=density]], a longer [[warmup]], [[out]] or [[force=True]]")
    assert str(error) == 'no rows; use task="density", a longer warmup, out or force=True'
    with spelling_of("options"):
        assert str(error) == "no rows; use --task density, a longer --warmup, -o or --force"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_warning_is_shown_in_the_notation_of_its_reader():
    with warnings.catch_warnings(record=True) as caught, spelling_of("options"):
        warnings.simplefilter("always")
        warnings.warn("use [[keep=draws]]", BnnzooWarning, stacklevel=1)
        assert str(caught[0].message) == "use --keep draws"


@pytest.mark.parametrize("name", ["a", "two words", "it's", 'a "name"', "x[1]", "[[a]]", "50 %5D", "p=q; r"])
def test_every_column_name_can_be_advised(name):
    import json
    import shlex

    text = f"use {setting('drop', name)} or {setting('drop', name)}"
    assert spell_settings(text, "options") == f"use --drop {shlex.quote(name)} or --drop {shlex.quote(name)}"
    assert spell_settings(text, "keywords") == f"use drop={json.dumps(name)} or drop={json.dumps(name)}"
    assert Finding("validity", "k", "l", 1.0, 2.0, text).settings == (("drop", name),) * 2


def test_settings_without_a_value_are_switched_off_by_no():
    assert spell_settings("use [[standardise=False]]", "options") == "use --no-standardise"
    assert spell_settings("use [[standardise=False]]", "keywords") == "use standardise=False"
    assert spell_settings("use [[allow_inexact_resume=True]]", "options") == "use --allow-inexact-resume"
    assert spell_settings("use [[allow_inexact_resume=True]]", "keywords") == "use allow_inexact=True"
