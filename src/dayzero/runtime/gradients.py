"""Gradients of the loss of one small batch, in a form that is small, linear and sees every element.

Each parameter's gradient is reduced to a sketch: with a random sign for each element (the same ones in every run),
elements are added up in `WIDTH` columns. The length of the difference of two sketches estimates the length of the
difference of the gradients to a relative 1/sqrt(WIDTH) (count sketch: Charikar, Chen, Farach-Colton 2002), and the
sketch of a sum is the sum of the sketches: that is how stages that share a tied weight are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn import functional

from .load import whole
from .mesh import Mesh

WIDTH = 1024
LENGTH = 32
"""Most tokens of one sequence in the batch."""


def small_batch(prompts: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
    """[rows, length] token ids: the beginnings of the prompts, in turn, all of one length and so without padding."""
    length = min(LENGTH, *(len(prompt) for prompt in prompts))
    return torch.tensor([list(prompts[row % len(prompts)][:length]) for row in range(rows)])


def gradients(model: Any, batch: torch.Tensor, mesh: Mesh, path: Path) -> None:
    """Take the gradients of this replica's part of the batch, average them over replicas, save sketches to `path`.

    All ranks have to call it; only ranks whose path ends up different save (the first of a tp group, replica 0).
    """
    place = mesh.place
    rows = len(batch) // place.layout.dp
    mine = batch[place.replica * rows:(place.replica + 1) * rows]
    model.zero_grad(set_to_none=True)
    (_backward_stage if place.layout.pp > 1 else _backward)(model, mine)
    sketches = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            sketches[name] = sketch(mesh.average_over_replicas(whole(parameter.grad).contiguous()))
        parameter.grad = None
    if place.first_of_tp and place.replica == 0:
        part = path.with_suffix(".part")
        save_file(sketches, str(part), metadata={"rows": str(len(batch)), "length": str(batch.shape[1])})
        part.replace(path)


def sketch(gradient: torch.Tensor) -> torch.Tensor:
    """[WIDTH] f32."""
    flat = gradient.detach().float().flatten()
    count = flat.numel()
    signs = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.int8)
    signed = flat * signs.mul_(2).sub_(1)
    return functional.pad(signed, (0, -count % WIDTH)).view(-1, WIDTH).sum(0)


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(whole(logits)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def _backward(model: Any, ids: torch.Tensor) -> None:
    torch.autograd.backward(_loss(model(input_ids=ids, use_cache=False).logits, ids))


def _backward_stage(model: Any, ids: torch.Tensor) -> None:
    """One stage after the other; the gradient of a stage's input goes back to the stage that made it.

    The library's forward for stages passes activations on without autograd, so the parts are called by themselves.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    whole_model, base = type(model).forward, model.base_model
    inputs: dict[str, Any] = {"input_ids": ids}
    if rank > 0:
        received = torch.empty(*ids.shape, model.config.get_text_config().hidden_size, dtype=model.dtype)
        dist.recv(received, rank - 1)
        inputs = {"inputs_embeds": received.requires_grad_()}
    if rank == last:
        torch.autograd.backward(_loss(whole_model(model, **inputs, use_cache=False).logits, ids))
    else:
        hidden = base(**inputs, use_cache=False).last_hidden_state
        dist.send(hidden.detach().contiguous(), rank + 1)
        incoming = torch.empty_like(hidden)
        dist.recv(incoming, rank + 1)
        hidden.backward(incoming)
    if rank > 0:
        dist.send(inputs["inputs_embeds"].grad.contiguous(), rank - 1)
