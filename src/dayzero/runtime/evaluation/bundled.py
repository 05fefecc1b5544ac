"""The bundled tasks (data/evaluation): texts to predict and questions with four endings. They take no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log

import msgspec

from dayzero.data.evaluation import bundled_questions, bundled_texts
from dayzero.progress import SILENT, Progress
from dayzero.runtime.versions import versions
from dayzero.schema.evaluation import Evaluation, TaskScores

from .needle import needle
from .scorer import Asked, Scored, Scorer

TASKS = ("texts", "questions", "needle")
"""Their names."""
DEFAULT = ("texts", "questions")
"""Those that are evaluated unless others are named: the third takes long texts."""
WORDS = 512
"""Words of the longest text in which something is hidden, unless told."""


def evaluate_bundled(scorer: Scorer, tasks: tuple[str, ...] = DEFAULT, *, longest: int = WORDS,
                     progress: Progress = SILENT) -> Evaluation:
    """Scores of the tasks that are named. `longest`: words of a text in which something is hidden. Raises what the
    scorer does."""
    made: dict[str, Callable[[Scorer], list[TaskScores]]] = {
        "texts": _texts, "questions": _questions, "needle": partial(needle, longest=longest)}
    scores: list[TaskScores] = []
    for task in tasks:
        progress.update(f"{scorer.name}: {task}")
        scores += made[task](scorer)
    return Evaluation(name=scorer.name, engine=scorer.engine, digests=scorer.digests, libraries=versions(),
                      scores=tuple(scores))


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of one model as one; there is at least one."""
    return msgspec.structs.replace(parts[0], engine=parts[-1].engine, scores=tuple(
        each for part in parts for each in part.scores))


def _texts(scorer: Scorer) -> list[TaskScores]:
    """Bits for each byte of a text: what the first token leaves out it leaves out for everybody."""
    texts = bundled_texts()
    found = scorer.score([Asked("", text) for text in texts.values()])
    sizes = {name: float(len(text.encode())) for name, text in texts.items()}
    bits = {name: -each.logprob / log(2) / sizes[name] for name, each in zip(texts, found, strict=True)}
    return [TaskScores(task="texts", metric="bits per byte", scale="number", better="lower", items=bits,
                       count=len(bits), weights=sizes)]


def _questions(scorer: Scorer) -> list[TaskScores]:
    """Whether the right ending is the likeliest, and its share of the probability of all endings."""
    questions = bundled_questions()
    answers = scorer.score([Asked(each.prompt, ending) for each in questions for ending in each.endings])
    correct, doubt = dict[str, float](), dict[str, float]()
    for each in questions:
        own, answers = answers[:len(each.endings)], answers[len(each.endings):]
        best = max(range(len(own)), key=lambda number: own[number].logprob)
        correct[each.prompt] = float(best == 0)
        doubt[each.prompt] = _surprise(own)
    return [
        TaskScores(task="questions", metric="correct", scale="share", better="higher", items=correct,
                   count=len(correct)),
        TaskScores(task="questions", metric="bits for the right ending", scale="number", better="lower", items=doubt,
                   count=len(doubt), margin=0.05),
    ]


def _surprise(endings: list[Scored]) -> float:
    """-log2 of the first one's share of the probability of all."""
    most = max(each.logprob for each in endings)
    total = sum(2.0 ** ((each.logprob - most) / log(2)) for each in endings)
    return float((most - endings[0].logprob) / log(2) + log(total) / log(2))
