"""Gradients of the loss of one small batch, in a form that is small, linear and sees every element.

Each parameter's gradient is reduced to a sketch: with a random sign for each element (the same ones in every run),
elements are added up in `WIDTH` columns. The length of the difference of two sketches estimates the length of the
difference of the gradients to a relative 1/sqrt(WIDTH) (count sketch: Charikar, Chen, Farach-Colton 2002), and the
sketch of a sum is the sum of the sketches: that is how stages that share a tied weight are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional

from .pipeline import Call, Pipeline
from .sharding import Mesh, whole

WIDTH = 1024
LENGTH = 32
"""Most tokens of one sequence in the batch."""
_PART = 1 << 22
"""Elements that are sketched at a time; a multiple of WIDTH."""


Complete = Callable[[str, torch.Tensor], torch.Tensor]
"""Called with a parameter's name and this rank's part of its gradient."""


def small_batch(prompts: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
    """[rows, length] token ids: the beginnings of the prompts, in turn, all of one length and so without padding."""
    length = min(LENGTH, *(len(prompt) for prompt in prompts))
    return torch.tensor([list(prompts[row % len(prompts)][:length]) for row in range(rows)])


def gradients(model: Any, pipeline: Pipeline | None, batch: torch.Tensor, mesh: Mesh, path: Path,
              names: Mapping[str, str] | None = None, complete: Complete | None = None) -> None:
    """Take the gradients of this replica's part of the batch, average them over replicas, save sketches to `path`.

    `pipeline`: where the model is one of several stages; `names`: what a parameter is called in the whole model, so
    that stages that share a tied one call it alike; `complete`: puts a gradient's parts together. All ranks have to
    call it; the first of each tp group of replica 0 saves. A gradient is sketched and dropped as soon as it is
    complete, in the same order on all ranks, so that few of them are in memory at the same time.
    """
    place = mesh.place
    rows = len(batch) // place.layout.dp
    mine = batch[place.replica * rows:(place.replica + 1) * rows]
    sketches: dict[str, torch.Tensor] = {}
    put_together: Complete = complete or (lambda _, gradient: whole(gradient))

    def take(own: str) -> Any:
        name = (names or {}).get(own, own)

        def hook(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                sketches[name] = sketch(mesh.average_over_replicas(put_together(own, parameter.grad).contiguous()))
            parameter.grad = None
        return hook

    hooks = [each.register_post_accumulate_grad_hook(take(name))
             for name, each in model.named_parameters()]
    if pipeline is None:
        torch.autograd.backward(loss(model(input_ids=mine, use_cache=False).logits, mine))
    else:
        pipeline.backward([Call(mine, {"use_cache": False})], loss, mine)  # one: a hook runs once
    for each in hooks:
        each.remove()
    if place.first_of_tp and place.replica == 0:
        save_sketches(sketches, path, len(batch))


def save_sketches(sketches: Mapping[str, torch.Tensor], path: Path, rows: int) -> None:
    """Write them; `rows`: sequences in the batch."""
    part = path.with_suffix(".part")
    # One entry: several are written in an order of chance, and equal runs would leave unequal files.
    save_file(dict(sketches), str(part), metadata={"rows": str(rows)})
    part.replace(path)


def sketch(gradient: torch.Tensor) -> torch.Tensor:
    """[WIDTH] f32."""
    flat = gradient.detach().cpu().float().flatten()
    generator, total = torch.Generator().manual_seed(flat.numel()), torch.zeros(WIDTH)
    for part in torch.split(flat, _PART):
        signs = torch.randint(0, 2, part.shape, generator=generator, dtype=torch.int8)
        signed = part * signs.mul_(2).sub_(1)
        total += functional.pad(signed, (0, -len(part) % WIDTH)).view(-1, WIDTH).sum(0)
    return total


def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(whole(logits)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
