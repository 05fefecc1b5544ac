"""Which layers are alike, and whose parameters are whose."""

from __future__ import annotations

import torch

from dayzero.stages.trace import trace
from dayzero.stages.trace.capture.signatures import Signatures
from dayzero.stages.trace.layers import Tree, layer_kinds


def test_layers_that_differ_in_their_mask_only(make, configs) -> None:
    kinds = trace(make(configs["sliding"])).layer_kinds
    assert [(kind.kind, kind.layers) for kind in kinds] == [
        ("sliding_attention + dense", (0, 2)), ("full_attention + dense", (1, 3))]


def test_layers_that_the_config_calls_alike_and_the_code_builds_differently(make, configs) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = torch.nn.ModuleList(torch.nn.Linear(1, 1, device="meta") for _ in range(2))
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, width, device="meta") for width in (8, 9))

    kinds = layer_kinds(Model(), make(configs["dense"]).model)
    assert [(kind.kind, kind.layers) for kind in kinds] == [
        ("full_attention + dense (1)", (0,)), ("full_attention + dense (2)", (1,))]


def test_the_tree_counts_tied_parameters_once(make, configs) -> None:
    graph = trace(make(configs["dense"]))
    nodes = {node.path: node for node in graph.modules}
    assert sum(node.parameters for node in graph.modules) == graph.parameters
    assert (nodes["model.embed_tokens"].parameters, nodes["lm_head"].parameters) == (4800, 0)
    assert nodes[""].type == "LlamaForCausalLM" and graph.modules[0].path == ""
    assert nodes["model.layers.1.mlp.up_proj"].parameters == 48 * 80


def test_pre_order() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()), torch.nn.ReLU())
    assert [node.path for node in Tree(model, Signatures()).nodes] == ["", "0", "0.0", "1"]


def test_alike_modules_of_a_layer_are_one_and_others_keep_their_numbers() -> None:
    def layer() -> torch.nn.Module:
        experts = [torch.nn.Sequential(torch.nn.Linear(8, width, device="meta")) for width in (4, 4, 5)]
        return torch.nn.ModuleDict({"experts": torch.nn.ModuleList(experts)})

    tree = Tree(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer(), layer()])}), Signatures())
    nodes = {node.path: (node.count, node.parameters) for node in tree.nodes}
    assert nodes["layers.0.experts.*.0"] == (2, 2 * (8 * 4 + 4)) and nodes["layers.1.experts.2.0"] == (1, 8 * 5 + 5)
    assert tree.shown("layers.1.experts.1.0") == "layers.1.experts.*.0"
    assert tree.shown("layers.1.experts.2.0") == "layers.1.experts.2.0"
    assert tree.shown("") == ""


def test_layers_that_ran_and_why_the_others_need_not(make, configs) -> None:
    kinds = trace(make(configs["sliding"])).layer_kinds
    assert [kind.traced for kind in kinds] == [(0,), (1,)]
    assert all("settings" in kind.proof for kind in kinds)
