"""What torch's dispatcher has registered for a device type, and what torch declares for those it was built without.
Needs torch."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .base import STATUSES, Known, Status

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_DECLARED = "packaged/ATen/native/native_functions.yaml"
_ALLOCATES = "aten::empty.memory_format"
"""What every device that torch can use implements."""
_GENERATED = ("CPU", "CUDA")
"""Keys for which torch generates the kernels of element-wise operators that only state their inner loop."""
_MODULES = {"transformers": ("transformers.integrations.moe",)}
"""Namespace of operators -> modules that register them when they are imported."""


def dispatch_key(name: str) -> str | None:
    """Key of a device type; None: torch knows no such type."""
    try:
        return str(torch._C._dispatch_key_for_device(name))
    except RuntimeError:
        return None


def has_device(name: str) -> bool:
    """Whether tensors can be made on a device of that type now."""
    if name == "meta":
        return False  # nothing is computed there
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        return False
    return True


class Overload(NamedTuple):
    """One overload of an operator."""

    name: str
    """As the dispatcher writes it: aten::add.Tensor."""
    schema: Any
    """Its schema."""


@cache
def overloads(op: str) -> tuple[Overload, ...]:
    """Overloads of `aten.add` that return what they compute; empty: torch has no such operator."""
    namespace, _, name = op.partition(".")
    for module in _MODULES.get(namespace, ()):
        if find_spec(namespace) is not None:
            importlib.import_module(module)
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None or not hasattr(packet, "overloads"):
        return ()
    every = [Overload(f"{namespace}::{name}{'' if each == 'default' else f'.{each}'}", getattr(packet, each)._schema)
             for each in packet.overloads()]
    return tuple(each for each in every if each.name in _dispatched()
                 and not any(argument.is_out for argument in each.schema.arguments))


def _dispatched() -> frozenset[str]:
    """All operators of the dispatcher; others only exist for scripts."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def fitting(op: str, tensors: int | None = None) -> tuple[Overload, ...]:
    """The overloads that take so many tensors; all of them where none does, or nobody counted."""
    every = overloads(op)
    return tuple(each for each in every if tensors is not None and _takes(each.schema, tensors)) or every


def _takes(schema: Any, tensors: int) -> bool:
    least = most = 0
    for argument in schema.arguments:
        kind = str(argument.type)
        if "Tensor" not in kind:
            continue
        if kind.startswith("List"):
            return tensors >= least
        most += 1
        least += kind == "Tensor"
    return least <= tensors <= most


class Dispatcher:
    """Registrations for one key, or declarations where torch was built without it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.built = torch._C._dispatch_has_kernel_for_dispatch_key(_ALLOCATES, key)
        self.fallback = torch._C._dispatch_has_backend_fallback(getattr(torch._C.DispatchKey, key))
        self.source = (f"dispatcher of torch {torch.__version__}" if self.built or self.fallback
                       else f"declared by torch {torch.__version__}, which is built without {key}")

    @property
    def knows(self) -> bool:
        """Whether there is anything to look up."""
        return self.built or self.fallback or any(self.key in entry["keys"] for entry in declarations().values())

    def known(self, op: str, tensors: int | None = None) -> Known:
        """The best status among the overloads that a call with so many tensors can be."""
        fit = fitting(op, tensors)
        if not fit:
            return Known(status="unknown", how="the installed torch has no such operator")
        order = list(STATUSES)
        overload, status = max(((each, self._status(each.name)) for each in fit), key=lambda pair: order.index(pair[1]))
        return Known(status=status, how=f"{overload.name}: {self.source}")

    def _status(self, name: str) -> Status:
        found = self._registered(name) if self.built or self.fallback or not name.startswith("aten::") else (
            _declared_status(name, self.key))
        if found != "none":
            return found
        if self.fallback:
            return "fallback"
        return "compiled" if _decomposes(name) else "none"

    def _registered(self, name: str) -> Status:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if has(name, self.key):
            return "native"
        return "composite" if any(has(name, key) for key in _COMPOSITE) and self._result_there(name) else "none"

    def _result_there(self, name: str) -> bool:
        """Whether the form of an operator that writes into a given result is there too, if there is one: torch's own
        code for the other form may be no more than a call of it."""
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        _, _, overload = name.rpartition("::")[2].partition(".")
        out = f"{name}_out" if overload else f"{name}.out"
        return out not in _dispatched() or any(has(out, key) for key in (self.key, *_COMPOSITE))


def _decomposes(name: str) -> bool:
    from torch._decomp import decomposition_table

    namespace, _, rest = name.partition("::")
    op, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload or "default") in decomposition_table


def _declared_status(name: str, key: str) -> Status:
    """By the declarations: a kernel of the key, by itself or through the structured one that it delegates to."""
    entries = declarations()
    entry = entries.get(name.removeprefix("aten::"))
    if entry is None:
        return "unknown"
    keys = set(entry["keys"])
    delegate = entries.get(entry["delegate"])
    if key in keys or (delegate is not None and key in delegate["keys"]):
        return "native"
    composite = not keys or keys & set(_COMPOSITE) or (delegate is not None and not keys)
    return "composite" if composite else "none"


@cache
def declarations() -> dict[str, dict[str, Any]]:
    """Operator with overload -> its dispatch keys and the operator that it delegates to, from torch's own list. Empty
    where torch does not come with it."""
    spec = find_spec("torchgen")
    file = Path(spec.origin).parent / _DECLARED if spec and spec.origin else None
    if file is None or not file.is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for block in re.split(r"^- func: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name = block.partition("(")[0].strip()
        delegate = re.search(r"^  structured_delegate: (\S+)", block, re.MULTILINE)
        dispatch = re.search(r"^  dispatch:\n((?:    .*\n?|\s*#.*\n|\n)*)", block, re.MULTILINE)
        lines = re.findall(r"^    ([\w, ]+):", dispatch[1], re.MULTILINE) if dispatch else []
        keys = [key.strip() for line in lines for key in line.split(",")]
        if re.search(r"^  ufunc_inner_loop:", block, re.MULTILINE):  # kernels are generated from one inner loop
            keys += _GENERATED
        found[name] = {"keys": tuple(keys),
                       "delegate": delegate[1] if delegate else ""}
    return found
