"""Calling the reading commands in this process, and stores for them to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import ExecutionError, open_store
from holdfast.cli.main import main
from holdfast.stores.base import Store
from tests.graphs import chain

SOURCE = Path(__file__).parents[2] / "src"


class Called:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Call = Callable[..., Called]


def caller(capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls commands as `main` does, with the words given."""

    def call(*words: str) -> Called:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Called(code, out, err)

    return call


def command(*words: str, **options: Any) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key in ("PATH", "HOME", "LANG") or key.startswith("COVERAGE_")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": str(SOURCE), **options.pop("env", {})},
        **options,
    )


def boom(state: Any) -> None:
    raise ValueError("no \x1b[31mluck")


def asks(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [ctx.ask("Which one?\nSay so.", choices=["a", "b"], name="q")]}


def three_runs(url: str) -> Store:
    """A store with a completed, a failed and a paused run: `good`, `bad` and `asked`."""
    store = open_store(url)
    chain("a", "b", name="fine").compile(store).invoke({"n": 1}, run_id="good")
    with pytest.raises(ExecutionError):
        chain("a", "b", "c", nodes={"b": boom}, name="broken").compile(store).invoke({"n": 1}, run_id="bad")
    chain("a", "b", nodes={"b": asks}, name="gate").compile(store).invoke({"n": 1}, run_id="asked")
    return store


def abandon(url: str, run_id: str, *, folder: Path) -> None:
    """Leave a run behind whose process was killed in its second step."""
    program = folder / "dies.py"
    program.write_text(
        "import os, sys\n"
        "from holdfast import START, END, StateGraph\n"
        "graph = StateGraph(dict, name='lost')\n"
        "graph.add_node('first', lambda state: {'n': 1})\n"
        "graph.add_node('second', lambda state: os._exit(9))\n"
        "graph.add_edge(START, 'first'); graph.add_edge('first', 'second'); graph.add_edge('second', END)\n"
        "graph.compile(sys.argv[1]).invoke({'n': 0}, run_id=sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, program, url, run_id], env=environment, timeout=60)
    assert done.returncode == 9
