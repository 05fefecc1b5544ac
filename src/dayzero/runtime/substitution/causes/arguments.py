"""Hypotheses about what a module is given: masks, rotary tables, positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from dayzero.runtime.recording.values import slots
from dayzero.runtime.substitution.rows import rows_of
from dayzero.runtime.substitution.slots import changed
from dayzero.runtime.substitution.trial import Arguments, Case, Hypothesis, Trial

MASK, TABLE = 1, 1
Mask = torch.Tensor
"""[..., queries, keys]: bool, whether a query sees a key."""
Pair = tuple[str, torch.Tensor, torch.Tensor]
"""What a module gave: its name, cosines and sines [1, tokens, channels]."""


def masks(trial: Trial, passes: Sequence[Mask], since: int = 0) -> Iterator[Hypothesis]:
    """Of every argument that ends in [length, length] and has seen and unseen keys. `passes`: of each case, whether a
    query's pass is not before a key's; `since`: first position that is wrong; 0: not known."""
    pairs, first = tuple(zip(trial.cases, passes, strict=True)), trial.cases[0]
    for slot, mask in slots((first.arguments, first.named)):
        if tuple(mask.shape[-2:]) == (first.length, first.length) and first.length > 1 and mask.dim() > 1:
            seen = _seen(mask)
            for number, (name, words, _) in enumerate(_other_masks(seen, since) if seen is not None else ()):
                yield Hypothesis(f"mask: {name}", words, arguments=partial(_masked, slot, number, since, pairs),
                                 rank=MASK)


def _masked(wanted: str, number: int, since: int, passes: Sequence[tuple[Case, Mask]], given: Arguments) -> Arguments:
    """The mask in this slot is the one of this number among the others."""
    own = [mask for case, mask in passes if case.named is given[1]]  # none where the whole model runs

    def change(slot: str, mask: torch.Tensor) -> torch.Tensor:
        seen = _seen(mask) if slot == wanted else None
        if seen is None:
            return mask
        other = _other_masks(seen, since)[number][2]
        other = other & own[0] if own else other
        return _like(mask, other | (seen & ~other.any(-1, keepdim=True)))
    made: Arguments = changed(given, change)
    return made


def _seen(mask: torch.Tensor) -> Mask | None:
    """Whether keys are seen; None when it is no mask."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        return None
    low = mask <= torch.finfo(mask.dtype).min / 2
    return ~low if bool(((mask == 0) | low).all()) else None


def _like(mask: torch.Tensor, seen: Mask) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return seen
    return torch.zeros_like(mask).masked_fill(~seen, torch.finfo(mask.dtype).min)


def _other_masks(seen: Mask, since: int) -> list[tuple[str, str, Mask]]:
    """Always as many and in the same order."""
    length = seen.shape[-1]
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    causal = (key <= query).expand_as(seen)
    window = int(seen.sum(-1).max())
    found = [("one token ahead", "lets every token see the one behind it",
              (seen | (key == query + 1)).expand_as(seen)),
             ("itself not", "keeps every token from seeing itself", (seen & ((key < query) | (query == 0)))),
             ("not causal", "lets tokens see what comes behind them", torch.ones_like(seen)),
             ("no window", "lets tokens see all that is before them", causal)]
    sizes = {"one token longer": window + 1, "one token shorter": window - 1, "doubled": window * 2,
             "halved": window // 2}
    if since:
        sizes |= {"one that ends where the error begins": since, "one that ends just before": since - 1,
                  "one that ends just behind": since + 1}
    found += [(f"window {how}", f"has a window that is {how} ({size} for {window} tokens)",
               causal & (key > query - max(1, size))) for how, size in sizes.items()]
    return found


def skipped(trial: Trial) -> Iterator[Hypothesis]:
    """The module is not run at all: what it is given comes out, or nothing."""
    if trial.place.name == trial.by.name and trial.place.what == "output":
        yield Hypothesis("skipped", f"skips {trial.by.name or 'the model'}: what it is given comes out",
                         runs=lambda: [_given(case) for case in trial.cases], rank=MASK)
        yield Hypothesis("nothing", f"gets nothing from {trial.by.name or 'the model'}: zeros come out",
                         runs=lambda: [torch.zeros_like(each) for each in trial.values() or ()], rank=MASK)


def _given(case: Case) -> torch.Tensor:
    """Rows of the first tensor of numbers that the module is given."""
    first = next((tensor for _, tensor in slots((case.arguments, case.named)) if tensor.is_floating_point()), None)
    rows = rows_of(first, case.length) if first is not None else None
    if rows is None:
        raise ValueError("what is given has no rows")
    return rows


def tables(given: Arguments, length: int, elsewhere: Sequence[Pair]) -> Iterator[Hypothesis]:
    """Of every pair of arguments that are cosines and sines for each token. `elsewhere`: what other calls made."""
    found = [(slot, table) for slot, table in slots(given) if _is_table(table, length)]
    for (first, cos), (second, sin) in pairwise(found):
        if cos.shape != sin.shape or not _are_pair(cos, sin):
            continue
        for name, words, pair in _other_tables(cos, sin):
            yield _both(f"rotary table: {name}", words, (first, second), pair)
        for name, *other in elsewhere:
            if all(each.shape == cos.shape for each in other) and not torch.equal(other[0], cos):
                yield _both("rotary table: of another kind of layer", f"takes the rotary table {name}",
                            (first, second), (other[0], other[1]))


def _is_table(table: torch.Tensor, length: int) -> bool:
    return (table.is_floating_point() and table.dim() >= 2 and table.shape[-2] == length
            and table.numel() == length * table.shape[-1])


def _are_pair(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """cos^2 + sin^2 is the same for all tokens."""
    square = cos.float() ** 2 + sin.float() ** 2
    return bool((square - square.mean()).abs().max() < 0.05 * square.mean())


def _other_tables(cos: torch.Tensor, sin: torch.Tensor) -> list[tuple[str, str, tuple[torch.Tensor, torch.Tensor]]]:
    def rows(by: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions moved: the angle of one step is turned by."""
        one_cos, one_sin = cos[..., 1:2, :] / _size(cos, sin), sin[..., 1:2, :] / _size(cos, sin)
        one_sin = one_sin * by
        return cos * one_cos - sin * one_sin, sin * one_cos + cos * one_sin

    found = [("not applied", "does not rotate", (torch.ones_like(cos), torch.zeros_like(sin))),
             ("other direction", "rotates in the other direction", (cos, -sin)),
             ("exchanged", "has cosines and sines exchanged", (sin, cos)),
             ("unscaled", "leaves the factor of the rotary table out", (cos / _size(cos, sin), sin / _size(cos, sin))),
             ("scaled twice", "takes the factor of the rotary table twice",
              (cos * _size(cos, sin), sin * _size(cos, sin)))]
    if cos.shape[-2] > 1:
        found += [("one position on", "counts positions from one", rows(1)),
                  ("one position back", "counts positions from minus one", rows(-1))]
    return found


def _size(cos: torch.Tensor, sin: torch.Tensor) -> float:
    return float((cos.float() ** 2 + sin.float() ** 2).mean().sqrt())


def _both(name: str, words: str, slots: tuple[str, str], pair: tuple[torch.Tensor, torch.Tensor]) -> Hypothesis:
    table = dict(zip(slots, pair, strict=True))

    def change(given: Arguments) -> Arguments:
        made: Arguments = changed(given, lambda slot, tensor: table[slot].to(tensor.dtype)
                                  if slot in table and table[slot].shape == tensor.shape else tensor)
        return made
    return Hypothesis(name, words, arguments=change, rank=TABLE)


def positions(given: Arguments, length: int) -> Iterator[Hypothesis]:
    """Of integers that count tokens: from one on, or each one less."""
    count = torch.arange(length)
    for slot, tensor in slots(given):
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel() == length and torch.equal(
                tensor.reshape(-1), count):
            for by in (1, -1):
                yield Hypothesis("positions", f"counts positions from {'one' if by > 0 else 'minus one'}",
                                 arguments=_instead(slot, tensor.shape, tensor + by), rank=TABLE)


def _instead(wanted: str, shape: Any, other: torch.Tensor) -> Callable[[Arguments], Arguments]:
    def change(given: Arguments) -> Arguments:
        made: Arguments = changed(given, lambda slot, tensor: other if slot == wanted and tensor.shape == shape
                                  else tensor)
        return made
    return change
