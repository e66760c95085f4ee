"""The output of a run as plain lines."""

from __future__ import annotations

import io
from typing import Any

from holdfast import Event
from holdfast.cli.lines import Lines
from holdfast.views.progress import Place, Progress, place_of


def told(*events: Event, **options: Any) -> list[str]:
    out = io.StringIO()
    lines = Lines(out, **options)
    for event in events:
        lines.on_event(event)
    return [line.partition(" ")[2] for line in out.getvalue().splitlines()]


def event(type: str, node: str, step: str = "", **data: Any) -> Event:
    return Event(type, "r1", node, {"step": step or f"{node}#1", **data})


def test_places_are_read_from_step_ids() -> None:
    assert place_of("a#1") == Place(("a",)) and place_of("a#2").label == "a (2)"
    assert place_of("a:item#1[x%2Fy]") == Place(("a",), "item", 1, "x/y")
    assert place_of("outer:workflow#1/inner#3").label == "outer/inner (3)"
    assert place_of("", "a:done") == Place(("a",), "done") and place_of("output#1").role == "output"


def test_the_story_of_a_step_that_is_tried_twice() -> None:
    assert told(
        event("node.start", "search", attempt=1),
        event("node.error", "search", attempt=1, error="ConnectionError: lost\nand gone"),
        event("node.retry", "search", attempt=1, delay=4.0),
        event("node.start", "search", attempt=2),
        event("node.message", "search", message="page 3"),
        event("node.error", "search", attempt=2, error="ValueError: bad"),
        event("node.complete", "search", error=True, seconds=0.1),
    ) == [
        "search started",
        "search retry 2 in 4.0s: ConnectionError: lost and gone",
        "search started (attempt 2)",
        "search: page 3",
        "search failed: ValueError: bad",
    ]


def test_items_and_groups_are_told_under_the_name_of_their_step() -> None:
    lines = told(
        event("node.start", "publish", attempt=1),
        event("node.complete", "publish", error=False, update={"publish": {"status": "running"}}),
        event("node.start", "publish:item", "publish:item#1[a]", attempt=1),
        event("node.complete", "publish:item", "publish:item#1[a]", error=False, seconds=0.2, update={}),
        event("node.start", "publish:done", attempt=1),
        event("node.complete", "publish:done", error=False, update={"publish": {"status": "completed"}}),
    )

    assert lines == [
        "publish started",
        "publish[a] started",
        "publish[a] done in 0.2s",
        "publish done in 0.0s",
    ]


def test_what_is_skipped_or_passed_over_says_so() -> None:
    assert told(
        event("node.complete", "a", error=False, update={"a": {"status": "skipped"}}),
        event("node.complete", "b", error=False, update={"b": {"status": "failed", "error": "no"}}),
        event("node.warning", "c", error="no"),
        event("node.complete", "c", error=True),
        event("node.complete", "each:done", error=False, update={}),
        Event("checkpoint.fail", "r1", "", {"error": "disk full"}),
        Event("graph.changed", "r1", "", {"changes": ["'a' was added"]}),
    ) == [
        "a skipped",
        "b failed and is passed over: no",
        "c failed and is passed over: no",
        "a checkpoint could not be saved: disk full",
        "the workflow changed since the run was saved: 'a' was added",
    ]


def test_secrets_and_controls_are_left_out() -> None:
    def scrub(value: Any) -> Any:
        return str(value).replace("swordfish", "***")

    message = event("node.message", "a", message="key \x1b[1mswordfish")

    assert told(message, scrub=scrub) == ["a: key ***"]


def test_a_writer_whose_reader_left_falls_silent() -> None:
    class Gone(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise BrokenPipeError

    out = Gone()
    lines = Lines(out)
    for _ in range(3):
        lines.on_event(event("node.start", "a", attempt=1))

    assert out.tries == 1


def test_progress_costs_the_same_however_long_the_run_is() -> None:
    progress = Progress([("work", 0, "python")])
    for visit in range(1, 2001):
        progress.on_event(event("node.start", "work", f"work#{visit}", attempt=1))
        progress.on_event(event("node.complete", "work", f"work#{visit}", error=False, update={}))

    assert list(progress.rows) == [("work",)] and progress.rows[("work",)].visits == 2000


def test_what_was_finished_before_is_kept() -> None:
    progress = Progress([("a", 0, ""), ("b", 0, ""), ("c", 0, ""), ("d", 0, "")])
    progress.keep({"a": "completed", "b": "skipped", "c": "failed", "x": "completed"})

    assert [row.status for row in progress.rows.values()] == ["kept", "skipped", "failed", "pending"]
