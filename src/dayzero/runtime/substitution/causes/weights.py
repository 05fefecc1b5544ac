"""Hypotheses about a parameter: moved, cut, scaled, rounded, of another layer, expert or rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import nn

from dayzero.runtime.substitution.trial import Hypothesis, replacing

WEIGHT, PART = 3, 4
"""Ranks: of the whole parameter, or of a part of it."""
RANKS = (2, 4, 8)
"""Shares into which a parameter may have been cut."""
_F8 = 448.0
Change = Callable[[torch.Tensor], torch.Tensor]


def whole(module: nn.Module, name: str) -> Iterator[Hypothesis]:
    """Every parameter and buffer of the module itself, each changed as a whole."""
    for key, weight in _own(module):
        for how, words, change in _changes(weight):
            yield _hypothesis(module, key, f"weight: {how}", f"has {words} {key} of {name}", change)


def slices(module: nn.Module, name: str, numbers: list[int]) -> Iterator[Hypothesis]:
    """The same of single experts, by their numbers, of parameters that hold all of them; and two exchanged."""
    for one, other in _pairs(numbers):
        parts = [key for key, weight in _own(module) if weight.dim() >= 2 and max(one, other) < len(weight)]
        yield Hypothesis("weight: experts exchanged", f"has the weights of experts {one} and {other} exchanged",
                         partial(_changed, module, parts, _exchanged(one, other)), rank=WEIGHT)
    for key, weight in _own(module):
        if weight.dim() != 3:
            continue
        for number in numbers:
            if number >= len(weight):
                continue
            for how, words, change in _changes(weight[number]):
                yield _hypothesis(module, key, f"weight of an expert: {how}",
                                  f"has {words} {key} of expert {number} of {name}", _of(number, change), PART)


def of_others(module: nn.Module, name: str, alike: Mapping[str, nn.Module], hit: tuple[int, int] | None
              ) -> Iterator[Hypothesis]:
    """The whole, or the rows of a rank, of the same parameter of another layer (`alike`: modules by name); the rows of
    a rank again, or none. `hit`: range of the output's channels that are wrong."""
    for key, weight in _own(module):
        for other, twin in alike.items():
            theirs = getattr(twin, key, None)
            if isinstance(theirs, torch.Tensor) and theirs.shape == weight.shape and not torch.equal(theirs, weight):
                beside = other.rpartition(".")[0] == name.rpartition(".")[0]
                yield _hypothesis(module, key, "weight: exchanged with one beside it" if beside else
                                  "weight: of another layer", f"has {key} of {other} in the place of that of {name}",
                                  partial(_taken, theirs))
        for axis in range(min(2, weight.dim())):
            for ranks in RANKS:
                yield from _shares(module, name, key, weight, axis, ranks, alike, hit)


def _shares(module: nn.Module, name: str, key: str, weight: torch.Tensor, axis: int, ranks: int,
            alike: Mapping[str, nn.Module], hit: tuple[int, int] | None) -> Iterator[Hypothesis]:
    size, rest = divmod(weight.shape[axis], ranks)
    if rest or not size:
        return
    where = "rows" if axis == 0 else "columns"
    for rank in range(ranks):
        first = rank * size
        if axis == 0 and hit is not None and not (hit[0] < first + size and first < hit[1]):
            continue
        share = f"{where} {first} to {first + size - 1} of {key} of {name}, rank {rank} of {ranks},"
        yield _hypothesis(module, key, "weight: a rank's share is missing", f"has zeros in {share}",
                          _share(axis, first, size, torch.zeros_like(weight), first), PART)
        for source in range(ranks):
            if source != rank:
                yield _hypothesis(module, key, "weight: another rank's share", f"has those of rank {source} in {share}",
                                  _share(axis, first, size, weight, source * size), PART)
        for other, twin in list(alike.items())[:4]:
            theirs = getattr(twin, key, None)
            if isinstance(theirs, torch.Tensor) and theirs.shape == weight.shape:
                yield _hypothesis(module, key, "weight: a stale share", f"has those of {other} in {share}",
                                  _share(axis, first, size, theirs, first), PART)


def _share(axis: int, first: int, size: int, source: torch.Tensor, start: int) -> Change:
    def change(weight: torch.Tensor) -> torch.Tensor:
        made = weight.clone()
        made.narrow(axis, first, size).copy_(source.narrow(axis, start, size))
        return made
    return change


def _own(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(key, value) for key, value in {**module._parameters, **module._buffers}.items()
            if value is not None and value.is_floating_point() and not value.is_meta]


def _changes(weight: torch.Tensor) -> list[tuple[str, str, Change]]:
    """(what, words before the name, change)"""
    found: list[tuple[str, str, Change]] = [
        ("missing", "zeros in the place of", torch.zeros_like), ("ones", "ones in the place of", torch.ones_like),
        ("negated", "the negative of", torch.neg), ("one more", "one added to", lambda each: each + 1),
        ("one less", "one taken off", lambda each: each - 1), ("doubled", "twice", lambda each: each * 2),
        ("halved", "half of", lambda each: each / 2),
        ("rounded to bf16", "bf16 roundings of", lambda each: each.bfloat16().to(each.dtype)),
        ("rounded to f16", "f16 roundings of", lambda each: each.half().to(each.dtype)),
        ("rounded to f8", "8-bit roundings (one scale) of", _eight_bits),
        ("rounded to f8 by rows", "8-bit roundings (a scale for each row) of", partial(_eight_bits, rows=True)),
        ("rounded to f8 without a scale", "8-bit roundings (no scale) of",
         lambda each: each.to(torch.float8_e4m3fn).to(each.dtype)),
    ]
    for axis in range(weight.dim()):
        size, of = weight.shape[axis], "rows" if axis == weight.dim() - 2 else "columns" if axis else "entries"
        if size < 2:
            continue
        for how, words, index in _moves(size):
            found.append((f"{of} {how}", f"{words} {of} of",
                          partial(torch.index_select, dim=axis, index=index)))
    if weight.dim() >= 2 and weight.shape[-1] == weight.shape[-2]:
        found.append(("transposed", "the transpose of", lambda each: each.transpose(-1, -2).contiguous()))
    return found


def _moves(size: int) -> list[tuple[str, str, torch.Tensor]]:
    count = torch.arange(size)
    found = [("reversed", "in reverse order the", count.flip(0)), ("shifted by one", "shifted by one the",
             count.roll(1)), ("shifted back by one", "shifted back by one the", count.roll(-1))]
    if size % 2 == 0 and size > 2:
        found += [("halves exchanged", "with halves exchanged the", count.roll(size // 2)),
                  ("interleaved", "interleaved (halves taken in turn) the", count.view(2, -1).T.reshape(-1)),
                  ("taken apart", "taken apart (every other one first) the", count.view(-1, 2).T.reshape(-1))]
    if size % 3 == 0:  # as queries, keys and values that are kept as one
        one, other, last = count.view(3, -1)
        found += [("first two thirds exchanged", "with the first two thirds exchanged the",
                   torch.cat((other, one, last))),
                  ("last two thirds exchanged", "with the last two thirds exchanged the",
                   torch.cat((one, last, other)))]
    return found


def _eight_bits(weight: torch.Tensor, *, rows: bool = False) -> torch.Tensor:
    scale = (weight.abs().amax(-1, keepdim=True) if rows else weight.abs().amax()).clamp(min=1e-30) / _F8
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


def _taken(theirs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return theirs


def _of(number: int, change: Change) -> Change:
    def changed(weight: torch.Tensor) -> torch.Tensor:
        made = weight.clone()
        made[number] = change(weight[number])
        return made
    return changed


def _exchanged(one: int, other: int) -> Change:
    def change(weight: torch.Tensor) -> torch.Tensor:
        order = torch.arange(len(weight))
        order[one], order[other] = other, one
        return weight[order]
    return change


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return [(one, other) for place, one in enumerate(numbers) for other in numbers[place + 1:]]


def _hypothesis(module: nn.Module, key: str, name: str, words: str, change: Change, rank: int = WEIGHT) -> Hypothesis:
    return Hypothesis(name, words, partial(_changed, module, (key,), change), rank=rank)


@contextmanager
def _changed(module: nn.Module, keys: Sequence[str], change: Change) -> Iterator[None]:
    with ExitStack() as stack:
        for key in keys:
            stack.enter_context(replacing(module, key, change(getattr(module, key).detach())))
        yield
