"""How a row of a table of training says that a model was trained: sizes, degrees, batch, precision, and in words what
is recomputed and shared."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dayzero.data.stacks import Stack, stack
from dayzero.data.training import grouped_since
from dayzero.errors import NotPossible
from dayzero.schema import Layout
from dayzero.stages.plan.training import Recompute, Setup

_SCHEMES = (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8-mx", "mxfp8"), ("fp8", "fp8"), ("fp16", "f16"),
            ("bf16", "bf16"))
_FACTS = {"hidden": r"\bh(?:idden(?:_size)?)?[ =:]*(\d+)\b", "layers": r"\b(?:L|layers)[ =:]*(\d+)\b",
          "heads": r"\b(?:a|heads)[ =:]*(\d+)\b", "vocab": r"\bvocab(?:_size)?[ =:]*(\d+)\b"}
_RECOMPUTE = re.compile(r"recompute=([\w+]+)|\b(full|selective) (?:AC\b|recompute|activation)", re.IGNORECASE)
_SHARED = re.compile(r"\bFSDP ?\d*(?:=(\d+))?", re.IGNORECASE)
_ZERO = re.compile(r"\bZeRO-?([0-3])\b", re.IGNORECASE)


def stated_facts(text: str) -> dict[str, int]:
    """Sizes of a decoder that a text states: `h1024 L24 a16`, `hidden=1024, layers=24, heads=16, vocab=51200`."""
    found = {name: re.search(pattern, text) for name, pattern in _FACTS.items()}
    return {name: int(match[1]) for name, match in found.items() if match}


def number(row: Mapping[str, str], key: str) -> int | None:
    """The whole number in a cell; None: it is blank. Raises NotPossible for what is none."""
    cell = (row.get(key) or "").strip().lower()
    if cell in ("", "nan", "none"):
        return None
    try:
        value = float(cell)
    except ValueError:
        raise NotPossible(f"{key} is not a number: {cell[:40]}", "") from None
    if not 0 < value < 2**40 or value != int(value):
        raise NotPossible(f"{key} is not a sensible number: {cell[:40]}", "")
    return int(value)


def needed(row: Mapping[str, str], key: str) -> int:
    """The whole number in a cell. Raises NotPossible when there is none."""
    value = number(row, key)
    if value is None:
        raise NotPossible(f"{key} is not stated", "")
    return value


def stated_setup(row: Mapping[str, str]) -> Setup:
    """How a row was trained. Raises NotPossible for what is not stated and nothing can stand for."""
    told = f"{row['source']} {row['model']} {row['notes']}"
    scheme = next((scheme for word, scheme in _SCHEMES if word in row["precision"].lower()), "")
    sequence, local = needed(row, "seq"), needed(row, "mbs")
    if not scheme:
        raise NotPossible("precision is not stated", "")
    layout, usual = stated_layout(row), stack(told)
    micro = max(1, local // layout.pp) if usual.stages_divide_batch and layout.pp > 1 else local
    batch = number(row, "gbs") or local * layout.dp // layout.cp
    old = scheme == "f16"
    chunks = number(row, "vp") or (2 if "interleaved" in told.lower() else 1)
    return Setup(
        layout=layout, sequence=sequence, micro_batch=micro, global_batch=batch, scheme=scheme,
        recompute=stated_recompute(told, usual), zero=stated_zero(told, old, layout, usual),
        virtual=chunks if layout.pp > 1 else 1,
        schedule="zero-bubble" if re.search(r"dualpipe|zero[- ]?bubble", told, re.IGNORECASE) else "1f1b",
        sequence_parallel=not old or "sequence parallel" in told.lower(), fused_attention=not old,
        frozen=bool(re.search(r"\blora\b", told, re.IGNORECASE)),
        gradient_bytes=4 if re.search(r"grad\w*[ _=]*(?:in[ _])?fp32", told, re.IGNORECASE) else usual.gradient_bytes,
        optimiser_bytes=usual.optimiser_bytes, logit_bytes=usual.logit_bytes,
        grouped=stated_date(told) >= grouped_since(),
        drafts=not re.search(r"w/o mtp|no mtp", told, re.IGNORECASE))


def stated_layout(row: Mapping[str, str]) -> Layout:
    """The degrees; dp, where it is blank, from the devices; tables count cp beside dp."""
    tp, pp, ep, cp = (number(row, key) or 1 for key in ("tp", "pp", "ep", "cp"))
    devices_used, replicas = number(row, "num_gpus"), number(row, "dp")
    if replicas is None:
        if devices_used is None:
            raise NotPossible("neither dp nor the number of devices is stated", "")
        replicas = devices_used // (tp * pp * cp)
    return Layout(tp=tp, pp=pp, ep=ep, dp=replicas * cp, cp=cp)


def stated_recompute(told: str, usual: Stack) -> Recompute:
    """What a text says is computed again: all, parts of layers, or nothing, also if it says nothing."""
    found = _RECOMPUTE.search(told)
    word = (found[1] or found[2]).lower() if found else "none"
    if word == "selective" and usual.selective == "products":
        return "products"
    return "full" if word == "full" else "none" if word == "none" else "selective"


def stated_date(told: str) -> str:
    """Year and month of the software that a text names in brackets, `[26.06 ...`; of none the newest."""
    found = re.search(r"\[(\d\d\.\d\d)\b", told)
    return found[1] if found else "99"


def stated_zero(told: str, old: bool, layout: Layout, usual: Stack) -> int:
    """What replicas share: as stated, else what the stack does; with f16, from before that was usual, nothing."""
    shared, zero = _SHARED.search(told), _ZERO.search(told)
    if zero:
        return int(zero[1])
    if shared and shared[1] not in ("0", "1"):
        return 3
    return 0 if old else usual.zero_pipelined if layout.pp > 1 else usual.zero
