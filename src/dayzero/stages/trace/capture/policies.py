"""What a traced tensor answers when code asks for its value, and where it was asked. The policies are data; routing is
spread evenly over the experts. Needs torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dayzero.data.operators import Answer, Operators

from .sites import Site, site


class Routing(NamedTuple):
    """How the tokens of a step are spread: `experts` (those without weights too) of which each token visits `top_k`; 0:
    the model has none."""

    experts: int = 0
    top_k: int = 0
    tokens: int = 0

    def share(self, nth: int, of: int) -> int:
        """Visits of the nth of some experts that get all visits."""
        visits = self.tokens * self.top_k
        return visits * (nth % of + 1) // of - visits * (nth % of) // of

    def number(self, nth: int, of: int) -> int:
        """Which expert is the nth of some that get a token."""
        return nth % of * self.experts // of

    @property
    def hit(self) -> int:
        """Experts that get a token."""
        return min(self.experts, self.tokens * self.top_k)


class Policies:
    """Answers for one step of a model."""

    def __init__(self, table: Operators, routing: Routing) -> None:
        self._table = table
        self.routing = routing
        self._asked: dict[tuple[Any, ...], int] = {}
        self._looped: dict[str, int] = {}

    def begin(self, tokens: int) -> None:
        """Another step begins, with so many tokens in all."""
        self.routing = self.routing._replace(tokens=tokens)
        self._asked.clear()
        self._looped.clear()

    def answer(self, answer: Answer, args: Any, place: str, routed: bool, made_by: str) -> tuple[Any, Site]:
        """The result of an operator that asks, and what was assumed where. `place`: the module that runs; `routed`:
        whether it sends tokens to experts; `made_by`: the operator whose result is asked for, if it is the last."""
        file, line = site()
        made: dict[str, Any] = {
            "value": self._value, "rows": self._rows, "host": self._host, "distinct": self._distinct,
            "bins": self._bins, "chosen": self._chosen, "repeated": self._repeated}  # fmt: skip
        result, assumed = made[answer.answer](answer, args[0], args, _Where(file, line, place, routed, made_by))
        return result, Site(file, line, answer.kind, assumed)

    def hits(self, asked: torch.Tensor, where: _Where) -> int:
        """Elements that are not zero: all of them where no tokens are routed. Of a row with an entry for each expert
        those that get a token; of tokens or visits the share that goes to one expert, then to the next."""
        size, routing = asked.numel(), self.routing
        if not (routing.experts and where.routed):
            return size
        visits, line = routing.tokens * routing.top_k, asked.dim() == 1
        if (size == routing.experts and (line or size != visits)) or (line and size not in (routing.tokens, visits)):
            self._looped[where.place] = min(routing.hit, size)
            return self._looped[where.place]
        nth = self._asked[where[:3]] = self._asked.get(where[:3], -1) + 1
        return min(size, routing.share(nth, self._looped.get(where.place, routing.experts)))

    def _rows(self, _answer: Answer, asked: torch.Tensor, _args: Any, where: _Where) -> tuple[Any, str]:
        hits = self.hits(asked, where)
        return _meta((hits, asked.dim())), f"{hits} of {asked.numel()}"

    def _chosen(self, _answer: Answer, asked: torch.Tensor, args: Any, where: _Where) -> tuple[Any, str]:
        hits = self.hits(args[1], where)
        return _meta((hits,), asked.dtype), f"{hits} of {args[1].numel()}"

    def _value(self, answer: Answer, asked: torch.Tensor, _args: Any, where: _Where) -> tuple[Any, str]:
        value = self._number(asked, where)
        value = answer.after.get(where.made_by, answer.value) if value is None else value
        truth = asked.dtype is torch.bool or answer.op == "aten.equal"
        result = bool(value) if truth else float(value) if asked.dtype.is_floating_point else value
        return result, str(result)

    def _number(self, asked: torch.Tensor, where: _Where) -> int | None:
        """In a loop over the experts that get a token: the number of the next. None: something else is asked."""
        looped = self._looped.get(where.place)
        if not (looped and where.routed) or asked.dtype not in (torch.int64, torch.int32) or where.made_by:
            return None
        nth = self._asked[where[:3]] = self._asked.get(where[:3], -1) + 1
        return self.routing.number(nth, looped)

    def _host(self, answer: Answer, asked: torch.Tensor, _args: Any, where: _Where) -> tuple[Any, str]:
        experts = self.routing.experts
        if experts and asked.numel() == experts and not asked.dtype.is_floating_point:
            counts = torch.tensor([self.routing.share(nth, experts) for nth in range(experts)], dtype=asked.dtype)
            counts = counts.cumsum(0).to(asked.dtype) if where.made_by == "aten.cumsum" else counts
            total = self.routing.tokens * self.routing.top_k
            return counts.view(asked.shape), f"{experts} balanced counts, {total} in all"
        value = answer.after.get(where.made_by, answer.value)
        return torch.full(tuple(asked.shape), value, dtype=asked.dtype), f"{asked.numel()} times {value}"

    def _distinct(self, answer: Answer, asked: torch.Tensor, _args: Any, where: _Where) -> tuple[Any, str]:
        routed = self.routing.experts and where.routed
        found = min(asked.numel(), self.routing.hit if routed else asked.numel())
        counts = _meta((found,))
        return (_meta((found,), asked.dtype), _meta(tuple(asked.shape)), counts), f"{found} distinct of {asked.numel()}"

    def _bins(self, _answer: Answer, asked: torch.Tensor, args: Any, where: _Where) -> tuple[Any, str]:
        least = next((arg for arg in args[1:] if isinstance(arg, int)), 0)
        bins = max(least, self.routing.experts if where.routed and not least else 1)
        return _meta((bins,)), f"{bins} bins"

    def _repeated(self, _answer: Answer, asked: torch.Tensor, _args: Any, where: _Where) -> tuple[Any, str]:
        routed = self.routing.experts and asked.numel() in (self.routing.experts, self.routing.hit)
        total = self.routing.tokens * self.routing.top_k if routed else asked.numel()
        return _meta((total,)), f"{total} in all"


class _Where(NamedTuple):
    file: str
    line: int
    place: str
    routed: bool
    made_by: str


def _meta(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
