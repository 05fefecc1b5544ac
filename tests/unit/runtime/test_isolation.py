"""Running somebody else's code: what it cannot do, and what each way of misbehaving ends in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dayzero.errors import NotPossible, ReleaseError, StageError
from dayzero.progress import Progress
from dayzero.runtime.isolation import Confinement, Limits, isolated

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="confinement is Linux's")

CODE = '''
import json, os, signal, socket, subprocess, sys, threading, time

def tried(*actions):
    answers = []
    for action in actions:
        try:
            action()
            answers.append("done")
        except OSError as error:
            answers.append(type(error).__name__)
    return answers

def plain(request, progress):
    progress.update("half", 1, 2)
    return {"request": json.loads(request), "variables": sorted(os.environ), "home": os.environ["HOME"]}

def network(request, progress):
    def resolve():
        with socket.create_connection(("127.0.0.1", json.loads(request)), 2):
            pass
    return tried(resolve, lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(type=socket.SOCK_DGRAM))

def files(request, progress):
    outside, secret = json.loads(request)
    with open(os.path.join(os.environ["HOME"], "inside"), "w") as file:
        file.write("x")
    return tried(lambda: open(outside, "w"), lambda: open(secret), lambda: os.listdir(os.path.dirname(secret)),
                 lambda: open(f"/proc/{os.getppid()}/environ").read(), lambda: os.unlink(secret))

def processes(request, progress):
    return tried(os.fork, lambda: subprocess.run(["/bin/true"]), lambda: os.kill(os.getppid(), signal.SIGTERM),
                 lambda: os.execv("/bin/true", ["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}))

def threads(request, progress):
    def more():
        while True:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    try:
        more()
    except RuntimeError as error:
        return str(error)

def forever(request, progress):
    while True:
        pass

def hoard(request, progress):
    kept = []
    while True:
        kept.append(bytearray(64 << 20))

def hoard_shared(request, progress):
    import mmap
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 64 << 20))

def leave(request, progress):
    os._exit(0)

def quit(request, progress):
    sys.exit(3)

def crash(request, progress):
    import ctypes
    ctypes.string_at(0)

def raises(request, progress):
    raise KeyError("no\\x1b[31mthing")

def interrupts(request, progress):
    raise KeyboardInterrupt

def refused(request, progress):
    os.fork()

class Unspeakable(BaseException):
    def __str__(self):
        raise RuntimeError("x")
    __repr__ = __str__

def unspeakable(request, progress):
    sys.excepthook = None
    raise Unspeakable

def spoofs(request, progress):
    raise type("ReleaseError", (Exception,), {})("not ours")

def forgets(request, progress):
    sys.modules.clear()
    raise RuntimeError("lost")

def changes(request, progress):
    import dayzero.schema, msgspec
    from dayzero.runtime import served
    served.to_json = lambda value: b'{"last": true, "error": "KeyError"}'

def deafens(request, progress):
    os.closerange(0, 64)

def ours(request, progress):
    from dayzero.errors import ReleaseError
    raise ReleaseError("the file is odd", "look at it")

def outcome(request, progress):
    from dayzero.errors import NotPossible
    raise NotPossible("not here", "elsewhere")

def prints(request, progress):
    print('{"last": true, "answer": "wrong"}', flush=True)
    os.write(1, b"garbage\\n" * 100_000)
    os.write(2, b"more\\n" * 100_000)
    return "right"

def forges(request, progress):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'garbage\\n{"last": true, "answer": {"a": [1]}}\\n')
        except OSError:
            pass
    os._exit(0)

def wrong(request, progress):
    return {"not": "a text"}

def waits(request, progress):
    with open(os.path.join(os.environ["HOME"], "waits"), "w") as file:
        file.write("x")
    time.sleep(600)
'''


class Heard(Progress):
    def __init__(self) -> None:
        self.lines: list[tuple[str, float, float]] = []

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        self.lines.append((text, done, total))


@pytest.fixture(name="ask")
def ask_fixture(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "guest.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def ask(name: str, request: Any = None, answer: type = object, *, seconds: float = 60.0, memory: int = 2 << 30,
            progress: Progress | None = None) -> Any:
        return isolated(f"guest:{name}", request, answer, whose="the code of guest", readable=[folder],
                        limits=Limits(seconds=seconds, memory=memory), progress=progress or Progress())

    return ask


def failure(ask: Callable[..., Any], name: str, **limits: Any) -> StageError:
    with pytest.raises(StageError) as caught:
        ask(name, None, str, **limits)
    assert "the code of guest" in caught.value.message and caught.value.hint
    return caught.value


def test_an_answer_comes_back_with_its_progress_and_without_secrets(ask, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    heard = Heard()
    answer, confinement = ask("plain", {"a": 1}, dict[str, Any], progress=heard)
    assert answer["request"] == {"a": 1} and heard.lines == [("half", 1, 2)]
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "USER"} & set(answer["variables"])
    assert answer["home"] != os.path.expanduser("~") and not os.path.exists(answer["home"])
    assert confinement.held and any("60 s" in line and "2.00 GiB" in line for line in confinement.told(
        Limits(seconds=60, memory=2 << 30)))


def test_what_could_not_be_had_is_told() -> None:
    told = Confinement(held=("a",), lacking=("files: no Landlock",)).told(Limits())
    assert told[0] == "a" and told[-1] == "NOT confined: files: no Landlock"


def test_there_is_no_network(ask) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        answer, _ = ask("network", server.getsockname()[1], list[str])
    assert "done" not in answer


def test_files_outside_are_neither_read_nor_written(ask, tmp_path) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret")
    answer, confinement = ask("files", [str(tmp_path / "outside"), str(secret)], list[str])
    if not any("scratch folder" in one for one in confinement.held):
        pytest.skip("this kernel has no Landlock")
    assert answer == ["PermissionError"] * 5
    assert secret.read_text() == "secret" and [path.name for path in tmp_path.iterdir()] == ["token"]


def test_no_process_is_started_or_stopped(ask) -> None:
    answer, confinement = ask("processes", None, list[str])
    if not any("processes" in one for one in confinement.held):
        pytest.skip("no filter of system calls here")
    assert answer == ["PermissionError"] * 5


@pytest.mark.parametrize("name", ["hoard", "hoard_shared", "threads"])
def test_memory_and_threads_end_at_the_limit(ask, name) -> None:
    memory = 512 << 20
    if name == "threads":
        assert "can't start new thread" in ask(name, None, str, memory=memory)[0]
        return
    error = failure(ask, name, memory=memory)
    assert "MemoryError" in error.message or "Operation not permitted" in error.message


def test_what_never_ends_is_ended(ask) -> None:
    started = time.monotonic()
    error = failure(ask, "forever", seconds=1.5)
    assert "not done after 1.5 s" in error.message and time.monotonic() - started < 20


@pytest.mark.parametrize(("name", "says"), [
    ("leave", "exit code 0"), ("quit", "exit code 3"), ("crash", "SIGSEGV"), ("forges", "an answer that is none"),
    ("raises", "KeyError: 'no\\x1b[31mthing'"), ("nothing_of_that_name", "nothing_of_that_name")])  # fmt: skip
def test_a_process_that_gives_no_answer_is_explained(ask, name, says) -> None:
    error = failure(ask, name)
    assert says in error.message and "\x1b" not in error.message + error.log


def test_the_line_that_raised_is_told_in_one_line(ask) -> None:
    line = next(number for number, text in enumerate(CODE.splitlines(), 1) if "raise KeyError" in text)
    error = failure(ask, "raises")
    assert error.message.endswith(f"(guest.py:{line})") and not error.log


@pytest.mark.parametrize(("name", "says", "hint"), [
    ("interrupts", "KeyboardInterrupt", "look in its code"), ("refused", "PermissionError: [Errno 1", "refused"),
    ("unspeakable", "Unspeakable: it has no text", "look in its code"), ("spoofs", "ReleaseError: not ours", "code"),
    ("forgets", "RuntimeError: lost", "look in its code"), ("hoard", "MemoryError", "--code-memory"),
    ("crash", "SIGSEGV", "compiled code"), ("deafens", "exit code 1", "ends the process"),
    ("changes", "an answer that is none", "changed"),
])  # fmt: skip
def test_whatever_it_raises_is_two_lines_with_a_hint_by_cause(ask, name, says, hint) -> None:
    error = failure(ask, name, memory=512 << 20)
    assert says in error.message and hint in error.hint and error.exit_code == 1
    assert "Traceback" not in error.log and "dayzero" not in error.log


def test_our_own_errors_are_raised_as_they_are(ask) -> None:
    with pytest.raises(ReleaseError, match="the file is odd") as caught:
        ask("ours")
    assert caught.value.hint == "look at it"
    with pytest.raises(NotPossible, match="not here") as outcome:
        ask("outcome")
    assert outcome.value.hint == "elsewhere"


def test_what_it_prints_is_no_answer(ask) -> None:
    assert ask("prints", None, str)[0] == "right"


def test_an_answer_of_another_form_is_an_error(ask) -> None:
    with pytest.raises(StageError, match="an answer that is none"):
        ask("wrong", None, str)


STARTS = """
import sys
from dayzero.runtime.isolation import Limits, isolated
isolated("guest:waits", None, str, whose="guest", limits=Limits(seconds=600, memory=1 << 30))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_one_who_asked(ask, tmp_path, how) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", STARTS], env=environment, stderr=subprocess.DEVNULL)
    try:
        waiting = _until(lambda: list(tmp_path.glob("dayzero-isolated-*/waits")))
        scratch = waiting[0].parent
        (child,) = _children(parent.pid)
        parent.send_signal(how)
        parent.wait(10)
        assert _until(lambda: not _runs(child))
    finally:
        parent.kill()
        parent.wait()
    assert (how == signal.SIGKILL) or not scratch.exists()


def _until(ready: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def _children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_no_scratch_folder_is_left(ask) -> None:
    before = set(Path(tempfile.gettempdir()).glob("dayzero-isolated-*"))
    failure(ask, "leave")
    ask("plain", None, dict[str, Any])
    assert set(Path(tempfile.gettempdir()).glob("dayzero-isolated-*")) <= before


REFUSES = """
import dayzero.runtime.confinement.{module} as module

def refused(*arguments):
    raise PermissionError(1, "refused here")

module.{name} = refused
"""


def refusing(monkeypatch: pytest.MonkeyPatch, folder: Path, *functions: str) -> None:
    """A system that refuses these functions of the confinement (`module.function`)."""
    parts = [REFUSES.format(module=module, name=name) for module, name in (text.split(".") for text in functions)]
    (folder / "sitecustomize.py").write_text("".join(parts))
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{folder}")


@pytest.mark.parametrize("function", ["namespaces.leave_network", "landlock.confine", "filter.refuse_calls"])
def test_what_a_system_refuses_is_told_and_the_rest_holds(ask, monkeypatch, tmp_path, function) -> None:
    refusing(monkeypatch, tmp_path, function)
    answer, confinement = ask("network", 9, list[str])
    assert "done" not in answer or function == "filter.refuse_calls"  # then there are sockets, and nobody to talk to
    assert len(confinement.held) == 2 and "refused here" in confinement.lacking[0]


def test_without_any_hold_on_the_network_nothing_runs(ask, monkeypatch, tmp_path) -> None:
    refusing(monkeypatch, tmp_path, "namespaces.leave_network", "filter.refuse_calls")
    with pytest.raises(NotPossible, match="network cannot be taken"):
        ask("plain", None, dict[str, Any])
