"""How many sequences fit: by what the engine allocates for them, where that is known."""

import msgspec
import pytest

from dayzero.data.allocation import allocation
from dayzero.placement.cache import kinds, unified
from dayzero.resolve import resolve_target
from dayzero.schema import Layout
from dayzero.stages.plan import plan
from dayzero.stages.read import read

LAYOUT = Layout(tp=8, pp=2)
STAGES = ((11, 36), (13, 33))
"""Latent and linear layers of the two stages of 47 and 46 layers: 24 and 69 in all."""


@pytest.fixture(scope="module")
def card(root):
    return read(root / "examples" / "cards" / "kimi-k3.toml").model


def planned(card, root, length, engine="vllm"):
    target = resolve_target(root / "examples" / "targets" / "h200-2x8.toml")
    half = length // 2
    workload = msgspec.structs.replace(target.workload, input_tokens=half, output_tokens=length - half)
    facts = target.engine.facts
    if engine != "vllm":
        facts = msgspec.structs.replace(facts, unified_pages=None)
    known = msgspec.structs.replace(target.engine, name=engine, facts=facts)
    found = plan(card, msgspec.structs.replace(target, layouts=(LAYOUT,), engine=known, workload=workload))
    return found.candidates[0], target.cluster.usable_bytes


def room(card, candidate, usable, each):
    """Sequences in what is left of the fullest stage; `each`: bytes of one for (latent, linear) layers."""
    rooms = []
    for stage, (latent, linear) in zip(candidate.bytes_per_stage, STAGES, strict=True):
        fixed = sum(size for cause, size in stage.items() if cause not in ("kv_cache", "state", "logits"))
        logits = card.vocab_size * (2 + 4) if stage["logits"] else 0
        rooms.append((usable - fixed) // (each(latent, linear) + logits))
    return min(rooms)


@pytest.mark.parametrize("length", [256, 9216, 131_072])
def test_a_sequence_takes_whole_pages_of_every_group(card, root, length):
    # Kimi-K3 at TP 8: a state of 96 / 8 heads is 814,080 bytes, an entry 1,152: pages of 768 tokens, 884,736 bytes.
    # Groups of as many layers as there are latent ones: one of these, and for linear layers four or three of a page.
    candidate, usable = planned(card, root, length)
    allocated = room(card, candidate, usable,
                     lambda latent, linear: (-(-length // 768) + -(-linear // latent)) * latent * 884_736)
    assert candidate.max_sequences == allocated > 0


def test_short_sequences_are_dearer_than_what_they_need(card, root):
    known, _ = planned(card, root, 256)
    unknown, usable = planned(card, root, 256, engine="none of those known")
    # states and a few tokens: 32.6 MB on the first stage; with pages 48.7 MB
    assert unknown.max_sequences == room(card, unknown, usable,
                                         lambda latent, linear: linear * 814_080 + latent * 1152 * 256)
    assert known.max_sequences < 0.65 * unknown.max_sequences


def test_the_card_has_the_layers_that_are_counted_here(card, root):
    rules = allocation("vllm")
    assert rules is not None
    for (latent, linear), layers in zip(STAGES, (range(47), range(47, 93)), strict=True):
        found = kinds(card, LAYOUT, rules, layers, "auto")
        assert [(kind.layers, kind.entry, kind.state) for kind in found] == [(latent, 1152, 0), (linear, 0, 814_080)]
        assert unified(found, rules).page_bytes == 884_736 and unified(found, rules).tokens == 768
