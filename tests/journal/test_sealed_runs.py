"""A sealed run takes nothing from those who can write to its store and do not have its key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from holdfast import CodecError, CorruptJournal, HoldfastError, open_store
from holdfast.engine.commands import control
from holdfast.engine.commands.control import process_inbox
from holdfast.engine.commands.inbox import ANSWER, CANCEL, EDIT, UNREADABLE, Change, RunCommand, write_message
from holdfast.engine.owner import active_runs
from holdfast.integrity.check import check_store
from holdfast.integrity.repair import repair_store
from holdfast.journal import journal as journal_module
from holdfast.journal import sealing as bodies_module
from holdfast.journal.checkpoint_ids import moved_mark
from holdfast.journal.copying import add_snapshot
from holdfast.journal.encoding import Track, encode_records
from holdfast.journal.journal import Journal, link
from holdfast.journal.records import StateEdited
from holdfast.journal.sealing import CHAIN_BYTES, SEALED, Bodies, Seal, snapshot_digest
from holdfast.state.codec import Codec
from holdfast.state.ops import make_op
from holdfast.stores.base import Append, Entry, Message, RunInfo, Snapshot, Store
from tests.graphs import chain

KEY, STRANGE = "6b" * 32, "73" * 32
SEAL = Seal.from_text(KEY)
CODEC = Codec()
FORGED = encode_records([StateEdited("", (make_op(CODEC, "set", "log", ["forged"]),), "mallory")], Track())
SEQ = 3
"""An entry in the middle of each run."""


class Stored(NamedTuple):
    """Everything that a store has of a run: what an attacker reads and rewrites."""

    info: RunInfo
    entries: list[Entry]
    snapshots: list[Snapshot]
    messages: list[Message]


def ask(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [ctx.ask("who?")]}


def app(store: Store, **options: Any) -> Any:
    return chain("a", "b", "ask", "c", nodes={"ask": ask}).compile(
        store, **{"encryption_key": KEY, **options}
    )


def begin(store: Store, run_id: str) -> Any:
    """A sealed run that waits for an answer, with a snapshot in its middle."""
    made = app(store)
    made.invoke({"log": [run_id]}, run_id=run_id)
    journal = Journal(store, SEAL)
    info = journal.info(run_id)
    add_snapshot(journal, run_id, journal.make_snapshot(journal.load(info, CODEC, SEQ), CODEC))
    return made


def stored(store: Store, run_id: str) -> Stored:
    (info,) = store.runs(run=run_id)
    found = [each for upto in range(1, 20) if (each := store.snapshot(run_id, upto)) and each.seq == upto]
    return Stored(info, list(store.read(run_id)), found, store.inbox(run_id))


def put(store: Store, run: Stored) -> None:
    """Replace a run by what is given."""
    store.delete(run.info.run)
    (conflict,) = store.commit([Append(run.info.run, 0, run.entries, run.info, run.snapshots)])
    assert conflict is None
    for message in run.messages:
        store.post(run.info.run, message.body)


def rechained(run: Stored) -> Stored:
    """With every checksum made right by somebody who has no key: what is sealed says what it follows, too."""
    chain_, entries = journal_module.genesis(run.info.run, run.info.key), list[Entry]()
    for seq, (_, at, _, body, mark) in enumerate(run.entries, 1):
        body = SEALED + chain_ + body[1 + CHAIN_BYTES :] if body[:1] == SEALED else body
        mark = mark and moved_mark(mark, run.info.key, seq, at)
        chain_ = link(chain_, seq, at, mark, body)
        entries.append(Entry(seq, at, chain_, body, mark))
    kept = []
    for each in run.snapshots:
        own, body = entries[each.seq - 1].chain, each.body[CHAIN_BYTES:]
        kept.append(dataclasses.replace(each, chain=own, body=snapshot_digest(own, body) + body))
    return run._replace(entries=entries, snapshots=kept)


def appended(own: Stored, other: Stored) -> Stored:
    last = own.entries[-1]
    at = last.at + 1
    forged = Entry(last.seq + 1, at, link(last.chain, last.seq + 1, at, None, FORGED), FORGED)
    return own._replace(entries=[*own.entries, forged])


def with_entry(own: Stored, **changes: Any) -> Stored:
    entries = [*own.entries]
    entries[SEQ - 1] = entries[SEQ - 1]._replace(**changes)
    return rechained(own._replace(entries=entries, snapshots=[]))


def with_snapshot(own: Stored, content: bytes) -> Stored:
    (each,) = own.snapshots
    body = snapshot_digest(each.chain, content) + content
    return own._replace(snapshots=[dataclasses.replace(each, body=body)])


def forged_snapshot() -> bytes:
    """The snapshot of a run like it, in the clear, with another state."""
    store = open_store("memory://")
    app(store, encryption_key=None).invoke({"log": ["forged"]}, run_id="r")
    journal = Journal(store)
    return journal.make_snapshot(journal.load(journal.info("r"), CODEC, SEQ), CODEC).body[CHAIN_BYTES:]


def with_strange_key(own: Stored) -> Stored:
    strange = Bodies(Seal.from_text(STRANGE), "default", own.info.run, own.info.key)
    last = own.entries[-1]
    at, seq = last.at + 1, last.seq + 1
    body = strange.seal_entry(last.chain, seq, at, None, FORGED)
    entry = Entry(seq, at, link(last.chain, seq, at, None, body), body)
    return own._replace(entries=[*own.entries, entry])


def with_tail_of(own: Stored, other: Stored) -> Stored:
    return rechained(own._replace(entries=[*own.entries[:SEQ], *other.entries[SEQ:]], snapshots=[]))


def swapped(own: Stored) -> Stored:
    one, two = own.entries[SEQ - 1], own.entries[SEQ]
    entries = [*own.entries]
    entries[SEQ - 1], entries[SEQ] = two._replace(seq=SEQ), one._replace(seq=SEQ + 1)
    return rechained(own._replace(entries=entries, snapshots=[]))


def unmarked(own: Stored) -> Stored:
    place = next(place for place, entry in enumerate(own.entries) if entry.mark is not None)
    entries = [*own.entries]
    entries[place] = entries[place]._replace(mark=None)
    return rechained(own._replace(entries=entries, snapshots=[]))


def over(own: Stored, seq: int, content: bytes, body: bytes, *, pruned: bool = False) -> Stored:
    """With another body of an entry, its chain left alone, and a snapshot there; and nothing before if `pruned`."""
    entries = [*own.entries]
    entries[seq - 1] = entry = entries[seq - 1]._replace(body=body)
    snapshot = Snapshot(seq, entry.at, entry.chain, snapshot_digest(entry.chain, content) + content)
    return own._replace(entries=entries[seq - 1 if pruned else 0 :], snapshots=[snapshot])


def with_clear_end(own: Stored) -> Stored:
    """The last two entries in the clear, their chain made right, with a state to go on from."""
    *kept, before, last = own.entries
    chain_ = link(before.chain, last.seq, last.at, last.mark, FORGED)
    entries = [*kept, before._replace(body=FORGED), last._replace(body=FORGED, chain=chain_)]
    return over(own._replace(entries=entries), last.seq, forged_snapshot(), FORGED)


def genuine(own: Stored) -> bytes:
    """The sealed snapshot that the run has."""
    return own.snapshots[0].body[CHAIN_BYTES:]


def flipped(body: bytes) -> bytes:
    return b"\0" + body[1:]


def other_bytes(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


OTHER_SNAPSHOT = "the snapshot of another run"

ATTACKS: dict[str, tuple[Callable[[Stored, Stored], Stored], str]] = {
    "an unsealed entry is appended": (appended, "is not encrypted, and the entries before it are"),
    "an unsealed entry in the middle": (
        lambda own, other: with_entry(own, body=FORGED),
        f"entry {SEQ} is not encrypted, and the entries before it are",
    ),
    "an entry of a same-named run of another namespace": (
        lambda own, other: with_entry(own, body=other.entries[SEQ - 1].body),
        f"entry {SEQ} does not open with its key",
    ),
    "the end of a same-named run of another namespace": (with_tail_of, f"entry {SEQ + 1} does not open"),
    "all of a same-named run of another namespace": (
        lambda own, other: other,
        "entry 1 does not open with its key",
    ),
    "all of it, under the key of this run": (
        lambda own, other: rechained(other._replace(info=own.info)),
        "entry 1 does not open with its key",
    ),
    "two entries swapped": (lambda own, other: swapped(own), f"entry {SEQ} does not open with its key"),
    "an entry twice": (
        lambda own, other: with_entry(own, body=own.entries[SEQ - 2].body),
        f"entry {SEQ} does not open with its key",
    ),
    "another time": (lambda own, other: with_entry(own, at=1.0), f"entry {SEQ} does not open with its key"),
    "a checkpoint that is none any more": (lambda own, other: unmarked(own), "does not open with its key"),
    "a mark of another checkpoint": (
        lambda own, other: with_entry(own, mark=own.entries[-1].mark),
        f"entry {SEQ} does not open with its key",
    ),
    "a sealed body that claims to be plain": (
        lambda own, other: with_entry(own, body=own.entries[SEQ - 1].body[1 + CHAIN_BYTES :]),
        f"entry {SEQ} is not encrypted",
    ),
    "an entry sealed with the attacker's key": (
        lambda own, other: with_strange_key(own),
        "is sealed with another key, which is not here",
    ),
    "an unsealed state over its last entry": (
        lambda own, other: over(own, len(own.entries), forged_snapshot(), b"\0"),
        "is not encrypted, and the entries before it are",
    ),
    "an unsealed state in the middle": (
        lambda own, other: over(own, SEQ, forged_snapshot(), b"\0"),
        f"entry {SEQ} is not encrypted, and the entries before it are",
    ),
    "an unsealed state as if it had been pruned": (
        lambda own, other: over(own, SEQ, forged_snapshot(), b"\0", pruned=True),
        f"the snapshot at {SEQ}, before which it was pruned, is not encrypted, and entry {SEQ + 1} is",
    ),
    "an unsealed end with its state": (
        lambda own, other: with_clear_end(own),
        "is not encrypted, and the entries before it are",
    ),
    "an unsealed flag of an entry that has its state": (
        lambda own, other: over(own, SEQ, genuine(own), flipped(own.entries[SEQ - 1].body)),
        f"the snapshot at {SEQ} is encrypted, and its entry is not",
    ),
    "an unsealed flag where it was pruned": (
        lambda own, other: over(own, SEQ, genuine(own), flipped(own.entries[SEQ - 1].body), pruned=True),
        f"the snapshot at {SEQ} is encrypted, and its entry is not",
    ),
    "a sealed body that was changed where it was pruned": (
        lambda own, other: over(own, SEQ, genuine(own), other_bytes(own.entries[SEQ - 1].body), pruned=True),
        f"entry {SEQ} is damaged",
    ),
    "an old state over a later entry, where it was pruned": (
        lambda own, other: over(own, SEQ + 1, genuine(own), own.entries[SEQ].body, pruned=True),
        f"the snapshot at {SEQ + 1}, before which it was pruned, is missing or damaged",
    ),
    "a snapshot of before, over a later entry": (
        lambda own, other: over(own, SEQ + 1, genuine(own), own.entries[SEQ].body),
        f"the snapshot at {SEQ + 1} does not open with its key",
    ),
    "a snapshot that claims to be plain": (
        lambda own, other: with_snapshot(own, flipped(genuine(own))),
        f"the snapshot at {SEQ} is not encrypted, and its entry is",
    ),
    "an unsealed snapshot": (
        lambda own, other: with_snapshot(own, forged_snapshot()),
        f"the snapshot at {SEQ} is not encrypted, and its entry is",
    ),
    OTHER_SNAPSHOT: (
        lambda own, other: with_snapshot(own, other.snapshots[0].body[CHAIN_BYTES:]),
        f"the snapshot at {SEQ} does not open with its key",
    ),
}


@pytest.fixture
def other(store_url: str) -> Iterator[Stored]:
    """A run of the same name and key, in another namespace, with the same steps."""
    opened = open_store(store_url, namespace="tenant")
    begin(opened, "r")
    yield stored(opened, "r")
    opened.close()


def problems(store: Store, **options: Any) -> str:
    return "\n".join(check_store(store, **{"seal": SEAL, **options}).problems)


def test_what_is_written_without_the_key_is_neither_read_nor_resumed_and_fsck_tells(
    store: Store, other: Stored
) -> None:
    made = begin(store, "r")
    own = stored(store, "r")
    assert problems(store) == ""

    for attack, (change, told) in ATTACKS.items():
        put(store, change(own, other))

        assert told in problems(store), attack
        if "snapshot" in attack:  # It is a cache, and the journal is read instead.
            assert made.get_state("r")["log"] == ["r", "a", "b"], attack
            continue
        for use in (made.get_state, made.resume):
            with pytest.raises((CorruptJournal, CodecError)):
                use("r")
                pytest.fail(attack)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "seal" in name and "key" not in name])
def test_what_is_not_sealed_in_a_sealed_run_is_told_without_the_key_too(memory: Store, attack: str) -> None:
    begin(memory, "r")
    change, told = ATTACKS[attack]
    own = stored(memory, "r")

    put(memory, change(own, own))

    assert told in problems(memory, seal=None)


def test_an_entry_of_another_history_of_the_same_run_is_refused(store: Store) -> None:
    """A store that was restored, and went on otherwise: the same place of the same run, behind another entry."""
    made, journal = begin(store, "r"), Journal(store, SEAL)
    begun = stored(store, "r")

    def edited(*words: str) -> Stored:
        put(store, begun)
        for word in words:
            control.send(journal, "r", control.edit({"log": [word]}), graph=made.graph)
        return stored(store, "r")

    one, two = edited("one"), edited("other", "two")
    spliced = [*one.entries, *two.entries[len(one.entries) :]]
    late = one.entries[-1]._replace(at=one.entries[-1].at + 1)
    assert late.mark is None and len(spliced) == len(two.entries)

    for forged, seq in ((spliced, len(spliced)), ([*one.entries[:-1], late], late.seq)):
        put(store, rechained(begun._replace(entries=forged)))
        assert f"entry {seq} does not open with its key" in problems(store)
        with pytest.raises(CorruptJournal, match=f"entry {seq} does not open with its key"):
            made.get_state("r")


def test_a_snapshot_is_not_taken_where_the_journal_was_pruned_either(store: Store, other: Stored) -> None:
    made = begin(store, "r")
    whole = stored(store, "r")
    (snapshot,) = whole.snapshots
    store.prune("r", snapshot)
    pruned = stored(store, "r")
    assert problems(store) == "" and made.get_state("r")["log"] == ["r", "a", "b"]

    for content, told in (
        (forged_snapshot(), f"is not encrypted, and entry {SEQ} is"),
        (other.snapshots[0].body[CHAIN_BYTES:], "is missing or damaged"),
    ):
        put(store, with_snapshot(pruned, content))
        assert f"the snapshot at {SEQ}, before which it was pruned, {told}" in problems(store)
        with pytest.raises(CorruptJournal, match=f"the snapshot at {SEQ}"):
            made.get_state("r")
    first = pruned.entries[0]._replace(body=other.entries[SEQ - 1].body)
    put(store, pruned._replace(entries=[first, *pruned.entries[1:]]))
    assert f"entry {SEQ} is damaged" in problems(store)


def answer(value: str) -> bytes:
    return write_message(RunCommand(ANSWER, value=CODEC.encode(value), by="mallory"))


UNSEALED = {
    "an answer": answer("forged"),
    "an edit": write_message(RunCommand(EDIT, changes=(Change(("log",), CODEC.encode(["forged"])),))),
    "a cancel": write_message(RunCommand(CANCEL)),
}


@pytest.mark.parametrize("message", UNSEALED)
def test_an_unsealed_message_is_refused_recorded_and_told(store: Store, message: str) -> None:
    made = begin(store, "r")
    store.post("r", UNSEALED[message])
    assert "message 1 is not encrypted, and the run is" in problems(store)
    assert "message 1 is not encrypted, and the run is" in problems(store, seal=None)

    process_inbox(Journal(store, SEAL), "r", CODEC)

    assert made.get_state("r")["log"] == ["r", "a", "b"]
    (refusal,) = Journal(store, SEAL).load(store.runs(run="r")[0], CODEC).run.refusals
    assert "is not encrypted" in refusal.reason and refusal.number == 1
    assert made.resume("r", answer="me").state["log"] == ["r", "a", "b", "me", "c"]


def test_whoever_has_no_key_is_told_so_before_anything_is_posted(store: Store) -> None:
    begin(store, "r")

    with pytest.raises(CodecError, match="run 'r' is encrypted, and takes encrypted messages only"):
        control.send(Journal(store), "r", control.edit({"log": ["me"]}))

    assert store.inbox("r") == []


def test_a_run_under_way_refuses_what_is_not_sealed(store: Store) -> None:
    def forge(state: Any) -> dict[str, Any]:
        store.post("r", UNSEALED["a cancel"])
        store.post("r", UNSEALED["an edit"])
        drive = active_runs.find(store, "r")
        assert drive is not None
        drive.request_look()
        return {"log": ["forge"]}

    made = chain("forge", "b", "c", nodes={"forge": forge}).compile(store, encryption_key=KEY)

    outcome = made.invoke({"log": []}, run_id="r")

    assert outcome.status == "completed" and outcome.state["log"] == ["forge", "b", "c"]
    refusals = Journal(store, SEAL).load(store.runs(run="r")[0], CODEC).run.refusals
    assert [(each.number, each.command) for each in refusals] == [(1, UNREADABLE), (2, UNREADABLE)]


def test_what_was_forged_is_left_out_of_what_is_repaired(store: Store, tmp_path: Path) -> None:
    made = begin(store, "r")
    own = stored(store, "r")
    put(store, appended(own, own))

    (repair,) = repair_store(store, seal=SEAL, aside=tmp_path).runs

    assert repair.new_run == "r-repaired" and check_store(store, ["r-repaired"], seal=SEAL).is_fine
    made.resume("r-repaired")
    assert made.resume("r-repaired", answer="me").state["log"] == ["r", "a", "b", "me", "c"]


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "unsealed" in name])
def test_what_is_repaired_has_nothing_that_was_written_without_the_key(
    memory: Store, tmp_path: Path, attack: str
) -> None:
    made = begin(memory, "r")
    own = stored(memory, "r")
    forged = ATTACKS[attack][0](own, own)
    put(memory, forged)

    (refused,) = repair_store(memory, aside=tmp_path).runs
    assert "run 'r' is encrypted; set HOLDFAST_KEY to its key to repair it" in refused.refused
    assert stored(memory, "r") == forged
    (repair,) = repair_store(memory, seal=SEAL, aside=tmp_path).runs

    name = repair.new_run or "r"
    if repair.new_run or "snapshot" in attack:
        assert "forged" not in made.get_state(name)["log"] and problems(memory, runs=[name]) == ""
    else:
        assert memory.runs(run="r")[0].status == "damaged" and len(memory.runs()) == 1


def test_a_sealed_run_without_its_snapshots_or_pruned_is_whole(store: Store) -> None:
    made = begin(store, "r")
    own = stored(store, "r")

    put(store, own._replace(snapshots=[]))
    assert problems(store) == problems(store, seal=None) == ""
    assert made.get_state("r")["log"] == ["r", "a", "b"]
    put(store, own._replace(entries=own.entries[SEQ - 1 :]))
    assert problems(store) == problems(store, seal=None) == ""
    assert made.resume("r", answer="me").state["log"] == ["r", "a", "b", "me", "c"]


def in_clear(store: Store, *, pruned: bool) -> Stored:
    """A run in the clear that waits, with a snapshot in its middle."""
    app(store, encryption_key=None).invoke({"log": ["r"]}, run_id="r")
    journal = Journal(store)
    info = journal.info("r")
    snapshot = journal.make_snapshot(journal.load(info, CODEC, SEQ), CODEC)
    add_snapshot(journal, "r", snapshot)
    if pruned:
        store.prune("r", snapshot)
    return stored(store, "r")


@pytest.mark.parametrize("pruned", [False, True])
def test_a_run_with_snapshots_in_the_clear_is_read_from_sealed_ones_once_it_is_sealed(
    store: Store, pruned: bool
) -> None:
    """Whoever has no key can change its snapshots in the clear, and what was before them is gone or not asked."""
    clear, made = in_clear(store, pruned=pruned), app(store)
    journal = Journal(store, SEAL)
    assert made.get_state("r")["log"] == ["r", "a", "b"]

    control.send(journal, "r", control.edit({"log": ["sealed"]}), graph=made.graph)
    log = made.get_state("r")["log"]
    assert problems(store) == problems(store, seal=None) == ""
    own = stored(store, "r")
    first = next(entry.seq for entry in own.entries if entry.body[:1] == SEALED)
    assert [each.seq for each in own.snapshots] == [SEQ, first] and first == clear.entries[-1].seq + 1
    content = forged_snapshot()
    forged = [with_snapshot(clear, content).snapshots[0], *own.snapshots[1:]]
    put(store, own._replace(snapshots=forged))

    assert made.get_state("r")["log"] == log and "sealed" in log
    assert len(list(journal.history(journal.info("r"), CODEC)[1])) == len(own.entries) - (
        first - SEQ if pruned else 0
    )
    if pruned:
        with pytest.raises(
            CorruptJournal, match=f"the snapshot at {SEQ} is not encrypted, and entry {first} is"
        ):
            journal.load(journal.info("r"), CODEC, SEQ)
        put(store, own._replace(snapshots=forged[:1]))
        assert f"is not encrypted, and entry {first} is" in problems(store)
        assert f"is not encrypted, and entry {first} is" in problems(store, seal=None)
        for use in (made.get_state, made.resume):
            with pytest.raises(CorruptJournal, match=f"is not encrypted, and entry {first} is"):
                use("r")
        return
    earlier = journal.make_snapshot(journal.load(journal.info("r"), CODEC, SEQ), CODEC)
    assert b"forged" not in earlier.body and earlier.body[CHAIN_BYTES:] != content
    assert f"the snapshot at {SEQ} is not what the journal adds up to" in problems(store)


def test_entries_in_the_clear_count_only_where_the_first_sealed_one_was_written_behind_them(
    store: Store,
) -> None:
    clear, journal = in_clear(store, pruned=False), Journal(store, SEAL)
    control.send(journal, "r", control.edit({"log": ["sealed"]}), graph=app(store).graph)
    own = stored(store, "r")
    assert journal.load(journal.info("r"), CODEC, SEQ).seq == SEQ

    forged = rechained(with_entry(clear, body=FORGED)).entries
    put(store, own._replace(entries=[*forged, *own.entries[len(forged) :]], snapshots=[]))

    with pytest.raises(CorruptJournal, match="was sealed to follow another entry"):
        journal.load(journal.info("r"), CODEC, SEQ)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_sealed_fork_does_not_begin_with_what_a_snapshot_in_the_clear_says_of_its_parent(
    store: Store, pruned: bool
) -> None:
    clear, made = in_clear(store, pruned=pruned), app(store)
    made.fork("r", run_id="f")
    log = made.get_state("f")["log"]
    assert log == ["r", "a", "b"] and problems(store) == ""

    put(store, with_snapshot(clear, forged_snapshot()))

    assert made.get_state("f")["log"] == log
    assert "forged" in made.get_state("r")["log"]  # All of that one is in the clear.


def test_a_message_is_taken_by_its_own_run_under_its_own_number_and_once(
    store: Store, store_url: str, other: Stored
) -> None:
    """Sealed messages of other runs, of other namespaces, of other numbers, and what was said before."""
    made, journal = begin(store, "r"), Journal(store, SEAL)
    begin(store, "s")
    tenant = open_store(store_url, namespace="tenant")
    if tenant.runs(run="r"):
        Journal(tenant, SEAL).post("r", answer("forged"))
    stolen = [message.body for message in tenant.inbox("r")]
    tenant.close()
    journal.post("s", answer("forged"))
    stolen += [message.body for message in store.inbox("s")]
    control.send(journal, "r", control.edit({"log": ["edited"]}), graph=made.graph)
    edited = made.get_state("r")["log"]
    stolen += [message.body for message in store.inbox("r")]

    for body in stolen:
        store.post("r", body)
    told = problems(store, runs=["r"])
    process_inbox(journal, "r", CODEC)

    assert all(f"message {number} does not open with its key" in told for number in range(2, 2 + len(stolen)))
    assert made.get_state("r")["log"] == edited and edited[-1] == "edited"
    assert len(journal.load(store.runs(run="r")[0], CODEC).run.refusals) == len(stolen)
    assert made.resume("r", answer="me").state["log"] == [*edited, "me", "c"]


def test_messages_of_several_posters_are_sealed_for_the_numbers_that_they_get(store: Store) -> None:
    begin(store, "r")
    journal = Journal(store, SEAL)
    store.post("r", b"")

    assert [journal.post("r", answer(word)) for word in ("one", "two")] == [2, 3]

    info = store.runs(run="r")[0]
    opened = [journal.bodies(info).open_message(message, sealed=True) for message in store.inbox("r", 1)]
    assert opened == [answer("one"), answer("two")]


def test_a_run_that_began_in_the_clear_is_sealed_once_there_is_a_key(store: Store) -> None:
    app(store, encryption_key=None).invoke({"log": ["r"]}, run_id="r")
    store.post("r", answer("before"))
    made = app(store)

    process_inbox(Journal(store, SEAL), "r", CODEC)
    assert problems(store) == ""
    own = stored(store, "r")
    put(store, rechained(own._replace(entries=[*own.entries, own.entries[1]._replace(seq=99)])))

    assert "is not encrypted, and the entries before it are" in problems(store)
    with pytest.raises(CorruptJournal, match="is not encrypted, and the entries before it are"):
        made.get_state("r")


def test_where_encryption_is_required_nothing_in_the_clear_is_read_or_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = app(store, encryption_key=None)
    plain.invoke({"log": ["p"]}, run_id="p")
    with pytest.raises(CodecError, match="encryption is required, and there is no key; set HOLDFAST_KEY"):
        app(store, encryption_key=None, encryption="require")
    with pytest.raises(CodecError, match="the only mode is 'require'"):
        app(store, encryption="sometimes")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "require")
    with pytest.raises(CodecError, match="there is no key"):
        app(store, encryption_key=None)
    with pytest.raises(CodecError, match="there is no key"):
        Seal.from_environment({"HOLDFAST_ENCRYPTION": "require"})

    made = app(store)
    made.invoke({"log": ["s"]}, run_id="s")

    assert made.get_state("s")["log"] == ["s", "a", "b"]
    for use in (made.get_state, made.resume):
        with pytest.raises(CorruptJournal, match="entry 1 is not encrypted, and encryption is required"):
            use("p")
    required = Seal.from_text(KEY, required=True)
    assert "run 'p': entry 1 is not encrypted, and encryption is required" in problems(store, seal=required)
    assert problems(store) == ""


PLANTED = {
    "entries are not bound to the one before": patch.object(
        journal_module, "break_at", lambda previous, sealed, entry: ""
    ),
    "nothing is bound to its place": patch.object(bodies_module, "place", lambda *parts: b""),
    "snapshots and entries need not both be sealed": patch.object(journal_module, "misplaced", lambda *_: ""),
    "snapshots in the clear are taken": patch.object(Journal, "_check_origin", lambda *_: None),
    "the entry of a snapshot is not looked at": patch.object(Journal, "_changed", lambda *_: ""),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_mistakes_are_found(memory: Store, planted: str) -> None:
    """What the attacks are for: with any of these protections gone, one of them succeeds."""
    succeeded = []
    with PLANTED[planted]:
        for attack, (change, _) in ATTACKS.items():
            ours, theirs = open_store("memory://"), open_store("memory://", namespace="tenant")
            made = begin(ours, "r")
            begin(theirs, "r")
            put(ours, change(stored(ours, "r"), stored(theirs, "r")))
            try:
                if made.get_state("r")["log"] != ["r", "a", "b"] or "snapshot" not in attack:
                    succeeded.append(attack)
            except HoldfastError:
                continue
    assert succeeded
