"""A server process that kills itself with SIGKILL right before or after it writes for the n-th time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import uvicorn

from holdfast.service import Service
from holdfast.stores import open_store
from holdfast.web import asgi


class Doomed:
    """A server on a store; it executes no runs, so that only requests write. `kill_at` is `before:1`, `after:2`, …"""

    def __init__(self, url: str, folder: Path, kill_at: str = "") -> None:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])
        listening = socket.create_server(("127.0.0.1", 0))
        self.api = f"http://127.0.0.1:{listening.getsockname()[1]}/api/v1"
        self._process = processes.Process(target=_serve, args=(url, folder, listening, kill_at))
        self._process.start()
        listening.close()

    def end(self) -> None:
        """Kill it, if it did not do so itself."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Doomed:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _serve(url: str, folder: Path, listening: socket.socket, kill_at: str) -> None:
    store: Any = open_store(url)
    moment, _, number = kill_at.partition(":")
    writes = [0]

    def doomed(write: Any) -> Any:
        def written(*args: Any, **options: Any) -> Any:
            writes[0] += 1
            if moment == "before" and writes[0] == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            found = write(*args, **options)
            if moment == "after" and writes[0] == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return written

    store.commit, store.post = doomed(store.commit), doomed(store.post)
    service = Service(store, [folder], allow_inline=True)
    service.start = lambda: service  # type: ignore[method-assign]
    uvicorn.Server(uvicorn.Config(asgi(service=service), log_level="error")).run([listening])
