"""What `crash_everywhere` says: whose fault something is, where, once each; and what it cannot know."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import END, START, Context, Send, StateGraph, append
from holdfast.testing import CrashReport, FakeModel, crash_everywhere, record_effect
from tests.testing.shops import ask, careful_shop, chain, pay_carelessly


def said(graph: Any, inputs: Any = None, **options: Any) -> str:
    """The report of a fast crash test, in one line."""
    report = crash_everywhere(graph, inputs or {}, **{"mode": "fast", "check": False, **options})
    return " ".join(str(report).split())


def busy(state: Any) -> dict[str, Any]:
    while True:
        time.sleep(0.01)


async def waiting(state: Any) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def is_again(ctx: Context) -> bool:
    """Whether this step has begun before, in whatever process."""
    return not record_effect("begun", ctx.idempotency_key)


def hang_again(state: Any, ctx: Context) -> dict[str, Any]:
    return busy(state) if is_again(ctx) else {}


def rest(state: Any) -> dict[str, Any]:
    return {}


def stubborn(state: Any) -> dict[str, Any]:
    """Catches everything, once."""
    try:
        busy(state)
    except BaseException:
        time.sleep(0.01)
    return {}


def sleeping(state: Any, ctx: Context) -> dict[str, Any]:
    while True:
        ctx.sleep(1)


def too_late(number: int, frame: Any) -> None:
    raise TimeoutError("it hangs")


@pytest.mark.parametrize("body", [busy, waiting, stubborn, sleeping])
def test_a_run_that_does_not_end_is_ended_in_fast_mode_too(
    body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = signal.signal(signal.SIGALRM, too_late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 90)
    try:
        text = said(chain("shop", ("wait", body)), timeout=0.3)
        still = signal.setitimer(signal.ITIMER_REAL, 0)[0]
        with pytest.raises(TimeoutError):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, earlier)
        signal.setitimer(signal.ITIMER_REAL, left, interval)

    assert 0 < still < 90  # The alarm that somebody else had set is as it was.
    assert "happened: the run did not end within 0.3 seconds" in text
    assert "It fails without any crash: fix that first. Does a body wait or loop for ever?" in text
    # An event loop was asked to end, not broken off between any two of its instructions.
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_what_heeds_nothing_is_broken_off_at_last() -> None:
    def never(state: Any) -> str:
        while True:
            time.sleep(0.01)

    graph = StateGraph(dict, name="shop")
    graph.add_node("rest", rest)
    graph.add_edge(START, "rest")
    graph.add_conditional_edges("rest", never, ["rest", END])

    assert "the run did not end within 0.1 seconds" in said(graph, timeout=0.1)


def test_nothing_is_raised_in_a_tracer_that_holds_a_lock() -> None:
    lock = threading.Lock()
    slow = types.ModuleType("coverage.collector")
    exec("def hold(lock, sleep):\n lock.acquire()\n sleep(0.02)\n lock.release()\n", vars(slow))

    def traced(state: Any) -> dict[str, Any]:
        for times in itertools.count():
            slow.hold(lock, time.sleep)
            time.sleep(0.001 * (times % 7))

    assert "the run did not end within 0.1 seconds" in said(chain("shop", ("wait", traced)), timeout=0.1)
    assert lock.acquire(blocking=False)


def test_a_resume_that_does_not_end_is_ended_and_after_some_nothing_more_is_tried() -> None:
    text = said(chain("shop", ("rest", rest), ("hang", hang_again)), timeout=2.0)

    assert "did not end within 2 seconds" in text and "the new process does not have" in text
    assert "3 runs did not end in time: nothing more was tried" in text


@pytest.mark.parametrize("body", [busy, waiting])
def test_where_no_alarm_can_ring_a_run_is_ended_too(body: Any) -> None:
    texts: list[str] = []
    before = set(threading.enumerate())
    thread = threading.Thread(target=lambda: texts.append(said(chain("shop", ("wait", body)), timeout=0.2)))
    thread.start()
    thread.join()

    assert "the run did not end within 0.2 seconds" in texts[0]
    assert not [each for each in set(threading.enumerate()) - before if each.name == "holdfast-life"]


def test_the_node_that_is_to_be_changed_is_named_inside_its_sub_graph() -> None:
    graph = chain("outer", ("before", lambda state: {}), ("sub", chain("inner", ("pay", pay_carelessly))))

    text = said(graph, {"amount": 3})

    assert "of node 'pay' in the sub-graph 'sub': `add_node('pay', …, if_interrupted=look)`" in text
    assert crash_everywhere(graph, {"amount": 3}, mode="fast", repeatable=["pay"]).passed
    assert crash_everywhere(graph, {"amount": 3}, mode="fast", repeatable=["sub"]).passed


def test_nobody_says_that_nothing_happened_twice_who_was_told_of_nothing() -> None:
    without = said(chain("shop", ("rest", lambda state: {})), points="ran")
    with_effects = said(careful_shop(), {"amount": 3}, points="ran")

    assert "no effects were recorded (`record_effect`), so repeated ones would not be seen" in without
    assert "nothing happened twice" in with_effects and "no effects" not in with_effects
    assert without.count("1 boundary; 1 kill, 1 resume, 0 questions answered") == 1


def test_an_answer_that_nobody_asks_for_is_noted() -> None:
    text = said(chain("shop", ("ask", ask)), answers={"ship": "yes", "shpi": "no"}, points="before")

    assert "nobody ever asked 'shpi', which `answers` has" in text and "asked 'ship'" not in text


ESSAY = """
workflow: {name: essay}
steps:
  - {name: draft, retry: {attempts: 3, delay: 30s}, agent: {model: 'fake:x', prompt: write}}
  - {name: short, retry: {attempts: 3, delay: 30s}, agent: {model: 'fake:x', prompt: shorten}}
"""


@pytest.mark.parametrize("mode", ["fast", "process"])
def test_calls_of_a_model_are_counted_in_each_run_over_all_its_processes(tmp_path: Path, mode: str) -> None:
    (tmp_path / "essay.yaml").write_text(ESSAY)
    with FakeModel(["a draft", "a draft", "a draft"], rate_limit_at=[1]):
        report = crash_everywhere(tmp_path / "essay.yaml", {}, mode=mode, points=["before"])

    # Three replies serve two steps of which one runs twice; one call of every run is refused. A kill comes before each
    # of the ten saves, of which three are the intents of calls.
    assert report.kills == report.tried == 10

    if mode == "fast":
        with FakeModel(["a draft", "a draft"]):
            text = said(tmp_path / "essay.yaml", {}, points=["before"])
        assert "was given 2 replies and is asked once more" in text


def coin(throws: str) -> StateGraph:
    turn = iter(throws + "z" * 50)
    return chain("shop", ("throw", lambda state: {"verdict": next(turn)}))


@pytest.mark.parametrize("options", [{}, {"same": lambda one, other: one == other}])
def test_a_result_that_undisturbed_runs_do_not_agree_on_is_no_matter_of_crashes(
    options: dict[str, Any],
) -> None:
    first = "" if options else "a"  # Without `same` the second run is undisturbed too.
    late = crash_everywhere(coin(first + "aab"), {}, mode="fast", points=["committed"], **options)
    at_once = crash_everywhere(coin(first + "ab" + "a" * 50), {}, mode="fast", points=["before"], **options)

    what = "the result" if options else "['verdict']"
    assert f"not compared: {what}, which differs between undisturbed runs" in str(late)
    assert f"not compared: {what}, which differs between undisturbed runs" in str(at_once)


def lost(report: CrashReport) -> list[str]:
    return [finding.kind for each in report.breaks for finding in each.findings]


def test_a_result_that_only_crashes_change_stays_one() -> None:
    def body(state: Any, ctx: Context) -> dict[str, Any]:
        return {"verdict": "again" if is_again(ctx) else "good"}

    report = crash_everywhere(chain("shop", ("body", body)), {}, mode="fast", points=["ran"], check=False)

    assert lost(report) == ["result"] and "not compared" not in str(report)
    assert "expected: ['verdict'] = 'good'" in str(report) and "happened: ['verdict'] = 'again'" in str(
        report
    )


def fail(state: Any) -> dict[str, Any]:
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise ValueError("on purpose") from error


@pytest.mark.parametrize("mode", ["fast", "process"])
def test_a_failure_is_shown_with_the_frames_of_its_author_and_no_others(mode: str) -> None:
    text = said(chain("shop", ("fail", fail)), mode=mode)

    assert "ValueError: on purpose" in text and "KeyError: 'the reason'" in text
    assert f'File "{__file__}"' in text and 'raise KeyError("the reason")' in text
    assert "asyncio" not in text and "holdfast/engine" not in text
    assert (
        "It fails without any crash: fix that first. what" not in text and "does a body rely on" not in text
    )


def test_an_invariant_that_never_holds_is_to_be_checked_itself() -> None:
    text = said(chain("shop", ("rest", lambda state: {})), invariant=lambda run: run["nothing"], points="ran")

    assert "KeyError: 'nothing'" in text and f'File "{__file__}"' in text and "judging.py" not in text
    assert "nobody disturbed the run: check the invariant" in text


class Rows(TypedDict, total=False):
    items: list[int]
    item: int
    done: Annotated[list[int], append]


def test_the_items_of_a_for_each_are_told_as_one() -> None:
    def write(state: Any) -> dict[str, Any]:
        record_effect("row", item=state["item"])
        return {"done": [state["item"]]}

    graph = StateGraph(Rows, name="rows")
    graph.add_node("write", write, max_parallel=1).add_edge("write", END)
    graph.add_conditional_edges(
        START,
        lambda state: [Send("write", {"item": item}, key=str(item)) for item in state["items"]],
        ["write"],
    )

    text = said(graph, {"items": [1, 2, 3, 4]}, points=["effect"])

    assert "3 further boundaries break it, in the same way - the same of 3 more items of 'write'" in text
    assert text.count("Nobody can tell from the journal") == text.count("did 'row' twice") == 1


def test_what_is_advised_of_several_steps_is_said_once() -> None:
    text = said(
        chain("shop", ("one", pay_carelessly), ("two", pay_carelessly)), {"amount": 3}, points="effect"
    )

    assert "of node 'one'" in text and "of node 'two'" in text
    assert text.count("If doing it twice is harmless") == 1


def test_only_the_undisturbed_run_is_heard_in_fast_mode(capfd: pytest.CaptureFixture[str]) -> None:
    count = itertools.count(1)

    def speak(state: Any) -> dict[str, Any]:
        print(f"said {next(count)}")
        print("complained", file=sys.stderr)
        return {}

    said(chain("shop", ("speak", speak)))

    heard = capfd.readouterr()
    assert heard.out == "said 1\n" and heard.err == "complained\n" and next(count) > 7


def test_what_a_program_of_a_step_does_is_seen_in_fast_mode_too(tmp_path: Path) -> None:
    flow = tmp_path / "mail.yaml"
    flow.write_text(
        f"workflow: {{name: mail}}\nsteps:\n  - {{name: mail, shell: '{sys.executable} mail.py'}}\n"
    )
    (tmp_path / "mail.py").write_text(
        "from holdfast.testing import record_effect\nrecord_effect('mail', to='bob')"
    )

    assert "step 'mail#1' did 'mail' twice: it ran, the process died" in said(flow, points="ran")
