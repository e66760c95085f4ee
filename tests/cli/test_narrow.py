"""Narrow terminals: texts are shortened, ids and figures are not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.views.live import LiveView
from holdfast.views.progress import DONE, Progress
from tests.cli.processes import ASKING, Session, call, write


@pytest.mark.parametrize(("columns", "shown"), [("200", "NEXT"), ("80", "STATUS"), ("50", "STATUS")])
def test_ids_are_never_wrapped(tmp_path: Path, columns: str, shown: str) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", ident := "0b9e1f9a-2f0c-4f0e-9f65-8a7b6c5d4e3f")

    session = Session(tmp_path, "runs", COLUMNS=columns)

    assert session.end() == 0 and shown in session.screen
    (line,) = [line for line in session.screen.splitlines() if ident in line]
    assert "paused" in line and len(line.rstrip()) <= int(columns)


def test_a_long_output_gives_way_before_the_words_of_a_table(tmp_path: Path) -> None:
    text = (
        "workflow: {name: long}\nsteps: [{name: a-step-of-some-length, shell: 'echo " + 30 * "long " + "'}]\n"
    )
    write(tmp_path, "long.yaml", text)
    call(tmp_path, "run", "long.yaml", "--run-id", "r1")

    session = Session(tmp_path, "show", "r1", COLUMNS="80")

    assert session.end() == 0
    (line,) = [line for line in session.screen.splitlines() if "a-step-of-some-length" in line]
    assert " completed " in line and "long long" in line and len(line.rstrip()) <= 80


@pytest.mark.parametrize("columns", [40, 80])
def test_names_and_bars_give_way_before_figures(columns: int) -> None:
    progress = Progress([("a-step-with-quite-a-long-name-for-a-terminal", 0, "shell")])
    (row,) = progress.rows.values()
    row.status, row.expected, row.done, row.failed, row.seconds = DONE, 1200, 1100, 100, 75.0
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, color_system=None)

    console.print(
        LiveView(
            progress, "workflow_file", "r1", "sqlite:////a/very/long/path/to/the/runs.db", console
        ).render()
    )

    (line,) = [line for line in out.getvalue().splitlines() if "a-step" in line]
    assert "1200/1200" in line and "1m15s" in line
