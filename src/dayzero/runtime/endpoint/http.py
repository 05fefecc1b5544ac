"""JSON over HTTP with the standard library: everything that can go wrong is an EndpointError."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec

from dayzero.errors import EndpointError, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.text import one_line

_LIMIT = 1 << 30
"""Bytes of the longest answer."""
_SHOWN = 200
KEY = "OPENAI_API_KEY"
"""Variable that holds the key, where a server wants one."""
BUSY = (429, 503)
"""Answers of a server that will take the request later: too many of them, or a model that is still being loaded."""
PATIENCE_S = 600.0
"""Seconds for which one request is asked again while the server is busy."""
_LOOK = "look into the server's log"


class Refused(Exception):  # noqa: N818  (an answer, not an error)
    """The server does not serve such a request."""

    def __init__(self, status: int, text: str, after_s: float | None = None) -> None:
        self.status, self.text = status, one_line(text, _SHOWN)
        self.after_s = after_s
        """Seconds after which it is to be asked again, if it says so."""
        super().__init__(self.text)


class Server:
    """One base address. Used by several threads."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 600.0, patience_s: float = PATIENCE_S,
                 progress: Progress = SILENT) -> None:
        """Raises UsageError for an address that is none."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"{one_line(url, _SHOWN)} is no address of a server", "write it like http://host:8000/v1")
        self.url = url.rstrip("/")
        self._key, self._timeout_s, self._patience_s = key or os.environ.get(KEY), timeout_s, patience_s
        self._progress, self._answers = progress, 0

    @property
    def root(self) -> str:
        """The address without the version of the interface."""
        return self.url.rsplit("/", 1)[0] if self.url.rsplit("/", 1)[-1][:1] == "v" else self.url

    def get(self, path: str) -> Any:
        """Answer of a path below the address. Raises Refused, EndpointError."""
        return self._ask(urllib.request.Request(f"{self.url}{path}"))

    def post(self, path: str, body: dict[str, Any], *, root: bool = False) -> Any:
        """Answer to a request. `root`: below the address without its version. Raises Refused, EndpointError."""
        request = urllib.request.Request(f"{self.root if root else self.url}{path}", data=msgspec.json.encode(body),
                                         headers={"Content-Type": "application/json"})
        return self._ask(request)

    def _ask(self, request: urllib.request.Request) -> Any:
        """Asks again while the server is busy."""
        start, pauses = time.monotonic(), _pauses()
        while True:
            try:
                return _decoded(self._text(request), self.url)
            except Refused as refused:
                if refused.status not in BUSY:
                    raise
                pause, waited = refused.after_s or next(pauses), time.monotonic() - start
                if waited + pause > self._patience_s:
                    raise EndpointError(f"{self.url} is busy for {waited:.0f} s: {refused.status} {refused.text}",
                                        f"try again later, or {_LOOK}") from None
                self._progress.update(f"waiting for {self.url}: {refused.status} {refused.text}")
                time.sleep(pause)

    def _text(self, request: urllib.request.Request) -> bytes:
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")  # it is this server's only
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                text: bytes = answer.read(_LIMIT + 1)
                if len(text) <= _LIMIT and answer.length:  # a bounded read does not say that it was cut short
                    raise http.client.IncompleteRead(text, answer.length)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise EndpointError(f"{self.url} refuses: {error.code} {error.reason}",
                                        f"set {KEY} to a key that it takes") from None
                raise Refused(error.code, _body(error), _after(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(getattr(error, "reason", error)) from None
        if len(text) > _LIMIT:
            raise EndpointError(f"{self.url} answers with more than {_LIMIT:,} bytes", "ask for shorter prompts")
        self._answers += 1
        return text

    def _gone(self, reason: Any) -> EndpointError:
        """Why there is no answer."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            return EndpointError(f"the certificate of {self.url} is not trusted: {reason.verify_message}",
                                 "name the file of its authority in SSL_CERT_FILE")
        if isinstance(reason, ssl.SSLError):
            return EndpointError(f"{self.url} does not speak TLS: {reason.reason or reason}",
                                 "write http:// where the server has no certificate")
        if self._answers:
            told = f"{type(reason).__name__} {reason}" if isinstance(reason, Exception) else reason
            return EndpointError(f"{self.url} does not answer any more, after {self._answers} answers: {told}", _LOOK)
        return EndpointError(f"cannot reach {self.url}: {reason}", "check the address, and that it serves")


def _pauses() -> Iterator[float]:
    """Seconds between attempts."""
    pause = 0.25
    while True:
        yield pause
        pause = min(2 * pause, 8.0)


def _after(error: urllib.error.HTTPError) -> float | None:
    """Retry-After in seconds; a date, which some write, counts as nothing."""
    try:
        return max(0.05, float(error.headers.get("Retry-After", "")))
    except ValueError:
        return None


def _decoded(text: bytes, url: str) -> Any:
    """Python writes NaN and Infinity, which are no JSON: they are read, so that it can be said where they are."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise EndpointError(f"{url} answers something else than JSON: {error}",
                                "check the address: it usually ends with /v1") from None


def _body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(1 << 16).decode(errors="replace") or str(error.reason)
    except (OSError, http.client.HTTPException):
        return str(error.reason)
