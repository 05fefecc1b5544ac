"""What the columns of serving tables mean where they state the same ranks twice, or ranks that cannot be."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.plan_models import dense, sparse

from dayzero.data import device
from dayzero.errors import NotPossible
from dayzero.schema import Layout
from dayzero.score_layouts import Stated, in_flight, inside, launched, notes, number_in, plant, possible

ROW = {"mode": "agg", "tp": "8.0", "ep": "1.0", "dp": "", "num_gpus": "8.0", "concurrency": "64.0", "notes": ""}


@pytest.mark.parametrize(("change", "layout"), [
    ({}, Layout(tp=8)),
    ({"ep": "8"}, Layout(tp=8, ep=8)),
    # id=..._tp8_ep8_1499; moe_tp=8 beside tp 64: the ways that experts are split, times ep
    ({"tp": "64", "ep": "8", "num_gpus": "64", "notes": "id=x_tp8_ep8_1499; moe_tp=8"}, Layout(tp=8, ep=8)),
    ({"tp": "64", "ep": "8", "num_gpus": "64", "notes": "id=x_cfg7; moe_tp=8"}, Layout(tp=8, ep=8)),
    ({"tp": "1", "dp": "64", "ep": "8", "notes": "id=x_cfg7; moe_tp=8"}, Layout(dp=8, ep=8)),
    # heads that 3 does not divide: attention on each device
    ({"tp": "3", "ep": "1"}, Layout(dp=3, ep=3)),
    ({"tp": "1", "notes": "moe_tp=2"}, Layout(tp=2, attention_tp=1)),
    ({"ep": "8", "concurrency": "80", "notes": "moe_tp=1; batch_size=10"}, Layout(tp=8, ep=8, attention_tp=1)),
    ({"tp": ""}, Layout(tp=8)),
])
def test_a_layout_is_read_so_that_it_is_possible(change: dict[str, str], layout: Layout) -> None:
    assert plant({**ROW, **change}, sparse(), device("b200")).decode == layout


def test_a_model_without_experts_has_no_expert_groups() -> None:
    assert plant({**ROW, "ep": "8"}, dense(), device("h100")).decode == Layout(dp=8)  # 9 heads


def test_more_requests_than_the_batch_are_those_of_more_copies() -> None:
    assert plant({**ROW, "tp": "1", "notes": "batch_size=16"}, dense(), device("h100")).copies == 4


def test_what_a_point_was_started_with_is_as_stated_or_published() -> None:
    row = {**ROW, "model": "meta-llama/Llama-3.1-70B", "precision": "fp4", "tp": "4"}
    made = plant(row, dense(), device("b200"))
    found = launched(row, made, (1024, 1024, 64.0), device("b200"), ("trtllm", ""))
    assert (found.options.holds, found.options.tokens, found.draft) == (20, 16384, 0) and found.published
    stated = {**row, "notes": "batch_wait_timeout_iters=7"}
    own = launched(stated, made, (1024, 1024, 64.0), device("b200"), ("trtllm", ""))
    assert own.options.holds == 7 and not own.published
    other = launched(row, made, (1024, 1000, 64.0), device("b200"), ("trtllm", ""))
    assert other.options.holds is other.options.tokens is None and not other.published


@pytest.mark.parametrize(("cell", "draft"), [("", 1), ("nan", 1), ("mtp", 1), ("no", 0), ("none", 0)])
def test_a_point_that_says_so_does_not_speculate_though_the_published_launch_does(cell: str, draft: int) -> None:
    row = {**ROW, "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "tp": "4", "spec_decode": cell}
    made = plant(row, dense(), device("b200"))
    assert launched(row, made, (1024, 1024, 64.0), device("b200"), ("trtllm", "1.2.0rc6.post3")).draft == draft


def test_workers_apart_are_in_the_notes() -> None:
    text = ("prefill_num_workers=2 prefill_tp_size=4 prefill_moe_ep_size=4 decode_num_workers=3 decode_tp_size=1 "
            "decode_attention_dp_size=8 decode_moe_ep_size=8")
    made = plant({**ROW, "mode": "disagg", "notes": text}, sparse(), device("b200"))
    assert made.apart and (made.prefillers, made.decoders) == (2, 3)
    assert (made.prefill, made.decode) == (Layout(tp=4, ep=4), Layout(dp=8, ep=8))
    assert plant({**ROW, "mode": "disagg", "notes": "decode_tp_size=4"}, sparse(), device("b200")).decoders is None


def test_a_latent_cache_is_not_copied_to_more_than_a_node() -> None:
    """Where links join more than 8 devices, and experts are not said to be whole."""
    model, joined = sparse(), device("gb200")
    name = next(iter(model.attentions))
    latent_ = msgspec.structs.replace(model, attentions={name: msgspec.structs.replace(
        model.attentions[name], kind="latent", heads=32)}, layers=tuple(
            msgspec.structs.replace(one, attention=name) for one in model.layers))
    assert possible(Stated(tp=16, dp=1, ep=1, expert_tp=0), latent_, inside(joined)) == Layout(dp=16, ep=16)
    assert possible(Stated(tp=16, dp=1, ep=16, expert_tp=0), latent_, inside(joined)) == Layout(tp=16, ep=16)
    assert possible(Stated(tp=16, dp=1, ep=1, expert_tp=0), latent_) == Layout(tp=16)
    # nor is an expert split over more than a node
    assert possible(Stated(tp=1, dp=16, ep=1, expert_tp=16), latent_) == Layout(dp=16, ep=16)


def test_requests_under_way_are_stated_or_batches() -> None:
    text = "decode_batch_size=64 decode_num_workers=3 decode_attention_dp_size=2"
    assert in_flight({**ROW, "notes": text}) == 64
    assert in_flight({**ROW, "concurrency": "", "notes": text}) == 384
    assert in_flight({**ROW, "concurrency": "", "notes": "batch_size=7"}) == 7
    assert in_flight({**ROW, "concurrency": ""}) is None


def test_cells() -> None:
    assert notes("a=3; b=4.0 c=x") == {"a": 3, "b": 4}
    assert number_in({"tp": "nan"}, "tp") is None
    for cell in ("many", "-2", "inf"):
        with pytest.raises(NotPossible):
            number_in({"tp": cell}, "tp")
    with pytest.raises(NotPossible):
        plant({**ROW, "tp": "", "ep": "", "num_gpus": ""}, dense(), device("h100"))
