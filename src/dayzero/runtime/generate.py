"""Greedy generation with the library's own loop, watched step by step: times, margins, a digest of all logits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from .assignment import Generated
from .load import decoder_layers, has_weights

STOP, LENGTH = "stop", "length"


@dataclass
class Steps:
    """What one rank's generation of its prompts took and gave."""

    outputs: list[Generated] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Decode steps."""
    tokens: list[int] = field(default_factory=list)
    """For each decode step: sequences that were not at their end."""
    digest: str = ""


class _Watch(LogitsProcessor):  # type: ignore[misc]
    """Changes nothing; sees the logits of every step. What it does itself is not in the times."""

    def __init__(self, digest: Any) -> None:
        self.digest = digest
        self.times: list[float] = []
        self.margins: list[torch.Tensor] = []
        self._left = time.perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter() - self._left)
        best = scores.float().topk(2, dim=-1).values
        self.margins.append(best[:, 0] - best[:, 1])
        self.digest.update(scores.float().contiguous().numpy().data)
        self._left = time.perf_counter()
        return scores


def end_tokens(model: Any) -> tuple[int, ...]:
    """Ids that end a text, as the release's generation config states them."""
    ids = model.generation_config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def generate(model: Any, prompts: Sequence[tuple[int, Sequence[int]]], *, batch: int, max_new_tokens: int) -> Steps:
    """Continue each (number, token ids), `batch` at a time, always with the likeliest token."""
    steps, digest = Steps(), hashlib.sha256()
    for group in batched_prompts(prompts, batch):
        watch = _Watch(digest)
        sequences, length = _run(model, group, watch, max_new_tokens)
        margins = torch.stack(watch.margins, dim=1)
        for row, (number, _) in enumerate(group):
            steps.outputs.append(_output(number, sequences[row, length:], margins[row], end_tokens(model)))
        lengths = [len(output.tokens) for output in steps.outputs[-len(group):]]
        steps.seconds += watch.times[1:]
        steps.tokens += [sum(length > step for length in lengths) for step in range(1, len(watch.times))]
        digest.update(sequences.contiguous().numpy().data)
    steps.digest = digest.hexdigest()
    return steps


def first_token_seconds(model: Any, prompts: Sequence[tuple[int, Sequence[int]]]) -> list[float]:
    """Time to the first token of each prompt, alone. One run before warms up and is not counted."""
    seconds = []
    for prompt in (prompts[0], *prompts):
        watch = _Watch(hashlib.sha256())
        _run(model, [prompt], watch, 1)
        seconds.append(watch.times[0])
    return seconds[1:]


def batched_prompts(prompts: Sequence[Any], size: int) -> list[list[Any]]:
    """The prompts in groups of at most `size`."""
    return [list(prompts[start:start + size]) for start in range(0, len(prompts), size)]


def _run(model: Any, group: Sequence[tuple[int, Sequence[int]]], watch: _Watch, new: int) -> tuple[torch.Tensor, int]:
    """(all token ids, length of the padded prompts)."""
    ends = end_tokens(model)
    pad = ends[0] if ends else 0
    length = max(len(tokens) for _, tokens in group)
    ids = torch.full((len(group), length), pad)
    mask = torch.zeros_like(ids)
    for row, (_, tokens) in enumerate(group):
        ids[row, length - len(tokens):] = torch.tensor(tokens)
        mask[row, length - len(tokens):] = 1
    with torch.inference_mode():
        sequences = model.generate(ids, attention_mask=mask, max_new_tokens=new, pad_token_id=pad,
                                   logits_processor=LogitsProcessorList([watch]), **_stage_cache(model))
    return sequences, length


def _stage_cache(model: Any) -> dict[str, Any]:
    """For a pipeline stage, a cache whose layers of other stages read as this stage's layers of the same kind.

    The library takes the length of the past from the first layer of a kind. On another stage that layer stays empty,
    and then padding is masked in the wrong places from the second token on.
    """
    here = [number for number, layer in enumerate(decoder_layers(model)) if has_weights(layer)]
    if len(here) == len(decoder_layers(model)):
        return {}
    cache = DynamicCache(config=model.config)
    for number in set(range(len(cache.layers))) - set(here):
        twin = next((index for index in here if _same_kind(cache.layers[index], cache.layers[number])), number)
        cache.layers[number] = cache.layers[twin]
    return {"cache": cache}


def _same_kind(layer: Any, other: Any) -> bool:
    return type(layer) is type(other) and getattr(layer, "sliding_window", 0) == getattr(other, "sliding_window", 0)


def _output(number: int, tokens: torch.Tensor, margins: torch.Tensor, ends: tuple[int, ...]) -> Generated:
    """One sequence, cut after its end token."""
    row = tokens.tolist()
    stop = next((index + 1 for index, token in enumerate(row) if token in ends), None)
    count = stop or len(row)
    largest = torch.finfo(torch.float32).max
    margins = margins.nan_to_num(nan=largest, posinf=largest, neginf=largest)  # JSON has no such numbers
    return Generated(prompt=number, tokens=tuple(row[:count]), margins=tuple(margins[:count].tolist()),
                     finish=STOP if stop else LENGTH)
