"""Gradients of the loss of one small batch, in a form that is small, linear and sees every element.

Each parameter's gradient is reduced to a sketch: with a random sign for each element (the same ones in every run),
elements are added up in `WIDTH` columns. The length of the difference of two sketches estimates the length of the
difference of the gradients to a relative 1/sqrt(WIDTH) (count sketch: Charikar, Chen, Farach-Colton 2002), and the
sketch of a sum is the sum of the sketches: that is how stages that share a tied weight are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_PART = 1 << 22
"""Elements that are sketched at a time; a multiple of WIDTH."""


def small_batch(prompts: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
    """[rows, length] token ids: the beginnings of the prompts, in turn, all of one length and so without padding."""
    length = min(LENGTH, *(len(prompt) for prompt in prompts))
    return torch.tensor([list(prompts[row % len(prompts)][:length]) for row in range(rows)])


def gradients(model: Any, batch: torch.Tensor, mesh: Mesh, path: Path) -> None:
    """Take the gradients of this replica's part of the batch, average them over replicas, save sketches to `path`.

    All ranks have to call it; the first of each tp group of replica 0 saves. A gradient is sketched and dropped as soon
    as it is complete, in the same order on all ranks, so that few of them are in memory at the same time.
    """
    place = mesh.place
    rows = len(batch) // place.layout.dp
    mine = batch[place.replica * rows:(place.replica + 1) * rows]
    sketches: dict[str, torch.Tensor] = {}

    def take(name: str) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                sketches[name] = sketch(mesh.average_over_replicas(whole(parameter.grad).contiguous()))
            parameter.grad = None
        return hook

    backward = (_forward_stage if place.layout.pp > 1 else _forward)(model, mine)
    # After forward, in which the library adds hooks of its own that sum up partial gradients: they have to run first.
    hooks = [each.register_post_accumulate_grad_hook(take(name)) for name, each in model.named_parameters()]
    backward()
    for each in hooks:
        each.remove()
    if place.first_of_tp and place.replica == 0:
        part = path.with_suffix(".part")
        # One entry: several are written in an order of chance, and equal runs would leave unequal files.
        save_file(sketches, str(part), metadata={"rows": str(len(batch))})
        part.replace(path)


def sketch(gradient: torch.Tensor) -> torch.Tensor:
    """[WIDTH] f32."""
    flat = gradient.detach().float().flatten()
    generator, total = torch.Generator().manual_seed(flat.numel()), torch.zeros(WIDTH)
    for part in torch.split(flat, _PART):
        signs = torch.randint(0, 2, part.shape, generator=generator, dtype=torch.int8)
        signed = part * signs.mul_(2).sub_(1)
        total += functional.pad(signed, (0, -len(part) % WIDTH)).view(-1, WIDTH).sum(0)
    return total


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(whole(logits)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def _forward(model: Any, ids: torch.Tensor) -> Callable[[], None]:
    """Compute the loss; what comes back takes its gradients."""
    loss = _loss(model(input_ids=ids, use_cache=False).logits, ids)
    return lambda: torch.autograd.backward(loss)


def _forward_stage(model: Any, ids: torch.Tensor) -> Callable[[], None]:
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
        output = _loss(whole_model(model, **inputs, use_cache=False).logits, ids)
    else:
        output = base(**inputs, use_cache=False).last_hidden_state
        dist.send(output.detach().contiguous(), rank + 1)

    def backward() -> None:
        incoming = None
        if rank < last:
            incoming = torch.empty_like(output)
            dist.recv(incoming, rank + 1)
        torch.autograd.backward(output, incoming)
        if rank > 0:
            dist.send(inputs["inputs_embeds"].grad.contiguous(), rank - 1)

    return backward
