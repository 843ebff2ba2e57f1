"""Export of a student as an ONNX model, written with the package `onnx`.

The graph needs neither bnnzoo nor JAX. Its input `x` has the encoded inputs [row, feature] in original units. Its
outputs are float32: `mean`, `sd`, `aleatoric_sd` and `epistemic_sd` for regression, `probabilities` and
`mutual_information` for classification.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bnnzoo import UsageError
from bnnzoo.files.atomic import write_atomically
from bnnzoo_distill.student import Student

_OPSET = 17
_IR_VERSION = 9
"""Version of the ONNX file format; ONNX runtimes since 2023 can read this version."""


def check_installed(path: Path) -> None:
    """Check that the package onnx is installed.

    Raises:
        UsageError: if the package is missing.
    """
    if find_spec("onnx") is None:
        raise UsageError(
            f"{path}: requires the package onnx, which is not installed; type pip install onnx, or use a name that "
            "ends in .nc"
        )


def write(student: Student, path: Path) -> None:
    """Write a student as an ONNX model, completely or not at all.

    Raises:
        BnnzooError: if the file cannot be written.
    """
    import onnx  # pyright: ignore[reportMissingImports] (an extra)
    from onnx import TensorProto, helper, numpy_helper  # pyright: ignore[reportMissingImports]

    nodes, constants = [], []

    def constant(name: str, values: np.ndarray | float) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    clipped = node("Min", ["x", constant("x_high", student.x_high)], "below")
    clipped = node("Max", [clipped, constant("x_low", student.x_low)], "clipped")
    hidden = node("Sub", [clipped, constant("x_mean", student.x_mean)], "centred")
    hidden = node("Div", [hidden, constant("x_sd", student.x_sd)], "scaled")
    for i, (weight, bias) in enumerate(student.layers):
        names = [hidden, constant(f"weight_{i}", weight), constant(f"bias_{i}", bias)]
        hidden = node("Gemm", names, f"linear_{i}", transB=1)
        if i < len(student.layers) - 1:
            hidden = node("Mul", [hidden, node("Sigmoid", [hidden], f"gate_{i}")], f"hidden_{i}")
    ends = np.array([student.layers[-1][1].size - 1, 1] if student.classifies else [1, 1, 1], np.int64)
    constants.append(numpy_helper.from_array(ends, "sizes"))
    heads = [f"head_{i}" for i in range(len(ends))]
    nodes.append(helper.make_node("Split", [hidden, "sizes"], heads, axis=1))
    constants.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    if student.classifies:
        sizes = {"probabilities": ["row", student.signature.num_classes], "mutual_information": ["row"]}
        node("Softmax", ["head_0"], "probabilities", axis=1)
        root = node("Softplus", ["head_1"], "root")
        node("Squeeze", [node("Mul", [root, root], "square"), "axis"], "mutual_information")
    else:
        sizes = {name: ["row"] for name in ("mean", "sd", "aleatoric_sd", "epistemic_sd")}
        scale = constant("y_sd", student.y_sd)
        scaled = node("Mul", ["head_0", scale], "scaled_mean")
        scaled = node("Add", [scaled, constant("y_mean", student.y_mean)], "mean_column")
        node("Squeeze", [scaled, "axis"], "mean")
        for i, name in enumerate(("aleatoric_sd", "epistemic_sd"), 1):
            sd = node("Mul", [node("Exp", [f"head_{i}"], f"exp_{i}"), scale], f"sd_{i}")
            node("Squeeze", [sd, "axis"], name)
            node("Mul", [name, name], f"variance_{i}")
        node("Sqrt", [node("Add", ["variance_1", "variance_2"], "variance")], "sd")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "student",
        [value("x", TensorProto.FLOAT, ["row", student.signature.shape[0]])],
        [value(name, TensorProto.FLOAT, size) for name, size in sizes.items()],
        constants,
    )
    imports = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION, producer_name="bnnzoo-distill")
    texts = {"signature": student.signature.to_json(), "report": student.report, "about": student.about}
    helper.set_model_props(model, {name: v if isinstance(v, str) else json.dumps(v) for name, v in texts.items()})
    onnx.checker.check_model(model)
    write_atomically(path, lambda file: file.write(model.SerializeToString()))
