"""Dumps as mindstudio-probe reads them: the same tensors, the rows of all passes together, in f32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.faults.judges import Values, together, values


def export(reference: Path, run: Path, folder: Path) -> None:
    """Write what both dumps have of each module's inputs and outputs to `golden` and `target` in the folder."""
    order, golden = values(reference, inputs=True)
    _, made = values(run, inputs=True)
    for side, part in (("golden", 0), ("target", 1)):
        _write(folder / side, order, golden, made, part)


def _write(folder: Path, order: list[tuple[str, str, str]], golden: Values, made: Values, part: int) -> None:
    data: dict[str, Any] = {}
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True, exist_ok=True)
    for key in order:
        pair = together(golden, made, key)
        if pair is None:
            continue
        module, what, _ = key
        name = f"Module.{module or 'root'}.Module.forward.0"
        entry = data.setdefault(name, {"input_args": [], "input_kwargs": {}, "output": []})
        side = "input_args" if what == "input" else "output"
        number = len(entry[side])
        file = f"{name}.{'input' if what == 'input' else 'output'}.{number}.pt"
        entry[side].append(_told(pair[part], file))
        torch.save(torch.from_numpy(np.ascontiguousarray(pair[part], np.float32)), store / file)
    (folder / "dump.json").write_text(json.dumps(
        {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": str(store), "data": data}))
    (folder / "stack.json").write_text("{}")
    (folder / "construct.json").write_text(json.dumps(dict.fromkeys(data)))


def _told(value: np.ndarray[Any, Any], file: str) -> dict[str, Any]:
    numbers = value.astype(np.float64)
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(value.shape), "Max": float(numbers.max()),
            "Min": float(numbers.min()), "Mean": float(numbers.mean()), "Norm": float(np.linalg.norm(numbers)),
            "requires_grad": False, "data_name": file}
