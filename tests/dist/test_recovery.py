"""Ranks that are killed, stopped, or compute nonsense while they serve: the same tokens come out."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import tiny

from dayzero.errors import NotPossible, StageError
from dayzero.runtime.recovery.controller import Controller
from dayzero.runtime.recovery.job import Job
from dayzero.runtime.recovery.messages import Asked
from dayzero.runtime.recovery.requests import CANCELLED, Answer
from dayzero.runtime.recovery.service import Service, Told, served
from dayzero.runtime.recovery.watch import Deadlines
from dayzero.schema import Layout, Sampling, to_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOKENS = 12
REQUESTS = [Asked(0, (3, 4, 5, 6), TOKENS), Asked(1, (7, 8), TOKENS)]
DRAWN = [Asked(10, (3, 4, 5, 6), TOKENS, sampling=Sampling(1.0, top_p=0.95, seed=3)),
         Asked(11, (7, 8), TOKENS, sampling=Sampling(1.0, top_k=40))]
"""They are drawn."""
Start = Callable[..., Controller]
Tokens = dict[int, tuple[int, ...]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.dense(tmp_path_factory.mktemp("recovery") / "model")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Controller] = []

    def started(root: Path, layout: Layout, **settings: object) -> Controller:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        (folder / "job.json").write_bytes(to_json(Job(root=str(root))))
        one = Controller(folder, layout, environment={"OMP_NUM_THREADS": "1"},
                         **{"refill": False, **settings})  # type: ignore[arg-type]
        made.append(one)
        return one

    yield started
    for one in made:
        pids = [member.process.pid for member in one.crew.members.values()]
        one.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def _tokens(one: Controller, requests: Sequence[Asked], told: Told = lambda *_: None) -> Tokens:
    """Of each request."""
    if not one.epoch:
        one.start()
    return {each.asked.request: tuple(each.tokens) for each in served(one, requests, told)}


@pytest.fixture(scope="module")
def truth(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    """Tokens of one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "job.json").write_bytes(to_json(Job(root=str(model))))
    one = Controller(folder, Layout(), environment={"OMP_NUM_THREADS": "1"})
    try:
        return _tokens(one, [*REQUESTS, *DRAWN])
    finally:
        one.close()


def _likeliest(truth: Tokens) -> Tokens:
    """Of the requests that are not drawn."""
    return {each.request: truth[each.request] for each in REQUESTS}


def _disturbed(one: Controller, rank: int, token: int, what: signal.Signals, requests: Sequence[Asked] = REQUESTS
               ) -> Tokens:
    seen: list[int] = []

    def told(request: int, number: int, finish: str) -> None:
        seen.append(number)
        if len(seen) == token:
            os.kill(one.members()[rank].process.pid, what)

    return _tokens(one, requests, told)


@pytest.mark.parametrize(("layout", "rank", "token"), [("pp=2", 0, 1), ("tp=2", 1, 9), ("pp=3", 1, 9)])
def test_a_spare_takes_the_place_of_a_killed_rank(layout: str, rank: int, token: int, model: Path, start: Start,
                                                  truth: Tokens) -> None:
    """Drawn tokens are the same as well, and in any layout those of one process."""
    one = start(model, Layout.parse(layout), spares=1)
    assert _disturbed(one, rank, token, signal.SIGKILL, [*REQUESTS, *DRAWN]) == truth
    assert [(loss.ranks, loss.taken_over) for loss in one.losses.ranks] == [((rank,), True)]
    assert one.losses.ranks[0].read_bytes > 0  # the spare's share, not the others'
    assert one.losses.ranks[0].settled_s < one.deadlines.settling / 2  # nobody is left waiting for one that has left


def test_without_a_spare_fewer_ranks_go_on(model: Path, start: Start, truth: Tokens) -> None:
    one = start(model, Layout(pp=2), fallbacks=(Layout(tp=2), Layout()))
    assert _disturbed(one, 1, 5, signal.SIGKILL) == _likeliest(truth)
    assert one.layout == Layout()
    assert not one.losses.ranks[0].taken_over


@pytest.mark.parametrize(("deadlines", "why"), [
    (Deadlines(beat=4.0), "gave no sign of life for"),
    (Deadlines(beat=100.0, progress=3.0), "hung for 3 s while serving")])
def test_a_rank_that_stops_is_noticed_in_time(deadlines: Deadlines, why: str, model: Path, start: Start, truth: Tokens
                                              ) -> None:
    one = start(model, Layout(pp=2), spares=1, deadlines=deadlines)
    assert _disturbed(one, 1, 4, signal.SIGSTOP) == _likeliest(truth)
    assert why in one.losses.ranks[0].reason


def test_ranks_that_end_together_are_all_told(model: Path, start: Start, truth: Tokens) -> None:
    """The second one is noticed while the others settle, or at the same moment."""
    one = start(model, Layout(pp=3), spares=2)
    seen: list[int] = []

    def told(request: int, number: int, finish: str) -> None:
        seen.append(number)
        if len(seen) == 5:
            for rank in (0, 2):
                os.kill(one.members()[rank].process.pid, signal.SIGKILL)

    assert _tokens(one, REQUESTS, told) == _likeliest(truth)
    assert [loss.ranks for loss in one.losses.ranks] == [(0, 2)]
    assert {"rank 0 was ended by SIGKILL", "rank 2 was ended by SIGKILL"} <= set(
        one.losses.ranks[0].reason.split("; "))


@pytest.mark.parametrize("refill", [True, False])
def test_a_spare_that_ends_while_it_waits_is_told(refill: bool, model: Path, start: Start, truth: Tokens) -> None:
    one = start(model, Layout(), spares=1, refill=refill)
    assert _tokens(one, REQUESTS) == _likeliest(truth)
    one.crew.until(lambda: bool(one.waiting()), "ready", 60.0)
    spare = one.waiting()[0]
    one.crew.members[spare].process.kill()
    while not one.losses.spares:
        one.turn()
    one.turn()
    then = "another one is started" if refill else "it is not replaced"
    assert one.losses.told == (f"a spare was ended by SIGKILL: {then}",)
    assert len(one.crew.members) == 1 + refill and spare not in one.crew.members
    assert _tokens(one, REQUESTS) == _likeliest(truth)


def test_a_rank_that_ends_while_nothing_is_asked_is_replaced(model: Path, start: Start, truth: Tokens) -> None:
    one = start(model, Layout(pp=2), spares=1)
    assert _tokens(one, REQUESTS) == _likeliest(truth)
    lost = one.members()[1].process
    lost.kill()
    lost.wait()
    while not one.losses.ranks:
        one.turn()
    assert _tokens(one, REQUESTS) == _likeliest(truth)
    assert [(loss.ranks, loss.taken_over) for loss in one.losses.ranks] == [((1,), True)]


def test_requests_come_and_go_while_others_are_served(model: Path, start: Start, truth: Tokens) -> None:
    """Also while a rank is lost; one needs a larger cache than there was, while others are in it."""
    one = start(model, Layout(tp=2), spares=1)
    one.start()
    service, come = Service(one), SimpleQueue[Answer]()
    answers = [service.submit(each, come.put) for each in REQUESTS]
    while not answers[0].tokens:
        come.get(timeout=100)
    long = service.submit(Asked(20, tuple(range(3, 200)), 50), come.put)
    while len(long.tokens) < 2:
        come.get(timeout=100)
    service.cancel(long)
    one.members()[1].process.kill()
    answers += [service.submit(each, come.put) for each in DRAWN]
    while not all(each.done for each in (long, *answers)):
        come.get(timeout=100)
    service.settled(100)
    assert {each.asked.request: tuple(each.tokens) for each in answers} == truth
    assert long.finish == CANCELLED and len(long.tokens) < 50
    service.close()
    with pytest.raises(StageError, match="the model is closed"):
        service.submit(REQUESTS[0], come.put)


def test_replicas_that_share_experts_go_on_together(tmp_path: Path, start: Start) -> None:
    """One has two of three requests; a rank of the other is killed."""
    model = tiny.experts(tmp_path / "experts")
    requests = [*REQUESTS, Asked(2, (9, 10, 11), TOKENS // 2)]
    alone = _tokens(start(model, Layout()), requests)
    one = start(model, Layout(dp=2, ep=2), spares=1)
    assert _disturbed(one, 1, 7, signal.SIGKILL, requests) == alone
    assert [loss.ranks for loss in one.losses.ranks] == [(1,)]


def test_members_that_cannot_join_say_why(model: Path, tmp_path: Path, start: Start) -> None:
    one = start(tmp_path / "nothing", Layout())
    with pytest.raises(StageError, match=r"nothing.*: 3 times without a new token") as caught:
        one.start()
    assert str(tmp_path / "nothing") in caught.value.log
    with pytest.raises(NotPossible, match="no routed experts to deal out"):  # at once: nobody could
        start(model, Layout(dp=2, ep=2)).start()


def test_a_layout_for_fewer_ranks_that_cannot_be_is_not_taken(model: Path, start: Start, truth: Tokens) -> None:
    one = start(model, Layout(pp=3), fallbacks=(Layout(dp=2, ep=2), Layout()))
    assert _disturbed(one, 1, 3, signal.SIGKILL) == _likeliest(truth)
    assert one.layout == Layout()
    assert [loss.ranks for loss in one.losses.ranks] == [(1,), ()]  # the other two try the first one
    assert "no routed experts" in one.losses.ranks[1].reason


def test_a_layer_that_gives_no_numbers_is_named(model: Path, tmp_path: Path, start: Start) -> None:
    bad = tiny.dense(tmp_path / "bad")
    file = next(bad.glob("*.safetensors"))
    tensors = load_file(file)
    name = next(name for name in tensors if "layers.1." in name and "down_proj" in name)
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, file, metadata={"format": "pt"})
    one = start(bad, Layout())
    with pytest.raises(StageError, match="layer 1 puts out values that are not finite") as caught:
        _tokens(one, REQUESTS)
    assert "dayzero verify" in caught.value.hint and not caught.value.log


def test_a_full_disk_is_told(model: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start(model, Layout(tp=2), spares=1)
    one.start()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(StageError, match="the disk of .* is full"):
        _disturbed(one, 1, 5, signal.SIGKILL)
