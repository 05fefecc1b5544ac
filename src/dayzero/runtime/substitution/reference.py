"""The reference: a release in one process, in f32 or another precision, with plain operators where it has a choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dayzero.backends import host
from dayzero.errors import NotPossible
from dayzero.runtime.assignment import BYTES
from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.recording.kinds import kinds
from dayzero.runtime.sharding.install import put
from dayzero.schema.golden import Kind
from dayzero.units import format_bytes


@dataclass(frozen=True)
class Reference:
    """A model with weights from the files, ready to run, or one layer of it."""

    config: Any
    """The library's, or the release's own."""
    watched: nn.Module
    """What runs with its weights: the model, or one layer."""
    name: str
    """Its path; empty: the model."""
    kinds: Mapping[str, Kind]
    """Of all modules of the model."""
    forward: Callable[[torch.Tensor], None]
    """Runs it for token ids [1, length]."""
    read: int
    """Bytes that were read for it."""

    @property
    def text_config(self) -> Any:
        """Of the part of the model that reads text."""
        get = getattr(self.config, "get_text_config", None)
        return get() if callable(get) else self.config

    @property
    def modules(self) -> dict[str, nn.Module]:
        """{path: module} of what has its weights."""
        return {".".join(filter(None, (self.name, path))): module for path, module in self.watched.named_modules()}


@contextlib.contextmanager
def reference(root: Path, dtype: str = "f32", *, own: bool = False, threads: int = 4, simple: bool = True
              ) -> Iterator[Reference]:
    """The whole model; `simple`: with plain operators. Raises NotPossible when it cannot be built or does not fit into
    this machine's memory, ReleaseError when the files do not fill it."""
    built = blueprint(root, dtype, own=own)
    need, have = built.parameters * BYTES[dtype], host.available_memory()
    if need > have:
        raise NotPossible(f"the reference takes {format_bytes(need)} in {dtype} and {format_bytes(have)} are free here",
                          "check it layer by layer with --layers, or take a machine with more memory")
    model: Any = built.model
    with kernels(model, own):
        read = fill(model, Checkpoint(root, model), threads=threads)
        if simple:
            plain(model)

        def forward(ids: torch.Tensor) -> None:
            model(input_ids=ids, use_cache=False)
        yield Reference(built.config, model, "", kinds(model), forward, read)


@contextlib.contextmanager
def kernels(model: nn.Module, own: bool) -> Iterator[None]:
    """What stands in for kernels that the release's own code calls and that this machine lacks."""
    if not own:
        yield
        return
    from dayzero.runtime import stand_ins

    with stand_ins.fallbacks(model):
        yield


def fill(model: nn.Module, checkpoint: Checkpoint, prefix: str = "", *, threads: int = 4) -> int:
    """Read parameters and stored buffers of the model whose names begin so, from their byte ranges, and close the
    files; bytes read. Raises ReleaseError when one is in no file or has another shape there."""
    try:
        names = [name for name in model.state_dict() if name.startswith(prefix)]
        checkpoint.check(frozenset(names))
        parameters = dict(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        owner_of = {name: first.setdefault(id(each), name) for name, each in parameters.items() if name in names}
        read = [name for name in names if owner_of.get(name, name) == name]
        dtype = next((each.dtype for each in parameters.values() if each.is_floating_point()), torch.float32)
        tensors = checkpoint.read({name: {} for name in read}, dtype=dtype, threads=threads)
        made: dict[int, nn.Parameter] = {}
        for name in names:
            put(model, name, tensors[owner_of.get(name, name)], made, trained=False)
        return sum(checkpoint.bytes(name) for name in read)
    finally:
        checkpoint.close()


def plain(model: Any) -> None:
    """Attention and experts as sums of plain operators, where the model leaves a choice: every step of them can then be
    changed on trial, and masks are tensors."""
    for choose in ("set_attn_implementation", "set_experts_implementation"):
        with contextlib.suppress(AttributeError, ValueError, KeyError, ImportError, NotImplementedError):
            getattr(model, choose)("eager")
