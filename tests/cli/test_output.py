"""Hostile names and texts of every kind, printed by every command: nothing of them reaches a terminal raw."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import END, START, Context, ExecutionError, StateGraph
from holdfast.cli.command_lines import command_line
from holdfast.cli.main import main
from holdfast.graph.graph import mermaid
from holdfast.views.outlines import dot, outline_text
from holdfast.views.terminal import Gate, visible
from tests.cli.in_process import caller

CLI = Path(__file__).parents[2] / "src/holdfast/cli"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r")
"""Sequences that the command line writes itself where there is a terminal."""
EVIL = "e\x1b]0;title\x07\x1b[6n\x9b2J\u202e\u2028\u2066\x85\x7f\rx\nFORGED line\n\tFORGED too"


def harm(text: str) -> str | None:
    """Return control characters of a text, or a line that data started. (Prompts of several lines are indented.)"""
    if found := OBEYED.search(text):
        return repr(text[max(0, found.start() - 60) : found.end() + 20])
    return next((line for line in text.split("\n") if line.startswith(("FORGED", "\tFORGED"))), None)


def evil_graph(url: str) -> Any:
    def asks(state: Any, ctx: Context) -> dict[str, Any]:
        ctx.emit(EVIL)
        return {"log": [ctx.ask(EVIL, choices=["a", EVIL], name=f"q{EVIL}")]}

    def fails(state: Any) -> dict[str, Any]:
        raise ValueError(EVIL)

    graph = StateGraph(dict, name=f"w{EVIL}")
    first, second, third = (f"{letter}{EVIL}" for letter in "aqf")
    graph.add_node(first, lambda state: {f"k{EVIL}": {EVIL: EVIL}}).add_node(second, asks).add_node(
        third, fails
    )
    graph.add_edge(START, first).add_edge(first, second).add_edge(second, third).add_edge(third, END)
    return graph.compile(url)


READING = [
    ("runs",), ("runs", "--json"), ("show", "RUN"), ("show", "RUN", "--json"), ("show", "RUN", "--state"),
    ("show", "RUN", "--output"), ("show", "nothing" + EVIL), ("history", "RUN"), ("history", "RUN", "--json"),
    ("events", "RUN"), ("events", "RUN", "--json"), ("workflow", "draw", "RUN"),
    ("workflow", "draw", "RUN", "--format", "dot"),
    ("workflow", "inspect", "RUN", "--json"), ("workflow", "inspect", "RUN"),
    ("diff", "RUN@1", "RUN@-1"), ("diff", "RUN@1", "RUN@-1", "--json"), ("runs", "status", "RUN"),
    ("runs", "status", "RUN", "--json"), ("checkpoints", "list"), ("checkpoints", "list", "--json"),
    ("checkpoints", "show", "RUN@1"), ("runs", "cost", "RUN"), ("runs", "cost",), ("runs", "tag", "RUN", "t" + EVIL),
    ("runs", "tag", "RUN", "tag"), ("runs", "note", "RUN", EVIL), ("runs", "note", "RUN"),
    ("checkpoints", "keep", "RUN"), ("show", "RUN"),
    ("runs", "compare", "RUN", "RUN"), ("resume", "RUN", "--plan"), ("resume", "RUN"),
    ("answer", "RUN", "nonsense" + EVIL), ("answer", "RUN", f"q{EVIL}=a"), ("pause", "RUN"),
    ("runs", "edit", "RUN", f"k{EVIL}=1"), ("runs", "edit", "RUN", f"nope{EVIL}"), ("steps", "skip", "RUN", EVIL),
    ("fork", "RUN@1", "--run-id", "fork" + EVIL), ("history", "RUN", "--all"), ("runs", "rollback", "RUN@1"),
    ("store", "fsck",), ("store", "fsck", "--json"), ("doctor",), ("store", "stats"),
    ("export", "RUN", "-o", "c.capsule", "--force"), ("export", "RUN", "--format", "jsonl", "-o", "-"),
    ("import", "c.capsule", "--store", "sqlite:///other.db"), ("import", "c.capsule", "--inspect"),
    ("queue", "list"), ("queue", "set", "q" + EVIL, "--max-running", "1"), ("validate", f"no{EVIL}.yaml"),
    ("run", f"no{EVIL}.yaml"), ("runs", "--workflow", EVIL), (EVIL,), ("show", "--" + EVIL), ("cancel", "RUN"),
    ("cancel", "RUN"), ("checkpoints", "list"),
]  # fmt: skip


class Screen(io.StringIO):
    """A terminal that remembers what it was sent."""

    encoding, errors = "utf-8", "strict"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may come from a program that does not check the names of nodes and runs."""
    monkeypatch.setattr("holdfast.graph.validation._names", lambda graph: ())
    monkeypatch.setattr("holdfast.engine.runner.Runner.new_run_id", lambda self, run_id, **how: run_id)


@pytest.fixture
def evil_run(unchecked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///runs.db")
    name = f"run{EVIL}"
    with contextlib.suppress(ExecutionError):
        evil_graph("sqlite:///runs.db").invoke({}, run_id=name)
    return name


def words_of(words: tuple[str, ...], run: str) -> list[str]:
    return [word.replace("RUN", run) if not word.startswith("-") else word for word in words]


def test_no_command_prints_what_a_terminal_would_obey(
    evil_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = caller(capsys)
    for words in READING:
        told = call(*words_of(words, evil_run))
        assert harm(told.out) is None and harm(told.err) is None, (words, harm(told.out), harm(told.err))
        if "--json" in words and told.code == 0:
            json.loads(told.out) if "events" not in words else [json.loads(line) for line in told.lines]


def test_a_terminal_is_sent_nothing_but_our_own_sequences(
    evil_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    coloured = 0
    for words in READING:
        screen, errors = Screen(), Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            patch.setattr(sys, "stderr", errors)
            patch.setattr(sys, "stdin", io.StringIO())
            main(words_of(words, evil_run))
        coloured += "\x1b[" in screen.getvalue()
        for stream in (screen, errors):
            assert harm(OWN.sub("", stream.getvalue())) is None, (words, harm(OWN.sub("", stream.getvalue())))
    assert coloured > 5


@pytest.mark.parametrize("options", [(), ("--json",), ("--quiet",), ("--events", "-")])
def test_what_is_told_of_a_run_under_way_forges_no_lines(
    tmp_path: Path,
    options: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = {
        "workflow": {"name": "each", "inputs": {"evil": {"default": EVIL}}},
        "steps": [
            {"name": "x", "for_each": {"in": [1, 2], "key": "[inputs.evil, 'two'][index]", "on_error": "continue"},
             "shell": {"run": "printf '%b' \"$E\" >&2; exit 1", "env": {"E": EVIL}}},
            {"name": "y", "ask": {"prompt": "{{ inputs.evil }}", "choices": ["yes", "no"]}},
        ],
    }  # fmt: skip
    (tmp_path / "each.yaml").write_text(json.dumps(text))
    main(["run", "each.yaml", "--run-id", "r", "--no-interactive", "--store", "sqlite:///runs.db", *options])

    out, err = capfd.readouterr()
    assert harm(out) is None and harm(err) is None, (harm(out), harm(err))
    assert "two" in out + err or "--quiet" in options or "--json" in options


@pytest.mark.parametrize("draw", [mermaid, dot, lambda outline: outline_text(outline, {})])
def test_a_drawing_of_a_run_from_elsewhere_is_harmless(unchecked: None, draw: Any) -> None:
    stream = io.StringIO()
    Gate(stream).write(draw(evil_graph("memory://").outline()))

    assert "FORGED" in stream.getvalue() and harm(stream.getvalue()) is None


def test_a_command_that_is_shown_can_be_pasted_whatever_its_words_are() -> None:
    line = command_line("answer", "r\n'\\\x1b", "é\x9b\udc80=a", store="sqlite:///x.db")

    assert harm(line) is None and "\n" not in line
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line.partition(' answer ')[2]}"], capture_output=True, check=True
    )
    assert done.stdout.split(b"\0")[:2] == [b"r\n'\\\x1b", "é\x9b".encode() + b"\x80=a"]


@given(st.text())
def test_what_goes_through_the_gate_is_visible_and_the_same_json(text: str) -> None:
    stream = io.StringIO()
    Gate(stream).write(json.dumps(text, ensure_ascii=False))

    assert not OBEYED.search(stream.getvalue())
    assert json.loads(stream.getvalue()) == text
    assert not OBEYED.search(visible(text)) and visible(visible(text)) == visible(text)


def _ways_past_the_gate(tree: ast.AST) -> Iterator[int]:
    """Lines of a module that print, or could, other than through `sys.stdout`, `sys.stderr` and click."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "Console")):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="click"), attr="style" | "secho" | "echo_via_pager"):
                yield node.lineno
            case ast.Attribute(attr="buffer" | "__stdout__" | "__stderr__"):
                yield node.lineno
            case ast.Constant(value=str(text)) if "\x1b" in text:
                yield node.lineno


def test_no_module_prints_past_the_gate() -> None:
    gate = {CLI / "output.py"}
    found = [
        f"{path.relative_to(CLI)}:{line}"
        for path in sorted(CLI.rglob("*.py"))
        if path not in gate
        for line in _ways_past_the_gate(ast.parse(path.read_text()))
    ]

    assert found == []
