"""Rules that are derived from code, and what ranks hold by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import guest
from tests.support.thread_ranks import ThreadGroup, together

from dayzero.errors import NotPossible
from dayzero.runtime.building.constructing import constructing
from dayzero.runtime.sharding import Mesh, Place, derive, install, plan_shares
from dayzero.runtime.sharding.rules import Rules
from dayzero.schema import Layout


def _library(**changes: Any) -> Any:
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(**{
        "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "num_experts": 4,
        "num_experts_per_tok": 2, "decoder_sparse_step": 1, "tie_word_embeddings": False, **changes})
    with constructing(values=True):
        return AutoModelForCausalLM.from_config(config).eval()


def _said(rules: Rules, name: str) -> tuple[str, int, tuple[int, ...]]:
    rule = rules.cut[name]
    return rule.kind, rule.along.dim, rule.along.segments


def test_a_class_of_the_library() -> None:
    model = _library()
    rules, layer = derive(model, Layout(tp=2)), "model.layers.1"
    assert _said(rules, f"{layer}.self_attn.q_proj.weight") == ("column", 0, (64,))
    assert _said(rules, f"{layer}.self_attn.v_proj.weight") == ("column", 0, (32,))
    assert _said(rules, f"{layer}.self_attn.o_proj.weight") == ("row", 1, (64,))
    assert _said(rules, f"{layer}.mlp.experts.gate_up_proj") == ("expert width", 1, (32, 32))
    assert _said(rules, f"{layer}.mlp.experts.down_proj") == ("expert width", 2, (32,))
    assert _said(rules, "lm_head.weight") == ("vocabulary", 0, (96,)) and rules.vocabulary == "lm_head"
    assert "topk" in rules.whole[f"{layer}.mlp.gate.weight"] or "softmax" in rules.whole[f"{layer}.mlp.gate.weight"]
    assert [(each.name, each.count, each.packed) for each in rules.experts] == [
        (f"model.layers.{number}.mlp.experts", 4, True) for number in range(2)]
    assert all(each.is_meta for each in model.parameters())


def test_at_least_what_the_library_has_a_plan_for() -> None:
    """The plan of this family cuts attention, experts, embedding and head (its `base_model_tp_plan`)."""
    import re

    model = _library()
    rules = derive(model, Layout(tp=2))
    planned = [re.compile(re.escape(name).replace(r"\*", r"\d+") + r"(\.weight)?$")
               for name, rule in model.config.base_model_tp_plan.items() if rule.startswith(("colwise", "rowwise"))]
    cut = {name.removeprefix("model.") for name in rules.cut}
    named = [name.removeprefix("model.") for name, _ in model.named_parameters()]
    wanted = [name for name in named if any(each.match(name) for each in planned)]
    assert wanted and set(wanted) <= cut


def test_packed_experts_are_looked_at_with_what_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the parts that a trial of other weights gave them, which would depend on which trial was the last; and
    ranks that derive the same have the same digest."""
    from torch.utils._pytree import tree_leaves

    from dayzero.runtime.sharding import rules
    from dayzero.runtime.sharding.sharded import is_sharded

    given: list[Any] = []
    packed = rules._packed
    monkeypatch.setattr(rules, "_packed", lambda module, call, ranks: given.append(call) or packed(module, call, ranks))
    model = _library(num_hidden_layers=1)
    found = derive(model, Layout(tp=2))
    assert len(given) == 1 and not any(is_sharded(each) for each in tree_leaves(given))
    assert given[0][0][0].shape == (16, 64)  # the states of all tokens
    assert found.digest == derive(model, Layout(tp=2)).digest != derive(model, Layout(tp=4)).digest


@pytest.mark.slow
def test_code_of_a_release(tmp_path: Path) -> None:
    guest.write(tmp_path / "own")
    with constructing(values=True):
        model = guest.model(tmp_path / "own")
    rules, delta, full = derive(model, Layout(tp=2)), "model.layers.1", "model.layers.3"
    # Query, key and value come out of one matrix and go through one convolution.
    assert _said(rules, f"{delta}.attention.qkv.weight") == ("column", 0, (64, 64, 64))
    assert _said(rules, f"{delta}.attention.conv.weight") == ("with its parts", 0, (64, 64, 64))
    assert _said(rules, f"{delta}.attention.rate") == ("with its parts", 0, (4,))
    assert _said(rules, f"{delta}.attention.decay.weight") == ("column", 0, (4,))
    assert _said(rules, f"{full}.attention.sink") == ("with its parts", 0, (4,))
    assert _said(rules, f"{full}.attention.out.weight") == ("row", 1, (64,))
    assert _said(rules, f"{full}.mlp.experts.5.gate_up.weight") == ("expert width", 0, (32, 32))
    assert _said(rules, f"{full}.mlp.shared.gate_up.weight") == ("column", 0, (96, 96))
    assert (rules.experts[0].name, rules.experts[0].packed) == ("model.layers.1.mlp.experts", False)


def test_key_heads_fewer_than_ranks_are_on_all() -> None:
    rules = derive(_library(), Layout(tp=4))
    assert _said(rules, "model.layers.0.self_attn.q_proj.weight") == ("column", 0, (64,))
    assert "model.layers.0.self_attn.k_proj.weight" in rules.whole


def test_shares_of_all_ranks_are_the_whole() -> None:
    model = _library()
    layout = Layout(tp=2, dp=2, ep=4)
    rules = derive(model, layout)
    shares = [plan_shares(model, layout, rank, rules=rules) for rank in range(4)]
    name = "model.layers.0.mlp.experts.down_proj"
    assert [each.cuts[name] for each in shares] == [{0: ((number, number + 1),)} for number in range(4)]
    assert [each.cuts["model.layers.0.self_attn.q_proj.weight"] for each in shares] == [
        {0: ((0, 32),)}, {0: ((32, 64),)}] * 2
    wide = plan_shares(model, Layout(tp=4, ep=2), 3)
    assert wide.cuts["model.layers.0.mlp.experts.gate_up_proj"] == {0: ((2, 4),), 1: ((16, 32), (48, 64))}
    row = next(each for each in wide.rows if each.name.endswith("0.mlp.gate.weight"))
    assert row.rule == "whole" and row.why and row.share == 1.0


def test_experts_of_a_list_are_held_by_one_part_of_the_ranks(tmp_path: Path) -> None:
    guest.write(tmp_path / "own")
    with constructing(values=True):
        model = guest.model(tmp_path / "own")
    first, second = (plan_shares(model, Layout(dp=2, ep=2), rank).cuts for rank in range(2))
    name = "model.layers.1.mlp.experts.{}.down.weight"
    assert name.format(3) in first and name.format(4) not in first
    assert name.format(3) not in second and name.format(4) in second


def test_replicas_that_share_weights() -> None:
    cuts = [plan_shares(_library(), Layout(dp=3), rank, fsdp=True).cuts["lm_head.weight"] for rank in range(3)]
    assert cuts == [{0: ((0, 32),)}, {0: ((32, 64),)}, {0: ((64, 96),)}]


@pytest.mark.parametrize(("layout", "words"), [
    (Layout(tp=4, attention_tp=2), "attention is split over all tp ranks"),
    (Layout(cp=2, tp=2), "no context parallelism"),
    (Layout(dp=3, ep=3), "4 experts cannot be dealt out evenly to 3 groups"),
    (Layout(tp=5), "no weight of this model can be shared by 5 ranks"),
])  # fmt: skip
def test_refused(layout: Layout, words: str) -> None:
    with pytest.raises(NotPossible, match=words):
        plan_shares(_library(), layout, 0)


def test_places() -> None:
    places = [Place(Layout(tp=2, dp=2, ep=4, pp=2), rank) for rank in range(8)]
    assert [(each.replica, each.stage, each.index) for each in places] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    assert [each.expert for each in places] == [0, 1, 0, 1, 2, 3, 2, 3]
    mesh = Mesh(Layout(tp=4, ep=2), 3)
    assert (mesh.width.size, mesh.width.rank, mesh.experts.size, mesh.experts.rank, mesh.peers.size) == (2, 1, 2, 1, 1)


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(tp=2, ep=2)])
def test_gradients_of_a_model(layout: Layout) -> None:
    """The loss and all gradients of two ranks, experts by width and by number, against one process."""
    import torch

    whole = _library(experts_implementation="eager")
    values = torch.Generator().manual_seed(0)
    state = {name: torch.randn(each.shape, generator=values).double() * 0.1
             for name, each in whole.named_parameters()}
    ids = torch.randint(0, 96, (2, 7), generator=values)

    def loss(model: Any) -> torch.Tensor:
        model.requires_grad_(True)
        made = model(input_ids=ids, use_cache=False).logits.double().log_softmax(-1)[..., 3].mean()
        made.backward()
        return made.detach()

    models = [_library(experts_implementation="eager").double() for _ in range(2)]
    shares = [plan_shares(model, layout, rank) for rank, model in enumerate(models)]
    whole.double().load_state_dict(state, assign=True, strict=False)
    wanted = loss(whole)

    def run(group: ThreadGroup) -> torch.Tensor:
        model, own = models[group.rank], shares[group.rank]
        mesh = Mesh(layout, group.rank)
        mesh.tp = mesh.width = group
        mesh.experts = group if layout.ep > 1 else mesh.experts
        if layout.ep > 1:
            mesh.width = mesh.peers
        tensors = {}
        for name, cut in own.cuts.items():
            value = state[name]
            for dim, kept in cut.items():
                value = torch.cat([value.narrow(dim, first, last - first) for first, last in kept], dim)
            tensors[name] = value
        install(model, own, tensors, mesh)
        return loss(model)

    assert all(torch.allclose(made, wanted) for made in together(2, run))
    from dayzero.runtime.sharding import local

    for name, parameter in whole.named_parameters():
        for own, model in zip(shares, models, strict=True):
            value = parameter.grad
            for dim, kept in own.cuts[name].items():
                value = torch.cat([value.narrow(dim, first, last - first) for first, last in kept], dim)
            got = dict(model.named_parameters())[name].grad
            if getattr(got, "shape", None) == parameter.shape and not hasattr(got, "part"):
                value = parameter.grad  # a whole gradient of a cut parameter
            torch.testing.assert_close(local(got), value)
