"""The rendering of durations, money and untrusted text."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.render import json_text
from holdfast.views.terminal import count, duration, money, one_line, visible


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"), (1.23, "1.2s"), (9.94, "9.9s"), (12.4, "12s"), (59.6, "1m00s"), (65, "1m05s"),
        (3599, "59m59s"), (3720, "1h02m"), (86399, "23h59m"), (90000, "1d01h"), (-1, "0.0s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0, "$0.00"), (0.42, "$0.42"), (12.3456, "$12.35"), (0.0123, "$0.012"), (0.00042, "$0.00042")],
)
def test_money(dollars: float, text: str) -> None:
    assert money(dollars) == text


def test_counts() -> None:
    assert (count(1, "step"), count(2, "step"), count(0, "step")) == ("1 step", "2 steps", "0 steps")


@given(st.text())
def test_nothing_visible_commands_a_terminal(text: str) -> None:
    seen = visible(text)
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in seen)
    assert not any(127 <= ord(sign) < 160 for sign in seen)
    assert "\n" not in one_line(text) and len(one_line(text, 50)) <= 50


def test_colours_go_and_everything_else_is_written_out() -> None:
    assert visible("a\x1b[1;31mb\x1b]0;title\x07c\u202ee\U000e0001") == (
        "ab\\u001b]0;title\\u0007c\\u202ee\\udb40\\udc01"
    )
    assert visible("a\x9b2Jb\x7fc\rd\r\ne\tf") == "a\\u009b2Jb\\u007fc\\u000dd\ne\tf"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": (1, 2), 3: {4}}, {"a": [1, 2], "3": [4]}),
        (float("nan"), "nan"),
        (b"\x00\xff", {"$type": "bytes", "base64": "AP8="}),
        (dt.date(2020, 1, 2), "2020-01-02"),
        (1j, "1j"),
    ],
)
def test_everything_can_be_told_as_json(value: Any, told: Any) -> None:
    assert json.loads(json_text(value)) == told
