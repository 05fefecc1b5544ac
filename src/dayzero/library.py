"""The library call: a release that is loaded, sharded as a plan says, and answers.

    with dayzero.load("folder", plan="plan.json") as model:
        model.generate(["What is the capital of France?"]).texts
        for piece in model.stream("Why?", temperature=0.7, seed=1): ...
        model.forward([[1, 2, 3]])                                  # logits, a tensor on the host
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from operator import index
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from dayzero.backends import backends, chosen
from dayzero.backends.scratch import scratch
from dayzero.errors import DayzeroError, NotPossible, StageError, UsageError
from dayzero.plan_file import Planned, chosen_plan, planned_way, read_plan
from dayzero.progress import SILENT, Progress
from dayzero.schema import KEEPS, Candidate, Layout, Plan, Release, Sampling, to_json
from dayzero.stages.run.answering import Answering
from dayzero.stages.run.session import Session, Shown, Way
from dayzero.stages.run.texts import Texts, hear, texts_of
from dayzero.stages.run.wanted import Wanted

if TYPE_CHECKING:
    import torch

Rows = Sequence[Sequence[int]]
"""Token ids."""
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@contextmanager
def _called() -> Iterator[None]:
    """What is told of an error names the arguments of a call instead of the command line's options."""
    try:
        yield
    except (DayzeroError, NotPossible) as error:
        error.hint = _OPTION.sub(lambda option: f"{option[1].replace('-', '_')}=", error.hint)
        raise


class Loaded:
    """A release in the memory of as many processes as its layout has ranks, until it is closed: call `close`, or use it
    in a `with` block. For any thread: requests are served together, each from the next step on.

    What is said of a text, everywhere: `max_new_tokens` at most; `temperature` 0 takes the likeliest token, above 0
    tokens are drawn from the `top_k` likeliest and then from those that together have the probability `top_p`, the same
    for the same `seed` in any layout; `released`: drawn as the release's generation config says; `stop`: texts that end
    it and are no part of it; `stop_tokens`: ids that end it beside the release's own.
    """

    def __init__(self, session: Session, life: ExitStack) -> None:
        self._session, self._life, self._closed = session, life, False

    @property
    def layout(self) -> Layout:
        """In which it runs now: of fewer ranks when some were lost and nobody took their places."""
        return self._session.layout

    @property
    def dtype(self) -> str:
        """Of the weights: bf16, f16 or f32."""
        return self._session.dtype

    @property
    def events(self) -> tuple[str, ...]:
        """What deserves to be known: what was decoded or left out, which operators ran elsewhere, ranks that were
        lost."""
        return self._session.events

    @_called()
    def generate(self, prompts: str | Sequence[str], *, samples: int = 1, shown: Shown | None = None,
                 **said: Unpack[Said]) -> Texts:
        """Continue each prompt, as a user's turn where the release has a chat template, `samples` times. `shown` is
        called with (number of the text, what of it has come since).

        Raises UsageError for prompts that are empty or too long, StageError when ranks die and cannot be replaced.
        """
        texts = _texts(prompts)
        self._open()
        return texts_of(self._session, texts, _wanted(said, samples), shown)[0]

    @_called()
    def submit(self, prompt: str, **said: Unpack[Said]) -> Answering:
        """Ask for one text and go on: it is made meanwhile. Going over what is returned gives the text as it comes,
        `result` all of it; `cancel` gives it up. Raises as `generate`; errors of ranks come with the text."""
        self._open()
        session = self._session
        return session.ask(session.encode(_texts((prompt,))), session.resolved(_wanted(said)))[0]

    def stream(self, prompt: str, **said: Unpack[Said]) -> Iterator[str]:
        """One text piece by piece, as it comes. Who leaves off going over it gives it up. Raises as `generate`."""
        answering = self.submit(prompt, **said)

        def pieces() -> Iterator[str]:
            try:
                yield from answering
            finally:
                answering.cancel()

        return pieces()

    @_called()
    def continued(self, rows: Rows, **said: Unpack[Said]) -> tuple[tuple[int, ...], ...]:
        """The tokens after each row of token ids. Raises as `generate`."""
        given, session = self._rows(rows), self._session
        changed: SimpleQueue[Answering] = SimpleQueue()
        wanted = session.resolved(_wanted(said))
        answers = session.ask(given, wanted, texts=bool(wanted.stop), pieces=False, changed=changed)
        hear(answers, changed)
        return tuple(each.tokens for each in answers)

    @_called()
    def forward(self, rows: Rows) -> list[torch.Tensor]:
        """The logits of each row of token ids, [tokens, vocabulary] in f32 on the host: whatever the layout, all of
        them. Raises as `generate`."""
        import torch

        return [torch.frombuffer(bytearray(each.values), dtype=torch.float32).view(-1, each.width)
                for each in self._session.logits(self._rows(rows))]

    def close(self) -> None:
        """End its processes."""
        self._closed = True
        self._life.close()

    def _rows(self, rows: Rows) -> list[tuple[int, ...]]:
        """Raises UsageError for what are no rows of the model's token ids."""
        self._open()
        size = self._session.release.model.vocab_size
        try:
            given = [() if isinstance(row, str | bytes) else tuple(map(index, row)) for row in rows]
        except TypeError:
            given = []
        if not given or not all(given) or any(isinstance(token, bool) for row in rows for token in row):
            raise UsageError("not rows of token ids", "give a list for each sequence, such as [[1, 2, 3]]")
        for token in (token for row in given for token in row if not 0 <= token < size):
            raise UsageError(f"there is no token {token}: the model's are 0 to {size - 1}", "give ids of this model")
        return given

    def _open(self) -> None:
        if self._closed:
            raise UsageError("the model has been closed", "load it again")

    def __enter__(self) -> Loaded:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Logs that an error names are kept as long as this process lives."""
        self._closed = True
        self._life.__exit__(kind, *rest)


class Said(TypedDict, total=False):
    """What is said of a text: see Loaded. `_Said` is the same, for those who do not check types."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    released: bool
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    samples: int
    max_new_tokens: int = Wanted().max_new_tokens
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    released: bool = False
    stop: str | tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()


def _wanted(said: Said, samples: int = 1) -> Wanted:
    """Raises UsageError for what is of another type, or is nothing that can be said of a text."""
    if "samples" in said:
        raise UsageError("what is said of the text cannot be: samples of one text", "ask generate for several")
    try:
        one = msgspec.convert({**said, "samples": samples}, _Said)
    except (msgspec.ValidationError, OverflowError) as error:
        told = str(error).replace("`", "").replace(" - at $.", " for ")
        raise UsageError(f"what is said of the text cannot be: {told}", "see help(dayzero.library.Loaded)") from None
    return Wanted(
        max_new_tokens=one.max_new_tokens, samples=one.samples, released=one.released,
        sampling=Sampling(one.temperature, one.top_k, one.top_p, one.seed),
        stop=(one.stop,) if isinstance(one.stop, str) else one.stop, stop_tokens=one.stop_tokens)


def _texts(prompts: Any) -> tuple[str, ...]:
    """Raises UsageError for what are no texts."""
    given = (prompts,) if isinstance(prompts, str) or not isinstance(prompts, Iterable) else tuple(prompts)
    if not given:
        raise UsageError("there is no prompt", "give at least one")
    if not all(isinstance(each, str) for each in given):
        raise UsageError("a prompt is no text", "give each as a str")
    if any("\ud800" <= sign <= "\udfff" for each in given for sign in each):
        raise UsageError("a prompt has half of a surrogate pair, which is no character", "give text")
    return given


@contextmanager
def _logs() -> Iterator[Path]:
    """A folder that goes at the end, unless ranks have failed: as long as this process lives somebody may look there
    then."""
    with ExitStack() as life:
        try:
            yield life.enter_context(scratch("dayzero-load-"))
        except StageError:
            _KEPT.push(life.pop_all())
            raise


_KEPT = ExitStack()
atexit.register(_KEPT.close)


@_called()
def load(release: str | Path | Release, plan: str | Path | Plan | Candidate | None = None, *,
         layout: str | Layout | None = None, backend: str | None = None, dtype: str | None = None,
         host_memory: int = 0, device_memory: int = 0, keep: str = KEEPS[0], verify: bool = False,
         partial: bool = False, trust_remote_code: bool = False, spares: int = 0,
         folder: str | Path | None = None, progress: Progress = SILENT) -> Loaded:
    """Load a release on this machine.

    `release`: a folder, a hub id, or what `read` gave. `plan`: what `dayzero plan --json` printed or a run directory, a
    Plan, or one of its candidates; its first layout that fits, or that of `layout`, is run with its stages and with
    what it keeps outside of the devices. `layout`: like "tp=2,pp=1"; without both everything is in one process.
    `backend`: name of the devices; by default this host. What `backend.optimizations(attention=..., norm=...,
    kv_cache=...)` chose around this call is used. `dtype`: bf16, f16 or f32; by default the release's. `host_memory`,
    `device_memory`: bytes of a rank's memory and of weights on a device; the rest stays in the files. `keep`: weights
    in memory as "values", or "stored": as in the files, decoded when needed. `verify`: compare the files with their
    stated SHA-256 while they are read, and what is read later with what was verified. `partial`: run
    the first layers where the files of others are missing. `trust_remote_code`: run the release's own code, confined.
    `spares`: processes that wait to replace ranks. `folder`: for logs; by default one that is removed.

    Raises NotPossible when it cannot run here, UsageError, LayoutError and ReleaseError for what is wrong, StageError
    when ranks die.
    """
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise NotPossible(f"{' and '.join(missing)} not installed", "pip install 'dayzero[torch]'")
    wanted = Layout.parse(layout) if isinstance(layout, str) else layout
    _check(wanted, plan, host_memory, device_memory, spares)
    name = backend or "cpu"
    if reason := backends().get(name).available():
        raise NotPossible(f"backend {name} cannot be used here: {reason}", "backends(): what there is")
    found = release if isinstance(release, Release) else _read(str(release), progress)
    way = Way(layout=wanted or Layout(), dtype=dtype or "", backend=name, chosen=chosen(), own=trust_remote_code,
              partial=partial, device_memory=device_memory, host_memory=host_memory, keep=keep, verify=verify,
              spares=spares)
    if plan is not None:
        planned = chosen_plan(_plans(plan), (wanted,) if wanted else ())
        way = planned_way(way, planned, len(found.model.layers))
    with ExitStack() as life:
        place = Path(folder) if folder else life.enter_context(_logs())
        session = life.enter_context(Session(found, place / "session", way, texts=False, progress=progress))
        return Loaded(session, life.pop_all())


def _check(layout: Any, plan: Any, *counts: Any) -> None:
    """Raises UsageError for arguments of `load` of another type."""
    for wrong, what, hint in (
            (layout is not None and not isinstance(layout, Layout), "the layout is neither text nor a Layout",
             'give one such as "tp=2,pp=1"'),
            (not isinstance(plan, str | Path | Plan | Candidate | None), "the plan is neither a file nor a plan",
             "give what `dayzero plan --json` printed"),
            (any(type(each) is not int for each in counts), "host_memory, device_memory and spares are whole numbers",
             "give bytes and processes")):
        if wrong:
            raise UsageError(what, hint)


def _read(source: str, progress: Progress) -> Release:
    from dayzero.stages.read import read

    return read(source, progress=progress)


def _plans(plan: str | Path | Plan | Candidate) -> tuple[Planned, ...]:
    if isinstance(plan, str | Path):
        return read_plan(Path(plan))
    candidates: Any = plan.candidates if isinstance(plan, Plan) else (plan,)
    from dayzero.schema import from_json

    return tuple(from_json(to_json(one), Planned) for one in candidates)
