"""Loops of model files as one operator: the same values, far fewer calls, and all put back."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dayzero.runtime import stand_ins

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "qwen3_next": ({**HEADS, **EXPERTS, "shared_expert_intermediate_size": 16, "linear_key_head_dim": 8,
                    "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                    "layer_types": ["linear_attention", "full_attention"]},
                   {"delta_rule", "convolution", "convolution_update"}),
    "mamba2": ({"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
               {"state_space", "state_space_update", "convolution", "convolution_update"}),
    "mamba": ({"state_size": 8, "intermediate_size": 64, "time_step_rank": 2},
              {"selective_scan", "state_space_update", "convolution", "convolution_update"}),
}  # fmt: skip


class Counts(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[func.name().partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def model(name: str) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**SMALL, **MODELS[name][0])).eval()
    for parameter in made.parameters():  # the library leaves some as they were allocated
        torch.nn.init.normal_(parameter, std=0.2)
    return made


def run(made: Any, tokens: int) -> tuple[torch.Tensor, torch.Tensor, Counter[str]]:
    """Logits of a prefill and of a decode step behind it, and the operators of both."""
    ids = torch.arange(tokens)[None] % 47 + 3
    with torch.inference_mode(), Counts() as counts:
        first = made(ids, use_cache=True)
        name = "cache" if "cache" in inspect.signature(made.forward).parameters else "past_key_values"
        second = made(torch.tensor([[5]]), use_cache=True, **{name: getattr(first, name)})
    return first.logits, second.logits, counts.ops


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_one_operator_with_the_same_values(name: str) -> None:
    made = model(name)
    source = sys.modules[type(made).__module__]
    before = dict(vars(source))
    plain = run(made, 19)
    with stand_ins.fallbacks(made):
        stand_ins.forget()
        short, long = run(made, 19), run(made, 83)
        called = stand_ins.called()
    torch.testing.assert_close(short[:2], plain[:2], atol=2e-5, rtol=1e-4)
    assert {f"dayzero::{op}" for op in MODELS[name][1]} <= set(short[2])
    assert short[2].total() < plain[2].total()
    assert short[2].total() == long[2].total()  # whatever the number of tokens
    assert {stand_in.op for stand_in in called} == {f"dayzero.{op}" for op in MODELS[name][1]}
    assert all(stand_in.call.startswith(f"{source.__name__}:") for stand_in in called)
    assert dict(vars(source)) == before


class _Holder(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.rule = function


def chunk_my_delta(query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 4, initial_state: Any = None,
                   output_final_state: bool = False, **kwargs: Any) -> Any:  # fmt: skip
    """Has the name and the parameters of a delta rule."""
    raise AssertionError("not replaced")


def chunk_other_delta(query: Any, key: Any) -> str:
    """Has the name only."""
    return "own"


def test_a_function_held_by_a_module_is_replaced_by_name_and_parameters() -> None:
    made = torch.nn.ModuleList([_Holder(chunk_my_delta), _Holder(chunk_other_delta), _Holder(chunk_my_delta)])
    x = torch.randn(1, 9, 2, 4)
    with stand_ins.fallbacks(made):
        results = [made[i].rule(x, x, x, -x[..., 0].abs(), x[..., 0], output_final_state=True) for i in (0, 2)]
        assert made[1].rule(1, 2) == "own"
    torch.testing.assert_close(results[0], results[1])
    assert results[0][1].shape == (1, 2, 4, 4)
    assert made[0].rule is chunk_my_delta


def test_everything_is_put_back_after_an_error() -> None:
    made = torch.nn.ModuleList([_Holder(chunk_my_delta)])
    with pytest.raises(KeyError), stand_ins.fallbacks(made):
        raise KeyError
    assert made[0].rule is chunk_my_delta
