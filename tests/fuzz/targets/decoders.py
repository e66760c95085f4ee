"""Readers of stored bytes: values, records, snapshots, packed and sealed bodies, marks, ids, messages, frames."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

from holdfast.capsules.format import unpacked_bytes
from holdfast.capsules.summary import check_record, check_run
from holdfast.engine.commands.inbox import UNREADABLE, RunCommand, checksummed, read_message, write_message
from holdfast.errors import CapsuleInvalid, CheckpointNotFound, CodecError, CorruptJournal, StoreError
from holdfast.journal.checkpoint_ids import (
    checkpoint_id,
    decode_checkpoint,
    encode_mark,
    is_checkpoint_id,
    locate_checkpoint,
    sealed_mark,
    times_reset,
)
from holdfast.journal.encoding import Track, decode_records, decode_run, encode_records, encode_run
from holdfast.journal.sealing import Seal
from holdfast.state.codec import DELTA, STORED, ZSTD, Codec, TolerantCodec, pack, unpack
from holdfast.state.types import Types
from holdfast.stores.base import Entry, RunInfo, StoredCheckpoint
from holdfast.stores.files import frames
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.making import packed
from tests.fuzz.target import MEGABYTE, Check, Target, Wrong

GIGABYTE = 1024 * MEGABYTE


class Colour(enum.Enum):
    """A type of the user's."""

    RED = 1
    BLUE = "b"


@dataclasses.dataclass(frozen=True)
class Point:
    """Another one."""

    x: int
    label: str = ""
    inner: Any = None


TYPES = Types.of(Colour, Point)


def codec() -> Check:
    """Reading a value that anybody may have written, and storing again what was read."""
    strict, tolerant = Codec(TYPES), TolerantCodec()

    def check(data: bytes) -> str:
        told = "refused"
        try:
            found = strict.decode(b"\x01" + data)
        except CodecError:
            pass
        else:
            _stays(strict, found, told := type(found).__name__)
        found = tolerant.decode(b"\x01" + data)
        _stays(tolerant, found, "tolerant")
        return f"{type(found).__name__}, strict {told}"

    return check


def _stays(codec: Codec, found: Any, told: str) -> None:
    """What was read can be stored, and is the same when it is read again."""
    try:
        once = codec.encode(found)
    except CodecError as error:
        if "nested deeper" in str(error):
            return
        raise Wrong(f"{told}: what was read cannot be stored: {error}") from error
    twice = codec.encode(codec.decode(once))
    if once != twice:
        raise Wrong(f"{told}: stored twice it is another value: {once!r} and {twice!r}")


def records() -> Check:
    """The records of an entry; what has the shape of records comes back as it was from their bytes."""
    reading = TolerantCodec()

    def check(data: bytes) -> str:
        found = decode_records(b"\x01" + data, Track(), reading)
        try:
            for record in found:
                check_record(record)
        except CapsuleInvalid:
            return "odd records"
        body = encode_records(found, Track())
        if (again := encode_records(decode_records(body, Track(), reading), Track())) != body:
            raise Wrong(f"written twice: {body!r} and {again!r}")
        return "records " + "".join(sorted({type(record).__name__[:3] for record in found})[:3])

    return check


def snapshots() -> Check:
    """A folded run; what has the shape of a run comes back as it was from its bytes."""
    reading = TolerantCodec()

    def check(data: bytes) -> str:
        run = decode_run(b"\x01" + data, Track(), reading)
        try:
            check_run(run)
        except CapsuleInvalid:
            return "an odd run"
        try:
            body = encode_run(run, Track(), reading)
        except CodecError:
            return "a run with odd values"
        if (again := encode_run(decode_run(body, Track(), reading), Track(), reading)) != body:
            raise Wrong(f"written twice: {body!r} and {again!r}")
        return f"a run of {min(3, len(run.frames))} frames, {run.status}"

    return check


def compress() -> Check:
    """Packed bodies, alone or as differences; no base but the right one gives a value."""

    def check(data: bytes) -> str:
        choices = Choices(data)
        way, base = choices.below(8), choices.raw(1) * 600 + choices.raw(40) * 30
        size, rest = 4 * choices.byte(), choices.rest()
        if way < 4:
            how, wanted = (STORED, ZSTD, DELTA, 3 + size)[way], None if way == 1 else base
            return f"read {how}: {min(4, len(unpack(how, rest, wanted)))}"
        if way == 7:
            return f"asks for {min(4, unpacked_bytes(rest))}"
        raw = base[:size] + rest * (1 + 700 // (1 + len(rest)))
        how, small = pack(raw, None if way == 4 else base)
        if len(small) > len(raw) or unpack(how, small, base) != raw:
            raise Wrong(f"packed as {how}, it is another value")
        other = bytes(byte ^ 1 for byte in base)
        if way == 6 and how == DELTA and unpack(how, small, other) != raw:
            raise Wrong("a wrong base was not noticed")
        return f"packed {how}"

    return check


KEYS = [bytes(range(32)), bytes(range(1, 33))]


def sealed() -> Check:
    """Encrypted bodies, and the texts that keys are given as."""
    seal = Seal(KEYS)
    whole = [seal.seal(plain, b"run:1") for plain in (b"", b"a secret", bytes(300))]

    def check(data: bytes) -> str:
        choices = Choices(data)
        way = choices.below(4)
        if way == 0:
            return repr(Seal.from_text(choices.rest().decode("utf-8", "surrogateescape")))[:8]
        body = bytearray(choices.of(whole))
        if way == 1:
            seal.open(choices.rest(), b"run:1")
            raise Wrong("bytes that nobody sealed were opened")
        place, bits, aad = (
            choices.below(len(body)),
            choices.byte(),
            b"run:1" if way == 2 else b"run:" + choices.rest(),
        )
        body[place] ^= bits
        opened = seal.open(bytes(body), aad)
        if bits or aad != b"run:1":
            raise Wrong(f"a changed body was opened: byte {place}, {aad!r}: {opened!r}")
        return "opened"

    return check


RUN_KEY = bytes(range(8))


def marks() -> Check:
    """The marks of checkpoints: a changed one is never read as another, and their ids lead back to them."""
    nodes, at = ["write", "é", ""], 1_700_000_000.25
    plain = encode_mark(7, nodes, ["next"], "outer#1")
    whole = [sealed_mark(plain, RUN_KEY, 300, at, resets) for resets in (0, 1, 2**31)]

    def check(data: bytes) -> str:
        choices = Choices(data)
        way = choices.below(3)
        if way == 0:
            mark = StoredCheckpoint(300, at, choices.rest(), 1)
            found = decode_checkpoint(RUN_KEY, mark, "r")
            return f"a mark, {times_reset(mark.facts) > 0}, {found.wave > 0}"
        good = choices.of(whole)
        body, place, bits, seq = (
            bytearray(good),
            choices.below(len(good)),
            choices.byte(),
            300 + choices.below(2),
        )
        body[place] ^= bits
        if way == 2:
            del body[choices.below(len(body)) :]
        found = decode_checkpoint(RUN_KEY, StoredCheckpoint(seq, at, bytes(body), 1), "r")
        # Another way to write the same number is no change that anybody sees.
        told = (found.wave, list(found.nodes), list(found.next), found.frame, times_reset(bytes(body)))
        if seq != 300 or told != (7, nodes, ["next"], "outer#1", times_reset(good)):
            raise Wrong(f"a changed mark was read: {bytes(body)!r} at {seq}")
        return "the mark"

    return check


def ids() -> Check:
    """Checkpoint ids, made and found again, and anything that people give for one."""

    def check(data: bytes) -> str:
        if len(data) == 16:
            key, seq = (
                (int.from_bytes(data[:8], "big") >> 1).to_bytes(8, "big"),
                int.from_bytes(data[9:], "big"),
            )
            ident = checkpoint_id(key, seq)
            if locate_checkpoint(ident) != (key, seq) or not is_checkpoint_id(ident):
                raise Wrong(f"{ident} is of {key!r} {seq}, and leads to {locate_checkpoint(ident)}")
            return "made"
        text = data.decode("utf-8", "surrogateescape")
        is_one = is_checkpoint_id(text)
        key, seq = locate_checkpoint(text)
        if is_one and checkpoint_id(key, seq) != text.lower() and int.from_bytes(key, "big") >> 63 == 0:
            return "another's"
        return f"found, {is_one}"

    return check


_COMMANDS = (UNREADABLE, "answer", "inject", "edit", "replan")


def messages() -> Check:
    """Messages in an inbox: what cannot be read is an unknown command, and nothing is ever raised."""

    def check(data: bytes) -> str:
        command = read_message(data if data[:1] == b"\x01" else checksummed(data))
        if not isinstance(command, RunCommand):
            raise Wrong(f"{command!r} is no command")
        if data[:1] == b"\x01" and command.kind != UNREADABLE:
            again = read_message(write_message(command))
            if again != command._replace(refused="") and repr(again) != repr(command):
                raise Wrong(f"{command} comes back as {again}")
        kind = command.kind if command.kind in _COMMANDS else "another"
        return f"{kind} {bool(command.changes)} {bool(command.additions)}"

    return check


def file_frames() -> Check:
    """The journal of a file store, frame by frame: a changed one is refused, or its tail was never written."""
    info = RunInfo("r", RUN_KEY, "w", "running", 1.0, 2.0)
    entries = [Entry(seq, 1.5, b"c" * 16, b"body" * seq, b"\x94" if seq % 2 else None) for seq in range(1, 6)]
    whole = [
        frames.encode(0, entries[:1], info),
        frames.encode(1, entries[1:4]),
        frames.encode(4, entries[4:], info),
    ]
    journal = b"".join(whole)
    fd = os.memfd_create("journal")

    def check(data: bytes) -> str:
        choices = Choices(data)
        changed = bytearray(journal)
        for _ in range(1 + choices.below(3)):
            way, at = choices.below(6), choices.below(len(changed) + 1)
            if way == 0:
                changed[at : at + 1] = choices.raw(1)
            elif way == 1:
                del changed[at:]
            elif way == 2:
                changed[at : at + choices.below(80)] = b""
            elif way == 3:
                changed[at:] = bytes(len(changed) - at)
            elif way == 4:
                changed[at:at] = choices.of(whole)
            else:
                changed[at:at] = choices.raw(choices.below(50))
        os.ftruncate(fd, 0)
        os.pwrite(fd, changed, 0)
        found, facts = [], 0
        for frame in frames.scan(fd, 0, len(changed), "r"):
            found += frames.read_entries(fd, frame, "r")
            facts += frames.read_facts(fd, frame, "r") is not None
            frames.read_sizes(fd, frame, "r")
            frames.salvage_entries(fd, frame)
        if not all(entry in entries for entry in found):
            raise Wrong(f"an entry was read that was never written: {found}")
        return f"{len(found)} entries, {facts}"

    return check


def facts() -> Check:
    """The facts of a run as JSON beside its journal."""

    def check(data: bytes) -> str:
        head = frames.parse_head(data)
        info = frames.parse_facts(data)
        if (
            head is not None
            and frames.parse_facts(frames.facts_json(info, head)) != info
            and info.at == info.at
        ):
            raise Wrong(f"{info} comes back as another")
        return f"facts, {head is None}"

    return check


def _ids_seeds() -> list[bytes]:
    some = [checkpoint_id(RUN_KEY, seq).encode() for seq in (1, 2**40)]
    return [*some, some[0].upper(), b"urn:uuid:" + some[0], b"{" + some[0] + b"}", bytes(16), b"\xff" * 16]


def _facts_seeds() -> list[bytes]:
    info = RunInfo("r", RUN_KEY, "w", "running", 1.0, 2.0, tags=("a", "é"), parent=RUN_KEY)
    return [frames.facts_json(info, 5), frames.facts_json(info), b"{}", b"[1]"]


def _message_seeds() -> list[bytes]:
    from holdfast.engine.commands.inbox import Change, StepRequest

    changes = (Change(("a", "b"), b"\x01\x05"),)
    some = [
        RunCommand("answer", pause="p", value=b"\x01\x05", by="ada"),
        RunCommand("inject", additions=(StepRequest("n", "k", changes), StepRequest("m")), follow=True),
        RunCommand("edit", changes=changes, frame="x#1"),
        RunCommand(
            "replan", definition={"name": "w", "outline": {}, "remap": []}, annotation={"at": 1, "add": ["t"]}
        ),
    ]
    return [body for command in some for body in (write_message(command), write_message(command)[9:])]


TARGETS = [
    Target("codec", codec, (CodecError,), make=packed, share=900, is_decoder=True, longest=600),
    Target(
        "records",
        records,
        (CodecError,),
        make=packed,
        fresh=0.1,
        share=700,
        memory=3 * GIGABYTE,
        is_decoder=True,
        longest=1500,
    ),
    Target(
        "snapshots",
        snapshots,
        (CodecError,),
        make=packed,
        fresh=0.1,
        share=300,
        memory=3 * GIGABYTE,
        is_decoder=True,
        longest=3000,
    ),
    Target(
        "compress",
        compress,
        (CodecError, CapsuleInvalid),
        make=random_choices,
        share=500,
        memory=4 * GIGABYTE,
        is_decoder=True,
        longest=600,
    ),
    Target("sealed", sealed, (CodecError,), make=random_choices, share=700, is_decoder=True),
    Target(
        "marks",
        marks,
        (CorruptJournal,),
        make=random_choices,
        share=900,
        is_decoder=True,
        longest=200,
        seeds=lambda: [b"\0" + encode_mark(1, ["a"], ["b"], "")],
    ),
    Target(
        "ids", ids, (CheckpointNotFound,), _ids_seeds, lambda rng: rng.randbytes(16), share=900, longest=80
    ),
    Target(
        "messages", messages, (), _message_seeds, packed, fresh=0.2, share=700, is_decoder=True, longest=600
    ),
    Target(
        "frames", file_frames, (StoreError,), make=random_choices, share=400, is_decoder=True, longest=300
    ),
    Target(
        "facts",
        facts,
        (ValueError, TypeError, KeyError),
        _facts_seeds,
        share=400,
        is_decoder=True,
        longest=600,
    ),
]
