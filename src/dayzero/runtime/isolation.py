"""Runs a function that runs somebody else's code, in a process of its own that has nothing to harm anyone with.

    answer, confinement = isolated("package.module:function", request, Answer, ...)

The process has no network, no variables but a few harmless ones, limited time and memory, and may write below a scratch
folder only; it ends with this process, and nothing that it starts outlives the call. What cannot be had on this system
is told. Nothing of that code is ever imported here; its answer is data that is decoded like any other file.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import dayzero
from dayzero.backends.scratch import scratch
from dayzero.errors import DayzeroError, NotPossible, StageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Noun, from_json, to_json
from dayzero.text import one_line, printable
from dayzero.units import format_bytes

T = TypeVar("T")
_MODULE = "dayzero.runtime.confinement"
_KEPT = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""Variables that libraries need and that hold no secret."""
_ANSWER, _LOG = 512 << 20, 64 << 10
"""Bytes of the longest answer, and of what is kept of what the code prints."""
_END = 5.0
"""Seconds for a process that has closed its answers to end."""
_LAST = 4000
"""Characters of that which an error shows."""
FOREIGN = "foreign"
"""Stands for the class of an error that is none of ours."""
_SIGNALS = {"SIGKILL": "it may have taken too much: allow more with --code-memory",
            "SIGXCPU": "allow more with --code-seconds, or look at what it does"}
"""What may help after a signal."""
_CRASH = "it crashed outside of Python: look at the compiled code that it calls, and at how deep its calls go"


class Limits(Noun, frozen=True, kw_only=True):
    """What the process may take."""

    seconds: float = 900.0
    """Wall-clock time."""
    memory: int = 12 << 30
    """Bytes that it may allocate."""


class Confinement(Noun, frozen=True, kw_only=True):
    """Under what the code ran."""

    held: tuple[str, ...]
    """What was taken from it."""
    lacking: tuple[str, ...]
    """What this system would not take, and why."""
    offline: bool = True
    """Whether the network was taken; if not, the code did not run."""

    def told(self, limits: Limits) -> tuple[str, ...]:
        """One line each, for people."""
        return (*self.held, f"at most {limits.seconds:g} s and {format_bytes(limits.memory)}",
                "no variables of the environment but harmless ones", *(f"NOT confined: {one}" for one in self.lacking))


class Message(Noun, frozen=True, kw_only=True):
    """One line of the process: progress, the answer, or the error that ended it."""

    text: str = ""
    """What is being done."""
    done: float = 0.0
    """How much of `total`."""
    total: float = 0.0
    """0: not known."""
    last: bool = False
    """Whether nothing follows: it holds the answer, or the error that ended the process."""
    answer: msgspec.Raw = msgspec.Raw(b"null")
    """The answer as JSON."""
    error: str = ""
    """Class of the error: NotPossible, a DayzeroError, or FOREIGN for what the code raised; empty: none."""
    hint: str = ""
    """Of the error; `text` is its message."""
    log: str = ""
    """More than its message says; mostly empty."""


def isolated(entry: str, request: Any, answer: type[T], *, whose: str, limits: Limits, readable: Sequence[Path] = (),
             python: Path | None = None, progress: Progress = SILENT) -> tuple[T, Confinement]:
    """What `entry` ("package.module:function", called with the request as JSON and a Progress) returns, in a process of
    its own.

    `whose` names the code in errors; `readable` are the files and folders that it may read beside what is installed;
    `python` is the interpreter, that of this process by default. Raises what the function raises (NotPossible,
    DayzeroError), StageError when it fails in any other way, NotPossible when the network cannot be taken from it.
    """
    with scratch("dayzero-isolated-") as folder, _process(python or Path(sys.executable), folder) as process:
        start = {"parent": os.getpid(), "entry": entry, "scratch": str(folder), "memory": limits.memory,
                 "seconds": limits.seconds, "readable": [str(path) for path in readable]}
        conversation = _Conversation(process, limits, whose, progress)
        last = conversation.held(json.dumps(start).encode() + b"\n" + to_json(request))
    if conversation.confinement is None or last is None:
        raise conversation.failed()
    if last.error:
        raise _raised(last, whose)
    try:
        return from_json(last.answer, answer), conversation.confinement
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
        raise StageError(f"{whose} gave an answer that is none: {error}", "its code has changed what runs it") from None


@contextlib.contextmanager
def _process(python: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [python, "-P", "-m", _MODULE], env=environment(python, folder), cwd=folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads its group; where others can be started they are in it
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        process.wait()


def environment(python: Path, folder: Path) -> dict[str, str]:
    """A few harmless variables; homes and caches lie in the scratch folder."""
    root = Path(dayzero.__file__).resolve().parents[1]
    ours = [] if root.name in ("site-packages", "dist-packages") else [str(root)]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    same = python == Path(sys.executable)
    return {
        **kept, "PYTHONPATH": os.pathsep.join([*ours, *(paths if same else ())]), "PYTHONDONTWRITEBYTECODE": "1",
        **({"PYTHONUSERBASE": site.getuserbase()} if same else {"PYTHONNOUSERSITE": "1"}),
        **{name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_MODULES_CACHE",
                                          "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")},
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1", "PYTORCH_JIT": "0",  # code runs as it is written
        "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}


class _Conversation:
    """Feeds the process, and reads what it says until it is done or its time is over."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits, whose: str, progress: Progress) -> None:
        self._process, self._limits, self._whose, self._progress = process, limits, whose, progress
        self.confinement: Confinement | None = None
        self.printed = ""
        self._buffer, self._log, self._late, self._garbled = bytearray(), bytearray(), False, False

    def held(self, request: bytes) -> Message | None:
        """The last message; None when there was none."""
        last, waiting = None, memoryview(request)
        deadline = time.monotonic() + self._limits.seconds
        with selectors.DefaultSelector() as selector:
            for stream, events in ((self._process.stdin, selectors.EVENT_WRITE),
                                   (self._process.stdout, selectors.EVENT_READ),
                                   (self._process.stderr, selectors.EVENT_READ)):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, events)
            while last is None and self._process.stdout in [key.fileobj for key in selector.get_map().values()]:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    self._late = True
                    break
                for key, _ in selector.select(remaining):
                    if key.fileobj is self._process.stdin:
                        waiting = self._send(selector, waiting)
                    elif key.fileobj is self._process.stderr:
                        self._keep(selector)
                    else:
                        last = self._read(selector) or last
        if last is None and not self._late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)  # its last word is missing: how it ends says more
        self._process.kill()
        self._process.wait()
        self.printed = printable(self._log[-_LAST:].decode(errors="replace"), keep="\n\t").strip()
        return last

    def _send(self, selector: selectors.BaseSelector, waiting: memoryview) -> memoryview:
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            waiting = waiting[os.write(stream.fileno(), waiting[:1 << 16]):]
            if waiting:
                return waiting
        selector.unregister(stream)
        stream.close()
        return waiting

    def _keep(self, selector: selectors.BaseSelector) -> None:
        stream = self._process.stderr
        assert stream is not None
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            selector.unregister(stream)
        self._log += data
        del self._log[:-_LOG]

    def _read(self, selector: selectors.BaseSelector) -> Message | None:
        """Takes the lines that are complete; the last message, if it is among them."""
        stream = self._process.stdout
        assert stream is not None
        data = os.read(stream.fileno(), 1 << 20)
        self._buffer += data
        ended = not data or len(self._buffer) > _ANSWER
        if ended:
            selector.unregister(stream)
        *lines, rest = bytes(self._buffer).split(b"\n") if b"\n" in data else [b""]
        if lines:
            self._buffer = bytearray(rest)
        for line in lines:
            message = self._message(line)
            if message is not None and message.last:
                return message
            if message is not None:
                self._progress.update(one_line(message.text, 200), message.done, message.total)
        return None

    def _message(self, line: bytes) -> Message | None:
        try:
            if self.confinement is None:
                self.confinement = from_json(line, Confinement)
                return None
            return from_json(line, Message)
        except (msgspec.ValidationError, msgspec.DecodeError, ValueError):
            self._garbled = True
            return None

    def failed(self) -> Exception:
        """Why there is no last message."""
        code = self._process.returncode
        if self._late:
            why = f"is not done after {self._limits.seconds:g} s"
            hint = _SIGNALS["SIGXCPU"]
            return StageError(f"{self._whose} {why}", f"{hint}; its last lines are below" if self.printed else hint,
                              self.printed)
        if self.confinement is not None and not self.confinement.offline:
            return NotPossible(
                f"the network cannot be taken from {self._whose} here: {'; '.join(self.confinement.lacking)}",
                "use a Linux with user namespaces or seccomp filters")
        name = _signal(-code) if code < 0 else ""
        how = f"was ended by {name}" if name else f"ended its process with exit code {code}"
        hint = _SIGNALS.get(name, _CRASH) if name else "look in its code for what ends the process"
        return StageError(f"{self._whose} {how} and gave no answer",
                          f"{hint}; its last lines are below" if self.printed else hint, self.printed)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _raised(message: Message, whose: str) -> Exception:
    """The error that ended the function; one that is none of ours is its code's failure."""
    if message.error == "NotPossible":
        return NotPossible(message.text, message.hint)
    if message.error == FOREIGN:
        return StageError(f"{whose} failed: {message.text}", message.hint)
    import dayzero.errors as ours

    kind = getattr(ours, message.error, None)
    if kind is StageError:
        return StageError(message.text, message.hint, printable(message.log, keep="\n\t"))
    if isinstance(kind, type) and issubclass(kind, DayzeroError):
        return kind(message.text, message.hint)
    return StageError(f"{whose} gave an answer that is none: an error {message.error[:40]!r}",
                      "its code has changed what runs it")
