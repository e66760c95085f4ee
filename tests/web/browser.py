"""A real browser and a real server for tests of pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from holdfast.web.serving import listen

CHROMIUM = "/usr/bin/chromium"
WAIT = 60_000.0
"""Milliseconds that a page may take to show something."""

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An app on a free port of this machine, in a thread; its address."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        httpx2.get(f"{address}/api/v1/health", timeout=60)
        yield address
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def violations(page: Page) -> list[str]:
    """What is wrong with a page for people with disabilities, by the rules of WCAG A and AA."""
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": LEVELS}})
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:3]}"
        for each in found.response["violations"]
    ]


def listen_to_console(page: Page) -> list[str]:
    """Return the errors of a page, as they come: of scripts, and what the CSP refused."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    return found
