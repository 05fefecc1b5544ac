"""Who judges a recorded run: dayzero, and the usual constant limits on the same tensors."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.fault import Fault

_LIMIT, _COSINE = 1e-2, 0.99
Values = dict[tuple[str, str, str], dict[tuple[int, int], "np.ndarray[Any, Any]"]]
"""(module, what, slot) -> {(sequence, position): values}."""


@dataclass(frozen=True)
class Judgement:
    """What one judge says of one run."""

    alarm: bool
    """Whether the run is called wrong."""
    module: str = ""
    """Which module is named; empty: none."""
    words: str = ""
    """What is said of the pattern and the cause: the best of each."""
    seconds: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    """What else is worth keeping."""

    def caught(self) -> bool:
        """Whether the run was called wrong."""
        return self.alarm

    def located(self, fault: Fault) -> bool:
        """Whether the module that is wrong was named."""
        return self.alarm and any(re.fullmatch(pattern, self.module) for pattern in fault.modules)

    def caused(self, fault: Fault) -> bool:
        """Whether what is wrong with it was said, too."""
        said = re.sub(r"\b(model|lm_head)(\.\w+)*", "it", self.words.lower())  # a path says nothing of the cause
        return self.located(fault) and re.search(fault.cause, said) is not None


def by_dayzero(release: Path, reference: Path, run: Path, noise: tuple[Path, ...], *, gradients: bool = False
               ) -> Judgement:
    """`check compare` says whether, `check locate` says where and why."""
    begun = time.perf_counter()
    told: dict[str, Any] = {}
    alarm, module, words = _compared(reference, run, noise, told)
    if not gradients:
        found = _located(release, run, noise, told)
        if found is not None:
            alarm, (module, words) = True, found
    return Judgement(alarm, module, words, time.perf_counter() - begun, told)


def _compared(reference: Path, run: Path, noise: tuple[Path, ...], told: dict[str, Any]) -> tuple[bool, str, str]:
    """(whether it fails, module, words)."""
    from dayzero.stages.check.compare import compare

    try:
        made = compare(reference, run, noise=noise)
    except Exception as error:  # a judge that breaks off has not judged
        told["compare_error"] = f"{type(error).__name__}: {error}"
        return False, "", ""
    failed = [each.name for each in made.checks if not each.passed]
    first = made.first_divergence
    told |= {"compare": not failed, "failed": failed[:3], "compare_module": (first.module if first else "") or ""}
    return bool(failed), told["compare_module"], made.pattern[0].words if made.pattern else ""


def _located(release: Path, run: Path, noise: tuple[Path, ...], told: dict[str, Any]) -> tuple[str, str] | None:
    """(module, words of the best pattern and the best cause) of what is guilty first."""
    from dayzero.stages.check.locate import locate

    try:
        made = locate(release, run, noise=noise).first
    except Exception as error:
        told["locate_error"] = f"{type(error).__name__}: {error}"
        return None
    told["locate"] = made is None
    if made is None:
        return None
    told |= {"patterns": [each.name for each in made.patterns], "op": made.op,
             "causes": [f"{each.name}: {each.words}" for each in made.causes]}
    return made.module, " / ".join(f"{each.name}: {each.words}" for each in (*made.patterns[:1], *made.causes[:1]))


def values(folder: Path, *, inputs: bool = False) -> tuple[list[tuple[str, str, str]], Values]:
    """(places in the order of execution, their rows) of a dump of one rank."""
    from dayzero.runtime.golden import open_dump

    order: dict[tuple[str, str, str], int] = {}
    made: Values = {}
    with open_dump(folder) as dump:
        for item in dump.items:
            entry = item.entry
            if entry.what not in ("output", "router", "logits", *(("input",) if inputs else ())) or (
                    entry.axes[:1] != ("token",) or entry.held or entry.summed or entry.dtype.startswith("I")):
                continue
            key = entry.name, entry.what, entry.slot
            order.setdefault(key, entry.order)
            rows, found = dump.rows(item), made.setdefault(key, {})
            for (sequence, position), row in zip(rows.tolist(), dump.read(item), strict=True):
                if sequence >= 0:
                    found[sequence, position] = row
    return sorted(order, key=lambda key: order[key]), made


def together(reference: Values, run: Values, key: tuple[str, str, str]
             ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """The rows that both have of a place, in one order."""
    one, other = reference.get(key, {}), run.get(key, {})
    rows = sorted(one.keys() & other.keys())
    if not rows or len({each[row].shape for each in (one, other) for row in rows}) > 1:
        return None  # not there, or as wide as what is cached
    return np.stack([one[row] for row in rows]), np.stack([other[row] for row in rows])


def by_constants(reference: Path, run: Path) -> dict[str, Judgement]:
    """Constant limits: of every module's output, and of the logits alone."""
    order, golden = values(reference)
    _, made = values(run)
    bad: dict[str, list[tuple[str, str, str]]] = {"relative": [], "cosine": []}
    for key in order:
        pair = together(golden, made, key)
        if pair is None:
            continue
        error, cosine = _apart(*pair)
        if not error <= _LIMIT:
            bad["relative"].append(key)
        if not cosine >= _COSINE:
            bad["cosine"].append(key)
    found = {}
    for name, keys in bad.items():
        last = [key for key in keys if key[1] == "logits"]
        found[name] = Judgement(bool(keys), keys[0][0] if keys else "")
        found[f"{name}, logits"] = Judgement(bool(last))
    return found


def _apart(wanted: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> tuple[float, float]:
    wanted, made = wanted.astype(np.float64).ravel(), made.astype(np.float64).ravel()
    size, other = float(np.linalg.norm(wanted)), float(np.linalg.norm(made))
    error = float(np.linalg.norm(made - wanted)) / size if size else float(other > 0)
    cosine = float(wanted @ made) / (size * other) if size and other else float(size == other)
    return error, cosine
