"""What can go wrong between a client and a server, with real sockets."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import prompt_form, serving

from dayzero.errors import EndpointError
from dayzero.progress import Progress
from dayzero.runtime.endpoint import Endpoint

TOKENS = (3, 1, 4, 1, 5)


class Heard(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, text: str, done: float = 0.0, total: float = 0.0) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    asked = []

    def busy(body: dict[str, Any]) -> tuple[Any, ...]:
        asked.append(body)
        return (status, "Loading model", {"Retry-After": "0.01"}) if len(asked) in (1, 3) else prompt_form(body)

    heard = Heard()
    with serving({"/v1/completions": busy}) as url:
        assert len(Endpoint(url, progress=heard).score(TOKENS).logprobs) == 4
    assert len(asked) == 4
    assert [f"{status} " in text and "Loading model" in text for text in heard.texts] == [True, True]


def test_patience_has_an_end() -> None:
    with serving({"/v1/completions": lambda body: (503, "Loading model", {"Retry-After": "5"})}) as url, pytest.raises(
            EndpointError, match=r'is busy for . s: 503 "Loading model"'):
        Endpoint(url, patience_s=0.1).score(TOKENS)


def test_a_server_that_dies_in_the_middle_is_told_from_one_that_was_never_there() -> None:
    def dies(listener: socket.socket) -> None:
        for answer in (b'{"data": [{"id": "m"}]}', None, b"half"):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                length = len(answer or b"") + (100 if answer == b"half" else 0)
                if answer:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=dies, args=(listener,), daemon=True).start()
        endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout_s=10)
        with pytest.raises(EndpointError, match="does not answer any more, after 1 answers: RemoteDisconnected"):
            endpoint.score(TOKENS)
        with pytest.raises(EndpointError, match="after 1 answers: IncompleteRead"):
            endpoint.score(TOKENS)


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a server with a certificate that nobody knows, and its file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True,
                   capture_output=True)

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m"}]}')

        def log_message(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("localhost", 0), Lists) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_address[1]}/v1", certificate
        server.shutdown()


def test_a_certificate_that_nobody_knows(certified: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, certificate = certified
    with pytest.raises(EndpointError, match=r"is not trusted: self.signed certificate") as refused:
        Endpoint(url)
    assert "SSL_CERT_FILE" in refused.value.hint
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert Endpoint(url).model == "m"


def test_tls_where_there_is_none() -> None:
    with serving({}) as url, pytest.raises(EndpointError, match="does not speak TLS"):
        Endpoint(url.replace("http://", "https://"))


def test_a_key_that_is_wrong() -> None:
    with serving({"/v1/completions": lambda body: (401, "no")}) as url, pytest.raises(EndpointError) as refused:
        Endpoint(url).score(TOKENS)
    assert ("401" in refused.value.message, "OPENAI_API_KEY" in refused.value.hint) == (True, True)
