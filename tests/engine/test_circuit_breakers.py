"""Circuit breakers: nodes that keep failing are left alone for a while."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    App,
    CheckpointPolicy,
    CircuitOpen,
    ExecutionError,
    GraphInvalid,
    HoldfastError,
    Retry,
    RunStatus,
    Send,
    StateGraph,
    clock,
)
from holdfast.workflows import CircuitBreaker
from tests.graphs import Heard, Log, chain, one
from tests.workflows.workshop import Workshop

LONG = 3600.0


class Service:
    """Something that is down until it is repaired."""

    def __init__(self) -> None:
        self.is_up, self.calls = False, 0

    def __call__(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        if not self.is_up:
            raise ConnectionError("down")
        return {"log": ["up"]}


class Later:
    """A clock that can be moved on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, real = 0.0, clock.monotonic
        monkeypatch.setattr(clock, "monotonic", lambda: real() + self.passed)


@pytest.fixture
def service() -> Service:
    return Service()


def failure(app: App, **options: Any) -> BaseException | None:
    with pytest.raises(ExecutionError) as caught:
        app.invoke({}, **options)
    return caught.value.cause


def test_after_five_failures_in_a_row_a_node_is_not_tried(service):
    """R4.7: five failures, thirty seconds by default; a clear error and an event."""
    heard = Heard()
    app = one(service, circuit_breaker=CircuitBreaker()).compile(observer=heard)

    causes = [failure(app) for _ in range(7)]

    assert [type(cause) for cause in causes] == [ConnectionError] * 5 + [CircuitOpen] * 2
    assert service.calls == 5
    refused = causes[-1]
    assert isinstance(refused, CircuitOpen) and refused.node == "work" and 0 < refused.retry_after <= 30
    assert "node 'work' is not tried: it failed 5 times in a row" in str(refused)
    (opened,) = heard.of("circuit.open")
    assert (opened.node, opened.data["failures"], opened.data["seconds"]) == ("work", 5, 30.0)


def test_a_success_in_between_starts_the_count_again(service):
    """R4.7: failures in a row are counted."""
    app = one(service, circuit_breaker=CircuitBreaker(failures=2, reset=LONG)).compile()
    for _ in range(3):
        assert isinstance(failure(app), ConnectionError)
        service.is_up = True
        app.invoke({})
        service.is_up = False


def test_after_the_wait_one_attempt_decides(service, monkeypatch):
    """R4.7: it opens again after a failure, and closes after a success."""
    heard, later = Heard(), Later(monkeypatch)
    app = one(service, circuit_breaker=CircuitBreaker(failures=2, reset=LONG)).compile(observer=heard)
    for _ in range(2):
        failure(app)
    assert isinstance(failure(app), CircuitOpen)

    later.passed = LONG + 1
    assert isinstance(failure(app), ConnectionError)
    assert isinstance(failure(app), CircuitOpen)
    assert len(heard.of("circuit.open")) == 2

    later.passed = 2 * LONG + 2
    service.is_up = True
    app.invoke({}, run_id="good")
    app.invoke({})
    (closed,) = heard.of("circuit.close")
    assert closed.run_id == "good"


def test_a_resume_finds_the_count_and_a_refused_step_is_tried_again_later(service, monkeypatch):
    """R4.7: the run fails without an attempt, and a resume after the wait completes it."""
    later = Later(monkeypatch)
    graph = StateGraph(Log, name="guarded")
    graph.add_node("first", lambda state: {"log": ["first"]})
    graph.add_node("work", service, circuit_breaker=CircuitBreaker(failures=1, reset=LONG))
    graph.set_entry_point("first")
    graph.add_edge("first", "work")
    app = graph.compile()
    failure(app, run_id="r")

    with pytest.raises(ExecutionError) as refused:
        app.resume("r")
    assert isinstance(refused.value.cause, CircuitOpen) and service.calls == 1

    later.passed, service.is_up = LONG + 1, True
    outcome = app.resume("r")
    assert outcome.state["log"] == ["first", "up"] and service.calls == 2


def test_a_new_app_begins_with_its_own_count(service):
    """R4.7: as another process does."""
    guarded = {"circuit_breaker": CircuitBreaker(failures=1, reset=LONG)}
    failure(one(service, **guarded).compile())
    assert isinstance(failure(one(service, **guarded).compile()), ConnectionError)


def test_a_retry_waits_for_the_node_and_refusals_are_no_attempts():
    """R4.7: with the retry policy; the wait is in the journal."""
    heard, calls = Heard(), []

    def work(state: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("down")
        return {"log": ["up"]}

    breaker = CircuitBreaker(failures=1, reset=0.05)
    app = one(work, retry=Retry(3, delay=0, max_delay=0), circuit_breaker=breaker).compile(observer=heard)

    assert app.invoke({}).state["log"] == ["up"]
    assert len(calls) == 3
    refused = [event for event in heard.of("node.error") if "CircuitOpen" in event.data["error"]]
    assert 1 <= len(refused) <= 10
    assert [type_ for type_ in heard.types if type_.startswith("circuit")] == [
        *["circuit.open"] * 2,
        "circuit.close",
    ]


def test_the_items_of_a_for_each_share_the_count_of_their_node(service):
    """R4.7: with on_failure="continue" the rest is refused at once."""
    graph = StateGraph(Log)
    graph.add_node("start", lambda state: None)
    graph.add_node("item", service, max_parallel=1, circuit_breaker=CircuitBreaker(failures=3, reset=LONG))
    graph.set_entry_point("start")
    graph.add_conditional_edges("start", lambda state: [Send("item", {"n": n}) for n in range(10)], ["item"])
    outcome = graph.compile(policy=CheckpointPolicy(on_failure="continue")).invoke({})

    assert outcome.status == RunStatus.COMPLETED and service.calls == 3
    assert sum("CircuitOpen" in warning for warning in outcome.warnings) == 7


def test_a_guarded_node_in_a_sub_graph_is_counted_by_its_place(service):
    """R4.7: as `outer/inner`."""
    inner = StateGraph(Log)
    inner.add_node("work", service, circuit_breaker=CircuitBreaker(failures=2, reset=LONG))
    inner.set_entry_point("work")
    outer = StateGraph(Log)
    for name in ("a", "b"):
        outer.add_node(name, lambda state, name=name: {"log": [name]})
    outer.add_node("nested", inner)
    outer.add_node("last", service, circuit_breaker=CircuitBreaker(failures=2, reset=LONG))
    outer.set_entry_point("a")
    outer.add_edge("a", "b")
    outer.add_edge("b", "nested")
    outer.add_edge("nested", "last")
    app = outer.compile()

    assert [type(failure(app)) for _ in range(3)] == [ConnectionError, ConnectionError, CircuitOpen]
    refused = failure(app)
    assert isinstance(refused, CircuitOpen) and refused.node == "nested/work"


def test_a_guarded_node_inside_a_plain_chain_is_refused(service):
    """R4.7: the fast path of plain chains leaves such nodes to the loop."""
    graph = StateGraph(dict, name="plain")
    graph.add_node("a", lambda state: {"a": 1})
    graph.add_node("work", service, circuit_breaker=CircuitBreaker(failures=2, reset=LONG))
    graph.add_node("z", lambda state: {"z": 1})
    graph.set_entry_point("a")
    graph.add_edge("a", "work")
    graph.add_edge("work", "z")
    app = graph.compile()

    assert [type(failure(app)) for _ in range(3)] == [ConnectionError, ConnectionError, CircuitOpen]
    assert service.calls == 2


async def test_async_nodes_are_counted(service):
    """R4.7: whatever kind of function."""

    async def work(state: Any) -> dict[str, Any]:
        return service(state)

    app = one(work, circuit_breaker=CircuitBreaker(failures=1, reset=LONG)).compile()
    for expected in (ConnectionError, CircuitOpen):
        with pytest.raises(ExecutionError) as caught:
            await app.ainvoke({})
        assert isinstance(caught.value.cause, expected)


@pytest.mark.parametrize("options", [{"failures": 0}, {"failures": 1.5}, {"reset": 0}, {"reset": "30"}])
def test_bad_values_are_refused(options):
    with pytest.raises(HoldfastError, match="CircuitBreaker: "):
        CircuitBreaker(**options)


def test_it_is_an_option_of_functions_and_must_be_one():
    with pytest.raises(GraphInvalid, match="it must be a CircuitBreaker"):
        one(lambda state: None, circuit_breaker=5).compile()
    with pytest.raises(GraphInvalid, match="is a sub-graph and takes no circuit_breaker"):
        one(chain("a"), circuit_breaker=CircuitBreaker()).compile()


FILE = """
steps:
  - name: a
    shell: exit 3
    circuit_breaker: {failures: 2, reset: 1h}
"""


def test_a_step_of_a_workflow_file_has_one(tmp_path):
    """R4.7: in a file, too."""
    app = Workshop(tmp_path).open(FILE)
    texts = []
    for number in range(3):
        with pytest.raises(ExecutionError) as caught:
            app.invoke({}, run_id=f"r{number}")
        texts.append(str(caught.value))
    assert "is not tried" not in texts[1] and "node 'a' is not tried: it failed 2 times in a row" in texts[2]
