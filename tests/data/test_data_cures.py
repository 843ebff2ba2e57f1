"""Messages about tables name the correct fault, and the suggested option works."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bnnzoo.data import Dataset, load, load_inputs, load_like
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning, UsageError

pytestmark = pytest.mark.usefixtures("as_options")


def rows(pattern: str, count: int = 24) -> str:
    return "".join(pattern.format(i=i, s=i * 37 % 101, w="rgb"[i % 3], m=i % 5 + 1) + "\n" for i in range(count))


def written(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, **options) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BnnzooWarning)
        with pytest.raises(UsageError) as error:
            load(path, **options)
    return str(error.value)


def loaded(path, **options) -> tuple[Dataset, str]:
    """Return the data set and all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BnnzooWarning)
        data = load(path, **options)
    return data, "\n".join(str(item.message) for item in caught)


def typed(message: str, option: str) -> list[str]:
    """Return the values of an option in a message, as a shell would pass them."""
    arguments = shlex.split(" ".join(re.findall(rf"{option} (?:'[^']*'|[^\s;']+)", message)))
    return arguments[1::2]


# ---------------------------------------------------------------------------------------------- lines

UNITS = {
    "quoted": '"a","y"\n"kg","m"\n' + rows("{s},{i}.5"),
    "two lines": "a,y\nkg,m\nfloat,float\n" + rows("{s},{i}.5"),
    "with an empty cell": "a,y\n,m\n" + rows("{s},{i}.5"),
}


@pytest.mark.parametrize("case", UNITS)
def test_rows_of_units_are_skipped_as_the_message_says(tmp_path, case):
    path = written(tmp_path, UNITS[case])
    units, _ = dict.fromkeys(typed(refusal(path), "--skip-rows"))
    assert loaded(path, reading=Reading.from_options(skip_rows=[units]))[0].feature_names == ("a",)
    titled = written(tmp_path, "Report,2024\na,y\n" + rows("{s},{i}.5"))
    assert typed(refusal(titled), "--skip-rows")[1] == "1"
    assert loaded(titled, reading=Reading.from_options(skip_rows=["1"]))[0].feature_names == ("a",)


def test_a_closing_remark_is_skipped_as_the_message_says(tmp_path):
    for content in ("a,y\n" + rows("{s},{i}.5") + "Source: x,\n", '"a","y"\n' + rows('"{s}\n",{i}.5') + "Source: x,\n"):
        path = written(tmp_path, content)
        (line,) = set(typed(refusal(path), "--skip-rows"))
        assert loaded(path, reading=Reading.from_options(skip_rows=[line]))[0].num_data == 24


@pytest.mark.parametrize("above", ["% remark\n", "// remark\n", "\n\n"])
def test_lines_above_the_header_are_skipped_as_the_message_says(tmp_path, above):
    path = written(tmp_path, above + "a,y\n" + rows("{s},{i}.5"))
    (lines,) = typed(refusal(path), "--skip-rows")
    assert loaded(path, reading=Reading.from_options(skip_rows=[lines]))[0].num_data == 24


def test_row_names_beside_one_column_are_not_a_title(tmp_path):
    path = written(tmp_path, '"a"\n' + rows('"n{i}",{i}.5'))
    assert "row names (as from R's write.table)" in refusal(path)


# ---------------------------------------------------------------------------------------------- separators, encodings


def test_a_decimal_option_without_effect_is_questioned(tmp_path):
    path = written(tmp_path, "a,y\n" + rows("{m},{i}"))
    assert "--decimal , has no effect" in loaded(path, reading=Reading.from_options(decimal=","))[1]
    assert "has no effect" not in loaded(path, reading=Reading.from_options(decimal=",", separator="comma"))[1]
    quoted = written(tmp_path, "a,y\n" + rows('"{m},5",{i}'))
    assert "has no effect" not in loaded(quoted, reading=Reading.from_options(decimal=","))[1]
    table = written(tmp_path, "a,b,y\n" + rows("{m},{s},{i},5"))
    message = refusal(table, reading=Reading.from_options(decimal=","))
    assert "(got for instance 4 fields); if numbers have decimal commas, separate the columns with semi" in message


@pytest.mark.parametrize("mark", [":", "^"])
def test_an_unusual_separator_is_named(tmp_path, mark):
    path = written(tmp_path, f"a{mark}y\n" + rows("{s}" + mark + "{i}.5"))
    (separator,) = typed(refusal(path), "--separator")
    assert loaded(path, reading=Reading.from_options(separator=separator))[0].feature_names == ("a",)


def test_cells_in_apostrophes_are_told_from_names_of_rows(tmp_path):
    assert "if cells are quoted with '" in refusal(written(tmp_path, "c,y\n" + rows("'Doe, {w}',{i}.5")))


def test_another_encoding_of_utf8_text_is_questioned(tmp_path):
    path = written(tmp_path, "c,y\n" + rows("ä{w},{i}.5"))
    assert (
        "reads its 'ä' as 'Ã¤'; leave --encoding out"
        in loaded(path, reading=Reading.from_options(encoding="cp1252"))[1]
    )
    assert loaded(path, reading=Reading.from_options(encoding="utf-8"))[1] == ""
    windows = written(tmp_path, ("c,y\n" + rows("€{w},{i}.5")).encode("cp1252"))
    assert "if it is cp1252" in refusal(windows, reading=Reading.from_options(encoding="latin-1"))
    assert "c=€r" in loaded(windows, reading=Reading.from_options(encoding="cp1252"))[0].feature_names


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_has_the_byte_order_of_the_file(tmp_path, encoding):
    path = written(tmp_path, ("a,y\n" + rows("{s},{i}.5")).encode(encoding))
    assert loaded(path, reading=Reading.from_options(encoding="utf-16"))[0].num_data == 24


def test_both_ways_to_store_an_accent_are_one(tmp_path):
    composed, split = "é", "e\u0301"
    path = written(tmp_path, f"{split},c,y\n" + rows(f"{{s}}.5,{{w}}{split},{{i}}.5") + f"3.5,r{composed},2.5\n")
    data, _ = loaded(path, columns=[composed, "c"])
    assert data.feature_names == (composed, "c=bé", "c=gé", "c=ré")
    new = pd.DataFrame({composed: [1.0], "c": [f"r{split}"]})
    assert load_inputs(new, data.signature).tolist() == [[1, 0, 0, 1]]


def test_levels_that_look_alike_are_questioned(tmp_path):
    path = written(tmp_path, "c,y\n" + rows("{w},{i}.5") + "r\u200b,2.5\n")
    assert r"categories that look alike: 'r', 'r\u200b'" in loaded(path)[1]


@pytest.mark.parametrize(
    ("name", "cure"),
    [("t.xlsx", "save the table as CSV"), ("t.csv.gz", "unpack it first"), ("t.txt", "rename the file to end in .csv")],
)
def test_files_of_other_formats_are_refused_with_a_remedy(tmp_path, name, cure):
    assert cure in refusal(written(tmp_path, "a,y\n1,2\n", name))


# ---------------------------------------------------------------------------------------------- cells


def test_several_marks_for_missing_cells_are_named(tmp_path):
    path = written(tmp_path, "a,y\n" + rows("{s},{i}.5") + "-,1.5\n--,2.5\n")
    codes = typed(refusal(path), "--missing-code")
    assert codes == ["a=-", "a=--"]
    assert loaded(path, missing="drop", reading=Reading.from_options(missing_code=codes))[0].num_data == 24


def test_missing_codes_without_a_match_are_reported(tmp_path):
    path = written(tmp_path, "a,y\n" + rows("{m},{i}.5") + "-9,1.5\n-8,2.5\n")
    for code in ("-9,-8", "a=-9,-8"):
        data, notes = loaded(path, missing="drop", reading=Reading.from_options(missing_code=[code]))
        assert data.num_data == 26
        several = typed(notes.partition("if it is a list of codes")[2], "--missing-code")
        assert loaded(path, missing="drop", reading=Reading.from_options(missing_code=several))[0].num_data == 24
    data, notes = loaded(path, reading=Reading.from_options(missing_code=["a=-7"]))
    assert "no cell contains this code" not in notes  # a part of a table need not contain every code
    assert any("--missing-code 'a=-7': no cell contains this code" in note for note in data.notes)
    data, _ = loaded(path, missing="drop", reading=Reading.from_options(missing_code=["a=-9", "-8.0"]))
    assert not any("no cell contains this code" in note for note in data.notes)


def test_a_missing_code_of_a_column_with_an_equals_sign(tmp_path):
    path = written(tmp_path, "a=b,y\n" + rows("{m},{i}.5") + "-999,1.5\n")
    codes = typed(loaded(path)[1], "--missing-code")
    assert loaded(path, missing="drop", reading=Reading.from_options(missing_code=codes))[0].num_data == 24


def test_a_mark_among_classes_is_questioned_and_among_levels_noted(tmp_path):
    path = written(tmp_path, "a,y\n" + rows("{s},{w}") + "3,?\n")
    codes = typed(loaded(path)[1], "--missing-code")
    assert loaded(path, missing="drop", reading=Reading.from_options(missing_code=codes))[0].class_names == (
        "b",
        "g",
        "r",
    )
    signs = written(tmp_path, "a,y\n" + "1,+\n2,-\n" * 5)
    assert "looks like a mark" not in loaded(signs)[1]
    data, _ = loaded(written(tmp_path, "c,y\n" + rows("{w},{i}.5") + "?,3.5\n"))
    assert any("'?' is a category" in note for note in data.notes)


def test_amounts_with_units_in_a_target_name_an_option_that_works(tmp_path):
    path = written(tmp_path, "a,y\n" + rows("{s},{m} kg"))
    assert "or confirm the categories with --task classification" in loaded(path)[1]
    assert loaded(path, task="classification")[0].num_classes == 5


@pytest.mark.parametrize("cell", ["0{m}/2024", "2024/0{m}", "Jan-2{m}", "March 202{m}"])
def test_months_in_other_orders_are_no_levels(tmp_path, cell):
    assert "column d: not a date" in refusal(written(tmp_path, "d,y\n" + rows(cell + ",{i}.5")))


def test_booleans_beside_zero_and_one_are_reported(tmp_path):
    message = refusal(written(tmp_path, "a,y\n" + "true,1.5\n0,2.5\n1,3.5\n" * 8))
    assert "not a number ('true'): other cells are 0 or 1" in message


@pytest.mark.parametrize("name", ["Unnamed: 0", "rownames", "row_id", "index"])
def test_row_numbers_of_a_short_table_are_questioned(tmp_path, name):
    path = written(tmp_path, f"{name},a,y\n" + rows("{i},{m}.5,{s}.5", 6))
    (drop,) = typed(loaded(path)[1], "--drop")
    assert loaded(path, drop=[drop])[1] == ""
    assert loaded(written(tmp_path, "day,a,y\n" + rows("{i},{m}.5,{s}.5", 6)))[1] == ""


def test_the_decimal_mark_of_the_file_is_in_the_remedy(tmp_path):
    assert "write plain numbers (1234,5)" in refusal(written(tmp_path, "a;y\n" + rows("{s};{i},5") + "x;1,5\n"))


# ---------------------------------------------------------------------------------------------- bounds


def test_bounds_are_explained_where_they_are_written_otherwise(tmp_path):
    censored = {"reading": Reading.from_options(censored=True)}
    message = refusal(written(tmp_path, "a,y\n" + rows("{s},{i}.5") + "1,~5\n2,9..1\n"), **censored)
    assert "write a number or a bound (<0.5, >100, 1..2)" in message
    assert "('9..1'): an interval whose first end is not smaller than the second" in message
    path = written(tmp_path, "a,y\n" + rows("{s},{i}.5") + "1,<-999\n2,-999\n3,-999\n")
    codes = typed(loaded(path, **censored)[1], "--missing-code")
    with_codes = Reading.from_options(censored=True, missing_code=codes)
    assert "-999" not in loaded(path, missing="drop", reading=with_codes)[1].replace("left out", "")


def test_bounds_for_a_model_of_numbers_name_the_training(tmp_path):
    like = loaded(written(tmp_path, "a,y\n" + rows("{s}.5,{i}.5")))[0].signature
    with pytest.raises(UsageError, match="train with --censored to read the cell as a bound"):
        load_like(written(tmp_path, "a,y\n1,<0.5\n2,3\n"), like)


# ---------------------------------------------------------------------------------------------- new files

NEW = {
    "no rows": ("a,b\n", "a header but no data rows"),
    "a column less": ("a\n3\n", "no column named b"),
    "other columns": ("u,v\n1,2\n", "no columns named a, b"),
    "a short first row": ("a,b\n1\n2,3\n", "row 1: 1 fields"),
}


@pytest.mark.parametrize("case", NEW)
def test_new_files_without_the_skipped_lines_report_their_own_fault(tmp_path, case):
    path = written(tmp_path, "a,b,y\nkg,m,EUR\n" + rows("{s}.5,{m}.5,{i}.5"))
    like = loaded(path, reading=Reading.from_options(skip_rows=["2"]))[0].signature
    content, fault = NEW[case]
    with pytest.raises(UsageError) as error:
        load_inputs(written(tmp_path, content, "new.csv"), like)
    assert fault in str(error.value)
    assert "--" not in str(error.value)
    np.testing.assert_array_equal(load_inputs(written(tmp_path, "a,b\nkg\n2,3\n", "new.csv"), like), [[2, 3]])


def test_an_array_for_a_model_with_text_columns_is_refused(tmp_path):
    like = loaded(written(tmp_path, "c,y\n" + rows("{w},{i}.5")))[0].signature
    with pytest.raises(UsageError, match="give a data frame or a file with the columns c"):
        load_inputs(np.array([["r"], ["g"]], object), like)


def test_messages_about_new_files_name_no_option_of_sample(tmp_path):
    like = loaded(written(tmp_path, "a;b;y\n" + rows("{s},5;{m},5;{i},5")))[0].signature
    for content in ("a,b\n1,5,2\n", "a b\n1 2\n", "a:b\n1:2\n", "a;b\n1;2;3\n1;2;3\n"):
        with pytest.raises(UsageError) as error:
            load_inputs(written(tmp_path, content, "new.csv"), like)
        assert "--" not in str(error.value), content
