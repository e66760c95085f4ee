"""What is stored of a run as bytes: sealed for one place of one run, or plain."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple, NoReturn

from holdfast.errors import CodecError, CorruptJournal
from holdfast.state.encryption import LEAST_BYTES, BrokenSeal, Seal
from holdfast.stores.base import Entry, Message, Snapshot

SEALED = b"\xff"
"""How a sealed body begins. That of an entry has the chain of the entry before it next, then what `Seal` made."""

CHAIN_BYTES = 16
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
_TIME = struct.Struct(">d")
_NO_MARK = b""


def is_sealed(body: bytes) -> bool:
    """Return whether a body says that it is encrypted."""
    return body[:1] == SEALED


def has_sealed(snapshot: Snapshot) -> bool:
    """Return whether a snapshot says that it is encrypted."""
    return snapshot.body[CHAIN_BYTES : CHAIN_BYTES + 1] == SEALED


def place(*parts: bytes) -> bytes:
    """Return parts as associated data: each with its length, so that no two lists of parts give the same bytes."""
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def snapshot_digest(chain: bytes, body: bytes) -> bytes:
    """Return the checksum that a stored snapshot begins with."""
    return hashlib.blake2b(chain + body, digest_size=CHAIN_BYTES).digest()


class _Place(NamedTuple):
    """Where a body is stored: its name, its entry, what precedes its sealed part, and what that is bound to."""

    name: str
    seq: int | None
    prefix: bytes
    bound: bytes


class Bodies:
    """Seals and opens what is stored of one run.

    What is sealed opens in its own place only: the namespace, the run, its key, and there the entry (after the entry
    that it followed, with its time and its mark), the snapshot or the message of its number.
    """

    def __init__(self, seal: Seal | None, namespace: str, run: str, key: bytes) -> None:
        self._seal, self._run, self._name = seal, (_text(namespace), _text(run), key), run

    # Entries.

    def seal_entry(self, previous: bytes, seq: int, at: float, mark: bytes | None, body: bytes) -> bytes:
        """Return the body of an entry as it is stored: encrypted, if there is a key."""
        return body if self._seal is None else self._sealed(self._entry_place(previous, seq, at, mark), body)

    def open_entry(self, entry: Entry) -> bytes:
        """Return the body of an entry as it was before `seal_entry`."""
        if self._seal is None and entry.body[:1] != SEALED:
            return entry.body
        return self._opened(self._place_of(entry), entry.body)

    def reseal_entry(self, entry: Entry, other: Bodies, previous: bytes, mark: bytes | None) -> bytes:
        """Return the body of an entry for another place, where it follows `previous`: the same bytes every time."""
        new = other._entry_place(previous, entry.seq, entry.at, mark)
        return self._resealed(self._place_of(entry), new, entry.body)

    def seal_like(self, before: Entry, at: float, body: bytes) -> bytes:
        """Return the body of an entry that follows `before`, sealed if that is; this takes the key then."""
        if not is_sealed(before.body):
            return body
        if self._seal is None:
            raise CodecError(
                f"run {self._name!r} is encrypted and not finished: to end it here, or its copy, takes its key; set "
                "HOLDFAST_KEY, or finish the run first"
            )
        return self.seal_entry(before.chain, before.seq + 1, at, None, body)

    def says(self, entry: Entry, body: bytes) -> bool:
        """Return whether an entry has this body, sealed or not; what cannot be opened has not."""
        try:
            return (self.open_entry(entry) if is_sealed(entry.body) else entry.body) == body
        except (CodecError, CorruptJournal):
            return False

    # Snapshots, each with its checksum in front.

    def seal_snapshot(self, chain: bytes, seq: int, at: float, body: bytes, *, sealed: bool) -> bytes:
        """Return the body of a snapshot as it is stored; it is `sealed` if its entry is."""
        if self._seal is not None and sealed:
            body = self._sealed(self._snapshot_place(chain, seq, at), body)
        return snapshot_digest(chain, body) + body

    def open_snapshot(self, snapshot: Snapshot) -> bytes:
        """Return the body of a snapshot as it was before `seal_snapshot`."""
        own = self._snapshot_place(snapshot.chain, snapshot.seq, snapshot.at)
        return self._opened(own, snapshot.body[CHAIN_BYTES:])

    def reseal_snapshot(self, snapshot: Snapshot, other: Bodies, chain: bytes) -> bytes:
        """Return the body of a snapshot for another place, where the chain of its entry is `chain`."""
        own = self._snapshot_place(snapshot.chain, snapshot.seq, snapshot.at)
        new = other._snapshot_place(chain, snapshot.seq, snapshot.at)
        body = self._resealed(own, new, snapshot.body[CHAIN_BYTES:])
        return snapshot_digest(chain, body) + body

    # Messages of the inbox.

    def seal_message(self, number: int, body: bytes) -> bytes:
        """Return a message as it is stored."""
        return body if self._seal is None else self._sealed(self._message_place(number), body)

    def open_message(self, message: Message, *, sealed: bool = False) -> bytes:
        """Return a message as it was before `seal_message`. A run that is `sealed` takes only sealed messages."""
        own = self._message_place(message.number)
        if sealed and not is_sealed(message.body):
            self._refuse(
                f"{own.name} is not encrypted, and the run is: who posted it does not have the run's key"
            )
        return self._opened(own, message.body)

    def reseal_message(self, message: Message, other: Bodies, number: int) -> bytes:
        """Return a message for another place, where its number is `number`."""
        if not is_sealed(message.body):
            return message.body  # The run refuses it there as it does here.
        return self._resealed(self._message_place(message.number), other._message_place(number), message.body)

    def lacks_key(self, body: bytes, *, of_entry: bool) -> bool:
        """Return whether a sealed body, of an entry or of something else, was sealed with a key that is not here."""
        inside = body[1 + CHAIN_BYTES if of_entry else 1 :]
        if len(inside) < LEAST_BYTES:
            self._refuse("a part of it is too short to be encrypted, as it says it is")
        return self._seal is None or not self._seal.has_key_of(inside)

    # Places, and what all bodies have in common.

    def _place_of(self, entry: Entry) -> _Place:
        return self._entry_place(entry.body[1 : 1 + CHAIN_BYTES], entry.seq, entry.at, entry.mark)

    def _entry_place(self, previous: bytes, seq: int, at: float, mark: bytes | None) -> _Place:
        marked = (_NO_MARK,) if mark is None else (b"marked", mark)
        bound = place(b"entry", *self._run, _NUMBER.pack(seq), previous, _TIME.pack(at), *marked)
        return _Place(f"entry {seq}", seq, previous, bound)

    def _snapshot_place(self, chain: bytes, seq: int, at: float) -> _Place:
        bound = place(b"snapshot", *self._run, _NUMBER.pack(seq), chain, _TIME.pack(at))
        return _Place(f"the snapshot at {seq}", seq, b"", bound)

    def _message_place(self, number: int) -> _Place:
        bound = place(b"message", *self._run, _NUMBER.pack(number))
        return _Place(f"message {number}", None, b"", bound)

    def _sealed(self, own: _Place, body: bytes) -> bytes:
        assert self._seal is not None
        return SEALED + own.prefix + self._seal.seal(body, own.bound)

    def _opened(self, own: _Place, stored: bytes) -> bytes:
        if not is_sealed(stored):
            return self._plain(own, stored)
        try:
            return self._key().open(stored[1 + len(own.prefix) :], own.bound)
        except BrokenSeal:
            self._refuse_broken(own)

    def _resealed(self, own: _Place, new: _Place, stored: bytes) -> bytes:
        if not is_sealed(stored):
            return self._plain(own, stored)
        try:
            inside = self._key().reseal(stored[1 + len(own.prefix) :], own.bound, new.bound)
        except BrokenSeal:
            self._refuse_broken(own)
        return SEALED + new.prefix + inside

    def _plain(self, own: _Place, body: bytes) -> bytes:
        """Return a body that is not sealed, unless encryption is required."""
        if self._seal is not None and self._seal.required:
            self._refuse(f"{own.name} is not encrypted, and encryption is required", own.seq)
        return body

    def _key(self) -> Seal:
        if self._seal is None:
            raise CodecError(f"run {self._name!r} is encrypted; set HOLDFAST_KEY to its key")
        return self._seal

    def _refuse_broken(self, own: _Place) -> NoReturn:
        text = "does not open with its key: it was changed, or it belongs to another run, namespace or place"
        self._refuse(f"{own.name} {text}", own.seq)

    def _refuse(self, text: str, seq: int | None = None) -> NoReturn:
        raise CorruptJournal(f"run {self._name!r}: {text}", run=self._name, seq=seq)


def seal_value(seal: Seal | None, namespace: str, part: str, name: str, body: bytes) -> bytes:
    """Return a value that belongs to no run as it is stored: `part` says what it is, of the thing called `name`."""
    own = place(b"value", _text(namespace), _text(part), _text(name))
    return body if seal is None else SEALED + seal.seal(body, own)


def open_value(seal: Seal | None, namespace: str, part: str, name: str, body: bytes) -> bytes:
    """Return a value as it was before `seal_value`."""
    if not is_sealed(body):
        if seal is not None and seal.required:
            raise CodecError(f"the {part} of {name!r} is not encrypted, and encryption is required")
        return body
    if seal is None:
        raise CodecError(f"the {part} of {name!r} is encrypted; set HOLDFAST_KEY to its key")
    return seal.open(body[1:], place(b"value", _text(namespace), _text(part), _text(name)))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
