"""`python -m dayzero.runtime.confinement.nursery SOCKET FOLDER ROOT`: starts processes that run code of a release, in a
network of their own in which there is nobody else; they read what is installed and the release, and write below the
folder only. Standard library only, and no threads, before everything is taken.

Its first line on the socket is why that cannot be had, in which case it ends, or nothing. Then it answers requests,
each one message of JSON: {"start": [command], "environment": {}, "log": path} with a file that the process keeps,
whose number is put in the place of {end}; {"kill": pid}; {"wait": pid, "seconds": s}.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .ranks import confine_ranks

MESSAGE = 1 << 20
"""Bytes of the longest message."""


def main(end: int, folder: Path, root: Path) -> None:
    """Confine this process and what it starts, and start what is asked for until the other side is gone."""
    with socket.socket(fileno=end) as line:
        try:
            confine_ranks(root, [str(folder)])
        except OSError as error:
            line.send(json.dumps(f"the release's own code cannot be confined here: {error}").encode())
            return
        line.send(json.dumps("").encode())
        children: dict[int, subprocess.Popen[bytes]] = {}
        while True:
            data, files, _, _ = socket.recv_fds(line, MESSAGE, 1)
            if not data:
                break
            line.send(json.dumps(_answer(json.loads(data), files, children)).encode())
        for child in children.values():
            child.kill()


def _answer(asked: dict[str, Any], files: list[int], children: dict[int, subprocess.Popen[bytes]]) -> int | None:
    if "start" in asked:
        words = {"{end}": str(files[0]), "{parent}": str(os.getpid())}
        with open(asked["log"], "wb") as log:
            child = subprocess.Popen(
                [words.get(word, word) for word in asked["start"]], env=asked["environment"], pass_fds=files,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        os.close(files[0])
        children[child.pid] = child
        return child.pid
    if "kill" in asked:
        children[asked["kill"]].kill()
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        return children[asked["wait"]].wait(asked["seconds"])
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
