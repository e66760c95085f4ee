"""The page of runs, in a real browser."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.service import Service, reading
from holdfast.web import asgi
from holdfast.web.pages.statics import FOLDER
from tests.web.browser import WAIT, listen_to_console, served, violations

expect.set_options(timeout=WAIT)
HOSTILE = "<img src=x onerror=alert(1)>'\"&/../%2F?#{{7*7}}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}"
    made = Service(url, [folder])
    yield made


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with served(asgi(service=service)) as found:
        service.execute("greet", {"name": "you"}, run_id="first", tags=["blue"], wait=60)
        service.execute("review", run_id="asked", wait=60)
        service.execute("broken", run_id="failing", wait=60)
        service.execute("greet", {"name": "you"}, run_id=HOSTILE, wait=60)
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = browser.new_page(base_url=address)
    errors = listen_to_console(opened)
    opened.goto("/")
    yield opened
    opened.context.close()
    assert errors == []


def names(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("[data-row]").all_inner_texts()]


def test_runs_are_filtered_by_status_workflow_tag_time_and_text(page: Page) -> None:
    assert sorted(names(page)) == sorted(["first", "asked", "failing", HOSTILE])
    page.get_by_role("link", name="paused").click()
    assert names(page) == ["asked"]
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Tag").fill("blue")
    page.get_by_role("button", name="Filter").click()
    assert names(page) == ["first"]
    page.goto("/runs?workflow=review&since=2020-01-01T00:00&until=2021-01-01T00:00")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    page.goto("/runs?workflow=review&since=2020-01-01T00:00")
    assert names(page) == ["asked"]


def test_a_search_goes_on_to_older_runs_until_one_is_found(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_LOOKED_AT", 1)
    page.goto("/runs?tag=blue")
    expect(page.get_by_role("link", name="first")).to_be_visible()
    page.goto("/runs?tag=green")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()


def test_numbers_stand_only_where_they_hold_for_what_is_listed(page: Page) -> None:
    counts = page.locator(".counts b")
    page.goto("/runs")
    listed = page.locator("tbody tr").count()
    assert counts.first.inner_text() == str(listed)
    page.goto("/runs?status=completed")
    expect(counts).not_to_have_count(0)
    page.goto("/runs?text=e")
    expect(page.locator(".counts a").first).to_be_visible()
    expect(counts).to_have_count(0)


def test_keys_search_move_and_open(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("a")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Clear")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("[data-row]").first).to_be_focused()


def test_new_runs_appear_without_loading_the_page(page: Page, service: Service) -> None:
    page.goto("/runs?text=later")
    service.execute("greet", {"name": "you"}, run_id="later", wait=60)
    expect(page.get_by_role("link", name="later")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/runs", "/runs?text=nothing", "/nowhere", "/runs?since=never"])
def test_pages_are_accessible(browser: Browser, address: str, path: str, scheme: str) -> None:
    page = browser.new_page(base_url=address, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(path)
    assert violations(page) == []
    page.context.close()


def test_errors_are_pages_for_browsers_and_documents_for_programs(address: str) -> None:
    shown = httpx2.get(f"{address}/nowhere", headers={"accept": "text/html"})
    assert shown.status_code == 404 and "<h1>" in shown.text
    told = httpx2.get(f"{address}/nowhere")
    assert told.json()["code"] == "no_such_path"


def test_files_are_kept_by_browsers_until_they_change(address: str) -> None:
    text = httpx2.get(f"{address}/runs").text
    path = text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    found = httpx2.get(f"{address}{path}")
    assert "immutable" in found.headers["cache-control"]
    again = httpx2.get(f"{address}{path}", headers={"if-none-match": found.headers["etag"]})
    assert again.status_code == 304
    assert httpx2.get(f"{address}/static/htmx.LICENSE.txt").status_code == 200
    assert httpx2.get(f"{address}/static/..%2F__init__.py").status_code == 404


def test_the_script_is_small() -> None:
    scripts = [each.read_bytes() for each in FOLDER.iterdir() if each.name.endswith(".js")]
    assert sum(len(gzip.compress(script, 9)) for script in scripts) < 35_000
