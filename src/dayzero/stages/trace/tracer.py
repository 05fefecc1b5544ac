"""The stage: build a release's model without weights, run prefill and decode without values, and say what ran."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from dayzero.data.operators import operators
from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.library import LIBRARY_ERRORS
from dayzero.schema import OpCall, OpGraph, Phase, Release
from dayzero.schema.graph import PhaseName

if TYPE_CHECKING:
    import torch

    from .capture import Recorder


def trace(release: Release, *, batch: int = 1, tokens: int = 64, context: int = 64,
          progress: Progress = SILENT) -> OpGraph:
    """Operators of a prefill of `batch` sequences of `tokens` tokens, and of one decode step of `batch` sequences that
    have `context` tokens in the cache. No weights are needed and none of the release's code is executed.

    Raises NotPossible without torch or without a class for the model, UsageError for sizes below one, StageError when
    the model's code fails in prefill. A decode that fails is recorded in `missing`, and its phase is left out.
    """
    for name, size in (("batch", batch), ("tokens", tokens), ("context", context)):
        if size < 1:
            raise UsageError(f"{name} is {size}", f"give a {name} of at least 1")
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")
    progress.update("building the model without weights", 0, 3)
    from . import capture, construct, layers

    start = time.perf_counter()
    with construct.quiet():
        model, source = construct.build(release)
        routed = max(((kind.experts, kind.top_k) for kind in release.model.feed_forwards.values()), default=(0, 0))
        recorder = capture.Recorder(model, operators(), *routed)
        phases = _run(model, recorder, batch, tokens, context, progress)
    calls = recorder.operators()
    return OpGraph(
        parameters=construct.parameters(model), phases={phase.name: _totals(phase, calls) for phase in phases},
        operators=calls, modules=layers.module_tree(model), control_flow=recorder.control_flow(),
        missing=recorder.missing(), layer_kinds=layers.layer_kinds(model, release.model), source=source,
        seconds=round(time.perf_counter() - start, 3))


def _run(model: torch.nn.Module, recorder: Recorder, batch: int, tokens: int, context: int,
         progress: Progress) -> list[Phase]:
    """Trace the phases; their totals are still zero."""
    import torch

    from . import capture

    phases = [_phase("prefill", batch, tokens, 0)]
    with torch.inference_mode(), recorder:
        progress.update("tracing prefill", 1, 3)
        recorder.phase, recorder.tokens = "prefill", batch * tokens
        try:
            out = capture.prefill(model, batch, tokens)
        except LIBRARY_ERRORS as error:
            raise StageError(f"prefill cannot be traced: {recorder.describe(error)}",
                             "the model may need more than token ids, or the library's class has a fault",
                             log=str(error)) from error
        progress.update("tracing decode", 2, 3)
        recorder.phase, recorder.tokens = None, batch * context
        try:
            if context != tokens:
                out = capture.prefill(model, batch, context)
            recorder.phase, recorder.tokens = "decode", batch
            capture.decode(model, batch, out.past_key_values)
        except LIBRARY_ERRORS as error:
            recorder.give_up("decode", error)
            return phases
    return [*phases, _phase("decode", batch, 1, context)]


def _phase(name: PhaseName, batch: int, tokens: int, context: int) -> Phase:
    return Phase(name=name, batch=batch, tokens=tokens, context=context, flops=0, bytes=0, operators=0)


def _totals(phase: Phase, calls: Iterable[OpCall]) -> Phase:
    own = [call for call in calls if call.phase == phase.name]
    return msgspec.structs.replace(
        phase, flops=sum(call.flops for call in own), bytes=sum(call.bytes for call in own),
        operators=sum(call.count for call in own))
