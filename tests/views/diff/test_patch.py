"""JSON Patch: every operation of RFC 6902, its errors, and the patches between values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from holdfast.state import Unknown
from holdfast.views import PatchError, apply_patch, json_patch

DOCUMENT = {"a": {"b": [1, 2, 3], "": 0}, "x/y": 1, "m~n": 2, "~1": 3, "t": True}


@pytest.mark.parametrize(
    ("operation", "path", "value"),
    [
        ({"op": "add", "path": "/a/c", "value": None}, ["a", "c"], None),
        ({"op": "add", "path": "/a/b/1", "value": 9}, ["a", "b"], [1, 9, 2, 3]),
        ({"op": "add", "path": "/a/b/3", "value": 9}, ["a", "b"], [1, 2, 3, 9]),
        ({"op": "add", "path": "/a/b/-", "value": [4]}, ["a", "b"], [1, 2, 3, [4]]),
        ({"op": "add", "path": "/t", "value": False}, ["t"], False),
        ({"op": "add", "path": "", "value": [1]}, [], [1]),
        ({"op": "remove", "path": "/a/b/0"}, ["a", "b"], [2, 3]),
        ({"op": "remove", "path": "/a/"}, ["a"], {"b": [1, 2, 3]}),
        ({"op": "replace", "path": "/x~1y", "value": 5}, ["x/y"], 5),
        ({"op": "replace", "path": "/m~0n", "value": 5}, ["m~n"], 5),
        ({"op": "replace", "path": "/~01", "value": 5}, ["~1"], 5),
        ({"op": "replace", "path": "/a/b/2", "value": 5}, ["a", "b"], [1, 2, 5]),
        ({"op": "replace", "path": "", "value": 5}, [], 5),
        ({"op": "move", "from": "/a/b/0", "path": "/a/b/2"}, ["a", "b"], [2, 3, 1]),
        ({"op": "move", "from": "/a/b", "path": "/t"}, ["t"], [1, 2, 3]),
        ({"op": "move", "from": "/t", "path": "/t"}, ["t"], True),
        ({"op": "copy", "from": "/a", "path": "/a/copy"}, ["a", "copy"], {"b": [1, 2, 3], "": 0}),
        ({"op": "copy", "from": "", "path": "/a/b/-"}, ["a", "b", 3, "t"], True),
        ({"op": "test", "path": "/a/b", "value": [1.0, 2, 3]}, ["t"], True),
        ({"op": "test", "path": "", "value": DOCUMENT, "ignored": 1}, ["t"], True),
    ],
)
def test_an_operation_does_what_it_says(operation: dict[str, Any], path: list[Any], value: Any) -> None:
    found = apply_patch(DOCUMENT, [operation])

    for step in path:
        found = found[step]
    assert found == value and type(found) is type(value)
    assert DOCUMENT["a"] == {"b": [1, 2, 3], "": 0} and DOCUMENT["t"] is True


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ("no list", "a list of operations, not str"),
        (["no object"], "operation 0 is not an object"),
        ([{"path": "/a"}], "operation 0: None is none of add, remove, replace, move, copy, test"),
        ([{"op": ["add"], "path": "/a"}], "none of add"),
        ([{"op": "add", "path": "/a"}], "operation 0: add needs 'value'"),
        ([{"op": "add", "value": 1}], "add needs 'path'"),
        ([{"op": "move", "path": "/a"}], "move needs 'from'"),
        ([{"op": "add", "path": 3, "value": 1}], "a JSON Pointer is text, not int"),
        ([{"op": "add", "path": "a", "value": 1}], "'a' does not begin with '/'"),
        ([{"op": "add", "path": "/a~2", "value": 1}], "neither '~0' nor '~1'"),
        ([{"op": "add", "path": "/none/b", "value": 1}], "there is no key 'none'"),
        ([{"op": "add", "path": "/t/b", "value": 1}], "neither an object nor a list"),
        ([{"op": "add", "path": "/a/b/4", "value": 1}], "no place 4 in a list of 4"),
        ([{"op": "add", "path": "/a/b/01", "value": 1}], "'01' is not the index"),
        ([{"op": "add", "path": "/a/b/-1", "value": 1}], "'-1' is not the index"),
        ([{"op": "add", "path": "/a/b/\u0661", "value": 1}], "is not the index"),
        ([{"op": "add", "path": "/a/b/" + "9" * 5000, "value": 1}], "there is no place 9"),
        ([{"op": "remove", "path": "/a/b/-"}], "where there is no item"),
        ([{"op": "remove", "path": "/none"}], "there is no key 'none'"),
        ([{"op": "remove", "path": "/t/b"}], "neither an object nor a list"),
        ([{"op": "remove", "path": ""}], "the whole document cannot be removed"),
        ([{"op": "replace", "path": "/none", "value": 1}], "there is no key 'none'"),
        ([{"op": "move", "from": "/a", "path": "/a/b/0"}], "'/a' cannot be moved into itself"),
        ([{"op": "move", "from": "/none", "path": "/none"}], "there is no key 'none'"),
        ([{"op": "copy", "from": "/none", "path": "/t"}], "there is no key 'none'"),
        (
            [{"op": "test", "path": "/t", "value": 1}],
            r"operation 0 \(test '/t'\): the document has another value",
        ),
        ([{"op": "test", "path": "/a/b", "value": [1, 2]}], "another value"),
        ([{"op": "test", "path": "/a", "value": {"b": [1, 2, 3]}}], "another value"),
        ([{"op": "remove", "path": "/t"}, {"op": "remove", "path": "/t"}], r"operation 1 \(remove '/t'\)"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_and_changes_nothing(patch: Any, says: str) -> None:
    before = repr(DOCUMENT)

    with pytest.raises(PatchError, match=says):
        apply_patch(DOCUMENT, patch)

    assert repr(DOCUMENT) == before


def test_what_was_added_is_not_shared_with_the_patch() -> None:
    patch = [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]

    assert apply_patch({}, patch) == {"a": [1]} == apply_patch({}, patch)


def test_documents_may_be_deep() -> None:
    document: Any = 1
    for _ in range(5000):
        document = [document]

    found = apply_patch(
        [document], [{"op": "test", "path": "", "value": [document]}, {"op": "add", "path": "/-", "value": 2}]
    )

    assert found[1] == 2


def test_the_patch_between_values_is_one_of_their_json_forms() -> None:
    """S1.17: values that JSON lacks have the form that `--json` prints."""
    one = {
        "at": dt.date(2026, 1, 1),
        "pair": (1, 2),
        "raw": b"a",
        "plan": Unknown("Plan", {"n": 1}),
        1: "x",
        "a/b": 1,
    }
    other = {
        "at": dt.date(2026, 1, 2),
        "pair": [1, 2],
        "raw": b"b",
        "plan": Unknown("Plan", {"n": 2}),
        "a/b": 2,
    }

    assert json_patch(one, other) == [
        {"op": "remove", "path": "/1"},
        {"op": "replace", "path": "/at", "value": "2026-01-02"},
        {"op": "replace", "path": "/raw/base64", "value": "Yg=="},
        {"op": "replace", "path": "/plan/value/n", "value": 2},
        {"op": "replace", "path": "/a~1b", "value": 2},
    ]


def test_places_in_a_patch_are_those_at_its_turn() -> None:
    assert json_patch([1, 2, 3, {"a": 1}], [2, 9, 3, {"a": 2}, 4]) == [
        {"op": "remove", "path": "/0"},
        {"op": "add", "path": "/1", "value": 9},
        {"op": "replace", "path": "/3/a", "value": 2},
        {"op": "add", "path": "/4", "value": 4},
    ]


def test_equal_values_have_an_empty_patch_and_others_replace_the_document() -> None:
    assert json_patch([1], [1]) == []
    assert json_patch(1, "a") == [{"op": "replace", "path": "", "value": "a"}]
