"""Write the golden files of the current format, after it was changed on purpose: `python -m tests.golden.make`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import apsw

from holdfast import open_store
from holdfast.journal import writer
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from tests.golden.graphs import GRAPHS, UNFINISHED, plain, resumed

HERE = Path(__file__).parent
KINDS = {"sqlite": "sqlite:///{}/runs.db", "file": "file://{}/runs"}


def main(words: list[str]) -> None:
    """Make the files of all kinds of stores, or, called by itself, begin the run that crashes."""
    socket.gethostname = lambda: "golden"
    if words[:1] == ["--crash"]:
        os.environ["GOLDEN_MAKING"] = "yes"
        GRAPHS["crashed"]().compile(_open(words[1])).invoke({"n": 1}, run_id="crashed")
        return
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, form in KINDS.items():
            place = Path(folder) / kind
            place.mkdir()
            expected[kind] = _make(form, place)
            _shrink(place)
        (HERE / "expected.json").write_text(json.dumps(_together(expected), sort_keys=True) + "\n")
        with tarfile.open(HERE / "stores.tar.xz", "w:xz", preset=9) as archive:
            for kind in KINDS:
                archive.add(Path(folder) / kind, kind, filter=_anonymous)


def _together(expected: dict[str, Any]) -> dict[str, Any]:
    """What all kinds of stores hold alike, once, and what each has of its own: the ids."""
    own = {
        kind: {
            name: [run.pop("run"), *(found.pop("id") for found in run["checkpoints"])]
            for name, run in runs.items()
        }
        for kind, runs in expected.items()
    }
    first, *others = expected.values()
    assert all(other == first for other in others)
    return {"ids": own, "runs": first}


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(uid=0, gid=0, uname="", gname="", mtime=0, deep=False)


def _open(url: str) -> Any:
    return open_store(url)


def _make(form: str, place: Path) -> dict[str, Any]:
    """Fill a new store; answer what is in it, by run."""
    url = form.format(place)
    os.environ["GOLDEN_MAKING"] = "yes"
    subprocess.run([sys.executable, "-m", "tests.golden.make", "--crash", url], check=False)
    store = _open(url)
    done = GRAPHS["done"]().compile(store)
    done.invoke({"n": 1}, run_id="done")
    GRAPHS["asked"]().compile(store).invoke({"n": 1}, run_id="asked")
    try:
        GRAPHS["nested"]().compile(store).invoke({"n": 1}, run_id="nested")
    except Exception as error:
        assert "not yet" in str(error), error
    fork = done.resume(done.checkpoints("done")[0].id).run_id
    _snapshots_soon()
    pages = GRAPHS["pages"]().compile(store)
    for run in ("pages", "pruned"):
        pages.invoke({"n": 0}, run_id=run)
    assert store.snapshot("pages", 5) is not None
    _prune(store, "pruned")
    runs = [info.run for info in store.runs()]
    found = {"forked" if run == fork else run: _told(store, run) for run in runs}
    store.close()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(place, copy)
        again = _open(form.format(copy))
        os.environ.pop("GOLDEN_MAKING")
        for run in UNFINISHED:
            found[run]["resumed"] = resumed(again, run)
        again.close()
    return found


def _snapshots_soon() -> None:
    writer.SNAPSHOT_FLOOR = -2000


def _prune(store: Any, run: str) -> None:
    journal, codec = Journal(store), Codec()
    horizon = store.checkpoints(run)[2].seq
    loaded = journal.load(journal.info(run), codec, horizon)
    assert store.prune(run, journal.make_snapshot(loaded, codec)) > 0


def _told(store: Any, run: str) -> dict[str, Any]:
    info = store.runs(run=run)[0]
    app = GRAPHS[info.workflow]().compile(store)
    checkpoints = [
        {
            "id": str(found.id),
            "wave": found.wave,
            "nodes": list(found.nodes),
            "next": list(found.next),
            "state": plain(app.get_state(run, checkpoint_id=found.id)),
        }
        for found in app.checkpoints(run)
    ]
    facts = {"run": run, "workflow": info.workflow, "status": str(info.status)}
    return {**facts, "state": plain(app.get_state(run)), "checkpoints": checkpoints}


def _shrink(place: Path) -> None:
    """Let a database take no more room than it needs; a file system's block is far larger than its rows."""
    if (database := place / "runs.db").exists():
        connection = apsw.Connection(str(database))
        for command in ("journal_mode = DELETE", "page_size = 512"):
            connection.execute(f"PRAGMA {command}").fetchall()
        connection.execute("VACUUM")
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
