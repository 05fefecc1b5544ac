"""Heads that are padded, and blocks that break all the same."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.plan_models import dense, family

from dayzero.data import engine
from dayzero.placement import findings
from dayzero.schema import Finding, Layout, ModelSpec

PADS = msgspec.structs.replace(engine("any"), head_padding="multiple_of_tp")


def quantised(heads: int, width: int, block: int, role: str = "attention.q_up") -> ModelSpec:
    """Projections of so many heads, in blocks."""
    model = dense()
    changed = msgspec.structs.replace(model.attentions["a"], kind="latent", heads=heads)
    projection = msgspec.structs.replace(family(role, (heads * width, 1536), 30, "heads", 0), block=block)
    others = tuple(one for one in model.families if not one.role.startswith("attention."))
    return msgspec.structs.replace(model, attentions={"a": changed}, families=(*others, projection))


def padding(model: ModelSpec, **how: int) -> list[Finding]:
    return [found for found in findings(model, Layout(**how), PADS) if found.rule == "head-padding"]


def test_padded_heads_that_break_blocks() -> None:
    # 64 heads of 128 + 64 on 6 ranks: 2,112 columns, 16.5 blocks of 128 (sgl-project/sglang#8243)
    found, = padding(quantised(64, 192, 128), tp=6)
    assert (found.severity, found.subject) == ("error", "num_attention_heads")
    assert {"padded": 66, "needed": 72, "local": 2112, "block": 128}.items() <= found.facts.items()


@pytest.mark.parametrize(("heads", "width", "block", "tp"), [
    (128, 192, 128, 6),  # 22 heads of 192 are 33 blocks
    (64, 192, 128, 8),  # nothing is padded
    (64, 256, 128, 6),  # every head is whole blocks
    (64, 192, 1, 6),  # not in blocks
])
def test_padded_heads_that_do_not(heads: int, width: int, block: int, tp: int) -> None:
    assert padding(quantised(heads, width, block), tp=tp) == []


def test_attention_on_fewer_ranks_and_engines_that_do_not_pad_or_pad_blocks() -> None:
    model = quantised(64, 192, 128)
    assert padding(model, tp=6, attention_tp=2) == []
    assert "head-padding" not in {found.rule for found in findings(model, Layout(tp=6), engine("any"))}
    blocks = msgspec.structs.replace(PADS, block_padding=True)
    found = [found for found in findings(model, Layout(tp=6), blocks) if found.rule == "head-padding"]
    assert [one.severity for one in found] == ["warning"]
