"""Capsules that switch off checks, ask for too much work, or contradict the journal of their run."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from holdfast import CapsuleInvalid, CodecError, open_store
from holdfast.capsules import import_run, inspect_capsule
from holdfast.capsules.format import LONGEST_FACTS, LONGEST_SUMMARY, Kind, payload_of, unpacked_bytes
from holdfast.journal.copying import delete_run, prune_run
from holdfast.journal.encoding import Track, encode_records, encode_run
from holdfast.journal.journal import Journal
from holdfast.journal.records import Answered, Forked, Noted, Reset
from holdfast.journal.run_state import Frame, RunState
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.state.ops import advance, make_op
from holdfast.stores.base import Append, Message, Snapshot, Store
from tests.capsules.samples import exported, forged, sections
from tests.capsules.test_damage import parts_of
from tests.capsules.test_hostile_capsules import MEGABYTE, body, bomb, started
from tests.graphs import chain

SEALED = b"\xff" + b"x" * 60
ENCRYPTED_MESSAGE = (Kind.MESSAGE, payload_of(Message(1, 0.0, SEALED)))


def refused(path: Path, match: str, **options: Any) -> None:
    """Neither a look at it nor an import takes it, and nothing is written."""
    target = open_store("memory://")
    with pytest.raises(CapsuleInvalid, match=match):
        inspect_capsule(path, **options)
    with pytest.raises(CapsuleInvalid, match=match):
        import_run(target, path, **options)
    assert not target.runs()


def test_an_encrypted_message_does_not_hide_a_journal_that_is_none(tmp_path: Path) -> None:
    for content in (body(["rubbish", {"1": 2}]), body({"a": 1}), b"\x07abc"):
        *parts, _ = parts_of(forged(tmp_path / "plain", [content]))

        refused(sections(tmp_path / "hidden", *parts, ENCRYPTED_MESSAGE), "cannot be read")


def test_an_encrypted_message_does_not_hide_a_bomb(tmp_path: Path) -> None:
    bombed = forged(tmp_path / "plain", [body(started([0, "big", 1, bomb(80 * MEGABYTE)]))])
    *parts, _ = parts_of(bombed)
    path, target = sections(tmp_path / "hidden", *parts, ENCRYPTED_MESSAGE), open_store("memory://")

    assert not inspect_capsule(path, max_state=64 * MEGABYTE).is_read
    with pytest.raises(CapsuleInvalid, match="allow more with --max-state"):
        import_run(target, path, max_state=64 * MEGABYTE)
    assert not target.runs()


def test_what_is_not_encrypted_is_checked_without_the_key(tmp_path: Path) -> None:
    begun, rubbish = body(started()), body(["rubbish"])

    assert not inspect_capsule(forged(tmp_path / "later", [begun, SEALED])).is_read
    refused(forged(tmp_path / "before", [rubbish, SEALED]), "cannot be read")
    refused(forged(tmp_path / "behind", [begun, SEALED, begun]), "entry 3 is not encrypted")
    refused(forged(tmp_path / "short", [begun, b"\xff"]), "too short to be encrypted")


def test_what_the_key_at_hand_should_open_has_to_open(tmp_path: Path) -> None:
    seal = Seal([b"k" * 32])
    foreign = b"\xff" + seal.seal(body(started()), b"another place")

    refused(forged(tmp_path / "moved", [foreign]), "it was changed, or it belongs to another run", seal=seal)
    assert not inspect_capsule(forged(tmp_path / "moved", [foreign])).is_read


def test_facts_and_summaries_of_any_length_are_not_read(tmp_path: Path) -> None:
    facts, *entries, _ = parts_of(forged(tmp_path / "plain", [body(started())]))
    long = b"[" + b"[]," * (LONGEST_SUMMARY // 3) + b"[]]"
    facts_of = b"[" + b"[]," * (LONGEST_FACTS // 3) + b"[]]"

    refused(sections(tmp_path / "summary", facts, (Kind.SUMMARY, long), *entries), "too long to be one")
    refused(sections(tmp_path / "facts", (Kind.FACTS, facts_of), *entries), "too long to be those of a run")


def test_values_that_are_replaced_again_and_again_are_not_all_unpacked(tmp_path: Path) -> None:
    """Each fits, and only one is held at a time: what is bounded is the work."""
    small = bomb(6 * MEGABYTE)
    more = [body([8, "", [[0, "key", 1, small]], ""]) for _ in range(12)]
    path = forged(tmp_path / "bombs", [body(started()), *more])

    assert "in all" in inspect_capsule(path, max_state=14 * MEGABYTE).notes[0]
    with pytest.raises(CapsuleInvalid, match="allow more with --max-state"):
        import_run(open_store("memory://"), path, max_state=14 * MEGABYTE)
    assert inspect_capsule(path, max_state=20 * MEGABYTE).is_read


def nested(depth: int) -> bytes:
    """A mapping that holds one that holds one, each as the bytes of a stored value."""
    made = b"\x01\x81\xc0\x91\xc0"
    for _ in range(depth):
        made = b"\x01\x81\xc0\x91\xc5" + len(made).to_bytes(2, "big") + made
    return made


def test_values_within_values_are_not_followed_for_ever(tmp_path: Path) -> None:
    deep = nested(3000)
    assert unpacked_bytes(deep) == 0
    assert inspect_capsule(forged(tmp_path / "config", [body(started(config=deep))])).is_read

    path = forged_fork(tmp_path / "snapshot", RunState(frames={"": Frame("")}, workflow="w", config=deep))
    assert inspect_capsule(path).is_read
    assert import_run(open_store("memory://"), path).outcome == "copied"


OTHER = b"\x02" * 8


def forged_fork(path: Path, run: RunState | None, first: bytes | None = None, **facts: Any) -> Path:
    """The capsule of a fork: a first entry that refers to another run, and, if there is a run, its snapshot."""
    begun = body([14, "other", 3, "", b"", OTHER, b"c" * 16]) if first is None else first
    own = {"workflow": "w", "status": "interrupted", "under_way": True, "parent": OTHER, **facts}
    said, (kind, entry), _ = parts_of(forged(path, [begun], **own))
    if run is None:
        return sections(path, said, (kind, entry))
    chain_, content = entry[16:32], SEALED if first == SEALED else encode_run(run, Track(), Codec())
    digest = hashlib.blake2b(chain_ + content, digest_size=16).digest()
    return sections(
        path, said, (Kind.SNAPSHOT, payload_of(Snapshot(1, 1.0, chain_, digest + content))), (kind, entry)
    )


@pytest.mark.parametrize(
    ("claim", "match"),
    [
        ({"status": "completed"}, "status 'completed', not 'interrupted'"),
        ({"status": "failed", "under_way": False}, "status 'failed', not 'interrupted'"),
        ({"under_way": False}, "under way False, not True"),
        ({"workflow": "other"}, "workflow 'other', not 'w'"),
        ({"parent": OTHER}, "said to be a fork"),
    ],
)
def test_claims_that_the_journal_does_not_tell_are_refused(
    claim: dict[str, Any], match: str, tmp_path: Path
) -> None:
    refused(forged(tmp_path / "claims", [body(started())], **claim), match)


def test_a_fork_says_what_it_is_a_fork_of(tmp_path: Path) -> None:
    run = RunState(frames={"": Frame("")}, workflow="w")

    assert inspect_capsule(forged_fork(tmp_path / "fork", run)).is_read
    refused(forged_fork(tmp_path / "of another", run, parent=b"\x03" * 8), "parent '0303030303030303', not")
    refused(forged_fork(tmp_path / "of none", run, parent=b""), "parent '', not '0202020202020202'")
    refused(forged_fork(tmp_path / "alone", None), "said to be a fork")
    refused(forged_fork(tmp_path / "none", run, first=body(started())), "which only forks have")
    refused(forged_fork(tmp_path / "hidden", run, first=body(["rubbish"])), "cannot be read")


def test_a_run_that_claims_to_be_a_fork_does_not_hold_another(store: Store, tmp_path: Path) -> None:
    app = chain("a", "b").compile(store)
    app.invoke({"n": 1}, run_id="victim")
    (victim,) = store.runs(run="victim")
    refused(forged_fork(tmp_path / "evil", None, first=SEALED, parent=victim.key), "said to be a fork")

    run = RunState(frames={"": Frame("")}, workflow="w")
    stopped = {"parent": victim.key, "under_way": False}
    assert import_run(store, forged_fork(tmp_path / "evil", run, first=SEALED, **stopped)).notes
    journal = Journal(store)
    assert prune_run(journal, victim, app.checkpoints("victim")[-1].seq)
    assert delete_run(journal, "victim")


def test_a_run_whose_encrypted_fork_is_read_through_it_stays_until_the_key_is_here(store: Store) -> None:
    """Deleting a parent never breaks its fork; the message names a remedy."""
    key = "6b" * 32
    app = chain("a", "b").compile(store, encryption_key=key)
    app.invoke({"n": 1}, run_id="r")
    fork = app.fork("r", at=1, run_id="f")

    with pytest.raises(CodecError, match=r"fork 'f' is read through.*HOLDFAST_KEY.*delete the fork first"):
        delete_run(Journal(store), "r")
    assert delete_run(Journal(store, Seal.from_text(key)), "r")
    assert fork and app.resume("f").status == "completed"


def test_a_capsule_of_a_run_that_was_found_damaged_is_one(tmp_path: Path) -> None:
    store = open_store("memory://")
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    (info,), last = store.runs(run="r"), [*store.read("r")][-1].seq
    store.commit([Append("r", last, [], dataclasses.replace(info, status="damaged"))])

    assert inspect_capsule(exported(store, "r", tmp_path)).status == "damaged"


def test_values_that_look_like_the_beginning_of_a_run_are_values() -> None:
    """The number 1 is stored as the byte that bodies begin with, and a key may begin with any bytes."""
    track = Track()
    records = [
        Noted("a#1", "k", Codec().encode(1)),
        Answered("p", Codec().encode(1)),
        Forked("p", 3, None, "", b"", b"\x01\x85abcdef", b"\x01\xde" + b"x" * 14),
    ]
    assert unpacked_bytes(encode_records(records, track)) == 0

    run = RunState()
    run.frames[""] = Frame("", advance({}, [make_op(Codec(), "set", "k", "x" * 5000)]))
    body = encode_run(run, Track(), Codec())
    assert unpacked_bytes(encode_records([records[0], Reset("s", 1, body, run)], track)) > 5000
