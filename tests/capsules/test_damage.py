"""Damaged capsules: every changed byte, every cut and every addition is noticed, and nothing is written."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import pytest

from holdfast import CapsuleInvalid, open_store
from holdfast.capsules import import_run, inspect_capsule, make_key_pair
from holdfast.capsules.format import HEAD, MAGIC, Kind, Writer
from tests.capsules.flips import large_capsule, random_places, unnoticed
from tests.capsules.samples import exported, forged, sections
from tests.graphs import chain


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed capsule of some kilobytes, with a message."""
    folder, store = tmp_path_factory.mktemp("small"), open_store("memory://")
    chain("a", "b", name="small").compile(store).invoke({"n": 1}, run_id="small")
    store.post("small", b"a message")
    return exported(store, "small", folder, sign=make_key_pair(folder / "key").private)


def test_every_changed_byte_of_a_small_capsule_is_noticed(small: Path) -> None:
    chance = random.Random(1)
    places = [(place, 1 << chance.randrange(8)) for place in range(small.stat().st_size)]
    places += [(place, 0xFF) for place in range(0, small.stat().st_size, 7)]

    assert unnoticed(small, places) == []


def test_random_changed_bytes_of_a_large_capsule_are_noticed(tmp_path: Path) -> None:
    """`python -m tests.capsules.flips` changes 10,000."""
    path = large_capsule(tmp_path)

    assert unnoticed(path, random_places(path.stat().st_size, 300, seed=2)) == []


def test_a_capsule_that_is_cut_anywhere_is_noticed(small: Path, tmp_path: Path) -> None:
    whole, cut = small.read_bytes(), tmp_path / "cut"
    unsigned = len(whole) - 9 - 96 - 16
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        if length == unsigned:
            assert not inspect_capsule(cut).signed_by, "without its signature it is whole, and not signed"
            continue
        with pytest.raises(CapsuleInvalid):
            inspect_capsule(cut)


def test_what_is_added_is_noticed(small: Path, tmp_path: Path) -> None:
    whole, grown = small.read_bytes(), tmp_path / "grown"
    for more in (b"\0", b"x" * 100, whole, whole[HEAD.size :], whole[-(9 + 96 + 16) :]):
        grown.write_bytes(whole + more)
        with pytest.raises(CapsuleInvalid, match=f"data follows its end, from byte {len(whole)} on"):
            inspect_capsule(grown)
        grown.write_bytes(whole[: -(9 + 96 + 16)] + b"x" + more)
        with pytest.raises(CapsuleInvalid, match=f"data follows its end, from byte {len(whole) - 121} on"):
            inspect_capsule(grown)


def test_sections_that_change_places_are_noticed(tmp_path: Path) -> None:
    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    bodies = [entry.body for entry in store.read("r")]
    whole = forged(tmp_path / "whole", bodies)
    assert inspect_capsule(whole).entries == len(bodies)
    facts, *entries = parts_of(whole)[:-1]
    wrong: list[list[tuple[Kind, bytes]]] = [
        [],
        [facts],
        entries,
        [facts, *reversed(entries)],
        [facts, *entries[1:]],
        [facts, *entries[:-1]],
        [facts, facts, *entries],
        [*entries, facts],
        [facts, *entries, (Kind.SUMMARY, b"{}")],
        [facts, (Kind.SUMMARY, b"{ }"), *entries],
        [facts, (Kind.SUMMARY, b"["), *entries],
        [facts, (Kind.SNAPSHOT, b""), *entries],
        [facts, *entries, (Kind.MESSAGE, b"")],
        [facts, *entries, (Kind.MESSAGE, struct.pack(">Q", 2) + b"x")],
        [facts, *entries, (Kind.SIGNATURE, b"x" * 96)],
        [(Kind.FACTS, b"{}"), *entries],
        [(Kind.FACTS, facts[1].replace(b"completed", b"running")), *entries],
        [(Kind.FACTS, facts[1].replace(b"completed", b"unheard")), *entries],
        [(Kind.FACTS, facts[1].replace(b'"first":1', b'"first":0')), *entries],
        [(Kind.FACTS, facts[1].replace(b'"created_at":1.0', b'"created_at":1e99')), *entries],
        [(Kind.FACTS, facts[1].replace(b'"run":"forged"', b'"run":["forged"]')), *entries],
        [(Kind.FACTS, facts[1].replace(b'"tags":[]', b'"tags":[1]')), *entries],
        [(Kind.FACTS, facts[1].replace(b'"tags":[]', b'"tags":[],"topping":1')), *entries],
        [facts, (Kind.ENTRY, b"short"), *entries[1:]],
    ]
    for number, parts in enumerate(wrong):
        with pytest.raises(CapsuleInvalid):
            inspect_capsule(sections(tmp_path / f"wrong{number}", *parts))


def test_sections_of_another_capsule_are_noticed(tmp_path: Path) -> None:
    """Each section is intact; only the digest of all sections shows the change."""
    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    store.post("r", b"yes")
    one = exported(store, "r", tmp_path, "one").read_bytes()
    other = one.replace(section(Kind.MESSAGE, struct.pack(">Q", 1) + b"yes"), b"")
    assert len(other) < len(one)
    (tmp_path / "other").write_bytes(other)

    with pytest.raises(CapsuleInvalid, match="its digest does not match"):
        inspect_capsule(tmp_path / "other")


def section(kind: Kind, payload: bytes) -> bytes:
    out = io.BytesIO()
    writer = Writer(out)
    writer.add(kind, payload)
    return out.getvalue()[HEAD.size :]


def parts_of(path: Path) -> list[tuple[Kind, bytes]]:
    from holdfast.capsules.capsule import FileOrigin
    from holdfast.capsules.format import read_sections

    origin = FileOrigin(path)
    try:
        return [(section.kind, section.payload) for section in read_sections(origin)]
    finally:
        origin.close()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "not a capsule"),
        (b"PK\x03\x04", "not a capsule"),
        (b"workflow: {name: x}", "not a capsule"),
        (MAGIC[:5], "cut short"),
        (MAGIC + b"\x02\x00" + b"x" * 50, "version 2, this holdfast reads up to 1; upgrade"),
        (MAGIC + b"\x00\x00", "head is damaged"),
        (MAGIC + b"\x01\x07", "head is damaged"),
        (MAGIC + b"\x01\x00", "end is missing"),
        (MAGIC.replace(b"\r\n", b"\n") + b"\x01\x00", "not a capsule"),
    ],
)
def test_what_is_no_capsule_is_told_apart(start: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(start)

    with pytest.raises(CapsuleInvalid, match=said):
        inspect_capsule(path)
    with pytest.raises(CapsuleInvalid, match=said):
        import_run(open_store("memory://"), path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CapsuleInvalid, match="cannot be read"):
            inspect_capsule(path)
