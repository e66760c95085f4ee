"""Changes and slots: values as chains of changes that are put together when they are read."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CodecError
from holdfast.state.codec import Codec
from holdfast.state.ops import (
    GUARDED,
    PLAIN,
    Op,
    ReadOnlyDict,
    ReadOnlyList,
    ReadOnlySet,
    Slot,
    advance,
    growth,
    make_op,
)
from holdfast.state.schema import combine

CODEC = Codec()

OPERANDS = {
    "append": st.lists(st.integers(), max_size=4),
    "keep": st.lists(st.integers(), max_size=4),
    "merge": st.dictionaries(st.text(max_size=2), st.integers(), max_size=3),
    "union": st.sets(st.integers(), max_size=3),
    "add": st.integers(),
}
STARTS: dict[str, Any] = {"append": [], "keep": [], "merge": {}, "union": set(), "add": 0}


def chains() -> st.SearchStrategy[tuple[str, list[tuple[str, Any]]]]:
    def of(kind: str) -> st.SearchStrategy[tuple[str, list[tuple[str, Any]]]]:
        change = st.tuples(st.sampled_from([kind, kind, kind, "set"]), OPERANDS[kind])
        return st.tuples(st.just(kind), st.lists(change, max_size=8))

    return st.sampled_from(sorted(OPERANDS)).flatmap(of)


@given(chains(), st.booleans(), st.data())
def test_a_chain_of_changes_equals_reducing_step_by_step(
    chain: tuple[str, list[tuple[str, Any]]], reread: bool, data: st.DataObject
) -> None:
    kind, changes = chain
    limit = 3 if kind == "keep" else 0
    cells = advance({}, [make_op(CODEC, "set", "k", STARTS[kind])])
    expected = STARTS[kind]
    for how, operand in changes:
        op = make_op(CODEC, how, "k", operand, limit)
        if reread:
            op = Op(op.kind, op.key, op.raw, limit=op.limit, codec=CODEC)
        before = cells
        cells = advance(cells, [op])
        expected = operand if how == "set" else combine(kind, expected, operand, limit)
        if data.draw(st.booleans()):
            assert cells["k"].get() == expected
            assert before["k"].get() is not None
    assert cells["k"].get() == expected
    assert CODEC.decode(cells["k"].encoded(CODEC)) == expected


def test_old_cells_never_change_with_new_ones() -> None:
    old = advance({}, [make_op(CODEC, "set", "k", [1])])
    middle = advance(old, [make_op(CODEC, "append", "k", [2])])
    new = advance(middle, [make_op(CODEC, "append", "k", [3])])

    assert new["k"].get() == [1, 2, 3]
    assert middle["k"].get() == [1, 2]
    assert old["k"].get() == [1]


@pytest.mark.parametrize(
    ("kind", "operand", "value"),
    [
        ("append", [1], [1]),
        ("merge", {"a": 1}, {"a": 1}),
        ("union", {1}, {1}),
        ("add", 2, 2),
        ("keep", [1, 2], [2]),
    ],
)
def test_a_change_of_a_missing_key_begins_with_nothing(kind: str, operand: Any, value: Any) -> None:
    assert advance({}, [make_op(CODEC, kind, "k", operand, 1)])["k"].get() == value


def test_dropping_a_key_forgets_it_and_reduce_waits() -> None:
    cells = advance({}, [make_op(CODEC, "set", "k", 1), make_op(CODEC, "set", "j", 2)])

    assert set(advance(cells, [Op("drop", "k", b""), Op("drop", "nothing", b"")])) == {"j"}
    assert advance(cells, [make_op(CODEC, "reduce", "k", 9)])["k"].get() == 1


def test_an_unknown_kind_of_change_is_refused_when_it_is_read() -> None:
    slot = Slot(Op("twist", "k", CODEC.encode(1), codec=CODEC), None)

    with pytest.raises(CodecError, match="'k': cannot apply a 'twist' change"):
        slot.get()


def test_an_op_without_a_codec_cannot_be_read() -> None:
    with pytest.raises(CodecError, match="no codec to read state key 'k'"):
        Op("set", "k", b"\x01").value


def test_values_are_frozen_once_put_together() -> None:
    values = {
        "l": ([1], "append", [2], ReadOnlyList),
        "d": ({"a": 1}, "merge", {"b": 2}, ReadOnlyDict),
        "s": ({1}, "union", {2}, ReadOnlySet),
    }
    for start, kind, operand, cls in values.values():
        cells = advance({}, [make_op(CODEC, "set", "k", start), make_op(CODEC, kind, "k", operand)])
        assert type(cells["k"].get()) is cls


def test_what_was_never_read_is_stored_again_without_decoding() -> None:
    op = Op("set", "k", b"\xc1 not even valid", codec=CODEC)

    assert Slot(op, None).encoded(CODEC) == b"\xc1 not even valid"


def test_ops_are_equal_by_content() -> None:
    assert make_op(CODEC, "set", "k", 1) == Op("set", "k", CODEC.encode(1))
    assert make_op(CODEC, "set", "k", 1) != make_op(CODEC, "set", "k", 2)
    assert make_op(CODEC, "set", "k", 1) != "k"
    assert repr(make_op(CODEC, "set", "k", 1)) == "Op(set 'k', 2 bytes)"
    with pytest.raises(TypeError):
        hash(make_op(CODEC, "set", "k", 1))


def test_the_care_that_a_value_needs_is_known() -> None:
    from collections import deque

    assert make_op(CODEC, "set", "k", [1, "a", {"b": None}]).care == PLAIN
    assert make_op(CODEC, "set", "k", [deque()]).care == GUARDED


def test_growth_is_told_by_identity() -> None:
    one, two = object(), object()

    assert growth([one], [one, two]) == [two]
    assert growth([one], [one]) == []
    assert growth([one], [two, one]) is None
    assert growth([one, two], [one]) is None
    assert growth([], [one]) is None
    assert growth((one,), [one]) is None
    assert growth([1], [True, 2]) is None
    assert growth([float("nan")], [float("nan"), 1]) is None


def test_many_threads_may_read_one_unsettled_value() -> None:
    ops = [make_op(CODEC, "append", "k", [index]) for index in range(300)]
    for _ in range(20):
        cells = advance(
            {}, [make_op(CODEC, "set", "k", []), *(Op(o.kind, o.key, o.raw, codec=CODEC) for o in ops)]
        )
        begin = threading.Barrier(4)
        seen: list[Any] = []

        def read(slot: Slot = cells["k"], begin: threading.Barrier = begin, seen: list[Any] = seen) -> None:
            begin.wait()
            seen.append(slot.get())

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [list(range(300))] * 4
