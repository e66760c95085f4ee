"""What a person sees of a run from Python: the live view in terminals and notebooks, short texts, HTML."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, Outcome, StateGraph
from holdfast.engine.blocking import is_watched
from tests.cli.processes import Session, environment

PROGRAM = """
import sys, threading, time
from holdfast import END, START, StateGraph

def slow(state):
    print("said by a node")
    time.sleep(float(sys.argv[2]))

graph = StateGraph(dict, name="watched")
graph.add_node("first", lambda state: None)
graph.add_node("slow", slow)
graph.add_edge(START, "first").add_edge("first", "slow").add_edge("slow", END)
app = graph.compile("memory://")
progress = {"None": None, "True": True, "False": False}[sys.argv[1]]
seen = []
observer = seen.append if "observer" in sys.argv else None
out = app.invoke({}, run_id="r1", progress=progress, observer=observer)
print("end of", out.run_id)
"""


def screen_of(tmp_path: Path, *words: str, **env: str) -> str:
    """What a terminal shows of the program."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    session = Session(tmp_path, *words, program=[sys.executable, str(path)], **env)
    session.expect("end of r1")
    assert session.end() == 0
    return session.screen


def test_a_terminal_shows_the_steps_while_they_run(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, "True", "0.3")
    assert "watched" in screen and "r1" in screen and "✓ first" in screen and "✓ slow" in screen
    assert "said by a node" in screen


def test_without_a_word_a_long_run_is_shown_and_a_short_one_is_not(tmp_path: Path) -> None:
    assert "✓ slow" in screen_of(tmp_path, "None", "1.2")
    assert "slow" not in screen_of(tmp_path, "None", "0")


@pytest.mark.parametrize(
    ("words", "env"), [(("False",), {}), (("None",), {"HOLDFAST_PROGRESS": "0"}), (("None", "observer"), {})]
)
def test_nothing_is_shown_if_something_else_was_asked_for(
    tmp_path: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    assert "slow" not in screen_of(tmp_path, words[0], "0.8", *words[1:], **env)


def test_nothing_is_printed_where_stdout_is_no_terminal() -> None:
    command = [sys.executable, "-c", PROGRAM, "True", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FORCE_COLOR": "1"})
    assert (done.stdout, done.stderr) == ("said by a node\nend of r1\n", "")


def test_a_stream_that_cannot_be_asked_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert not is_watched(True, None)
    monkeypatch.setattr(sys, "stdout", object())
    assert not is_watched(None, None)


def test_a_program_that_only_loaded_the_kernel_of_notebooks_is_no_notebook() -> None:
    """As a test suite is, whose plugins load it."""
    pytest.importorskip("ipykernel")
    program = f"import ipykernel.zmqshell, IPython\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program, "True", "0.5"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("said by a node\nend of r1\n", "")


class Lost(io.StringIO):
    """A terminal on which threads cannot write any more, or nobody."""

    def __init__(self, *, for_all: bool) -> None:
        super().__init__()
        self._for_all, self.tried = for_all, threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._for_all or threading.current_thread() is not threading.main_thread():
            self.tried.set()
            raise OSError("the terminal is gone")
        return super().write(text)


@pytest.mark.parametrize(("progress", "for_all"), [(True, False), (True, True), (None, False)])
def test_a_drawing_that_fails_is_no_failure_of_the_run(
    monkeypatch: pytest.MonkeyPatch, progress: bool | None, for_all: bool
) -> None:
    terminal = Lost(for_all=for_all)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    graph = StateGraph(dict, name="watched")
    graph.add_node("slow", lambda state: {"tried": terminal.tried.wait(60)})
    graph.add_edge(START, "slow").add_edge("slow", END)
    assert graph.compile("memory://").invoke({}, progress=progress).state["tried"]


def outcome(**compile: Any) -> Outcome:
    graph = StateGraph({"n": int, "text": str}, name="short")
    graph.add_node("one", lambda state: {"n": 1, "text": "<script>alert(1)</script>" * 1000})
    graph.add_edge(START, "one")
    graph.add_edge("one", END)
    return graph.compile("memory://", **compile).invoke({"n": 0}, run_id="r1")


def test_an_outcome_is_printed_in_few_words() -> None:
    assert str(outcome()).startswith("completed: run r1: 1 steps run, 0.0 s") and len(str(outcome())) < 100
    paused = str(outcome(interrupt_before=["one"]))
    assert paused.startswith("paused: run r1") and "  go on with app.resume('r1')" in paused


def test_a_paused_outcome_is_answered_by_what_it_prints() -> None:
    graph = StateGraph({"n": int}, name="asking")
    graph.add_node("ask", lambda state, ctx: {"n": ctx.ask("How many?", name="count")})
    graph.add_edge(START, "ask").add_edge("ask", END)
    app = graph.compile("memory://")
    text = str(app.invoke({}, run_id="r 1"))
    assert "waits for 'count': How many?" in text
    call = text.partition("go on with ")[2]
    assert eval(call, {"app": app, "answer": 3}).state["n"] == 3


NESTED = """
from holdfast import END, START, StateGraph
import time

def one(name, function):
    graph = StateGraph(dict, name=name)
    graph.add_node("of " + name, function)
    graph.add_edge(START, "of " + name).add_edge("of " + name, END)
    return graph.compile("memory://")

inner = one("inner", lambda state: time.sleep(1.0))
outer = one("outer", lambda state: inner.invoke({}) and None)
out = outer.invoke({}, run_id="r1", progress=True)
print("end of", out.run_id)
"""


def test_a_run_inside_a_step_is_not_drawn_over_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NESTED)
    session = Session(tmp_path, program=[sys.executable, str(tmp_path / "program.py")])
    session.expect("end of r1")
    assert session.end() == 0
    assert "✓ of outer" in session.screen and "of inner" not in session.screen


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    session = Session(tmp_path, "True", "60", program=[sys.executable, str(tmp_path / "program.py")])
    session.expect("said by a node")
    session.expect("slow")
    session.write("\x03")
    session.expect("run 'r1' was interrupted and saved")
    assert session.end() != 0
    assert session.raw.rindex("\x1b[?25h") > session.raw.rindex("\x1b[?25l")  # The cursor is shown again.


def test_functions_and_resumes_are_shown_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import time\n"
        "from holdfast import END, START, StateGraph, step, workflow\n"
        "@step\n"
        "def fetch(n):\n"
        "    time.sleep(0.8)\n"
        "    return n\n"
        "@workflow(store='memory://')\n"
        "def report(n):\n"
        "    return fetch(n)\n"
        "print('function:', report.run(3))\n"
        "graph = StateGraph(dict, name='asking')\n"
        "graph.add_node('wait', lambda state, ctx: {'n': ctx.ask('n?')} if 'n' not in state else None)\n"
        "graph.add_node('again', lambda state: time.sleep(0.2))\n"
        "graph.add_edge(START, 'wait').add_edge('wait', 'again').add_edge('again', END)\n"
        "app = graph.compile('memory://')\n"
        "app.invoke({}, run_id='r1', progress=False)\n"
        "out = app.resume('r1', 4, progress=True)\n"
        "print('end of', out.run_id, out.state['n'])\n"
    )
    session = Session(tmp_path, program=[sys.executable, str(tmp_path / "program.py")])
    session.expect("end of r1 4")
    assert session.end() == 0
    shown, _, resumed = session.screen.partition("function: 3")
    assert "✓ fetch" in shown and "✓ again" in resumed


ASYNC = """
import asyncio, sys, time
from holdfast import END, START, StateGraph, step, workflow

@step
def fetch(n):
    time.sleep(float(sys.argv[1]))
    return n

@workflow(store="memory://")
async def report(n):
    await asyncio.sleep(0)
    return fetch(n)

graph = StateGraph(dict, name="asking")
graph.add_node("wait", lambda state, ctx: {"n": ctx.ask("n?")} if "n" not in state else None)
graph.add_node("again", lambda state: time.sleep(0.2))
graph.add_edge(START, "wait").add_edge("wait", "again").add_edge("again", END)
app = graph.compile("memory://")

async def main():
    ticks = []
    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)
    ticking = asyncio.create_task(tick())
    print("function:", await report.arun(3))
    await app.ainvoke({}, run_id="r1", progress=False)
    out = await app.aresume("r1", 4, progress=True)
    events = [each async for each in report.app.astream({"n": 1})]
    print("quiet:", await report.arun(5, progress=False), len(events) > 3)
    print("end of", out.run_id, out.state["n"], len(ticks) > 3)
    ticking.cancel()

asyncio.run(main())
"""


def test_async_calls_are_shown_too_while_the_event_loop_goes_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ASYNC)
    session = Session(tmp_path, "1.0", program=[sys.executable, str(tmp_path / "program.py")])
    session.expect("end of r1 4 True")
    assert session.end() == 0
    shown, _, rest = session.screen.partition("function: 3")
    resumed, _, quiet = rest.partition("quiet: 5 True")
    assert "✓ fetch" in shown and "✓ again" in resumed
    assert quiet and "fetch" not in resumed + quiet and "again" not in quiet


CELLS = (
    PROGRAM.split("progress =")[0]
    .replace("time.sleep(float(sys.argv[2]))", "time.sleep(0.4)\n    return {'n': 1}")
    .replace("dict,", "{'text': str, 'n': int},"),
    "graph",
    "app",
    "app.invoke({'text': '<script>alert(1)</script>'}, run_id='r1', progress=True)",
    "app.history('r1')",
    "app.diff('r1@1', 'r1')",
    "bad = StateGraph(dict, name='bad'); bad.add_node('<b>lost</b>', lambda state: None); bad",
    "late = StateGraph(dict, name='<i>late')\n"
    "late.add_node('<i>wait', lambda state, ctx: [ctx.stream('<i>so far</i>'), time.sleep(1.5)] and None)\n"
    "late.add_edge(START, '<i>wait').add_edge('<i>wait', END)\n"
    "_ = late.compile('memory://').invoke({})",
    "_ = late.compile('memory://').invoke({}, progress=False)",
    "_ = await late.compile('memory://').ainvoke({})",
    "from holdfast import step, workflow\n@step(name='<b>fetch')\ndef fetch(url: str) -> str: ...\n"
    "@workflow\ndef report(topic: str = '<script>alert') -> str: return fetch(topic)\nreport",
    "import os; os.environ['HOLDFAST_PROGRESS'] = '0'\n_ = late.compile('memory://').invoke({})",
)


def test_a_notebook_shows_runs_graphs_histories_and_differences(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    env = environment()
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3")
    client.execute(cwd=str(tmp_path), env=env)

    shown = [
        [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
        for cell in notebook.cells
    ]
    graph, app, run, history, difference, bad, late = (texts[-1] for texts in shown[1:8])
    assert "<svg" in graph and "<svg" in app and "slow" in app
    progress = shown[3][0]
    assert "slow" in progress and "✓" in progress and "watched" in progress
    assert "completed" in run and "&lt;script&gt;alert(1)&lt;/script&gt;" in run
    assert "first" in history and "slow" in history and "<table>" in history
    assert "<code>n</code>" in difference
    assert "&lt;b&gt;lost" in bad and "nothing follows START" in bad
    assert "&lt;i&gt;late" in late and "✓" in late and "&lt;i&gt;wait" in late and shown[8] == shown[11] == []
    assert "✓" in shown[9][-1] and "&lt;i&gt;wait" in shown[9][-1]
    [function] = shown[10]
    assert "<b>report</b>" in function and "topic: str" in function and "&lt;b&gt;fetch" in function
    assert not any("<i>" in text for text in shown[7])
    assert not any(
        "<script>alert" in text or "<b>lost" in text or "<b>fetch" in text
        for texts in shown
        for text in texts
    )
