"""Small models of the library whose linear layers are stored in the formats that releases use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dayzero.stages.twin.storage import Part, storage

from . import quantised, tiny

FORMS = {"fp8-block": ("fp8", 1, (128,)), "mxfp4": ("mxfp4", 2, (32,)), "nvfp4": ("nvfp4", 2, (16,)),
         "int4": ("int4", 8, (64,)), "gptq": ("int4", 8, (64,)), "gptq act-order": ("int4", 8, (64,)),
         "awq": ("int4", 8, (64,))}  # fmt: skip
"""Format -> its scheme, values of a stored item, sizes of groups or blocks that the config states."""
_FORM = {".weight": "weight", ".weight_packed": "packed", ".qweight": "packed_transposed", ".weight_scale_inv": "scale",
         ".weight_scale": "scale", ".scales": "scale", ".weight_scale_2": "global_scale", ".qzeros": "zero_point",
         ".input_scale": "global_scale", ".g_idx": "buffer", ".weight_shape": "buffer"}  # fmt: skip


def write(folder: Path, form: str, *, seed: int = 0, **changes: int) -> Path:
    """A dense model in that format, with groups in any order for `act-order`."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 4, "vocab_size": 300} | changes  # fmt: skip
    tiny.dense(folder, seed=seed, **sizes)
    return quantise(folder, form)


def quantise(folder: Path, form: str) -> Path:
    """Put the linear layers of a release's decoder into that format."""
    names = {name: path for path in folder.glob("*.safetensors") for name in load_file(path)}
    for path in set(names.values()):
        made: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(path).items():
            module = name.removesuffix(".weight")
            if name.endswith("_proj.weight"):
                made |= {f"{module}{end}": each for end, each in encoded(tensor.float().numpy(), form, module).items()}
            else:
                made[name] = tensor
        save_file(made, path, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        index.unlink()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantised.ALL[form.removesuffix(" act-order")]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def encoded(matrix: np.ndarray, form: str, module: str) -> dict[str, torch.Tensor]:
    """The tensors of one matrix by the ends of their names."""
    scheme, values, sizes = FORMS[form]
    shapes = quantised.stored("m", (matrix.shape[0], matrix.shape[1]), form.removesuffix(" act-order"))
    parts = {name[1:]: Part(_FORM[name[1:]], dtype, shape) for name, (shape, dtype) in shapes.items()}
    made = {end: _torch(items, shapes[f"m{end}"][1]) for end, items in
            storage(parts, scheme, values, sizes, module).encode(matrix).items()}
    if form == "gptq act-order":
        order = torch.randperm(matrix.shape[1], generator=torch.Generator().manual_seed(matrix.size))
        made[".g_idx"] = made[".g_idx"][order].contiguous()
    return made


def _torch(items: np.ndarray, dtype: str) -> torch.Tensor:
    kinds = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16}
    made = torch.from_numpy(np.ascontiguousarray(items))
    return made.view(kinds[dtype]) if dtype in kinds and made.element_size() == kinds[dtype].itemsize else made
