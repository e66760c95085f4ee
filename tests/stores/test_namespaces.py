"""Namespaces of stores on disk and in memory: each is a place of its own, and its URL leads back to it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast import StoreError, open_store
from holdfast.engine.owner import active_runs
from holdfast.stores import get_store, register_store
from holdfast.stores.base import Store, in_namespace, namespace_of
from holdfast.stores.memory import MemoryStore
from tests.graphs import chain, one
from tests.stores.journals import create, seqs


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite:///runs.db", "file:runs"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store on disk."""
    return str(request.param)


def runs_at(url: str, **options: str) -> list[str]:
    store = open_store(url, **options)  # type: ignore[arg-type]
    found = [info.run for info in store.runs()]
    store.close()
    return found


def test_a_store_neither_lists_nor_reads_the_runs_of_another_namespace(url: str) -> None:
    """S2.4: the data of namespaces is isolated."""
    stores = [open_store(url, namespace=name) for name in ("default", "a", "b")]
    for store in stores:
        create(store, f"of-{namespace_of(store)}")
    create(stores[1], "same")

    assert [sorted(info.run for info in store.runs()) for store in stores] == [
        ["of-default"],
        ["of-a", "same"],
        ["of-b"],
    ]
    for store in (stores[0], stores[2]):
        assert seqs(store, "of-a") == [] and store.runs(run="same") == []
        assert store.checkpoints("of-a") == [] and not store.delete("of-a")
        with pytest.raises(StoreError, match="no run"):
            store.post("of-a", b"hello")
    create(stores[2], "same", upto=2)
    assert seqs(stores[1], "same") == [1] and seqs(stores[2], "same") == [1, 2]
    for store in stores:
        store.close()


def test_no_run_id_leads_into_another_namespace(tmp_path: Path) -> None:
    outside, inside = open_store("file:runs"), open_store("file:runs", namespace="a")
    create(inside, "r")

    for run in ("@a/r", "@a", "../@a/r", "@a%2fr"):
        assert seqs(outside, run) == []
        create(outside, run)
    assert [info.run for info in inside.runs()] == ["r"]
    assert sorted(info.run for info in outside.runs()) == ["../@a/r", "@a", "@a%2fr", "@a/r"]


def test_a_further_namespace_has_a_file_or_a_folder_of_its_own(tmp_path: Path) -> None:
    for url in ("sqlite:///runs.db", "file:runs"):
        for name in ("default", "team.one", "Team"):
            open_store(url, namespace=name).close()

    places = ("runs.db", "runs@team.one.db", "runs@%54eam.db", "runs", "runs/@team.one", "runs/@%54eam")
    for place in places:
        mode = stat.S_IMODE((tmp_path / place).stat().st_mode)
        assert mode == (0o600 if place.endswith(".db") else 0o700), place


def test_a_store_s_own_url_opens_its_namespace_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("default", "a"):
        store = open_store(url, namespace=name)
        create(store, name)
        store.close()
        for environment in ("", "b", "a"):
            monkeypatch.setenv("HOLDFAST_NAMESPACE", environment)
            bound = open_store(url, namespace=name)
            assert runs_at(bound.url) == [name] and namespace_of(bound) == name
            bound.close()
        monkeypatch.delenv("HOLDFAST_NAMESPACE")
    assert not open_store(url).url.endswith("default")


def test_the_url_names_a_namespace_and_the_environment_the_usual_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("default", "a", "b"):
        store = open_store(in_namespace(url, name))
        create(store, name)
        store.close()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "b")

    assert runs_at(url) == ["b"]
    assert runs_at(f"{url}?namespace=a") == ["a"] == runs_at(url, namespace="a")
    assert runs_at(f"{url}?namespace=a", namespace="a") == ["a"]
    monkeypatch.setenv("HOLDFAST_STORE", url)
    assert [info.run for info in open_store().runs()] == ["b"]
    assert [info.run for info in open_store(namespace="default").runs()] == ["default"]
    assert [info.run for info in open_store(Path(url.rpartition(":")[2].lstrip("/"))).runs()] == ["b"]
    path = url.rpartition(":")[2].lstrip("/")
    assert runs_at(f"{path}?namespace=a") == ["a"]


def test_the_older_variables_take_a_namespace_too(url: str) -> None:
    kind, place = url.partition(":")[0], url.rpartition(":")[2].lstrip("/")
    environ = {
        "WORKFLOW_CHECKPOINT_BACKEND": kind,
        "WORKFLOW_CHECKPOINT_DSN": place,
        "HOLDFAST_NAMESPACE": "a",
    }

    store = open_store(environ=environ)

    assert namespace_of(store) == "a"
    create(store)
    assert runs_at(url, namespace="a") == ["r"] and runs_at(url) == []


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 64, "ä", "a\n", "..\\x", "a@b"])
def test_a_name_that_cannot_be_one_is_refused(name: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot name a namespace; use at most 63"):
        open_store(url, namespace=name)
    with pytest.raises(StoreError, match="cannot name a namespace"):
        open_store("memory://", namespace=name)
    assert list(tmp_path.iterdir()) == []


def test_what_contradicts_itself_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="names the namespace 'a', and 'b' is wanted"):
        open_store(f"{url}?namespace=a", namespace="b")
    with pytest.raises(StoreError, match="has the parameter 'namspace'; only"):
        open_store(f"{url}?namspace=a")
    store = open_store(url, namespace="a")
    assert open_store(store) is store is open_store(store, namespace="a")
    with pytest.raises(StoreError, match="is bound to the namespace 'a', not to 'b'"):
        open_store(store, namespace="b")
    store.close()


def test_a_question_mark_in_a_folder_s_name_is_no_parameter(tmp_path: Path) -> None:
    store = open_store("sqlite:///what?is=this/runs.db", namespace="a")

    assert (tmp_path / "what?is=this" / "runs@a.db").is_file()
    assert runs_at(store.url) == []
    store.close()


def test_the_shared_store_in_memory_is_one_per_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = get_store("memory")
    assert usual is open_store("memory") is open_store() and namespace_of(usual) == "default"

    other = get_store("memory", namespace="a")

    assert other is open_store("memory?namespace=a") is open_store("memory", namespace="a")
    assert other is not usual and namespace_of(other) == "a"
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "a")
    assert get_store("memory") is other is open_store()
    assert open_store("memory://").url == "memory://?namespace=a"


def test_a_registered_store_is_refused_in_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    register_store("mine-alone", lambda: MemoryStore(namespace="a"))

    assert namespace_of(get_store("mine-alone", namespace="a")) == "a"
    with pytest.raises(StoreError, match="bound to the namespace 'a', not to 'default'"):
        get_store("mine-alone")
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "a")
    assert namespace_of(open_store("mine-alone")) == "a"


def test_the_environment_s_nonsense_is_told_when_a_store_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "no such")

    with pytest.raises(StoreError, match="'no such' cannot name a namespace"):
        open_store("memory://")


def test_runs_of_one_id_in_two_namespaces_go_on_at_once(url: str) -> None:
    """S2.4: several runs go on at the same time, each in its own namespace."""
    stores: list[Store] = [open_store(url, namespace=name) for name in ("a", "b")]
    seen = []

    def work(state: object) -> dict[str, int]:
        if not seen:
            seen.append(1)
            app = chain("x").compile(stores[1])
            assert active_runs.find(stores[0], "r") is not None and active_runs.find(stores[1], "r") is None
            assert app.invoke({"n": 5}, run_id="r").status == "completed"
        return {"n": 1}

    outcome = one(work).compile(stores[0]).invoke({"n": 1}, run_id="r")

    assert outcome.status == "completed" and [len(store.runs()) for store in stores] == [1, 1]
    for store in stores:
        store.close()
