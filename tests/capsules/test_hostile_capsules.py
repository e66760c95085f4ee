"""Capsules that somebody made to do harm: nothing runs, nothing is believed, memory stays bounded."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import ormsgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import START, CapsuleInvalid, HoldfastError, StateGraph, open_store
from holdfast.capsules import export_run, import_run, inspect_capsule
from holdfast.capsules.exports import lines_of
from holdfast.capsules.format import MAGIC, Kind, unpacked_bytes
from holdfast.journal.encoding import Track, encode_run
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import Frame, RunState
from holdfast.state.codec import Codec, pack, zstd
from holdfast.views.runs import run_list, run_view
from holdfast.views.timeline import timeline
from tests.capsules.samples import driven, exported, forged, varied
from tests.capsules.test_damage import parts_of
from tests.graphs import chain
from tests.processes import unmeasured

HEAD = b"\x01"
MEGABYTE = 1_000_000


def body(*records: Any) -> bytes:
    return HEAD + ormsgpack.packb(list(records))


def started(*ops: Any, next_: Any = ("a",), config: bytes = b"", outline: Any = None) -> list[Any]:
    """A record that begins a run, as an entry holds it."""
    return [0, "w", list(ops), list(next_), config, outline or {"name": "w", "nodes": {}}, "", None]


def bomb(size: int) -> bytes:
    return zstd.compress(b"\x01" + b"\xc6" + struct.pack(">I", size) + bytes(size))


def memory_of(path: Path, **options: Any) -> tuple[int, Exception | None]:
    """How much memory inspecting took at most, and how it ended."""
    error: Exception | None = None
    tracemalloc.start()
    try:
        inspect_capsule(path, **options)
    except CapsuleInvalid as raised:
        error = raised
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, error


def test_a_value_that_unpacks_to_more_than_is_allowed_is_not_unpacked(tmp_path: Path) -> None:
    small = bomb(80 * MEGABYTE)
    path = forged(tmp_path / "bomb", [body(started([0, "big", 1, small]))])
    assert path.stat().st_size < 20_000

    peak, error = memory_of(path, max_state=64 * MEGABYTE)

    assert error is None and peak < 8 * MEGABYTE
    info = inspect_capsule(path, max_state=64 * MEGABYTE)
    assert not info.is_read and "more than 64" in info.notes[0] and info.run_id == "forged"
    with pytest.raises(CapsuleInvalid, match="allow more with --max-state"):
        import_run(open_store("memory://"), path, max_state=64 * MEGABYTE)
    assert inspect_capsule(path, max_state=100 * MEGABYTE).is_read


def test_values_that_add_up_to_more_than_is_allowed_are_not_all_unpacked(tmp_path: Path) -> None:
    small = bomb(6 * MEGABYTE)
    more = [body([8, "", [[0, f"key{number}", 1, small]], ""]) for number in range(12)]
    path = forged(tmp_path / "bombs", [body(started()), *more])

    peak, _ = memory_of(path, max_state=20 * MEGABYTE)

    assert peak < 60 * MEGABYTE and not inspect_capsule(path, max_state=20 * MEGABYTE).is_read


def test_a_bomb_in_a_run_within_a_record_is_found(tmp_path: Path) -> None:
    run = ormsgpack.unpackb(encode_run(RunState(frames={"": Frame("")}), Track(), Codec())[1:])
    inner = HEAD + ormsgpack.packb({**run, "bases": [["", "big", 1, bomb(80 * MEGABYTE)]]})
    for record in ([17, "other", 1, inner, "", ""], [14, "other", 1, inner, "", b""]):
        path = forged(tmp_path / "nested", [body(started(), record)])

        peak, _ = memory_of(path, max_state=64 * MEGABYTE)

        assert peak < 8 * MEGABYTE


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x90" * 100_000,
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 1000,
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xc6\xff\xff\xff\xff",
        b"\xc1",
        b"",
    ],
    ids=["more", "claims", "pairs", "deep", "long", "unknown", "none"],
)
def test_lists_that_claim_much_or_are_deep_cost_nothing(hostile: bytes, tmp_path: Path) -> None:
    bodies = [HEAD + hostile, HEAD + b"\xdd\x00\x7a\x12\x00" + hostile]
    for number, content in enumerate(bodies):
        path = forged(tmp_path / f"hostile{number}", [content])

        peak, error = memory_of(path)

        assert error is not None and peak < len(content) * 4 + 4 * MEGABYTE


def test_sections_that_claim_more_than_the_file_has_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    for length in (1, 1 << 20, 1 << 40, (1 << 64) - 1):
        path.write_bytes(MAGIC + b"\x01\x00" + struct.pack(">BQ", Kind.FACTS, length))

        peak, error = memory_of(path)

        assert error is not None and peak < MEGABYTE


def test_measuring_agrees_with_what_is_packed() -> None:
    raw = b"x" * 5000
    how, small = pack(raw)
    assert how == 1
    values: list[Any] = [
        None,
        True,
        1,
        -1,
        300,
        70000,
        1 << 40,
        1.5,
        "text",
        "t" * 40,
        "t" * 300,
        b"b",
        [],
        {},
    ]
    values += [list(range(20)), {str(n): n for n in range(20)}, ormsgpack.Ext(5, b"12345"), [[["deep"]]]]
    values += ["t" * 70000, b"b" * 300, b"b" * 70000, list(range(70000)), {str(n): 1 for n in range(70000)}]

    assert unpacked_bytes(HEAD + ormsgpack.packb([values, [0, "key", how, small]])) == 5000
    for cut in (1, 2, 10):
        with pytest.raises(CapsuleInvalid, match="cut short"):
            unpacked_bytes((HEAD + ormsgpack.packb([values]))[:-cut])
    with pytest.raises(CapsuleInvalid, match="has grown"):
        unpacked_bytes(HEAD + ormsgpack.packb([values]) + b"\xc0")
    with pytest.raises(CapsuleInvalid, match="too many parts"):
        unpacked_bytes(HEAD + ormsgpack.packb([[]] * 1000), most_parts=1000)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
records = st.lists(
    st.integers(-1, 30).flatmap(lambda code: st.lists(anything, max_size=8).map(lambda rest: [code, *rest])),
    max_size=4,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(records, st.booleans())
@example([[14, "r", 1, b"", "", b"", b"\x01\x02\x03\x04\x05\x06\x07\x08", b"x" * 16]], False)
def test_records_of_any_kind_are_refused_or_read_and_nothing_else(
    tmp_path: Path, made: list[Any], begun: bool
) -> None:
    """Only `CapsuleInvalid` may come of it; what is taken can be looked at."""
    first = [body(started(next_=["a", "b"]))] if begun else []
    path, target = forged(tmp_path / "any", [*first, body(*made)]), open_store("memory://")
    try:
        info = inspect_capsule(path)
        imported = import_run(target, path)
    except CapsuleInvalid:
        assert not target.runs()
        return
    assert info.is_read and imported.outcome == "copied" and info.as_json()["entries"] == info.entries


ODD: list[Any] = [None, True, 0, -1, 2**63, 1.5, float("nan"), -1e300, "", "x", "a#1", "/"]
ODD += [b"", b"\x01", b"\x01\xc0", [], ["x"], [[]], {}, {"x": 1}, {"": {}}]


def places_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of nested lists and mappings."""
    if path:
        yield path
    pairs = enumerate(tree) if isinstance(tree, list) else tree.items() if isinstance(tree, dict) else ()
    for key, inner in pairs:
        yield from places_of(inner, (*path, key))


def changed(content: bytes, chance: random.Random) -> bytes:
    """The body of an entry with some part of it replaced."""
    tree = ormsgpack.unpackb(content[1:])
    *way, last = chance.choice(list(places_of(tree)))
    functools.reduce(lambda inner, key: inner[key], way, tree)[last] = copy.deepcopy(chance.choice(ODD))
    return HEAD + ormsgpack.packb(tree)


def test_a_journal_that_somebody_rewrote_is_refused_or_can_be_looked_at(tmp_path: Path) -> None:
    """Right checksums over wrong records: no reader stumbles over what was taken."""
    store, chance, journals = open_store("memory://"), random.Random(5), list[list[bytes]]()
    for work in ({}, {"b": "ask"}, {"x": "fail"}, {"item": "ask"}):
        run = f"run{len(journals)}"
        driven(varied(store, work, turns=1), run, begin=True)
        journals.append([entry.body for entry in store.read(run)])
    taken = 0
    for _ in range(250):
        bodies = list(chance.choice(journals))
        place = chance.randrange(len(bodies))
        bodies[place] = changed(bodies[place], chance)
        path, target = forged(tmp_path / "rewritten", bodies), open_store("memory://")
        try:
            inspect_capsule(path).as_json()
            import_run(target, path)
        except CapsuleInvalid:
            assert not target.runs()
            continue
        taken += 1
        journal = Journal(target)
        with contextlib.suppress(
            HoldfastError
        ):  # A value may be none, and that is told when it is looked at.
            run_view(journal, "forged").as_json(state=True)
            list(lines_of(journal, "forged"))
        [moment.as_json() for moment in timeline(journal, "forged")]
        [line.as_json() for line in run_list(journal)]
    assert taken > 5


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 40))
def test_headers_of_any_kind_are_refused(tmp_path: Path, noise: bytes, place: int) -> None:
    whole = bytearray(MAGIC + b"\x01\x00" + struct.pack(">BQ", Kind.FACTS, 20) + b"x" * 60)
    whole[place : place + len(noise)] = noise
    (tmp_path / "noise").write_bytes(whole)

    with pytest.raises(CapsuleInvalid):
        inspect_capsule(tmp_path / "noise")


def test_a_checkpoint_that_nobody_could_list_is_refused(tmp_path: Path) -> None:
    begun = body(started())
    for mark in (
        b"",
        b"\xc1",
        ormsgpack.packb([1, [1], [], ""]),
        ormsgpack.packb([1, "ab", [], ""]),
        ormsgpack.packb(7),
    ):
        with pytest.raises(CapsuleInvalid, match="damaged facts"):
            inspect_capsule(forged(tmp_path / "marked", [begun], marks=[mark]))


def test_a_summary_that_says_something_else_than_the_journal_is_told(tmp_path: Path) -> None:
    from tests.capsules.samples import sections

    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    facts, (kind, summary), *rest = parts_of(exported(store, "r", tmp_path))
    assert kind == Kind.SUMMARY and b'"steps_done":1' in summary

    lied = sections(
        tmp_path / "lied", facts, (kind, summary.replace(b'"steps_done":1', b'"steps_done":9')), *rest[:-1]
    )

    assert any("is not the one of its journal" in note for note in inspect_capsule(lied).notes)
    assert inspect_capsule(lied).summary["steps_done"] == 1


def test_types_that_the_data_names_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("open('sprung', 'w')\nclass Trap: pass\n")
    value = b"\x01" + ormsgpack.packb([ormsgpack.Ext(0, b""), "trap.Trap", {}])
    config = b"\x01" + ormsgpack.packb({"workflow_file": {"path": "trap.py", "source": "x"}, "tags": []})
    forged(tmp_path / "trap.holdfast", [body(started([0, "value", 0, value], config=config))])
    program = (
        "import sys\nfrom holdfast import open_store\nfrom holdfast.capsules import import_run, inspect_capsule\n"
        "inspect_capsule('trap.holdfast')\nimport_run(open_store('file:runs'), 'trap.holdfast')\n"
        "print('trap' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.strip() == "False", done.stderr
    assert not (tmp_path / "sprung").exists()


def test_a_large_run_is_carried_in_little_memory(tmp_path: Path) -> None:
    """Entries go one by one: the memory is that of a page, not of the run."""
    chance = random.Random(3)
    bodies = [body(started())] + [
        body(
            [
                8,
                "",
                [[0, "noise", 0, b"\x01\xc6" + struct.pack(">I", MEGABYTE) + chance.randbytes(MEGABYTE)]],
                "",
            ]
        )
        for _ in range(40)
    ]
    path = forged(tmp_path / "large", bodies)
    del bodies
    target = open_store(f"file:{tmp_path / 'runs'}")
    tracemalloc.start()
    try:
        import_run(target, path)
        exported(target, "forged", tmp_path, "again")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert path.stat().st_size > 40 * MEGABYTE and peak < 25 * MEGABYTE
    target.close()


def test_a_small_capsule_with_a_large_array_is_inspected_and_shown_in_little_memory(tmp_path: Path) -> None:
    """As lists, the 1,000,000 rows of 20 nested rows each would take more than a gigabyte."""
    rows = numpy.zeros([1_000_000] + [1] * 20, "u1")
    app = (
        StateGraph(dict, name="w").add_node("a", lambda state: None).add_edge(START, "a").compile("memory://")
    )
    app.invoke({"rows": rows}, run_id="r")
    path = tmp_path / "r.capsule"
    export_run(app.store, "r", path)
    assert path.stat().st_size < 3000

    tracemalloc.start()
    try:
        inspect_capsule(path)
        store = open_store(f"sqlite:///{tmp_path / 'there.db'}")
        import_run(store, path)
        shown = run_view(Journal(store), "r").as_json(state=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert shown["state"]["rows"]["text"] == "21,000,000 parts, too many to be shown"
    assert peak < 50 * MEGABYTE
