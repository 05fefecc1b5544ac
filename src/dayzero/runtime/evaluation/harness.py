"""lm-eval's tasks with any scorer as the model. Needs lm-eval (the extra `evaluate`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from dayzero.errors import NotPossible, UsageError
from dayzero.runtime.versions import versions
from dayzero.schema.evaluation import Evaluation, TaskScores
from dayzero.text import one_line

from .scorer import Asked, Scored, Scorer

LIMIT = 256
"""Tokens that a task may generate when it does not say."""


class Writer(Protocol):
    """A scorer that can also write."""

    def generate(self, prompt: str, stop: Sequence[str], most: int) -> str:
        """What greedy decoding writes after the prompt, up to a stop text or `most` tokens."""
        ...


def available() -> str:
    """Why it cannot be used; empty when it can."""
    return "" if find_spec("lm_eval") else "lm-eval is not installed"


def found_tasks(tasks: Sequence[str], include: Path | None) -> tuple[str, ...]:
    """The tasks, when lm-eval knows each. Raises NotPossible without lm-eval, UsageError for one that there is not."""
    if not tasks:
        return ()
    if reason := available():
        raise NotPossible(f"{', '.join(tasks)}: {reason}", "pip install 'dayzero[evaluate]'")
    if include is not None and not include.is_dir():
        raise UsageError(f"there is no folder {include}", "give the folder that the task definitions are in")
    manager = _manager(include)
    if unknown := [task for task in tasks if not manager.match_tasks([task])]:
        raise UsageError(f"lm-eval has no task {unknown[0]!r}",
                         "see `lm-eval ls tasks`, or give the folder of its file with --include")
    return tuple(tasks)


def evaluate_harness(scorer: Scorer, tasks: Sequence[str], *, include: Path | None = None, limit: int | None = None,
                     shots: int | None = None, seed: int = 0) -> Evaluation:
    """Scores of `found_tasks`, item by item. `include`: a folder of task definitions of one's own; `limit`: most items
    of a task. Raises NotPossible when a task's data cannot be had."""
    from lm_eval import simple_evaluate

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        found = simple_evaluate(
            model=_model(scorer), tasks=list(tasks), num_fewshot=shots, limit=limit, log_samples=True,
            task_manager=_manager(include), random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed,
            fewshot_random_seed=seed, bootstrap_iters=0)
    except (OSError, ValueError) as error:  # its data: a hub that cannot be reached, a file that is not there
        raise NotPossible(f"{', '.join(tasks)} cannot be evaluated: {one_line(str(error), 300)}",
                          "download the task's data before, or give a folder of own tasks") from None
    scores = tuple(each for task, samples in found["samples"].items()
                   for each in task_scores(task, samples, found.get("higher_is_better", {}).get(task, {})))
    return Evaluation(name=scorer.name, engine=f"{scorer.engine}; lm-eval", digests=scorer.digests,
                      libraries=versions(), scores=scores)


def _manager(include: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(include) if include else None)


def task_scores(task: str, samples: Sequence[dict[str, Any]], higher: dict[str, Any]) -> list[TaskScores]:
    """One for each metric that is one number an item, under the name of its filter when it has one."""
    found: dict[str, dict[str, float]] = {}
    for sample in samples:
        apart = sample.get("filter", "none")
        for metric in sample.get("metrics", ()):
            value = sample.get(metric)
            if isinstance(value, (int, float)):
                name = metric if apart == "none" else f"{metric}, {apart}"
                found.setdefault(name, {})[str(sample.get("doc_hash") or sample["doc_id"])] = float(value)
    return [TaskScores(task=task, metric=metric, better="higher" if _better(metric, higher) else "lower", items=items,
                       scale="share" if set(items.values()) <= {0.0, 1.0} else "number", count=len(items))
            for metric, items in found.items()]


def _better(metric: str, higher: dict[str, Any]) -> bool:
    """Whether more is better, as the task says; shares of right answers where it does not."""
    stated = higher.get(metric.partition(",")[0])
    return stated if isinstance(stated, bool) else not any(word in metric for word in ("perplexity", "bits", "error"))


def _model(scorer: Scorer) -> Any:
    from lm_eval.api.model import LM

    class Model(LM):  # type: ignore[misc]
        """Passes each request to the scorer."""

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            found = scorer.score([Asked(*request.args) for request in requests])
            return [(each.logprob, _greedy(each)) for each in found]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            return [each.logprob for each in scorer.score([Asked("", *request.args) for request in requests])]

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            if not hasattr(scorer, "generate"):
                raise NotPossible("this task generates text, and what runs the model only scores it",
                                  "choose tasks of likelihoods, or another engine")
            return [scorer.generate(*_asked(request.args)) for request in requests]

    return Model()


def _greedy(scored: Scored) -> bool:
    """Some tasks count a text as right when each token of it was the likeliest."""
    if scored.greedy is None:
        raise NotPossible("the server does not tell which tokens are the likeliest, and tasks of likelihoods may ask",
                          "serve the model with an engine that does")
    return scored.greedy


def _asked(arguments: tuple[str, dict[str, Any]]) -> tuple[str, list[str], int]:
    prompt, options = arguments
    until = options.get("until", [])
    return prompt, [until] if isinstance(until, str) else list(until), int(options.get("max_gen_toks", LIMIT))
