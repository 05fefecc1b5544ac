"""Greedy generation with the library's own loop, watched step by step: times, margins, a digest of all logits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from .assignment import Generated

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
        if scores.device.type != "cpu":
            torch.accelerator.synchronize(scores.device)
        self.times.append(time.perf_counter() - self._left)
        best = scores.float().topk(2, dim=-1).values
        self.margins.append((best[:, 0] - best[:, 1]).cpu())
        self.digest.update(scores.float().cpu().contiguous().numpy().data)
        self._left = time.perf_counter()
        return scores


Pick = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the ids so far, [batch, tokens], and the scores, [batch, vocabulary]: the next ids, [batch]."""


class _Only(LogitsProcessor):  # type: ignore[misc]
    """Leaves one token of each row."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = self._pick(input_ids, scores).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


def end_tokens(model: Any) -> tuple[int, ...]:
    """Ids that end a text, as the release's generation config states them."""
    ids = model.generation_config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def device_of(model: Any) -> torch.device:
    """Where the model computes."""
    return next((each.device for each in model.parameters() if not each.is_meta), torch.device("cpu"))


def generate(model: Any, prompts: Sequence[tuple[int, Sequence[int]]], *, batch: int, max_new_tokens: int,
             ends: Sequence[int] | None = None, pick: Pick | None = None) -> Steps:
    """Continue each (number, token ids), `batch` at a time, with what `pick` chooses, or the likeliest token; `ends`:
    ids that end a text, None: those that the release states."""
    steps, digest = Steps(), hashlib.sha256()
    stops = end_tokens(model) if ends is None else tuple(ends)
    for group in batched_prompts(prompts, batch):
        watch = _Watch(digest)
        sequences, length = _run(model, group, watch, max_new_tokens, stops, pick)
        margins = torch.stack(watch.margins, dim=1)
        for row, (number, _) in enumerate(group):
            steps.outputs.append(_output(number, sequences[row, length:], margins[row], stops))
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
        _run(model, [prompt], watch, 1, end_tokens(model))
        seconds.append(watch.times[0])
    return seconds[1:]


def batched_prompts(prompts: Sequence[Any], size: int) -> list[list[Any]]:
    """The prompts in groups of at most `size`."""
    return [list(prompts[start:start + size]) for start in range(0, len(prompts), size)]


def _run(model: Any, group: Sequence[tuple[int, Sequence[int]]], watch: _Watch, new: int,
         ends: Sequence[int], pick: Pick | None = None) -> tuple[torch.Tensor, int]:
    """(all token ids, length of the padded prompts)."""
    pad = ends[0] if ends else 0
    length = max(len(tokens) for _, tokens in group)
    ids = torch.full((len(group), length), pad)
    mask = torch.zeros_like(ids)
    for row, (_, tokens) in enumerate(group):
        ids[row, length - len(tokens):] = torch.tensor(tokens)
        mask[row, length - len(tokens):] = 1
    processors = [watch, _Only(pick)] if pick else [watch]
    with torch.no_grad():
        there = device_of(model)
        sequences = model.generate(ids.to(there), attention_mask=mask.to(there), max_new_tokens=new, pad_token_id=pad,
                                   eos_token_id=list(ends) or None, logits_processor=LogitsProcessorList(processors))
    return sequences.cpu(), length


def _output(number: int, tokens: torch.Tensor, margins: torch.Tensor, ends: tuple[int, ...]) -> Generated:
    """One sequence, cut after its end token."""
    row = tokens.tolist()
    stop = next((index + 1 for index, token in enumerate(row) if token in ends), None)
    count = stop or len(row)
    largest = torch.finfo(torch.float32).max
    margins = margins.nan_to_num(nan=largest, posinf=largest, neginf=largest)  # JSON has no such numbers
    return Generated(prompt=number, tokens=tuple(row[:count]), margins=tuple(margins[:count].tolist()),
                     finish=STOP if stop else LENGTH)
