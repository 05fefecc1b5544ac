"""The example card of 2.78 T parameters on the example targets: what its makers' serving recipes need, too."""

import msgspec
import pytest

from dayzero.resolve import resolve_target
from dayzero.schema import Layout
from dayzero.stages.plan import plan
from dayzero.stages.read import read


@pytest.fixture(scope="module")
def card(root):
    return read(root / "examples" / "cards" / "kimi-k3.toml").model


def planned(card, root, name):
    return plan(card, resolve_target(root / "examples" / "targets" / f"{name}.toml"))


def test_one_node_of_eight_is_too_small(card, root):
    found = planned(card, root, "h200-1x8")
    assert found.best is None and found.candidates
    # 1,560,860,324,864 bytes over 8 devices are 195.1 GB each; 0.9 * 141 GB may be used.
    assert min(one.bytes_per_device["weights"] for one in found.candidates) > 141e9


def test_two_nodes_are_enough(card, root):
    best = planned(card, root, "h200-2x8").best
    assert best is not None and best.layout.world_size == 16
    assert 1_560_860_324_864 / 16 < best.bytes_per_device["weights"] < 0.9 * 141e9
    assert best.max_sequences >= 4
    assert "shared_experts" in best.decode_seconds and "attention over cache" in best.decode_seconds


def test_every_rejected_layout_has_a_rule(card, root):
    found = planned(card, root, "h200-2x8")
    assert all(one.rule and one.message for one in found.rejected)
    assert found.evaluated >= 30


def test_causes_add_up_to_the_time_of_a_token_also_where_experts_are_spread_widely(card, root):
    asked = resolve_target(root / "examples" / "targets" / "h200-2x8.toml")
    asked = msgspec.structs.replace(
        asked, cluster=msgspec.structs.replace(asked.cluster, nodes=4), layouts=(Layout(tp=2, ep=32, dp=16),),
        workload=msgspec.structs.replace(asked.workload, concurrency=8))
    (one,) = plan(card, asked).candidates
    assert sum(one.decode_seconds.values()) == pytest.approx(one.tpot_s.value)


def test_what_the_model_or_the_engine_was_not_made_for_is_said(card, root):
    asked = resolve_target(root / "examples" / "targets" / "h200-2x8.toml")
    long = msgspec.structs.replace(asked, workload=msgspec.structs.replace(asked.workload, input_tokens=2_000_000))
    assert any("longer than the 1,048,576" in note for note in plan(card, long).notes)
    assert not any("longer than" in note for note in plan(card, asked).notes)
    other = resolve_target(root / "examples" / "targets" / "ascend910b-2x8.toml")
    assert any("weights in mxfp4" in note for note in plan(card, other).notes)
    assert not any("weights in mxfp4" in note for note in plan(card, asked).notes)
