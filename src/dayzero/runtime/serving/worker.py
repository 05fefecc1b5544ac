"""Carries out steps on one rank: pages first, then the calls, then the next tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dayzero.errors import DayzeroError
from dayzero.runtime.pages import Done, Failure, Pages, Row, Step
from dayzero.runtime.sharding.groups import Coming, Group

from .sampling import NOT_FINITE, choose

CALL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError, NotImplementedError,
               AttributeError, DayzeroError)
_NONE, _BAD = -1, -2
"""In the place of a token: there is none, and there should be one but the logits are no numbers."""


class Forward(Protocol):
    """A model on however many ranks."""

    def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor | None,
                 cache: Any) -> torch.Tensor | None:
        """Logits of the last tokens, [batch, vocabulary] or [batch, new, vocabulary]; None on a rank that has none.

        `input_ids` and `position_ids` are [batch, new]; `mask` is [batch, past and new], or None without padding.
        """
        ...


@dataclass
class Begun:
    """A step whose calls have been made, of which tokens may be on their way."""

    tokens: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    coming: list[tuple[tuple[Row, ...], Coming]] = field(default_factory=list)
    """What the last stage has found for the rows of a call."""
    sent: list[Coming] = field(default_factory=list)
    """Of the last stage, to the others."""


class Worker:
    """`alone`: an error of a call fails the rows that it comes from, and the others go on. A rank of a group raises it
    instead, because the others still wait in a collective. `stages`: ranks of which only the last has logits; it tells
    the others. `sharing`: ranks that all have the logits. The first one chooses for them: if logits differ in their
    last bits, each by itself could go on with other tokens, and wait for the others for ever."""

    def __init__(self, forward: Forward, pages: Pages, *, alone: bool = True, stages: Group | None = None,
                 sharing: Group | None = None) -> None:
        self._forward, self._pages, self._alone, self._stages = forward, pages, alone, stages
        self._sharing = sharing if sharing is not None and sharing.size > 1 else None

    def run(self, step: Step) -> Done:
        """All of a step. Raises what a call raises in a group of ranks."""
        return self.finish(self.begin(step))

    def begin(self, step: Step) -> Begun:
        """What this rank does for a step; other stages may still be at it. Raises as `run`."""
        # Tensors that are shared by ranks need version counters, which inference mode saves the cost of.
        with torch.inference_mode() if self._alone else torch.no_grad():
            return self._carry_out(step)

    def finish(self, begun: Begun) -> Done:
        """Wait for the tokens of a step. All ranks of a pipeline finish their steps in the order in which they began
        them."""
        for rows, coming in begun.coming:
            found, bad = _told(rows, coming.result().tolist())
            begun.tokens |= found
            begun.failures += bad
        for sent in begun.sent:
            sent.result()
        return Done(begun.tokens, tuple(begun.failures))

    def _carry_out(self, step: Step) -> Begun:
        begun = Begun(failures=list(self._pages.apply(step)))
        for rows in step.batches:
            self._attempt(rows, begun)
        return begun

    def _attempt(self, rows: Sequence[Row], begun: Begun) -> None:
        """One call; when it fails, one for each of its rows, where the others are as they were before it."""
        try:
            found, bad = self._call(rows, begun)
        except CALL_ERRORS as error:
            if not self._alone:
                raise
            if len(rows) > 1 and not self._pages.uniform:
                for row in rows:
                    self._attempt((row,), begun)
                return
            found, bad = {}, [Failure(row.sequence, f"{type(error).__name__}: {error}") for row in rows]
        begun.tokens |= found
        begun.failures += bad

    def _call(self, rows: Sequence[Row], begun: Begun) -> tuple[dict[int, int], list[Failure]]:
        with self._pages.calling(rows) as call:
            logits = self._forward(call.input_ids, call.position_ids, call.mask, self._pages.cache)
        wanted = any(row.sampling is not None for row in rows)
        if logits is None:
            if wanted and self._stages is not None:
                room = torch.empty(len(rows), dtype=torch.long)
                begun.coming.append((tuple(rows), self._stages.receive(self._stages.size - 1, room)))
            return {}, []
        last = logits[:, -1] if logits.dim() == 3 else logits
        if self._stages is None and self._sharing is None:
            return choose(last, rows)
        if not wanted:  # the others do not wait for this call
            return {}, []
        numbers = self._agreed(last, rows)
        if self._stages is not None:
            begun.sent += [self._stages.send(other, numbers) for other in range(self._stages.size - 1)]
        return _told(rows, numbers.tolist())

    def _agreed(self, logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """For each row the token that all ranks with the logits go on with, or what stands in its place."""
        if self._sharing is not None and self._sharing.rank:
            return self._sharing.send_from(0, torch.empty(len(rows), dtype=torch.long))
        found, bad = choose(logits, rows)
        lost = {each.sequence for each in bad}
        numbers = torch.tensor([_BAD if row.sequence in lost else found.get(row.sequence, _NONE) for row in rows])
        return numbers if self._sharing is None else self._sharing.send_from(0, numbers)


def _told(rows: Sequence[Row], numbers: Sequence[int]) -> tuple[dict[int, int], list[Failure]]:
    """As `choose`, of what another rank says."""
    found = {row.sequence: number for row, number in zip(rows, numbers, strict=True) if number >= 0}
    bad = [Failure(row.sequence, NOT_FINITE) for row, number in zip(rows, numbers, strict=True) if number == _BAD]
    return found, bad


def model_forward(model: Any) -> Callable[..., torch.Tensor | None]:
    """A Forward of one whole model. Only the last token's logits are computed where the model can be told so."""
    takes = inspect.signature(type(model).forward).parameters  # an instance may have a wrapped one
    cache_name = next(name for name in ("cache", "past_key_values", "cache_params") if name in takes)
    fixed: dict[str, Any] = {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in takes else {})
    positions = "position_ids" in takes

    def forward(input_ids: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor | None,
                cache: Any) -> torch.Tensor | None:
        given = fixed | ({"position_ids": position_ids} if positions else {})
        logits: torch.Tensor | None = model(
            input_ids=input_ids, attention_mask=mask, **{cache_name: cache}, **given).logits
        return logits

    return forward
