"""Requests that are repeated with their idempotency key act once, though the server is killed in the middle of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from starlette.testclient import TestClient

from holdfast.service import Service
from holdfast.web import asgi
from holdfast.web.endpoints import ENDPOINTS
from tests.service.conftest import GREET
from tests.web.doomed import Doomed
from tests.web.test_api import API, get, paused, post

Prepare = Callable[[Service], str]


def review(service: Service) -> str:
    """A run that asks something."""
    found = service.execute("review", wait=60)
    assert found["status"] == "paused"
    return str(found["run_id"])


def interrupted(service: Service) -> str:
    """A fork of a run that asks something; nobody executes it."""
    return str(service.fork(review(service), "@draft", start=False)["run_id"])


def queued(service: Service) -> str:
    """A run that begins later."""
    return str(service.execute("review", delay=10_000)["run_id"])


def nothing(service: Service) -> str:
    """No run."""
    return ""


class Command(NamedTuple):
    """A request: what it needs, its path and its body."""

    prepare: Prepare
    path: str
    body: dict[str, Any]


INLINE = {"text": GREET.replace("greet", "other"), "inputs": {"name": "Ada"}}
COMMANDS = {
    "submit": Command(nothing, "/workflows/greet/runs", {"inputs": {"name": "Ada"}}),
    "submit inline": Command(nothing, "/runs/inline", INLINE),
    "answer": Command(review, "/runs/{run}/answer", {"value": "yes"}),
    "pause": Command(queued, "/runs/{run}/pause", {"reason": "later"}),
    "cancel": Command(review, "/runs/{run}/cancel", {"reason": "no"}),
    "resume": Command(interrupted, "/runs/{run}/resume", {}),
    "edit": Command(review, "/runs/{run}/edit", {"update": {"inputs.topic": "ebb"}}),
    "skip": Command(interrupted, "/runs/{run}/skip", {"step": "approve"}),
    "replan": Command(interrupted, "/runs/{run}/replan", {"steps": ["publish"]}),
    "annotate": Command(review, "/runs/{run}/annotate", {"note": "look", "add": ["x"]}),
    "fork": Command(review, "/runs/{run}/fork", {"at": "@draft"}),
    "rerun": Command(review, "/runs/{run}/rerun", {"step": "draft"}),
    "promote": Command(interrupted, "/runs/{run}/promote", {}),
    "rollback": Command(review, "/runs/{run}/rollback", {"to": "@draft"}),
}
MOMENTS = ("before:1", "after:1", "before:2", "after:2", "before:3", "after:3")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def prepared(url: str, folder: Path) -> Callable[[Prepare], str]:
    """Makes a run that a request is about, and leaves it alone."""

    def prepare(how: Prepare) -> str:
        with Service(url, [folder]) as service:
            return how(service)

    return prepare


@pytest.fixture
def reader(url: str, folder: Path) -> Iterator[Service]:
    service = Service(url, [folder], read_only=True)
    yield service
    service.close()


def sent(api: str, command: Command, run: str, key: str) -> Any:
    path = command.path.format(run=run)
    return httpx2.post(f"{api}{path}", json=command.body, headers={"idempotency-key": key}, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_request_acts_once_though_the_server_is_killed_in_the_middle_of_it(
    name: str,
    url: str,
    folder: Path,
    prepared: Callable[[Prepare], str],
    reader: Service,
) -> None:
    command = COMMANDS[name]
    before = events_of(reader)
    run = prepared(command.prepare)
    made = events_of(reader)
    with Doomed(url, folder) as server:
        assert sent(server.api, command, run, "unharmed").status_code == 200
    expected = changes(made, events_of(reader), run)
    assert expected != changes(made, made, run) and before == {}

    kills = 0
    for moment in MOMENTS:
        run = prepared(command.prepare)
        made, key = events_of(reader), f"key {moment}"
        with Doomed(url, folder, moment) as server:
            try:
                sent(server.api, command, run, key)
            except httpx2.TransportError:
                kills += 1
            else:
                break
        with Doomed(url, folder) as server:
            first = sent(server.api, command, run, key)
            assert first.status_code == 200, first.text
            assert changes(made, events_of(reader), run) == expected, moment
            assert sent(server.api, command, run, key).json() == first.json()
        if kills > 1:  # Once is enough for each command: a server that knows no replies any more.
            continue
        with Doomed(url, folder) as server:
            again = sent(server.api, command, run, key)
            assert again.status_code == 200, again.text
        assert changes(made, events_of(reader), run) == expected, moment
    assert kills >= 2


def test_a_capsule_is_imported_once_though_the_server_is_killed(
    url: str, folder: Path, tmp_path: Path, reader: Service
) -> None:
    with Service(f"sqlite:///{tmp_path / 'elsewhere.db'}", [folder]) as elsewhere:
        run = review(elsewhere)
        capsule, expected = elsewhere.export(run), events_of(elsewhere)[run]
    kills = 0
    for moment in (*MOMENTS, "never"):
        with Doomed(url, folder, moment) as server:
            try:
                done = imported(server.api, capsule, f"key {moment}")
                assert done.status_code == 200, done.text
            except httpx2.TransportError:
                kills += 1
        with Doomed(url, folder) as server:
            first = imported(server.api, capsule, f"key {moment}")
            assert first.status_code == 200 and first.json()["run_id"] == run, first.text
            assert imported(server.api, capsule, f"key {moment}").json() == first.json()
            other = imported(server.api, capsule + b"x", f"key {moment}")
            assert other.status_code == 422 and other.json()["code"] == "key_reused"
        [(name, types)] = events_of(reader).items()
        assert name == run and types == expected, moment
        if moment != "never":
            Service(url, [folder]).delete(run)
    assert kills >= 2


def imported(api: str, capsule: bytes, key: str) -> Any:
    return httpx2.post(f"{api}/runs/import", content=capsule, headers={"idempotency-key": key}, timeout=60)


def test_every_request_that_changes_something_is_killed_here() -> None:
    """Those that are left out say so: they change nothing, or the same again, whatever is repeated."""
    changing = {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST"}
    killed = {command.path.replace("{run}", "{run_id}") for command in COMMANDS.values()} - {
        "/workflows/greet/runs"
    }
    left_out = {"/workflows/reload", "/workflows/validate", "/runs/{run_id}/answer-links"}
    assert changing - left_out == killed | {"/workflows/{workflow}/runs", "/runs/import"}


def events_of(service: Service) -> dict[str, list[str]]:
    """The types of the events of every run."""
    runs = [line["run_id"] for line in service.runs(limit=500)["runs"]]
    return {run: [event["type"] for event in service.events(run, limit=500)] for run in runs}


def changes(
    before: dict[str, list[str]], after: dict[str, list[str]], about: str
) -> list[tuple[str, list[str]]]:
    """What was stored meanwhile: of the run that a request is about, of other runs, and of new ones."""
    found = []
    for run, types in after.items():
        kind = "new" if run not in before else "own" if run == about else "other"
        if types != before.get(run):
            found.append((kind, types[len(before.get(run, ())) :]))
    return sorted(found)


def test_another_request_with_the_same_key_is_refused(client: TestClient) -> None:
    run, key = paused(client), {"idempotency-key": "mine"}

    def answered(path: str, body: Any) -> Any:
        return client.post(f"{API}{path}", json=body, headers=key)

    first = answered(f"/runs/{run}/annotate", {"note": "a"})
    assert first.status_code == 200
    assert answered(f"/runs/{run}/annotate", {"note": "a"}).json() == first.json()
    for path, body in ((f"/runs/{run}/annotate", {"note": "b"}), (f"/runs/{run}/cancel", {})):
        other = answered(path, body)
        assert other.status_code == 422 and other.json()["code"] == "key_reused"
    assert len([each for each in get(client, f"/runs/{run}/events") if each["type"] == "run.annotate"]) == 1


def test_another_request_with_the_same_key_is_refused_by_the_next_server(
    url: str, folder: Path, prepared: Callable[[Prepare], str], reader: Service
) -> None:
    run = prepared(review)
    for name in ("annotate", "fork", "submit"):
        command = COMMANDS[name]
        other = command._replace(
            body={**command.body, **({"note": "b"} if name == "annotate" else {"tags": ["b"]})}
        )
        with Doomed(url, folder) as server:
            assert sent(server.api, command, run, name).status_code == 200
        made = events_of(reader)
        with Doomed(url, folder) as server:
            refused = sent(server.api, other, run, name)
            assert refused.status_code == 422 and refused.json()["code"] == "key_reused"
        assert events_of(reader) == made


def test_keys_are_checked(client: TestClient) -> None:
    body = {"inputs": {"name": "x"}}
    for key in ("", "x" * 256, "\x7f"):
        answer = client.post(f"{API}/workflows/greet/runs", json=body, headers={"idempotency-key": key})
        assert answer.status_code == 400 and "idempotency key" in answer.json()["detail"]
    own = {**body, "run_id": "mine"}
    both = client.post(f"{API}/workflows/greet/runs", json=own, headers={"idempotency-key": "k"})
    assert both.status_code == 400 and "either run_id or" in both.json()["detail"]


def test_who_asked_is_journalled(client: TestClient) -> None:
    """R2.6: also for a resume, a fork and a rerun, which record nothing else of their caller."""
    run = paused(client)
    fork = post(client, f"/runs/{run}/fork", at="@draft", start=False)["run_id"]
    post(client, f"/runs/{fork}/resume")
    again = post(client, f"/runs/{run}/rerun", step="draft")["run_id"]
    for each, command in ((fork, "fork"), (fork, "resume"), (again, "rerun")):
        told = [event for event in get(client, f"/runs/{each}/events") if event["type"] == "command"]
        assert any(f"{command} was asked for by op" in str(event) for event in told), told


def test_the_plan_of_a_resume_is_shown(client: TestClient) -> None:
    run = paused(client)
    plan = get(client, f"/runs/{run}/plan")
    assert plan["run_id"] == run and "draft" in str(plan)


@pytest.mark.parametrize("name", ["submit", "fork", "rerun"])
def test_two_servers_that_are_given_one_key_at_once_make_one_run(
    name: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.service.requests._Turn", nullcontext)  # As in two processes.
    command = COMMANDS[name]
    with Service(url, [folder]) as first, Service(url, [folder], concurrency=1) as second:
        run = command.prepare(first)
        clients = [
            TestClient(asgi(service=each, hosts=("testserver",)), headers={"idempotency-key": "k"})
            for each in (first, second)
        ]
        path, found = f"{API}{command.path.format(run=run)}", list[Any]()
        look = first.store.runs

        def looked(**given: Any) -> Any:
            """Look for the run of a request; then the other server gets the same request."""
            known = look(**given)
            if given.get("prefix") and not found:
                found.append(clients[1].post(path, json=command.body).json())
            return known

        first.store.runs = looked  # type: ignore[method-assign]
        answer = clients[0].post(path, json=command.body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["run_id"] == found[0]["run_id"] and answer.json().keys() == found[0].keys()
