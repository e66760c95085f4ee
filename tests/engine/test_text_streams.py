"""What steps stream while they run: live to every reader, resumable by cursor, and never stored."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, ExecutionError, HoldfastError, Retry, StateGraph, step, workflow
from holdfast.engine import text_streams
from holdfast.errors import StreamDropped
from holdfast.events import Event
from holdfast.functions import context
from tests.cli.processes import Session, call

TOKENS = [f"token{number:04} " for number in range(500)]


def one(node: Callable[..., Any], store: str = "memory://", **options: Any) -> App:
    graph = StateGraph({"text": str}, name="writer")
    graph.add_node("write", node, **options)
    graph.set_entry_point("write")
    graph.set_finish_point("write")
    return graph.compile(store)


def texts(events: Iterable[Event]) -> list[str]:
    return [event.data["text"] for event in events if event.type == "node.stream"]


def write(state: Any, ctx: Context) -> dict[str, Any]:
    for token in TOKENS:
        ctx.stream(token)
    return {"text": "".join(TOKENS)}


async def write_async(state: Any, ctx: Context) -> dict[str, Any]:
    for token in TOKENS:
        ctx.stream(token)
        await asyncio.sleep(0)
    return {"text": "".join(TOKENS)}


@pytest.mark.parametrize("node", [write, write_async])
def test_streams_and_observers_get_each_piece_in_order(node: Any) -> None:
    heard: list[Event] = []
    events = list(one(node).stream({}, run_id="r", observer=heard.append))
    pieces = [event for event in events if event.type == "node.stream"]

    assert texts(pieces) == TOKENS == texts(heard)
    assert {(event.node, event.data["step"], event.data["attempt"]) for event in pieces} == {
        ("write", "write#1", 1)
    }
    assert len({event.data["cursor"] for event in pieces}) == len(TOKENS)
    assert events.index(pieces[-1]) < [event.type for event in events].index("node.complete")


def test_a_piece_is_there_before_its_step_goes_on() -> None:
    taken = threading.Event()

    def waits(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.stream("first")
        assert taken.wait(60)
        return {"text": "first"}

    for event in one(waits).stream({}):
        if event.type == "node.stream":
            taken.set()
    assert taken.is_set()


async def test_astream_gets_it_too() -> None:
    assert texts([event async for event in one(write_async).astream({})]) == TOKENS


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_no_piece_is_stored(tmp_path: Path, scheme: str) -> None:
    """The whole text is the step's output, once; what was streamed besides is nowhere."""
    place = tmp_path / ("runs.db" if scheme == "sqlite" else "runs")

    def writes(state: Any, ctx: Context) -> dict[str, Any]:
        for token in TOKENS:
            ctx.stream(f"streamed-{token}")
        return {"text": "the output"}

    app = one(writes, f"{scheme}:///{place}" if scheme == "sqlite" else f"file:{place}")
    outcome = app.invoke({}, run_id="r")
    seen = len(app.checkpoints("r"))
    app.store.close()

    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert outcome.state["text"] == "the output" and b"the output" in stored
    assert b"streamed-" not in stored and b"node.stream" not in stored and seen <= 2


class Slow:
    """A step that streams a piece whenever it is told to."""

    def __init__(self) -> None:
        self._turns, self.ended = threading.Semaphore(0), threading.Event()
        self.is_over = False

    def write(self, state: Any, ctx: Context) -> dict[str, Any]:
        number = 0
        while True:
            assert self._turns.acquire(timeout=60)
            if self.is_over:
                return {"text": "whole"}
            ctx.stream(str(number))
            number += 1

    def go_on(self, times: int) -> None:
        for _ in range(times):
            self._turns.release()

    def finish(self) -> None:
        self.is_over = True
        self._turns.release()


def test_a_reader_that_comes_again_goes_on_without_loss_or_repeats() -> None:
    slow = Slow()
    app = one(slow.write)
    begun = threading.Event()
    slow.go_on(5)
    run = threading.Thread(target=lambda: app.invoke({}, run_id="r", observer=lambda event: begun.set()))
    run.start()
    assert begun.wait(60)
    reader = app.follow("r")
    first = [next(reader) for _ in range(3)]
    reader.close()  # type: ignore[attr-defined]

    slow.go_on(4)
    again = app.follow("r", after=first[-1].data["cursor"])
    second = [next(again) for _ in range(6)]
    slow.finish()
    assert texts(first + second) == [str(number) for number in range(9)]
    assert list(again) == []
    run.join(60)

    # The execution is over, and its text is still there.
    assert texts(app.follow("r")) == [str(number) for number in range(9)]
    assert texts(app.follow("r", after=second[-2].data["cursor"])) == ["8"]


async def test_the_same_in_an_event_loop() -> None:
    slow = Slow()
    app = one(slow.write)
    begun = asyncio.Event()
    running = asyncio.create_task(app.ainvoke({}, run_id="r", observer=lambda event: begun.set()))
    await begun.wait()
    slow.go_on(3)
    reader = app.afollow("r")
    seen = [await anext(reader) for _ in range(3)]
    slow.finish()
    assert [event async for event in reader] == []
    await running
    rest = [event async for event in app.afollow("r", after=seen[0].data["cursor"])]
    assert texts(rest) == ["1", "2"]


@pytest.mark.parametrize("limit", ["MOST_PIECES", "MOST_CHARACTERS"])
def test_who_asks_for_what_is_gone_is_told_so(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(text_streams, limit, 100 if limit == "MOST_PIECES" else 100 * len(TOKENS[0]))
    cursors: list[str] = []

    def note(event: Event) -> None:
        if event.type == "node.stream":
            cursors.append(event.data["cursor"])

    app = one(write)
    app.invoke({}, run_id="r", observer=note)

    for after, missing in ((None, 400), (cursors[0], 399), (cursors[398], 1)):
        with pytest.raises(
            StreamDropped, match=f"{missing} pieces of text of run 'r' are no longer"
        ) as caught:
            list(app.follow("r", after=after))
        assert texts(app.follow("r", after=caught.value.oldest)) == TOKENS[400:]
    assert texts(app.follow("r", after=cursors[399])) == TOKENS[400:]
    assert texts(app.follow("r", after=cursors[-1])) == []


@pytest.mark.parametrize("cursor", ["0123abcd-4", "4", "", "x-y"])
def test_a_cursor_of_another_process_is_refused(cursor: str) -> None:
    app = one(write)
    app.invoke({}, run_id="r")
    with pytest.raises(StreamDropped, match="is not a cursor of what this process has streamed") as caught:
        app.follow("r", after=cursor)
    assert texts(app.follow("r", after=caught.value.oldest)) == TOKENS


def test_a_run_that_is_not_executed_here_cannot_be_followed(tmp_path: Path) -> None:
    app = one(lambda state: {"text": "quiet"}, f"sqlite:///{tmp_path / 'runs.db'}")
    app.invoke({}, run_id="r")
    with pytest.raises(HoldfastError, match="this process does not execute it"):
        app.follow("r")
    with pytest.raises(HoldfastError, match="no run 'x'"):
        app.follow("x")


def test_only_the_texts_of_the_last_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_streams, "MOST_RUNS", 2)
    app = one(write)
    for name in ("a", "b", "c"):
        app.invoke({}, run_id=name)
    assert texts(app.follow("b")) == texts(app.follow("c")) == TOKENS
    with pytest.raises(HoldfastError, match="does not execute it"):
        app.follow("a")


def test_an_attempt_that_is_repeated_streams_from_the_beginning() -> None:
    def fails_once(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.stream("a")
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        ctx.stream("b")
        return {"text": "ab"}

    pieces = [
        (event.data["attempt"], event.data["text"])
        for event in one(fails_once, retry=Retry(attempts=2, delay=0)).stream({})
        if event.type == "node.stream"
    ]
    assert pieces == [(1, "a"), (2, "a"), (2, "b")]


def test_only_text_is_streamed(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(state: Any, ctx: Context) -> None:
        ctx.stream(b"bytes")  # type: ignore[arg-type]

    with pytest.raises(ExecutionError, match=r"ctx\.stream takes a text, not bytes"):
        one(wrong).invoke({})
    assert texts(one(lambda state, ctx: ctx.stream("")).stream({})) == []
    with caplog.at_level(logging.INFO, "holdfast.events"):
        one(write).invoke({}, observer="slog")
    assert caplog.records and not [
        record for record in caplog.records if "node.stream" in record.getMessage()
    ]


def streams_elsewhere(state: Any, ctx: Context) -> None:
    ctx.stream("far away")


def test_from_another_process_it_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        ExecutionError, match=r"ctx\.stream does not work in .*: put it into a node of its own"
    ):
        one(streams_elsewhere, executor="processes").invoke({})


def test_functions_stream_too() -> None:
    @step
    def draft(topic: str) -> str:
        for word in (topic, " ", "waits"):
            context().stream(word)
        return f"{topic} waits"

    @workflow(store="memory://")
    def report(topic: str) -> str:
        return draft(topic)

    events = list(report.stream("tide"))
    assert texts(events) == ["tide", " ", "waits"]
    assert {event.node for event in events if event.type == "node.stream"} == {"draft"}


FILE = """
workflow: {name: writer}
steps:
  - {name: write, python: "tools.py:write"}
"""
TOOLS = """
import time

def write(ctx):
    for piece in ("first li", "ne\\nsecond ", "line\\nthe e", "nd"):
        ctx.stream(piece)
        if piece.startswith("second"):
            time.sleep(0.3)
    time.sleep(0.6)
    return "whole"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "writer.yaml").write_text(FILE)
    (tmp_path / "tools.py").write_text(TOOLS)
    return tmp_path


def test_the_command_line_writes_whole_lines_and_events(folder: Path) -> None:
    lines = call(folder, "run", "writer.yaml")
    said = [line.partition(" ")[2] for line in (lines.stderr + lines.stdout).splitlines()]
    assert [line for line in said if line.startswith("write: ")] == [
        "write: first line",
        "write: second line",
        "write: the end",
    ]
    written = call(folder, "run", "writer.yaml", "--events", "events.jsonl")
    assert written.returncode == 0
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    pieces = [event["data"]["text"] for event in events if event["type"] == "node.stream"]
    assert "".join(pieces) == "first line\nsecond line\nthe end" and len(pieces) == 4


def test_the_live_view_shows_the_end_of_the_text(folder: Path) -> None:
    session = Session(folder, "run", "writer.yaml")
    session.expect("the end")
    assert session.end() == 0
