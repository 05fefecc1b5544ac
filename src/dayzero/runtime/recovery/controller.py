"""Outside of the ranks: keeps the requests and what they have led to, and an epoch of members that serve them.

    begin an epoch -> hear news, watch beats, tell of new requests -> somebody is lost -> the others settle -> the next
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dayzero.errors import DayzeroError, NotPossible, StageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.starting import Start
from dayzero.schema import Layout, Lost

from .crew import Crew, Member, how
from .losses import Losses, told
from .messages import (
    Asked,
    Beat,
    Failed,
    Finished,
    Here,
    Join,
    Leave,
    Loaded,
    Logits,
    News,
    Refused,
    Serve,
    Share,
    Token,
)
from .places import reseated, seated, smaller
from .requests import Answer, Requests, error_of
from .watch import Deadlines, Watch

_TICK = 0.05
_TRIES = 3
"""Epochs that may fail one after the other without a new token."""


class Controller:
    """Serves requests in a layout, whatever happens to the ranks. For one thread; see `service` for others."""

    def __init__(self, folder: Path, layout: Layout, *, spares: int = 0, fallbacks: Sequence[Layout] = (),
                 deadlines: Deadlines | None = None, refill: bool = True, environment: dict[str, str] | None = None,
                 start: Start | None = None, progress: Progress = SILENT) -> None:
        """`folder` has the job that members read. `fallbacks`: layouts for fewer ranks, the best first. `refill`:
        whether a new spare is started when one has taken a place. `start`: how members are started; see `Crew`."""
        self.layout, self.deadlines = layout, deadlines or Deadlines()
        self.fallbacks, self._wished = list(fallbacks), layout
        self.crew, self.folder, self.progress = Crew(folder, environment, start), folder, progress
        self._spares, self._refill = spares, refill
        self.epoch, self.seats = 0, dict[int, int]()
        """Rank -> number of its member."""
        self.requests, self.losses = Requests(), Losses()
        self._joined, self._anew, self._broken, self._short = False, False, False, False
        """Whether the members of the epoch have been told their places; whether all places are to be given anew;
        whether nothing could be served, so that only another request is a reason to try again; whether spares lack."""
        self._orders, self._watch = 0, Watch(self.deadlines)
        """Orders to serve in this epoch."""
        self._done, self._shares = dict[int, int](), dict[int, Share]()
        """Rank -> orders that it has followed to the end, and what it held then."""
        self._loaded, self._failed = set[int](), dict[int, Failed]()
        self._leaving, self._fruitless = 0.0, 0
        """Until when members may leave an epoch that has failed; 0: it has not. Epochs that failed since a token."""

    # what others ask

    def begin(self) -> None:
        """Start the members and the spares."""
        self.crew.fill(self.layout.world_size)
        self.crew.fill(self.layout.world_size + self._spares, self.layout)

    def start(self) -> None:
        """Wait until there are enough members for the layout and all hold their places; `begin` first, if that was not
        done. Raises as `turn`."""
        if not self.crew.members:
            self.begin()
        self.crew.until(lambda: len(self.waiting()) >= self.layout.world_size, "ready", self.deadlines.joining)
        while not self.idle:
            self.turn()

    def submit(self, asked: Asked, heard: Callable[[Answer], None] = lambda _: None) -> Answer:
        """One more request; what comes of it comes with the next turns."""
        answer = Answer(asked, heard)
        self.requests.add(answer)
        return answer

    @property
    def idle(self) -> bool:
        """Whether all is served, and all members wait in their places."""
        return not self.requests.open and self._joined and bool(self._orders) and self._followed == len(self.seats)

    @property
    def shares(self) -> dict[int, Share]:
        """Rank -> what it held when it had last done all that was asked."""
        return dict(sorted(self._shares.items()))

    def waiting(self) -> list[int]:
        """Members that have no place and can take one."""
        taken = set(self.seats.values())
        return [number for number, member in self.crew.members.items() if member.ready and number not in taken]

    def members(self) -> dict[int, Member]:
        """The members of the epoch, by rank."""
        return {rank: self.crew.members[number] for rank, number in self.seats.items() if number in self.crew.members}

    def close(self) -> None:
        """End all members."""
        self.crew.close()

    def turn(self) -> None:
        """Tell members what is new, and hear them for a short time. Raises StageError when requests cannot be served
        with the members that are left, or when a layer puts out values that are not finite wherever it runs;
        NotPossible, ReleaseError and others for what no member can do. The requests that are not over have failed then.
        """
        try:
            self._turn()
        except (DayzeroError, NotPossible) as error:
            self._joined, self._broken = False, True
            self.requests.fail_all(error)
            raise

    # an epoch

    def _turn(self) -> None:
        if self._broken and not self.requests.open:
            self._hear()
            return
        self._broken = False
        if not self._joined:
            self._join()
        self._tell()
        lost, reason = self._look()
        if reason:
            self._recover(lost, reason)
        if self._short and (self.idle or not self.losses.open):  # till then the processor is for those that recover
            self._short = False
            self.crew.fill(self.layout.world_size + self._spares, self.layout)
        self._tell_progress()

    def _join(self) -> None:
        """The next epoch."""
        if len(self.members()) < self.layout.world_size:
            self._reseat()
        self.epoch += 1
        self._joined, self._orders = True, 0
        self._loaded, self._failed, self._done, self._leaving = set(), {}, {}, 0.0
        self._watch.begin(self.seats)
        store = str(self.folder.resolve() / f"epoch-{self.epoch}")
        for rank, member in self.members().items():
            member.ready = False
            member.send(Join(self.epoch, self.layout, rank, store))

    def _tell(self) -> None:
        """When all hold what they need: to serve all that is open, and from then on what is new."""
        if len(self._loaded) < len(self.seats) or self._leaving:
            return
        if not self._orders:
            self._serve(Serve(self.epoch, self.requests.every()))
            return
        new, cancelled = self.requests.news()
        if new or cancelled:
            self._serve(Serve(self.epoch, new, cancelled))

    def _serve(self, order: Serve) -> None:
        self._orders += 1
        self._watch.asked()
        for member in self.members().values():
            member.send(order)

    @property
    def _followed(self) -> int:
        """Ranks that have done all that was asked."""
        return sum(done == self._orders for done in self._done.values())

    def _look(self) -> tuple[dict[int, str], str]:
        """One round of news: ({rank: why it is lost}, what happened); no words: the epoch goes on."""
        if lost := self._hear():
            return lost, told(lost)
        if wrong := next((one for one in self._failed.values() if one.error), None):
            self._refused(wrong)
            return {}, wrong.reason
        if own := {rank: one.reason for rank, one in self._failed.items() if one.own}:
            return own, "; ".join(f"rank {rank}: {why}" for rank, why in own.items())
        if self._failed and not self._leaving:
            self._have_left()
        if self._leaving and (len(self._failed) >= len(self.members()) or time.monotonic() > self._leaving):
            return {}, next((one.reason for one in self._failed.values() if one.reason), "a rank has left")
        return {}, ""

    def _have_left(self) -> None:
        """The epoch is over: whoever has met the others leaves them. Why it is may still come."""
        self._leaving = time.monotonic() + self.deadlines.settling
        for member in self.members().values():
            if not member.ready:
                member.send(Leave(self.epoch))

    def _tell_progress(self) -> None:
        if self.idle:
            return
        count, left = self.requests.tokens
        loading = len(self._loaded) < len(self.seats)
        phase = f"{len(self._loaded)} of {len(self.seats)} ranks loaded" if loading else f"{count} tokens"
        again = f", epoch {self.epoch}" if self.losses.ranks else ""
        total = 0.0 if loading else count + left
        self.progress.update(f"{self.layout.text}{again}: {phase}", count if total else 0.0, total)

    def _refused(self, wrong: Failed) -> None:
        """A member says that this cannot be served. Raises that, unless it is about a layout for fewer ranks: another
        one is taken then."""
        if self.layout != self._wished and self.layout in self.fallbacks:
            self.fallbacks.remove(self.layout)
            self.layout, self._anew = self._wished, True
            return
        raise error_of(wrong)

    # news

    def _hear(self) -> dict[int, str]:
        """One round. {rank: why it is lost}."""
        ranks = {number: rank for rank, number in self.seats.items()}
        lost: dict[int, str] = {}
        for member, news in self.crew.heard(_TICK):
            rank = ranks.get(member.number)
            if news is None:
                if rank is None:
                    self._spare_lost(member)
                else:
                    lost[rank] = how(member)
            elif rank is None or isinstance(news, Here):
                member.ready = member.ready or isinstance(news, Here | Failed | Loaded)
            else:
                self._take(rank, member, news)
        return lost | self._silent(set(lost) | set(self._failed))

    def _take(self, rank: int, member: Member, news: News) -> None:
        """News of a member of the epoch; what is left of an earlier one is of no use."""
        if isinstance(news, Beat):
            self._watch.beat(rank, news)
        if isinstance(news, Here) or news.epoch != self.epoch:
            return
        if isinstance(news, Token):
            self._token(news)
        elif isinstance(news, Logits):
            self.requests.logits(news)
        elif isinstance(news, Refused):
            self.requests.fail(news.request, StageError(news.reason, news.hint))
        elif isinstance(news, Loaded):
            self._has_loaded(rank, news)
        elif isinstance(news, Finished):
            self._done[rank] = news.orders
            if news.share is not None:
                self._shares[rank] = news.share
        elif isinstance(news, Failed):
            member.ready = True
            self._failed[rank] = news

    def _token(self, news: Token) -> None:
        if not self.requests.token(news):
            return
        self._fruitless = 0
        self.losses.token()

    def _has_loaded(self, rank: int, news: Loaded) -> None:
        self._loaded.add(rank)
        whole = len(self._loaded) == len(self.seats)
        if whole:
            self._shares = {}
            self.requests.weights_are_there()
        self.losses.loaded(news.read, whole=whole)

    def _spare_lost(self, member: Member) -> None:
        """One that waited is replaced; one that could not start would not start again either."""
        again = self._refill and member.ready
        self._short = self._short or again
        self.progress.note(self.losses.spare(how(member), again=again))

    def _silent(self, out: set[int]) -> dict[int, str]:
        """Members that do not beat, or that the others wait for: they are killed, so that the others see it."""
        members = {rank: member for rank, member in self.members().items() if rank not in out}
        reading = len(self._loaded) < len(self.seats)
        busy = [rank for rank in members
                if (rank not in self._loaded if reading else self._done.get(rank) != self._orders)]
        found = self._watch.at_fault({rank: each.channel.arrived for rank, each in members.items()}, busy,
                                     lambda rank: members[rank].runs)
        for rank in found:
            self.crew.end(members[rank])
        return found

    # when an epoch is over

    def _recover(self, lost: dict[int, str], reason: str) -> None:
        """After an epoch that failed: the others settle, and places are taken."""
        noticed = time.monotonic()
        self._joined = False
        for rank, member in self.members().items():
            if rank in lost:
                self.crew.end(member)
        if late := self._settle():
            lost, reason = lost | late, f"{reason}; {told(late)}"
        settled = time.monotonic() - noticed
        self.progress.note(reason)
        self.crew.check_room()
        self._fruitless += 1
        if self._fruitless > _TRIES:
            self._fruitless = 0
            raise self.crew.given_up(f"{reason}: {_TRIES} times without a new token",
                                     finite=not any(one.own for one in self._failed.values()))
        taken_over = self._reseat()
        self.losses.add(Lost(epoch=self.epoch, ranks=tuple(sorted(lost)), reason=reason, layout=self.layout,
                             taken_over=taken_over, settled_s=settled), noticed)  # tokens are of the next epoch now
        self._short = self._refill

    def _settle(self) -> dict[int, str]:
        """Wait until the others have left their groups; {rank: why it is lost as well}. Before they have met there is
        nothing to leave: they may go on reading."""
        lost: dict[int, str] = {}
        if not self._orders:
            return lost
        if not self._leaving:
            self._have_left()
        while any(not member.ready for member in self.members().values()) and time.monotonic() < self._leaving:
            lost |= self._hear()
        for rank, member in self.members().items():
            if not member.ready:
                self.crew.end(member)
                lost[rank] = f"did not leave the others in {self.deadlines.settling:g} s"
        return lost

    def _reseat(self) -> bool:
        """Who takes which place next. Whether the layout could be kept."""
        left = {} if self._anew else self.seats
        before = {rank: number for rank, number in left.items() if number in self.crew.members}
        self.seats, self._anew = before, False
        spares = self.waiting()
        if found := seated(self.layout, before, spares):
            self.seats = found
            return True
        if layout := smaller(self.fallbacks, len(before) + len(spares)):
            self.seats, self.layout = reseated(layout, self.layout, before, spares), layout
            return False
        missing = self.layout.world_size - len(before)
        self.crew.fill(self.layout.world_size)
        self.crew.until(lambda: len(self.waiting()) >= missing, "a spare that is starting", self.deadlines.joining)
        self.seats = seated(self.layout, before, self.waiting()) or {}
        return True
