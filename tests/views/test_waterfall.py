"""What took the time of a run: attempts, waits between them, pauses, and executions that go on."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import END, START, ExecutionError, Retry, StateGraph, clock
from holdfast.journal.journal import Journal
from holdfast.stores import open_store
from holdfast.views.waterfall import Span, Waterfall

TRIES: dict[str, int] = {}


def flaky(state: Any, ctx: Any) -> dict[str, Any]:
    """Fail once, ask, then fail for good unless told otherwise."""
    TRIES[ctx.run_id] = TRIES.get(ctx.run_id, 0) + 1
    if TRIES[ctx.run_id] == 1:
        raise OSError("no line")
    if ctx.ask("Go on?", choices=["yes", "no"]) == "no":
        raise ValueError("not wanted")
    return {"done": True}


def parts(span: Span) -> list[tuple[str, str, int]]:
    return [(part.kind, part.status, part.number) for part in span.parts]


@pytest.mark.parametrize(("answer", "end"), [("yes", "completed"), ("no", "failed")])
def test_attempts_waits_and_pauses_follow_each_other_without_gaps_of_their_own(answer: str, end: str) -> None:
    store = open_store("memory:")
    graph = StateGraph(dict, name="w").add_node(
        "flaky", flaky, retry=Retry(attempts=2, delay=0.01, on=OSError)
    )
    app = graph.add_edge(START, "flaky").add_edge("flaky", END).compile(store)
    run = app.invoke({}, run_id=answer).run_id
    found = Waterfall(Journal(store), run, of_file=False)
    found.read()
    [span] = found.spans
    waiting = [("attempt", "failed", 1), ("retry", "completed", 1), ("attempt", "completed", 2)]
    assert parts(span) == [*waiting, ("pause", "running", 2)]
    assert span.status == "waiting" and span.ended is None
    try:
        app.resume(run, answers={"Go on?": answer})
    except ExecutionError:
        assert end == "failed"
    found.read()
    assert parts(span) == [*waiting, ("pause", "completed", 2), ("attempt", end, 2)]
    assert span.status == end and span.attempts == 2
    assert span.ended is not None and span.began <= span.ended <= clock.time()
    again = Waterfall(Journal(store), run, of_file=False)
    again.read()
    assert [each.as_json() for each in again.spans] == [each.as_json() for each in found.spans]
