"""Tables as programs export them: ambiguous content is refused or gets a warning, and each suggested remedy works."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bnnzoo.data import Dataset, Signature, load, load_inputs
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning, UsageError

pytestmark = pytest.mark.usefixtures("as_options")

WORDS = ["red", "green", "blue"]


def rows(pattern: str, count: int = 24) -> str:
    """Rows of a table; {i} is the row, {j} one of three numbers, {k} one of 7, {w} a word."""
    return "".join(pattern.format(i=i, j=i % 3, k=i % 7, w=WORDS[i % 3]) + "\n" for i in range(count))


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def message_of(path: Path, **options) -> str:
    with pytest.raises(UsageError) as error:
        load(path, **options)
    return str(error.value)


def loaded(path: Path, **options) -> tuple[Dataset, str]:
    """The data set, and all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BnnzooWarning)
        data = load(path, **options)
    return data, "\n".join(str(item.message) for item in caught)


AMOUNTS = {
    "typographic apostrophes": "a;y\n" + rows("1’10{j};{i}.5"),
    "Indian thousands": "a\ty\n" + rows("1,23,10{j}\t{i}.5"),
    "rupees": "a,y\n" + rows("₹ {i},{i}.5"),
    "a minus at the end": "a,y\n" + rows("{i}.50-,{i}.5"),
    "standard errors": "a,y\n" + rows("{i}.5 ± 0.{j},{i}.5"),
    "standard errors in parentheses": "a,y\n" + rows("{i}.5 (0.{j}),{i}.5"),
    "powers of ten": "a,y\n" + rows("1.{i}×10³,{i}.5"),
    "prices": "a;y\n" + rows("{i},-;{i},5"),
    "formulas": "a,y\n" + rows('="00{j}",{i}.5'),
    "percent, and a word": "a,y\nnone at all,1.5\n" + rows("{i}%,{i}.5"),
    "dollars, and a word": "a,y\ncall,1.5\n" + rows('"$1,10{i:02d}",{i}.5'),
}


@pytest.mark.parametrize("case", AMOUNTS)
def test_numbers_with_units_are_not_levels(tmp_path, case):
    assert "column a: not a number" in message_of(written(tmp_path, AMOUNTS[case]))


@pytest.mark.parametrize(
    "cells", ["{j}/1{j}/2024", "1. März 202{j}", "3 janvier 202{j}", "36:1{j}:00", "2024010{k}T1000"]
)
def test_dates_in_other_orders_are_not_levels(tmp_path, cells):
    path = written(tmp_path, "d,y\nunknown,1.5\n" + rows(cells + ",{i}.5"))
    assert "column d: not a" in message_of(path)


def test_seconds_may_have_a_decimal_comma(tmp_path):
    data, _ = loaded(written(tmp_path, "t;y\n" + rows("2024-01-01 12:00:0{j},500;{i}.5")))
    assert data.x[1, 0] * 86400 == pytest.approx(1, rel=1e-3)


def test_a_word_among_decimals_is_not_a_level(tmp_path):
    path = written(tmp_path, "q,y\n" + "".join(f"ND,{i}.5\nND,{i}.1\n{i}.25,{i}.3\n" for i in range(9)))
    assert "--missing-code q=ND" in message_of(path)
    data, _ = loaded(path, missing="median", reading=Reading.from_options(missing_code=["q=ND"]))
    assert data.feature_names == ("q", "q is missing")


def test_null_of_databases_is_missing(tmp_path):
    path = written(tmp_path, "q,c,y\n" + rows("{i}.5,{w},{i}.25") + "\\N,\\N,3.5\n")
    data, _ = loaded(path, missing="median")
    assert data.x[-1, [1, 2, 3, 4]].tolist() == [1, 0, 0, 0]


def test_a_code_with_the_decimal_mark_of_the_file_is_missing(tmp_path):
    path = written(tmp_path, "q;y\n" + rows("{j},5;{i},5") + "-99,9;2,5\n")
    data, _ = loaded(path, missing="drop", reading=Reading.from_options(missing_code=["-99,9"]))
    assert data.num_data == 24


def test_a_date_is_a_code_whatever_its_type():
    days = pd.to_datetime(["2024-01-01", "1900-01-01", "2024-01-03"])
    frame = pd.DataFrame({"d": days, "y": [1.5, 2.5, 3.5]})
    data = load(frame, missing="drop", reading=Reading.from_options(missing_code=["d=1900-01-01"]))
    assert data.x[:, 0].tolist() == [0, 2]


def test_bounds_follow_the_decimal_mark(tmp_path):
    path = written(tmp_path, "a;y\n" + rows("{j};{i}") + "1;<0,5\n")
    data, _ = loaded(path, reading=Reading.from_options(censored=True))
    assert data.y[-1].tolist() == [[-np.inf, 0.5]]
    thousands = written(tmp_path, "a;y\n" + rows("{j};{i},5") + "1;>1.000\n")
    assert "a decimal point, while other numbers have a decimal comma" in message_of(
        thousands, reading=Reading.from_options(censored=True)
    )


def test_a_target_of_bounds_alone_is_no_class(tmp_path):
    assert "use --censored to read the cell as a bound" in message_of(written(tmp_path, "a,y\n" + rows("{k},<{j}.5")))


def test_quoted_decimal_commas_are_read_where_asked(tmp_path):
    path = written(tmp_path, "a,y\n" + rows('"{i},5","{i},25"'))
    assert "if the comma is the decimal mark, use --decimal ," in message_of(path)
    data, _ = loaded(path, reading=Reading.from_options(decimal=","))
    assert data.x[:2, 0].tolist() == [0.5, 1.5]
    assert Signature.from_json(data.signature.to_json()) == data.signature
    assert load_inputs(written(tmp_path, "a\n1.5\n2\n"), data.signature).tolist() == [[1.5], [2]]


DOUBTS = {
    "thousands": ("c;y\n" + rows("{w};1.10{j}"), "1.100 is read as 1.1"),
    "units": ("a,y\n" + rows("{i}.5 kg,{i}.5"), "numbers with a unit (kg)"),
    "capitals": ("c,y\nRed,1.5\n" + rows("{w},{i}.5"), "differ only in capital letters: Red, red"),
    "totals": ("c,y\n" + rows("{w},{i}.5") + "Total,276\n", "leave it out with --skip-rows 26"),
    "a header again": ("a,c,y\nu,v,yes\na,c,y\nu,w,no\n", "the header is repeated"),
    "no header": ("red,m,yes\nblue,f,no\nred,m,yes\n", "the first line is not the header"),
    "dates as numbers": ("d,y\n" + rows("20240{k}1{j},{i}.5").replace("202400", "202409"), "look like dates"),
    "an open end": ("d,y\n" + rows("2024-01-1{j},{i}.5") + "9999-12-31,1.5\n", "--missing-code d=9999-12-31"),
    "one code": ("a,y\n" + rows("{k},{i}.5") + "-999,1.5\n", "--missing-code a=-999"),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_unlikely_tables_are_questioned(tmp_path, case):
    content, warning = DOUBTS[case]
    _, notes = loaded(written(tmp_path, content))
    assert warning in notes


def test_the_remedy_of_a_warning_silences_it(tmp_path):
    for case, options in {
        "thousands": {"reading": Reading.from_options(decimal=".")},
        "units": {"categories": ["a"]},
        "totals": {"reading": Reading.from_options(skip_rows=["26"])},
        "an open end": {"reading": Reading.from_options(missing_code=["d=9999-12-31"]), "missing": "drop"},
        "one code": {"reading": Reading.from_options(missing_code=["a=-999"]), "missing": "drop"},
    }.items():
        content, warning = DOUBTS[case]
        assert warning not in loaded(written(tmp_path, content), **options)[1]


def test_leading_zeros_are_noted(tmp_path):
    data, _ = loaded(written(tmp_path, "zip,y\n" + rows("0123{j},{i}.5")))
    assert any("--categories zip" in note for note in data.notes)


def test_dates_in_the_first_line_are_no_header(tmp_path):
    assert "no header line" in message_of(written(tmp_path, "2024-01-01,a\n2024-01-02,b\n2024-01-03,a\n"))


def test_names_of_rows_and_closing_separators_are_told_from_bad_rows(tmp_path):
    for header, row in (("a,y\n", "{i},{j},{i}.5"), ('"a","y"\n', '"{i}",{j},{i}.5')):
        assert "row names" in (message := message_of(written(tmp_path, header + rows(row))))
        assert "--skip-rows" not in message
    assert "the rows end with a separator" in message_of(written(tmp_path, "a,y\n" + rows("{j},{i}.5,")))


def test_the_header_below_a_title_is_found(tmp_path):
    path = written(tmp_path, "Export\n\na,c,y\n" + rows("{j},{k},{i}.5"))
    assert "leave out the lines above it with --skip-rows 1-2" in message_of(path)
    assert loaded(path, reading=Reading.from_options(skip_rows=["1-2"]))[0].num_data == 24
    titled = written(tmp_path, "Export,,\na,c,y\n" + rows("{j},{k},{i}.5"))
    assert "leave it out with --skip-rows 1" in message_of(titled)


def test_tables_of_r_with_spaces_and_quotes_are_read(tmp_path):
    path = written(tmp_path, '"a b" "c" "y"\n' + rows('{k} "big {w}" {i}.5 '))
    assert "--separator space" in message_of(path)
    data, _ = loaded(path, reading=Reading.from_options(separator="space"))
    assert data.feature_names == ("a b", "c=big blue", "c=big green", "c=big red")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32"])
def test_wide_text_is_named_by_its_encoding(tmp_path, encoding):
    path = written(tmp_path, ("a,y\n" + rows("{k},{i}.5")).encode(encoding))
    assert f"use --encoding {encoding}" in message_of(path)
    assert loaded(path, reading=Reading.from_options(encoding=encoding))[0].num_data == 24


def test_a_new_row_of_known_levels_is_not_skipped_as_units(tmp_path):
    trained, _ = loaded(
        written(tmp_path, "c,y\nname,m\n" + rows("{w},{i}.5")), reading=Reading.from_options(skip_rows=["2"])
    )
    assert len(load_inputs(written(tmp_path, "c\nred\nblue\n"), trained.signature)) == 2
    assert len(load_inputs(written(tmp_path, "c\nname\nblue\n"), trained.signature)) == 1


def test_remarks_in_new_files_name_no_option(tmp_path):
    trained, _ = loaded(written(tmp_path, "a,y\n" + rows("{k},{i}.5")))
    with pytest.raises(UsageError, match=r"the first line is a comment.*remove it"):
        load_inputs(written(tmp_path, "# x\na,y\n1,2\n"), trained.signature)


@pytest.mark.parametrize("cells", ["2024-04-0{j}", "0{k}:30", "{w}"])
def test_an_exposure_is_a_number(tmp_path, cells):
    path = written(tmp_path, "a,e,y\n" + rows("{k}.5," + cells + ",{i}"))
    message = message_of(path, exposure="e")
    assert "column e: not a number" in message
    assert "an exposure is missing" not in message


def test_an_exposure_makes_few_counts_numbers_and_its_codes_are_questioned(tmp_path):
    path = written(tmp_path, "a,e,y\n" + rows("{k}.5,{k}.5,{j}").replace(",0.5,", ",0.7,") + "1,999,1\n1.5,999,2\n")
    data, notes = loaded(path, exposure="e")
    assert data.task == "regression"
    assert "--missing-code e=999" in notes
