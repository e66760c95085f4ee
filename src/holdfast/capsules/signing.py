"""Who made a capsule: Ed25519 keys in files, signatures over the digest, and whom one trusts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import CapsuleInvalid, HoldfastError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "HOLDFAST_TRUSTED"
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
    """A public key as people compare it."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return ":".join(digest[place : place + 4] for place in range(0, 32, 4))


def make_key_pair(path: str | Path) -> KeyPair:
    """Write a new private key to `path`, for its owner's eyes only, and the public one to `path.pub`."""
    private, public = Path(path), Path(f"{path}.pub")
    if public.exists():
        raise HoldfastError(f"{public} is there already; choose another name")
    _need_package()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    plain = form.NoEncryption()
    _write_new(private, key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, plain), 0o600)
    told = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    _write_new(public, told, 0o644)
    return KeyPair(private, public, fingerprint(key.public_key().public_bytes_raw()))


class Signer:
    """Signs capsules with the private key of a file."""

    def __init__(self, path: str | Path) -> None:
        _need_package()
        self._key = _private_key(Path(path))
        self._public = self._key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self._public)

    def sign(self, digest: bytes) -> bytes:
        """The signature of a capsule with that digest, as a section."""
        return self._public + self._key.sign(_CONTEXT + digest)


def verify(signature: bytes, digest: bytes) -> bytes:
    """The public key that a capsule is signed with; a signature that is not by that key is refused."""
    _need_package()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(signature) != _PUBLIC + _SIGNATURE:
        raise CapsuleInvalid("its signature is damaged")
    public, own = signature[:_PUBLIC], signature[_PUBLIC:]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(own, _CONTEXT + digest)
    except (InvalidSignature, ValueError):
        raise CapsuleInvalid("its signature is false: it was changed after it was signed") from None
    return public


def trusted_in(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The places of trusted keys that the environment names."""
    return tuple(Path(part) for part in environ.get(VARIABLE, "").split(os.pathsep) if part)


Trust = bool | Sequence[str | Path]
"""Whom or what a caller trusts: files or folders of public keys, one of which has to have signed a capsule; `True` is
this very capsule, whoever made it."""


def demanded(trust: Trust) -> tuple[str | Path, ...]:
    """Return the places of the keys, one of which has to have signed a capsule: those given, else the environment's."""
    return trusted_in(os.environ) if isinstance(trust, bool) or not trust else tuple(trust)


def demand(signed_by: bytes | None, trust: Trust) -> bool:
    """Refuse a capsule that none of the demanded keys has signed; return whether one was demanded."""
    places = demanded(trust)
    if not places:
        return False
    known = list(public_keys(places))
    if signed_by is None:
        raise CapsuleInvalid("it is not signed, and only capsules signed by a trusted key are taken")
    if signed_by not in known:
        raise CapsuleInvalid(
            f"it is signed by {fingerprint(signed_by)}, which is none of the {len(known)} trusted keys"
        )
    return True


def public_keys(places: Iterable[str | Path]) -> Iterable[bytes]:
    """The public keys of files, and of the `*.pub` files of folders."""
    _need_package()
    for place in map(Path, places):
        files = sorted(place.glob("*.pub")) if place.is_dir() else [place]
        if not files:
            raise HoldfastError(f"the folder {place} holds no public key, no file *.pub")
        yield from map(_public_key, files)


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise HoldfastError(f"{path} is no private Ed25519 key; `holdfast keygen -o NAME` makes one")
    return key


def _public_key(path: Path) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise HoldfastError(f"{path} is no public Ed25519 key; `holdfast keygen` writes them as NAME.pub")
    return key.public_bytes_raw()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError as error:
        raise HoldfastError(f"the key {path} cannot be read: {error.strerror}") from None


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise HoldfastError(f"{path} is there already; choose another name") from None
    except OSError as error:
        raise HoldfastError(f"the key {path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _need_package() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise HoldfastError(
            "a signed capsule needs the package cryptography: pip install 'holdfast[encryption]'"
        ) from None
