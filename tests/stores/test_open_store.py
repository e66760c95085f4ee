"""Finding a store by URL, path, name or environment."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.stores import get_store, open_store, register_store
from holdfast.stores.base import Store, shown_url
from holdfast.stores.memory import MemoryStore
from tests.stores.journals import SOURCE, create, seqs


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def place(store: Store) -> Path:
    """Where the store is; closes it."""
    store.close()
    path: Path = getattr(store, "path", None) or store.directory  # type: ignore[attr-defined]
    return path


def test_memory_urls_open_a_fresh_store() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    create(first)

    assert isinstance(first, MemoryStore) and second.runs() == []


def test_sqlite_urls_are_relative_with_three_slashes_and_absolute_with_four(tmp_path: Path) -> None:
    assert place(open_store("sqlite:///runs.db")) == tmp_path / "runs.db"
    assert place(open_store("sqlite:///a/b/runs.db")) == tmp_path / "a" / "b" / "runs.db"
    assert place(open_store(f"sqlite:///{tmp_path}/abs.db")) == tmp_path / "abs.db"
    assert place(open_store("SQLite:runs.db")) == tmp_path / "runs.db"
    assert (tmp_path / "abs.db").is_file()


def test_file_urls_are_absolute_with_three_slashes_or_more(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/d", f"file:///{tmp_path}/d", f"file:{tmp_path}/d"):
        assert place(open_store(url)) == tmp_path / "d"
    for url in ("file:rel", "file://./rel", "file:./rel", "file://rel"):
        assert place(open_store(url)) == tmp_path / "rel"
    assert (tmp_path / "d").is_dir() and (tmp_path / "rel").is_dir()


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert place(open_store("sqlite:///~/runs.db")) == tmp_path / "home" / "runs.db"
    assert place(open_store("file:~/runs")) == tmp_path / "home" / "runs"


def test_a_store_s_own_url_opens_it_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    for url in ("sqlite:///runs.db", "file:runs"):
        store = open_store(url)
        create(store)
        monkeypatch.chdir(tmp_path / "elsewhere")
        again = open_store(store.url)
        assert seqs(again) == [1] and again.url == store.url
        again.close()
        store.close()
        monkeypatch.chdir(tmp_path)


def test_bare_paths_are_told_apart_by_suffix_or_by_being_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    assert place(open_store("runs.db")) == tmp_path / "runs.db"
    assert place(open_store(tmp_path / "x" / "runs.sqlite")) == tmp_path / "x" / "runs.sqlite"
    assert place(open_store("folder")) == tmp_path / "folder"
    with pytest.raises(StoreError, match=r"write sqlite:///\./thing for .* or file:\./thing"):
        open_store("./thing")


def test_a_store_is_answered_as_it_is() -> None:
    store = MemoryStore()

    assert open_store(store) is store


def test_urls_without_a_path_and_sqlite_in_memory_are_refused() -> None:
    for url in ("sqlite://", "sqlite:///", "file://", "file:///"):
        with pytest.raises(StoreError, match="names no path"):
            open_store(url)
    with pytest.raises(StoreError, match="use memory://"):
        open_store("sqlite:///:memory:")


def test_an_unknown_scheme_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        StoreError, match=r"did you mean sqlite://\? \(known: file://, memory://, postgresql://, sqlite://\)"
    ):
        open_store("sqlit:///runs.db")
    with pytest.raises(
        StoreError, match=r"'redis://host'.*known: file://, memory://, postgresql://, sqlite://"
    ):
        open_store("redis://host")


def test_a_password_in_a_url_is_never_shown() -> None:
    for url in (
        "postgress://me:s3cret@host/db",
        "redis://me:s3/cr:et@host",
        "rediss://h?password=s3cret&x=1",
    ):
        with pytest.raises(StoreError) as caught:
            open_store(url)
        assert "s3" not in str(caught.value)
    environ = {
        "WORKFLOW_CHECKPOINT_BACKEND": "file",
        "WORKFLOW_CHECKPOINT_DSN": "postgresql://me:s3cret@host/db",
    }
    with pytest.raises(StoreError, match="DSN=postgresql://me@host/db"):
        open_store(environ=environ)
    assert shown_url("postgresql://me@host/db?host=/x&schema=s") == "postgresql://me@host/db?host=/x&schema=s"
    assert shown_url("rediss://h?x=1&sslpassword=s3cret") == "rediss://h?x=1"
    assert shown_url("rediss://h?password=s3cret") == "rediss://h" and shown_url("a?b") == "a?b"


def test_postgres_is_opened_by_url_and_by_the_environment(postgres_url: str) -> None:
    """S2.19: `WORKFLOW_CHECKPOINT_BACKEND=postgres` with a DSN."""
    store = open_store(postgres_url.replace("postgresql:", "postgres:"))
    create(store)
    environ = {"WORKFLOW_CHECKPOINT_BACKEND": "postgres", "WORKFLOW_CHECKPOINT_DSN": postgres_url}

    for given in (environ, {"HOLDFAST_STORE": postgres_url}, {"WORKFLOW_CHECKPOINT_DSN": postgres_url}):
        again = open_store(environ=given)
        assert again.url == store.url == postgres_url and seqs(again) == [1]
        again.close()
    other = open_store(environ={**environ, "HOLDFAST_NAMESPACE": "other"})
    assert other.url == f"{postgres_url}&namespace=other" and other.runs() == []
    other.close()
    store.close()


def test_the_store_named_memory_is_shared_and_outlives_a_close() -> None:
    store = get_store("memory")
    assert store is get_store("memory") is open_store("memory") is open_store(None, environ={})

    create(store, "shared")
    store.close()

    assert seqs(get_store("memory"), "shared") == [1]
    store.delete("shared")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(StoreError, match=r"^unknown checkpoint store: memry; did you mean memory\?"):
        get_store("memry")
    with pytest.raises(StoreError, match=r"^unknown checkpoint store: nothing-like-it"):
        open_store("nothing-like-it")


def test_a_registered_store_is_found_by_name_and_replaced_by_a_later_one() -> None:
    first, second = MemoryStore(), MemoryStore()
    register_store("mine", first)
    assert get_store("mine") is open_store("mine") is first

    register_store("mine", second)
    assert get_store("mine") is second


def test_a_registered_factory_is_called_once_even_by_many_threads() -> None:
    made: list[Store] = []

    def factory() -> Store:
        made.append(MemoryStore())
        return made[-1]

    register_store("made", factory)
    register_store("classy", MemoryStore)
    threads = [threading.Thread(target=get_store, args=("made",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [get_store("made")]
    assert isinstance(get_store("classy"), MemoryStore) and get_store("classy") is get_store("classy")


def test_a_name_that_would_read_as_a_url_or_path_cannot_be_registered() -> None:
    for name in ("", "a:b", "a/b"):
        with pytest.raises(StoreError, match="cannot name a store"):
            register_store(name, MemoryStore())


def test_the_environment_decides_when_nothing_is_given(tmp_path: Path) -> None:
    backend, dsn = "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN"

    def opened(**environ: str) -> Path:
        return place(open_store(environ=environ))

    assert opened(HOLDFAST_STORE="sqlite:///h.db", **{backend: "file", dsn: "f"}) == tmp_path / "h.db"
    assert opened(**{backend: "sqlite", dsn: "w"}) == tmp_path / "w"
    assert opened(**{backend: "SQLITE", dsn: "sqlite:///w2.db"}) == tmp_path / "w2.db"
    assert opened(**{backend: "file", dsn: "f"}) == tmp_path / "f"
    assert opened(**{dsn: "only.db"}) == tmp_path / "only.db"
    assert open_store(environ={backend: "memory"}) is get_store("memory")


@pytest.mark.parametrize(
    ("backend", "dsn", "message"),
    [
        ("postgres", "", "needs postgresql://USER@HOST/DATABASE in WORKFLOW_CHECKPOINT_DSN"),
        ("postgres", "sqlite:///x", "needs postgresql://"),
        ("sqlite", "", "needs a path in WORKFLOW_CHECKPOINT_DSN"),
        ("sqlite", "file:///x", "does not fit"),
        ("redis", "x", "^unknown checkpoint store: redis"),
    ],
)
def test_an_environment_that_cannot_work_is_refused(backend: str, dsn: str, message: str) -> None:
    environ = {"WORKFLOW_CHECKPOINT_BACKEND": backend, "WORKFLOW_CHECKPOINT_DSN": dsn}
    with pytest.raises(StoreError, match=message):
        open_store(environ=environ)


def test_sqlite_is_imported_only_when_a_sqlite_store_is_opened() -> None:
    program = (
        "import sys; from holdfast.stores import open_store; open_store('memory://');"
        "assert 'apsw' not in sys.modules; open_store('sqlite:///x.db').close(); assert 'apsw' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(SOURCE)})
