"""A model hub on loopback that serves a folder: listing, files with ranges, refusals, and connections that break.

It answers what huggingface_hub asks a real hub for a model, with the same paths and headers, and counts the bytes of
files that it sends.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/small"


class StubHub:
    """The state of the hub; a test changes it and reads what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.gated = False
        """Files are refused as those of a gated repository."""
        self.honours_ranges = True
        """False: every GET is answered with the whole file."""
        self.breaks: dict[str, list[int]] = {}
        """File -> after how many bytes each of the next answers is cut off."""
        self.busy = 0
        """How many requests are next answered with 503."""
        self.extra: list[dict[str, Any]] = []
        """More entries of the listing."""
        self.requests: list[tuple[str, str, str]] = []
        """(method, file or API path, Range header) of every request."""
        self.sent = 0
        """Bytes of file content sent."""

    def listing(self) -> dict[str, Any]:
        """What the API says about the model: large files (weights) are in LFS, which states their SHA-256."""
        siblings: list[dict[str, Any]] = []
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                name, size = path.relative_to(self.folder).as_posix(), path.stat().st_size
                entry: dict[str, Any] = {"rfilename": name, "blobId": etag(path)[:40], "size": size}
                if path.suffix == ".safetensors":
                    entry["lfs"] = {"sha256": etag(path), "size": size, "pointerSize": 134}
                siblings.append(entry)
        return {"_id": "1", "id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "gated": self.gated,
                "siblings": siblings + self.extra}  # fmt: skip


def etag(path: Path) -> str:
    """SHA-256 of the content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StubHub

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests look at `StubHub.requests`."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        wanted = self.headers.get("Range", "")
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.hub.requests.append((self.command, path, wanted))
            self.api(api[1], api[2] or "main")
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.hub.requests.append((self.command, file[3], wanted))
            self.file(file[3], wanted)
        else:
            self.refuse(404, "RepoNotFound")

    def api(self, repo: str, revision: str) -> None:
        if repo != REPO:
            self.refuse(404, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif self.hub.busy:
            self.hub.busy -= 1
            self.refuse(503, "")
        else:
            self.answer(200, json.dumps(self.hub.listing()).encode(), {"Content-Type": "application/json"})

    def file(self, name: str, wanted: str) -> None:
        path = self.hub.folder / name
        if self.hub.gated:
            self.refuse(403, "GatedRepo")
        elif not path.is_file():
            self.refuse(404, "EntryNotFound")
        else:
            content = path.read_bytes()
            headers = {"ETag": f'"{etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes",
                       "X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{etag(path)}"'}  # fmt: skip
            status, part = 200, content
            if wanted and self.hub.honours_ranges:
                start, _, end = wanted.removeprefix("bytes=").partition("-")
                status, part = 206, content[int(start) : int(end) + 1 if end else None]
                headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
            self.answer(status, part, headers, name)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"{}", {"X-Error-Code": code} if code else {})

    def answer(self, status: int, content: bytes, headers: dict[str, str], file: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        breaks = self.hub.breaks.get(file)
        cut = breaks.pop(0) if breaks else len(content)
        try:
            self.wfile.write(content[:cut])
        except (BrokenPipeError, ConnectionResetError):  # a client that has what it wanted hangs up
            self.close_connection = True
        self.hub.sent += len(content[:cut]) if file else 0
        if cut < len(content):
            self.close_connection = True


@contextmanager
def serve(folder: Path) -> Iterator[StubHub]:
    """A hub that serves `folder` as `REPO` until the block is left."""
    hub = StubHub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
