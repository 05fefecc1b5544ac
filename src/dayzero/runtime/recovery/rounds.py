"""Serves in rounds: in each one all ranks that work in step take the same orders, and carry out one step of an engine.

What a rank takes in a round is what all of them had received when the round before began. So requests may come at any
time, and nobody waits for news of the others: it comes while they compute.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dayzero.errors import UsageError
from dayzero.runtime.generate import end_tokens, generate
from dayzero.runtime.rank import Rank
from dayzero.runtime.rank_engine import serving_engine
from dayzero.runtime.serving import Engine, Lanes, Request, Stream
from dayzero.runtime.serving.sampling import draw
from dayzero.schema import Sampling

from .job import Job
from .messages import Asked, Serve, Share
from .roles import Orders, Told

_FEWEST = 16
"""Requests of the longest kind for which the cache has room from the start, where memory allows it."""
_COUNTED = 1024
"""Rounds after which what was hidden is summed up."""
_TOO_LONG = "ask for fewer tokens, or give the cache more memory"


@dataclass
class _Open:
    """A request of this replica that is not served yet."""

    asked: Asked
    stream: Stream | None = None
    """None: it waits for a cache."""
    told: int = 0
    """Tokens of the stream that were told."""
    before: tuple[int, ...] = ()
    """Tokens of streams before this one."""

    @property
    def now(self) -> Asked:
        """As it stands."""
        made = (*self.before, *(self.stream.tokens if self.stream else ()))
        one = self.asked
        return Asked(one.request, (*one.tokens, *made), one.left - len(made), sampling=one.sampling, stops=one.stops)


class Holder(Protocol):
    """Who has the rank, which has joined the others."""

    rank: Rank
    job: Job

    def free(self) -> int | None:
        """Bytes of its device for the cache; None: those of the host."""

    def share(self) -> Share:
        """What is said when all is served."""

    def counted(self) -> None:
        """Sum up what was hidden so far, so that no record of it grows without end."""


class Rounds:
    """Of one rank in one epoch."""

    def __init__(self, holder: Holder, orders: Orders, told: Told) -> None:
        """`told`: used by the rank that speaks."""
        rank, job = holder.rank, holder.job
        assert rank.mesh is not None
        self._holder, self._rank, self._mesh, self._orders = holder, rank, rank.mesh, orders
        self._told = told if rank.mesh.place.speaks else None
        self._ends = end_tokens(rank.model) if job.ends is None else job.ends
        self._whole = job.chosen.kv_cache == "dynamic"
        self._engine: Engine | Lanes | None = None
        self._room = 0
        """Tokens of all requests together for which the cache was made."""
        self._open: dict[int, _Open] = {}
        self._alone: deque[Asked] = deque()
        """Requests that are served by themselves, one in a round: for logits, and with the library's own cache."""
        self._taken = 0

    def run(self) -> None:
        """Until something is raised."""
        for number in itertools.count(1):
            agreed = self._mesh.block.least(torch.tensor([self._orders.come(), int(self._idle)]))
            self._work()
            self._rank.settle()
            come, idle = agreed.result().tolist()
            if come:
                self._take(self._orders.take(come))
            elif idle:
                self._orders.rest(self._holder.share())
            if number % _COUNTED == 0:
                self._holder.counted()

    @property
    def _idle(self) -> bool:
        return not self._open and not self._alone and (self._engine is None or self._engine.idle)

    # work

    def _work(self) -> None:
        if self._alone:
            one = self._alone.popleft()
            with self._rank.timeline.span("compute", "pass"):
                self._pass(one) if one.logits else self._written(one)
        if self._engine is not None and not self._engine.idle:
            with self._rank.timeline.span("compute", "step"):
                self._engine.step()
            self._tell()

    def _pass(self, one: Asked) -> None:
        """All logits, without a cache."""
        given, pipeline = torch.tensor([one.tokens], device=self._rank.device), self._rank.pipeline
        if pipeline is not None:
            pipeline.shares_logits = True
        logits = self._rank.model(input_ids=given, use_cache=False).logits[0].float().cpu().contiguous()
        if pipeline is not None:
            pipeline.shares_logits = self._engine is None
        if self._told is not None:
            self._told.logits(one.request, logits.shape[-1], logits.numpy().tobytes())

    def _written(self, one: Asked) -> None:
        """With the library's own generation and its cache that grows."""
        made = generate(self._rank.model, [(one.request, one.tokens)], batch=1, max_new_tokens=one.left,
                        ends=(*self._ends, *one.stops), pick=functools.partial(self._picked, one.sampling)).outputs[0]
        for index, token in enumerate(made.tokens):
            self._say(one.request, token, made.finish if index == len(made.tokens) - 1 else "")

    def _picked(self, sampling: Sampling, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The next token of the one row, which the first of the ranks with these scores chooses."""
        token = draw(scores[0], sampling, ids.shape[1]) if sampling.temperature > 0 else int(scores[0].argmax())
        chosen, sharing = torch.tensor([token]), self._mesh.tp
        return sharing.send_from(0, chosen) if sharing.size > 1 else chosen

    def _tell(self) -> None:
        """What the streams have got, and which are over."""
        for number, one in list(self._open.items()):
            stream = one.stream
            if stream is None:
                continue
            new, one.told = stream.tokens[one.told:], len(stream.tokens)
            for index, token in enumerate(new):
                self._say(number, token, stream.finish if index == len(new) - 1 else "")
            if stream.error is not None and self._told is not None:
                self._told.refused(number, stream.error.message, stream.error.hint)
            if stream.done:
                del self._open[number]

    def _say(self, request: int, token: int, finish: str) -> None:
        if self._told is not None:
            self._told.token(request, token, finish)

    # orders

    def _take(self, orders: Sequence[Serve]) -> None:
        """Requests are dealt out to replicas in turn."""
        place = self._mesh.place
        for order in orders:
            for one in order.asked:
                if self._taken % place.layout.dp == place.replica:
                    self._add(one)
                self._taken += 1
            for number in order.cancelled:
                self._cancel(number)
        if not self._whole and any(not one.logits for order in orders for one in order.asked):
            self._admit()

    def _add(self, one: Asked) -> None:
        if one.logits or self._whole:
            self._alone.append(one)
        else:
            self._open[one.request] = _Open(one)

    def _cancel(self, number: int) -> None:
        one = self._open.pop(number, None)
        if one is not None and one.stream is not None:
            one.stream.cancel()
        self._alone = deque(each for each in self._alone if each.request != number)

    def _admit(self) -> None:
        """Give all requests to the engine, with another cache if that is needed; those that none has room for are
        refused. All ranks that work in step come here together, whether they have such requests or not."""
        while True:
            total, longest = self._wanted()
            if self._engine is not None and total <= self._room and self._engine.possible(longest):
                break
            if not total or self._renewed(total, longest):
                break
            self._refuse(longest)
        for one in self._open.values():
            if one.stream is None and self._engine is not None:
                now = one.now
                one.stream = self._engine.submit(Request(now.tokens, now.left, (*self._ends, *now.stops), now.sampling))

    def _wanted(self) -> tuple[int, int]:
        """(tokens of all requests, of the longest one), of the replica that has most."""
        lengths = [one.asked.length for one in self._open.values()]
        most = self._mesh.block.least(torch.tensor([-sum(lengths), -max(lengths, default=0)])).result()
        return -int(most[0]), -int(most[1])

    def _renewed(self, total: int, longest: int) -> bool:
        """Have a cache for more than before; False when there is no room for the longest request. What has begun is
        computed again."""
        for one in self._open.values():
            if one.stream is not None:
                one.before, one.told, one.stream = (*one.before, *one.stream.tokens), 0, None
        self._engine = None
        gc.collect()  # so that there is room for the new one
        count = max(_FEWEST, -(-max(total, 2 * self._room) // longest))
        try:
            self._engine = serving_engine(self._rank, [longest] * count, count, free=self._holder.free())
        except UsageError:
            return False
        self._room = count * longest
        return True

    def _refuse(self, longest: int) -> None:
        for number, one in list(self._open.items()):
            if one.asked.length >= longest:
                del self._open[number]
                if self._told is not None:
                    self._told.refused(number, f"{longest} tokens do not fit into the cache", _TOO_LONG)
