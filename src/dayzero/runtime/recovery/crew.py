"""The members as processes: starting them, hearing from them, ending them. None outlives the crew."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dayzero.errors import StageError
from dayzero.runtime.starting import Plain, Process, Start
from dayzero.schema import Layout

from .channel import Channel, GoneError
from .messages import Here, News, Order, Stop

_GRACE = 3.0
"""Seconds that a member has to end when it is told to,"""
_ENDING = 1.0
"""and when it has closed its channel."""
_WAKING = 0.05
_BELLS = 4096
_ROOM = 1 << 20
"""Bytes of a disk with which ranks can still meet and write their logs."""


class Member:
    """One process."""

    def __init__(self, number: int, process: Process, channel: Channel[News]) -> None:
        self.number, self.process, self.channel = number, process, channel
        self.ready = False
        """Whether it waits for an order."""
        self.closed = False
        """Whether it had closed its channel and was still there when it was killed."""

    @property
    def runs(self) -> bool:
        """Whether a thread of it is running, waits for its turn, or for a disk; False where the system does not
        tell."""
        with contextlib.suppress(OSError):
            told = [each.read_text() for each in Path(f"/proc/{self.process.pid}/task").glob("*/stat")]
            return any(each.rpartition(")")[2].split()[0] in ("R", "D") for each in told)
        return False

    def send(self, order: Order) -> None:
        """Without waiting for a member that is stopped, or that itself waits to be heard."""
        with contextlib.suppress(GoneError):  # noticed when it is heard next
            self.channel.offer(order)


class Crew:
    """All members by number; those that have ended are not among them."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, start: Start | None = None) -> None:
        """`folder`: has the job that members read, and gets their logs; `environment`: more of it than there is."""
        self.folder, self._start = folder, start or Plain()
        self.environment = {**self._start.variables, **(environment or {})}
        self.members: dict[int, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._started = 0

    def start(self, likely: Layout | None = None) -> Member:
        """One more member; it says Here when it is ready. `likely`: of a spare, the layout in which it will have a
        place."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._start(
                [sys.executable, "-u", "-m", "dayzero.runtime.recovery.member", "{end}", str(self.folder.resolve()),
                 "{parent}", likely.text if likely else ""], self.environment, theirs.fileno(),
                self.folder / f"member-{self._started}.txt")
        member = Member(self._started, process, Channel(ours, News))
        self.members[member.number] = member
        self._selector.register(member.channel, selectors.EVENT_READ, member)
        self._started += 1
        return member

    def fill(self, count: int, likely: Layout | None = None) -> None:
        """Start members, or spares, until there are so many of them."""
        while len(self.members) < count:
            self.start(likely)

    def heard(self, timeout: float) -> Iterator[tuple[Member, News | None]]:
        """What members say within the time, or until somebody calls `wake`; None: that one has ended, and is no longer
        among them."""
        for key, events in self._ready(timeout):
            member: Member | None = key.data
            if member is None:
                self._ear.recv(_BELLS)
                continue
            if member.number not in self.members:  # ended since the selector was asked
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    member.channel.flush()
                news = member.channel.waiting() if events & selectors.EVENT_READ else []
            except GoneError:
                self._gone(member)
                yield member, None
                continue
            for each in news:
                yield member, each

    def _ready(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        for member in self.members.values():
            sending = selectors.EVENT_WRITE if member.channel.sending else 0
            self._selector.modify(member.channel, selectors.EVENT_READ | sending, member)
        return self._selector.select(timeout)

    def _gone(self, member: Member) -> None:
        """It has closed its end: see how it ended, rather than that it was killed here."""
        try:
            member.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            member.closed = True
        self.end(member)

    def wake(self) -> None:
        """Have `heard` return at once. From any thread."""
        with contextlib.suppress(OSError):  # it rings already, or all is over
            self._bell.send(b"!")

    def end(self, member: Member) -> None:
        """Kill it, if it has not ended by itself."""
        if self.members.pop(member.number, None):
            self._selector.unregister(member.channel)
            member.process.kill()  # also one that is stopped
            with contextlib.suppress(subprocess.TimeoutExpired):  # in the hands of a disk: it ends when it leaves them
                member.process.wait(_GRACE)
            member.channel.close()

    def until(self, done: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for members that are starting. Raises StageError when they do not come."""
        until = time.monotonic() + seconds
        while not done():
            for member, news in self.heard(_WAKING):
                if news is None:
                    self.check_room()
                    raise StageError(f"a rank {how(member)} before it was {what}", f"see the logs in {self.folder}",
                                     self.log(member))
                member.ready = member.ready or isinstance(news, Here)
            if time.monotonic() > until:
                raise StageError(f"no rank was {what} after {seconds:.0f} s", f"see the logs in {self.folder}")

    def check_room(self) -> None:
        """Raises StageError when no more can be written, which members that end at once may not be able to say."""
        if shutil.disk_usage(self.folder).free < _ROOM:
            raise StageError(f"the disk of {self.folder} is full", "make room there, or take another folder")

    def given_up(self, told: str, *, finite: bool) -> StageError:
        """What is raised when members fail again and again. `finite`: whether what layers put out was numbers."""
        if not finite:
            return StageError(told, "see with dayzero verify whether the weights are damaged, or try --dtype f32")
        return StageError(told, f"see the logs in {self.folder}", self.logs())

    def logs(self) -> str:
        """The end of what all printed."""
        return "\n".join(self.log(member) for member in self.members.values())[-2000:]

    def log(self, member: Member, most: int = 2000) -> str:
        """The end of what it printed."""
        with contextlib.suppress(OSError):
            return (self.folder / f"member-{member.number}.txt").read_text(errors="replace")[-most:].strip()
        return ""

    def close(self) -> None:
        """Tell all to end, and see to it."""
        for member in self.members.values():
            member.send(Stop())
        until = time.monotonic() + _GRACE
        for member in list(self.members.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, until - time.monotonic()))
            self.end(member)
        self._selector.close()
        self._bell.close()
        self._ear.close()
        self._start.close()


def how(member: Member) -> str:
    """How a process ended, in words."""
    code = member.process.returncode
    if code is None or member.closed:
        return "ended its work"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
