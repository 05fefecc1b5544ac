"""Settings under which a release may be run in this process, and a recording of such a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dayzero.backends.base import Chosen
from dayzero.backends.optimizations import optimizations
from dayzero.errors import NotPossible, StageError, UsageError, did_you_mean
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.library import LIBRARY_ERRORS, cause
from dayzero.runtime.recording import Recording, record

from .compiled import compiled
from .reference import reference

ATTENTION, NORM, LINEAR, EXPERTS = "attention", "norm", "linear", "experts"
DTYPE, COMPILE, BATCH, CHUNK, DECODE = "dtype", "compile", "batch", "chunk", "decode"
CACHE, LAYOUT = "cache", "layout"
"""The second is not of this process: ranks are started for it."""
PAGED, HOST, DISK = "paged", "host", "disk"
NAMES = {
    DTYPE: "bf16, f16 or f32", ATTENTION: "eager, sdpa or flash", NORM: "plain or fused", LINEAR: "library or onednn",
    EXPERTS: "eager, grouped_mm or batched_mm", COMPILE: "a backend of torch.compile, such as inductor",
    BATCH: "sequences that run at the same time", CHUNK: "tokens of a part of the prefill",
    DECODE: "last tokens, one by one with a cache", LAYOUT: "such as tp=2,pp=1",
    CACHE: "paged: the serving engine's, in blocks; host or disk: and it leaves and comes back after each step",
}  # fmt: skip
"""What may be varied -> what its values are."""
_COUNTS = (BATCH, CHUNK, DECODE)
Settings = Mapping[str, str]


def checked(name: str, value: str) -> tuple[str, str]:
    """Raises UsageError for a setting that there is not."""
    if name not in NAMES:
        raise UsageError(f"there is no setting {name!r}", f"{did_you_mean(name, NAMES)}vary one of {', '.join(NAMES)}")
    if not value or (name in _COUNTS and (not value.isdecimal() or int(value) < 1)) or (
            name == DTYPE and value not in DTYPES) or (name == CACHE and value not in (PAGED, HOST, DISK)):
        raise UsageError(f"{name}={value}: there is no such value", f"give {NAMES[name]}")
    return name, value


@dataclass(frozen=True)
class Plain:
    """One sequence after the other, whole, with plain operators."""

    root: Path
    dtype: str
    own: bool = False


def recorded(plain: Plain, settings: Settings, tokens: Sequence[Sequence[int]], folder: Path) -> None:
    """A golden dump of the release under these settings; for all others it is run as `plain`.

    Raises NotPossible when it cannot be run so.
    """
    try:
        if CACHE in settings:
            _served(plain, settings, tokens, folder)
            return
        with reference(plain.root, settings.get(DTYPE, plain.dtype), own=plain.own) as truth:
            model: Any = truth.watched
            with _chosen(model, settings), torch.no_grad(), record(model, folder, root=plain.root) as recording:
                _run(model, tokens, settings, recording)
    except (*LIBRARY_ERRORS, NotImplementedError, StageError) as error:
        told = ", ".join(f"{name}={value}" for name, value in settings.items()) or "plain"
        raise NotPossible(f"the release does not run with {told}: {cause(error)}", "vary something else") from error


def _served(plain: Plain, settings: Settings, tokens: Sequence[Sequence[int]], folder: Path) -> None:
    from .served import recorded_served

    tier = settings[CACHE]
    recorded_served(plain.root, plain.own, settings.get(DTYPE, plain.dtype), tokens, folder,
                    lambda model: _chosen(model, settings), tier="" if tier == PAGED else tier,
                    chunk=int(settings.get(CHUNK, 0)), decode=int(settings.get(DECODE, 0)))


@contextlib.contextmanager
def _chosen(model: Any, settings: Settings) -> Iterator[None]:
    """A model whose operators are those of the settings, and compiled if they say so. Raises NotPossible afterwards
    when it should have been compiled and nothing was."""
    wanted = Chosen(**{name: settings[name] for name in (ATTENTION, NORM, LINEAR) if name in settings})
    with optimizations(wanted, model), compiled(model, settings.get(COMPILE, "")):
        if EXPERTS in settings:
            model.set_experts_implementation(settings[EXPERTS])
        yield


def _run(model: Callable[..., Any], tokens: Sequence[Sequence[int]], settings: Settings, recording: Recording) -> None:
    """All sequences, some at a time, padded on the right."""
    size, decode = int(settings.get(BATCH, 1)), int(settings.get(DECODE, 0))
    chunk = int(settings.get(CHUNK, 0))
    for first in range(0, len(tokens), size):
        group = tokens[first:first + size]
        recording.expect(range(first, first + len(group)))
        length = max(map(len, group))
        ids = torch.zeros((len(group), length), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, each in enumerate(group):
            ids[row, :len(each)], mask[row, :len(each)] = torch.tensor(list(each)), 1
        if not decode and not chunk:
            model(input_ids=ids, attention_mask=mask, use_cache=False)
            continue
        _with_cache(model, ids, mask, chunk, decode)


def _with_cache(model: Callable[..., Any], ids: torch.Tensor, mask: torch.Tensor, chunk: int, decode: int) -> None:
    """The prefill in parts, then tokens one by one."""
    from dayzero.runtime.recording.rank import cache_of

    length = ids.shape[1]
    prefill = max(1, length - decode)
    ends = [*range(chunk or prefill, prefill, chunk or prefill), *range(prefill, length + 1)]
    start = 0
    cache: dict[str, Any] = {}
    for end in ends:
        output = model(input_ids=ids[:, start:end], attention_mask=mask[:, :end], use_cache=True, **cache)
        cache, start = cache_of(output), end
