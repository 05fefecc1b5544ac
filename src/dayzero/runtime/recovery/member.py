"""One member: `python -m dayzero.runtime.recovery.member SOCKET FOLDER`, started by the controller.

Its main thread takes orders and serves; another one beats, so that a stopped process is told from one that computes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from dayzero.backends.process import die_with_parent
from dayzero.errors import LayoutError, NotPossible, ReleaseError, UsageError
from dayzero.schema import Layout
from dayzero.text import one_line

from .channel import Channel, GoneError
from .messages import (
    Beat,
    Failed,
    Finished,
    Here,
    Join,
    Leave,
    Loaded,
    Logits,
    Order,
    Refused,
    Serve,
    Share,
    Stop,
    Token,
)
from .roles import LeftError, NotFiniteError, Orders, Pace, Serving

INTERVAL = 0.25
"""Seconds between beats."""
_LENGTH = 300


class Heart:
    """The thread that says how far the member is."""

    def __init__(self, channel: Channel[Order], pace: Pace) -> None:
        self._channel, self._pace, self._stop = channel, pace, threading.Event()
        self.epoch, self.phase = 0, "waiting"
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def begin(self, epoch: int, phase: str) -> None:
        """Count from nothing."""
        self._pace.begin()
        self.epoch = epoch
        self.turn(phase)

    def turn(self, phase: str) -> None:
        """Do something else from now on. What holds for it holds at once, so it is told before anything comes of it.
        Raises GoneError."""
        self.phase = phase
        self._beat()

    def _run(self) -> None:
        with contextlib.suppress(GoneError):
            while not self._stop.wait(INTERVAL):
                self._beat()

    def _beat(self) -> None:
        pace = self._pace
        phase = self.phase  # as it is now: the other thread may go on meanwhile
        moved = _read_mib() if phase == "loading" else pace.layers
        self._channel.send(Beat(self.epoch, pace.passes, pace.inside, phase, moved))

    def stop(self) -> None:
        """No more beats."""
        self._stop.set()
        self._thread.join()


def _read_mib() -> int:
    """MiB that this process has read so far, from files or the system's page cache; 0 where the system does not
    tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/io").read_text().split()[1]) >> 20
    return 0


class Inbox:
    """Orders, in the order in which they come. Every method raises GoneError when the controller is gone."""

    def __init__(self, channel: Channel[Order]) -> None:
        self._channel, self._come = channel, deque[Order]()

    def first(self) -> Order:
        """Waits for one, which stays the first."""
        if not self._come:
            self._come.append(self._channel.receive())
        return self._come[0]

    def take(self, count: int = 1) -> list[Order]:
        """The first ones, which have come."""
        return [self._come.popleft() for _ in range(count)]

    def look(self) -> Sequence[Order]:
        """All that have come by now."""
        self._come.extend(self._channel.pending())
        return self._come


class Incoming:
    """What there is to serve in one epoch."""

    def __init__(self, epoch: int, inbox: Inbox, channel: Channel[Order], heart: Heart) -> None:
        self._epoch, self._inbox, self._channel, self._heart = epoch, inbox, channel, heart
        self._followed = 0

    def come(self) -> int:
        """Orders that have come and were not taken. Raises LeftError when one of them is something else."""
        orders = self._inbox.look()
        if not all(isinstance(order, Serve) and order.epoch == self._epoch for order in orders):
            raise LeftError
        return len(orders)

    def take(self, count: int) -> list[Serve]:
        """The first ones, which have come."""
        self._followed += count
        return [order for order in self._inbox.take(count) if isinstance(order, Serve)]

    def rest(self, share: Share) -> None:
        """Say that all is served, and wait until there is more."""
        self._channel.send(Finished(self._epoch, self._followed, share))
        self._heart.turn("waiting")
        self._inbox.first()
        self._heart.turn("serving")


def attend(channel: Channel[Order], serving: Serving, pace: Pace) -> None:
    """Follow orders until one says stop, or the controller is gone."""
    heart, inbox = Heart(channel, pace), Inbox(channel)
    held = 0
    try:
        channel.send(Here())
        while not isinstance(order := inbox.first(), Stop):
            if isinstance(order, Serve) and order.epoch == held:
                _served(Incoming(held, inbox, channel, heart), held, channel, serving, heart)
                held = 0
                continue
            inbox.take()
            if isinstance(order, Join):
                held = _loaded(order, channel, serving, heart)
            elif isinstance(order, Leave) and order.epoch == held:
                held = _failed(LeftError(), held, channel, serving, heart)
    except GoneError:
        return
    finally:
        heart.stop()
        serving.close()


def _loaded(order: Join, channel: Channel[Order], serving: Serving, heart: Heart) -> int:
    """The epoch whose place the member holds; 0: it could not."""
    heart.begin(order.epoch, "loading")
    try:
        read = serving.load(order)
    except Exception as error:  # of whatever class a library says that something is wrong with
        return _failed(error, order.epoch, channel, serving, heart)
    heart.turn("waiting")
    channel.send(Loaded(order.epoch, read))
    return order.epoch


def _served(orders: Orders, epoch: int, channel: Channel[Order], serving: Serving, heart: Heart) -> None:
    """Until there is something else to do, or the epoch has failed."""
    heart.begin(epoch, "serving")
    try:
        serving.serve(orders, _Mouth(epoch, channel))
    except GoneError:
        raise
    except Exception as error:  # as above
        _failed(error, epoch, channel, serving, heart)


class _Mouth:
    """`Told`, to the controller."""

    def __init__(self, epoch: int, channel: Channel[Order]) -> None:
        self._epoch, self._channel = epoch, channel

    def token(self, request: int, token: int, finish: str) -> None:
        self._channel.send(Token(self._epoch, request, token, finish))

    def logits(self, request: int, width: int, values: bytes) -> None:
        self._channel.send(Logits(self._epoch, request, width, values))

    def refused(self, request: int, reason: str, hint: str) -> None:
        self._channel.send(Refused(self._epoch, request, one_line(reason, _LENGTH), hint))


def _failed(error: Exception, epoch: int, channel: Channel[Order], serving: Serving, heart: Heart) -> int:
    """Leave the groups, then say why. 0: no epoch."""
    if not isinstance(error, LeftError):
        traceback.print_exception(error)  # into the member's log
    heart.turn("leaving")
    _let_go(error)
    serving.leave()
    heart.turn("waiting")
    channel.send(_why(error, epoch))
    return 0


def _let_go(error: BaseException | None) -> None:
    """Of what the error holds: a message that was on its way keeps its connection, and who is at the other end waits.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _why(error: Exception, epoch: int) -> Failed:
    if isinstance(error, LeftError):
        return Failed(epoch, "")
    if isinstance(error, NotFiniteError):
        return Failed(epoch, str(error), error.layer)
    if isinstance(error, NotPossible):
        return Failed(epoch, error.reason, error=type(error).__name__, hint=error.hint)
    if isinstance(error, UsageError | ReleaseError | LayoutError):
        return Failed(epoch, error.message, error=type(error).__name__, hint=error.hint)
    return Failed(epoch, one_line(f"{type(error).__name__}: {error}", _LENGTH))


def main(end: int, folder: Path, likely: str) -> None:
    """The whole life of a member. `likely`: of a spare, the layout in which it will have a place; empty: of others."""
    channel: Channel[Order] = Channel(socket.socket(fileno=end), Order)
    from .serving import Runtime

    pace = Pace()
    attend(channel, Runtime(folder, pace, likely=Layout.parse(likely) if likely else None), pace)
    sys.stdout.flush()
    os._exit(0)  # libraries that lost a peer may abort while they are taken down


if __name__ == "__main__":
    die_with_parent(int(sys.argv[3]))
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[4])
