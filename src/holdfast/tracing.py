"""Runs as OpenTelemetry traces: all executions of a run, in whatever process, are one trace."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.events import Event

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags, Tracer, TracerProvider
except ImportError:
    raise HoldfastError("traces need OpenTelemetry: pip install 'holdfast[otel]'") from None

_BEGINS = ("graph.start", "checkpoint.resume")
_ENDS = ("graph.complete", "graph.fail", "graph.cancel")
_ATTRIBUTES = (str, bool, int, float)


class TraceObserver:
    """Tells OpenTelemetry of runs: a span per execution, and in it a span per attempt of a step.

    The trace's id is computed from the run's, so that a run which is resumed, on this machine or another, goes on
    in the trace that it began in, and steps that are kept appear in it once. An execution is linked to the span that
    was current when it began. `provider` is where spans go; without one, OpenTelemetry's global one.
    """

    wants = frozenset({*_BEGINS, *_ENDS, "node.start", "node.complete", "node.error", "pause"})

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer("holdfast", tracer_provider=provider)
        self._executions: dict[str, Span] = {}
        self._steps: dict[tuple[str, str], Span] = {}
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        with self._lock:
            if event.type in _BEGINS:
                self._begin(event)
            elif event.type in _ENDS:
                self._end(event)
            elif event.type == "node.start":
                self._start_step(event)
            elif event.type == "pause":
                self._pause(event)
            else:
                self._end_step(event)

    @contextmanager
    def inside(self, run_id: str, step: str) -> Iterator[None]:
        """Make the span of a step, `ctx.step`, the current one, so that what is traced inside belongs to it."""
        with self._lock:
            span = self._steps.get((run_id, step))
        if span is None:
            yield
            return
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def _begin(self, event: Event) -> None:
        self._close(event.run_id, event.timestamp)
        current = trace.get_current_span().get_span_context()
        links = [trace.Link(current)] if current.is_valid else []
        origin = trace.set_span_in_context(trace.NonRecordingSpan(origin_of(event.run_id)))
        what = "run" if event.type == "graph.start" else "resume"
        workflow = event.data.get("workflow")
        attributes = {"holdfast.run": event.run_id, **({"holdfast.workflow": workflow} if workflow else {})}
        self._executions[event.run_id] = self._tracer.start_span(
            what, origin, attributes=attributes, links=links, start_time=_nanoseconds(event.timestamp)
        )

    def _start_step(self, event: Event) -> None:
        execution = self._executions.get(event.run_id)
        if execution is None:
            return
        self._end_span((event.run_id, _step(event)), event.timestamp)
        facts = {"holdfast.run": event.run_id, "holdfast.node": event.node, **_attributes(event)}
        self._steps[event.run_id, _step(event)] = self._tracer.start_span(
            event.node,
            trace.set_span_in_context(execution),
            attributes=facts,
            start_time=_nanoseconds(event.timestamp),
        )

    def _end_step(self, event: Event) -> None:
        span = self._steps.get((event.run_id, _step(event)))
        if span is None:
            return
        if event.type == "node.error" or event.data.get("error"):
            _blame(span, event.data.get("error"))
        self._end_span((event.run_id, _step(event)), event.timestamp)

    def _pause(self, event: Event) -> None:
        execution = self._executions.get(event.run_id)
        if execution is not None:
            execution.add_event("pause", _attributes(event), _nanoseconds(event.timestamp))
        pause = str(event.data.get("pause") or "")
        for run, step in list(self._steps):
            if run == event.run_id and pause.startswith(f"{step}:"):
                self._end_span((run, step), event.timestamp)
        if not any(run == event.run_id for run, _ in self._steps):
            self._close(event.run_id, event.timestamp)

    def _end(self, event: Event) -> None:
        execution = self._executions.get(event.run_id)
        if execution is None:
            return
        execution.set_attribute("holdfast.status", event.type.partition(".")[2])
        if event.type == "graph.fail":
            _blame(execution, event.data.get("error"))
        self._close(event.run_id, event.timestamp)

    def _close(self, run_id: str, at: float) -> None:
        for run, step in list(self._steps):
            if run == run_id:
                self._end_span((run, step), at)
        execution = self._executions.pop(run_id, None)
        if execution is not None:
            execution.end(_nanoseconds(at))

    def _end_span(self, place: tuple[str, str], at: float) -> None:
        span = self._steps.pop(place, None)
        if span is not None:
            span.end(_nanoseconds(at))


def origin_of(run_id: str) -> SpanContext:
    """What all executions of a run have as their parent: computed, so that nobody has to keep it."""
    digest = hashlib.blake2b(
        run_id.encode("utf-8", "surrogatepass"), digest_size=24, person=b"holdfast"
    ).digest()
    trace, span = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    return SpanContext(trace or 1, span or 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _step(event: Event) -> str:
    return str(event.data.get("step") or event.node)


def _attributes(event: Event) -> dict[str, Any]:
    return {
        f"holdfast.{key}": value
        for key, value in event.data.items()
        if isinstance(value, _ATTRIBUTES) and key not in ("error", "prompt")
    }


def _blame(span: Span, error: object) -> None:
    text = str(error) if error is not None and not isinstance(error, bool) else ""
    span.set_status(Status(StatusCode.ERROR, text or None))


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
