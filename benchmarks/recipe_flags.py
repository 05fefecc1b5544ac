"""What the launch flags of serving engines say: layout, share of memory, longest sequence, step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dayzero.schema import Layout


@dataclass(frozen=True)
class Launch:
    """One engine process group of a recipe."""

    part: str
    """prefill, decode, or what the recipe calls it; empty: there is only one."""
    layout: Layout
    """Its layout."""
    utilization: float | None
    """Share of memory that is stated."""
    length: int | None
    """Longest sequence."""
    tokens: int | None
    """Prompt tokens of a step."""


_FLAG = re.compile(r"(?<!\S)--?([a-zA-Z][\w.-]*)(?:[= ]+(?!-)([^\s'\"]+))?")
_SHORT = {"tp": "tensor-parallel-size", "tp-size": "tensor-parallel-size", "dp": "data-parallel-size",
          "dp-size": "data-parallel-size", "pp": "pipeline-parallel-size", "pp-size": "pipeline-parallel-size",
          "ep": "expert-parallel-size", "ep-size": "expert-parallel-size", "dcp-size": "decode-context-parallel-size",
          "mem-fraction-static": "gpu-memory-utilization", "context-length": "max-model-len",
          "chunked-prefill-size": "max-num-batched-tokens"}


def launches(engine: str, flags: str) -> Iterator[Launch]:
    """Every launch of a recipe. Nothing for flags that state no layout."""
    parts = json.loads(flags) if flags.startswith("{") else {"": flags}
    for part, given in parts.items():
        found = _table(given) if isinstance(given, dict) else _text(engine, str(given))
        if found:
            yield Launch(part=part, **found)


def _words(text: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for name, value in _FLAG.findall(text):
        name = name.replace("_", "-")
        words[_SHORT.get(name, name)] = value or "true"
    for name, value in re.findall(r"\b(TP|PP|DP|EP)(\d+)\b", text):
        words.setdefault(_SHORT[name.lower()], value)
    return words


def _number(words: dict[str, str], name: str) -> int | None:
    value = words.get(name, "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _text(engine: str, text: str) -> dict[str, Any] | None:
    words = _words(text)
    degree = {key: _number(words, f"{name}-parallel-size") for key, name in
              (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("ep", "expert"))}
    if not (degree["tp"] or degree["dp"]):
        return None
    tp, pp, dp = degree["tp"] or 1, degree["pp"] or 1, degree["dp"] or 1
    context = _number(words, "decode-context-parallel-size") or 1
    if "enable-dp-attention" in words:  # the dp groups are within tp
        layout = _within(tp, pp, dp, _experts(words, degree["ep"], tp), "moe-dense-tp-size" in words)
    else:
        ep = tp * dp if "enable-expert-parallel" in words else _experts(words, degree["ep"], tp)
        layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, cp=context)
    share = words.get("gpu-memory-utilization", "")
    return {"layout": layout, "utilization": float(share) if re.fullmatch(r"0?\.\d+", share) else None,
            "length": _number(words, "max-model-len"), "tokens": _number(words, "max-num-batched-tokens")}


def _experts(words: dict[str, str], stated: int | None, tp: int) -> int:
    """Expert parallel: as stated; an all-to-all backend implies all ranks."""
    return stated or (tp if words.get("moe-a2a-backend", "none") != "none" else 1)


def _within(tp: int, pp: int, dp: int, ep: int, dense_alone: bool) -> Layout:
    """Groups of tp / dp ranks with attention of their own. Where dense blocks are not split beyond a group either it is
    data parallel with experts over all."""
    if dense_alone and ep == tp:
        return Layout(tp=tp // dp, pp=pp, dp=dp, ep=ep)
    return Layout(tp=tp, pp=pp, ep=ep, attention_tp=tp // dp)


def _table(given: dict[str, Any]) -> dict[str, Any] | None:
    if "tensor_parallel_size" not in given:
        return None
    tp, pp = int(given["tensor_parallel_size"]), int(given.get("pipeline_parallel_size") or 1)
    ep = max(1, int(given.get("moe_expert_parallel_size") or 1))
    layout = _within(tp, pp, tp, ep, True) if given.get("enable_attention_dp") else Layout(tp=tp, pp=pp, ep=ep)
    return {"layout": layout, "utilization": None, "length": given.get("max_seq_len"),
            "tokens": given.get("max_num_tokens")}
