"""Progress drawn on a terminal with rich; on anything else one line for each stage, so that logs stay readable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from dayzero.progress import Progress
from dayzero.text import one_line


class _Lines(Progress):
    """One line when the text changes, at most one a second for texts with the same first word."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started = time.monotonic()
        self.text, self.last = "", ("", 0.0)

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        text = one_line(text)
        word, now = text.partition(" ")[0], time.monotonic()
        if text == self.text or (word == self.last[0] and now - self.last[1] < 1.0):
            return
        self.text, self.last = text, (word, now)
        self.note(text)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody to tell it is no reason to stop
            self.console.print(f"[{time.monotonic() - self.started:6.1f} s] {one_line(text)}", markup=False,
                               emoji=False, soft_wrap=True)


class _Bar(Progress):
    """One live line with a bar."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.task = bars.add_task("starting", total=None)

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        self.bars.update(self.task, description=one_line(text), completed=done, total=total or None)

    def note(self, text: str) -> None:
        self.bars.console.print(one_line(text), markup=False, emoji=False, soft_wrap=True)


@contextlib.contextmanager
def drawn(console: Console) -> Iterator[Progress]:
    """A progress that draws on `console` while the block runs."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
               TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        yield _Bar(bars)
