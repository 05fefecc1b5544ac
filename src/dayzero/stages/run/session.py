"""A release that is loaded and serves, in processes of its own, until it is closed. Nothing is kept for `check`."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from dayzero.backends import Chosen, host
from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES
from dayzero.runtime.mesh import indivisible, refusal
from dayzero.runtime.recovery.confined import Confined
from dayzero.runtime.recovery.controller import Controller
from dayzero.runtime.recovery.job import Job
from dayzero.runtime.recovery.messages import Asked, Logits, Share
from dayzero.runtime.recovery.places import reduced
from dayzero.runtime.recovery.requests import Answer
from dayzero.runtime.recovery.service import Service
from dayzero.runtime.recovery.watch import Deadlines
from dayzero.runtime.seat import HOST, unusable
from dayzero.runtime.starting import library_variables
from dayzero.runtime.tokens import Tokens
from dayzero.runtime.weights import check_weights
from dayzero.schema import KEEPS, Budget, Layout, Lost, Release, to_json
from dayzero.schema.store import write_atomic

from .answering import Answering, Writing
from .decoding import decoded, dtype_of
from .limits import check_length, check_tokens, too_many_ranks
from .wanted import Wanted

Shown = Callable[[int, str], None]
"""Called with (prompt, text that has come since)."""
_ALONE, _NOBODY = Layout(), Chosen()
_F32, _MESSAGE = 4, 1 << 32
"""Bytes of a logit, and of the longest message of a rank."""


@dataclass(frozen=True)
class Way:
    """How to run."""

    layout: Layout = _ALONE
    stages: tuple[tuple[int, int], ...] = ()
    """[first layer, end) of each pipeline stage; empty: as even as can be."""
    dtype: str = ""
    """bf16, f16 or f32; empty: the release's own, bf16 for a quantised one."""
    backend: str = HOST
    """Kind of device to compute on."""
    chosen: Chosen = _NOBODY
    """Which attention, norms and cache to use."""
    own: bool = False
    """Whether the release's own code is to run, confined."""
    partial: bool = False
    """Whether a release of which only the first layers are here is to be run as a model of those."""
    device_memory: int = 0
    """Bytes of weights on a device; 0: no limit."""
    host_memory: int = 0
    """Bytes of a rank's private memory; 0: no limit."""
    keep: str = KEEPS[0]
    """values or stored: how weights are kept in memory; see `schema.Budget`."""
    budgets: tuple[Budget, ...] = ()
    """Of each rank, as a plan has them; empty: as said above for all."""
    verify: bool = False
    """Whether weight files are compared with their stated SHA-256 while they are read, and what is read again later
    with what was verified."""
    spares: int = 0
    """Processes that wait to take the place of a rank that is lost."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    """After how long a rank that does nothing is lost."""
    timeline: bool = False
    """Whether ranks write what they did when."""

    @property
    def limits(self) -> tuple[Budget, ...]:
        """What weights may take."""
        asked = Budget(device=self.device_memory or None, host=self.host_memory or None, keep=self.keep)
        return self.budgets or ((asked,) if asked.limited else ())


class Session:
    """A release in the memory of some processes. To be closed. For any thread."""

    def __init__(self, release: Release, folder: Path, way: Way, *, texts: bool = True,
                 progress: Progress = SILENT) -> None:
        """Start the processes and load the weights; `folder` is emptied, and gets logs and timelines. `texts`: whether
        the tokenizer is sure to be needed.

        Raises NotPossible when it cannot run here, ReleaseError when the files do not fill the model, UsageError for
        options that say what cannot be, StageError when ranks die.
        """
        check_way(release, way)
        assert release.root is not None
        self.release, self.folder, self.way, self.progress = release, folder, way, progress
        self.dtype = way.dtype or dtype_of(release.model)
        self._said = decoded(release.model, self.dtype)
        self._tokens: Tokens | None = None
        self._opening = threading.Lock()
        self._confined: Confined | None = None
        self._numbers = itertools.count()
        self._life = ExitStack()
        try:
            self._controller = self._life.enter_context(closing(self._begun()))
            if texts:
                self.tokens()
            progress.update(f"{way.layout.text}: starting")
            self._controller.start()
            self._service = self._life.enter_context(closing(Service(self._controller)))
        except BaseException:
            self.close()
            raise

    def _begun(self) -> Controller:
        """Members that are starting."""
        way, root = self.way, Path(str(self.release.root)).resolve()
        shutil.rmtree(self.folder, ignore_errors=True)
        ranks = way.layout.world_size
        threads = max(1, host.cores() // ranks)
        job = Job(root=str(root), dtype=self.dtype, backend=way.backend, chosen=way.chosen, threads=threads,
                  stages={way.layout.text: way.stages} if way.stages else {}, budgets=way.limits, own=way.own,
                  partial=way.partial, verify=way.verify, timeline=way.timeline)
        write_atomic(self.folder / "job.json", to_json(job))
        self._confined = Confined(self.folder, root) if way.own else None
        controller = Controller(
            self.folder, way.layout, spares=way.spares, fallbacks=reduced(way.layout), deadlines=way.deadlines,
            refill=way.spares > 0, environment=library_variables(threads), start=self._confined, progress=self.progress)
        try:
            controller.begin()
        except BaseException:
            controller.close()
            raise
        return controller

    # tokens

    def tokens(self) -> Tokens:
        """The release's tokenizer. Raises NotPossible when it cannot be used."""
        with self._opening:
            if self._tokens is None:
                self.progress.update("reading the tokenizer")
                self._tokens = self._life.enter_context(Tokens(
                    str(self.release.root), start=self._confined, log=self.folder / "tokenizer.txt"))
            return self._tokens

    def encode(self, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each prompt, as a user's turn where the release has a chat template."""
        return self.tokens().encode(tuple(prompts))

    def resolved(self, wanted: Wanted) -> Wanted:
        """With the release's own sampling, if that is wanted. Raises UsageError and ReleaseError."""
        checked = wanted.checked(self.release.model)
        return checked.resolved(self.tokens().sampling) if wanted.released else checked

    # requests

    def ask(self, rows: Sequence[Sequence[int]], wanted: Wanted, *, texts: bool = True, pieces: bool = True,
            changed: SimpleQueue[Answering] | None = None) -> list[Answering]:
        """Ask for what follows each row of token ids; `wanted` is resolved. An answer for each sample of the first row,
        then of the next. `texts`: whether there is text beside ids, `pieces`: before all of it is there, too;
        `changed`: gets an answer whenever there is more of it. Raises UsageError for rows that are empty or too long.
        """
        check_tokens(self.release.model, rows, self._tokens.ends if self._tokens else None)
        check_length(self.release.model, rows, wanted.max_new_tokens, len(rows) * wanted.samples, chosen=True)
        return [self._asked(row, wanted, sample, Writing(self.tokens if texts else None, wanted.stop, pieces=pieces),
                            changed) for row in rows for sample in range(wanted.samples)]

    def _asked(self, row: Sequence[int], wanted: Wanted, sample: int, writing: Writing,
               changed: SimpleQueue[Answering] | None) -> Answering:
        asked = Asked(next(self._numbers), tuple(row), wanted.max_new_tokens, sampling=wanted.of_sample(sample),
                      stops=wanted.stop_tokens)
        answering = Answering(self._service, writing, changed)
        answering.answer = self._service.submit(asked, answering.heard)
        return answering

    def logits(self, rows: Sequence[Sequence[int]]) -> list[Logits]:
        """The logits of each row's tokens, in one pass each without a cache. Raises as `ask`, and what one failed
        with."""
        check_tokens(self.release.model, rows, None)
        check_length(self.release.model, rows, 0, 1, chosen=True)
        come: SimpleQueue[Answer] = SimpleQueue()
        for row in rows:
            if len(row) * self.release.model.vocab_size * _F32 >= _MESSAGE:
                raise UsageError(f"the logits of {len(row):,} tokens are more than one message holds",
                                 "give shorter rows")
        asked = [self._service.submit(Asked(next(self._numbers), tuple(row), 1, logits=True), come.put) for row in rows]
        for _ in asked:
            come.get()
        if failed := next((each.error for each in asked if each.error), None):
            raise failed
        return [each.logits for each in asked if each.logits is not None]

    # what deserves to be known

    @property
    def layout(self) -> Layout:
        """In which it runs now."""
        return self._controller.layout

    @property
    def shares(self) -> dict[int, Share]:
        """Rank -> what it held when it had last done all that was asked."""
        return self._controller.shares

    @property
    def losses(self) -> tuple[Lost, ...]:
        """What happened to ranks so far."""
        return tuple(self._controller.losses.ranks)

    def settled(self) -> None:
        """Wait for what ranks say of themselves after the last request, unless they have others."""
        self._service.settled(self.way.deadlines.joining)

    @property
    def events(self) -> tuple[str, ...]:
        """What deserves to be known, each once."""
        ranks = [text for share in self.shares.values() for text in share.events]
        why = self._tokens.plain if self._tokens else ""
        plain = f"prompts are not a user's turn: the chat template refuses them ({why})" if why else ""
        told = (self._said, *self._controller.losses.told, *ranks, plain)
        return tuple(dict.fromkeys(text for text in told if text))

    def close(self) -> None:
        """End the processes."""
        self._life.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_way(release: Release, way: Way) -> None:
    """Raises NotPossible when the release cannot be run so on this machine, UsageError for what nobody can run."""
    check_weights(release, partial=way.partial, away=not way.own)  # own code has no network
    if way.dtype and way.dtype not in DTYPES:
        raise UsageError(f"there is no dtype {way.dtype}", f"take one of {', '.join(DTYPES)}")
    if way.keep not in KEEPS:
        raise UsageError(f"weights cannot be kept as {way.keep!r}", f"take one of {', '.join(KEEPS)}")
    if way.spares < 0:
        raise UsageError(f"{way.spares} spares", "give 0 or more")
    if way.own and way.backend != HOST:
        raise NotPossible(f"the release's own code runs confined, where no device is but {HOST}", "leave --backend out")
    if reason := unusable(way.backend, way.layout):
        raise NotPossible(reason, "dayzero backend list: what can be used here")
    if reason := refusal(way.layout) or indivisible(release.model, way.layout) or (
            too_many_ranks(way.layout, way.spares)):
        raise NotPossible(reason, "choose another layout with --layout")
    if way.device_memory and way.backend == HOST:
        raise UsageError(f"{HOST} has no memory of its own for --device-memory", "limit it with --host-memory")
