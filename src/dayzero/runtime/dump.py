"""What the model computes for fixed prompts, saved for `check`: one prompt at a time, without padding, as f32.

A dump file has one tensor for each prompt and place, `P/PLACE`, each of shape [tokens, width]. Places are `embedding`,
`layers.N` (what layer N adds: its output minus its input), `norm` (what goes into the output head) and `logits`. The
sum that layers add to is far longer than what one of them adds, and carries on what earlier ones did wrong. Ranks of a
tp group hold the same activations: the first of them saves, all of them digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .building import decoder_layers, has_weights
from .generate import device_of
from .sharding import whole

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
    ids = torch.tensor([list(tokens)], device=device_of(model))
    with torch.no_grad(), _listening(model) as heard:
        logits = model(input_ids=ids, use_cache=False).logits
    if last_stage:
        heard["logits"] = _flat(logits)
    else:
        heard.pop("norm", None)
    return heard


@contextmanager
def _listening(model: Any) -> Iterator[Outputs]:
    """Collects, while it is entered, the output of the embedding, of what is below the head, and what each layer of
    this rank adds."""
    heard: Outputs = {}
    layers = [each for each in enumerate(decoder_layers(model)) if has_weights(each[1])]
    embedding, base = model.get_input_embeddings(), model.base_model
    handles = [hook for number, layer in layers for hook in _hear_layer(layer, f"layers.{number}", heard)]
    if has_weights(embedding):
        handles.append(embedding.register_forward_hook(_hear("embedding", heard)))
    if base is not model:
        handles.append(base.register_forward_hook(_hear("norm", heard)))
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def _hear(place: str, heard: Outputs) -> Any:
    def hear(module: Any, arguments: Any, output: Any) -> None:
        heard[place] = _flat(_first(output))
    return hear


def _hear_layer(layer: Any, place: str, heard: Outputs) -> tuple[Any, Any]:
    """The input is copied before: a layer may add to it in place."""
    before: list[torch.Tensor] = []

    def enter(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        before[:] = [_flat(next(each for each in (*arguments, *named.values()) if isinstance(each, torch.Tensor)))]

    def leave(module: Any, arguments: Any, output: Any) -> None:
        after = _flat(_first(output))
        heard[place] = after - before[0] if after.shape == before[0].shape else after

    return layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave)


def _first(output: Any) -> Any:
    """The hidden states: a module returns them alone, or first of several."""
    if isinstance(output, Mapping):
        return next(iter(output.values()))
    return output if isinstance(output, torch.Tensor) else output[0]


def _flat(value: torch.Tensor) -> torch.Tensor:
    """[1, tokens, width] of any dtype, whole or sharded -> [tokens, width] f32, a copy."""
    flat: torch.Tensor = whole(value).detach().squeeze(0).to("cpu", torch.float32, copy=True).contiguous()
    return flat
