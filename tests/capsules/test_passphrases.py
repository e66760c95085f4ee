"""Encrypted capsules: they show nothing, open with their passphrase only, and every change is noticed."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from holdfast import CapsuleInvalid, CapsuleLocked, HoldfastError, open_store
from holdfast.capsules import export_run, import_run, inspect_capsule, make_key_pair
from holdfast.capsules import exports as exporting
from holdfast.capsules.capsule import Capsule
from holdfast.capsules.format import HEAD
from holdfast.capsules.signing import CHUNK, TAG, LockedSink, Unlocked, read_passphrase
from tests.capsules.samples import exported
from tests.graphs import chain
from tests.stores.copied_runs import growing

START = HEAD.size + 26


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scrypt work as little as readers accept."""
    monkeypatch.setattr(exporting, "LockedSink", lambda sink, secret: LockedSink(sink, secret, work=14))


class Bytes:
    """Bytes to be read at any place."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read_at(self, place: int, length: int) -> bytes:
        return self.data[place : place + length]


def locked(plain: bytes) -> bytes:
    out = io.BytesIO()
    sink = LockedSink(out, "pass", work=14)
    for place in range(0, len(plain), 50_000):
        sink.write(plain[place : place + 50_000])
    sink.close()
    assert sink.size == len(out.getvalue())
    return out.getvalue()


def unlocked(data: bytes) -> bytes:
    opened = Unlocked(Bytes(data), "pass")
    return opened.read_at(0, opened.size)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17])
def test_what_was_locked_opens_at_any_place(size: int) -> None:
    plain = bytes(range(256)) * (size // 256) + bytes(size % 256)

    opened = Unlocked(Bytes(locked(plain)), "pass")

    assert opened.size == size and opened.read_at(0, size) == plain
    for place, length in (
        (0, 1),
        (size // 2, 10),
        (CHUNK - 3, 10),
        (size - 1, 10),
        (size, 1),
        (2 * CHUNK, CHUNK),
    ):
        assert opened.read_at(max(place, 0), length) == plain[max(place, 0) : max(place, 0) + length]


def test_chunks_that_are_swapped_repeated_cut_or_changed_are_noticed() -> None:
    plain = b"".join(bytes([number]) * CHUNK for number in range(4))
    whole = locked(plain)
    assert unlocked(whole) == plain
    head, body = whole[:START], whole[START:]
    chunks = [body[place : place + CHUNK + TAG] for place in range(0, len(body), CHUNK + TAG)]
    wrong = [
        [chunks[1], chunks[0], *chunks[2:]],
        [chunks[0], chunks[0], *chunks[2:]],
        [chunks[0], chunks[2], chunks[1], chunks[3]],
        chunks[:-1],
        chunks[1:],
        [*chunks, chunks[-1]],
        [*chunks[:-1], chunks[-1][:-1]],
        [*chunks[:-1], chunks[-1] + b"x"],
        [*chunks[:2], bytes([chunks[2][0] ^ 1]) + chunks[2][1:], chunks[3]],
        [],
    ]
    for parts in wrong:
        with pytest.raises(CapsuleInvalid):
            unlocked(head + b"".join(parts))


def test_an_encrypted_capsule_shows_nothing_and_opens_with_its_passphrase(tmp_path: Path) -> None:
    store = open_store("memory://")
    growing(store, 60).invoke({}, run_id="marmalade")
    pair = make_key_pair(tmp_path / "key")
    plain = exported(store, "marmalade", tmp_path, "plain", sign=pair.private)
    path = exported(store, "marmalade", tmp_path, sign=pair.private, encrypt="Grüße ☃")

    outside = inspect_capsule(path)
    inside = inspect_capsule(path, passphrase="Gru\u0308ße ☃", trust=[pair.public])

    assert b"marmalade" not in path.read_bytes() and b"growing" not in path.read_bytes()
    assert (outside.encrypted, outside.is_open, outside.size) == (True, False, path.stat().st_size)
    told = outside.as_json()
    assert {key for key, value in told.items() if value} == {"bytes", "encrypted"}
    assert (
        inside.run_id == "marmalade" and inside.encrypted and inside.digest == inspect_capsule(plain).digest
    )
    assert inside.signed_by == pair.fingerprint
    target = open_store("memory://")
    for wrong in (None, "", "x"):
        with pytest.raises(HoldfastError, match="passphrase"):
            import_run(target, path, passphrase=wrong)
    with pytest.raises(CapsuleLocked, match="its signature is demanded"):
        inspect_capsule(path, trust=[pair.public])
    assert not target.runs()
    assert import_run(target, path, passphrase="Grüße ☃").entries == inside.entries
    assert list(target.read("marmalade")) == list(store.read("marmalade"))


def test_every_changed_byte_of_an_encrypted_capsule_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow making of the key is done once for each head."""
    import functools

    from holdfast.capsules import signing as locking

    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    whole = bytearray(exported(store, "r", tmp_path, encrypt="pass").read_bytes())
    monkeypatch.setattr(locking, "_cipher", functools.cache(locking._cipher))
    changed = tmp_path / "changed"
    for place in (*range(HEAD.size + 3), HEAD.size + 4, HEAD.size + 20, *range(START, len(whole))):
        whole[place] ^= 1 << place % 8
        changed.write_bytes(whole)
        whole[place] ^= 1 << place % 8
        with pytest.raises(CapsuleInvalid):
            Capsule(changed, "pass").close()
    for length in (*range(START + TAG + 2), *range(START, len(whole), 97)):
        changed.write_bytes(whole[:length])
        with pytest.raises(CapsuleInvalid):
            Capsule(changed, "pass").close()


def test_a_head_that_asks_for_much_work_is_refused() -> None:
    whole = locked(b"plain")
    for work, block, lanes in ((30, 8, 1), (19, 8, 1), (13, 8, 1), (14, 255, 1), (14, 8, 255), (0, 0, 0)):
        head = whole[: HEAD.size] + struct.pack(">BBB", work, block, lanes) + whole[HEAD.size + 3 :]
        with pytest.raises(CapsuleInvalid, match="is not used"):
            unlocked(head)


def test_passphrases_come_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("pass phrase \nnot this")
    assert read_passphrase(file) == "pass phrase "
    file.write_text("\n")
    with pytest.raises(HoldfastError, match="holds no passphrase"):
        read_passphrase(file)
    with pytest.raises(HoldfastError, match="cannot be read"):
        read_passphrase(tmp_path / "nothing")
    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    with pytest.raises(HoldfastError, match="may not be empty"):
        export_run(store, "r", tmp_path / "out", encrypt="")
    assert not (tmp_path / "out").exists()
