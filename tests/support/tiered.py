"""Models that run with all weights in memory and with weights in tiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint
from dayzero.runtime.tiers import Tiers
from dayzero.runtime.tiers.budget import split
from dayzero.schema import Budget


def place(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make tensors those of a model."""
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf in module._parameters:
            module._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[leaf] = tensor


def whole(folder: Path, dtype: str = "f32") -> Any:
    """With all weights in memory."""
    model = blueprint(folder, dtype).model
    with Checkpoint(folder, model) as checkpoint:
        place(model, checkpoint.read({name: {} for name in checkpoint.names}))
    return model


class Tiered(Tiers):
    """With the least memory and `share` of what more would make a difference, whatever the process takes."""

    share = 0.0

    def _divide(self, budget: Budget, reserve: int | None) -> Any:
        del budget, reserve
        self._host_room = 0
        sizes = self._sizes
        everything = sum(sizes.layers) + sizes.head + sizes.table + sum(
            each * count for each, count, _ in sizes.experts.values())
        least = sizes.least()
        return split(sizes, least + round(self.share * max(0, everything - least)), "--host-memory", 0)


def tiered(folder: Path, dtype: str = "f32", *, share: float | None = 0.0, keep: str = "values", **options: Any
           ) -> tuple[Any, Tiers]:
    """(model, its tiers), installed; `share` None: without a limit."""
    model = blueprint(folder, dtype).model
    checkpoint = Checkpoint(folder, model, reader=options.pop("reader", None))
    kind = Tiers if share is None else type("Share", (Tiered,), {"share": share})
    tiers = kind(model, checkpoint, {}, Budget(keep=keep), **options)
    place(model, checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}))
    tiers.install()
    return model, tiers


def generate(model: Any, count: int = 6, prompt: int = 12, device: str = "cpu") -> tuple[list[int], torch.Tensor]:
    """(greedy tokens, all logits) from a fixed prompt."""
    ids = torch.arange(5, 5 + prompt, device=device)[None] * 3
    tokens, logits, past = [], [], {}
    with torch.no_grad():
        for _ in range(count):
            out = model(input_ids=ids, use_cache=True, **past)
            past, ids = {"past_key_values": out.past_key_values}, out.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
            logits.append(out.logits[0].cpu())
    return tokens, torch.cat(logits)
