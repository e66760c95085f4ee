"""Another SQLite library in the same process, and files that vanish: what was acknowledged is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast import ExecutionError, StoreError
from holdfast.stores.sqlite.store import SqliteStore
from tests.graphs import chain
from tests.stores.journals import add, create, seqs

LOOKING = """
import os, signal, sqlite3
from holdfast import END, START, StateGraph

def look(state):
    connection = sqlite3.connect("runs.db")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.close()

graph = StateGraph(dict, name="w").add_node("look", look).add_node("b", lambda state: {"b": 1})
graph.add_edge(START, "look").add_edge("look", "b").add_edge("b", END)
app = graph.compile("sqlite:///runs.db")
for number in range(5):
    try:
        print(app.invoke({}, run_id=f"r{number}").run, flush=True)
    except Exception:
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_runs_told_completed_outlive_a_kill_though_steps_read_the_file_with_sqlite3(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKING], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )

    assert done.returncode == -signal.SIGKILL, done.stderr
    store = SqliteStore(tmp_path / "runs.db")
    stored = {info.run for info in store.runs(status=["completed"])}
    store.close()
    assert set(done.stdout.split()) <= stored
    if sys.platform == "linux":
        assert len(stored) == 5


@pytest.mark.parametrize(("suffix", "left"), [("-wal", [1, 2]), ("", [])])
def test_nothing_is_acknowledged_after_a_file_was_removed(
    tmp_path: Path, suffix: str, left: list[int]
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    create(store, "r")
    Path(f"{path}{suffix}").unlink()

    with pytest.raises(StoreError, match=r"removed or replaced .* nothing was acknowledged"):
        add(store, "r", 1)
    assert seqs(store, "r") == left
    store.close()


def test_after_the_wal_was_removed_the_run_can_be_resumed_in_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    lost = threading.Event()

    def lose(state: dict[str, object]) -> None:
        if not lost.is_set():
            lost.set()
            Path(f"{path}-wal").unlink()

    app = chain("a", "b", "c", nodes={"b": lose}).compile(f"sqlite:///{path}")
    with pytest.raises(ExecutionError, match="nothing was acknowledged"):
        app.invoke({}, run_id="r")

    assert app.resume("r").status == "completed"
    app.store.close()
    store = SqliteStore(path)
    assert [info.status for info in store.runs()] == ["completed"]
    store.close()


def test_no_store_is_opened_beside_one_that_lost_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    create(store, "r")
    Path(f"{path}-wal").unlink()
    Path(f"{path}-wal").touch()

    with pytest.raises(StoreError, match="removed or replaced"):
        SqliteStore(path)
    store.close()


def test_the_last_user_of_a_file_still_clears_up(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    first, second = SqliteStore(path), SqliteStore(path)
    create(first, "r")
    first.close()
    assert Path(f"{path}-wal").exists()
    add(second, "r", 1)
    assert seqs(second, "r") == [1, 2]
    second.close()

    assert [file.name for file in tmp_path.iterdir()] == ["runs.db"]


STARVING = """
import os, resource, sys
from holdfast.stores.sqlite.store import SqliteStore

SqliteStore("other.db").close()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
lowest = os.dup(0)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
try:
    SqliteStore("runs.db")
except Exception as error:
    print(error)
"""


def test_without_descriptors_the_way_out_is_not_another_path(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARVING]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert "Too many open files; close files or raise their limit" in done.stdout, done.stderr
