"""Misspelt names: what may have been meant, and what it costs to find out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pytest

from holdfast.errors import LONGEST, MOST_COMPARED, MOST_LOOKED_AT, closest, did_you_mean, suggestion


def test_the_closest_name_is_found_whatever_its_case_and_dashes() -> None:
    assert closest("serach", ["fetch", "search", "review"]) == "search"
    assert closest("My-Step", ["other", "my_step"]) == "my_step"
    assert closest("zzz", ["search"]) is None
    assert closest("", ["search"]) is None
    assert did_you_mean("serach", ["search"]) == "did you mean 'search'?"
    assert suggestion("serach", ["search"]) == "; did you mean 'search'?"
    assert (did_you_mean("x", []), suggestion("x", [])) == ("", "")


def test_a_million_names_cost_no_more_than_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, compared = 0, 0

    def names() -> Iterator[str]:
        nonlocal looked_at
        for number in range(1_000_000):
            looked_at += 1
            yield f"name{number:06}" + "x" * 40

    class Counting(difflib.SequenceMatcher[str]):
        def real_quick_ratio(self) -> float:
            nonlocal compared
            compared += 1
            return super().real_quick_ratio()

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)

    assert closest("nmae000001" + "x" * 40, names()) is not None
    assert looked_at <= MOST_LOOKED_AT + 1
    assert 0 < compared <= MOST_COMPARED


def test_a_very_long_name_is_not_compared() -> None:
    assert closest("n" * (LONGEST + 1), ["n" * LONGEST]) is None
    assert closest("n" * LONGEST, ["n" * 10_000_000]) is None
