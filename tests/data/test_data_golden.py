"""What a person reads of a bad table: every message, in one file to be looked at (tests/golden/bad_tables.txt).

`python tests/data/test_data_golden.py` writes it anew.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from test_data_load import BAD_TABLES

from bnnzoo.data import load, load_inputs, load_like
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import spelling_of

GOLDEN = Path(__file__).parents[1] / "golden" / "bad_tables.txt"
IDS = "".join(f"id{i},{i},{i % 7}.5\n" for i in range(101))
ROWS = "".join(f"{i},{i % 3}.5,7,{i % 5}.25\n" for i in range(20))

TRAINING: dict[str, tuple[str, dict[str, object]]] = {
    "missing in several columns": ("a,b,y\n1,,3\n,NA,4\n2,5,6\n", {}),
    "missing text": ("colour,y\nred,3\n,4\nblue,6\n", {}),
    "missing target": ("a,y\n1,3\n2,\n", {"missing": "median"}),
    "all missing": ("a,b,y\n1,,3\n2,,4\n", {"missing": "median"}),
    "no row complete": ("a,b,y\n1,,3\n,2,4\n", {"missing": "drop"}),
    "two kinds of fault": ("a,b,y\n1,x,3\n,2,4\n3,4,5\n", {}),
    "thousands": ('a,y\n"1,234",1\n"5,678",2\n', {}),
    "per cent": ("a,y\n12%,1\n15%,2\n", {}),
    "currency": ("a,y\n$12.50,1\n$8,2\n", {}),
    "day first": ("day,y\n31.12.2023,1\n01.01.2024,2\n", {}),
    "no such day": ("day,y\n2024-02-30,1\n2024-02-01,2\n2024-02-02,3\n", {}),
    "a zone here and there": ("day,y\n2024-02-01 10:00Z,1\n2024-02-01 11:00,2\n", {}),
    "too many levels": ("name,a,y\n" + IDS, {}),
    "text as a target of regression": ("a,y\n1,good\n2,bad\n", {"task": "regression"}),
    "dates as a target": ("a,y\n1,2024-01-01\n2,2024-01-02\n", {}),
    "one class": ("a,y\n1,good\n2,good\n", {}),
    "names as a target": ("a,b,name\n" + "".join(f"{i},1.5,id{i}\n" for i in range(101)), {}),
    "dropped target": ("a,b,y\n1,2,3\n4,5,6\n", {"target": ("y",), "drop": ("y",)}),
    "all dropped": ("a,y\n1,2\n", {"drop": ("a,y",)}),
    "unknown columns": ("width,height,y\n1,2,3\n", {"drop": ("widht",), "columns": ("hieght",)}),
    "two columns of one name": ("a,a=red,y\nred,1,2\nblue,3,4\n", {}),
}
WARNINGS = {"constant and identifier": "id,a,b,y\n" + ROWS}
NEW = {
    "unseen level": "colour,size,y\nred,1,3\ngreen,2,4\n",
    "missing cell": "colour,size,y\nred,1,3\nblue,,4\n",
    "text in numbers": "colour,size,y\nred,big,3\nblue,2,4\n",
    "column gone": "size,y\n1,3\n",
    "unseen class": "colour,size,y\nred,1,4\n",
}


def written(folder: Path, content: str | bytes) -> str:
    path = folder / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def messages(folder: Path) -> str:
    """All of them, each under its case."""
    results: list[str] = []

    def add(case: str, function, *arguments, **options) -> None:
        with warnings.catch_warnings(record=True) as caught, spelling_of("options"):
            warnings.simplefilter("always", BnnzooWarning)
            try:
                function(*arguments, **options)
                messages_shown = [f"warning: {warning.message}" for warning in caught]
            except UsageError as error:
                messages_shown = str(error).splitlines()
        results.append("\n".join([f"[{case}]", *(line.replace(f"{folder}/", "") for line in messages_shown)]))

    for case, (content, _) in BAD_TABLES.items():
        add(case, load, written(folder, content))
    for case, (content, options) in TRAINING.items():
        add(case, load, written(folder, content), **options)
    for case, content in WARNINGS.items():
        add(case, load, written(folder, content))
    add("a frame of lists", load, pd.DataFrame({"a": [[1], [2]], "y": [1.0, 2.0]}))
    like = load(written(folder, "colour,size,y\nred,1,2\nblue,2,1\nred,3,1\n"), task="classification").signature
    for case, content in NEW.items():
        add(f"predict: {case}", load_inputs, written(folder, content), like)
        add(f"evaluate: {case}", load_like, written(folder, content), like)
    return "\n\n".join(results) + "\n"


def test_messages_about_bad_tables_match_the_golden_file(tmp_path):
    assert messages(tmp_path) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [[], ["--missing", "median"]])
def test_bad_tables_are_refused_without_jax_and_at_once(tmp_path, options):
    path = written(tmp_path, TRAINING["two kinds of fault"][0])
    arguments = ["sample", "mlp", "nuts", "--data", path, "-o", str(tmp_path / "run.nc"), *options]
    code = "import sys; from bnnzoo import cli; code = cli.run(sys.argv[1:]); sys.exit(('jax' in sys.modules) or code)"
    process = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert process.returncode == 2, process.stderr
    assert "column b: not a number ('x')" in process.stderr
    assert ("column a: an empty cell" in process.stderr) == (not options)
    assert not (tmp_path / "run.nc").exists()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        GOLDEN.write_text(messages(Path(name)), encoding="utf-8")
