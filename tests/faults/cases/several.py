"""Faults of one rank among several, in runs of real ranks, and of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.faults.fault import Fault, layers


def stale(path: str, size: float) -> Callable[[Any, int], None]:
    """The second rank's part of a weight is some steps old."""

    def plant(model: Any, rank: int) -> None:
        weight = model.get_parameter(path).data
        part = getattr(weight, "part", weight)
        if rank == 1:
            numbers = torch.Generator().manual_seed(3)
            part.add_(size * part.float().std() * torch.randn(part.shape, generator=numbers))

    return plant


def _next_expert(model: Any, rank: int) -> None:
    """The second rank's map of experts is off by one."""
    if rank == 1:
        experts = layers(model)[1].mlp.experts
        for weight in (experts.gate_up_proj, experts.down_proj):
            part = getattr(weight.data, "part", weight.data)
            part.copy_(part.roll(1, 0).clone())


def _no_shared_sum(model: Any, rank: int) -> None:
    """The second rank's part of a sum is lost."""
    if rank == 1:
        weight = layers(model)[1].self_attn.o_proj.weight.data
        getattr(weight, "part", weight).zero_()


def _after(names: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """What becomes of gradients of parameters whose name has one of these in it, once they are there."""

    def plant(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if any(each in name for each in names.split("|")):
                parameter.register_hook(change)

    return plant


def _kept() -> Callable[[torch.Tensor], torch.Tensor]:
    """Gradients of the step before: of about the same size, with another batch's values."""
    numbers = torch.Generator().manual_seed(17)
    return lambda made: made * 0.5 + made.std() * torch.randn(made.shape, generator=numbers)


def _one_nan(made: torch.Tensor) -> torch.Tensor:
    made = made.clone()
    made.view(-1)[3] = float("nan")
    return made


def _half(made: torch.Tensor) -> torch.Tensor:
    """The second replica's part has not been added."""
    made = made.clone()
    made[len(made) // 2 :] *= 0.5
    return made


FAULTS = (
    Fault(
        "second rank's rows stale",
        "llama",
        (r"model\.layers\.2\.mlp\.up_proj",),
        r"rank|shard|stale",
        operator="linear",
        layout="tp=2",
        ranks=stale("model.layers.2.mlp.up_proj.weight", 0.05),
    ),
    Fault(
        "second rank's part of a sum lost",
        "llama",
        (r"model\.layers\.1\.self_attn\.o_proj",),
        r"rank|shard|partial|zeros in columns",
        operator="linear",
        layout="tp=2",
        ranks=_no_shared_sum,
    ),
    Fault(
        "second rank's latent projection stale",
        "deepseek_v3",
        (r"model\.layers\.2\.self_attn\.q_b_proj",),
        r"rank|shard|stale|heads 2 and 3",
        operator="linear",
        layout="tp=2",
        ranks=stale("model.layers.2.self_attn.q_b_proj.weight", 0.08),
    ),
    Fault(
        "second rank's experts off by one",
        "qwen3_moe",
        (r"model\.layers\.1\.mlp\.experts",),
        r"experts? .*\b[4-7]\b|rank",
        operator="experts",
        layout="tp=2,ep=2",
        ranks=_next_expert,
    ),
    Fault(
        "a layer of the second stage stale",
        "gpt_oss",
        (r"model\.layers\.3\.self_attn\.q_proj",),
        r"stale|dense|not those",
        operator="linear",
        layout="pp=2",
        ranks=lambda model, rank: stale("model.layers.3.self_attn.q_proj.weight", 0.05)(model, rank) if rank else None,
    ),
    Fault(
        "stale gradient bucket",
        "llama",
        (r"model\.layers\.[23]\..*",),
        r"stale|bucket|dense|not those|unlike",
        operator="gradient",
        precision="f32",
        gradients=_after("layers.2.|layers.3.", _kept()),
    ),
    Fault(
        "gradients of norms not summed over ranks",
        "qwen3_moe",
        (r"model\.layers\.\d\.(input_layernorm|post_attention_layernorm).*",),
        r"0\.5 times|half|not summed",
        operator="gradient",
        precision="f32",
        gradients=_after("layernorm", lambda made: made * 0.5),
    ),
    Fault(
        "one replica's rows missing in a gradient",
        "deepseek_v3",
        (r"model\.layers\.2\.self_attn\.o_proj.*",),
        r"rank|half|rows are wrong|has a factor",
        operator="gradient",
        precision="f32",
        gradients=_after("layers.2.self_attn.o_proj", _half),
    ),
    Fault(
        "one NaN in a gradient",
        "gemma3",
        (r"model\.layers\.1\.mlp\.up_proj.*",),
        "nan|not a number",
        operator="gradient",
        precision="f32",
        gradients=_after("layers.1.mlp.up_proj", _one_nan),
    ),
    Fault(
        "gradient clipped by another factor",
        "gemma2",
        (r".+",),
        r"0\.9 times|times what",
        operator="gradient",
        precision="f32",
        gradients=_after(".", lambda made: made * 0.9),
    ),
)
