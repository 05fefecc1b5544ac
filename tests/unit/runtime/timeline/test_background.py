"""Work beside computing: order, limits, failures and the end of the threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import pytest
import torch

from dayzero.backends import backends
from dayzero.runtime.timeline import Background, Timeline


def alive(name: str) -> bool:
    return any(thread.name.startswith(name) for thread in threading.enumerate())


def test_work_is_done_in_order_on_another_thread() -> None:
    done: list[int] = []
    with Background("orderly") as work:
        futures = [work.submit(lambda index: done.append(index) or threading.current_thread().name, index)
                   for index in range(200)]
        assert {future.result() for future in futures} == {"orderly"}
    assert done == list(range(200))
    assert not alive("orderly")


def test_a_failure_is_raised_where_its_result_is_asked_for() -> None:
    with Background("failing") as work:
        future = work.submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            future.result()
        assert work.submit(int, "3").result() == 3  # and the thread goes on


def test_a_failure_that_nobody_looked_at_is_raised_at_the_end() -> None:
    with pytest.raises(ValueError, match="'y'"), Background("unseen") as work:
        seen = work.submit(int, "x")
        assert isinstance(seen.exception(), ValueError)
        work.submit(int, "y")
    assert not alive("unseen")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_cancels_what_is_queued_and_leaves_no_thread(error: type[BaseException]) -> None:
    running, release, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        running.set()
        release.wait(5)
        done.append("slow")

    with pytest.raises(error), Background("left") as work:
        work.submit(slow)
        queued = [work.submit(done.append, "queued") for _ in range(3)]
        running.wait(5)
        threading.Timer(0.05, release.set).start()
        raise error
    assert done == ["slow"]
    for future in queued:
        with pytest.raises(CancelledError):
            future.result(0)
    assert not alive("left")


def test_submit_waits_while_the_queue_is_full() -> None:
    release = threading.Event()
    with Background("full", limit=2) as work:
        work.submit(release.wait, 5)
        time.sleep(0.02)
        work.submit(int)
        work.submit(int)
        submitted: list[Future[object]] = []
        late = threading.Thread(target=lambda: submitted.append(work.submit(int)))
        late.start()
        late.join(0.05)
        assert not submitted
        release.set()
        late.join(5)
        assert submitted[0].result() == 0


def test_who_waits_for_room_is_told_when_it_closes() -> None:
    release, raised = threading.Event(), []
    work = Background("closing", limit=1)
    work.submit(release.wait, 5)
    time.sleep(0.02)
    work.submit(int)

    def late() -> None:
        try:
            work.submit(int)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=late)
    thread.start()
    time.sleep(0.02)
    threading.Timer(0.05, release.set).start()
    work.close(cancel=True)
    thread.join(5)
    assert "closed" in raised[0]
    work.close()
    assert not alive("closing")


def test_its_own_work_may_submit_more() -> None:
    with Background("nested", limit=1) as work:
        inner = work.submit(lambda: [work.submit(int, str(index)) for index in range(5)]).result()
        assert [future.result(5) for future in inner] == [0, 1, 2, 3, 4]


def test_several_workers_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=5)
    with Background("several", workers=3) as work:
        for future in [work.submit(together.wait) for _ in range(3)]:
            future.result()
    assert not alive("several")


def test_its_spans_overlap_what_is_computed_meanwhile() -> None:
    with Timeline() as timeline, Background("loads", timeline=timeline) as loads:
        future = loads.submit(time.sleep, 0.05, category="load", name="layer 1", nbytes=1000)
        with timeline.span("compute"):
            time.sleep(0.03)
            with timeline.span("wait"):
                future.result()
        loads.drain()
        (found,) = timeline.overlap()
    assert found.nbytes == 1000
    assert 0.02 < found.hidden_s < 0.045 < found.seconds  # hidden until the thread waited for it


def test_work_on_a_stream_ends_when_the_device_has_done_it() -> None:
    events: list[str] = []

    class Stream:
        def run(self, function: Callable[[], object]) -> Future[object]:
            future: Future[object] = Future()
            future.set_result(function())
            events.append("put")
            return future

        def synchronize(self) -> None:
            events.append("waited")

    with Background("stream", stream=Stream()) as work:
        assert work.submit(lambda: 7).result() == 7
        assert events == ["put", "waited"]


def test_gradients_are_recorded_where_the_submitting_thread_would() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    with Background("modes") as work:
        with torch.no_grad():
            work.submit(weight.fill_, 2.0).result()
        with torch.inference_mode():
            assert work.submit(torch.ones, 2).result().is_inference()
        assert work.submit(lambda: weight * 2).result().requires_grad
    assert weight.tolist() == [2.0] * 3
    assert weight.is_leaf


def test_a_failure_on_a_stream_is_that_of_its_own_work() -> None:
    stream = backends().get("cpu").stream()
    with Background("stream", stream=stream) as work:
        assert isinstance(work.submit(int, "x").exception(), ValueError)
        assert work.submit(int, "3").result() == 3
