"""Answer links: one question is answered once, by its link, without a login."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from holdfast.service import Caller, Service, Tokens
from holdfast.service.links import AnswerLinks, KeyTooShort, LinkRefused, refuse_late
from holdfast.views.runs import run_pauses
from holdfast.web import asgi
from tests.web.browser import WAIT, chromium, listen_to_console, served, violations
from tests.web.conftest import ANSWER, OPERATE, TOKENS, bearer
from tests.web.test_api import API

RATE = """\
workflow: {name: rate}
steps:
  - name: stars
    ask: {prompt: "How <b>good</b> is it?", type: integer}
  - name: why
    ask: {prompt: "Why?", type: string, timeout: 1h}
output: "{{ steps.why.output }}"
"""


TIMED = """\
workflow: {name: timed}
steps:
  - name: soon
    ask: {prompt: "Now?", type: string, timeout: 1h}
"""


@pytest.fixture(scope="module")
def links_of(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Any]:
    """A server with links, the client of a stranger, and what makes a link of a run."""
    place = tmp_path_factory.mktemp("links")
    (place / "rate.yaml").write_text(RATE)
    (place / "timed.yaml").write_text(TIMED)
    service = Service(f"sqlite:///{place / 'runs.db'}", [folder, place])
    app = asgi(service=service, tokens=Tokens(TOKENS), hosts=("testserver",), links=AnswerLinks("k" * 32))
    with TestClient(app, raise_server_exceptions=False) as stranger:

        def links(workflow: str = "review", run: str = "") -> Any:
            if not run:
                run = service.execute(workflow, wait=60)["run_id"]
            made = stranger.post(f"{API}/runs/{run}/answer-links", headers=bearer(OPERATE))
            assert made.status_code == 200, made.text
            return run, made.json()["links"][0]["link"]

        links.service, links.stranger = service, stranger  # type: ignore[attr-defined]
        yield links


def test_a_link_answers_once_and_looking_at_it_answers_nothing(links_of: Any) -> None:
    service, stranger = links_of.service, links_of.stranger
    run, link = links_of()
    assert links_of(run=run) == (run, link)
    for _ in range(2):
        shown = stranger.get(link)
        assert (
            shown.status_code == 200
            and "Publish it?" in shown.text
            and stranger.head(link).status_code == 200
        )
    assert service.status(run)["status"] == "paused"
    empty = stranger.post(link, data={})
    assert empty.status_code == 422 and "choose or write" in empty.text
    assert stranger.post(link, data={"answer": '"perhaps"'}).status_code == 422
    foreign = stranger.post(link, data={"answer": '"yes"'}, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403

    assert "Your answer was taken" in stranger.post(link, data={"answer": '"yes"'}).text

    assert service.wait(run, 60)["output"] == "published yes"
    for again in (stranger.post(link, data={"answer": '"no"'}), stranger.get(link)):
        assert again.status_code == 410 and "answered already, or is over" in again.text
    [answer] = [event for event in service.events(run) if event["type"] == "answer"]
    assert "answer link" in answer["text"]


def test_of_two_answers_at_once_one_is_taken(links_of: Any) -> None:
    run, link = links_of()
    codes: list[int] = []
    threads = [
        threading.Thread(
            target=lambda said=said: codes.append(
                links_of.stranger.post(link, data={"answer": said}).status_code
            )
        )
        for said in ('"yes"', '"no"', '"yes"')
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(codes) == [200, 410, 410]
    assert [each["type"] for each in links_of.service.events(run)].count("answer") == 1


def test_forged_used_and_other_links_are_refused_in_words(links_of: Any) -> None:
    service, stranger = links_of.service, links_of.stranger
    run, link = links_of()
    other, others = links_of()
    place, _, _ = link.rpartition(".")
    mixed = f"{place}.{others.rpartition('.')[2]}"
    for wrong in (mixed, f"{place}.", place, f"{link}A", "/answer/é.x", f"{link[:-2]}.."):
        refused = stranger.get(wrong)
        assert refused.status_code in (410, 429) and "Traceback" not in refused.text
    assert service.status(run)["status"] == service.status(other)["status"] == "paused"
    strange = AnswerLinks("x" * 32).link(AnswerLinks("k" * 32).read(link.rpartition("/")[2]))
    assert stranger.post(strange, data={"answer": '"yes"'}).status_code in (410, 429)

    service.rollback(run, "@draft")
    service.resume(run)
    service.wait(run, 60)
    over = stranger.get(link)
    assert over.status_code == 410 and "is over" in over.text, "the question was asked again since"
    _, fresh = links_of(run=run)
    service.cancel(run)
    assert stranger.post(fresh, data={"answer": '"yes"'}).status_code == 410
    service.delete(other)
    assert stranger.get(others).status_code == 410


def test_a_link_is_no_use_after_the_time_of_its_question(links_of: Any) -> None:
    run, _ = links_of("timed")
    service = links_of.service
    [info] = service.store.runs(run=run)
    [pause] = run_pauses(service.journal, info)
    assert pause.until is not None
    refuse_late(pause)
    past = dt.datetime(2001, 2, 3, tzinfo=dt.UTC)
    with pytest.raises(LinkRefused, match="too late to answer: the time was over at 2001-02-03 00:00 UTC"):
        refuse_late(dataclasses.replace(pause, until=past))


def test_only_operators_make_links_and_only_with_a_key(links_of: Any, tmp_path: Path) -> None:
    run, _ = links_of()
    stranger, path = links_of.stranger, f"{API}/runs/{run}/answer-links"
    assert stranger.post(path).status_code == 401
    assert stranger.post(path, headers=bearer(ANSWER)).status_code == 403
    nothing = links_of.service.execute("greet", {"name": "x"}, wait=60)["run_id"]
    assert stranger.post(f"{API}/runs/{nothing}/answer-links", headers=bearer(OPERATE)).status_code == 409
    with TestClient(asgi(f"sqlite:///{tmp_path / 'runs.db'}", hosts=("testserver",))) as client:
        refused = client.post(path).json()
        assert refused["code"] == "no_links" and "HOLDFAST_LINK_KEY" in str(refused["remedies"])
        assert client.get("/answer/x.y").status_code == 410
    with pytest.raises(KeyTooShort, match="openssl rand"):
        AnswerLinks("short")


def test_a_person_answers_in_a_browser_without_a_login(tmp_path: Path) -> None:
    (tmp_path / "rate.yaml").write_text(RATE)
    service = Service(f"sqlite:///{tmp_path / 'runs.db'}", [tmp_path])
    tokens = Tokens([(OPERATE, Caller("op", "operate"))])
    links = AnswerLinks("k" * 32)
    with served(asgi(service=service, tokens=tokens, links=links)) as address, chromium() as browser:
        expect.set_options(timeout=WAIT)
        run = service.execute("rate", wait=60)["run_id"]
        page = browser.new_page(base_url=address)
        errors = listen_to_console(page)
        page.goto(service.answer_links(run)["links"][0]["link"])
        expect(page.get_by_role("heading", level=1)).to_have_text("How <b>good</b> is it?")
        assert violations(page) == []
        page.get_by_label("Your answer").fill("many")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("alert")).to_contain_text("JSON")
        assert errors.pop() and errors == []  # The browser says that the form was refused.
        page.get_by_label("Your answer").fill("5")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("status")).to_contain_text("Your answer was taken")
        service.wait(run, 60)
        page.goto(service.answer_links(run)["links"][0]["link"])
        page.get_by_label("Your answer").fill("It is\nthe truth")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("status")).to_contain_text("Your answer was taken")
        assert service.wait(run, 60)["output"] == "It is\nthe truth" and errors == []
