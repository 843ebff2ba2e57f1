"""Files of students: nothing is lost, damage is refused, and ONNX models give the same predictions."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from bnnzoo_distill import files, load, onnx_file

from bnnzoo import UsageError
from bnnzoo.errors import DamagedError


def test_a_saved_student_is_the_same(gap_student, class_student):
    for student in (gap_student, class_student):
        path = student.save("student.nc", force=True)
        loaded = load(path)
        assert loaded.signature == student.signature
        assert loaded.report == student.report
        assert loaded.about == student.about
        x = np.random.default_rng(0).normal(size=(20, *student.signature.shape)) * student.x_sd + student.x_mean
        assert loaded.predict(x).equals(student.predict(x))
        assert np.array_equal(loaded.log_prob(x, np.ones(20, int)), student.log_prob(x, np.ones(20, int)))


def test_load_imports_no_jax(gap_student):
    gap_student.save("student.nc")
    code = "import sys, bnnzoo_distill\nbnnzoo_distill.load('student.nc').mean([100.0])\nprint('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_files_are_not_replaced_and_have_known_extensions(gap_student):
    gap_student.save("student.nc")
    with pytest.raises(UsageError, match=r"student.nc: exists; use .*force=True"):
        gap_student.save("student.nc")
    with pytest.raises(UsageError, match=r"must end in \.nc or \.onnx"):
        gap_student.save("student.h5")


def test_other_files_are_refused(gap_student, gap_file, tmp_path):
    with pytest.raises(UsageError, match="no such student"):
        load("student.nc")
    with pytest.raises(UsageError, match="not a student"):
        load(gap_file)
    (tmp_path / "text.nc").write_text("mean,sd\n")
    with pytest.raises(UsageError, match="not a NetCDF file"):
        load("text.nc")
    (tmp_path / "a.onnx").touch()
    with pytest.raises(UsageError, match="onnxruntime"):
        load("a.onnx")


def test_every_damage_is_refused(gap_student, tmp_path):
    gap_student.save("student.nc")
    content = (tmp_path / "student.nc").read_bytes()
    x = np.linspace(70, 130, 9)[:, None]
    expected, rng, refused = gap_student.predict(x), np.random.default_rng(0), 0
    broken = [content[: len(content) // 2], b"", content[:-1]]
    for place in rng.integers(len(content), size=60):
        broken.append(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
    for damaged in broken:
        (tmp_path / "damaged.nc").write_bytes(damaged)
        try:
            student = load("damaged.nc")
        except UsageError:
            refused += 1
        else:  # some bytes of a file have no meaning
            assert student.predict(x).equals(expected)
            assert student.report == gap_student.report
    assert refused > 40


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text, arrays: text.update(format=2), "format 2"),
        (lambda text, arrays: text.update(layers=10**9), "number of layers"),
        (lambda text, arrays: text.update(layers=3), "do not match"),
        (lambda text, arrays: text.update(signature="{}"), "damaged"),
        (lambda text, arrays: text.pop("report"), "report"),
        (lambda text, arrays: arrays.update(weight_1=arrays["weight_1"][:, :3]), "shapes of the weights"),
        (lambda text, arrays: arrays.update(x_sd=np.full(1, np.nan)), "not finite"),
        (lambda text, arrays: arrays.pop("bias_0"), "bias_0"),
    ],
)
def test_contradictions_with_a_correct_digest_are_refused(gap_student, monkeypatch, change, problem):
    gap_student.save("student.nc")
    text, _, arrays = files._read(files.Path("student.nc"))
    values = json.loads(text)
    change(values, arrays)
    changed = json.dumps(values)
    monkeypatch.setattr(files, "_read", lambda path: (changed, files._digest(changed, arrays), arrays))
    with pytest.raises(DamagedError, match=problem):
        load("student.nc")


@pytest.mark.filterwarnings("ignore")
def test_onnx_models_give_the_same_predictions(gap_student, class_student):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    for student in (gap_student, class_student):
        path = student.save("student.onnx", force=True)
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        x = rng.normal(size=(50, *student.signature.shape)) * 3 * student.x_sd + student.x_mean
        names = [output.name for output in session.get_outputs()]
        assert names == (
            ["probabilities", "mutual_information"]
            if student.classifies
            else ["mean", "sd", "aleatoric_sd", "epistemic_sd"]
        )
        for name, values in zip(names, session.run(None, {"x": x.astype(np.float32)}), strict=True):
            expected = getattr(student, name)(x)
            assert values.shape == expected.shape
            assert np.allclose(values / student.y_sd, expected / student.y_sd, atol=1e-4), name
        assert json.loads(session.get_modelmeta().custom_metadata_map["report"]) == student.report


def test_onnx_needs_its_package(gap_student, monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install onnx"):
        gap_student.save("student.onnx")
    assert list(tmp_path.iterdir()) == []
