"""Tries operators on tiny tensors in a child process: one that kills its process costs that process only. No torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from dayzero.schema import Noun, from_json, to_json

_CHILD = ("-m", "dayzero.stages.trace.support.child")
_SECONDS = 120.0
"""Until a child that hangs is ended."""


class Case(Noun, frozen=True, kw_only=True):
    """One call to be tried."""

    op: str
    """Operator, such as aten.mm."""
    dtype: str
    """dtype of its first tensor."""
    kind: str
    """What an engineer calls it; views are not tried, for they compute nothing."""
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of its tensors."""
    outputs: tuple[tuple[int, ...], ...]
    """Shapes of its results."""


class Outcome(Noun, frozen=True, kw_only=True):
    """One line of the child."""

    index: int
    """Which case."""
    result: str
    """`started`, `works`, empty where no arguments could be made, or why it cannot be computed in that dtype."""


def try_all(cases: Sequence[Case], device: str) -> dict[Case, str]:
    """Case -> `works`, or why the device cannot compute it in that dtype; without those that could not be tried. A case
    that ends its process is left out, and the rest are tried in another one."""
    results: dict[Case, str] = {}
    left = [case for case in cases if case.kind != "view"]
    while left:
        outcomes, ended = _child(left, device)
        results |= {left[index]: result for index, result in outcomes.items() if result not in ("", "started")}
        done = max(outcomes, default=-1) + 1
        if ended or not done:
            break
        left = left[done:]
    return results


def _child(cases: Sequence[Case], device: str) -> tuple[dict[int, str], bool]:
    """Last result of each case that was begun, and whether the child came to its end."""
    try:
        done = subprocess.run([sys.executable, *_CHILD, device], input=to_json(list(cases)), capture_output=True,
                              timeout=_SECONDS, check=False)
        lines, ended = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as error:
        lines, ended = error.stdout or b"", False
    outcomes: dict[int, str] = {}
    for line in lines.splitlines():
        try:
            outcome = from_json(line, Outcome)
        except msgspec.DecodeError:  # a line that something else printed, or that was cut
            continue
        outcomes[outcome.index] = outcome.result
    return outcomes, ended
