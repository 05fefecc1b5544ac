"""The extension in this process: loaded, its device type named, its kernels registered. Needs torch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from dayzero.errors import NotPossible, UsageError

from .build import built
from .settings import Settings

DEVICE_TYPE = "simulated"
_KEY = "PrivateUse1"
_UNNAMED = "privateuseone"
_LOCK = threading.Lock()
_DTYPES = {"bf16": "BFloat16", "f16": "Half", "f32": "Float", "f64": "Double", "i64": "Long", "i32": "Int",
          "i16": "Short", "i8": "Char", "u8": "Byte", "bool": "Bool"}
"""Our name of a dtype -> torch's in C++."""


def load(settings: Settings) -> Any:
    """The extension's functions. The first call builds it, if need be, and sets the devices up. Raises NotPossible
    where another device type has torch's one place for strangers."""
    with _LOCK:
        if not is_loaded():
            named = torch._C._get_privateuse1_backend_name()
            if named not in (_UNNAMED, DEVICE_TYPE):
                raise NotPossible(f"torch holds one device type of others in a process, which is {named}",
                                  "use the simulated accelerator in a process of its own")
            torch.ops.load_library(str(built()))  # type: ignore[no-untyped-call]
            _begin(settings)
    return torch.ops.dayzero_simulated


def is_loaded() -> bool:
    """Whether this process has it."""
    return hasattr(torch, DEVICE_TYPE) and hasattr(torch.ops.dayzero_simulated, "begin")


def _begin(settings: Settings) -> None:
    functions = torch.ops.dayzero_simulated
    functions.begin(settings.devices, settings.memory)
    rename_privateuse1_backend(DEVICE_TYPE)
    functions.implement(_overloads(Path(__file__).with_name("operators.txt").read_text()))
    torch._register_device_module(DEVICE_TYPE, _module(settings))  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend()
    functions.fall_back(settings.fallback)
    deny(settings.denied)


def deny(names: Iterable[str]) -> None:
    """Let the devices have all their operators but these. Raises UsageError for one that they cannot be without."""
    wanted = list(names)
    for name in wanted:
        op, _, dtype = name.partition("/")
        if dtype and dtype not in _DTYPES:
            raise UsageError(f"cannot deny {name}: {dtype} is no dtype", f"known: {', '.join(_DTYPES)}")
        if op.replace(".", "::", 1) in _BASIC:
            raise UsageError(f"cannot deny {name}: without it a device holds no tensor", "deny one that computes")
        if not _has_kernel(op):
            raise UsageError(f"cannot deny {name}: the device has no kernel of its own for it",
                             "dayzero trace RELEASE --backend simulated: those that are native")
    torch.ops.dayzero_simulated.deny([_full(name) for name in wanted])


_BASIC = ("aten::empty", "aten::empty_strided", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::resize_",
          "aten::_local_scalar_dense", "aten::set_", "aten::as_strided", "aten::view", "aten::_reshape_alias",
          "aten::unfold", "aten::view_as_real", "aten::view_as_complex", "aten::convolution_overrideable",
          "aten::_fused_sdp_choice")


def _has_kernel(op: str) -> bool:
    """Of an operator as a whole, or of one overload."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = op.replace(".", "::", 1)
    packet, _, overload = op.removeprefix("aten.").partition(".")
    return op.startswith("aten.") and any(
        has(each, _KEY) for each in ([name] if overload else _names().get(packet, ())))


@cache
def _names() -> dict[str, list[str]]:
    """Operator of aten -> its overloads as the dispatcher writes them."""
    found: dict[str, list[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            found.setdefault(name.removeprefix("aten::").partition(".")[0], []).append(name)
    return found


def _full(name: str) -> str:
    op, _, dtype = name.partition("/")
    return op.replace(".", "::", 1) + (f"/{_DTYPES[dtype]}" if dtype else "")


def _overloads(text: str) -> list[str]:
    """All overloads of the listed operators that the host has a kernel for."""
    listed = {word for line in text.splitlines() if not line.startswith("#") for word in line.split()}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return sorted(name.removeprefix("aten::") for op in listed for name in _names().get(op, ())
                  if has(name, "CPU") and not has(name, _KEY))


def _module(settings: Settings) -> ModuleType:
    """What torch looks for under `torch.simulated`."""
    accelerator: Any = torch.accelerator
    functions = torch.ops.dayzero_simulated
    module: Any = ModuleType(f"torch.{DEVICE_TYPE}", "The simulated accelerator of dayzero.")

    def set_fraction(fraction: float, device: int = 0) -> None:
        functions.limit(device, int(settings.memory * fraction + 0.5))

    module.__dict__.update(
        is_available=lambda: True, is_initialized=lambda: True, init=lambda: None, _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False, device_count=lambda: settings.devices,
        current_device=accelerator.current_device_index, set_device=accelerator.set_device_index,
        synchronize=accelerator.synchronize, empty_cache=accelerator.empty_cache, device=accelerator.device_index,
        memory_allocated=accelerator.memory_allocated, max_memory_allocated=accelerator.max_memory_allocated,
        memory_reserved=accelerator.memory_reserved, mem_get_info=accelerator.get_memory_info,
        reset_peak_memory_stats=accelerator.reset_peak_memory_stats, current_stream=accelerator.current_stream,
        set_per_process_memory_fraction=set_fraction, get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        manual_seed=torch.default_generator.manual_seed, manual_seed_all=lambda seed: None,
        is_bf16_supported=lambda: True, get_rng_state=lambda device=0: torch.get_rng_state(),
        set_rng_state=lambda state, device=0: torch.set_rng_state(state), get_device_name=lambda device=0: DEVICE_TYPE,
        get_device_properties=lambda device=0: _Properties(settings.memory))
    return module  # type: ignore[no-any-return]


class _Properties:
    """What torch's modules tell about a device."""

    name = DEVICE_TYPE

    def __init__(self, memory: int) -> None:
        self.total_memory = memory
