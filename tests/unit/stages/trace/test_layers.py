"""Which layers are alike, and whose parameters are whose."""

from __future__ import annotations

import torch

from dayzero.stages.trace import trace
from dayzero.stages.trace.layers import layer_kinds, module_tree


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
    assert [node.path for node in module_tree(model)] == ["", "0", "0.0", "1"]
