"""Who may do what over HTTP: tokens and roles, hosts and origins, sessions of browsers, and limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from holdfast.mcp.server import McpServer
from holdfast.service import Service
from holdfast.service.roles import Caller, Forbidden, Tokens, TokensInvalid
from holdfast.web import asgi
from holdfast.web.app import HEADERS
from holdfast.web.context import COOKIE, Buckets, Rate, RateExceeded
from holdfast.web.problems import TooSlow
from holdfast.web.reading import read_bytes
from holdfast.web.serving import address_of, listen, served_beside
from tests.web.conftest import ANSWER, OPERATE, OTHER, READ, bearer
from tests.web.test_api import API, paused, post
from tests.web.test_serve import serving

GREET = f"{API}/workflows/greet/runs"


@pytest.fixture
def bare(client: TestClient) -> Iterator[TestClient]:
    """A client of the same server without a token."""
    yield TestClient(client.app, raise_server_exceptions=False)


def test_roles_bound_what_a_token_may_do(client: TestClient, bare: TestClient) -> None:
    """R1.13: token-protected; a role reads, answers or operates."""
    run = paused(client)
    body = {"inputs": {"name": "x"}}
    assert bare.get(f"{API}/runs").status_code == 401
    assert bare.get(f"{API}/runs", headers=bearer("wrong" * 5)).status_code == 401
    assert bare.get(f"{API}/runs/{run}", headers=bearer(READ)).status_code == 200
    refused = bare.post(f"{API}/runs/{run}/answer", json={"value": "yes"}, headers=bearer(READ))
    assert refused.status_code == 403 and "needs 'answer'" in refused.json()["detail"]
    assert bare.post(GREET, json=body, headers=bearer(ANSWER)).status_code == 403
    assert bare.get(f"{API}/runs/{run}/capsule", headers=bearer(ANSWER)).status_code == 403
    given = bare.post(f"{API}/runs/{run}/answer", json={"value": "yes"}, headers=bearer(ANSWER))
    assert given.status_code == 200 and given.json()["by"] == "reviewer"
    assert bare.get("/metrics").status_code == 401 and bare.get(f"{API}/health").status_code == 200


def test_a_token_sees_only_its_namespace(client: TestClient, bare: TestClient) -> None:
    run = post(client, "/workflows/greet/runs", inputs={"name": "x"})["run_id"]
    assert bare.get(f"{API}/runs/{run}", headers=bearer(OTHER)).status_code == 404
    assert bare.get(f"{API}/runs", headers=bearer(OTHER)).json()["runs"] == []
    own = bare.post(GREET, json={"inputs": {"name": "y"}, "wait": 60}, headers=bearer(OTHER)).json()
    assert own["status"] == "completed"
    assert client.get(f"{API}/runs/{own['run_id']}").status_code == 404


def test_other_names_and_other_sites_are_refused(client: TestClient) -> None:
    """Against DNS rebinding and cross-site requests."""
    for host in ("evil.example", "testserver.evil.example", "", "[::1", "testserver@evil.example:1"):
        assert client.get(f"{API}/runs", headers={"host": host}).status_code == 403
    body = {"inputs": {"name": "x"}}
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://testserver.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = client.post(GREET, json=body, headers=headers)
        assert answer.status_code == 403 and "may not change" in answer.json()["detail"]
        assert HEADERS.keys() <= answer.headers.keys()
    assert client.post(GREET, json=body, headers={"origin": "http://testserver"}).status_code == 200
    form = client.post(GREET, content='{"inputs":{"name":"x"}}', headers={"content-type": "text/plain"})
    assert form.status_code == 400


def test_a_crash_has_the_headers_of_every_response(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def crash() -> dict[str, Any]:
        raise ZeroDivisionError("a secret of the machine")

    context = client.app.state.context  # type: ignore[attr-defined]
    monkeypatch.setattr(context.services["default"], "fleet", crash)
    answer = client.get(f"{API}/fleet")
    assert answer.status_code == 500 and answer.json()["code"] == "unexpected"
    assert HEADERS.keys() <= answer.headers.keys() and "secret" not in answer.text
    assert "a secret of the machine" in caplog.text


def test_a_login_link_gives_a_browser_one_session(client: TestClient, bare: TestClient) -> None:
    """R1.13: a browser gets its token as a cookie that no script reads and no other site sends."""
    link = client.post(f"{API}/login-links").json()["path"]
    answer = bare.get(link, follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and OPERATE not in cookie
    assert bare.get(f"{API}/runs").status_code == 200
    assert TestClient(client.app).get(link, follow_redirects=False).status_code == 401


async def test_a_form_needs_the_token_of_its_session(client: TestClient) -> None:
    context = client.app.state.context  # type: ignore[attr-defined]

    def request(session: str) -> Request:
        return Request({"type": "http", "headers": [(b"cookie", f"{COOKIE}={session}".encode())]})

    token = context.csrf(request("mine"))
    await context.check_csrf(request("mine"), {"csrf": token})
    for wrong in ({"csrf": context.csrf(request("other"))}, {"csrf": ""}, {}):
        with pytest.raises(Forbidden):
            await context.check_csrf(request("mine"), wrong)


def test_tokens_come_from_a_file_that_is_the_operator_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# of the team\nci:operate {'a' * 16}\n\nada:answer@books {'b' * 20}\n")
    path.chmod(0o644)
    with pytest.raises(TokensInvalid, match="chmod 600"):
        Tokens.read(path, {})
    path.chmod(0o600)
    tokens = Tokens.read(path, {"HOLDFAST_TOKEN": "c" * 16})
    assert tokens.find("a" * 16) == Caller("ci", "operate")
    assert tokens.find("b" * 20) == Caller("ada", "answer", "books")
    assert tokens.find("c" * 16) == Caller("token", "operate") and tokens.find("d" * 16) is None
    for line in ("ci:god " + "a" * 16, "ci:read short", "nothing"):
        path.write_text(line)
        with pytest.raises(TokensInvalid, match="tokens:1: a line is NAME:ROLE"):
            Tokens.read(path, {})
    with pytest.raises(TokensInvalid, match="fewer than 16"):
        Tokens.read(None, {"HOLDFAST_TOKEN": "short"})


def test_too_many_requests_and_guesses_are_refused(client: TestClient, bare: TestClient) -> None:
    buckets = Buckets(Rate(0.001, 3))
    for _ in range(3):
        buckets.take("me")
    with pytest.raises(RateExceeded):
        buckets.take("me")
    buckets.take("you")
    codes = {bare.get(f"{API}/runs", headers=bearer(f"guess-number-{n}")).status_code for n in range(20)}
    assert codes == {401, 429}
    assert client.get(f"{API}/runs").status_code == 200


def test_looking_is_limited_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    context = client.app.state.context  # type: ignore[attr-defined]
    path = f"{API}/runs/{paused(client)}/events"
    monkeypatch.setattr(context, "_reads", Buckets(Rate(0.001, 2)))
    assert [client.get(f"{API}/runs").status_code for _ in range(3)] == [200, 200, 429]
    assert client.get(path, headers={"accept": "text/event-stream"}).status_code == 429
    assert client.get("/runs").status_code == 429
    assert client.get("/runs", headers=bearer(READ)).status_code == 200


@pytest.mark.parametrize(("proxies", "codes"), [({}, {401, 429}), ({"FORWARDED_ALLOW_IPS": "*"}, {401})])
def test_only_a_proxy_of_the_operator_says_where_requests_come_from(
    tmp_path: Path, proxies: dict[str, str], codes: set[int]
) -> None:
    """A header that clients choose themselves does not get them around limits."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    token = {"HOLDFAST_TOKEN": "t" * 20}
    with serving(tmp_path, "--store", url, **token, **proxies) as (_, facts), httpx2.Client() as stranger:
        found = {
            stranger.get(
                f"{facts['api']}/runs", headers={**bearer("wrong" * 5), "x-forwarded-for": f"10.0.0.{n}"}
            ).status_code
            for n in range(20)
        }
    assert found == codes


def test_a_server_that_only_reads_refuses_commands(tmp_path: Path, folder: Path) -> None:
    app = asgi(f"sqlite:///{tmp_path / 'runs.db'}", [folder], read_only=True, hosts=("testserver",))
    with TestClient(app) as reader:
        answer = reader.post(GREET, json={"inputs": {"name": "x"}})
        assert answer.status_code == 403 and answer.json()["code"] == "read_only"
        answer = reader.post(f"{API}/workflows/reload")
        assert answer.status_code == 403 and answer.json()["code"] == "read_only"
        assert reader.get(f"{API}/ready").json()["worker"] is False


def test_strangers_learn_nothing_about_the_machine(bare: TestClient) -> None:
    for path in ("health", "ready"):
        assert bare.get(f"{API}/{path}").json() == {"status": "ok", "worker": True}


def test_one_caller_cannot_take_all_streams(
    client: TestClient, bare: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before a stream begins, so that the client sees why; others still get theirs."""
    path, streams = f"{API}/runs/{paused(client)}/events", client.app.state.streams  # type: ignore[attr-defined]
    sse = {"accept": "text/event-stream"}
    monkeypatch.setattr("holdfast.web.streams.MOST_OF_ONE", 1)
    with streams.counted("default/op"):
        refused = client.get(path, headers=sse)
        assert refused.status_code == 429 and "too many streams" in refused.json()["detail"]
        assert client.get(f"/runs/{path.split('/')[-2]}/live", headers=sse).status_code == 429
        with streams.counted("default/reader"):
            pass
    assert not streams._of


@contextmanager
def served(url: str) -> Iterator[str]:
    """The address of a server in this process that also serves models."""
    app = asgi(url, mcp=lambda service: McpServer(service).over_http())
    with served_beside(app, listening := listen("127.0.0.1", 0)):
        yield address_of(listening)


def test_surplus_streams_are_refused_before_they_begin(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many that are opened at once, and by whatever protocol; a stream that is closed makes room."""
    monkeypatch.setattr("holdfast.web.streams.MOST_OF_ONE", 1)
    url, sse = f"sqlite:///{tmp_path / 'runs.db'}", {"accept": "text/event-stream"}
    with Service(url, [folder]) as service:
        run = service.execute("review", wait=60)["run_id"]

    async def opened(client: httpx2.AsyncClient, path: str) -> httpx2.Response:
        return await client.send(client.build_request("GET", path, headers=sse), stream=True)

    async def use(address: str) -> None:
        async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
            for path in (f"{API}/runs/{run}/events", f"/runs/{run}/live", "/mcp"):
                found = await asyncio.gather(*(opened(client, path) for _ in range(8)))
                assert sorted(each.status_code for each in found) == [200] + [429] * 7
                assert (await client.get(f"{API}/runs/{run}/events", headers=sse)).status_code == 429
                for each in found:
                    await each.aclose()
                while (again := await opened(client, path)).status_code == 429:
                    await again.aclose()
                await again.aclose()
                while (again := await opened(client, path)).status_code == 429:
                    await again.aclose()
                await again.aclose()

    with served(url) as address:
        asyncio.run(use(address))


async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.reading.SECONDS", 0.01)

    async def nothing() -> Message:
        return await asyncio.get_running_loop().create_future()

    with pytest.raises(TooSlow, match="too long to arrive"):
        await read_bytes(Request({"type": "http", "headers": []}, nothing), 10)


@pytest.mark.parametrize("path", ["/mcp", "/workflows/x", "/login"])
def test_bodies_of_forms_and_of_models_have_to_arrive_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("holdfast.web.reading.SECONDS", 0.01 - 5)
    with served(f"sqlite:///{tmp_path / 'runs.db'}") as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: 9\r\n\r\n"
            connection.sendall(f"{head}part".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
