"""Runs the experts that tokens chose when only some of them are in memory.

    stacked   The module's parameters become the slots, its number of experts the number of slots, and the numbers of
              the chosen experts those of their slots. Where more are chosen than there are slots, each choice of a
              token becomes a token of its own with one choice, groups of experts are read and run one after the other,
              and the results are added over the choices in their order, whatever the groups were. Ranks that share the
              width of experts add up rows that are in the order of slots: there all have the same expert in a slot.
    list      Each expert is filled before its forward and emptied after it.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dayzero.errors import NotPossible

from .parts import Experts, Unit
from .placing import Placing, empty, fill, put
from .slots import Slots, Stacked

Foresee = Callable[[int, torch.Tensor, Sequence[int]], None]
"""Told when experts begin: which of the model's, their input, the numbers of those that are chosen."""
_CLOSE = 0.02
"""Relative; coarser than a narrow float rounds."""
Plain = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(hidden, expert of each choice, weight of each choice) -> sum over the choices."""


class StackedExperts:
    """See above. Numbers of experts are those of this rank; a choice of weight 0 is not read for."""

    def __init__(self, number: int, found: Experts, slots: Slots, store: Stacked, foresee: Foresee, placing: Placing
                 ) -> None:
        self._number, self._found, self._slots, self._store = number, found, slots, store
        self._foresee, self._placing = foresee, placing
        self._scales: bool | None = None
        self._plain: Callable[..., Any] = found.module.forward

    def install(self) -> None:
        """Make the slots the module's parameters."""
        module, count = self._found.module, len(next(self._found.module.parameters(recurse=False)))
        for leaf, tensor in self._store.tensors.items():
            put(module, leaf, self._placing.parameter(f"{self._found.name}.{leaf}", tensor))
        for name, value in list(vars(module).items()):
            if value == count and type(value) is int and "expert" in name:
                setattr(module, name, self._slots.count)
        module.forward = self.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own."""
        values = [*args, *kwargs.values()]
        index = next((at for at, each in enumerate(values) if _whole_numbers(each)), None)
        weight = None if index is None else next(
            (at for at, each in enumerate(values) if isinstance(each, torch.Tensor) and each.is_floating_point()
             and each.shape == values[index].shape and at), None)
        if index is None or weight is None:
            raise NotPossible(f"{self._found.name} is not given a weight for each chosen expert",
                              "keep all weights in memory")

        def plain(hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> Any:
            given = list(values)
            given[0], given[index], given[weight] = hidden, chosen, weights
            return self._plain(*given[:len(args)], **dict(zip(kwargs, given[len(args):], strict=True)))

        try:
            return self._run(plain, values[0], values[index], values[weight])
        finally:
            self._slots.release()

    def _run(self, plain: Plain, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        used = (weights != 0) & (index >= 0) & (index < len(self._found.units))
        hit = sorted(set(index[used].tolist()))
        if len(hit) > self._slots.count:
            return self._in_groups(plain, hidden, index, weights, used, hit)
        units = [self._found.units[each] for each in hit]
        self._slots.need(units)
        self._foresee(self._number, hidden, hit)
        table = self._table(hit, self._slots.finish(units), index)
        return plain(hidden, table[index.clamp(0, len(table) - 1)], torch.where(used, weights, 0))

    def _table(self, hit: list[int], slots: list[int], index: torch.Tensor) -> torch.Tensor:
        """The slot of each expert; of one that is not there, that of any other."""
        table = torch.full((len(self._found.units),), slots[0] if slots else 0, dtype=index.dtype)
        table[hit] = torch.tensor(slots, dtype=index.dtype)
        return table.to(index.device)

    def _in_groups(self, plain: Plain, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor,
                   used: torch.Tensor, hit: list[int]) -> torch.Tensor:
        if hidden.dim() != 2 or index.dim() != 2:
            raise NotPossible(f"{self._found.name} gets {list(hidden.shape)} with choices {list(index.shape)}",
                              f"give room for {len(hit)} experts at a time")
        choices = index.shape[1]
        index, weights, used = index.flatten(), weights.flatten(), used.flatten()
        parts = torch.zeros((len(index), hidden.shape[1]), device=hidden.device,
                            dtype=torch.promote_types(hidden.dtype, weights.dtype))
        groups = self._groups(hit)
        for at, group in enumerate(groups):
            units = [self._found.units[each] for each in group]
            self._slots.need(units)
            if at + 1 < len(groups):
                self._slots.ahead([self._found.units[each] for each in groups[at + 1]])
            table = self._table(group, self._slots.finish(units), index)
            rows = (used & torch.isin(index, torch.tensor(group, device=index.device))).nonzero()[:, 0]
            if len(rows):
                parts[rows] = self._weighted(plain, hidden[rows // choices], table[index[rows]][:, None],
                                             weights[rows][:, None]).to(parts.dtype)
            self._slots.release()
        return parts.view(-1, choices, hidden.shape[1]).sum(1).to(hidden.dtype)

    def _weighted(self, plain: Plain, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """One choice of each token. The weight is applied outside of the module, where the sum over choices is made in
        the precision of the weights, if the module does nothing else with it than to scale the output."""
        ones = torch.ones_like(weights)
        if self._scales is None:
            inside, outside = plain(hidden[:1], index[:1], weights[:1]), plain(hidden[:1], index[:1], ones[:1])
            self._scales = torch.allclose(inside.float(), outside.float() * weights[:1].float(), rtol=_CLOSE,
                                          atol=_CLOSE * float(inside.abs().max()))
        return plain(hidden, index, ones) * weights if self._scales else plain(hidden, index, weights)

    def _groups(self, hit: list[int]) -> list[list[int]]:
        """What is there first; half of the slots at a time, so that the next can be read while one is run."""
        size = max(1, self._slots.count // 2)
        there = [each for each in hit if self._slots.there(self._found.units[each])]
        order = there + [each for each in hit if each not in set(there)]
        return [order[at:at + size] for at in range(0, len(order), size)]


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() >= 1


class ListedExperts:
    """See above."""

    def __init__(self, number: int, found: Experts, slots: Slots, foresee: Foresee, placing: Placing) -> None:
        self._number, self._found, self._slots, self._foresee = number, found, slots, foresee
        self._placing = placing

    def install(self) -> None:
        """Hooks on each expert, and on the router where it tells which are chosen."""
        for unit, child in zip(self._found.units, self._found.module.children(), strict=True):
            if unit.parts:
                child.register_forward_pre_hook(self._before(unit))
                child.register_forward_hook(self._after(unit))
        if self._found.router:
            self._found.router[1].register_forward_hook(self._routed)

    def _routed(self, router: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Begin to read all that are chosen before the first of them runs."""
        del router
        index = chosen(output)
        if index is None or not args:
            return
        self._slots.release()  # what the last layer had chosen and the code then did not run
        hit = [each for each in sorted(set(index.flatten().tolist())) if 0 <= each < len(self._found.units)]
        units = [self._found.units[each] for each in hit if self._found.units[each].parts]
        if len(units) <= self._slots.count:
            self._slots.need(units)
            self._foresee(self._number, args[0], hit)

    def _before(self, unit: Unit) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any) -> None:
            if not self._slots.held(unit):
                self._slots.need([unit])
            self._slots.finish([unit])
            fill(module, self._slots.views(unit), self._placing)

        return hook

    def _after(self, unit: Unit) -> Callable[..., None]:
        def hook(module: nn.Module, *_: Any) -> None:
            empty(module, unit.parts)
            self._slots.release(unit)

        return hook


def chosen(output: Any) -> torch.Tensor | None:
    """The tensor of whole numbers among what a router gives."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    return next((each for each in values if _whole_numbers(each)), None)
