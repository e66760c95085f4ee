"""Runs as traces, with OpenTelemetry's own SDK."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import END, START, App, ExecutionError, Retry, Send, StateGraph
from holdfast.tracing import TraceObserver
from tests.graphs import Log, chain


class Traced:
    """A place where spans end up."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = TraceObserver(self.provider)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def paused(store: str, observer: TraceObserver) -> App:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("well?")]}

    return chain("a", "b", "c", nodes={"b": ask}, name="w").compile(store, observer=observer)


def test_a_run_that_is_resumed_elsewhere_goes_on_in_its_trace(tmp_path: Any) -> None:
    """S1.17: trace continuity; no span is exported twice."""
    url, one, other = f"sqlite:///{tmp_path / 'runs.db'}", Traced(), Traced()
    paused(url, one.observer).invoke(run_id="r")
    paused(url, other.observer).resume("r", "yes")

    assert [span.name for span in one.spans()] == ["a", "b", "run"]
    assert [span.name for span in other.spans()] == ["b", "c", "resume"]
    assert len({context(span).trace_id for span in [*one.spans(), *other.spans()]}) == 1
    begin, goes_on = one.named("run")[0], other.named("resume")[0]
    assert begin.parent is not None and goes_on.parent is not None
    assert begin.parent.span_id == goes_on.parent.span_id
    assert all(span.parent and span.parent.span_id == context(begin).span_id for span in one.spans()[:2])
    assert goes_on.attributes and goes_on.attributes["holdfast.status"] == "complete"


def test_every_attempt_is_a_span_and_failures_are_told(traced: Traced) -> None:
    """R4.8: runs as traces."""
    tries = []

    def flaky(state: Any) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("down")
        raise ValueError("for good")

    graph = StateGraph(Log, name="w")
    graph.add_node("work", flaky, retry=Retry(attempts=5, delay=0.0, on=ConnectionError))
    graph.add_edge(START, "work").add_edge("work", END)
    with pytest.raises(ExecutionError):
        graph.compile("memory://", observer=traced.observer).invoke()

    attempts = traced.named("work")
    assert [span.attributes["holdfast.attempt"] for span in attempts if span.attributes] == [1, 2, 3]
    assert [span.status.description for span in attempts] == ["ConnectionError: down"] * 2 + [
        "ValueError: for good"
    ]
    assert not traced.named("run")[0].status.is_ok


def test_steps_side_by_side_have_spans_of_their_own_and_what_is_inside_belongs_to_them(
    traced: Traced,
) -> None:
    tracer = traced.provider.get_tracer("mine")

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        with traced.observer.inside(ctx.run_id, ctx.step), tracer.start_as_current_span("inner"):
            return {"log": ["x"]}

    graph = StateGraph(Log, name="w")
    graph.add_node("work", work)
    graph.add_conditional_edges(
        START, lambda state: [Send("work", {"n": n}, key=str(n)) for n in range(3)], ["work"]
    )
    graph.add_edge("work", END)
    graph.compile("memory://", observer=traced.observer).invoke()

    outer = {context(span).span_id for span in traced.named("work")}
    assert len(outer) == 3
    assert {span.parent.span_id for span in traced.named("inner") if span.parent} == outer


def test_a_drive_is_linked_to_where_it_was_started(traced: Traced) -> None:
    tracer = traced.provider.get_tracer("mine")
    app = chain("a", name="w").compile("memory://", observer=traced.observer)
    with tracer.start_as_current_span("request") as request:
        app.invoke()

    (link,) = traced.named("run")[0].links
    assert link.context.span_id == request.get_span_context().span_id
    with traced.observer.inside("nobody", "a#1"):
        assert not trace.get_current_span().get_span_context().is_valid
