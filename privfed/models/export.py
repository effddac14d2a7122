"""Export the shared part of a published model, with the statement of its privacy; no heads.

    .safetensors   the arrays by name, of any run         metadata: schema, columns, privacy
    .onnx          x (N, d) -> features (N, k),           runs with linear heads; same metadata
                   base (N, C)
    .pt2, .pt      the same as a torch.export program     read by torch.export.load(...).module()

x is an encoded row: numbers within their bounds as clip((v - centre) / spread, -8, 8), 0 if missing
or if spread is 0, and categories one-hot, in the order of `columns`. A user of a table predicts
with base, features, x and its own columns, as `privfed.models.table_heads` says; without a table it
predicts features V with its own head V, and there is no base.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privfed import __version__
from privfed.foundation.atomic_files import write_output
from privfed.foundation.errors import ConfigError
from privfed.models.published_model import Published
from privfed.models.table_model import TableModel
from privfed.privacy.statement import check_may_leave, exposes, label

Metadata = dict[str, str]


def metadata(published: Published) -> Metadata:
    """Return the statements that accompany the arrays."""
    result, schema = published.result, published.schema
    about = {
        "made_by": f"privfed {__version__}",
        "algo": str(result["algo"]),
        "users": str(result["n_users"]),
    }
    table = (
        {} if schema is None else {"schema": schema.to_yaml(), "columns": json.dumps(schema.names)}
    )
    return {**about, **label(result), **table}


def to_safetensors(published: Published) -> bytes:
    """Return the arrays in the format safetensors.

    It is the length of a header, the header in JSON, and the arrays in order, little-endian.

    Raises:
        ConfigError: an array has a type that the format does not know.
    """
    kinds = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8"}
    header: dict[str, Any] = {"__metadata__": metadata(published)}
    content, end = [], 0
    for name, array in sorted(
        published.arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])
    ):
        kind = kinds.get(array.dtype.str[1:])
        if kind is None:
            raise ConfigError(
                f"{published.folder}: {name} is of {array.dtype}, for which safetensors has no name"
            )
        content.append(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [end, end + len(content[-1])],
        }
        end += len(content[-1])
    text = json.dumps(header).encode()
    # Arrays start at a multiple of their item size.
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *content])


def to_onnx(published: Published) -> bytes:
    """Return the model as an ONNX graph in single precision."""
    model = published.model
    onnx = needed("onnx", "privfed[export]")
    helper = onnx.helper
    nodes = [helper.make_node("MatMul", ["x", "U"], ["features"])]
    constants, sizes, extra = {"U": model.U}, {"features": model.U.shape[1]}, {}
    if isinstance(model, TableModel):
        nodes += [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("Add", ["xw", "intercept"], ["base"]),
        ]
        constants |= {"w": model.w[1:], "intercept": model.w[0]}
        sizes["base"] = model.w.shape[1]
        extra = {
            name: json.dumps(published.arrays[name].tolist())
            for name in ("centre", "spread", "scale")
        }

    def numbers(name: str, size: int) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", size])

    tensors = [
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in constants.items()
    ]
    outputs = [numbers(name, size) for name, size in sizes.items()]
    graph = helper.make_graph(
        nodes, "shared", [numbers("x", len(model.U))], outputs, tensors, doc_string=str(__doc__)
    )
    # These versions are old enough for every runtime in use.
    whole = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="privfed"
    )
    helper.set_model_props(whole, metadata(published) | extra)
    onnx.checker.check_model(whole, full_check=True)
    return bytes(whole.SerializeToString())


def to_torch(published: Published) -> bytes:
    """Return the model as a torch.export program, which needs no class of privfed."""
    model = published.model
    torch = needed("torch", "privfed[networks]")

    class Shared(torch.nn.Module):  # type: ignore[name-defined]
        """x (N, d) -> features (N, k) and, for a table, base (N, C); all arrays are buffers."""

        def __init__(self) -> None:
            super().__init__()
            for name, array in published.arrays.items():
                self.register_buffer(name, torch.tensor(array))

        def forward(self, x: Any) -> Any:
            x = x.to(self.U.dtype)
            return (
                (x @ self.U, self.w[0] + x @ self.w[1:])
                if isinstance(model, TableModel)
                else x @ self.U
            )

    example = (torch.zeros(2, len(model.U)),)
    program = torch.export.export(
        Shared(), example, dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}
    )
    content = io.BytesIO()
    torch.export.save(
        program, content, extra_files={"privfed.json": json.dumps(metadata(published))}
    )
    return content.getvalue()


def needed(name: str, extra: str) -> Any:
    """Return an optional package.

    Args:
        name: name of the package.
        extra: what to install if it is missing.

    Raises:
        ConfigError: the package is missing.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this format needs {name}: pip install '{extra}'") from error


FORMATS: dict[str, Callable[[Published], bytes]] = {
    ".safetensors": to_safetensors, ".onnx": to_onnx, ".pt2": to_torch, ".pt": to_torch,
}  # fmt: skip


def export(published: Published, path: Path, simulation: bool = False) -> None:
    """Write the model in the format that the name of the file says.

    Args:
        published: content of a run's folder.
        path: file whose name ends in one of FORMATS.
        simulation: whether to write a simulation on a real table, which protects nobody.

    Raises:
        ConfigError: the format is unknown, the file cannot be written, or the model is a
            simulation on a real table.
    """
    exposed = exposes(published.result, published.real)
    check_may_leave(str(published.folder), exposed, simulation)
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: its name must end in {', '.join(FORMATS)}")
    write_output("--to", path, FORMATS[path.suffix](published))
