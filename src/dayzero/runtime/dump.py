"""What each layer puts out for fixed prompts, saved for `check`: one prompt at a time, without padding, as f32.

A dump file has one tensor for each prompt and place, `P/PLACE` with PLACE `embedding`, `layers.N` or `logits`, each of
shape [tokens, width]. Ranks of a tp group hold the same activations: the first of them saves, all of them digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .load import decoder_layers, has_weights, whole

Outputs = dict[str, torch.Tensor]


def dump(model: Any, prompts: Sequence[tuple[int, Sequence[int]]], path: Path | None, *, last_stage: bool) -> str:
    """Run each (number, token ids), save to `path` unless it is None; SHA-256 over all values, in hex.

    `last_stage` says that the logits are this rank's own and not a copy of another stage's.
    """
    tensors: Outputs = {}
    for number, tokens in prompts:
        for place, value in outputs(model, tokens, last_stage=last_stage).items():
            tensors[f"{number}/{place}"] = value
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    if path is not None:
        part = path.with_suffix(".part")
        save_file(tensors, str(part))
        part.replace(path)
    return digest.hexdigest()


def outputs(model: Any, tokens: Sequence[int], *, last_stage: bool) -> Outputs:
    """{place: [tokens, width] in f32} for what this rank computes of one prompt."""
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode(), _listening(model) as heard:
        logits = model(input_ids=ids, use_cache=False).logits
    if last_stage:
        heard["logits"] = _flat(logits)
    return heard


@contextmanager
def _listening(model: Any) -> Iterator[Outputs]:
    """Collects the output of the embedding and of each layer on this rank while it is entered."""
    heard: Outputs = {}
    watched = {"embedding": model.get_input_embeddings()}
    watched |= {f"layers.{number}": layer for number, layer in enumerate(decoder_layers(model))}

    def hook(place: str) -> Any:
        def hear(module: Any, arguments: Any, output: Any) -> None:
            heard[place] = _flat(output if isinstance(output, torch.Tensor) else output[0])
        return hear

    handles = [module.register_forward_hook(hook(place)) for place, module in watched.items() if has_weights(module)]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def _flat(value: torch.Tensor) -> torch.Tensor:
    """[1, tokens, width] of any dtype, whole or sharded -> [tokens, width] f32, a copy."""
    return whole(value).detach().squeeze(0).to(torch.float32, copy=True).contiguous()
