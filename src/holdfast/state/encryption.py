"""Encryption of stored bytes: AES-256-GCM under keys that never reach the store."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping, Sequence

from holdfast.errors import CONFIGURATION, CodecError

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
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise KeyInvalid(
                "encryption needs the package cryptography: pip install 'holdfast[encryption]'"
            ) from None
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise KeyInvalid(f"encryption needs keys of {KEY_BYTES} bytes each; {HOW_TO_MAKE_ONE}")
        self._ciphers = [(_key_id(key), AESGCM(key)) for key in keys]
        self._nonce_keys = [_nonce_key(key) for key in keys]
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


def is_required(mode: str | None, env: Mapping[str, str]) -> bool:
    """Return whether encryption is required, by `mode` or by `HOLDFAST_ENCRYPTION`; refuse any other mode."""
    said = {"encryption": mode or "", MODE_VARIABLE: env.get(MODE_VARIABLE, "").strip()}
    for name, word in said.items():
        if word not in ("", REQUIRE):
            raise KeyInvalid(f"{name} is {word!r}; the only mode is {REQUIRE!r}, or leave it out")
    return REQUIRE in said.values()


def _nonce_key(key: bytes) -> bytes:
    return hashlib.blake2b(key=key, person=b"holdfast nonce", digest_size=32).digest()


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"holdfast key id" + key).digest()[:ID_BYTES]


def _key(text: str, place: int) -> bytes:
    key = _from_hex(text) or _from_base64(text)
    if len(key) != KEY_BYTES:
        raise KeyInvalid(
            f"encryption key {place} (of {VARIABLE}, or as given) is not {KEY_BYTES} bytes in base64 or "
            f"hexadecimal; {HOW_TO_MAKE_ONE}"
        )
    return key


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else b""
    except ValueError:
        return b""


def _from_base64(text: str) -> bytes:
    standard = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""
