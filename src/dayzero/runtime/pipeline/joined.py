"""A stage's model that answers like the whole one: every rank gets the logits, so that code which knows nothing of
stages (the library's generation, say) runs on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from dayzero.runtime.sharding.groups import Group

from .part import Call
from .pipeline import Pipeline


def joined(model: Any, pipeline: Pipeline, group: Group) -> None:
    """Replace the model's forward; `group`: the ranks of all stages, of which every one has to call it with the same
    arguments."""
    takes = inspect.signature(type(model).forward).parameters
    forward = _forward(pipeline, group, "cache" if "cache" in takes else "past_key_values")
    model.forward = functools.wraps(type(model).forward)(forward)
    model.forward.__signature__ = inspect.signature(pipeline.part.whole_forward)


def _forward(pipeline: Pipeline, group: Group, cache: str) -> Callable[..., Any]:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    rule = pipeline.part.logits

    def forward(input_ids: torch.Tensor, **arguments: Any) -> Any:
        logits = pipeline.forward([Call(input_ids, arguments)])
        given = {cache: arguments.get(cache, pipeline.part.cache)}
        if not pipeline.shares_logits:
            return CausalLMOutputWithPast(logits=logits and logits[0], **given)
        if logits is not None:
            value = logits[0].contiguous()
        else:
            kept = arguments.get("logits_to_keep") or 0
            tokens = min(kept, input_ids.shape[1]) if kept else input_ids.shape[1]
            value = torch.empty(rule.shape(input_ids.shape[0], tokens), dtype=rule.dtype, device=input_ids.device)
        return CausalLMOutputWithPast(logits=group.send_from(group.size - 1, value), **given)

    return forward
