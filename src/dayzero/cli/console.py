"""The console that results are printed on: what comes from a release cannot steer the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from dayzero.text import printable


class _Printable:
    """A renderable whose text has escapes in the place of control characters."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._segments(console, options)

    def _segments(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n\t"), segment.style)


FILE_COLUMNS = 120
"""Columns of what goes into a file or a pipe: names of tensors are long, and a break inside one cannot be searched."""


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


class SafeConsole(Console):
    """Standard output or standard error. A reader that has gone is told to the caller as BrokenPipeError."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = FILE_COLUMNS
        self.push_render_hook(_Hook())

    def on_broken_pipe(self) -> NoReturn:
        """Raises what is being handled."""
        raise
