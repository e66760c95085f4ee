"""The pages beside that of one run, in a real browser: workflows, comparisons, costs, the fleet and the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.service import Service
from holdfast.web import asgi
from tests.web.browser import WAIT, chromium, listen_to_console, served

expect.set_options(timeout=WAIT)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Service:
    return Service(f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}", [folder])


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with served(asgi(service=service)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = browser.new_page(base_url=address)
    errors = listen_to_console(opened)
    yield opened
    opened.context.close()
    assert [error for error in errors if "Failed to load resource" not in error] == []


def test_a_run_is_started_with_a_form_that_tells_what_is_wrong(page: Page, service: Service) -> None:
    page.goto("/workflows")
    page.get_by_role("link", name="Start greet").click()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_label("name (needed)")).to_be_focused()
    page.get_by_label("name (needed)").fill("<b>Ada</b>\nand Grace")
    page.get_by_label("times").select_option("2")
    page.get_by_text("More").click()
    page.get_by_label("Id of the run").fill("from the page")
    page.get_by_label("Tags").fill("web, first")
    page.get_by_role("button", name="Start").press("Enter")
    page.wait_for_url("**/runs/from%20the%20page")
    run = service.wait("from the page", 60)
    assert (run["status"], run["tags"]) == ("completed", ["web", "first"])
    assert service.run("from the page")["inputs"] == {"name": "<b>Ada</b>\nand Grace", "times": 2}

    page.go_back()
    page.get_by_label("times").select_option("1")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("run 'from the page' exists")
    expect(page.get_by_label("name (needed)")).to_have_value("<b>Ada</b>\nand Grace")
    expect(page.get_by_label("times")).to_have_value("1")
