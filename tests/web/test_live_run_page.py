"""The page of a run that other processes execute: a worker that is killed, and the command line that waits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.service import Service
from holdfast.web import asgi
from tests.cli.processes import Session
from tests.service.conftest import REVIEW
from tests.web.browser import WAIT, listen_to_console, served

expect.set_options(timeout=WAIT)
SLOW = "workflow: {name: slow}\nsteps:\n" + "".join(
    f"  - {{name: s{number}, shell: 'while ! test -e go{number}; do sleep 0.05; done', timeout: 600}}\n"
    for number in range(6)
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two workflow files, in which their steps run."""
    made = tmp_path_factory.mktemp("workflows")
    (made / "slow.yaml").write_text(SLOW.replace("go", f"{made}/go"))
    (made / "review.yaml").write_text(REVIEW)
    return made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Service:
    """A service that executes nothing itself."""
    made = Service(f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}", [place])
    made.start = lambda: made  # type: ignore[method-assign]
    return made


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with served(asgi(service=service)) as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = browser.new_page(base_url=address)
    errors = listen_to_console(opened)
    yield opened
    opened.context.close()
    assert [
        error for error in errors if "ERR_INTERNET_DISCONNECTED" not in error and "htmx:" not in error
    ] == []


@contextmanager
def worker(service: Service, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ("worker", "--store", service.store.url, "--workflow", str(place))
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=place)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_run_is_watched_over_a_killed_worker_and_a_lost_connection_to_its_end(
    page: Page, service: Service, place: Path
) -> None:
    """R3.7: without loading the page again."""
    service.execute("slow", run_id="watched")
    page.goto("/runs/watched")
    page.evaluate("window.sameDocument = true")
    head, status = page.locator("#part-head"), page.locator("#part-head .status")
    expect(status).to_contain_text("queued")
    with worker(service, place) as first:
        expect(status).to_contain_text("running")
        (place / "go0").touch()
        expect(head).to_contain_text("1 of 6 steps done")
        expect(page.locator("#graph .hf-running")).to_contain_text("s1")
        first.kill()
        first.wait()
    expect(head).to_contain_text("The process that executed it is gone")
    expect(page.locator("#announce")).to_contain_text("is gone")
    for place_of_step in ("#part-time tr", "#part-steps li"):
        expect(page.locator(place_of_step, has_text="s1").locator(".status")).to_contain_text("interrupted")
    expect(page.locator("#part-time")).not_to_contain_text("so far")
    expect(page.locator("#part-help")).to_contain_text("Workers take the run over by themselves")
    with worker(service, place):
        expect(status).to_contain_text("running")
        page.context.set_offline(True)
        for number in range(1, 4):
            (place / f"go{number}").touch()
        expect(page.locator("#offline")).to_contain_text("does not answer")
        page.context.set_offline(False)
        expect(head).to_contain_text("4 of 6 steps done")
        expect(page.locator("#offline")).to_be_empty()
        for number in (4, 5):
            (place / f"go{number}").touch()
        expect(status).to_contain_text("completed")
    expect(page.locator(".falls tr", has_text=re.compile(r"^\s*s1")).locator("rect")).to_have_count(2)
    assert page.evaluate("window.sameDocument") is True


def test_an_answer_in_the_page_lets_the_command_line_go_on_that_waits_for_it(
    page: Page, service: Service, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.service.closeup.TURN", 600.0)  # However slow this machine is.
    session = Session(place, "run", "review.yaml", "--run-id", "asked", "--store", service.store.url)
    session.expect("Publish it?")
    page.goto("/runs/asked")
    page.get_by_label("yes").check()
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Your answer was given.")).to_be_visible()
    session.expect("published yes")
    assert session.end() == 0
    expect(page.locator("#part-head .status")).to_contain_text("completed")
