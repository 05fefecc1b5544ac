"""When the process that confines others is gone."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from dayzero.errors import NotPossible, StageError
from dayzero.runtime.recovery.confined import Confined


def test_who_started_members_is_killed_and_they_with_it(tmp_path: Path) -> None:
    try:
        start = Confined(tmp_path, tmp_path)
    except NotPossible as outcome:
        pytest.skip(outcome.reason)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
        member = start(sleeping, start.variables, theirs.fileno(), tmp_path / "log.txt")
        os.kill(member.pid, signal.SIGKILL)  # members end with it; this one is none
        begun = time.monotonic()
        start._process.kill()
        start._process.wait()
        member.kill()
        assert member.wait(5.0) == member.returncode == -signal.SIGKILL
        assert time.monotonic() - begun < 5.0
        with pytest.raises(StageError, match="the process that confines the release's own code has ended"):
            start(sleeping, start.variables, theirs.fileno(), tmp_path / "log.txt")
    start.close()
