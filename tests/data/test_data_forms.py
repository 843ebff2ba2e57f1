"""Tables in common forms: separators, decimal marks, remarks, units, codes; and messages that name the remedy."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bnnzoo.cli import run as command
from bnnzoo.data import Signature, load, load_inputs, load_like
from bnnzoo.data.columns.codes import find_codes
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.recipe import as_dict, resolve

pytestmark = pytest.mark.usefixtures("as_options")

UCI = Path(__file__).parents[3] / "shared" / "data" / "uci10"


def written(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def reading(**options) -> Reading:
    return Reading.from_options(**options)


def message_of(function, *arguments, **options) -> str:
    with pytest.raises(UsageError) as error:
        function(*arguments, **options)
    return str(error.value)


def caught(function, *arguments, **options) -> list[str]:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", BnnzooWarning)
        function(*arguments, **options)
    return [str(item.message) for item in recorded]


# ---------------------------------------------------------------------------------------------- separators, decimals

FORMS = {
    "semicolons and quoted names": ('"a";"y"\n1.5;2.25\n2;3.5\n', "t.csv", ";", "."),
    "semicolons and decimal commas": ('"a";"y"\n1,5;2,25\n2;3,5\n', "t.csv", ";", ","),
    "a spreadsheet's export": ("\ufeffa;y\r\n1,5;2,25\r\n2;3,5\r\n\r\n", "t.csv", ";", ","),
    "a line that names the separator": ("sep=;\r\na;y\r\n1,5;2,25\r\n2;3,5\r\n", "t.csv", ";", ","),
    "tabs in a .csv": ("a\ty\n1.5\t2.25\n2\t3.5\n", "t.csv", "\t", "."),
    "tabs and decimal commas": ("a\ty\n1,5\t2,25\n2\t3,5\n", "t.tsv", "\t", ","),
    "commas in a .tsv": ("a,y\n1.5,2.25\n2,3.5\n", "t.tsv", ",", "."),
    "bars": ("a|y\n1.5|2.25\n2|3.5\n", "t.csv", "|", "."),
    "trailing tabs": ("a\ty\t\n1.5\t2.25\t\n2\t3.5\t\n", "t.tsv", "\t", "."),
    "trailing commas": ("a,y,,\n1.5,2.25,,\n2,3.5,,\n", "t.csv", ",", "."),
}


@pytest.mark.parametrize("case", FORMS)
def test_forms_of_tables_are_recognised_and_stated(tmp_path, case):
    content, name, separator, decimal = FORMS[case]
    data = load(written(tmp_path, content, name))
    assert (data.feature_names, data.target_names) == (("a",), ("y",))
    np.testing.assert_array_equal(data.x[:, 0], [1.5, 2])
    np.testing.assert_array_equal(data.y[:, 0], [2.25, 3.5])
    assert (data.reading.separator, data.reading.decimal) == (separator, decimal)
    plain = separator == ("\t" if name.endswith("tsv") else ",") and decimal == "."
    assert any("detected; --" in note for note in data.notes) != plain


def test_ambiguous_decimal_marks_are_not_guessed(tmp_path):
    thousands = written(tmp_path, "a;y\n1,234;2\n2,345;3\n")
    message = message_of(load, thousands)
    assert "not a number ('1,234'): a decimal comma or a thousands separator (and 1 more)" in message
    assert "if the comma is the decimal mark, use --decimal ," in message
    assert load(thousands, reading=reading(decimal=",")).x[0, 0] == np.float32(1.234)
    mixed = written(tmp_path, "a;y\n1,5;2.5\n2,5;3\n")
    assert "row 1, column a: not a number ('1,5')" in message_of(load, mixed)
    under_comma = message_of(load, mixed, reading=reading(decimal=","))
    assert (
        "row 1, column y: not a number ('2.5'): a decimal point, while other numbers have a decimal comma"
        in under_comma
    )
    assert "--drop" not in under_comma
    two_ways = written(tmp_path, "a;b|y\n1;2|3\n2;3|4\n")
    assert "--separator semicolon" in message_of(load, two_ways)
    assert load(two_ways, reading=reading(separator="pipe")).feature_names == ("a;b=1;2", "a;b=2;3")
    spaces = written(tmp_path, " a  b   y\n 1  2  2.5\n 2  3 3.5\n")
    assert "--separator space" in message_of(load, spaces)
    np.testing.assert_array_equal(load(spaces, reading=reading(separator="space")).x, [[1, 2], [2, 3]])


def test_encodings_are_named_and_read(tmp_path):
    text = "größe,y\n1,2.5\n2,3.5\n"
    latin, wide = written(tmp_path, text.encode("cp1252"), "l.csv"), written(tmp_path, text.encode("utf-16"), "w.csv")
    assert "--encoding cp1252" in message_of(load, latin)
    assert "--encoding utf-16" in message_of(load, wide)
    for path, encoding in ((latin, "cp1252"), (wide, "utf-16")):
        assert load(path, reading=reading(encoding=encoding)).feature_names == ("größe",)
    assert "not utf-8 text" in message_of(load, latin, reading=reading(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"separator": "xx"}, "--separator: must be one character"),
        ({"decimal": ";"}, '--decimal: must be "." or ","'),
        ({"separator": ".", "decimal": "."}, "--separator and --decimal: must differ"),
        ({"skip_rows": ["3-1"]}, "--skip-rows: must be line numbers of the file"),
        ({"skip_rows": ["0"]}, "--skip-rows: must be line numbers of the file"),
        ({"skip_rows": ["1-2000000"]}, "--skip-rows: a range must have at most 1000000 lines"),
        ({"encoding": "klingon"}, "--encoding: unknown encoding (got 'klingon')"),
        ({"encoding": "base64"}, "--encoding: unknown encoding (got 'base64')"),
    ],
)
def test_bad_options_of_form_are_refused(options, problem):
    assert problem in message_of(Reading.from_options, **options)


def test_options_of_text_files_are_refused_elsewhere():
    frame = pd.DataFrame({"a": [1.0, 2], "y": [1.5, 2.5]})
    assert "are for text files (.csv .tsv)" in message_of(load, frame, reading=reading(separator=";"))
    assert "--missing-code can be used with tables only" in message_of(
        load, (np.ones((3, 1)), np.arange(3.0)), reading=reading(missing_code=["-9"])
    )


# ---------------------------------------------------------------------------------------------- lines

REMARKS = "# gauge, provisional\n# stage in feet\nstage\tq\n5s\t14n\n1.10\t25.1\n1.52\t40.3\n2.00\t61.0\n"


def test_remarks_and_units_are_told_with_the_lines_to_skip(tmp_path):
    path = written(tmp_path, REMARKS, "t.tsv")
    assert "the first 2 lines are comments (#)" in message_of(load, path)
    assert "leave them out with --skip-rows 1-2,4 (line 4 seems to hold units)" in message_of(load, path)
    lines = message_of(load, path, reading=reading(skip_rows=["1-2"])).splitlines()
    assert len(lines) == 2  # the target cannot be dropped, and has a line of its own
    assert all("if row 1 holds units, leave it out with --skip-rows 1-2,4" in line for line in lines)
    data = load(path, reading=reading(skip_rows=["1-2,4"]))
    np.testing.assert_array_equal(data.x[:, 0], np.float32([1.1, 1.52, 2]))


def test_faulty_lines_in_the_middle_are_named_by_number(tmp_path):
    second_table = written(tmp_path, "a,b,y\n1,2,2.5\n2,3,3.5\na,b,y\n3,4,4.5\n")
    for line in message_of(load, second_table).splitlines():
        assert "the header is repeated here" in line
        assert "leave that line out with --skip-rows 4" in line
    assert load(second_table, reading=reading(skip_rows=["4"])).num_data == 3
    remark = written(tmp_path, "a,y\n1,2.5\n# changed sensor\n2,3.5\n")
    assert (
        "header has 2, and the row begins with #, like a comment; correct the row, or leave its line out with "
        "--skip-rows 3" in message_of(load, remark)
    )
    skipped = reading(skip_rows=["2"])
    third = written(tmp_path, "a,b,y\ncm,cm,EUR\n1,2,2.5\n\n2,3,3.5\n")
    assert "row 2: the line is empty; remove it, or leave its line out with --skip-rows 2,4" in message_of(
        load, third, reading=skipped
    )
    assert "cannot skip line 9: the file has 5 lines" in message_of(load, third, reading=reading(skip_rows=["9"]))


# ---------------------------------------------------------------------------------------------- new files


def test_new_files_are_read_in_the_format_of_the_training_file(tmp_path):
    train = written(tmp_path, "größe;y\ncm;EUR\n1,5;2,25\n2,5;3,5\n4,5;5\n".encode("cp1252"))
    options = {"encoding": "cp1252", "skip_rows": ["2"]}
    like = Signature.from_json(load(train, reading=reading(**options)).signature.to_json())
    assert like.reading == reading(separator=";", decimal=",", **options)
    same = written(tmp_path, "größe;y\ncm;EUR\n1,5;2,25\n7,5;8\n".encode("cp1252"), "same.csv")
    np.testing.assert_array_equal(load_inputs(same, like)[:, 0], [1.5, 7.5])
    np.testing.assert_array_equal(load_like(same, like).y[:, 0], [2.25, 8])
    clean = written(tmp_path, "größe\n1,5\n7,5\n2\n", "clean.csv")  # UTF-8, no units: no row is lost
    np.testing.assert_array_equal(load_inputs(clean, like)[:, 0], [1.5, 7.5, 2])
    plain = written(tmp_path, "y,größe\n1.25,1.5\n2.25,7.5\n", "plain.csv")
    np.testing.assert_array_equal(load_inputs(plain, like)[:, 0], [1.5, 7.5])
    other = written(tmp_path, "y\tgröße\n1.25\t1.5\n2.25\t7.5\n", "tabs.csv")
    assert any("columns separated by tabs" in text for text in caught(load_inputs, other, like))
    message = message_of(load_inputs, written(tmp_path, "größe\n1,5\nbig\n2,5\n", "bad.csv"), like)
    assert "row 2, column größe: not a number ('big')" in message
    assert "--" not in message.split(";", 1)[1]  # predict has no options of form


def test_remarks_that_training_skipped_may_be_there_or_not(tmp_path):
    like = load(written(tmp_path, REMARKS, "t.tsv"), reading=reading(skip_rows=["1-2,4"])).signature
    for content in (REMARKS, "stage\n1.10\n1.52\n2.00\n", "stage\tq\n5s\t14n\n1.10\t1\n1.52\t1\n2.00\t1\n"):
        rows = load_inputs(written(tmp_path, content, "new.tsv"), like)
        expected = [1.1, 1.52, 2]
        np.testing.assert_array_equal(rows[:, 0][-3:], np.float32(expected))


def test_a_recipe_keeps_how_a_table_is_read(tmp_path):
    options = {"separator": ";", "decimal": ",", "skip_rows": ["1-2", "4"], "missing_code": ["-9", "y=?"]}
    recipe = resolve("linear", "nuts", [], {"data": "t.csv", **options, "censored": True})
    document = as_dict(recipe)
    assert {key: document[key] for key in options} == options
    assert document["censored"] is True
    assert resolve("linear", "nuts", [], {"missing_code": -999}, in_memory=True).missing_code == ("-999",)


def test_the_command_line_reads_such_a_file(tmp_path, capsys):
    path = written(tmp_path, "a;y\ncm;EUR\n1,5;2,25\n-9;3\n2,5;3,5\n4,5;5\n")
    arguments = ["show", "linear", "nuts", "--data", str(path), "--decimal", ",", "--separator", "semicolon"]
    assert command([*arguments, "--skip-rows", "2", "--missing-code", "a=-9", "--missing", "median"]) == 0
    output = capsys.readouterr().out
    assert all(part in output for part in ("separator: semicolon", "skip_rows:", "missing_code:", 'decimal: ","'))
    assert command(arguments) == 2
    assert "if row 1 holds units, leave it out with --skip-rows 2" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- missing cells and codes


def test_codes_for_missing_cells_are_warned_of_with_the_option(tmp_path):
    y = [12.1, -999999, 13, 14.2, -999999, *np.linspace(15, 23, 12)]
    frame = pd.DataFrame({"x": np.arange(17) / 7, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for spec in (frame, tmp_path / "t.csv"):
        (text,) = caught(load, spec)
        assert "target y (-999999 in 2 of 17 rows, others 12.1 to 23)" in text
        assert "--missing-code y=-999999 with --missing drop" in text
    (text,) = caught(load, (frame[["x"]].to_numpy(), frame["y"].to_numpy()))
    assert "target y (-999999 in 2 of 17 rows" in text
    assert "leave such rows out" in text
    for code in ("y=-999999", "-999999.0"):
        options = {"reading": reading(missing_code=[code])}
        assert "row 2, column y: a missing cell (-999999" in message_of(load, frame, **options)
        assert caught(load, frame, missing="drop", **options) == []
        assert load(frame, missing="drop", **options).num_data == 15
    assert "no column named z" in message_of(load, frame, reading=reading(missing_code=["z=-9"]))
    single = frame.astype({"y": "float32"}).replace(-999999.0, np.float32(-999.9))
    assert load(single, missing="drop", reading=reading(missing_code=["-999.9"])).num_data == 15


@pytest.mark.parametrize("code", [-1, -9, -99, -200, -999, -999.9, -9999, 9999, 99999, 1e20, 9.96921e36])
def test_values_that_look_like_codes_are_questioned(code):
    ordinary = 100 + 3 * np.random.default_rng(0).normal(size=100)
    (result,) = find_codes("v", np.append(ordinary, [code, code]))
    assert (result.value, result.count) == (pytest.approx(code), 2)
    assert float(result.text) == pytest.approx(code)
    codes = find_codes("v", np.append(ordinary, [code]))
    assert len(codes) == (code <= -99 or code >= 999)  # others are a mistake, or a wonder


def test_a_negative_code_among_values_of_a_wide_range_is_questioned():
    values = np.random.default_rng(0).gamma(2, 150, 300)
    assert [code.value for code in find_codes("v", np.append(values, [-200.0] * 60))] == [-200]


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_columns_are_not_questioned(seed):
    rng = np.random.default_rng(seed)
    columns = {
        "counts": rng.poisson(3, 500),
        "rare counts": rng.poisson(0.1, 500),
        "years": rng.integers(1950, 2025, 500),
        "prices": np.round(np.exp(rng.normal(11, 1.5, 500)), -2),
        "heavy tails": rng.standard_t(2, 500).round(1),
        "signs": rng.choice([-1, 1], 500),
        "scores": rng.choice([-1, 0, 1], 500),
        "ages": np.minimum(rng.integers(0, 110, 500), 99),
        "percent": rng.integers(0, 100, 500),
        "temperatures": rng.normal(5, 10, 500).round(),
        "capped": np.minimum(np.round(np.exp(rng.normal(3, 1.5, 500))), 999),
        "hours": rng.integers(0, 24, 500),
    }
    assert [code for name, values in columns.items() for code in find_codes(name, values.astype(float))] == []


@pytest.mark.slow
@pytest.mark.skipif(not UCI.is_dir(), reason="needs the UCI tables")
def test_no_column_of_public_tables_is_questioned():
    for path in sorted(UCI.glob("*/data.csv.gz")):
        values = pd.read_csv(path, header=None).to_numpy(float)
        assert [
            code for i, column in enumerate(values.T) for code in find_codes(f"{path.parent.name} {i}", column)
        ] == []


def test_a_mark_for_missing_cells_is_reported_with_its_code(tmp_path):
    content = "a,y\n1,2.5\n{0},3.5\n3,4.5\n4,5.5\n{0},5.7\n"
    for mark, typed in (("?", "'a=?'"), ("-", "a=-"), ("#DIV/0!", "'a=#DIV/0!'")):
        path = written(tmp_path, content.format(mark))
        assert f"if it stands for a missing cell, use --missing-code {typed}" in message_of(load, path)
        data = load(path, missing="median", reading=reading(missing_code=[mark]))
        np.testing.assert_array_equal(np.isnan(data.x[:, 0]), [False, True, False, False, True])
    assert "row 2, column a: a missing cell (.)" in message_of(load, written(tmp_path, content.format(".")))
    column = pd.DataFrame({"a": [".", ".", "320", "."], "y": [1.5, 2, 3, 4]})
    assert load(column, missing="median").feature_names == ("a", "a is missing")


def test_every_fault_of_a_column_is_reported(tmp_path):
    rows = ["1,2.5", "<0.5,NA", "x,3.5", '"1,5",4', ",5", "$7,6.5", "7,Broken", "8,1", "9,2", "10,3"]
    lines = message_of(load, written(tmp_path, "\n".join(["a,y", *rows]))).splitlines()
    problems = [line.split("t.csv: ")[1].split(";")[0] for line in lines]
    assert problems == [
        "row 2, column a: a bound, not a number ('<0.5')",
        "row 3, column a: not a number ('x')",
        "row 4, column a: not a number ('1,5'): a decimal comma or a thousands separator",
        "row 6, column a: not a number ('$7'): characters other than digits and a point",
        "row 5, column a: an empty cell",
        "row 7, column y: not a number ('Broken')",
        "row 2, column y: a missing cell (NA)",
    ]
    assert all("--drop a" in line for line in lines[1:5])
    assert not any("--drop y" in line or "NAME" in line for line in lines[5:])


def test_options_in_warnings_name_the_columns(tmp_path):
    path = written(tmp_path, "id,b,c,y\n" + "".join(f"{i},7,8,{i}.5\n" for i in range(30)))
    constant, identifier = caught(load, path)
    assert constant.endswith(
        "columns b, c: the same in every row, so they carry no information; leave them out with --drop b,c"
    )
    assert identifier.endswith("column id: different in every row, like identifiers; leave it out with --drop id")
    clock = written(tmp_path, "t,y\n" + "".join(f"{i},{i}.5\n" for i in range(30)))
    assert caught(load, clock) == []  # the only input counts time, and is no identifier
    spaced = written(tmp_path, "my col,b,y\nx,1,1.5\n1,,2.5\n2,3,3.5\n3,4,5\n")
    assert "--drop 'my col'" in message_of(load, spaced)


def test_a_stored_table_format_must_be_a_possible_option():
    text = load(
        pd.DataFrame({"a": [1.0, 2], "y": [1.5, 2.5]}), reading=reading(missing_code=["-9"])
    ).signature.to_json()
    assert Signature.from_json(text).reading.missing_code == ("-9",)
    with pytest.raises((ValueError, UsageError), match="options for reading a table are invalid"):
        Signature.from_json(text.replace('"missing_code"', '"separator": "ab", "missing_code"'))


def test_a_missing_code_with_a_decimal_comma_is_known_in_tables_with_points(tmp_path):
    train = written(tmp_path, "a;y\n1,5;2,25\n-99,9;3,5\n4,5;5\n2,5;1\n")
    like = load(train, missing="median", reading=reading(missing_code=["a=-99,9"])).signature
    points = written(tmp_path, "a,y\n-99.9,1.5\n2.5,1.25\n", "points.csv")
    for new in (pd.DataFrame({"a": [-99.9, 2.5]}), points, written(tmp_path, "a;y\n-99,9;1\n2,5;1,5\n", "new.csv")):
        np.testing.assert_array_equal(load_inputs(new, like)[:, 1], [1, 0])
    with pytest.warns(BnnzooWarning, match="no cell contains this code"):  # in a file with points, the code is text
        plain = load(points, reading=reading(missing_code=["-9,999"])).signature
    np.testing.assert_array_equal(load_inputs(pd.DataFrame({"a": [-9.999]}), plain), np.float32([[-9.999]]))
