"""The wire format: records to bytes and back, damage, differences, and encryption."""

from __future__ import annotations

import base64
import random
import secrets
from pathlib import Path
from typing import Any, get_args

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CodecError, CorruptJournal, HoldfastError, StateGraph, open_store
from holdfast.journal import writer as writer_module
from holdfast.journal.encoding import Track, decode_records, decode_run, encode_records, encode_run
from holdfast.journal.fold import APPLY
from holdfast.journal.records import (
    RECORDS,
    Answered,
    Commanded,
    Confirmed,
    Described,
    Fault,
    Forked,
    FrameOpened,
    GraphChanged,
    Migrated,
    Noted,
    OnceFailed,
    OnceStarted,
    Paused,
    Record,
    Reset,
    Resumed,
    Reusing,
    RunAnnotated,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepAdvanced,
    StepCalled,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import Bodies, Seal
from holdfast.state.codec import Codec
from holdfast.state.ops import KINDS as OP_KINDS
from holdfast.state.ops import Op, make_op
from holdfast.stores.base import Entry
from tests.graphs import chain
from tests.journal.histories import KINDS, history

CODEC = Codec()


def put(key: str, value: Any, kind: str = "set", limit: int = 0) -> Op:
    return make_op(CODEC, kind, key, value, limit)


ITEM = Target("item", "k/1", (put("n", 1), put("text", "long " * 300)))
FAULT = Fault("ValueError", "bad \u20ac", "Traceback …")
FORKED = history("simple").journal.load(history("simple").info, CODEC)

SAMPLES: list[Record] = [
    RunStarted(
        "w", (put("n", 1),), (Target("a"), ITEM), b"config", {"nodes": {"a": {}}}, "me", ("parent", 3)
    ),
    RunStarted("w", (), (), b"", {}, ""),
    Forked("old", 4, None, "me", b"", b"k" * 8, b"c" * 16),
    Forked("old", 4, None, "me", b"", b"k" * 8, b"c" * 16, ("a#1", "b#1")),
    Reset("old", 4, encode_run(FORKED.run, FORKED.track, CODEC), FORKED.run, "ann", "why"),
    Reusing("old", b"k" * 8, 2, 9, ("a", "b/c")),
    Reset(
        "old", 4, encode_run(FORKED.run, FORKED.track, CODEC), FORKED.run, "", "", ("b#1",), b"k" * 8, True
    ),
    Reusing("old", b"k" * 8, 0, 9),
    Reusing("", b"", 2, 9, (), (("old", "new"),), ((b"", 3), (b"k" * 8, 1))),
    Steered("", ("a#1",), uncounted=True),
    Migrated("", "v1", "v2", (put("n", 3),)),
    Spent("a#1", 2, "gpt", 12, 3, 0.25),
    Spent("a#1", 2, "gpt", 12, 3, None, 4),
    Described(b"facts"),
    RunAnnotated(0, "fine"),
    Confirmed("0123", "ann@host", "capsule x", "ab:cd"),
    RunAnnotated(7, "", ("a",), ("b",), True, "ann"),
    StepFinished("a#1", origin="old"),
    StepStarted("a#1", 2),
    StepCalled("body#1", "fetch", 2, "k/1", (put("digest", "ab"), put("arguments", {"n": 1}))),
    StepCalled("body#1", "fetch", 1),
    StepCalled("body#1", "fetch", 3, None, (put("digest", "ab"),), True),
    FrameOpened("sub#1", ("n", "log"), (put("n", 1),), (Target("x"), ITEM), ("log",)),
    StepFinished("a#1", tuple(put("k", [1], kind, 2) for kind in OP_KINDS), (Target("b"), ITEM), 1.5),
    StepFinished("sub#1", promoted=True),
    StepFinished("a#1", skipped="interrupted"),
    StepFailed("a#1", 2, FAULT, 99.5, 0.5),
    StepFailed("a#1", 1, Fault("E", "", "")),
    WaveFinished("sub#1", (put("n", 2),), (ITEM,), (("a+b>c", ("a",)),), ("a#1", "b#1")),
    WaveFinished("", (), ()),
    StepAdvanced("a#1", (put("n", 2), put("log", ["x"], "append")), "b#3", 0.25),
    StepAdvanced("a#1", (), "b#1", 0.0),
    Paused("p", "ask", "a#1", "a", "name", "prompt?", b"schema", 12.5),
    Paused("p", "before", "a#1", "a"),
    Answered("p", b"value", "ann"),
    Noted("a#1", "once:k", b"value"),
    OnceStarted("a#1", "k", 2, True),
    OnceFailed("a#1", "k"),
    StateEdited("", (put("n", 3),), "ann"),
    StateEdited("sub#1", (), "ann", ("n", "m")),
    Steered("sub#1", ("a#1",), (("b#1", (put("n", 1),)),), (Target("c"), ITEM), True, True, "ann", "why"),
    Steered("", add=(Target("c", None, (put("n", 1),)),)),
    GraphChanged({"nodes": {}}, (("old", "new"),)),
    GraphChanged({"nodes": {}}, (), b"config", "ann"),
    Commanded(3, "cancel", "because"),
    Resumed("me", True, b"config"),
    RunEnded("failed", FAULT, "a"),
    RunEnded("completed"),
]


def test_there_is_a_sample_of_every_record() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(Record))


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_every_record_survives_the_trip(record: Record) -> None:
    writing, reading = Track(), Track()

    [again] = decode_records(encode_records([record], writing), reading, CODEC)

    if isinstance(record, Reset) and isinstance(again, Reset):
        assert again._replace(run=None) == record._replace(run=None)
        assert encode_run(again.run, Track(), CODEC) == encode_run(record.run, Track(), CODEC)
    else:
        assert again == record
    assert reading.bases == writing.bases and reading.live == writing.live


def test_every_record_is_declared_and_folded() -> None:
    assert set(RECORDS.values()) == set(get_args(Record)) == set(APPLY)


def test_a_missing_last_field_has_its_default() -> None:
    wire = [10, 3, "cancel", ""]

    assert decode_records(b"\x01" + ormsgpack.packb([wire]), Track(), CODEC) == [Commanded(3, "cancel")]


@pytest.mark.parametrize(
    "wire",
    [
        [1, "a#1"],
        [1, "a#1", 2, 3],
        [1, "a#1", "2"],
        [3, "a#1", 1, None],
        [8, "", [[0, 1, 0, b""]], "ann"],
        [7, "a", "k"],
    ],
)
def test_a_record_of_another_shape_is_refused(wire: list[Any]) -> None:
    with pytest.raises(CodecError, match="a record cannot be read"):
        decode_records(b"\x01" + ormsgpack.packb([wire]), Track(), CODEC)


def test_a_body_holds_many_records_in_order() -> None:
    records: list[Record] = [sample for sample in SAMPLES if not isinstance(sample, Forked | Reset)]

    assert decode_records(encode_records(records, Track()), Track(), CODEC) == records


def test_text_that_is_no_text_does_not_lose_a_record() -> None:
    record = StepFailed("a#1", 1, Fault("E", "half \ud800 a pair", "\udfff"))

    [again] = decode_records(encode_records([record], Track()), Track(), CODEC)

    assert isinstance(again, StepFailed) and again.fault.message == "half \\ud800 a pair"


def test_a_value_stays_undecoded_until_it_is_read() -> None:
    record = StepFinished("a#1", (Op("set", "k", b"\xc1"),))

    [again] = decode_records(encode_records([record], Track()), Track(), CODEC)

    assert isinstance(again, StepFinished) and again.ops[0].raw == b"\xc1"
    with pytest.raises(CodecError):
        again.ops[0].value


# Damage.


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_worse(garbage: bytes) -> None:
    for body in (garbage, b"\x01" + garbage):
        for read in (decode_records, decode_run):
            try:
                read(body, Track(), CODEC)
            except CodecError:
                continue


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-2, 20)
        | st.binary(max_size=5)
        | st.text(max_size=5)
        | st.floats(),
        lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=30,
    )
)
def test_well_formed_nonsense_is_refused_and_nothing_worse(nonsense: Any) -> None:
    for wire in (nonsense, [nonsense], [[2, nonsense]]):
        body = b"\x01" + ormsgpack.packb(wire)
        for read in (decode_records, decode_run):
            try:
                read(body, Track(), CODEC)
            except CodecError:
                continue


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_body_is_refused_or_read_but_never_crashes_the_reader(kind: str) -> None:
    told = history(kind)
    chance = random.Random(kind)
    loaded = told.journal.load(told.info, CODEC)
    bodies = [(entry.body, decode_records) for entry in told.store.read(told.info.run)]
    bodies.append((encode_run(loaded.run, loaded.track, CODEC), decode_run))  # type: ignore[arg-type]
    for body, read in bodies:
        for _ in range(60):
            place = chance.randrange(len(body))
            damaged = body[:place] + bytes([body[place] ^ (1 << chance.randrange(8))]) + body[place + 1 :]
            for broken in (damaged, body[:place]):
                try:
                    read(broken, Track(), CODEC)
                except CodecError:
                    continue


@pytest.mark.parametrize("body", [b"", b"\x02\x90", b"\x00"])
def test_a_body_of_another_version_says_so(body: bytes) -> None:
    with pytest.raises(CodecError, match=r"the record format is .*this version of holdfast reads 1; upgrade"):
        decode_records(body, Track(), CODEC)


def test_an_unknown_record_says_so() -> None:
    with pytest.raises(CodecError, match="a record cannot be read"):
        decode_records(b"\x01" + ormsgpack.packb([[99, "x"]]), Track(), CODEC)


# Differences.


def large(edit: int) -> str:
    chance = random.Random(1)
    lines = [f"{chance.random()}" for _ in range(2000)]
    lines[edit] = f"edited {edit}"
    return "\n".join(lines)


def test_a_large_value_with_a_small_edit_is_stored_as_a_difference() -> None:
    """S2.21"""
    track = Track()
    bodies = [
        encode_records([StepFinished("a#1", (put("doc", large(edit)),))], track)
        for edit in (1, 700, 1500, 1999)
    ]

    assert len(bodies[0]) > 10_000
    assert all(len(body) < 500 for body in bodies[1:])
    reading = Track()
    for body, edit in zip(bodies, (1, 700, 1500, 1999), strict=True):
        [record] = decode_records(body, reading, CODEC)
        assert isinstance(record, StepFinished) and record.ops[0].value == large(edit)


def test_differences_are_kept_apart_by_frame_and_key() -> None:
    track, reading, known = Track(), Track(), []
    records: list[Record] = [
        StateEdited("", (put("doc", large(1)), put("copy", large(2)))),
        FrameOpened("sub#1", (), (put("doc", large(3)),), ()),
        StepFinished("sub#1/x#1", (put("doc", large(4)),)),
        StateEdited("", (put("doc", "small now"),)),
        StateEdited("", (put("doc", large(5)),)),
        StepFinished("sub#1", promoted=True),
        FrameOpened("sub#1", (), (put("doc", large(6)),), ()),
    ]

    for record in records:
        assert decode_records(encode_records([record], track), reading, CODEC) == [record]
        assert track.bases == reading.bases
        known.append(sorted(track.bases))
    both, sub = [("", "copy"), ("", "doc")], ("sub#1", "doc")
    assert known == [both, [*both, sub], [*both, sub], [("", "copy"), sub], [*both, sub], both, [*both, sub]]


def test_a_difference_without_its_base_is_refused() -> None:
    track = Track()
    encode_records([StateEdited("", (put("doc", large(1)),))], track)
    body = encode_records([StateEdited("", (put("doc", large(2)),))], track)

    with pytest.raises(CodecError, match="a difference to an earlier one that is not here"):
        decode_records(body, Track(), CODEC)


def test_what_a_run_holds_is_counted() -> None:
    track = Track()
    encode_records([StateEdited("", (put("a", b"x" * 100), put("b", [b"y" * 50], "append")))], track)
    before = track.live
    encode_records([StateEdited("", (put("a", b"x"),))], track)

    assert 150 < before < 170 and 50 < track.live < 70


# Encryption.

SECRET = "the-password-is-swordfish"


def secret_graph() -> StateGraph:
    def ask(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.once("k", lambda: SECRET + " once")
        return {"log": [ctx.ask(SECRET + "?", name=SECRET + " name", choices=[SECRET])]}

    def fails(state: Any) -> None:
        raise ValueError(SECRET + " in an error")

    return chain("a", "b", "c", nodes={"a": ask, "b": lambda s: {"log": [SECRET * 200]}, "c": fails})


def drive_secret_run(url: str, key: str | None) -> None:
    store = open_store(url)
    app = secret_graph().compile(store, encryption_key=key)
    app.invoke({"log": [SECRET]}, run_id="r", config={"token": SECRET})
    with pytest.raises(HoldfastError, match="in an error"):
        app.resume("r", SECRET)
    store.close()


def bytes_below(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.fixture(params=["sqlite", "file"])
def disk_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"sqlite": f"sqlite:///{tmp_path / 'runs.db'}", "file": f"file://{tmp_path / 'runs'}"}[
        request.param
    ]


def new_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def test_without_a_key_the_secret_is_there_to_be_found(disk_url: str, tmp_path: Path) -> None:
    drive_secret_run(disk_url, None)

    assert SECRET.encode() in bytes_below(tmp_path)


def test_an_encrypted_run_leaves_its_secrets_nowhere(
    disk_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_FLOOR", -(1 << 30))
    key = new_key()
    drive_secret_run(disk_url, key)

    raw = bytes_below(tmp_path)
    assert b"swordfish" not in raw and SECRET.encode().hex().encode() not in raw
    store = open_store(disk_url)
    app = secret_graph().compile(store, encryption_key=key)
    assert store.snapshot("r") is not None
    assert app.get_state("r")["log"] == [SECRET, SECRET, SECRET * 200]
    store.close()


def test_a_missing_key_a_wrong_key_and_the_environments_key(
    disk_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    drive_secret_run(disk_url, key)
    store = open_store(disk_url)
    graph = secret_graph()

    with pytest.raises(CodecError, match="run 'r' is encrypted; set HOLDFAST_KEY to its key"):
        graph.compile(store).get_state("r")
    with pytest.raises(CodecError, match=r"its key .* is not here; add that key to HOLDFAST_KEY"):
        graph.compile(store, encryption_key=new_key()).get_state("r")
    monkeypatch.setenv("HOLDFAST_KEY", key)
    assert graph.compile(store).get_state("r")["log"][0] == SECRET
    monkeypatch.setenv("HOLDFAST_KEY", f"{new_key()},{key}")
    assert graph.compile(store).get_state("r")["log"][0] == SECRET
    with pytest.raises(CodecError, match="32 bytes"):
        graph.compile(store, encryption_key="short")
    with pytest.raises(CodecError, match="32 bytes"):
        graph.compile(store, encryption_key=b"short")
    store.close()


def test_ids_names_and_times_stay_readable_without_the_key(disk_url: str) -> None:
    drive_secret_run(disk_url, new_key())
    store = open_store(disk_url)
    app = secret_graph().compile(store)

    assert [info.run for info in app.runs()] == ["r"]
    assert [checkpoint.nodes for checkpoint in app.checkpoints("r")][:1] == [()]
    store.close()


def test_an_encrypted_entry_cannot_be_moved_to_another_place() -> None:
    seal, chain = Seal([b"k" * 32]), b"c" * 16
    bodies = Bodies(seal, "default", "r", b"k" * 8)
    entry = Entry(1, 1.5, b"", bodies.seal_entry(chain, 1, 1.5, b"mark", b"\x01\x90"), b"mark")
    others = [
        Bodies(seal, *own)
        for own in (("a", "r", b"k" * 8), ("default", "s", b"k" * 8), ("default", "r", b"j" * 8))
    ]
    moved = [
        entry._replace(seq=2),
        entry._replace(at=2.5),
        entry._replace(mark=b"nark"),
        entry._replace(mark=None),
        entry._replace(body=entry.body.replace(chain, b"d" * 16)),
    ]

    assert bodies.open_entry(entry) == b"\x01\x90"
    for place, one in [*((other, entry) for other in others), *((bodies, one) for one in moved)]:
        with pytest.raises(CorruptJournal, match="belongs to another run, namespace or place"):
            place.open_entry(one)


def test_an_empty_run_is_a_run() -> None:
    assert decode_run(encode_run(RunState(), Track(), CODEC), Track(), CODEC) == RunState()
