"""The child of `trial`: `python -m ... BACKEND` reads cases as JSON and writes one line before and after each. Needs
torch.

A call is made from the operator's schema: tensors of the recorded shapes with every length made small, zeros for
indices, defaults where there are any. Only an error that is about the dtype or a missing kernel counts as a failure;
any other means that the arguments were not right, and says nothing.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from dayzero.backends import backends
from dayzero.backends.dispatch import Overload, fitting
from dayzero.schema import from_json, to_json

from .trial import Case, Outcome

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "i64": torch.int64,
          "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
_REFUSED = re.compile(r"not implemented for '|Could not run '|no kernel image|not supported for |unsupported dtype",
                      re.IGNORECASE)
_INDICES = re.compile(r"ind(ex|ices)|offs|bin")
_NO_GUESS = object()


def attempt(case: Case, device: str) -> str:
    """`works`, why the device refuses, or empty where no overload could be called."""
    dtype = DTYPES.get(case.dtype) or getattr(torch, case.dtype, None)
    if not isinstance(dtype, torch.dtype):
        return ""
    refused = ""
    for overload in fitting(case.op, len(case.inputs)):
        try:
            arguments = _arguments(case, overload, dtype, device)
            if arguments is None:
                continue
            _function(overload)(**arguments)
        except NotImplementedError as error:
            refused = _line(error)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            refused = _line(error) if _REFUSED.search(str(error)) else refused
        else:
            return "works"
    return refused


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _function(overload: Overload) -> Any:
    namespace, _, name = overload.name.partition("::")
    op, _, which = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), which or "default")


def _arguments(case: Case, overload: Overload, dtype: torch.dtype, device: str) -> dict[str, Any] | None:
    """Arguments by name; None where one cannot be guessed."""
    lengths = small_lengths(case)
    shapes = iter([tuple(lengths[length] for length in shape) for shape in case.inputs])
    made: dict[str, Any] = {}
    for argument in overload.schema.arguments:
        kind = str(argument.type)
        if "Tensor" in kind:
            value = _tensors(argument.name, kind, shapes, dtype, device)
        elif argument.has_default_value() and argument.name not in ("dtype", "device"):
            continue
        else:
            value = _guess(argument.name, kind, case, lengths, dtype, device)
        if value is _NO_GUESS:
            return None
        made[argument.name] = value
    return made


def small_lengths(case: Case) -> dict[int, int]:
    """Length -> a small one: up to 4 as it is, others multiples of 8 in order of size, so that equal ones stay
    equal."""
    large = sorted({length for shape in (*case.inputs, *case.outputs) for length in shape if length > 4})
    return {length: length for length in range(5)} | {length: 8 * (place + 1) for place, length in enumerate(large)}


def _tensors(name: str, kind: str, shapes: Iterator[tuple[int, ...]], dtype: torch.dtype, device: str) -> Any:
    if kind.startswith("List"):
        return [_tensor(name, shape, dtype, device) for shape in shapes]
    shape = next(shapes, None)
    if shape is None:
        return None if kind.startswith("Optional") else _NO_GUESS
    return _tensor(name, shape, dtype, device)


def _tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    if _INDICES.search(name):
        dtype = torch.int32 if name.startswith("offs") else torch.int64
    elif name in ("mask", "condition"):
        dtype = torch.bool
    return torch.zeros(shape, device=device).to(dtype)


def _guess(name: str, kind: str, case: Case, lengths: dict[int, int], dtype: torch.dtype, device: str) -> Any:
    """A value for an argument that is no tensor."""
    output = [lengths[length] for length in case.outputs[0]] if case.outputs else []
    by_name = {"dtype": dtype, "device": torch.device(device), "size": output, "sizes": output, "dim": 0, "k": 1,
               "end": 4, "n": 4, "diagonal": 0, "pad": [0, 0], "repeats": [1] * max(1, len(output))}
    if name in by_name and not (kind.startswith("Optional") and name not in ("dtype", "device")):
        value = by_name[name]
        return [value] if kind.startswith("List") and not isinstance(value, list) else value
    if kind.startswith("Optional"):
        return None
    return {"number": 1, "int": 1, "float": 1.0, "bool": False, "SymInt": 1}.get(kind, _NO_GUESS)


def main() -> None:
    """Try the cases of standard input on the backend, or torch's device type, of the first argument."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name = sys.argv[1]
    device = str(backends().get(name).device()) if name in backends() else name
    for index, case in enumerate(from_json(sys.stdin.buffer.read(), list[Case])):
        for result in ("started", None):
            told = attempt(case, device) if result is None else result
            sys.stdout.buffer.write(to_json(Outcome(index=index, result=told)) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    with torch.no_grad():
        main()
