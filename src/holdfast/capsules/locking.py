"""Capsules under a passphrase: scrypt makes the key, AES-256-GCM seals chunk after chunk, in their order."""

from __future__ import annotations

import hashlib
import os
import struct
import unicodedata
from pathlib import Path
from typing import Any

from holdfast.capsules.sections import ENCRYPTED, HEAD, Origin, Sink, head
from holdfast.errors import CapsuleInvalid, CapsuleLocked, HoldfastError

VARIABLE = "HOLDFAST_CAPSULE_PASSPHRASE"
WORK = 17
"""The power of two that scrypt works with: 2**17 needs 128 MB and about half a second."""

_LEAST_WORK, _MOST_WORK = 14, 18
_BLOCK, _LANES = 8, 1
_LOCK = struct.Struct(">BBB16s7s")
"""scrypt's work, block size and lanes; salt; the beginning of every nonce."""

_NONCE = struct.Struct(">7sIB")
CHUNK = 64 * 1024
TAG = 16
_START = HEAD.size + _LOCK.size


class LockedSink:
    """Encrypts what is written. Only a `close` makes it whole."""

    def __init__(self, sink: Sink, passphrase: str, work: int = WORK) -> None:
        salt, prefix = os.urandom(16), os.urandom(7)
        self._sink, self._prefix, self._waiting, self._count = sink, prefix, bytearray(), 0
        self._head = head(ENCRYPTED) + _LOCK.pack(work, _BLOCK, _LANES, salt, prefix)
        self._cipher = _cipher(passphrase, salt, work)
        self.size = len(self._head)
        sink.write(self._head)

    def write(self, data: bytes) -> None:
        """Take more of it."""
        self._waiting += data
        while len(self._waiting) > CHUNK:
            self._seal(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]

    def close(self) -> None:
        """Write the last chunk, which says that it is the last."""
        self._seal(bytes(self._waiting), last=True)

    def _seal(self, plain: bytes, last: bool) -> None:
        nonce = _NONCE.pack(self._prefix, self._count, last)
        sealed = self._cipher.encrypt(nonce, plain, self._head)
        self._sink.write(sealed)
        self._count, self.size = self._count + 1, self.size + len(sealed)


class Unlocked:
    """An encrypted capsule as the bytes that were encrypted; a chunk is opened when it is read."""

    def __init__(self, origin: Origin, passphrase: str) -> None:
        self._origin, self._open = origin, (-1, b"")
        self._head = origin.read_at(0, _START)
        rest = origin.size - _START
        if len(self._head) < _START or rest < TAG:
            raise CapsuleInvalid("it is cut short")
        work, block, lanes, salt, self._prefix = _LOCK.unpack(self._head[HEAD.size :])
        if not _LEAST_WORK <= work <= _MOST_WORK or block != _BLOCK or lanes != _LANES:
            raise CapsuleInvalid(f"its head is damaged: scrypt with {work}, {block} and {lanes} is not used")
        self._chunks = -(-rest // (CHUNK + TAG))
        if rest - (self._chunks - 1) * (CHUNK + TAG) < TAG:
            raise CapsuleInvalid("it is cut short")
        self.size = rest - self._chunks * TAG
        self._cipher = _cipher(passphrase, salt, work)
        self._chunk(0)

    def read_at(self, place: int, length: int) -> bytes:
        """The bytes there, decrypted and authentic."""
        parts, end = [], min(place + length, self.size)
        while place < end:
            number, skipped = divmod(place, CHUNK)
            part = self._chunk(number)[skipped : skipped + end - place]
            parts.append(part)
            place += len(part)
        return b"".join(parts)

    def _chunk(self, number: int) -> bytes:
        if self._open[0] != number:
            self._open = (number, self._decrypted(number))
        return self._open[1]

    def _decrypted(self, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        sealed = self._origin.read_at(_START + number * (CHUNK + TAG), CHUNK + TAG)
        nonce = _NONCE.pack(self._prefix, number, number == self._chunks - 1)
        try:
            return bytes(self._cipher.decrypt(nonce, sealed, self._head))
        except (InvalidTag, ValueError):
            if number:
                raise CapsuleInvalid(f"it is damaged or cut short (chunk {number + 1})") from None
        raise CapsuleLocked("the passphrase is wrong, or the beginning of the capsule is damaged")


def read_passphrase(path: Path) -> str:
    """The passphrase that a file holds in its first line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"the passphrase cannot be read from {path}: {error}") from None
    if not lines or not lines[0]:
        raise HoldfastError(f"{path} holds no passphrase in its first line")
    return lines[0]


def _cipher(passphrase: str, salt: bytes, work: int) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise HoldfastError(
            "an encrypted capsule needs the package cryptography: pip install 'holdfast[encryption]'"
        ) from None
    if not passphrase:
        raise HoldfastError("the passphrase of a capsule may not be empty")
    secret = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    most = 256 * _BLOCK << work
    key = hashlib.scrypt(secret, salt=salt, n=1 << work, r=_BLOCK, p=_LANES, maxmem=most, dklen=32)
    return AESGCM(key)
