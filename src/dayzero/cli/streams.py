"""Standard streams and signals of the command: text that is safe to print, streams that are closed or full, SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NoReturn

from dayzero.errors import StoreError, UsageError
from dayzero.text import one_line, printable

_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT")


class Ended(SystemExit):
    """A signal asked the command to end; the exit code is 128 + its number."""


def refuse_undecodable(arguments: Iterable[str]) -> None:
    """Raise UsageError for an argument that is not text in the encoding of the system."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"not text in {sys.getfilesystemencoding()}: {os.fsencode(argument)!r}",
                             "give names and prompts in that encoding; rename the file if need be") from None


def prepare() -> None:
    """Make output and ending safe: a closed standard stream becomes the null device (else the next file that is opened
    takes its number), what a stream cannot encode is escaped, signals that end the command let it clean up."""
    for standard in range(3):
        try:
            os.fstat(standard)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # under nohup one is ignored
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait
    raise Ended(128 + number)


def tell(lines: tuple[str, str], log: str = "") -> None:
    """The two lines of an error on standard error, and below them the end of a log; nothing when that cannot be
    written."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {one_line(lines[0])}\nhint: {one_line(lines[1])}\n")
        if log:
            sys.stderr.write(f"{printable(log, keep=chr(10) + chr(9))}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def output() -> Iterator[None]:
    """Around writing to standard output. Raises StoreError when it takes no more, BrokenPipeError without a reader."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write the output: {error.strerror}", "send it to another place") from None


def give_up(*numbers: int) -> None:
    """Send what is still buffered for these streams to the null device: they take nothing more."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)
