"""Conditions in target files, such as `tokens > 54272` or `experts power_of_two and hidden_size multiple_of 256`.

    condition  = term {"or" term};  term = factor {"and" factor};  factor = "not" factor | "(" condition ")" | test
    test       = "true" | "always" | sum ["is"] ["not"] "power_of_two" | sum ["is"] ["not"] "multiple_of" sum
                 | sum compare sum {compare sum} | sum ["not"] "in" "(" sum {"," sum} ")"
    sum        = product {("+" | "-") product};  product = value {("*" | "/" | "//" | "%") value}
    value      = integer | name | "(" sum ")" | "-" value

Names stand for whole numbers that the caller gives. Nothing is executed: the text is read into a tree of small
functions. Raises TargetError for any other text and for a name that nobody knows.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dayzero.errors import TargetError, did_you_mean

Number = Fraction
Values = Mapping[str, int]
Sum = Callable[[Values], Number]
Test = Callable[[Values], bool]

LONGEST = 500
DEEPEST = 20
WORDS = ("and", "or", "not", "in", "is", "power_of_two", "multiple_of", "true", "always")
_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9][0-9_]*)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|"
                    r"(?P<sign>>=|<=|==|!=|//|&&|\|\||[-+*/%()<>=,!\[\]]))")
_SAME = {"&&": "and", "||": "or", "!": "not", "=": "==", "[": "(", "]": ")"}
_COMPARE: Mapping[str, Callable[[Number, Number], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
_PROPERTIES = ("power_of_two", "multiple_of", "in")
_SIGNS = ("+", "-", "*", "/", "//", "%")
_HINT = "use names, integers, comparisons, power_of_two, multiple_of N, in (a, b), and, or, not, + - * / // %"


class NoValue(Exception):  # noqa: N818  (an outcome, not an error)
    """A name that is known has no value here."""


@dataclass(frozen=True)
class Condition:
    """A condition that was read."""

    text: str
    """As it is written."""
    names: frozenset[str]
    """Names that it uses."""
    numbers: frozenset[int]
    """Integers in it."""
    test: Test
    """Whether it holds. Raises NoValue for a name without a value."""


def condition(text: str, known: Collection[str]) -> Condition:
    """Read a condition; `known` are the names that may stand in it. Raises TargetError."""
    return _Reader(text, known).condition()


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        self.text, self.known, self.depth = text, known, 0
        self.names: set[str] = set()
        self.numbers: set[int] = set()
        if len(text) > LONGEST:
            raise TargetError(f"a condition of {len(text)} characters is too long", f"use at most {LONGEST}")
        self.tokens = self._tokens()
        self.position = 0

    def condition(self) -> Condition:
        """The whole text."""
        test = self._any()
        if self.position < len(self.tokens):
            raise self._wrong()
        return Condition(self.text, frozenset(self.names), frozenset(self.numbers), test)

    def _tokens(self) -> list[str]:
        found, at = [], 0
        end = len(self.text.rstrip())
        while at < end:
            token = _TOKEN.match(self.text, at)
            if not token:
                raise self._error(f"cannot read {self.text[at:at + 20].strip()!r}")
            word = token[0].strip()
            lower = word.lower()
            found.append(_SAME.get(word, lower if lower in WORDS else word))
            at = token.end()
        return found

    def _error(self, what: str, hint: str = _HINT) -> TargetError:
        return TargetError(f"condition {self.text!r}: {what}", hint)

    def _wrong(self) -> TargetError:
        return self._error(f"{self._peek()!r} is not expected here" if self._peek() else "it ends too early")

    def _peek(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def _take(self, *words: str) -> str:
        """The next token if it is one of these; empty otherwise."""
        word = self._peek()
        if word and word in words:
            self.position += 1
            return word
        return ""

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._error("too many parentheses and signs inside each other")

    def _any(self) -> Test:
        tests = [self._all()]
        while self._take("or"):
            tests.append(self._all())
        return lambda values: any(test(values) for test in tests)

    def _all(self) -> Test:
        tests = [self._factor()]
        while self._take("and"):
            tests.append(self._factor())
        return lambda values: all(test(values) for test in tests)

    def _factor(self) -> Test:
        if self._take("not"):
            self._deeper()
            inner = self._factor()
            self.depth -= 1
            return lambda values: not inner(values)
        if self._peek() == "(" and not self._is_sum():
            self.position += 1
            self._deeper()
            inner = self._any()
            self.depth -= 1
            if not self._take(")"):
                raise self._wrong()
            return inner
        return self._test()

    def _is_sum(self) -> bool:
        """Whether the parenthesis here is one around a number: what follows it compares or calculates."""
        depth, at = 0, 0
        while self._peek(at):
            depth += {"(": 1, ")": -1}.get(self._peek(at), 0)
            at += 1
            if depth == 0:
                break
        after = self._peek(at)
        negated = after == "not" and self._peek(at + 1) in _PROPERTIES
        return negated or after == "is" or after in _COMPARE or after in _PROPERTIES or after in _SIGNS

    def _test(self) -> Test:
        if self._take("true", "always"):
            return lambda _: True
        left = self._sum()
        self._take("is")
        negated = bool(self._take("not"))
        word = self._take(*_PROPERTIES)
        if word:
            test = self._property(word, left)
            return (lambda values: not test(values)) if negated else test
        if negated or self._peek() not in _COMPARE:
            raise self._wrong()
        return self._comparison(left)

    def _comparison(self, left: Sum) -> Test:
        parts: list[tuple[Sum, Callable[[Number, Number], bool], Sum]] = []
        while self._peek() in _COMPARE:
            compare = _COMPARE[self._take(*_COMPARE)]
            right = self._sum()
            parts.append((left, compare, right))
            left = right
        return lambda values: all(compare(one(values), two(values)) for one, compare, two in parts)

    def _property(self, word: str, left: Sum) -> Test:
        if word == "power_of_two":
            return lambda values: _is_power_of_two(left(values))
        if word == "multiple_of":
            right = self._sum()
            return lambda values: self._rest(left(values), right(values)) == 0
        if not self._take("("):
            raise self._wrong()
        choices = [self._sum()]
        while self._take(","):
            choices.append(self._sum())
        if not self._take(")"):
            raise self._wrong()
        return lambda values: left(values) in [choice(values) for choice in choices]

    def _sum(self) -> Sum:
        result = self._product()
        while sign := self._take("+", "-"):
            result = self._joined(sign, result, self._product())
        return result

    def _product(self) -> Sum:
        result = self._value()
        while sign := self._take("*", "/", "//", "%"):
            result = self._joined(sign, result, self._value())
        return result

    def _joined(self, sign: str, left: Sum, right: Sum) -> Sum:
        calculate: Mapping[str, Callable[[Number, Number], Number]] = {
            "+": operator.add, "-": operator.sub, "*": operator.mul, "/": self._quotient,
            "//": lambda one, two: Fraction(self._quotient(one, two).__floor__()), "%": self._rest}
        chosen = calculate[sign]
        return lambda values: chosen(left(values), right(values))

    def _quotient(self, one: Number, two: Number) -> Number:
        if two == 0:
            raise self._error("division by zero", "check the facts that it uses")
        return one / two

    def _rest(self, one: Number, two: Number) -> Number:
        return one - two * self._quotient(one, two).__floor__()

    def _value(self) -> Sum:
        word = self._peek()
        if word in ("-", "("):
            self.position += 1
            self._deeper()
            inner = self._value() if word == "-" else self._sum()
            self.depth -= 1
            if word == "(" and not self._take(")"):
                raise self._wrong()
            return (lambda values: -inner(values)) if word == "-" else inner
        if not word or word in WORDS or not (word[0].isalnum() or word[0] == "_"):
            raise self._wrong()
        self.position += 1
        if word[0].isdigit():
            number = Fraction(int(word.replace("_", "")))
            self.numbers.add(int(number))
            return lambda _: number
        if word not in self.known:
            raise self._error(f"{word} is not known", f"{did_you_mean(word, self.known)}{_HINT}")
        self.names.add(word)
        return lambda values: _named(values, word)


def _named(values: Values, name: str) -> Number:
    if name not in values:
        raise NoValue(name)
    return Fraction(values[name])


def _is_power_of_two(number: Number) -> bool:
    whole = number.numerator
    return number.denominator == 1 and whole > 0 and whole & (whole - 1) == 0
