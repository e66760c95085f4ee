"""A real HTTP server on loopback that answers as a test wants it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.certificates import Certificate


@dataclass(frozen=True)
class Received:
    """One request as it came in; headers by lower-case name."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Visit(BaseHTTPRequestHandler):
    """One request, and the means to answer it."""

    protocol_version = "HTTP/1.1"
    received: Received

    def answer(
        self, body: bytes | str | object = b"", status: int = 200, kind: str = "", **headers: str
    ) -> None:
        """Answer; data is sent as JSON. Names of headers are written with _ for -."""
        if not isinstance(body, (bytes, str)):
            body, kind = json.dumps(body), kind or "application/json"
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", kind or "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


Behaviour = Callable[[Visit], None]


def answers(body: bytes | str | object = b"", status: int = 200, kind: str = "", **headers: str) -> Behaviour:
    """Answers always the same."""
    return lambda visit: visit.answer(body, status, kind, **headers)


@dataclass
class WebServer:
    """Does what is scripted, one behaviour after the other, the last one for ever. A context manager."""

    script: list[Behaviour] = field(default_factory=lambda: [answers("ok")])
    requests: list[Received] = field(default_factory=list)
    url: str = ""
    certificate: Certificate | None = None
    """With one, it speaks HTTPS."""
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if self.certificate is not None:
            context = self.certificate.context()
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = self.url.replace("http:", "https:")
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[Visit]:
        server = self

        class Handler(Visit):
            def take(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.received = Received(self.command, self.path, headers, body)
                server.requests.append(self.received)
                behave = server.script.pop(0) if len(server.script) > 1 else server.script[0]
                behave(self)

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler.take)
        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error here."""
