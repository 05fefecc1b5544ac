"""Messages arrive whole and in order, however the socket cuts them; an end that is gone is told."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.runtime.recovery.channel import Channel, GoneError
from dayzero.runtime.recovery.messages import (
    Asked,
    Beat,
    Failed,
    Finished,
    Here,
    Join,
    News,
    Order,
    Serve,
    Share,
    Stop,
    Token,
)
from dayzero.schema import Layout

WORDS = st.text(max_size=40)
NEWS = st.one_of(
    st.just(Here()),
    st.builds(Beat, epoch=st.integers(0, 2**31), passes=st.integers(0, 2**40), inside=st.booleans(), phase=WORDS,
              moved=st.integers(0, 2**40)),
    st.builds(Token, epoch=st.integers(0, 9), request=st.integers(0, 99), token=st.integers(0, 200_000),
              finish=st.sampled_from(["", "stop", "length"])),
    st.builds(Failed, epoch=st.integers(0, 9), reason=WORDS, layer=st.integers(-1, 92)))


@settings(max_examples=50, deadline=None)
@given(st.lists(NEWS, max_size=20), st.integers(1, 7))
def test_what_is_sent_arrives_whole_and_in_order(sent: list[object], cut: int) -> None:
    ours, theirs = socket.socketpair()
    encoder: Channel[object] = Channel(_Cut(theirs, cut), Order)  # type: ignore[arg-type]
    receiver: Channel[object] = Channel(ours, News)
    with ours, theirs:
        sender = threading.Thread(target=lambda: [encoder.send(one) for one in sent])
        sender.start()
        assert [receiver.receive() for _ in sent] == sent
        sender.join()


class _Cut:
    """A socket that sends a few bytes at a time."""

    def __init__(self, inner: socket.socket, size: int) -> None:
        self.inner, self.size = inner, size

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), self.size):
            self.inner.sendall(data[start:start + self.size])


def test_the_order_to_join_survives_the_way() -> None:
    ours, theirs = socket.socketpair()
    order = Join(7, Layout(tp=2, pp=3), 4, "/somewhere/epoch-7")
    with ours, theirs:
        Channel(ours, News).send(order)
        received: object = Channel(theirs, Order).receive()
        assert received == order
        Channel(ours, News).send(Stop())
        assert Channel(theirs, Order).waiting() == [Stop()]


def test_part_of_a_message_is_a_sign_of_life() -> None:
    ours, theirs = socket.socketpair()
    receiver: Channel[object] = Channel(ours, News)
    with ours, theirs:
        before = time.monotonic()
        theirs.sendall(b"\x00\x10")
        assert receiver.waiting() == [] and before <= receiver.arrived <= time.monotonic()


def test_an_end_that_is_closed_is_gone() -> None:
    ours, theirs = socket.socketpair()
    channel: Channel[object] = Channel(ours, News)
    with ours:
        Channel(theirs, Order).send(Finished(1, 2, Share(device="cpu")))
        theirs.close()
        assert channel.receive() == Finished(1, 2, Share(device="cpu"))
        with pytest.raises(GoneError):
            channel.receive()
        with pytest.raises(GoneError):
            for _ in range(3):
                channel.send(Stop())


def test_who_may_not_wait_offers_what_the_other_side_takes_later() -> None:
    ours, theirs = socket.socketpair()
    order = Serve(1, (Asked(1, tuple(range(10**6)), 1),))
    with ours, theirs:
        sender, receiver = Channel[object](ours, News), Channel[object](theirs, Order)
        sender.offer(order)  # more than fits into the socket: nobody reads yet
        sender.offer(Stop())
        assert sender.sending and receiver.pending() == []
        found: list[object] = []
        while not sender.flush() or len(found) < 2:
            found += receiver.pending()
        assert found == [order, Stop()] and not sender.sending
        theirs.close()
        with pytest.raises(GoneError):
            for _ in range(3):
                sender.offer(order)
