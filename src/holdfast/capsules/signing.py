"""Who made a capsule, and who may read it: Ed25519 keys in files, signatures over the digest, trust, passphrases."""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.capsules.format import ENCRYPTED, HEAD, Origin, Sink, head
from holdfast.errors import INVALID, CapsuleInvalid, CapsuleLocked, HoldfastError, Remedy
from holdfast.journal.sealing import new_cipher

TRUSTED_VARIABLE = "HOLDFAST_TRUSTED"
"""Public keys, or folders of them, one of which has to have signed what is imported."""

_CONTEXT = b"holdfast capsule, version 1\n"
_PUBLIC, _SIGNATURE = 32, 64
_LARGEST_FILE = 64 * 1024


class KeyPair(NamedTuple):
    """Where a new pair of keys is, and the fingerprint by which people know it."""

    private: Path
    public: Path
    fingerprint: str


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a public key, in the form that people compare."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return ":".join(digest[place : place + 4] for place in range(0, 32, 4))


class FileTaken(HoldfastError):
    """A file that is to be written exists."""

    exit_code = INVALID


@functools.cache
def _package() -> SimpleNamespace:
    """Return the parts of the package cryptography that are used; raise if it is not installed."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        text = (
            "a signed or encrypted capsule needs the package cryptography: pip install 'holdfast[encryption]'"
        )
        raise HoldfastError(text) from None
    return SimpleNamespace(errors=exceptions, form=serialization, ed25519=ed25519)


def make_key_pair(path: str | Path) -> KeyPair:
    """Write a new private key to `path`, for its owner's eyes only, and the public one to `path.pub`."""
    private, public = Path(path), Path(f"{path}.pub")
    if public.exists():
        raise FileTaken(f"{public} is there already; choose another name")
    form, key = _package().form, _package().ed25519.Ed25519PrivateKey.generate()
    pem, plain = form.Encoding.PEM, form.NoEncryption()
    _write_new(private, key.private_bytes(pem, form.PrivateFormat.PKCS8, plain), 0o600)
    encoded = key.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
    _write_new(public, encoded, 0o644)
    return KeyPair(private, public, fingerprint(key.public_key().public_bytes_raw()))


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise FileTaken(f"{path} is there already; choose another name") from None
    except OSError as error:
        raise HoldfastError(f"the key {path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _read_key(path: Path, which: str) -> Any:
    """Return the private or public key of a file."""
    form, kind = _package().form, getattr(_package().ed25519, f"Ed25519{which.capitalize()}Key")
    load = functools.partial(form.load_pem_private_key, password=None)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE)
    except OSError as error:
        raise HoldfastError(f"the key {path} cannot be read: {error.strerror}") from None
    try:
        key = load(data) if which == "private" else form.load_pem_public_key(data)
    except (ValueError, TypeError, _package().errors.UnsupportedAlgorithm):
        key = None
    if not isinstance(key, kind):
        raise HoldfastError(f"{path} is no {which} Ed25519 key", remedies=Remedy("make_keys"))
    return key


class Signer:
    """Signs capsules with the private key of a file."""

    def __init__(self, path: str | Path) -> None:
        self._key = _read_key(Path(path), "private")
        self._public = self._key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self._public)

    def sign(self, digest: bytes) -> bytes:
        """Return the signature of a capsule with that digest, as a section."""
        return bytes(self._public + self._key.sign(_CONTEXT + digest))


def verify(signature: bytes, digest: bytes) -> bytes:
    """Return the public key that a capsule is signed with; refuse a signature that is not by that key."""
    errors, key = _package().errors, _package().ed25519.Ed25519PublicKey
    if len(signature) != _PUBLIC + _SIGNATURE:
        raise CapsuleInvalid("its signature is damaged")
    public, own = signature[:_PUBLIC], signature[_PUBLIC:]
    try:
        key.from_public_bytes(public).verify(own, _CONTEXT + digest)
    except (errors.InvalidSignature, ValueError):
        raise CapsuleInvalid("its signature is false: it was changed after it was signed") from None
    return public


Trust = bool | Sequence[str | Path]
"""Whom or what a caller trusts: files or folders of public keys, one of which has to have signed a capsule; `True` is
this very capsule, by anybody."""


def trusted_in(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the places of trusted keys that the environment names."""
    return tuple(Path(part) for part in environ.get(TRUSTED_VARIABLE, "").split(os.pathsep) if part)


def demanded(trust: Trust) -> tuple[str | Path, ...]:
    """Return the paths of the keys of which one must have signed a capsule; else those of the environment."""
    return trusted_in(os.environ) if isinstance(trust, bool) or not trust else tuple(trust)


def demand(signed_by: bytes | None, trust: Trust) -> None:
    """Refuse a capsule that none of the demanded keys has signed, if any are demanded."""
    known: list[bytes] = []
    for place in map(Path, demanded(trust)):
        files = sorted(place.glob("*.pub")) if place.is_dir() else [place]
        if not files:
            raise HoldfastError(f"the folder {place} holds no public key, no file *.pub")
        known += [_read_key(file, "public").public_bytes_raw() for file in files]
    if known and signed_by is None:
        raise CapsuleInvalid("it is not signed, and only capsules signed by a trusted key are taken")
    if known and signed_by is not None and signed_by not in known:
        raise CapsuleInvalid(
            f"it is signed by {fingerprint(signed_by)}, which is none of the {len(known)} trusted keys"
        )


# Capsules under a passphrase: scrypt makes the key, AES-256-GCM seals chunk after chunk, in their order.


PASSPHRASE_VARIABLE = "HOLDFAST_CAPSULE_PASSPHRASE"
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
        """Encrypt more of it."""
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
        """Return the bytes there, decrypted and authentic."""
        parts, end = [], min(place + length, self.size)
        while place < end:
            number, skipped = divmod(place, CHUNK)
            part = self._chunk(number)[skipped : skipped + end - place]
            parts.append(part)
            place += len(part)
        return b"".join(parts)

    def _chunk(self, number: int) -> bytes:
        if self._open[0] == number:
            return self._open[1]
        sealed = self._origin.read_at(_START + number * (CHUNK + TAG), CHUNK + TAG)
        nonce = _NONCE.pack(self._prefix, number, number == self._chunks - 1)
        try:
            self._open = number, bytes(self._cipher.decrypt(nonce, sealed, self._head))
        except (_package().errors.InvalidTag, ValueError):
            text = f"it is damaged or cut short, or data follows its end (chunk {number + 1})"
            wrong = CapsuleLocked("the passphrase is wrong, or the beginning of the capsule is damaged")
            raise (CapsuleInvalid(text) if number else wrong) from None
        return self._open[1]


def read_passphrase(path: Path) -> str:
    """Return the passphrase that a file holds in its first line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"the passphrase cannot be read from {path}: {error}") from None
    if not lines or not lines[0]:
        raise HoldfastError(f"{path} holds no passphrase in its first line")
    return lines[0]


def _cipher(passphrase: str, salt: bytes, work: int) -> Any:
    if not passphrase:
        raise HoldfastError("the passphrase of a capsule may not be empty")
    secret = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    most = 256 * _BLOCK << work
    key = hashlib.scrypt(secret, salt=salt, n=1 << work, r=_BLOCK, p=_LANES, maxmem=most, dklen=32)
    return new_cipher(key)
