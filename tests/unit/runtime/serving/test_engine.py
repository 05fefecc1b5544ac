"""Tokens do not depend on how sequences are batched, chunked, moved or shared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from dayzero.errors import UsageError
from dayzero.runtime.building import decoder_layers
from dayzero.runtime.pages import Done, Group, Pages, Room, Step, decode, encode, groups_of, layer_kinds
from dayzero.runtime.serving import Engine, Request, RequestFailed, Worker, model_forward
from dayzero.schema import Sampling

NEW = 9


class Server:
    """An engine for a model, with the pages below it: `chunks` of which each holds some blocks of a group, 4 unless
    said; the states of a sequence may take several."""

    def __init__(self, model: Any, chunks: int, folder: Path | None = None, *, holds: tuple[int, ...] = (4, 4, 2, 1),
                 block_tokens: int = 4, **options: Any) -> None:
        kinds = layer_kinds(model.config)
        assert kinds is not None
        forward = model_forward(model)
        self.pages = Pages(kinds, block_tokens=block_tokens, folder=folder)
        self.sizes = self.pages.measure(lambda call, cache: forward(call.input_ids, call.position_ids, call.mask,
                                                                    cache))
        self.room = self.room_of(chunks, holds, self.pages.groups)
        self.pages.allocate(self.room)
        worker = Worker(forward, self.pages)
        self.steps: list[Step] = []

        def run(step: Step) -> Done:
            self.steps.append(step)
            return worker.run(decode(encode(step)))

        self.engine = Engine(run, self.pages.groups, [self.room], block_tokens=block_tokens,
                             uniform=self.pages.uniform, **options)

    @staticmethod
    def room_of(chunks: int, holds: tuple[int, ...], groups: Sequence[Group]) -> Room:
        """`holds`: blocks of all tokens, of a window, and slots of states; chunks that a slot takes."""
        span = [*holds, 1][3]
        states = [group.window is None for group in groups]
        return Room(chunks, tuple((holds[2] if span == 1 else 1) if own else holds[1 if group.window else 0]
                                  for group, own in zip(groups, states, strict=True)),
                    tuple(span if own else 1 for own in states))


def _prompts(seed: int, count: int, longest: int = 26) -> list[tuple[int, ...]]:
    """Some of them begin alike."""
    numbers = random.Random(seed)
    common = tuple(numbers.randrange(3, 97) for _ in range(longest))
    lengths = [numbers.randrange(1, longest) for _ in range(count)]
    return [common[:length] if numbers.random() < 0.5 else
            (*common[:length // 2], *(numbers.randrange(3, 97) for _ in range(length - length // 2)))
            for length in lengths]


def _least(model: Any, tokens: int, holds: tuple[int, ...], budget: int) -> int:
    """Chunks for one sequence."""
    groups = groups_of(layer_kinds(model.config) or ())
    most = [group.most(tokens, budget, 4) for group in groups]
    return next(chunks for chunks in range(1, 100) if Server.room_of(chunks, holds, groups).fits(most))


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**20), count=st.integers(1, 6), more=st.integers(0, 12),
       holds=st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(1, 4), st.integers(1, 3)),
       budget=st.integers(3, 40), preempt=st.sampled_from(["recompute", "host", "disk"]), share=st.booleans(),
       apart=st.integers(0, 6), parts=st.integers(1, 3))
def test_any_schedule_gives_the_same_tokens(each_kind: Any, tmp_path: Path, seed: int, count: int, more: int,
                                            holds: tuple[int, ...], budget: int, preempt: str, share: bool,
                                            apart: int, parts: int) -> None:
    prompts = _prompts(seed, count)
    chunks = _least(each_kind.model, 26 + NEW, holds, budget) + more
    server = Server(each_kind.model, chunks, tmp_path, holds=holds, budget=budget, preempt=preempt, share=share,
                    parts=parts)
    streams = []
    for prompt in prompts:
        streams.append(server.engine.submit(Request(prompt, NEW)))
        for _ in range(apart):
            server.engine.step()
    server.engine.work()
    assert [stream.tokens for stream in streams] == [each_kind.alone(prompt, NEW) for prompt in prompts]
    assert not any(server.engine.ledger.owned())
    assert not list(tmp_path.iterdir())


def test_prompts_are_computed_in_parts_where_there_is_enough_to_do(full: Any) -> None:
    server = Server(full.model, 40, holds=(9, 1, 1), budget=300, parts=3)
    prompts = [tuple(3 + each % 90 for each in range(210)), *(tuple(range(first, first + 40)) for first in (31, 50))]
    streams = [server.engine.submit(Request(prompt, NEW)) for prompt in prompts]
    server.engine.work()
    assert [stream.tokens for stream in streams] == [full.alone(prompt, NEW) for prompt in prompts]
    calls = [[(row.start, len(row.tokens)) for row in call] for call in server.steps[0].batches]
    assert calls == [[(0, 72)], [(72, 72)], [(144, 66)], [(0, 40), (0, 40)]]


def test_blocks_move_so_that_another_kind_has_room(mixed: Any) -> None:
    holds = (2, 9, 1)
    server = Server(mixed.model, _least(mixed.model, 26 + NEW, holds, 16) + 3, holds=holds, budget=16)
    frames, moved = server.pages._frames, list[int]()
    move = frames._move

    def counted(group: int, old: list[int], new: list[int]) -> None:
        moved.extend(old)
        move(group, old, new)

    frames._move = counted
    prompts = _prompts(7, 6)
    streams = [server.engine.submit(Request(prompt, NEW)) for prompt in prompts]
    server.engine.work()
    assert [stream.tokens for stream in streams] == [mixed.alone(prompt, NEW) for prompt in prompts]
    assert moved


def test_memory_runs_out_and_sequences_move_to_disk_and_back(each_kind: Any, tmp_path: Path) -> None:
    holds = (1, 4, 1)
    chunks = 3 * _least(each_kind.model, 42, holds, 8) // 2
    server = Server(each_kind.model, chunks, tmp_path, preempt="disk", share=False, holds=holds, budget=8)
    prompts = _prompts(1, 5, longest=22)
    streams = [server.engine.submit(Request(prompt, 20)) for prompt in prompts]
    server.engine.work()
    assert [stream.tokens for stream in streams] == [each_kind.alone(prompt, 20) for prompt in prompts]
    if any(group.window is not None for group in server.pages.groups):
        assert server.engine.statistics.restored == server.engine.statistics.spilled > 0


def test_a_common_beginning_is_computed_once(each_kind: Any) -> None:
    server = Server(each_kind.model, 60)
    prompt = _prompts(3, 1, longest=60)[0] + tuple(range(3, 40))
    first = server.engine.submit(Request(prompt, NEW)).result()
    computed = server.engine.statistics.computed
    assert server.engine.submit(Request(prompt, NEW)).result() == first == each_kind.alone(prompt, NEW)
    assert server.engine.statistics.adopted == (len(prompt) - 1) // 4 * 4
    assert server.engine.statistics.computed - computed < 4 + NEW


def test_a_beginning_that_is_being_computed_is_waited_for(each_kind: Any) -> None:
    server = Server(each_kind.model, 60, budget=16)
    prompt = _prompts(3, 1, longest=60)[0] + tuple(range(3, 40))
    streams = [server.engine.submit(Request(prompt, NEW)) for _ in range(3)]
    other = server.engine.submit(Request((5, 6, 7), NEW))
    server.engine.work()
    assert [stream.tokens for stream in streams] == [each_kind.alone(prompt, NEW)] * 3
    assert other.tokens == each_kind.alone((5, 6, 7), NEW)
    assert server.engine.statistics.adopted == 2 * ((len(prompt) - 1) // 4 * 4)


def test_prompts_join_while_others_generate(full: Any) -> None:
    server = Server(full.model, 60)
    first = server.engine.submit(Request((5, 6, 7), NEW))
    assert next(iter(first)) is not None
    second = server.engine.submit(Request(tuple(range(3, 30)), NEW))
    server.engine.work()
    together = [step for step in server.steps if sum(len(batch) for batch in step.batches) == 2]
    assert together
    assert second.tokens == full.alone(tuple(range(3, 30)), NEW)


def test_end_token_ends_and_frees_at_once(full: Any) -> None:
    expected = full.alone((5, 6, 7), NEW)
    end = expected[3]
    server = Server(full.model, 40)
    stream = server.engine.submit(Request((5, 6, 7), NEW, end=(end,)))
    assert stream.result() == expected[:expected.index(end) + 1]
    assert stream.finish == "stop"
    assert not any(server.engine.ledger.owned())


def test_an_error_reaches_its_request_and_no_other(full: Any) -> None:
    server = Server(full.model, 60)
    good = server.engine.submit(Request((5, 6, 7), NEW))
    bad = server.engine.submit(Request((5, 6, 1000), NEW))  # no such token in the vocabulary; another batch
    later = server.engine.submit(Request((8, 9), NEW))
    server.engine.work()
    with pytest.raises(RequestFailed):
        bad.result()
    assert later.result() == full.alone((8, 9), NEW)
    assert good.result() == full.alone((5, 6, 7), NEW)


def test_prompts_of_other_lengths_are_one_call_where_states_allow_it(each_kind: Any) -> None:
    server = Server(each_kind.model, 60, budget=64, share=False)
    finite = list[bool]()
    hooks = [layer.register_forward_hook(lambda _, __, made: finite.append(bool(
        (made[0] if isinstance(made, tuple) else made).isfinite().all()))) for layer in decoder_layers(each_kind.model)]
    long = tuple(3 + each % 90 for each in range(64))
    first = server.engine.submit(Request(long, NEW))
    for _ in range(6):  # so far that blocks behind a window are gone
        server.engine.step()
    prompts = [tuple(range(3, 22)), tuple(range(40, 56)), tuple(range(60, 77))]
    streams = [server.engine.submit(Request(prompt, NEW)) for prompt in prompts]
    server.engine.work()
    for hook in hooks:
        hook.remove()
    assert [first.tokens, *(stream.tokens for stream in streams)] == [
        each_kind.alone(prompt, NEW) for prompt in (long, *prompts)]
    together = [sorted(len(row.tokens) for row in call) for call in server.steps[6].batches]
    assert together == [[1, 16, 17, 19]] or (server.pages.uniform and [1] in together)
    assert all(finite)


def test_logits_that_are_no_numbers_fail_the_request(full: Any) -> None:
    torch = pytest.importorskip("torch")
    pages = Pages(layer_kinds(full.model.config) or ())
    room = Room(1, (20,) * len(pages.groups))
    pages.allocate(room)
    worker = Worker(lambda *_: torch.full((1, 97), float("nan")), pages)
    stream = Engine(worker.run, pages.groups, [room]).submit(Request((5, 6), 3))
    with pytest.raises(RequestFailed, match="not finite"):
        stream.result()


def test_cancel_ends_a_request_and_the_others_go_on(full: Any) -> None:
    server = Server(full.model, 60)
    first, second = (server.engine.submit(Request((5, 6, number), NEW)) for number in (7, 8))
    server.engine.step()
    first.cancel()
    server.engine.work()
    assert first.finish == "cancelled"
    assert second.tokens == full.alone((5, 6, 8), NEW)


def test_what_never_fits_is_refused(full: Any) -> None:
    with pytest.raises(UsageError, match="do not fit"):
        Server(full.model, 2).engine.submit(Request(tuple(range(3, 30)), NEW))


def test_a_damaged_file_is_found_and_the_tokens_computed_again(states: Any, tmp_path: Path) -> None:
    server = Server(states.model, 8, tmp_path, preempt="disk", share=False, holds=(2, 1, 2))
    prompts = _prompts(1, 5, longest=22)
    streams = [server.engine.submit(Request(prompt, 20)) for prompt in prompts]
    damaged = 0
    while server.engine.step():
        for file in server.pages.shelf._files.values():
            file.written.result()
        for path in tmp_path.iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"\x55")
            damaged += 1
    assert damaged
    assert [stream.tokens for stream in streams] == [states.alone(prompt, 20) for prompt in prompts]


def test_sampling_does_not_depend_on_the_batch(full: Any) -> None:
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.9, seed=3)
    alone = Server(full.model, 60).engine.submit(Request((5, 6, 7), NEW, sampling=sampling)).result()
    server = Server(full.model, 60)
    streams = [server.engine.submit(Request(tokens, NEW, sampling=sampling)) for tokens in ((9,), (5, 6, 7), (5, 9))]
    assert streams[1].result() == alone != full.alone((5, 6, 7), NEW)
