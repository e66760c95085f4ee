"""What is stored of a run as bytes: sealed for one place of one run, or plain."""

from __future__ import annotations

import hashlib
import struct
from typing import NoReturn

from holdfast.errors import CodecError, CorruptJournal
from holdfast.state.encryption import LEAST_BYTES, BrokenSeal, Seal
from holdfast.stores.base import Entry, Message, Snapshot

SEALED = b"\xff"
"""How a sealed body begins. That of an entry has the chain of the entry before it next, then what `Seal` made."""

CHAIN_BYTES = 16
_INSIDE = len(SEALED) + CHAIN_BYTES
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
_TIME = struct.Struct(">d")
_NO_MARK = b""


def is_sealed(body: bytes) -> bool:
    """Whether a body says that it is encrypted."""
    return body[:1] == SEALED


def has_sealed(snapshot: Snapshot) -> bool:
    """Whether a snapshot says that it is encrypted."""
    return snapshot.body[CHAIN_BYTES : CHAIN_BYTES + 1] == SEALED


def place(*parts: bytes) -> bytes:
    """Parts as associated data: each with its length, so that no two lists of parts give the same bytes."""
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def snapshot_digest(chain: bytes, body: bytes) -> bytes:
    """The checksum that a stored snapshot begins with."""
    return hashlib.blake2b(chain + body, digest_size=CHAIN_BYTES).digest()


class Bodies:
    """Seals and opens what is stored of one run.

    What is sealed opens in its own place only: the namespace, the run, its key, and there the entry (after the entry
    that it followed, with its time and its mark), the snapshot or the message of its number.
    """

    def __init__(self, seal: Seal | None, namespace: str, run: str, key: bytes) -> None:
        self._seal, self._run, self._name = seal, (_text(namespace), _text(run), key), run

    def seal_entry(self, previous: bytes, seq: int, at: float, mark: bytes | None, body: bytes) -> bytes:
        """The body of an entry as it is stored: encrypted, if there is a key."""
        if self._seal is None:
            return body
        return SEALED + previous + self._seal.seal(body, self._entry_place(previous, seq, at, mark))

    def open_entry(self, entry: Entry) -> bytes:
        """The body of an entry as it was before `seal_entry`."""
        body, what = entry.body, f"entry {entry.seq}"
        if body[:1] != SEALED:
            return self._plain(body, what, entry.seq)
        own = self._entry_place(body[1:_INSIDE], entry.seq, entry.at, entry.mark)
        return self._opened(body[_INSIDE:], own, what, entry.seq)

    def seal_like(self, before: Entry, at: float, body: bytes) -> bytes:
        """The body of an entry that follows `before`, sealed if that is; this takes the key then."""
        if not is_sealed(before.body):
            return body
        if self._seal is None:
            raise CodecError(
                f"run {self._name!r} is encrypted and not finished: to end it here, or its copy, takes its key; set "
                "HOLDFAST_KEY, or finish the run first"
            )
        return self.seal_entry(before.chain, before.seq + 1, at, None, body)

    def says(self, entry: Entry, body: bytes) -> bool:
        """Whether an entry has this body, sealed or not; what cannot be opened has not."""
        if not is_sealed(entry.body):
            return entry.body == body
        try:
            return self.open_entry(entry) == body
        except (CodecError, CorruptJournal):
            return False

    def seal_snapshot(self, chain: bytes, seq: int, at: float, body: bytes, *, sealed: bool) -> bytes:
        """The body of a snapshot as it is stored, its checksum in front; it is `sealed` if its entry is."""
        if self._seal is not None and sealed:
            body = SEALED + self._seal.seal(body, self._snapshot_place(chain, seq, at))
        return snapshot_digest(chain, body) + body

    def open_snapshot(self, snapshot: Snapshot) -> bytes:
        """The body of a snapshot as it was before `seal_snapshot`."""
        body, what = snapshot.body[CHAIN_BYTES:], f"the snapshot at {snapshot.seq}"
        if body[:1] != SEALED:
            return self._plain(body, what, snapshot.seq)
        own = self._snapshot_place(snapshot.chain, snapshot.seq, snapshot.at)
        return self._opened(body[1:], own, what, snapshot.seq)

    def seal_message(self, number: int, body: bytes) -> bytes:
        """A message as it is stored."""
        if self._seal is None:
            return body
        return SEALED + self._seal.seal(body, self._message_place(number))

    def open_message(self, message: Message, *, sealed: bool = False) -> bytes:
        """A message as it was before `seal_message`. A run that is `sealed` takes only messages that are, too."""
        what = f"message {message.number}"
        if not is_sealed(message.body):
            if sealed:
                self._refuse(
                    f"{what} is not encrypted, and the run is: who posted it does not have the run's key"
                )
            return self._plain(message.body, what)
        return self._opened(message.body[1:], self._message_place(message.number), what)

    def reseal_entry(self, entry: Entry, other: Bodies, previous: bytes, mark: bytes | None) -> bytes:
        """The body of an entry for another place, where it follows `previous`; always the same for the same place."""
        body = entry.body
        if not is_sealed(body):
            return self._plain(body, f"entry {entry.seq}", entry.seq)
        own = self._entry_place(body[1:_INSIDE], entry.seq, entry.at, entry.mark)
        new = other._entry_place(previous, entry.seq, entry.at, mark)
        return SEALED + previous + self._resealed(body[_INSIDE:], own, new, f"entry {entry.seq}", entry.seq)

    def reseal_snapshot(self, snapshot: Snapshot, other: Bodies, chain: bytes) -> bytes:
        """The body of a snapshot for another place, where the chain of its entry is `chain`."""
        body, seq, what = snapshot.body[CHAIN_BYTES:], snapshot.seq, f"the snapshot at {snapshot.seq}"
        if is_sealed(body):
            own = self._snapshot_place(snapshot.chain, seq, snapshot.at)
            new = other._snapshot_place(chain, seq, snapshot.at)
            body = SEALED + self._resealed(body[1:], own, new, what, seq)
        else:
            self._plain(body, what, seq)
        return snapshot_digest(chain, body) + body

    def reseal_message(self, message: Message, other: Bodies, number: int) -> bytes:
        """A message for another place, where its number is `number`."""
        body, what = message.body, f"message {message.number}"
        if not is_sealed(body):
            return body  # The run refuses it there as it does here.
        own, new = self._message_place(message.number), other._message_place(number)
        return SEALED + self._resealed(body[1:], own, new, what)

    def lacks_key(self, body: bytes, *, of_entry: bool) -> bool:
        """Whether a sealed body, of an entry or of something else, was sealed with a key that is not here."""
        inside = body[_INSIDE if of_entry else 1 :]
        if len(inside) < LEAST_BYTES:
            self._refuse("a part of it is too short to be encrypted, as it says it is")
        return self._seal is None or not self._seal.has_key_of(inside)

    def _entry_place(self, previous: bytes, seq: int, at: float, mark: bytes | None) -> bytes:
        marked = (_NO_MARK,) if mark is None else (b"marked", mark)
        return place(b"entry", *self._run, _NUMBER.pack(seq), previous, _TIME.pack(at), *marked)

    def _snapshot_place(self, chain: bytes, seq: int, at: float) -> bytes:
        return place(b"snapshot", *self._run, _NUMBER.pack(seq), chain, _TIME.pack(at))

    def _message_place(self, number: int) -> bytes:
        return place(b"message", *self._run, _NUMBER.pack(number))

    def _plain(self, body: bytes, what: str, seq: int | None = None) -> bytes:
        """A body that is not sealed, unless encryption is required."""
        if self._seal is not None and self._seal.required:
            self._refuse(f"{what} is not encrypted, and encryption is required", seq)
        return body

    def _opened(self, sealed: bytes, own: bytes, what: str, seq: int | None = None) -> bytes:
        try:
            return self._key().open(sealed, own)
        except BrokenSeal:
            self._refuse_broken(what, seq)

    def _resealed(self, sealed: bytes, own: bytes, new: bytes, what: str, seq: int | None = None) -> bytes:
        try:
            return self._key().reseal(sealed, own, new)
        except BrokenSeal:
            self._refuse_broken(what, seq)

    def _key(self) -> Seal:
        if self._seal is None:
            raise CodecError(f"run {self._name!r} is encrypted; set HOLDFAST_KEY to its key")
        return self._seal

    def _refuse_broken(self, what: str, seq: int | None) -> NoReturn:
        self._refuse(
            f"{what} does not open with its key: it was changed, or it belongs to another run, namespace or place",
            seq,
        )

    def _refuse(self, text: str, seq: int | None = None) -> NoReturn:
        raise CorruptJournal(f"run {self._name!r}: {text}", run=self._name, seq=seq)


def seal_value(seal: Seal | None, namespace: str, part: str, name: str, body: bytes) -> bytes:
    """A value that belongs to no run as it is stored: `part` says what it is, of the thing called `name`."""
    own = place(b"value", _text(namespace), _text(part), _text(name))
    return body if seal is None else SEALED + seal.seal(body, own)


def open_value(seal: Seal | None, namespace: str, part: str, name: str, body: bytes) -> bytes:
    """A value as it was before `seal_value`."""
    if not is_sealed(body):
        if seal is not None and seal.required:
            raise CodecError(f"the {part} of {name!r} is not encrypted, and encryption is required")
        return body
    if seal is None:
        raise CodecError(f"the {part} of {name!r} is encrypted; set HOLDFAST_KEY to its key")
    return seal.open(body[1:], place(b"value", _text(namespace), _text(part), _text(name)))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
