"""Sealed bytes open with the right key in the right place, and in no other way."""

import base64
import builtins
from typing import Any

import pytest

from holdfast.errors import CodecError, HoldfastError
from holdfast.journal.sealing import Seal

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
SECRET = b"the secret of the run"


def test_what_was_sealed_opens_again() -> None:
    sealed = Seal([NEW]).seal(SECRET, b"run/1")
    assert SECRET not in sealed
    assert Seal([NEW]).open(sealed, b"run/1") == SECRET
    assert Seal([NEW]).open(Seal([NEW]).seal(b"", b""), b"") == b""


def test_the_same_bytes_never_look_the_same() -> None:
    seal = Seal([NEW])
    assert seal.seal(SECRET, b"a") != seal.seal(SECRET, b"a")


def test_keys_rotate_the_first_seals_and_all_open() -> None:
    before = Seal([OLD]).seal(SECRET, b"a")
    both = Seal([NEW, OLD])
    assert both.open(before, b"a") == SECRET
    assert Seal([NEW]).open(both.seal(SECRET, b"a"), b"a") == SECRET


def test_a_key_that_is_missing_is_said_to_be_missing() -> None:
    sealed = Seal([OLD]).seal(SECRET, b"a")
    with pytest.raises(CodecError, match="is not here; add that key to HOLDFAST_KEY"):
        Seal([NEW]).open(sealed, b"a")


@pytest.mark.parametrize("place", [5, 20, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    sealed = bytearray(Seal([NEW]).seal(SECRET, b"a"))
    sealed[place] ^= 1
    with pytest.raises(CodecError, match="it was changed, or belongs to another place"):
        Seal([NEW]).open(bytes(sealed), b"a")


def test_a_body_moved_to_another_place_is_noticed() -> None:
    seal = Seal([NEW])
    with pytest.raises(CodecError, match="belongs to another place") as caught:
        seal.open(seal.seal(SECRET, b"run/1"), b"run/2")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 3, 31])
def test_a_stump_is_refused(length: int) -> None:
    with pytest.raises(CodecError, match="too short"):
        Seal([NEW]).open(Seal([NEW]).seal(b"", b"")[:length], b"")


FULL = bytes([255, 254, 251] * 11)[:32]
SPELLINGS = {
    "base64": base64.b64encode(FULL).decode(),
    "urlsafe": base64.urlsafe_b64encode(FULL).decode(),
    "unpadded": base64.urlsafe_b64encode(FULL).decode().rstrip("="),
    "hex": FULL.hex(),
    "HEX": f" {FULL.hex().upper()}\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_may_be_spelled_in_several_ways(spelling: str) -> None:
    sealed = Seal([FULL]).seal(SECRET, b"")
    assert Seal.from_text(SPELLINGS[spelling]).open(sealed, b"") == SECRET


def test_several_keys_are_separated_by_commas() -> None:
    seal = Seal.from_text(f"{NEW.hex()}, {OLD.hex()}")
    assert seal.open(Seal([OLD]).seal(SECRET, b""), b"") == SECRET
    assert Seal([NEW]).open(seal.seal(SECRET, b""), b"") == SECRET


@pytest.mark.parametrize("text", ["", "hunter2", NEW.hex()[:-2], f"{NEW.hex()},", "ü" * 44, "z" * 64])
def test_a_bad_key_is_refused_with_a_way_to_make_a_good_one(text: str) -> None:
    with pytest.raises(CodecError, match=r"python -c .*secrets.token_bytes") as caught:
        Seal.from_text(text)
    assert not text or text.strip(",") not in str(caught.value)


@pytest.mark.parametrize("keys", [[], [b"short"], [NEW, b""]])
def test_keys_of_another_length_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(CodecError, match="32 bytes"):
        Seal(keys)


def test_without_a_key_in_the_environment_nothing_is_sealed() -> None:
    assert Seal.from_environment({}) is None
    assert Seal.from_environment({"HOLDFAST_KEY": "  "}) is None
    seal = Seal.from_environment({"HOLDFAST_KEY": NEW.hex()})
    assert seal is not None and Seal([NEW]).open(seal.seal(SECRET, b""), b"") == SECRET


def test_a_seal_does_not_show_its_keys() -> None:
    shown = repr(Seal([NEW]))
    assert NEW.hex() not in shown and repr(NEW) not in shown and "1 key" in shown


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_cryptography(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_cryptography)
    with pytest.raises(HoldfastError, match=r"pip install 'holdfast\[encryption\]'"):
        Seal([NEW])
