"""The pages of workflows that are functions: the form of their parameters, their calls, what they returned."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast import ask, step, workflow
from holdfast.service import Service
from holdfast.web import asgi
from tests.web.browser import WAIT, listen_to_console, served, violations

expect.set_options(timeout=WAIT)
LONG = "long" * 2_000


@step
def fetch(url: str) -> str:
    return f"<{url}>"


@step
def publish(text: str) -> int:
    return len(text)


@workflow(name="report")
def report(topic: str, count: int = 3, is_loud: bool = False) -> dict[str, Any]:
    """Report on a topic."""
    pages = fetch.map([f"{topic}/{number}" for number in range(count)])
    publish(LONG)
    time.sleep(0.01)  # Its own time, which is far more than what is rounded away.
    return {"pages": len(pages), "loud": is_loud}


@workflow(name="failing")
def failing() -> None:
    fetch("one")
    time.sleep(0.01)
    raise RuntimeError("the function itself fails")


@workflow(name="asking")
def asking() -> str:
    fetch.map(["one", "two", "three"])
    return str(ask("Publish?", choices=["yes", "no"]))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return Service(f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}", [report, failing, asking])


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with served(asgi(service=service)) as found:
        service.execute("report", {"topic": "tides"}, run_id="tides", wait=60)
        service.execute("report", {"topic": "tides", "count": 2}, run_id="fewer", wait=60)
        service.execute("failing", run_id="failing", wait=60)
        service.execute("asking", run_id="asking", wait=60)
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(base_url=address)
    opened = context.new_page()
    errors = listen_to_console(opened)
    yield opened
    context.close()
    assert [error for error in errors if "status of 4" not in error] == []


def test_a_function_is_started_with_a_form_of_its_parameters(page: Page, service: Service) -> None:
    page.goto("/workflows/report")
    expect(page.locator(".lead")).to_have_text("Report on a topic.")
    assert page.get_by_label("topic").get_attribute("required") is not None
    expect(page.get_by_label("count")).to_have_attribute("type", "number")
    expect(page.locator("main")).to_contain_text("If left empty: 3")
    page.get_by_label("topic").fill("moon")
    page.get_by_label("count").fill("1")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("#part-head .status")).to_contain_text("completed")
    [made] = service.runs(text="", limit=1)["runs"]
    assert service.run(made["run_id"])["inputs"] == {"topic": "moon", "count": 1, "is_loud": False}
    expect(page.locator("#part-values pre").last).to_have_text(
        re.compile(r'\{\s*"pages": 1,\s*"loud": false\s*\}')
    )


def test_a_step_shows_the_arguments_and_the_output_of_each_call(page: Page) -> None:
    page.goto("/runs/tides/steps/report%252Ffetch")
    expect(page.locator(".call")).to_have_count(3)
    expect(page.locator(".call").last).to_contain_text('"url": "tides/0"')
    expect(page.locator(".call").last).to_contain_text("<tides/0>")
    expect(page.locator(".call").first).to_contain_text("<tides/2>")
    assert violations(page) == []
    page.goto("/runs/tides/steps/report%252Fpublish")
    expect(page.locator(".call")).to_contain_text("Of arguments this large only the beginnings are recorded.")
    page.goto("/runs/tides/value?of=arguments&step=report%231/fetch%232")
    expect(page.locator("main")).to_contain_text('"url": "tides/1"')
    page.goto("/runs/tides/value?of=result&step=report%231/fetch%232")
    expect(page.locator("main pre")).to_have_text("<tides/1>")
    page.goto("/runs/tides/steps/report")
    expect(page.locator("main")).to_contain_text('"loud": false')
    expect(page.locator("main")).not_to_contain_text('"result"')


@pytest.mark.parametrize("run", ["tides", "failing"])
def test_the_time_of_a_function_is_counted_once_everywhere(run: str, address: str, service: Service) -> None:
    calls = [step for step in service.run(run)["steps"] if "/" in step["name"]]
    expected = pytest.approx(sum(step["seconds"] for step in calls), abs=1e-5)
    assert service.run(run)["seconds"] == expected
    assert service.cost(run)["own"]["seconds"] == expected
    assert service.compare(run, "fewer")["one"]["seconds"] == expected


def test_calls_are_no_items_and_a_function_waits_with_its_question(page: Page) -> None:
    page.goto("/runs/asking")
    for place in ("#part-steps li", "#part-time tbody tr"):
        expect(page.locator(place).first.locator(".status")).to_contain_text("waiting")
    expect(page.locator("#part-steps li", has_text="asking/fetch")).to_contain_text("3 times.")
    expect(page.locator("#part-steps")).not_to_contain_text("items")
    expect(page.locator("#graph")).not_to_contain_text("of 1")
