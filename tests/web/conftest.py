"""The HTTP API over a service on a SQLite file, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from starlette.testclient import TestClient

from holdfast.web import Caller, Tokens, asgi
from tests.service.conftest import BROKEN, GREET, REVIEW
from tests.web.browser import chromium

OPERATE, ANSWER, READ, OTHER = ("operate-" * 3, "answer-" * 3, "read-" * 4, "other-" * 4)
TOKENS = (
    (OPERATE, Caller("op", "operate")),
    (ANSWER, Caller("reviewer", "answer")),
    (READ, Caller("reader", "read")),
    (OTHER, Caller("neighbour", "operate", "other")),
)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser of a module's own: it has an event loop, which async tests of other modules must not meet."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three workflow files."""
    made = tmp_path_factory.mktemp("workflows")
    for name, text in (("greet", GREET), ("review", REVIEW), ("broken", BROKEN)):
        (made / f"{name}.yaml").write_text(text)
    return made


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[TestClient]:
    """A client that may do everything; each module has its own server and store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}"
    app = asgi(url, [folder], tokens=Tokens(TOKENS), hosts=("testserver",))
    with TestClient(app, headers=bearer(OPERATE), raise_server_exceptions=False) as made:
        yield made
