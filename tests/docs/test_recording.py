"""The recording of `holdfast demo`: it shows what the demo prints now, without scripts, and is small."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.docs.test_docs import ROOT

_spec = importlib.util.spec_from_file_location("make_recording", ROOT / "docs/make_recording.py")
assert _spec is not None and _spec.loader is not None
make_recording = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_recording)


def shown(picture: str) -> list[str]:
    """The last screen of a recording without what differs from run to run."""
    lines = make_recording.lines_of(picture)
    return [re.sub(r"demo-\w+", "demo-ID", re.sub(r"rocess \d+", "rocess N", line)) for line in lines]


def test_the_recording_shows_what_the_demo_prints() -> None:
    stored = (ROOT / "docs/demo.svg").read_text("utf-8")

    assert shown(stored) == shown(make_recording.record()), "run: python docs/make_recording.py"
    assert len(stored) < 60_000
    assert not re.search(r"<script|javascript:|(?:href|src)=|url\(|@import", stored)


@pytest.mark.parametrize(
    ("text", "screen"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("one\r\x1b[2Ktwo", ["two"]),
        ("a\r\nb\x1b[1A\x1b[1Dc", ["c", "b"]),
        ("a\r\nb\r\x1b[1A\x1b[J", []),
        ("x" * 102, ["x" * 100, "xx"]),
    ],
)
def test_a_recording_follows_cursors_and_erasing(text: str, screen: list[str]) -> None:
    terminal = make_recording.Terminal()

    assert len([*terminal.write(text)]) > 0
    rows = ["".join(cell.text for cell in row).rstrip() for row in terminal.cells]
    assert [row for row in rows if row] == screen


def test_a_row_that_changed_is_hidden_in_the_end() -> None:
    picture = make_recording.svg(*make_recording.frames("50%\r\n\x1b[1A\x1b[2K100% <done>\r\n", typed="go"))

    assert make_recording.lines_of(picture) == ["$ go", "100% <done>"]
    assert "50%</tspan>" in picture and 'class="k' in picture and " gone" in picture
