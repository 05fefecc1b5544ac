"""A length that was seen at several workloads, as an expression in batch, tokens and context. No torch.

A dimension of a tensor is nearly always a polynomial of degree one in each: solved exactly over the integers from a few
small runs, and verified at the workload that was asked for and at one beyond all bounds that the model states. What is
smaller there than the polynomial says is bounded by a number of the config (a window, a top k); what is rounded is so
to a multiple of one (a chunk, tokens that share an entry). Nothing else is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from dayzero.errors import DayzeroError
from dayzero.expression import evaluate

NAMES = ("batch", "tokens", "context")
Powers = tuple[int, int, int]
"""Exponents of batch, tokens and context."""
Polynomial = dict[Powers, int]
"""Exponents -> coefficient, without zeros."""
PREFILL: tuple[Powers, ...] = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0))
DECODE: tuple[Powers, ...] = ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1))
BOTH: tuple[Powers, ...] = (*PREFILL, (0, 0, 1), (1, 0, 1))


class Sample(NamedTuple):
    """A length at one workload."""

    batch: int
    tokens: int
    context: int
    value: int

    def at(self, powers: Powers) -> int:
        """The product of the workload's sizes to these powers."""
        result: int = self.batch ** powers[0] * self.tokens ** powers[1] * self.context ** powers[2]
        return result


class Seen(NamedTuple):
    """A length at all workloads that were run."""

    own: tuple[Sample, ...]
    """Small runs of its phase."""
    other: tuple[Sample, ...]
    """Small runs of the other phase; empty: there it does not exist."""
    asked: tuple[Sample, ...]
    """The runs that were asked for, of its own phase first."""
    far: tuple[Sample, ...] = ()
    """Runs of its phase beyond all bounds that the model states."""
    other_far: tuple[Sample, ...] = ()
    """Such runs of the other phase."""

    @property
    def larger(self) -> tuple[Sample, ...]:
        """Those of its phase that are not small."""
        return (*self.asked[:1], *self.far)

    @property
    def everywhere(self) -> tuple[Sample, ...]:
        """All of both phases."""
        return (*self.own, *self.other, *self.asked, *self.far, *self.other_far)


class Length(NamedTuple):
    """A length as a polynomial times what is none."""

    polynomial: Polynomial
    text: str = ""
    """Expression of the factor that is no polynomial; empty: there is none."""


def solve(powers: Sequence[Powers], samples: Sequence[Sample]) -> Polynomial | None:
    """The polynomial of these terms through all samples, by elimination over the fractions. None: there is none with
    whole coefficients, or the samples leave it open."""
    rows = [[*(Fraction(sample.at(each)) for each in powers), Fraction(sample.value)] for sample in samples]
    for column in range(len(powers)):
        pivot = next((row for row in rows[column:] if row[column]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        pivot = [each / pivot[column] for each in pivot]
        rows = [[a - row[column] * b for a, b in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(column, pivot)
    if any(any(row) for row in rows[len(powers):]):
        return None
    found = {each: row[-1] for each, row in zip(powers, rows, strict=False)}
    if any(coefficient.denominator != 1 for coefficient in found.values()):
        return None
    return {each: int(coefficient) for each, coefficient in found.items() if coefficient}


def text(polynomial: Polynomial) -> str:
    """As an expression: `batch * tokens`, `context + tokens`, `0`."""
    parts: list[str] = []
    for powers in sorted(polynomial, key=lambda each: (-sum(each), [-power for power in each[::-1]])):
        coefficient, names = polynomial[powers], [name for name, power in zip(NAMES, powers, strict=True)
                                                  for _ in range(power)]
        size = abs(coefficient)
        factors = " * ".join([str(size), *names] if size != 1 or not names else names)
        sign = "-" if coefficient < 0 else "+"
        parts.append(f"{sign} {factors}" if parts else f"-{factors}" if coefficient < 0 else factors)
    return " ".join(parts) or "0"


def multiplied(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product."""
    result: Polynomial = {}
    for a, x in left.items():
        for b, y in right.items():
            powers = (a[0] + b[0], a[1] + b[1], a[2] + b[2])
            result[powers] = result.get(powers, 0) + x * y
    return {powers: coefficient for powers, coefficient in result.items() if coefficient}


def added(left: Polynomial, right: Polynomial) -> Polynomial:
    """The sum."""
    result = dict(left)
    for powers, coefficient in right.items():
        result[powers] = result.get(powers, 0) + coefficient
    return {powers: coefficient for powers, coefficient in result.items() if coefficient}


@lru_cache(maxsize=1 << 14)
def find(seen: Seen, hints: tuple[str, ...], constants: tuple[int, ...]) -> Length | None:
    """The expression of one dimension: a hint that holds everywhere, a polynomial, a bound, or a rounding. None: it
    cannot be explained."""
    for hint in hints:
        if holds(hint, seen.everywhere):
            return Length({(0, 0, 0): 1}, hint)
    polynomials = [*_polynomials(seen)]
    for polynomial in polynomials:
        if holds(text(polynomial), seen.larger):
            return Length(polynomial)
    ways = (_windows(seen, constants), _bounds(polynomials, seen, constants), _roundings(seen, constants))
    bounded = next(chain.from_iterable(ways), None)
    return Length({(0, 0, 0): 1}, bounded) if bounded else None


def _polynomials(seen: Seen) -> Iterator[Polynomial]:
    """Of both phases together, which holds for several new tokens against a cache; else of its own phase."""
    joint = solve(BOTH, (*seen.own, *seen.other)) if seen.other else None
    if joint is not None and holds(text(joint), seen.other_far):
        yield joint
    decode = any(sample.context for sample in seen.own)
    own = solve(DECODE if decode else PREFILL, seen.own)
    if own is not None and own != joint:
        yield own
    if len({sample.value for sample in (*seen.own, *seen.larger)}) == 1:
        yield {(0, 0, 0): seen.asked[0].value} if seen.asked[0].value else {}


def _windows(seen: Seen, constants: Sequence[int]) -> Iterator[str]:
    """Keys of a cache that keeps the last tokens, with the new ones among them or without."""
    for sample in (*seen.larger, *seen.other_far):
        kept = sample.value - sample.tokens
        if kept < sample.context and {kept, sample.value} & {*constants}:
            yield from (each for each in (f"min(context, {kept}) + tokens",) if holds(each, seen.everywhere))


def _bounds(polynomials: Iterable[Polynomial], seen: Seen, constants: Sequence[int]) -> Iterator[str]:
    """A polynomial that is cut off: by a choice, or a window."""
    samples = (*seen.own, *seen.larger)
    most = dict.fromkeys(sample.value for sample in seen.larger if sample.value in constants)
    entries = (f"min((context + tokens) // {each}, {value})" for value in most for each in constants if each < value)
    yield from (each for each in entries if holds(each, samples))
    cut = (f"min({text(polynomial)}, {value})" for polynomial in polynomials for value in most)
    yield from (each for each in cut if holds(each, samples))


def _roundings(seen: Seen, constants: Sequence[int]) -> Iterator[str]:
    """A size that is rounded to a multiple of a constant, or a quotient; plus a polynomial."""
    samples = (*seen.own, *seen.larger)
    decode = any(sample.context for sample in seen.own)
    for constant in constants:
        for size in ("(context + tokens)", "tokens", "context"):
            up = f"-(-{size} // {constant})"
            for form in (f"{size} // {constant}", up, f"{up} * {constant}"):
                left = [sample._replace(value=sample.value - _value(form, sample)) for sample in samples]
                rest = solve(DECODE if decode else PREFILL, left)
                if rest is not None and all(coefficient > 0 for coefficient in rest.values()):
                    yield f"{form} + {text(rest)}" if rest else form


def _value(expression: str, sample: Sample) -> int:
    return evaluate(expression, {"batch": sample.batch, "tokens": sample.tokens, "context": sample.context})


def holds(expression: str, samples: Iterable[Sample]) -> bool:
    """Whether an expression gives the length at all of these workloads."""
    try:
        return all(_value(expression, sample) == sample.value for sample in samples)
    except DayzeroError:
        return False
