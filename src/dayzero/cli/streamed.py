"""`dayzero run --stream`: texts appear while they are made. One prompt is written as it comes, of several each when it
is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dayzero.errors import UsageError
from dayzero.progress import Progress
from dayzero.units import format_bytes, format_seconds

from .options import bytes_of, drawn_progress, print_json
from .streams import output

if TYPE_CHECKING:
    from dayzero.schema import Layout
    from dayzero.schema import Release as ReleaseRead
    from dayzero.stages.run.session import Way
    from dayzero.stages.run.texts import Texts
    from dayzero.stages.run.wanted import Wanted


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """The options."""

    release: str
    plan: Path | None
    layouts: tuple[Layout, ...] | None
    backend: str
    prompts: tuple[str, ...] | None
    max_new_tokens: int
    seed: int
    runs: Path
    dtype: str | None
    own: bool
    host_memory: str | None
    device_memory: str | None
    keep: str | None
    verify: bool
    partial: bool
    spares: int
    timeline: Path | None
    as_json: bool
    sampling: tuple[float, int, float]
    """Temperature, top_k, top_p."""
    released: bool
    samples: int
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]


def streamed(given: Streamed) -> None:
    """Generate and print. Raises UsageError for several layouts, and as `generate` does."""
    from dayzero.stages.read import read
    from dayzero.stages.run import PROMPTS, to_contract
    from dayzero.stages.run.texts import FOLDER, generate

    asked, wanted = given.prompts or PROMPTS, _wanted(given)
    page = _Page(tuple(prompt for prompt in asked for _ in range(given.samples)), quiet=given.as_json)
    with ExitStack() as drawing:
        page.progress = _Until(drawing.enter_context(drawn_progress()))
        page.before = drawing.close
        found = read(given.release, progress=page.progress)
        folder = given.runs / found.name
        with page.progress.kept():
            texts = generate(found, asked, folder=folder, way=_way(given, found), wanted=wanted, shown=page.shown,
                             ended=page.ended, progress=page.progress)
    page.close()
    if given.timeline is not None:
        from dayzero.runtime.recovery.job import TIMELINES
        from dayzero.runtime.timeline import merge

        merge(sorted((folder / FOLDER).glob(TIMELINES)), given.timeline)
    sys.stderr.write("".join(f"{line}\n" for line in (_figures(texts), *texts.events)))
    if given.as_json and texts.record is not None:
        print_json(to_contract(texts.record))


def _way(given: Streamed, release: ReleaseRead) -> Way:
    """How to run. Raises UsageError."""
    from dayzero.schema import KEEPS, Layout
    from dayzero.stages.run.session import Way

    if given.layouts and len(given.layouts) > 1:
        raise UsageError("--stream runs one layout", "give --layout once")
    way = Way(layout=given.layouts[0] if given.layouts else Layout(), dtype=given.dtype or "", backend=given.backend,
              own=given.own, partial=given.partial, spares=given.spares, timeline=given.timeline is not None,
              host_memory=bytes_of("--host-memory", given.host_memory),
              device_memory=bytes_of("--device-memory", given.device_memory), keep=given.keep or KEEPS[0],
              verify=given.verify)
    if given.plan is None:
        return way
    from dayzero.plan_file import chosen_plan, planned_way, read_plan

    planned = chosen_plan(read_plan(given.plan), given.layouts or ())
    return planned_way(way, planned, len(release.model.layers))


def _wanted(given: Streamed) -> Wanted:
    from dayzero.schema import Sampling
    from dayzero.stages.run.wanted import Wanted

    return Wanted(max_new_tokens=given.max_new_tokens, sampling=Sampling(*given.sampling, given.seed),
                  released=given.released, stop=given.stop, stop_tokens=given.stop_tokens, samples=given.samples)


class _Page:
    """What of the texts is written, and when."""

    progress: _Until

    def __init__(self, prompts: tuple[str, ...], *, quiet: bool) -> None:
        self._prompts, self._quiet, self._alone = prompts, quiet, len(prompts) == 1
        self._texts = [""] * len(prompts)
        self.before: Callable[[], None] = lambda: None
        """Called before the first text is written."""

    def shown(self, prompt: int, text: str) -> None:
        """More of a text."""
        self._texts[prompt] += text
        if self._alone:
            self._write(text)

    def ended(self, prompt: int, finish: str) -> None:
        """A text is done."""
        if not self._alone:
            self._write(f"> {self._prompts[prompt]}\n{self._texts[prompt]} [{finish}]\n\n")

    def _write(self, text: str) -> None:
        if self._quiet:
            return
        if self._alone:
            self.before()
            self.progress.over = True
        with output():
            sys.stdout.write(text)
            sys.stdout.flush()

    def close(self) -> None:
        """After the last text."""
        if self._alone and not self._quiet:
            with output():
                sys.stdout.write("\n")


class _Until(Progress):
    """A progress until a text is written where it is drawn."""

    def __init__(self, inner: Progress) -> None:
        self._inner, self.over = inner, False
        self._notes = list[str]()
        """Of the time since."""

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        if not self.over:
            self._inner.update(text, done, total)

    def note(self, text: str) -> None:
        self._notes.append(text) if self.over else self._inner.note(text)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Notes that would have come into the text are told if the block fails; what it returns has them else."""
        try:
            yield
        except BaseException:
            sys.stderr.write("".join(f"\n{note}" for note in self._notes) + "\n" * bool(self._notes))
            raise


def _figures(texts: Texts) -> str:
    device = f" and {format_bytes(texts.peak_device_bytes)} of a device" if texts.peak_device_bytes else ""
    return (f"first token after {format_seconds(texts.seconds_to_first)}, then {texts.tokens_per_s:.1f} tokens/s, "
            f"at most {format_bytes(texts.peak_private_bytes)} of memory a rank{device} "
            f"({texts.layout}, {texts.dtype}, {', '.join(dict.fromkeys(texts.devices))})")
