"""Check: what the backend says about operators is true."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from dayzero.backends import Backend
from dayzero.backends.dispatch import overloads

from .nouns import Failure, Skip, require

_RUN: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten.mm": lambda x: torch.mm(x, x), "aten.topk": lambda x: torch.topk(x, 2).values,
    "aten.relu": torch.relu, "aten.cumsum": lambda x: torch.cumsum(x, -1), "aten.erfinv": lambda x: torch.erfinv(x / 9),
    "aten.lgamma": torch.lgamma, "aten.nextafter": lambda x: torch.nextafter(x, x + 1),
    "aten.igamma": lambda x: torch.igamma(x.abs() + 1, x.abs()), "aten.tril": torch.tril,
    "aten.argmax": lambda x: torch.argmax(x, -1), "aten.special_entr": torch.special.entr,
    "aten.logit": lambda x: torch.logit(x.sigmoid()), "aten.frexp": lambda x: torch.frexp(x).mantissa,
}
"""Operators that models use, and some that devices tend not to have."""
_RUNS = ("native", "composite", "fallback")


@runtime_checkable
class Denies(Protocol):
    """A backend that can be made to lack operators."""

    def denying(self, operators: list[str], *, fallback: bool = True) -> AbstractContextManager[None]:
        """Inside of it its devices lack these; without `fallback` they raise NotImplementedError."""

    def forget(self) -> None:
        """Warn anew."""


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Said and done; what is denied."""
    yield "said", lambda: _said(backend)
    yield "denied", lambda: _denied(backend)


def _said(backend: Backend) -> str:
    """Each operator that it says it computes is computed; what it says falls back says so."""
    values = torch.linspace(-3, 3, 64).reshape(8, 8)
    there = values.to(backend.device())
    counts: dict[str, int] = {}
    if isinstance(backend, Denies):
        backend.forget()
    for op, call in _RUN.items():
        if not overloads(op):
            continue
        status = backend.supported(op, "f32").status
        counts[status] = counts.get(status, 0) + 1
        try:
            told, got = _warned(partial(call, there))
        except NotImplementedError as error:
            require(status not in _RUNS, f"{op} is {status}, and raises: {error}")
            continue
        require(status != "none", f"{op} is said not to be there, and is computed")
        require(status != "fallback" or told, f"{op} is said to fall back, and nobody was warned")
        require(status == "fallback" or not _names(told, op), f"{op} is said to be {status}, and falls back")
        require(torch.allclose(got.cpu().double(), call(values).double(), rtol=1e-4, atol=1e-4, equal_nan=True),
                f"{op} gives other values than on the host")
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def _names(warned: list[str], op: str) -> bool:
    """Whether a warning names the operator."""
    return any(re.search(rf"\b{op.removeprefix('aten.')}\b", text) for text in warned)


def _denied(backend: Backend) -> str:
    if not isinstance(backend, Denies):
        raise Skip("its operators cannot be denied")
    values = torch.linspace(-3, 3, 64).reshape(8, 8)
    there = values.to(backend.device())
    backend.forget()
    with backend.denying(["aten.topk"]):
        said = backend.supported("aten.topk", "f32").status
        require(said == "fallback", f"a denied operator is said to be {said}")
        told, got = _warned(lambda: (there.topk(2).values, there.topk(3).values)[0])
        require(torch.equal(got.cpu(), values.topk(2).values), "a denied operator gives other values")
        named = [text for text in told if "topk" in text]
        require(len(named) == 1, f"{len(named)} warnings name the denied operator after two calls")
    with backend.denying(["aten.topk"], fallback=False):
        require(backend.supported("aten.topk", "f32").status == "none", "without fallback it is not said to be missing")
        try:
            there.topk(2)
        except NotImplementedError as error:
            require("topk" in str(error), f"the error does not name the operator: {error}")
        else:
            raise Failure("a denied operator without fallback is computed")
    require(backend.supported("aten.topk", "f32").status == "native", "it stays denied afterwards")
    return "falls back with one warning; raises without fallback; is back afterwards"


def _warned(call: Callable[[], Any]) -> tuple[list[str], torch.Tensor]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = call()
    return [str(each.message) for each in caught], made
