"""Members that run a release's own code: started by a process that has given up everything that could do harm."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from dayzero.errors import NotPossible, StageError
from dayzero.runtime.confinement.nursery import MESSAGE
from dayzero.runtime.isolation import environment
from dayzero.runtime.starting import starter

_ENDED, _SEE = "the process that confines the release's own code has ended", "see whether memory or the disk is full"
_ROUND = 1.0
"""Seconds that one question waits for the end of a process."""
_ANSWER = 60.0
"""Seconds that any answer may take; with that the process counts as ended."""


class Confined:
    """See crew.Start. For any thread. Raises NotPossible where nothing can be confined."""

    def __init__(self, folder: Path, root: Path) -> None:
        """`folder`: where members may write; `root`: the release."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(_ANSWER)
        self._asking = threading.Lock()
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._line.setsockopt(socket.SOL_SOCKET, kind, MESSAGE)
        self.variables = environment(Path(sys.executable), folder.resolve())
        """What members may know of the environment."""
        with theirs:
            self._process = starter(os.getpid()).submit(partial(
                subprocess.Popen,
                [sys.executable, "-P", "-m", "dayzero.runtime.confinement.nursery", str(theirs.fileno()),
                 str(folder.resolve()), str(root)], env=self.variables, pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, start_new_session=True)).result()
        try:
            reason = self._heard()
        except OSError:
            reason = f"the process that confines the release's own code did not begin within {_ANSWER:g} s"
        if reason:
            self.close()
            raise NotPossible(str(reason), "use a Linux with user namespaces and Landlock")

    def __call__(self, command: list[str], environment: dict[str, str], end: int, log: Path) -> ConfinedProcess:
        """See Start."""
        asked = {"start": command, "environment": environment, "log": str(log.resolve())}
        try:
            with self._asking:
                socket.send_fds(self._line, [json.dumps(asked).encode()], [end])
                pid = self._heard()
        except OSError as error:
            raise StageError(f"{_ENDED}: {error.strerror or error}", _SEE) from None
        if not isinstance(pid, int):
            raise StageError(str(pid), _SEE)
        return ConfinedProcess(pid, self)

    def ask(self, **asked: object) -> Any:
        """One question and its answer; of a process that has ended, and with it those that it started, that they were
        killed."""
        try:
            with self._asking:
                self._line.send(json.dumps(asked).encode())
                found = self._heard()
        except OSError:
            self._process.kill()  # so that no late answer is taken for that of the next question
            return -signal.SIGKILL
        return -signal.SIGKILL if found == _ENDED else found

    def _heard(self) -> Any:
        """Raises TimeoutError, an OSError, when there is no answer."""
        data = self._line.recv(MESSAGE)
        return json.loads(data) if data else _ENDED

    def close(self) -> None:
        """See Start."""
        self._line.close()
        self._process.kill()
        self._process.wait()


class ConfinedProcess:
    """See crew.Process."""

    def __init__(self, pid: int, by: Confined) -> None:
        self.pid, self.returncode, self._by = pid, None, by

    returncode: int | None

    def kill(self) -> None:
        """See Process."""
        self._by.ask(kill=self.pid)

    def wait(self, timeout: float | None = None) -> int | None:
        """See Process."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = _ROUND if until is None else max(0.0, until - time.monotonic())
            self.returncode = self._by.ask(wait=self.pid, seconds=min(left, _ROUND))
            if self.returncode is None and until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("member", timeout or 0.0)
        return self.returncode
