"""The pages beside that of one run, in a real browser: workflows, comparisons, costs, the fleet and the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from holdfast import END, START, ExecutionError, StateGraph, clock
from holdfast.fleet.cron import Cron
from holdfast.fleet.queues import Limits, Rate
from holdfast.fleet.schedules import Schedule, Schedules
from holdfast.journal.checkpoint_ids import new_run_key
from holdfast.service import Service
from holdfast.stores.base import Append
from holdfast.web import asgi
from tests.service.conftest import GREET
from tests.web.browser import WAIT, listen_to_console, served, violations
from tests.web.conftest import READ, bearer

expect.set_options(timeout=WAIT)


def spend(state: Any, ctx: Any) -> dict[str, Any]:
    """Spend two dollars on one model in an attempt that fails, or three on another."""
    if state["fails"]:
        ctx.spend("small", input_tokens=10, output_tokens=1, cost=2.0)
        raise RuntimeError("no paper")
    ctx.spend("large", input_tokens=1_000, output_tokens=100, cost=3.0)
    return {"done": True}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Service:
    hostile = tmp_path_factory.mktemp("hostile") / "hostile.yaml"
    text = GREET.replace("name: greet", "name: hostile").replace("Say hello.", '"Say \\u202eolleh"')
    hostile.write_text(text.replace("Whom to greet.", '"Whom \\u2066to greet."'))
    made = Service(f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}", [folder, hostile])
    graph = StateGraph(dict, name="paid").add_node("spend", spend)
    app = graph.add_edge(START, "spend").add_edge("spend", END).compile(made.store)
    app.invoke({"fails": False}, run_id="paid-today")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time", lambda now=clock.time: now() - 10 * 86_400)
        with pytest.raises(ExecutionError):
            app.invoke({"fails": True}, run_id="paid-before")
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


def test_a_description_with_controls_of_writing_is_shown_harmless(page: Page) -> None:
    page.goto("/workflows/hostile")
    expect(page.locator(".lead")).to_have_text(r"Say \u202eolleh")
    expect(page.locator(".about")).to_contain_text(r"Whom \u2066to greet.")
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.locator("main").inner_text())


def cells(page: Page, table: str) -> list[list[str]]:
    rows = page.get_by_role("table", name=table).locator("tbody tr").all()
    return [[text.strip() for text in row.locator("th, td").all_inner_texts()] for row in rows]


def test_costs_are_added_up_by_day_workflow_and_model(page: Page) -> None:
    page.goto("/costs")
    assert [row[:2] for row in cells(page, "Cost by workflow") if row[1] != "$0"] == [["paid", "$5.00"]]
    assert [row[:3] for row in cells(page, "Cost by model")] == [
        ["large", "$3.00", "1"],
        ["small", "$2.00", "1"],
    ]
    assert [row[-1] for row in cells(page, "Cost by model")] == ["–", "$2.00"]
    chart = page.get_by_role("img", name="Cost by day")
    assert chart.locator("g").count() == 11 and chart.locator(".lost").count() == 1
    page.get_by_role("link", name="7 days").click()
    page.get_by_role("link", name="Tokens").click()
    assert [row[:2] for row in cells(page, "Tokens by model")] == [["large", "1,100"]]
    page.get_by_label("Since (UTC)").fill("2001-01-01T00:00")
    page.get_by_label("until").fill("2001-01-02T00:00")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Nothing was used in this time.")).to_be_visible()


def test_the_fleet_is_live_and_the_store_is_checked(page: Page, service: Service) -> None:
    page.goto("/fleet")
    expect(page.get_by_text("This server executes up to 3 runs at once.")).to_be_visible()
    service.execute("greet", {"name": "you"}, queue="nightly", delay=3600, run_id="planned")
    expect(page.get_by_role("rowheader", name="nightly")).to_be_visible()
    page.goto("/store")
    page.get_by_role("button", name="Check the newest runs").click()
    expect(page.get_by_role("status")).to_contain_text("runs checked, all of the store: intact.")
    info = service.store.runs(run="paid-before")[0]
    damaged = replace(info, run="damaged", key=new_run_key())
    [entry] = service.store.read("paid-before", upto=1)
    assert service.store.commit([Append("damaged", 0, [entry], damaged)]) == [None]
    page.get_by_role("button", name="Check the newest runs").click()
    expect(page.get_by_role("status")).to_contain_text("1 of")
    expect(page.get_by_role("link", name="damaged", exact=True)).to_be_visible()
    service.store.delete("damaged")


def test_two_runs_are_ticked_and_compared(page: Page, service: Service) -> None:
    for name in ("you", "<i>me</i>"):
        service.execute("greet", {"name": name}, run_id=f"for {name}", wait=60)
    page.goto("/runs?workflow=greet&text=for")
    compare = page.get_by_role("button", name="Compare the ticked")
    expect(compare).to_be_disabled()
    page.get_by_label("Compare for you").check()
    page.get_by_role("link", name="for <i>me</i>").focus()
    with page.expect_response("**/runs?*"):
        pass  # The list was asked for again, and what is ticked stays.
    page.keyboard.press("x")
    expect(page.get_by_label("Compare for you")).to_be_checked()
    compare.click()
    expect(page.get_by_role("heading", name="Compare two runs")).to_be_visible()
    steps = [[text.split() for text in row[1:]] for row in cells(page, "Steps of both runs")]
    assert [row[0][:2] + row[1][:2] + row[2] for row in steps] == [
        ["✓", "completed", "✓", "completed", "another", "result"]
    ]
    told = page.get_by_role("list", name="Result of write").inner_text()
    assert "hello you" in told and "hello <i>me</i>" in told
    expect(page.locator("p.said")).to_contain_text("0 steps did the same in both.")
    expect(page.get_by_label("write in for you")).to_contain_text('"output": "hello you"')
    page.get_by_role("link", name="Swap").click()
    expect(page.get_by_label("One run")).to_have_value("for you")
    page.goto("/compare?run=paid-today&run=paid-before")
    facts = {row[0]: row[1:] for row in cells(page, "The two runs")}
    assert facts["Cost"] == ["$3.00", "$2.00"] and facts["Failed attempts"] == ["0", "1"]
    expect(page.locator("p.said")).to_contain_text("Their costs differ: $3.00 and $2.00.")
    page.goto("/compare?run=paid-today&run=nowhere")
    expect(page.get_by_role("alert")).to_contain_text("nowhere")


BOTH = "/compare?run=paid-today&run=paid-before"
PATHS = (
    "/workflows",
    "/workflows/greet",
    "/costs",
    "/costs?days=1&by=time",
    "/fleet",
    "/store",
    "/compare",
    BOTH,
)


def test_pages_are_accessible_and_fit_phones(browser: Browser, address: str) -> None:
    for scheme, width in (("light", 1280), ("dark", 360)):
        size: Any = {"width": width, "height": 800}
        page = browser.new_page(base_url=address, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
        for path in PATHS:
            page.goto(path)
            assert violations(page) == [], (path, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page.context.close()


def test_the_fleet_of_a_server_has_limits_and_schedules(postgres_url: str, folder: Path) -> None:
    headers = {"accept": "text/html"}
    with (
        Service(postgres_url, [folder], read_only=True) as service,
        TestClient(asgi(service=service, hosts=("testserver",)), headers=headers) as client,
    ):
        limits = Limits(service.store)
        limits.set("nightly", max_running=2, rate=Rate(10, 60.0))
        limits.pause("nightly")
        Schedules(service.store).add(
            Schedule("every <hour>", Cron("0 * * * *", "UTC"), "greet", queue="nightly")
        )
        text = client.get("/fleet").text
        assert "2 at once, 10 in 1 min 0 s" in text and "paused</span>" in text
        assert "every &lt;hour&gt;" in text and "0 * * * *" in text and ">never<" in text
        assert "This server only shows runs, and executes none." in text
        assert "This server only shows runs." in client.get("/workflows/greet").text


def test_who_only_reads_gets_no_form_to_start_runs(client: TestClient) -> None:
    reading = {**bearer(READ), "accept": "text/html"}
    shown = client.get("/workflows/greet", headers=reading).text
    assert "You may look at runs here" in shown and "<form" not in shown
    csrf = client.get("/store", headers=reading).text.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": csrf, "field.name": "you"}
    assert client.post("/workflows/greet", data=form, headers=reading).status_code == 403
    checked = client.post("/store", data=form, headers=reading)
    assert checked.status_code == 200 and "There was nothing to check." in checked.text
    started = client.post("/workflows/greet", data={"field.name": "you", "csrf": "x"}, follow_redirects=False)
    assert started.status_code == 403
    sent = [
        client.post("/workflows/greet", data={**form, "key": "same"}, follow_redirects=False)
        for _ in range(2)
    ]
    assert [each.status_code for each in sent] == [303, 303]
    assert sent[0].headers["location"] == sent[1].headers["location"]
