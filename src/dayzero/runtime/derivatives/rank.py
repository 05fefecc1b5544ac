"""One rank's part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from dayzero.errors import NotPossible
from dayzero.floats import roundoff
from dayzero.runtime.assignment import Assignment, RankResult
from dayzero.runtime.gradients import loss, save_sketches, sketch, small_batch
from dayzero.runtime.library import cause
from dayzero.runtime.pipeline import Call
from dayzero.runtime.rank import Rank
from dayzero.runtime.recording.rank import perturbed
from dayzero.runtime.sharding import Mesh, whole
from dayzero.schema.derivatives import Derivatives, Derived

from .differences import differences
from .parts import again, gradient, own

ENABLE = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
"""What the library calls it, the newer name first."""
MOVED = 0.02
"""Share of the weights' length that the first step moves them by."""
PLAIN, NOISY = "plain", "noisy"
"""Names of runs whose gradients are kept; the second with a rounding error in the embedding."""


def work(assignment: Assignment, mesh: Mesh, dump: Path, say: Callable[[str], None]) -> RankResult:
    """All of it. `dump`: folder for sketches of gradients. Raises NotPossible when the layout or the model does not
    allow it."""
    asked = assignment.derivatives
    assert asked is not None
    say("loading")
    rank = Rank(Path(assignment.root), "f32", own=assignment.own, threads=torch.get_num_threads())
    rank.prepare(mesh.place.layout, mesh.place.rank, fsdp=asked.fsdp)
    _refuse(rank, mesh)
    rank.join(mesh)
    model = Descent(rank, mesh, small_batch(assignment.prompts, assignment.gradient_rows), fsdp=asked.fsdp)
    derived = _derived(model, asked, say)
    if mesh.place.first_of_tp:
        save_sketches(model.sketches, dump / f"gradients-rank-{mesh.place.rank}.safetensors", assignment.gradient_rows)
    return RankResult(rank=mesh.place.rank, device="cpu", passes=(), derived=derived)


def _refuse(rank: Rank, mesh: Mesh) -> None:
    layout = mesh.place.layout
    if mesh.place.together > 1 or rank.lists_experts:
        raise NotPossible(f"no training with {layout.text}: ranks hold different experts", "choose another layout")
    names = rank.first_names
    if layout.pp > 1 and len(set(names.values())) < len(names):
        raise NotPossible(f"no training with {layout.text}: two stages hold one tied weight", "choose another layout")


class Descent:
    """A model, a batch, and plain gradient descent on it."""

    def __init__(self, rank: Rank, mesh: Mesh, batch: torch.Tensor, *, fsdp: bool = False) -> None:
        self.model, self.pipeline, self.mesh, self._rank, self._fsdp = rank.model, rank.pipeline, mesh, rank, fsdp
        rows = len(batch) // mesh.place.layout.dp
        self.batch = batch[mesh.place.replica * rows:(mesh.place.replica + 1) * rows]
        self.parameters: dict[str, Any] = dict(self.model.named_parameters())
        self.sketches: dict[str, torch.Tensor] = {}
        """Of the whole gradient of each parameter: run/step/replica/name -> [WIDTH]."""

    def loss(self) -> float:
        """Of the batch, without gradients."""
        with torch.no_grad():
            return self._mean(loss(self.model(input_ids=self.batch, use_cache=False).logits, self.batch))

    def gradients(self) -> tuple[float | None, dict[str, torch.Tensor]]:
        """(loss, this rank's part of each parameter's gradient, mean over replicas); no loss before the last stage."""
        for parameter in self.parameters.values():
            parameter.grad = None
        value: torch.Tensor | None
        if self.pipeline is None:
            value = loss(self.model(input_ids=self.batch, use_cache=False).logits, self.batch)
            torch.autograd.backward(value)
        else:
            value = self.pipeline.backward([Call(self.batch, {"use_cache": False})], loss, self.batch)
        found = {name: self._averaged(gradient(parameter))
                 for name, parameter in self.parameters.items() if parameter.grad is not None}
        return (None if value is None else self._mean(value)), found

    def _averaged(self, part: torch.Tensor) -> torch.Tensor:
        """Replicas that share weights have the mean already, each of its own part."""
        mean: torch.Tensor = part if self._fsdp else self.mesh.average_over_replicas(part)
        return mean

    def losses(self, steps: int, rate: float, run: str = "") -> tuple[float, ...]:
        """Before each step; the weights are as before afterwards. `run`: the name under which gradients are sketched;
        empty: they are not."""
        before, seen = self.values(), list[float]()
        for step in range(steps):
            value, found = self.gradients()
            seen += [] if value is None else [value]
            if run:
                self._sketch(f"{run}/{step}/{self.mesh.place.replica}", found)
            with torch.no_grad():
                for name, part in found.items():
                    own(self.parameters[name]).sub_(rate * part)
        self.restore(before)
        return tuple(seen)

    def _sketch(self, title: str, found: dict[str, torch.Tensor]) -> None:
        for name, part in found.items():
            whole_ = self._rank.complete(name, again(part, self.parameters[name]))
            self.sketches[f"{title}/{self._rank.first_names.get(name, name)}"] = sketch(whole_)

    def values(self) -> dict[str, torch.Tensor]:
        """Copies of this rank's parts of all weights."""
        with torch.no_grad():
            return {name: own(each).detach().clone() for name, each in self.parameters.items()}

    def restore(self, values: dict[str, torch.Tensor]) -> None:
        """Put them back."""
        with torch.no_grad():
            for name, value in values.items():
                own(self.parameters[name]).copy_(value)

    def _mean(self, value: torch.Tensor) -> float:
        return float(self.mesh.average_over_replicas(whole(value).detach().reshape(1)))


def _derived(model: Descent, asked: Derivatives, say: Callable[[str], None]) -> Derived:
    say("taking gradients")
    _, found = model.gradients()
    odd = {name: bad for name, each in found.items() if (bad := int((~torch.isfinite(each)).sum()))}
    absent = tuple(name for name in model.parameters if name not in found)
    if _anywhere(model.mesh, bool(odd)):
        return Derived(losses=(), noise=0.0, rate=0.0, odd=odd, absent=absent)
    rate = asked.rate or MOVED * _length(model.values()) / max(_length(found), 1e-30)
    say(f"{asked.steps} steps")
    losses = model.losses(asked.steps, rate, PLAIN)
    made = Derived(losses=losses, noise=0.0, rate=rate, absent=absent)
    if model.mesh.place.layout.world_size > 1:
        return made
    with perturbed(model.model, roundoff("f32"), 1):
        other = model.losses(asked.steps, rate, NOISY)
    noise = max((abs(a - b) / abs(b) for a, b in zip(other, losses, strict=True) if b), default=0.0)
    say("finite differences")
    sampled = differences(model, found, asked.samples)
    recomputed, why_not = _recomputed(model, say) if asked.recompute else (None, "")
    return msgspec.structs.replace(made, noise=noise, sampled=sampled, recomputed=recomputed, why_not=why_not)


def _recomputed(model: Descent, say: Callable[[str], None]) -> tuple[float | None, str]:
    """(largest relative L2 of a gradient with recomputed activations, why it was not tried). Both in training mode:
    only there the library recomputes."""
    say("recomputing activations")
    enable = next((each for name in ENABLE if (each := getattr(model.model, name, None)) is not None), None)
    if enable is None:
        return None, "the model cannot recompute activations"
    model.model.train()
    try:
        torch.manual_seed(0)
        _, plain = model.gradients()
        enable()
        torch.manual_seed(0)
        _, again = model.gradients()
    except (ValueError, RuntimeError, TypeError) as error:
        return None, f"the model does not recompute activations: {cause(error)}"
    finally:
        model.model.eval()
    total = _length(plain)
    return max(float((again[name] - each).norm()) / max(float(each.norm()), 1e-6 * total)
               for name, each in plain.items()), ""


def _anywhere(mesh: Mesh, odd: bool) -> bool:
    """Whether any rank has odd gradients; all have to ask."""
    return odd if mesh.place.layout.world_size == 1 else not mesh.all_agree(not odd)


def _length(parts: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([each.double().square().sum() for each in parts.values()]).sum().sqrt())
