"""From ranks' results to the record, and from the record to what is printed."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from tests.support import tiny

from dayzero.runtime.assignment import Assignment, Generated, Pass, PassResult, RankResult
from dayzero.runtime.launch import Launched
from dayzero.schema import Layout, RunRecord
from dayzero.stages.run.contract import overview, to_contract
from dayzero.stages.run.record import layout_run


class _Words:
    """Stands for the tokenizer."""

    plain = ""

    def decode(self, tokens) -> str:
        return " ".join(map(str, tokens))


def _pass(number: int, *, steps: tuple[float, ...], digests: tuple[str, ...] = ("a", "a"), **changes) -> PassResult:
    output = Generated(prompt=number, tokens=(5, 6 + number), margins=(0.5, 0.25), finish="length")
    return PassResult(**{
        "dtype": "bf16", "layers": (0, 1), "parameters": 10, "weight_bytes": 20, "parameters_whole": 10,
        "load_seconds": 0.1, "base_private_bytes": 100, "peak_private_bytes": 150, "peak_during": "generating",
        "first_token_s": (0.2 + number,), "step_s": steps, "step_tokens": (1,) * len(steps), "outputs": (output,),
        "digests": digests, **changes})  # fmt: skip


def _run(*passes: PassResult, layout: Layout):
    ranks = tuple(RankResult(rank=rank, device="cpu", passes=(each,)) for rank, each in enumerate(passes))
    assignment = Assignment(root="r", layout=layout, passes=(Pass(dtype="bf16"),), prompts=((1,), (2,)),
                            max_new_tokens=2, batch=1, seed=3, gradient_rows=2)
    launched = Launched(ranks=ranks, exits=(0,) * len(ranks), threads=1)
    return layout_run(launched, assignment, tiny.EMPTY_PLAN, ("one", "two"), _Words(),
                      dump="6-run/x/dump", files={"a": "b"})


def test_replicas_add_up() -> None:
    run = _run(_pass(1, steps=(0.1, 0.1)), _pass(0, steps=(0.2, 0.4)), layout=Layout(dp=2))
    assert [(output.prompt, output.text) for output in run.outputs] == [("one", "5 6"), ("two", "5 7")]
    assert run.tokens_per_s == pytest.approx(2 / 0.2 + 2 / 0.6)
    assert run.tpot_s == pytest.approx(0.15) and run.ttft_s == pytest.approx(0.7)
    assert run.repeat_identical and len(run.tpot_all_s) == 4 and run.world_size == 2


def test_ranks_of_one_replica_speak_once() -> None:
    run = _run(_pass(0, steps=(0.1,)), _pass(0, steps=(9.0,), layers=(2, 3)), layout=Layout(pp=2))
    assert len(run.outputs) == 1 and run.tpot_s == 0.1
    assert [rank.layers for rank in run.ranks] == [(0, 1), (2, 3)]


def test_a_rank_that_does_not_repeat_itself_is_seen() -> None:
    odd = _pass(0, steps=(0.1,), digests=("a", "b"))
    assert not _run(_pass(0, steps=(0.1,)), odd, layout=Layout(tp=2)).repeat_identical


def test_what_deserves_to_be_known() -> None:
    run = _run(_pass(0, steps=(), peak_during="loading bf16"), layout=Layout())
    assert run.events == ("rank 0 took most memory while loading bf16",
                          "no decode step was timed: every text ended at its first token")


def test_what_is_printed() -> None:
    run = _run(_pass(0, steps=(0.1,)), layout=Layout())
    printed = to_contract(RunRecord(runs=(run,), prompts=("one",), max_new_tokens=2))
    assert json.loads(json.dumps(printed))["outputs"] == [
        {"prompt": "one", "tokens": [5, 6], "text": "5 6", "finish": "length"}]
    assert printed["ranks"] == [{"rank": 0, "peak_private_bytes": 150, "bytes_read": 20, "seconds": 0.1}]
    assert {"tokens_per_s", "ttft_s", "events", "tiers"} <= set(printed)


def test_what_is_shown() -> None:
    run = _run(_pass(0, steps=(0.1,)), _pass(0, steps=(0.1,)), layout=Layout(pp=2))
    record = RunRecord(runs=(run,), prompts=("one",), max_new_tokens=2, environment={"not run: tp=2": "nine heads"})
    shown = _shown(overview(record))
    assert all(word in shown for word in ("pp=2", "150 B", "> one", "5 6 [length]", "not run: tp=2: nine heads"))


def _shown(renderable) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()
