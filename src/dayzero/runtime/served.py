"""The side of `isolation` that runs somebody else's code: calls the function, and tells what it returns or raises.

Whatever that code does, the last word is one message, or none: nothing of this program's own is printed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from dayzero.errors import DayzeroError, NotPossible
from dayzero.progress import Progress
from dayzero.schema import to_json
from dayzero.text import one_line

from .isolation import FOREIGN, Message

_LENGTH = 400
_MEMORY = "it needs more memory than it may take: allow more with --code-memory"
_REFUSED = "the network, other programs and files outside of the release and the installed packages are refused to it"
_CODE = "look in its code there"


def serve(module: str, name: str, request: bytes, answers: IO[bytes], readable: Sequence[str]) -> None:
    """Call the function with the request, and tell what it returns or raises; `readable` are the files and folders of
    the code that it runs, whose lines an error is told with."""
    channel = _Channel(answers)
    roots = [Path(path) for path in readable]
    try:
        _serve(module, name, request, channel)
    except SystemExit:  # the exit code says it
        raise
    except BaseException as error:  # of any class; this is the last place to tell it
        _last_word(channel, error, roots)


def _serve(module: str, name: str, request: bytes, channel: _Channel) -> None:
    try:
        function = getattr(import_module(module), name)
        channel.say(Message(last=True, answer=msgspec.Raw(to_json(function(request, channel)))))
    except NotPossible as outcome:
        channel.say(Message(last=True, error="NotPossible", text=outcome.reason, hint=outcome.hint))
    except DayzeroError as error:
        channel.say(Message(last=True, error=type(error).__name__, text=error.message, hint=error.hint,
                            log=getattr(error, "log", "")))


def _last_word(channel: _Channel, error: BaseException, roots: Sequence[Path]) -> None:
    """Tell an error of that code. When even that fails, because the code has changed what tells it, the process ends
    without a word."""
    try:
        where = line_of(error.__traceback__, roots)
        told = _told(error)
        channel.say(Message(last=True, error=FOREIGN, text=f"{told} ({where})" if where else told, hint=_hint(error)))
    except BaseException:
        os._exit(1)


def line_of(trace: TracebackType | None, roots: Sequence[Path]) -> str:
    """`file:line` of the innermost line of the folders, or of the files, that a traceback goes through; empty:
    there is none."""
    found = ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        root = next((root for root in roots if file.is_relative_to(root)), None)
        if root is not None:
            found = f"{file.name if file == root else file.relative_to(root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _told(error: BaseException) -> str:
    """Class and first line of an error, whose text may raise one itself."""
    name = type(error).__name__
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except BaseException:
        lines = ["it has no text that can be shown"]
    return one_line(f"{name}: {lines[0]}" if lines else name, _LENGTH)


def _hint(error: BaseException) -> str:
    told = _told(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in told:
        return _MEMORY
    return _REFUSED if isinstance(error, PermissionError) or "Operation not permitted" in told else _CODE


class _Channel(Progress):
    """Tells progress and the last word to the process that waits."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def say(self, message: Message) -> None:
        self._stream.write(to_json(message) + b"\n")
        self._stream.flush()

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        self.say(Message(text=text, done=done, total=total))
