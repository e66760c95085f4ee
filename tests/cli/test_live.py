"""The live view: what it draws from events, and what stays on a real terminal."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

from rich.console import Console

from holdfast import Event
from holdfast.views.live import LiveView
from holdfast.views.progress import Progress
from tests.cli.processes import CHAIN, SLOW, Session, ran, until, write

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def view(*steps: str, height: int = 40, encoding: str = "utf-8") -> tuple[LiveView, Progress]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=100, height=height, force_terminal=True, color_system=None)
    progress = Progress([(name, 0, "python") for name in steps])
    return LiveView(progress, "report", "r1", "sqlite:///runs.db", console), progress


def drawn(live: LiveView) -> str:
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(live.render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def tell(live: LiveView, type: str, node: str, **data: object) -> None:
    live.on_event(Event(type, "r1", node, {"step": f"{node}#1", **data}))


def test_the_view_shows_who_runs_what_and_where() -> None:
    live, _ = view("search", "write")

    text = drawn(live)

    assert "report  r1  sqlite:///runs.db" in text
    assert "· search" in text and "· write" in text


def test_each_state_of_a_step_looks_different() -> None:
    live, _ = view("a", "b", "c", "d", "e", "f")
    tell(live, "node.start", "a", attempt=1)
    tell(live, "node.complete", "a", seconds=0.1, error=False, update={"a": {"status": "completed"}})
    tell(live, "node.start", "b", attempt=1)
    tell(live, "node.complete", "b", seconds=0.1, error=False, update={"b": {"status": "skipped"}})
    tell(live, "node.start", "c", attempt=1)
    tell(live, "node.error", "c", attempt=1, error="ValueError: \x1b[2Jbad")
    tell(live, "node.complete", "c", seconds=0.1, error=True)
    tell(live, "node.start", "d", attempt=2)
    tell(live, "node.message", "d", message="page 3\nof 9")
    tell(live, "pause", "e", kind="ask", pause="e#1:yes/no?", name="yes/no?")

    text = drawn(live)

    assert "✓ a" in text and re.search("– b +skipped", text)
    assert "✗ c" in text and "ValueError: \\u001b[2Jbad" in text and "\x1b" not in text
    assert "attempt 2  page 3 of 9" in text
    assert "? e" in text and "waits for an answer" in text and "· f" in text


def test_a_retry_counts_down() -> None:
    live, _ = view("search")
    tell(live, "node.start", "search", attempt=1)
    tell(live, "node.error", "search", attempt=1, error="ConnectionError: lost")
    live.on_event(
        Event("node.retry", "r1", "search", {"step": "search#1", "attempt": 1, "delay": 90.0}, time.time())
    )

    assert "↻ search" in drawn(live) and "attempt 2 in 1m30s: ConnectionError: lost" in drawn(live)


def test_a_for_each_has_a_bar_that_knows_how_many_there_are() -> None:
    live, progress = view("publish")
    tell(live, "node.start", "publish", attempt=1)
    tell(live, "node.complete", "publish", error=False, update={"publish": {"status": "running"}})
    assert progress.rows[("publish",)].status == "running"
    for _ in range(4):
        live.on_event(Event("edge.transition", "r1", "publish", {"from": "publish", "to": "publish:item"}))
    for key in ("a", "b"):
        step = {"step": f"publish:item#1[{key}]", "attempt": 1}
        live.on_event(Event("node.start", "r1", "publish:item", step))
    live.on_event(
        Event(
            "node.complete", "r1", "publish:item", {"step": "publish:item#1[a]", "error": False, "update": {}}
        )
    )

    assert "[=====               ] 1/4" in drawn(live)
    done = {"step": "publish:done#1", "error": False, "update": {"publish": {"status": "completed"}}}
    live.on_event(Event("node.complete", "r1", "publish:done", done))
    assert "✓ publish" in drawn(live) and list(progress.rows) == [("publish",)]


def test_calls_of_a_function_that_run_at_once_are_done_when_the_last_one_is() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    live = LiveView(Progress(of_file=False), "report", "r1", "sqlite:///runs.db", console)
    for number in (1, 2, 3):
        live.on_event(Event("node.start", "r1", "fetch", {"step": f"report#1/fetch#{number}", "attempt": 1}))
    live.on_event(Event("node.complete", "r1", "fetch", {"step": "report#1/fetch#2", "seconds": 0.1}))
    assert re.search(r"[⠁-⣿] fetch .* 1 of 3 done", drawn(live))

    for number in (1, 3):
        live.on_event(
            Event("node.complete", "r1", "fetch", {"step": f"report#1/fetch#{number}", "seconds": 0.1})
        )
    assert "✓ fetch" in drawn(live) and "visit 3" in drawn(live)


def test_steps_of_a_nested_workflow_stand_below_it() -> None:
    live, _ = view("outer", "after")
    live.on_event(Event("node.start", "r1", "inner", {"step": "outer:workflow#1/inner#1", "attempt": 1}))

    lines = [line.strip(" ⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏·").split()[0] for line in drawn(live).splitlines()[1:4]]

    assert lines == ["outer", "inner", "after"]


def test_the_cost_so_far_is_shown() -> None:
    live, _ = view("draft")
    tell(live, "node.start", "draft", attempt=1)
    for cost in (0.4, 0.02, None):
        tell(live, "node.spend", "draft", cost=cost)
    tell(live, "node.complete", "draft", error=False, update={})

    assert "$0.42" in drawn(live)


def test_a_terminal_that_knows_no_unicode_is_spared_it() -> None:
    live, _ = view("search", "write", encoding="ascii")
    tell(live, "node.start", "search", attempt=1)
    tell(live, "node.complete", "search", error=False, update={})

    assert drawn(live).isascii() and "+ search" in drawn(live)


def test_more_steps_than_lines_leave_room_for_those_at_work() -> None:
    names = [f"step{number}" for number in range(60)]
    live, _ = view(*names, height=20)
    live.start()
    try:
        for name in names[:30]:
            tell(live, "node.start", name, attempt=1)
            tell(live, "node.complete", name, error=False, update={})
        tell(live, "node.start", "step30", attempt=1)
        text = drawn(live)
    finally:
        live.stop()

    assert len(text.splitlines()) <= 19 and "step30" in text and "other steps" in text
    assert len(drawn(live).splitlines()) > 60


def test_a_terminal_shows_the_run_and_keeps_the_last_view(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    session = Session(tmp_path, "run", "chain.yaml", "--run-id", "r1")

    assert session.end() == 0
    last = session.screen[session.screen.rindex("chain  r1") :]
    assert all(f"✓ {name}" in last for name in ("first", "second", "gated")) and "completed in" in last
    assert "output " not in last.partition("completed")[0]
    assert session.raw.count("\x1b[?25l") == session.raw.count("\x1b[?25h") == 1
    assert "\x1b[32m" in session.raw


def test_colours_are_left_out_on_request_and_dumb_terminals_get_lines(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    grey = Session(tmp_path, "run", "chain.yaml", NO_COLOR="1")
    dumb = Session(tmp_path, "run", "chain.yaml", TERM="dumb")

    assert grey.end() == 0 and "✓ gated" in grey.screen and "\x1b[32m" not in grey.raw
    assert dumb.end() == 0 and "gated done in" in dumb.screen and "\x1b" not in dumb.raw


def test_ctrl_c_gives_the_cursor_back_and_says_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path, "slow.yaml", SLOW)

    session = Session(tmp_path, "run", "slow.yaml", "--run-id", "r1")
    until(lambda: "slow" in ran(tmp_path))
    session.write("\x03")

    assert session.end() == 130 and "interrupted (Ctrl+C): run r1 is saved" in session.screen
    assert "resume with: " in session.screen and "Traceback" not in session.screen
    assert session.raw.rindex("\x1b[?25h") > session.raw.rindex("\x1b[?25l")


def test_a_resume_marks_what_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    first = Session(tmp_path, "run", "chain.yaml", "--run-id", "r1")
    assert first.end() == 1 and "✗ gated" in first.screen and "the gate is closed" in first.screen
    (tmp_path / "open").touch()

    session = Session(tmp_path, "resume")

    assert session.end() == 0 and "kept 2 steps (" in session.screen
    last = session.screen[session.screen.rindex("chain  r1") :]
    assert last.count(" kept\n") + last.count(" kept ") >= 2 and "✓ gated" in last


def item(live: LiveView, type: str, number: int, **data: object) -> None:
    live.on_event(Event(type, "r1", "work:item", {"step": f"work:item#1[{number}]", **data}))


def test_after_a_resume_the_bar_counts_the_items_that_were_done_before_and_each_item_once() -> None:
    live, progress = view("work")
    left = {f"work:item#1[{number}]": "done" if number < 4 else "pending" for number in range(12)}
    progress.keep_items(left)
    for number in range(4, 6):
        item(live, "node.start", number, attempt=2)
        item(live, "node.start", number, attempt=3)
        item(live, "node.complete", number, seconds=0.1, error=False, update={})

    assert "6/12" in drawn(live)
    for number in range(6, 12):
        item(live, "node.start", number, attempt=2)
        item(live, "node.complete", number, seconds=0.1, error=number == 11, update={})
    assert "12/12, 1 failed" in drawn(live)


def test_a_second_visit_of_a_for_each_counts_its_items_anew() -> None:
    live, _ = view("work")
    for visit, count in ((1, 3), (2, 2)):
        step = {"step": f"work#{visit}", "attempt": 1}
        live.on_event(Event("node.start", "r1", "work", step))
        for number in range(count):
            live.on_event(Event("edge.transition", "r1", "work", {"from": "work", "to": "work:item"}))
            live.on_event(Event("node.start", "r1", "work:item", {"step": f"work:item#{visit}[{number}]"}))

    assert "0/2" in drawn(live)


def test_what_was_under_way_when_the_run_was_stopped_is_not_shown_as_if_it_went_on() -> None:
    live, _ = view("work", "after")
    tell(live, "node.start", "work", attempt=1)
    live.on_event(Event("graph.cancel", "r1", "", {"status": "interrupted", "reason": "SIGINT"}))
    live.start()
    waiting = drawn(live)
    live.stop()

    assert "■ work" in waiting and "stopped and saved; waits until work ends" in waiting
    assert "■ work" in drawn(live) and "waits until" not in drawn(live)


STUBBORN = """
workflow: {name: stubborn}
steps:
  - {name: first, python: "acts.py:first"}
  - name: stubborn
    shell: |
      trap '' TERM INT
      echo begun >> ran.txt
      while ! test -e open; do sleep 0.05; done
"""


def test_after_ctrl_c_a_terminal_says_what_is_waited_for_and_the_spinner_stands_still(tmp_path: Path) -> None:
    write(tmp_path, "stubborn.yaml", STUBBORN)

    session = Session(tmp_path, "run", "stubborn.yaml", "--run-id", "r1")
    until(lambda: "begun" in ran(tmp_path))
    session.expect("stubborn")
    session.write("\x03")
    session.expect("waits until stubborn ends")
    (tmp_path / "open").touch()

    assert session.end() == 130
    stopped = session.screen[session.screen.index("waits until stubborn ends") :]
    assert "■ stubborn" in session.screen and not re.search(f"[{SPINNER}] stubborn", stopped)
    assert "interrupted (Ctrl+C): run r1 is saved" in stopped
