"""Evaluations on disk: our own files, and what lm-eval writes (`--log_samples`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dayzero.errors import StoreError, UsageError
from dayzero.runtime.evaluation.harness import task_scores
from dayzero.schema.evaluation import Evaluation, TaskScores
from dayzero.schema.store import read_regular

_LIMIT = 1 << 32
"""Bytes of the largest file; samples of all tasks are long."""
_COUNTS = re.compile(r"-?\d*\s*/\s*\d*")
_HINT = "give a file that `check evaluate --out` wrote, or the folder of an lm-eval run with --log_samples"


def read_evaluation(path: Path) -> Evaluation:
    """Of an own file, or of a folder or file of lm-eval. Raises StoreError when it is none of these."""
    if path.is_dir():
        return _harness(path, sorted(path.rglob("samples_*.jsonl")), sorted(path.rglob("results_*.json")))
    if path.suffix == ".jsonl":
        return _harness(path, [path], [])
    try:
        return msgspec.json.decode(read_regular(path, _LIMIT), type=Evaluation)
    except FileNotFoundError:
        raise StoreError(f"there is no {path}", _HINT) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is no evaluation: {_why(error)}", _HINT) from None


def stated(text: str) -> Evaluation:
    """A path, or right answers and items as in `13/50`. Raises StoreError, UsageError."""
    path = Path(text)
    if path.exists() or not _COUNTS.fullmatch(text.strip()):
        return read_evaluation(path)
    right, count = counts(text)
    scores = TaskScores(task="stated", metric="correct", scale="share", better="higher", right=right, count=count)
    return Evaluation(name=text, engine="as stated", scores=(scores,))


def counts(text: str) -> tuple[int, int]:
    """`13/50` -> (13, 50). Raises UsageError."""
    right, _, count = text.partition("/")
    if not (right.strip().isdecimal() and count.strip().isdecimal() and 0 <= int(right) <= int(count) > 0):
        raise UsageError(f"not a score: {text!r}", "write right answers and items, such as 13/50")
    return int(right), int(count)


def _harness(path: Path, samples: list[Path], results: list[Path]) -> Evaluation:
    if not samples:
        raise StoreError(f"{path} holds no samples_*.jsonl", _HINT)
    told: dict[str, Any] = {}
    for file in results:
        told |= _object(file)
    scores = [each for file in samples for each in _scores(file, told)]
    if not scores:
        raise StoreError(f"the samples in {path} have no scores", _HINT)
    name = str(told.get("model_name") or path.name)
    return Evaluation(name=name, engine=f"lm-eval, {told.get('model_source', 'model not told')}", scores=tuple(scores))


def _scores(file: Path, told: dict[str, Any]) -> list[TaskScores]:
    """For each metric that is one number an item."""
    task = file.stem.removeprefix("samples_").rpartition("_20")[0] or file.stem.removeprefix("samples_")
    return task_scores(task, list(_lines(file)), told.get("higher_is_better", {}).get(task, {}))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_text(file).splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{file}, line {number}: {error}", _HINT) from None
        if not isinstance(found, dict) or not isinstance(found.get("metrics", []), list):
            raise StoreError(f"{file}, line {number} is no sample", _HINT)
        yield found


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file))
    except ValueError as error:
        raise StoreError(f"{file}: {error}", _HINT) from None
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str:
    try:
        return read_regular(file, _LIMIT).decode()
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {_why(error)}", _HINT) from None


def _why(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
