"""Sizes in cards and blocks: the expressions of `dayzero.expression`, whose faults are faults of the card."""

from __future__ import annotations

from collections.abc import Mapping

from dayzero import expression as shared
from dayzero.errors import CardError

LIMIT = shared.LIMIT


class UnknownName(CardError):  # noqa: N818
    """An expression uses a fact that is not stated."""


def evaluate(expression: int | str, names: Mapping[str, int]) -> int:
    """Value of an expression. Raises CardError when it is not one, UnknownName when a fact is missing."""
    try:
        return shared.evaluate(expression, names)
    except shared.UnknownNameError as error:
        raise UnknownName(error.message, f"{error.hint} in [config]") from None
    except shared.ExpressionError as error:
        raise CardError(error.message, error.hint) from None
