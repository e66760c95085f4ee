"""Signed capsules: who made them, who is trusted, and what false signatures look like."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from holdfast import CapsuleInvalid, HoldfastError, open_store
from holdfast.capsules import export_run, import_run, inspect_capsule, make_key_pair
from holdfast.capsules.format import Kind
from holdfast.capsules.format import Writer as SectionWriter
from holdfast.capsules.signing import Signer, fingerprint, trusted_in, verify
from holdfast.stores.base import RunInfo, Store
from holdfast.stores.memory import MemoryStore
from tests.capsules.samples import exported, forged, sections
from tests.capsules.test_damage import parts_of
from tests.graphs import chain


@pytest.fixture
def store_with_a_run() -> Store:
    store = open_store("memory://")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    return store


def forged_twice(folder: Path) -> tuple[Path, Path]:
    """Two capsules of one layout that differ in an entry, too large for the buffers of files."""
    made = []
    for name in ("innocent", "harmful!"):
        outline = {"name": "w", "nodes": {}}
        started = [0, "w", [], ["a"], b"", outline, name * 50_000, None]
        made.append(forged(folder / name, [b"\x01" + ormsgpack.packb([started])]))
    return made[0], made[1]


def test_a_key_pair_is_for_its_owner_and_for_others(tmp_path: Path) -> None:
    pair = make_key_pair(tmp_path / "my.key")

    assert stat.S_IMODE(pair.private.stat().st_mode) == 0o600 and pair.public == tmp_path / "my.key.pub"
    assert b"PRIVATE" in pair.private.read_bytes() and b"PUBLIC" in pair.public.read_bytes()
    assert Signer(pair.private).fingerprint == pair.fingerprint
    with pytest.raises(HoldfastError, match="there already"):
        make_key_pair(tmp_path / "my.key")
    pair.public.unlink()
    with pytest.raises(HoldfastError, match="there already"):
        make_key_pair(tmp_path / "my.key")
    with pytest.raises(HoldfastError, match="cannot be written"):
        make_key_pair(tmp_path / "nowhere" / "my.key")


def test_only_what_a_trusted_key_signed_is_taken(store_with_a_run: Store, tmp_path: Path) -> None:
    store = store_with_a_run
    mine, other = make_key_pair(tmp_path / "mine"), make_key_pair(tmp_path / "other")
    friends = tmp_path / "friends"
    friends.mkdir()
    (friends / "me.pub").write_bytes(mine.public.read_bytes())
    signed = exported(store, "r", tmp_path, "signed", sign=mine.private)
    plain = exported(store, "r", tmp_path, "plain")
    target = open_store("memory://")

    assert inspect_capsule(signed).signed_by == mine.fingerprint and not inspect_capsule(plain).signed_by
    with pytest.raises(CapsuleInvalid, match="none of the 1 trusted keys"):
        import_run(target, signed, trust=[other.public])
    with pytest.raises(CapsuleInvalid, match="it is not signed"):
        import_run(target, plain, trust=[friends])
    assert not target.runs()

    assert import_run(target, signed, trust=[other.public, friends]).signed_by == mine.fingerprint
    assert inspect_capsule(signed).digest == inspect_capsule(plain).digest, (
        "a signature adds, and changes nothing"
    )


def test_a_signature_of_something_else_is_false(store_with_a_run: Store, tmp_path: Path) -> None:
    pair = make_key_pair(tmp_path / "key")
    parts = parts_of(exported(store_with_a_run, "r", tmp_path, sign=pair.private))
    (_, signature), inner = parts[-1], [part for part in parts if part[0] not in (Kind.END, Kind.SIGNATURE)]
    path = sections(tmp_path / "other", *inner[:2], *inner[2:])
    assert not inspect_capsule(path).signed_by

    with pytest.raises(CapsuleInvalid, match="false: it was changed"):
        verify(signature, b"another digest")
    with pytest.raises(CapsuleInvalid, match="false"):
        verify(bytes(32) + signature[32:], parts[-2][1])
    with pytest.raises(CapsuleInvalid, match="damaged"):
        verify(signature[:-1], parts[-2][1])
    assert fingerprint(verify(signature, parts[-2][1])) == pair.fingerprint


def test_what_is_no_key_is_told(store_with_a_run: Store, tmp_path: Path) -> None:
    pair, target = make_key_pair(tmp_path / "key"), tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no key")

    for wrong in (pair.public, tmp_path / "text"):
        with pytest.raises(HoldfastError, match="is no private Ed25519 key"):
            export_run(store_with_a_run, "r", target, sign=wrong)
    with pytest.raises(HoldfastError, match="cannot be read"):
        export_run(store_with_a_run, "r", target, sign=tmp_path / "nothing")
    assert not target.exists()
    export_run(store_with_a_run, "r", target, sign=pair.private)
    for wrong in (pair.private, tmp_path / "text"):
        with pytest.raises(HoldfastError, match="is no public Ed25519 key"):
            inspect_capsule(target, trust=[wrong])
    with pytest.raises(HoldfastError, match="holds no public key"):
        inspect_capsule(target, trust=[tmp_path / "empty"])


def test_the_environment_names_whom_one_trusts() -> None:
    assert trusted_in({"HOLDFAST_TRUSTED": "a.pub:folder"}) == (Path("a.pub"), Path("folder"))
    assert trusted_in({}) == ()


def test_an_entry_that_is_swapped_after_its_signature_was_verified_is_refused(tmp_path: Path) -> None:
    """The file is read twice; what is used the second time has to be what was verified the first time."""
    pair, path = make_key_pair(tmp_path / "key"), tmp_path / "swapped"
    innocent, harmful = forged_twice(tmp_path)
    digest = inspect_capsule(innocent).digest
    data = innocent.read_bytes()
    with io.BytesIO() as tail:
        writer = SectionWriter(tail)
        head = writer.size
        writer.add(Kind.SIGNATURE, Signer(pair.private).sign(bytes.fromhex(digest)))
        signature = tail.getvalue()[head:]
    path.write_bytes(data + signature)
    assert inspect_capsule(path, trust=[pair.public]).signed_by == pair.fingerprint
    harm = harmful.read_bytes()
    assert len(harm) == len(data) and harm != data

    class Swapping(MemoryStore):
        """Swaps the file under the import, once it was verified."""

        def runs(self, **filters: Any) -> list[RunInfo]:
            with path.open("r+b") as file:
                file.write(harm)
            return super().runs(**filters)

    target = Swapping()
    with pytest.raises(CapsuleInvalid, match="changed while it was read"):
        import_run(target, path, trust=[pair.public])
    assert not target.runs()


def test_python_honours_the_trusted_keys_of_the_environment(
    store_with_a_run: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = make_key_pair(tmp_path / "mine"), make_key_pair(tmp_path / "other")
    signed = exported(store_with_a_run, "r", tmp_path, "signed", sign=mine.private)
    plain, target = exported(store_with_a_run, "r", tmp_path, "plain"), open_store("memory://")

    monkeypatch.setenv("HOLDFAST_TRUSTED", str(other.public))
    for look in (inspect_capsule, lambda path: import_run(target, path)):
        with pytest.raises(CapsuleInvalid, match="none of the 1 trusted keys"):
            look(signed)
        with pytest.raises(CapsuleInvalid, match="it is not signed"):
            look(plain)
    assert not target.runs()

    monkeypatch.setenv("HOLDFAST_TRUSTED", str(mine.public))
    assert import_run(target, signed).signed_by == mine.fingerprint
    assert import_run(target, signed, trust=[mine.public]).signed_by == mine.fingerprint
