"""Webhooks: what happens to runs reaches a receiver at least once, though it fails and the server is killed."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from holdfast.service import Service
from holdfast.service.targets import EVENTS, KEY_VARIABLE, Target, WebhookInvalid, read_targets
from holdfast.service.webhooks import Webhooks
from tests.service.conftest import BROKEN, GREET
from tests.web.receivers import KEY, Receiver
from tests.web.test_serve import serving

LINK_KEY = "k" * 32


def test_what_happens_reaches_a_receiver_that_fails_at_first(tmp_path: Path, folder: Path) -> None:
    """Signed, tried again, with a link that answers; a second server sends nothing twice."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    keys = {KEY_VARIABLE: KEY, "HOLDFAST_LINK_KEY": LINK_KEY}
    with Receiver(500, 302, headers={"location": "http://127.0.0.1:9/elsewhere"}) as receiver:
        words = (str(folder), "--store", url, "--webhook", receiver.url)
        with serving(tmp_path, *words, **keys) as (_, facts):
            api = facts["api"]
            run = httpx2.post(f"{api}/workflows/review/runs", json={"wait": 60}, timeout=90).json()["run_id"]
            failed = httpx2.post(f"{api}/workflows/broken/runs", json={"wait": 60}, timeout=90).json()
            got = receiver.wait(lambda got: len(got) == 2)
            by_run = {each["run_id"]: each for each in got}
            assert len(receiver.refused) == 2 and set(receiver.refused) <= {each["id"] for each in got}
            paused = by_run[run]
            assert (paused["type"], paused["workflow"], paused["namespace"]) == (
                "run.paused",
                "review",
                "default",
            )
            assert paused["pauses"][0]["prompt"] == "Publish it?" and paused["pauses"][0]["choices"] == [
                "yes",
                "no",
            ]
            assert by_run[failed["run_id"]]["error"]["step"] == "fails"
            link = paused["pauses"][0]["answer_link"]
            assert link.startswith(facts["address"])
            assert httpx2.post(link, data={"answer": '"yes"'}).status_code == 200
            assert receiver.wait(lambda got: len(got) == 3)[-1]["type"] == "run.completed"
            listed = httpx2.get(f"{api}/runs").json()["runs"]
            assert {line["run_id"] for line in listed} == {run, failed["run_id"]}
        with serving(tmp_path, *words, **keys) as (_, facts):
            again = httpx2.post(f"{facts['api']}/workflows/broken/runs", json={}, timeout=90).json()["run_id"]
            got = receiver.wait(lambda got: any(each["run_id"] == again for each in got))
    assert len({each["id"] for each in got}) == len(got) == 4
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("runs*"))
    assert KEY.encode() not in stored and b"token=hidden" not in stored and LINK_KEY.encode() not in stored


def test_what_happened_while_no_server_ran_or_one_was_killed_is_sent(tmp_path: Path, folder: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with Receiver(*[503] * 3) as receiver:
        words = (str(folder), "--store", url, "--webhook", receiver.url)
        with serving(tmp_path, *words, **{KEY_VARIABLE: KEY}) as (process, facts):
            body = {"inputs": {"name": "Ada"}, "wait": 60}
            first = httpx2.post(f"{facts['api']}/workflows/greet/runs", json=body, timeout=90).json()[
                "run_id"
            ]
            process.kill()
        with Service(url, [folder]) as service:
            second = service.execute("broken", wait=60)["run_id"]
        with serving(tmp_path, *words, **{KEY_VARIABLE: KEY}) as (process, facts):
            receiver.wait(lambda _: len(receiver.refused) == 3)
            process.kill()
        with serving(tmp_path, *words, **{KEY_VARIABLE: KEY}):
            got = receiver.wait(lambda got: len({each["run_id"] for each in got}) == 2)
    assert {each["run_id"]: each["status"] for each in got} == {first: "completed", second: "failed"}


@pytest.mark.parametrize("store_url", ["file", "postgres"], indirect=True)
def test_a_delivery_is_noted_once_however_often_it_is_looked_for(
    store_url: str, workflows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two servers on one store; a target that wants some events; one that comes later hears nothing of before."""
    caplog.set_level("DEBUG")
    with Receiver() as receiver, Service(store_url, [workflows]) as service:
        target = Target.of(receiver.url, KEY, name="all")
        one, other = (
            Webhooks(service, [target, target._replace(name="bad", events=("failed",))]) for _ in "12"
        )
        one._begin()  # Neither looks or delivers by itself.
        other._begin()
        done = service.execute("greet", {"name": "x"}, wait=60)["run_id"]
        failed = service.execute("broken", wait=60)["run_id"]
        for each in (one, other, one):
            each.look()
        names = {(info.workflow, info.tags) for info in one.deliveries.store.runs(limit=500)}
        assert names == {(name, (tag,)) for name in ("delivery", "position") for tag in ("all", "bad")}
        assert len(one.deliveries.store.runs(workflow="delivery")) == 3
        one.close()
        other.close()
        with Webhooks(service, [target, target._replace(name="late")]) as late:
            more = service.execute("greet", {"name": "y"}, wait=60)["run_id"]
            got = receiver.wait(lambda got: len(got) == 4)
            late._save("late", 1.0)
            # Its own thread may be replacing its position just now.
            assert {name for name, _ in late._positions()} == {"all", "bad", "late"}
    assert sorted(each["run_id"] for each in got) == sorted([done, failed, more, more])
    assert "token=hidden" not in caplog.text


@pytest.fixture
def workflows(tmp_path: Path) -> Path:
    made = tmp_path / "workflows"
    made.mkdir()
    for name, text in (("greet", GREET), ("broken", BROKEN)):
        (made / f"{name}.yaml").write_text(text)
    return made


def test_targets_come_from_the_operator_alone(tmp_path: Path) -> None:
    path = tmp_path / "hooks"
    path.write_text(
        f"# ours\nops:paused,failed https://hooks.example/x {KEY.replace(' ', '-')}\nb http://b/ whsec_{'A' * 32}\n"
    )
    path.chmod(0o600)
    ops, other = read_targets([], path, {})
    assert (ops.name, ops.events, ops.url) == ("ops", ("paused", "failed"), "https://hooks.example/x")
    assert other.key == bytes(24) and other.events == EVENTS
    for line, problem in (
        ("ops", "hooks:1: a line is NAME"),
        (f"ops:sick http://b/ {'k' * 24}", "no event 'sick'"),
        (f"ops ftp://b/ {'k' * 24}", "hooks:1: a webhook is an address"),
        ("ops http://b/ short", "24 characters or more"),
        (f"ops http://b/ {'k' * 24}\nops http://c/ {'k' * 24}", "two webhooks are named 'ops'"),
    ):
        path.write_text(line)
        with pytest.raises(WebhookInvalid, match=problem):
            read_targets([], path, {})
    with pytest.raises(WebhookInvalid, match="HOLDFAST_WEBHOOK_KEY"):
        read_targets(["http://b/"], None, {})
