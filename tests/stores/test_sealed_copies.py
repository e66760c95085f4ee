"""Encrypted runs in other namespaces, under other ids and in capsules: encrypted again, refused without the key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import CodecError, open_store
from holdfast.capsules import export_run, import_run
from holdfast.engine.commands import control
from holdfast.engine.transfer import copy_runs
from holdfast.integrity.check import check_store
from holdfast.journal.copying import add_snapshot
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from tests.graphs import chain

OLD, KEY = "6f" * 32, "6b" * 32


@pytest.fixture
def tenant(store_url: str, tmp_path: Path) -> Iterator[Store]:
    """The same kind of store, in another namespace."""
    opened = open_store(store_url, namespace="tenant")
    yield opened
    opened.close()


def ask(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [ctx.ask("who?")]}


def app(store: Store) -> Any:
    return chain("a", "ask", "c", nodes={"ask": ask}).compile(store)


def outcomes(source: Store, target: Store, **options: Any) -> dict[str, str]:
    return {run.run: str(run.outcome) for run in copy_runs(source, target, **options).runs}


def fine(*stores: Store) -> bool:
    return all(check_store(store, seal=Seal.from_text(f"{KEY},{OLD}")).problems == () for store in stores)


def test_a_sealed_run_is_copied_to_another_namespace_and_brought_up_to_date(
    store: Store, tenant: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys were rotated in between: each part keeps the key that it was sealed with."""
    monkeypatch.setenv("HOLDFAST_KEY", OLD)
    app(store).invoke({"log": ["r"]}, run_id="r")
    monkeypatch.setenv("HOLDFAST_KEY", f"{KEY},{OLD}")
    assert outcomes(store, tenant) == {"r": "copied"}
    assert outcomes(store, tenant) == {"r": "unchanged"}
    journal = Journal(store, Seal.from_text(KEY + "," + OLD))
    control.send(journal, "r", control.edit({"log": ["b"]}), graph=app(store).graph)

    assert outcomes(store, tenant) == {"r": "updated"}
    assert outcomes(store, tenant) == {"r": "unchanged"}

    assert fine(store, tenant)
    assert app(tenant).resume("r", "me").state["log"] == ["r", "a", "b", "me", "c"]
    assert app(store).resume("r", "you").state["log"] == ["r", "a", "b", "you", "c"]
    assert outcomes(store, tenant) == {"r": "different"}


def test_a_snapshot_of_a_sealed_run_is_sealed_for_where_it_is_copied_to(
    store: Store, tenant: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    app(store).invoke({"log": ["r"]}, run_id="r")
    journal, codec = Journal(store, Seal.from_text(KEY)), Codec()
    (info,) = store.runs(run="r")
    add_snapshot(journal, "r", journal.make_snapshot(journal.load(info, codec, 2), codec))

    assert outcomes(store, tenant) == {"r": "copied"}

    copied, original = tenant.snapshot("r", 2), store.snapshot("r", 2)
    assert copied is not None and original is not None and copied.body != original.body
    assert fine(store, tenant)
    assert app(tenant).resume("r", "me").state["log"] == ["r", "a", "me", "c"]


def test_a_sealed_run_and_its_fork_are_moved_to_another_namespace(
    store: Store, tenant: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    app(store).invoke({"log": ["r"]}, run_id="r")
    app(store).fork("r", run_id="f")

    assert outcomes(store, tenant, move=True) == {"r": "moved", "f": "moved"}

    assert not store.runs() and fine(tenant)
    app(tenant).resume("f")
    assert [app(tenant).resume(run, run).state["log"][-2] for run in ("r", "f")] == ["r", "f"]


def test_without_the_key_a_sealed_run_stays_in_its_namespace(
    store: Store, tenant: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    app(store).invoke({"log": ["r"]}, run_id="r")
    monkeypatch.delenv("HOLDFAST_KEY")

    (copied,) = copy_runs(store, tenant).runs

    assert str(copied.outcome) == "refused" and "set HOLDFAST_KEY" in copied.note
    assert not tenant.runs()


def test_a_sealed_fork_is_copied_and_exported_only_with_the_key(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    app(store).invoke({"log": ["r"]}, run_id="r")
    app(store).fork("r", run_id="f")
    target, third = open_store(f"file:{tmp_path}/target"), open_store(f"file:{tmp_path}/third")
    said = "run 'f' is an encrypted fork, which cannot be separated from its parent without its key; set HOLDFAST_KEY"
    monkeypatch.delenv("HOLDFAST_KEY")

    report = copy_runs(store, target)

    assert {run.run: str(run.outcome) for run in report.runs} == {"r": "copied", "f": "refused"}
    assert report.problems[0].note.startswith(said)
    with pytest.raises(CodecError, match=said):
        export_run(store, "f", tmp_path / "f.capsule")
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    assert outcomes(store, target) == {"r": "unchanged", "f": "copied"}
    monkeypatch.delenv("HOLDFAST_KEY")
    assert outcomes(target, third) == {"r": "copied", "f": "copied"}, "a copied fork has its snapshot"


def test_a_sealed_capsule_is_imported_into_another_namespace_and_under_another_id(
    store: Store, tenant: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    app(store).invoke({"log": ["r"]}, run_id="r")
    export_run(store, "r", tmp_path / "capsule")

    for run in ("r", "other"):
        assert str(import_run(tenant, tmp_path / "capsule", run_id=run, trust=True).outcome) == "copied"
        assert str(import_run(tenant, tmp_path / "capsule", run_id=run).outcome) == "unchanged"

    assert fine(tenant)
    assert app(tenant).resume("other", "me").state["log"] == ["r", "a", "me", "c"]
    monkeypatch.delenv("HOLDFAST_KEY")
    with pytest.raises(CodecError, match="for its own run id and namespace; set HOLDFAST_KEY"):
        import_run(open_store("memory://?namespace=third"), tmp_path / "capsule")


def test_where_encryption_is_required_no_run_in_the_clear_is_copied(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_store("memory://")
    app(memory).invoke({"log": ["r"]}, run_id="r")
    export_run(memory, "r", tmp_path / "capsule")
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "require")

    (copied,) = copy_runs(memory, target).runs

    assert str(copied.outcome) == "damaged" and "encryption is required" in copied.note
    with pytest.raises(Exception, match="encryption is required"):
        import_run(target, tmp_path / "capsule")
    assert not target.runs()
