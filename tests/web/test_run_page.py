"""The page of one run, in a real browser: every button, questions, states, keys, no script, hostile texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from holdfast import END, START, StateGraph, clock
from holdfast.errors import ExecutionError
from holdfast.service import Service
from holdfast.web import asgi
from holdfast.web.pages.run_bars import bars
from holdfast.web.pages.wording import is_dated
from holdfast.workflows import load_workflow
from tests.web.browser import WAIT, listen_to_console, served, violations
from tests.web.conftest import ANSWER, READ, bearer

expect.set_options(timeout=WAIT)
HOSTILE = "<script>alert(1)</script>/../%2F?#{{7*7}} \u202egnp.exe \x1b[31mred"
NAME = "<img src=x onerror=alert(1)>'\"&/../%2F?#{{7*7}}"
BIG = 10_000_000

EACH = """\
workflow: {name: each}
steps:
  - name: work
    for_each: {in: [1, 2, 3], as: number, max_parallel: 1, on_error: continue}
    shell: {run: 'echo "item $X"; test $X != 2', env: {X: "{{ number }}"}}
    retry: {attempts: 2, delay: 0.01}
    timeout: 30
  - name: last
    shell: 'echo done'
    timeout: 30
  - {name: never, when: "false", shell: 'true', timeout: 30}
"""
SLOW = "workflow: {name: slow}\nsteps:\n" + "".join(
    f"  - {{name: s{number}, shell: 'sleep 0.2', timeout: 60}}\n" for number in range(100)
)

FORGETFUL = """\
workflow: {name: forgetful, checkpoint: {retention: {max_checkpoints: 2, per: run, keep_successful: false}}}
steps:
  - name: work
    for_each: {in: [1, 2, 3], as: number, max_parallel: 1, on_error: continue}
    shell: {run: 'test $X != 2', env: {X: "{{ number }}"}}
    timeout: 30
  - {name: never, when: "false", shell: 'true', timeout: 30}
""" + "".join(f"  - {{name: s{number}, shell: 'true', timeout: 30}}\n" for number in range(6))

SCHEMA = {
    "type": "object",
    "properties": {
        "room": {"enum": ["A", "B"], "description": "Which room"},
        "nights": {"type": "integer", "minimum": 1, "maximum": 9},
        "breakfast": {"type": "boolean"},
        "note": {"type": "string"},
        "price": {"type": "number"},
        "guests": {"type": "array"},
    },
    "required": ["room", "nights", "breakfast"],
}


def book(state: Any, ctx: Any) -> dict[str, Any]:
    return {"booked": ctx.ask("Which booking?", schema=SCHEMA, timeout=86_400)}


def ask_two(state: Any, ctx: Any) -> dict[str, Any]:
    return ctx.ask_all(  # type: ignore[no-any-return]
        {"colour": {"prompt": "Which colour?", "choices": ["red", "blue"]}, "size": {"prompt": "Which size?"}}
    )


def ask_twice(state: Any, ctx: Any) -> dict[str, Any]:
    return {"first": ctx.ask("What?", name="what"), "then": ctx.ask("And then?", name="then")}


def ask_hostile(state: Any, ctx: Any) -> dict[str, Any]:
    return {"said": ctx.ask(HOSTILE, choices=[HOSTILE, "other"]), HOSTILE: HOSTILE}


def make_big(state: Any, ctx: Any) -> dict[str, Any]:
    return {"text": "x" * BIG, "list": [{"number": number} for number in range(300_000)]}


def divide(state: Any, ctx: Any) -> dict[str, Any]:
    return {"found": 1 / state["by"]}


def program(name: str, function: Any) -> Any:
    graph = StateGraph(dict, name=name).add_node(name, function)
    return graph.add_edge(START, name).add_edge(name, END).compile(None)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Service:
    mine = tmp_path_factory.mktemp("mine")
    (mine / "each.yaml").write_text(EACH)
    (mine / "slow.yaml").write_text(SLOW)
    (mine / "forgetful.yaml").write_text(FORGETFUL)
    programs = [
        program(name, function)
        for name, function in (
            ("booking", book),
            ("hostile", ask_hostile),
            ("pair", ask_two),
            ("twice", ask_twice),
            ("big", make_big),
            ("crash", divide),
        )
    ]
    return Service(f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}", [folder, mine, *programs])


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with served(asgi(service=service)) as found:
        service.execute("greet", {"name": "you"}, run_id="greeted", tags=["blue"], wait=60)
        service.execute("broken", run_id="failing", wait=60)
        service.execute("crash", {"by": 0}, run_id="crashed", wait=60)
        service.execute("each", run_id="each", wait=60)
        service.execute("review", run_id="asked", wait=60)
        service.execute("pair", {}, run_id="pair", wait=60)
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(base_url=address)
    opened = context.new_page()
    errors = listen_to_console(opened)
    yield opened
    context.close()
    assert [error for error in errors if "status of 4" not in error] == []


def status_of(page: Page) -> Any:
    return page.locator("#part-head .status")


# What the pages show.


def test_a_run_is_shown_with_its_graph_its_steps_in_time_and_its_events(page: Page) -> None:
    page.goto("/runs/each")
    expect(status_of(page)).to_contain_text("completed")
    expect(page.locator("#graph a", has_text="work")).to_contain_text("2 of 3")
    expect(page.locator(".falls tr", has_text="work[1]")).to_contain_text("2 attempts")
    for place in ("#part-time tr", "#part-steps li"):
        expect(page.locator(place, has_text="never").locator(".status")).to_contain_text("skipped")
    expect(page.locator(".falls tr", has_text="work[1]").locator(".status")).to_contain_text("failed")
    assert page.locator(".falls tr", has_text="work[1]").locator("rect").count() == 3
    described = page.locator("#graph svg").get_attribute("aria-label")
    assert described is not None and "work (completed, 2 of 3) leads to last." in described
    expect(page.locator("#part-events")).to_contain_text("run completed")
    page.locator("#graph a", has_text="work").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("work")
    expect(page.get_by_text("the command ended with code 1")).not_to_have_count(0)
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".falls tbody tr")).to_have_count(6)


def test_what_retention_deleted_is_said_to_be_unknown(page: Page, service: Service) -> None:
    service.execute("forgetful", run_id="forgetful", wait=60)
    service.fork("forgetful", new_run_id="remembers")
    deleted = "Earlier history was deleted by retention"
    for path in ("", "/timeline", "/events", "/steps/work", "/steps/never"):
        page.goto(f"/runs/forgetful{path}")
        expect(page.locator("main")).to_contain_text(deleted)
    expect(page.locator("main .status").first).to_contain_text("skipped")
    expect(page.locator(".said")).to_contain_text("its condition does not hold")
    page.goto("/runs/forgetful/steps/work")
    expect(page.locator(".said")).to_have_text("2 of 3 items done, 1 failed.")
    expect(page.locator("main")).to_contain_text("the command ended with code 1")
    expect(page.locator(".facts-list")).to_contain_text("Startednot known")
    expect(page.locator("main")).not_to_contain_text(re.compile("not yet|0 ms|Nothing happened|No step"))
    assert violations(page) == []
    page.goto("/runs/forgetful/timeline")
    expect(page.locator("main")).to_contain_text(re.compile(r"of \d stored executions"))
    page.goto("/runs/remembers/steps/work")
    expect(page.locator("main")).not_to_contain_text(deleted)
    expect(page.locator("main")).to_contain_text("It ran before this run was forked from forgetful")


def test_a_failure_is_shown_with_the_frames_of_the_user_alone(page: Page) -> None:
    page.goto("/runs/crashed")
    expect(page.locator("#part-help")).to_contain_text("crash failed: ZeroDivisionError")
    page.get_by_role("link", name="Look at 'crash'").click()
    trace = page.get_by_role("region", name="Traceback").inner_text()
    assert "in divide" in trace and "engine" not in trace
    assert page.get_by_role("region", name="by").inner_text().strip() == "0"
    expect(page.get_by_role("heading", name="Events")).to_be_visible()


def test_the_state_is_shown_at_any_checkpoint_and_compared_between_any_two(page: Page) -> None:
    page.goto("/runs/greeted/state")
    slider = page.get_by_role("slider")
    expect(page.locator("#shown")).to_contain_text("hello you")
    slider.focus()
    slider.press("Home")
    expect(page.locator("#shown")).to_contain_text("Checkpoint 1 of")
    expect(page.locator("#shown")).not_to_contain_text("hello you")
    assert "at=1" in page.url
    page.get_by_role("link", name="Next").click()
    page.get_by_role("link", name="What changed here").click()
    expect(page.locator("#shown")).to_contain_text("From checkpoint 1")
    page.get_by_role("slider", name="To checkpoint").press("End")
    expect(page.locator(".lines .added", has_text="output: ")).not_to_have_count(0)


def test_checkpoints_are_named_by_the_steps_of_the_workflow(page: Page, service: Service) -> None:
    for number in range(1, len(service.points("each")) + 1):
        page.goto(f"/runs/each/state?at={number}")
        expect(page.locator("#shown .said")).not_to_contain_text(":")
    page.goto("/runs/each/state?at=3")
    expect(page.locator("#shown")).to_contain_text("work")


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.0, ["0", "1 ms"]),
        (0.0021, ["0", "1 ms", "2 ms", "3 ms"]),
        (0.9, ["0", "500 ms", "1 s"]),
        (47.0, ["0", "15 s", "30 s", "45 s", "1 min"]),
        (420.0, ["0", "2 min", "4 min", "6 min", "8 min"]),
        (90_000.0, ["0", "12 h", "1 d", "1.5 d"]),
        (2e9, ["0", "5840 d", "11680 d", "17520 d", "23360 d"]),
    ],
)
def test_the_times_on_a_scale_are_round_short_and_different(seconds: float, ticks: list[str]) -> None:
    part = {"kind": "attempt", "number": 1, "began": 5.0, "ended": 5.0 + seconds, "status": "completed"}
    span = {"began": 5.0, "ended": 5.0 + seconds, "parts": [part], "attempts": 1}
    found = bars({"spans": [span], "now": 5.0, "first": 0, "total": 1})
    assert found["ticks"] == ticks


def test_events_of_other_days_have_their_date() -> None:
    now = clock.time()
    assert not is_dated([{"at": now}])
    assert is_dated([{"at": now}, {"at": now - 86_400}])
    assert is_dated([{"at": now - 86_400}])


# Every button.


def test_a_run_is_resumed_once_its_plan_was_seen_or_its_step_is_skipped(page: Page) -> None:
    page.goto("/runs/failing")
    page.get_by_role("link", name="Resume", exact=True).click()
    plan = page.get_by_role("table")
    expect(plan.get_by_role("row").nth(1)).to_contain_text("kept")
    expect(plan.get_by_role("row").nth(2)).to_contain_text("runs again")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("The run goes on.")).to_be_visible()
    expect(page.get_by_role("link", name="Skip 'fails'")).to_be_visible()
    expect(status_of(page)).to_contain_text("failed")
    page.get_by_role("link", name="Skip 'fails'").click()
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("button", name="Skip the step").click()
    expect(page.get_by_text("The step is skipped.")).to_be_visible()
    expect(page.locator("#part-help")).to_contain_text("the command ended with code 1")
    expect(page.locator("#part-help")).to_contain_text("'fails' is skipped: resume the run")
    expect(page.locator("#part-help")).not_to_contain_text(re.compile("ExecutionError|runs again"))
    for place in ("#part-time tr", "#part-steps li"):
        expect(page.locator(place, has_text="fails").locator(".status")).to_contain_text("skipped")
    page.get_by_role("link", name="Resume", exact=True).click()
    page.get_by_role("button", name="Resume").click()
    expect(status_of(page)).to_contain_text("completed")


def test_a_step_runs_again_with_another_input_or_is_given_its_output(page: Page, service: Service) -> None:
    page.goto("/runs/greeted/steps/write")
    page.get_by_role("link", name="Run again from here").click()
    page.get_by_label("Changes").fill("{")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Changes must be JSON")).to_be_visible()
    expect(page.get_by_label("Changes")).to_have_value("{")
    page.get_by_label("Changes").fill('{"inputs.name": "ada", "inputs.times": 1}')
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("This is the new run.")).to_be_visible()
    expect(page.locator("#part-values")).to_contain_text("hello ada")
    page.goto("/runs/greeted/steps/write")
    page.get_by_role("link", name="Run again from here").click()
    page.get_by_label("Output").fill('"made up"')
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#part-values")).to_contain_text("made up")
    assert service.run("greeted")["output"] == "hello you"


def test_a_fork_begins_at_a_checkpoint_and_its_result_is_promoted(page: Page, service: Service) -> None:
    service.execute("greet", {"name": "you"}, run_id="original", wait=60)
    page.goto("/runs/original/state?at=1")
    page.get_by_role("link", name="Fork from here").click()
    expect(page.get_by_text("begins at checkpoint 1 of")).to_be_visible()
    page.get_by_label("Changes").fill('{"inputs.name": "fork"}')
    page.get_by_role("button", name="Fork").dblclick()
    expect(page.get_by_text("This is the new run.")).to_be_visible()
    expect(page.locator("#part-values")).to_contain_text("hello fork")
    assert len(service.forks("original")["members"]) == 2, "a double click makes one fork"
    page.get_by_role("link", name="Promote").click()
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("original")
    expect(page.locator("#part-values")).to_contain_text("hello fork")


def test_a_run_is_paused_resumed_and_cancelled_while_it_is_watched(page: Page, service: Service) -> None:
    service.execute("slow", run_id="slow")
    page.goto("/runs/slow")
    expect(page.locator("#part-head")).to_contain_text(re.compile(r"[2-9] of 100 steps done"))
    page.get_by_role("link", name="Pause").click()
    page.get_by_label("Reason").fill("lunch")
    page.get_by_role("button", name="Pause").click()
    expect(status_of(page)).to_contain_text("paused by hand")
    expect(page.locator(".said").first).to_contain_text("Paused by local: lunch;")
    expect(page.locator(".done")).to_have_count(0)
    page.get_by_role("link", name="Resume", exact=True).click()
    page.get_by_role("button", name="Resume").click()
    expect(status_of(page)).to_contain_text("running")
    assert violations(page) == []
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(status_of(page)).to_contain_text("cancelled")


def test_a_run_is_exported(page: Page, service: Service) -> None:
    page.goto("/runs/greeted")
    page.get_by_role("link", name="Export").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    path = downloading.value.path()
    assert downloading.value.suggested_filename == "greeted.capsule"
    taken = service.import_(Path(path).read_bytes(), run_id="from-elsewhere")
    assert taken["run_id"] == "from-elsewhere"
    page.goto("/runs/from-elsewhere")
    expect(page.locator("#part-head")).to_contain_text("not confirmed by anybody")
    assert violations(page) == []


# Questions.


def test_a_form_is_made_of_the_schema_and_keeps_what_was_written(page: Page, service: Service) -> None:
    service.execute("booking", {}, run_id="booking", wait=60)
    page.goto("/runs/booking")
    expect(page.locator("#part-questions")).to_contain_text(re.compile(r"until \d{4}-\d\d-\d\d .* UTC"))
    form = page.locator("#part-questions form")
    form.get_by_label("B", exact=True).check()
    form.get_by_label("nights").fill("12")
    form.get_by_label("yes").check()
    form.get_by_label("note").fill("near the <lift>")
    form.get_by_label("guests").fill('["ada"]')
    form.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("alert")).to_contain_text("9")
    expect(form.get_by_label("note")).to_have_value("near the <lift>")
    expect(form.get_by_label("B", exact=True)).to_be_checked()
    assert violations(page) == []
    form.get_by_label("nights").fill("3")
    form.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Your answer was given.")).to_be_visible()
    expect(status_of(page)).to_contain_text("completed")
    expected = {"room": "B", "nights": 3, "breakfast": True, "note": "near the <lift>", "guests": ["ada"]}
    assert service.run("booking")["output"]["booked"] == expected


def test_what_is_being_written_survives_news_and_the_second_of_two_tabs_is_told(
    page: Page, service: Service
) -> None:
    service.execute("review", run_id="raced", wait=60)
    page.goto("/runs/raced")
    other = page.context.new_page()
    other.goto("/runs/raced")
    page.get_by_label("yes").check()
    other.get_by_label("no", exact=True).check()
    service.annotate("raced", note="News for everybody.")
    expect(page.locator(".said-by")).to_contain_text("News for everybody.")
    expect(page.get_by_label("yes")).to_be_checked()
    sent = other.evaluate(
        "() => new URLSearchParams(new FormData(document.querySelector('#part-questions form'))) + ''"
    )
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Your answer was given.")).to_be_visible()
    found = other.request.post(
        "/runs/raced/answer", data=sent, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert found.status == 409
    assert "was answered by local meanwhile, with &#34;yes&#34;. Your answer was not taken." in found.text()
    expect(status_of(page)).to_contain_text("completed")


def test_what_was_written_stays_when_somebody_else_answers_meanwhile(page: Page, service: Service) -> None:
    service.execute("pair", {}, run_id="taken", wait=60)
    page.goto("/runs/taken")
    page.locator(".question", has_text="Which size?").get_by_label("Your answer").fill("rather large")
    service.answer("taken", "small", question="size", who="ada")
    told = page.get_by_role("alert")
    expect(told).to_contain_text(
        "'size' was answered by ada meanwhile, with \"small\". Your answer was not taken."
    )
    expect(told.get_by_label("What you had written")).to_have_value("rather large")
    assert violations(page) == []


def test_the_word_on_an_answer_goes_with_the_next_question(page: Page, service: Service) -> None:
    service.execute("twice", {}, run_id="twice", wait=60)
    page.goto("/runs/twice")
    page.get_by_label("Your answer").fill("one")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".prompt")).to_have_text("And then?")
    expect(page.locator(".done")).to_have_text("The run has your answer, and asks more.")


def test_several_questions_are_answered_one_by_one(page: Page, service: Service) -> None:
    service.execute("pair", {}, run_id="two", wait=60)
    page.goto("/runs/two")
    size = page.locator(".question", has_text="Which size?")
    expect(size.get_by_role("heading")).to_contain_text("Question 2 of 2")
    size.get_by_label("Your answer").fill("large")
    size.get_by_role("button", name="Answer").click()
    expect(page.locator(".done")).to_have_text("The run has your answer, and asks more.")
    expect(page.locator(".question")).to_have_count(1)
    page.get_by_label("blue").check()
    page.get_by_role("button", name="Answer").click()
    expect(status_of(page)).to_contain_text("completed")
    assert service.run("two")["output"] == {"colour": "blue", "size": "large"}


def test_the_keyboard_alone_answers(page: Page, service: Service) -> None:
    service.execute("review", run_id="keyed", wait=60)
    page.goto("/runs/keyed")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "radio":
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your answer was given.")).to_be_visible()
    expect(page.locator("#part-values")).to_contain_text("published no")


def test_pages_work_without_javascript(browser: Browser, address: str, service: Service) -> None:
    service.execute("review", run_id="scriptless", wait=60)
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/runs/scriptless")
    page.get_by_role("button", name="Answer").click()
    page.get_by_label("yes").check()
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("Your answer was given.")).to_be_visible()
    service.wait("scriptless", 60)
    page.goto("/runs/scriptless/state?at=2")
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_text("Checkpoint 1 of")).to_be_visible()
    page.get_by_role("slider").fill("3")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Checkpoint 3 of")).to_be_visible()
    page.goto("/runs/scriptless/do/fork")
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_text("This is the new run.")).to_be_visible()
    context.close()


# Who may, and how often.


def form_of(text: str) -> dict[str, str]:
    """The hidden fields of the last form of a page."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))


def test_a_form_that_is_sent_twice_acts_once_and_one_of_another_site_never(
    address: str, service: Service
) -> None:
    url = f"{address}/runs/greeted/do/fork"
    form = form_of(httpx2.get(url).text)
    before = len(service.forks("greeted")["members"])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: httpx2.post(url, data=form), range(4)))
    assert {answer.status_code for answer in answers} == {303}
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert len(service.forks("greeted")["members"]) == before + 1
    assert httpx2.post(url, data={**form, "csrf": "0" * 64}).status_code == 403
    assert httpx2.post(url, data={"csrf": form["csrf"]}).status_code == 400
    for missing in ("/runs/nowhere", "/runs/greeted/steps/nowhere", "/runs/greeted/value?of=nothing"):
        assert 400 <= httpx2.get(f"{address}{missing}", headers={"accept": "text/html"}).status_code < 500


def test_buttons_are_those_that_the_caller_may_press(client: TestClient) -> None:
    run = client.post("/api/v1/workflows/review/runs", json={"wait": 60}).json()["run_id"]
    bare = TestClient(client.app)
    texts = {role: bare.get(f"/runs/{run}", headers=bearer(role)).text for role in (READ, ANSWER)}
    assert "not answer its questions" in texts[READ] and ">Answer</button>" not in texts[READ]
    assert ">Answer</button>" in texts[ANSWER] and "/do/cancel" not in texts[ANSWER]
    assert "/do/cancel" in client.get(f"/runs/{run}").text
    assert bare.get(f"/runs/{run}/do/cancel", headers=bearer(ANSWER)).status_code == 403
    assert bare.get(f"/runs/{run}/capsule", headers=bearer(ANSWER)).status_code == 403


def test_a_server_without_the_workflow_offers_nothing_that_can_only_fail(
    service: Service, tmp_path: Path, folder: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    for name in ("broken", "greet"):
        with suppress(ExecutionError):
            load_workflow(folder / f"{name}.yaml").open(store).invoke(
                {"inputs": {"name": "you"}}, run_id=name
            )
    with TestClient(asgi(service=Service(store)), base_url="http://127.0.0.1:8420") as bare:
        headers = {"accept": "text/html"}
        page = bare.get("/runs/broken", headers=headers).text
        assert "This server does not have the workflow" in page
        step = bare.get("/runs/broken/steps/fails", headers=headers).text
        for action in ("resume", "rerun", "fork", "skip"):
            assert f"/do/{action}" not in page, action
        assert "/do/rerun" not in step and "/do/fork" not in bare.get("/runs/greet", headers=headers).text
        missing = bare.get("/workflows/nowhere", headers=headers)
        assert missing.status_code == 404 and "/api/v1" not in missing.text
        assert "The page Workflows lists what this server has." in missing.text


# Hostile and large runs.


def test_what_workflows_wrote_is_text(page: Page, service: Service) -> None:
    service.execute("hostile", {HOSTILE: HOSTILE}, run_id=NAME, tags=[HOSTILE], wait=60)
    page.goto("/runs")
    page.get_by_role("link", name="<img src=x").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    prompt = page.locator(".prompt").inner_text()
    assert "<script>" in prompt and "\\u202e" in prompt and "\\x1b[31m" in prompt
    for tab in ("Timeline", "State", "Changes", "Events", "Run"):
        page.get_by_role("navigation", name="This run").get_by_role("link", name=tab).click()
        expect(page.get_by_role("navigation", name="This run")).to_be_visible()
    page.get_by_label("<script>").check()
    page.get_by_role("button", name="Answer").click()
    expect(status_of(page)).to_contain_text("completed")
    assert service.run(NAME)["output"]["said"] == HOSTILE
    for text in (page.content(), page.request.get(f"{page.url.partition('?')[0]}/state").text()):
        assert "<script>alert" not in text and "\u202e" not in text and "\x1b" not in text


def test_a_state_of_ten_megabytes_is_sent_in_parts(page: Page, service: Service, address: str) -> None:
    service.execute("big", {}, run_id="big", wait=300)
    for path in ("", "/state", "/changes", "/events", "/steps/big", "/do/fork"):
        answer = page.request.get(f"/runs/big{path}", timeout=WAIT)
        assert answer.ok and len(answer.body()) < 100_000, path
    page.goto("/runs/big")
    expect(status_of(page)).to_contain_text("completed")
    page.get_by_role("link", name="State").click()
    page.get_by_role("link", name="Show all of text").click()
    expect(page.get_by_text(f"{BIG:,} characters")).to_be_visible()
    page.get_by_role("link", name="After").click()
    expect(page.get_by_text("100,001 to 200,000")).to_be_visible()


def test_events_and_executions_come_page_by_page(page: Page, service: Service) -> None:
    page.goto("/runs/each/events?before=3.0")
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    found: list[str] = []
    before = None
    while True:
        part = service.tail("each", before, 7)
        found = [event["id"] for event in part["events"]] + found
        if (before := part["before"]) is None:
            break
    assert found == [event["id"] for event in service.events("each")]
    rows = [span["step"] for first in range(0, 6, 2) for span in service.waterfall("each", first, 2)["spans"]]
    assert rows == [span["step"] for span in service.waterfall("each")["spans"]]


def test_the_stream_of_a_page_says_that_something_happened_and_not_what(
    address: str, service: Service
) -> None:
    with httpx2.stream("GET", f"{address}/runs/asked/live", timeout=WAIT / 1000) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": follow"
        service.annotate("asked", note="a secret of ours")
        seen: list[str] = []
        while "event: change" not in seen:
            seen.append(next(lines))
        assert next(lines) == "data: {}" and any(line.startswith("id: ") for line in seen)
        last = next(line for line in seen if line.startswith("id: ")).removeprefix("id: ")
    again = {"last-event-id": str(int(last.partition(".")[0]) - 1)}
    with httpx2.stream("GET", f"{address}/runs/asked/live", headers=again, timeout=WAIT / 1000) as answer:
        assert f"id: {last}" in itertools.takewhile(lambda line: line != "event: end", answer.iter_lines())
    assert httpx2.get(f"{address}/runs/greeted/live").status_code == 204


PATHS = (
    *(
        "asked",
        "pair",
        "failing",
        "greeted",
        "each",
        "greeted/timeline",
        "each/events",
        "crashed/steps/crash",
    ),
    *("greeted/state", "greeted/changes", "greeted/value?of=output", "failing/do/resume", "asked/do/cancel"),
    "greeted/do/rerun?step=write",
)


@pytest.mark.parametrize(("scheme", "width", "step"), [("light", 1280, 1), ("dark", 360, 4)])
def test_pages_are_accessible_and_fit(
    browser: Browser, address: str, scheme: Any, width: int, step: int
) -> None:
    page = browser.new_page(base_url=address, color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in PATHS[::step]:
        page.goto(f"/runs/{path}")
        assert violations(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.context.close()
