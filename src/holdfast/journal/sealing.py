"""What is stored of a run as bytes: sealed with AES-256-GCM for one place of one run, or plain."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from holdfast.errors import CONFIGURATION, CodecError, CorruptJournal
from holdfast.stores.base import Entry, Message, Snapshot

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# Encryption of bytes under keys that never reach the store.


VARIABLE = "HOLDFAST_KEY"
MODE_VARIABLE = "HOLDFAST_ENCRYPTION"
REQUIRE = "require"
"""The mode in which nothing unencrypted is written or read."""

KEY_BYTES = 32
ID_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
LEAST_BYTES = ID_BYTES + NONCE_BYTES + TAG_BYTES
"""What a sealed body has at least."""

HOW_TO_MAKE_ONE = (
    'make one with: python -c "import secrets, base64; '
    'print(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())"'
)


class BrokenSeal(CodecError):
    """The key of an encrypted body is here, and does not open it: the body or its place is not what was sealed."""


class KeyInvalid(CodecError):
    """The configured encryption is not usable: a malformed key, no key where one is required, an unknown mode."""

    exit_code = CONFIGURATION


class Seal:
    """Seals with the first of `keys`, opens with any of them: put a new key in front to rotate.

    Nonces are random, so one key is good for some 4 billion sealed bodies. Where encryption is `required`,
    reading with this seal refuses what is not sealed.
    """

    def __init__(self, keys: Sequence[bytes], *, required: bool = False) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise KeyInvalid(f"encryption needs keys of {KEY_BYTES} bytes each; {HOW_TO_MAKE_ONE}")
        ids = [hashlib.sha256(b"holdfast key id" + key).digest()[:ID_BYTES] for key in keys]
        self._ciphers = [(ident, new_cipher(key)) for ident, key in zip(ids, keys, strict=True)]
        self._nonce_keys = [
            hashlib.blake2b(key=key, person=b"holdfast nonce", digest_size=32).digest() for key in keys
        ]
        self.required = required

    @classmethod
    def from_text(cls, text: str, *, required: bool = False) -> Seal:
        """Return keys from comma-separated base64 (either alphabet) or hexadecimal text."""
        keys = [_key(part.strip(), place) for place, part in enumerate(text.split(","), 1)]
        return cls(keys, required=required)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Seal | None:
        """Return the seal of `HOLDFAST_KEY`, or `None` where that is unset or empty.

        With `HOLDFAST_ENCRYPTION=require` a key has to be there.
        """
        return cls.chosen(None, None, env)

    @classmethod
    def chosen(cls, key: str | bytes | None, mode: str | None, env: Mapping[str, str]) -> Seal | None:
        """Return the seal of a key, or else of `HOLDFAST_KEY`; `mode` or `HOLDFAST_ENCRYPTION` may require one."""
        required = is_required(mode, env)
        if isinstance(key, bytes):
            return cls([key], required=required)
        text = env.get(VARIABLE, "").strip() if key is None else key
        if text or key is not None:
            return cls.from_text(text, required=required)
        if required:
            raise KeyInvalid(
                f"encryption is required, and there is no key; set {VARIABLE} (or give encryption_key=…); "
                f"{HOW_TO_MAKE_ONE}"
            )
        return None

    def seal(self, plain: bytes, aad: bytes) -> bytes:
        """`plain` made unreadable and unchangeable; opens only together with the same `aad`."""
        key_id, cipher = self._ciphers[0]
        nonce = os.urandom(NONCE_BYTES)
        return key_id + nonce + cipher.encrypt(nonce, plain, key_id + aad)

    def reseal(self, sealed: bytes, aad: bytes, new_aad: bytes) -> bytes:
        """Return what was sealed for `aad`, sealed for `new_aad` with the same key: the same bytes every time.

        The new nonce is a keyed hash of the old one and of `new_aad`, since a nonce must never serve two places.
        """
        number, plain = self._opened(sealed, aad)
        key_id, cipher = self._ciphers[number]
        old = sealed[ID_BYTES : ID_BYTES + NONCE_BYTES]
        nonce = hashlib.blake2b(old + new_aad, key=self._nonce_keys[number], digest_size=NONCE_BYTES).digest()
        return key_id + nonce + cipher.encrypt(nonce, plain, key_id + new_aad)

    def has_key_of(self, sealed: bytes) -> bool:
        """Return whether the key that a body says it was sealed with is here."""
        return any(known == sealed[:ID_BYTES] for known, _ in self._ciphers)

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        """Return what was sealed; raise `BrokenSeal` if body or `aad` were changed, `CodecError` without its key."""
        return self._opened(sealed, aad)[1]

    def _opened(self, sealed: bytes, aad: bytes) -> tuple[int, bytes]:
        """Return the number of the key that a body was sealed with, and what was sealed."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) < LEAST_BYTES:
            raise BrokenSeal("cannot open an encrypted body: it is too short to be one")
        key_id, nonce = sealed[:ID_BYTES], sealed[ID_BYTES : ID_BYTES + NONCE_BYTES]
        ciphers = [
            (number, cipher) for number, (known, cipher) in enumerate(self._ciphers) if known == key_id
        ]
        if not ciphers:
            raise CodecError(
                f"cannot open an encrypted body: its key {key_id.hex()} is not here; "
                f"add that key to {VARIABLE}, after a comma"
            )
        for number, cipher in ciphers:
            try:
                return number, cipher.decrypt(nonce, sealed[ID_BYTES + NONCE_BYTES :], key_id + aad)
            except InvalidTag:
                continue
        raise BrokenSeal("cannot open an encrypted body: it was changed, or belongs to another place")

    def __repr__(self) -> str:
        return f"Seal({len(self._ciphers)} keys, sealing with {self._ciphers[0][0].hex()})"


def new_cipher(key: bytes) -> AESGCM:
    """Return AES-GCM under a key; raise if the package for it is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        text = "encryption needs the package cryptography: pip install 'holdfast[encryption]'"
        raise KeyInvalid(text) from None
    return AESGCM(key)


def is_required(mode: str | None, env: Mapping[str, str]) -> bool:
    """Return whether encryption is required, by `mode` or by `HOLDFAST_ENCRYPTION`; refuse any other mode."""
    said = {"encryption": mode or "", MODE_VARIABLE: env.get(MODE_VARIABLE, "").strip()}
    for name, word in said.items():
        if word not in ("", REQUIRE):
            raise KeyInvalid(f"{name} is {word!r}; the only mode is {REQUIRE!r}, or leave it out")
    return REQUIRE in said.values()


def _key(text: str, place: int) -> bytes:
    standard, key = text.rstrip("=").replace("-", "+").replace("_", "/"), b""
    with suppress(ValueError):
        is_hex = len(text) == 2 * KEY_BYTES
        padded = standard + "=" * (-len(standard) % 4)
        key = bytes.fromhex(text) if is_hex else base64.b64decode(padded, validate=True)
    if len(key) != KEY_BYTES:
        raise KeyInvalid(
            f"encryption key {place} (of {VARIABLE}, or as given) is not {KEY_BYTES} bytes in base64 or "
            f"hexadecimal; {HOW_TO_MAKE_ONE}"
        )
    return key


# The places that bodies are sealed for.


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
        """Return a message's body re-encrypted for another inbox, in which its number is `number`."""
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
