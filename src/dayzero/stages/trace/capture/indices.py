"""The number of a layer as code sees it, and lists that are kept per layer: both remember how they were used, so that
what one layer did with its own number can be asked again for another. Needs no torch.

An `Index` is the integer; comparing it (or what was computed from it) leaves a guard: the question and its answer.
Using it as a subscript leaves none: a `Tracked` list tells which of its items were touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Steps = tuple[tuple[str, tuple[Any, ...]], ...]
COMPUTE = ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "truediv", "rtruediv", "mod", "rmod",
           "pow", "rpow", "neg", "and", "rand", "or", "ror", "xor", "lshift", "rshift", "abs", "divmod")  # fmt: skip
ASK = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "str", "repr", "format", "int", "float", "index")


class Guard(NamedTuple):
    """One question about a layer's number."""

    steps: Steps
    """Methods of int that were called one after the other, with their arguments."""
    answer: Any
    """What came out."""

    def holds(self, number: int) -> bool:
        """Whether another layer's number gives the same answer."""
        try:
            answer = _apply(number, self.steps)
        except (TypeError, ValueError, ArithmeticError):
            return False
        return type(answer) is type(self.answer) and bool(answer == self.answer)


class Touch(NamedTuple):
    """One item of a list that was read or written."""

    items: Tracked
    """The list."""
    key: int | None
    """Position; None: the layer's own number."""
    before: Any
    """What is known of the item just before."""


class Log(list["Guard | Touch"]):
    """What was asked and touched, in order; kept while something runs whose use of its number matters."""

    active = 0
    describe: Callable[[Any], Any]


def _apply(value: Any, steps: Steps) -> Any:
    for name, others in steps:
        value = getattr(value, name)(*others)
        if value is NotImplemented:
            raise TypeError(name)
    return value


class Computed:
    """A number computed from an Index; not an int, so that any use as one is seen."""

    def __init__(self, value: Any, number: int, steps: Steps, log: Log) -> None:
        self._value, self._number, self._steps, self._log = value, number, steps, log


class Index(int):
    """A layer's own number."""

    _log: Log

    @classmethod
    def of(cls, number: int, log: Log) -> Index:
        """The number with the log that its guards go to."""
        index = cls(number)
        index._log = log
        return index


def _plain(value: Any) -> Any:
    if isinstance(value, Index):
        return int.__int__(value)
    return value._value if isinstance(value, Computed) else value


def _method(name: str, asks: bool) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        others = tuple(map(_plain, others))
        number = int.__int__(self) if isinstance(self, Index) else self._number
        value = number if isinstance(self, Index) else self._value
        steps = () if isinstance(self, Index) else self._steps
        own = getattr(type(value), name, None)
        answer = own(value, *others) if own is not None else NotImplemented
        if answer is NotImplemented:
            return answer
        steps = (*steps, (name, others))
        if not asks and isinstance(answer, (int, float)):
            return Computed(answer, number, steps, self._log)
        if self._log.active:
            self._log.append(Guard(steps, answer))
        return answer

    return method


for _name in (*COMPUTE, *ASK):
    for _class in (Index, Computed):
        setattr(_class, f"__{_name}__", _method(f"__{_name}__", _name in ASK))


class Tracked(list[Any]):
    """A list with an item for each layer."""

    log: Log

    @classmethod
    def of(cls, items: list[Any], log: Log) -> Tracked:
        """The items with the log that touches go to."""
        tracked = cls(items)
        tracked.log = log
        return tracked

    def touch(self, key: Any) -> None:
        """Remember that an item is about to be used; a use of several touches each."""
        if not self.log.active:
            return
        keys = [key] if isinstance(key, int) else range(len(self))
        for each in keys:
            own = isinstance(each, Index)
            position = int.__int__(each) if own else each % len(self) if self else 0
            before = self.log.describe(list.__getitem__(self, position)) if position < len(self) else None
            self.log.append(Touch(self, None if own else position, before))

    def __getitem__(self, key: Any) -> Any:
        self.touch(key)
        return list.__getitem__(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.touch(key)
        list.__setitem__(self, key, value)

    def __iter__(self) -> Iterator[Any]:
        self.touch(None)
        return list.__iter__(self)

    def __contains__(self, value: Any) -> bool:
        self.touch(None)
        return list.__contains__(self, value)
