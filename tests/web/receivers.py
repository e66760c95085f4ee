"""A receiver of webhooks on loopback: it checks signatures, keeps what it got, and can refuse."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "a key that only the receiver has"


class Receiver:
    """Answers with the statuses that it is given, in turn, then with 204; `got` is what it got."""

    def __init__(self, *statuses: int, headers: Mapping[str, str] | None = None) -> None:
        self.got: list[dict[str, Any]] = []
        self.refused: list[str] = []
        """The ids of what it refused."""
        turns, outer = iter(statuses), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = next(turns, 204)
                if status == 204:
                    outer.got.append(verified(self.headers, body))
                else:
                    outer.refused.append(self.headers["webhook-id"])
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=hidden"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def wait(self, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Return what it got once that holds."""
        end = time.monotonic() + 120
        while not holds(list(self.got)):
            assert time.monotonic() < end, (self.got, self.refused)
            time.sleep(0.05)
        return list(self.got)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def verified(headers: Any, body: bytes) -> dict[str, Any]:
    """What a delivery says, if its signature is right."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    made = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{made}"
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 300
    found: dict[str, Any] = json.loads(body)
    assert found["id"] == headers["webhook-id"]
    return found
