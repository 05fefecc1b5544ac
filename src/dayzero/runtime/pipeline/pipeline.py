"""Runs the stages: micro-batches follow one another, so that all stages work at the same time (GPipe: Huang et al.
2019; one forward, one backward: Narayanan et al. 2019).

Forward passes send what crosses a boundary from one stage to the next and nothing else: shapes follow from those of the
call, so a call of a new shape costs nothing. Schedules with a way back are torch's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from dayzero.runtime.sharding.groups import Coming, Group

from .outputs import Sizes
from .part import Call, Part

_KEPT = 16
"""Shapes whose buffers for the way back are kept."""


class Pipeline:
    """One rank's end of the pipeline. All ranks of the group call the same methods with calls of the same shapes."""

    def __init__(self, part: Part, group: Group) -> None:
        """`group`: the ranks of all stages, in order."""
        self.part, self._group = part, group
        self._module = _Module(part)
        self._schedules: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
        self.shares_logits = True
        """Whether the whole model's forward gives the logits on every stage, or on the last one only."""
        self._sent: list[Coming] = []
        """What may still be on its way to the next stage."""

    def forward(self, calls: Sequence[Call]) -> list[torch.Tensor] | None:
        """Logits [sequences, tokens, vocabulary] of each micro-batch; None on all stages but the last."""
        logits: list[torch.Tensor] = []
        before, self._sent = self._sent, []
        with torch.no_grad():
            coming = self._coming(calls[0])
            for number, call in enumerate(calls):
                received = [each.result() for each in coming]
                coming = self._coming(calls[number + 1]) if number + 1 < len(calls) else []
                made = self.part.run(call, received)
                if self.part.last:
                    logits.append(made[0])
                else:
                    self._sent += [self._group.send(self.part.stage + 1, each) for each in made]
        for each in before:
            each.result()
        return logits if self.part.last else None

    def _coming(self, call: Call) -> list[Coming]:
        """What the stage before sends for a call, in the order of the boundary."""
        if self.part.stage == 0:
            return []
        ids = call.input_ids
        sizes = self.part.boundary(self.part.receives)
        return [self._group.receive(self.part.stage - 1, torch.empty(
            each.shape(ids.shape[0], ids.shape[1]), dtype=each.dtype, device=ids.device)) for each in sizes]

    def backward(self, calls: Sequence[Call], loss: Callable[[Any, torch.Tensor], torch.Tensor], target: torch.Tensor
                 ) -> torch.Tensor | None:
        """Adds the gradients of the mean over micro-batches of `loss`(logits, their part of `target`) to those of the
        parameters; that mean on the last stage. All micro-batches have one shape."""
        self._module.calls, self._loss = calls, loss
        schedule = self._schedule(calls)
        first = (torch.cat([call.input_ids for call in calls]),) if self.part.stage == 0 else ()
        losses: list[torch.Tensor] = []
        last = {"target": target, "losses": losses} if self.part.last else {}
        try:
            schedule.step(*first, number=torch.arange(len(calls)), **last)
        finally:
            self._module.calls = ()
        return torch.stack([each.detach() for each in losses]).mean() if self.part.last else None

    def _schedule(self, calls: Sequence[Call]) -> Any:
        """Of torch's, with buffers for these shapes; the ones that were used last are kept."""
        shape = tuple(calls[0].input_ids.shape)
        key = (len(calls), shape)
        if key not in self._schedules:
            self._schedules[key] = self._made(len(calls), shape, calls[0].input_ids.device)
            if len(self._schedules) > _KEPT:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _made(self, count: int, shape: tuple[int, ...], device: torch.device) -> Any:
        part = self.part

        def examples(sizes: Sequence[Sizes]) -> tuple[torch.Tensor, ...]:
            return tuple(each.empty(*shape).requires_grad_(each.dtype.is_floating_point) for each in sizes)

        ids = (torch.empty(shape, dtype=torch.long, device="meta"),)
        inputs = examples(part.boundary(part.receives)) if part.stage else ids
        outputs = examples((part.logits,) if part.last else part.boundary(part.sends))
        stage = PipelineStage(self._module, part.stage, part.stages, device, input_args=inputs, output_args=outputs,
                              group=self._group.handle)
        return (Schedule1F1B if count >= part.stages else ScheduleGPipe)(stage, count, loss_fn=self._taken)

    def _taken(self, logits: Any, target: torch.Tensor) -> torch.Tensor:
        assert self._loss is not None
        return self._loss(logits, target)


class _Module(nn.Module):
    """A part as a function from tensors to tensors, with the micro-batch's number."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.model = part.model
        self.part = part
        self.calls: Sequence[Call] = ()

    def forward(self, *tensors: torch.Tensor, number: torch.Tensor) -> Any:
        given = tensors if self.part.stage else ()
        outputs = self.part.run(self.calls[int(number)], given)
        return outputs if len(outputs) > 1 else outputs[0]
