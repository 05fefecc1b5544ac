"""Gradients: of what modules gave as they come, of parameters when the way back has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dayzero.schema import Column
from dayzero.schema.golden import Pass

from .recorder import Recorder

Terms = Callable[[str], tuple[str, tuple[str, ...]]]
"""Called with a parameter: its name in the whole model, and the degrees over whose ranks its gradients are terms."""
_NO_ROWS: dict[str, Any] = {"shape": (), "rows": (), "tokens": Column([])}


class Gradients:
    """Listens to a model's way back, which is a pass of its own. What several backward calls add up in a parameter is
    taken as it is at the end of each, or with `at_once=False` when `take` is called."""

    def __init__(self, recorder: Recorder, *, outputs: bool, at_once: bool = True, terms: Terms | None = None) -> None:
        self._recorder, self._terms = recorder, terms or (lambda name: (name, ()))
        self._opened, self._at_once = False, at_once
        parameters: list[Any] = [each for each in recorder.model.parameters() if each.requires_grad and at_once]
        self._handles = [each.register_post_accumulate_grad_hook(self._heard) for each in parameters]
        if outputs:
            recorder.on_output = self._of_output

    def detach(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()

    def _heard(self, _: torch.Tensor) -> None:
        self._begin(self._recorder.last)

    def _begin(self, made: Pass | None) -> bool:
        """Open the pass, with the rows of the forward pass; whether anything is to be recorded."""
        if not self._recorder.listening:
            return False
        if not self._opened:
            self._opened = True
            rows: dict[str, Any] = {"shape": made.shape, "rows": made.rows, "tokens": made.tokens} if made else _NO_ROWS
            self._recorder.open(phase="backward", **rows)
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._end))  # after those that replicas add gradients up in
        return True

    def take(self) -> None:
        """What is in the parameters now, as a pass of no rows."""
        if self._recorder.listening:
            self._recorder.open(phase="backward", **_NO_ROWS)
            self._parameters()

    def _end(self) -> None:
        self._opened = False
        if self._at_once:
            self._parameters()
        else:
            self._recorder.close()

    def _parameters(self) -> None:
        recorder = self._recorder
        for name, parameter in recorder.model.named_parameters():
            if parameter.grad is not None and recorder.listening:
                own, summed = self._terms(name)
                recorder.take(own, "gradient", "", parameter.grad, owner=name.rpartition(".")[0], summed=summed)
        recorder.close()

    def _of_output(self, made: Pass, name: str, call: int, slot: str, tensor: Any) -> None:
        def hear(gradient: torch.Tensor) -> None:
            if self._begin(made):
                self._recorder.take(name, "gradient", slot, gradient, call=call)

        if tensor.requires_grad:
            tensor.register_hook(hear)
