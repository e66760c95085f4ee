"""Takes runs back, and reuses them, in processes that are killed at every commit; run as a program, it prints a report.

The process that forks opens no store, so that each child begins clean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import END, START, StateGraph, open_store
from holdfast.stores.base import Store
from holdfast.testing import CrashingStore, kill_process
from tests.engine.time_travel.versioned_graphs import Facts
from tests.processes import in_child

EDGES = ((START, "a"), ("a", "b"), ("a", "c"), ("c", "e"), (["b", "e"], "d"), ("d", "f"), ("f", END))


def graph(folder: Path, version: str) -> StateGraph:
    """Every step writes down, on disk, that it began, and that it ended."""
    made = StateGraph(Facts, name="dying")

    def node(name: str, own: str) -> Any:
        def work(state: Any) -> dict[str, Any]:
            with (folder / "ran").open("a") as file:
                file.write(f"{name}\n")
            return {"log": [f"{name}.{own}"]}

        return work

    for name in "abcdef":
        own = version if name == "b" else "1"
        made.add_node(name, node(name, own), version=own)
    for source, target in EDGES:
        made.add_edge(source, target)
    return made


def take_back(store: Store, folder: Path) -> None:
    """Do again what changed in the run, or go on with that."""
    app = graph(folder, "2").compile(store)
    if "b.2" not in app.get_state("r")["log"] or store.runs(run="r")[0].status != "completed":
        app.resume("r", rerun_changed=True)


def reuse(store: Store, folder: Path) -> None:
    """Reuse the run in a new one, or go on with that."""
    app = graph(folder, "2").compile(store)
    known = store.runs(run="new")
    if not known:
        app.invoke(reuse="r", run_id="new")
    elif known[0].status != "completed":
        app.resume("new")


def rerun(store: Store, folder: Path) -> None:
    """Run a step again in a new run, with another result, or go on with that."""
    app = graph(folder, "1").compile(store)
    known = store.runs(run="new")
    if not known:
        app.rerun("r", "b", output={"log": ["b.2"]}, run_id="new")
    elif known[0].status != "completed":
        app.resume("new")


WAYS: dict[str, Callable[[Store, Path], None]] = {"take_back": take_back, "reuse": reuse, "rerun": rerun}


def begin(folder: Path) -> None:
    graph(folder, "1").compile(open_store(f"sqlite:///{folder}/runs.db")).invoke({}, run_id="r")


def drive(folder: Path, way: str, at: int = 0) -> None:
    store: Any = open_store(f"sqlite:///{folder}/runs.db")
    WAYS[way](CrashingStore(store, at, "committed", kill_process) if at else store, folder)


def end(folder: Path, way: str) -> None:
    store = open_store(f"sqlite:///{folder}/runs.db")
    log = graph(folder, "2").compile(store).get_state("r" if way == "take_back" else "new")["log"]
    (folder / "log").write_text(json.dumps(list(log)))


def killed(root: Path, way: str, at: int) -> tuple[bool, list[str], list[str]]:
    """Whether it died, what ran in all, and what came of it."""
    folder = root / f"{way}{at}"
    folder.mkdir()
    assert in_child(lambda: begin(folder)) == 0
    (folder / "ran").unlink()
    code = in_child(lambda: drive(folder, way, at))
    assert in_child(lambda: drive(folder, way)) == 0
    assert in_child(lambda: end(folder, way)) == 0
    ran = (folder / "ran").read_text().split() if (folder / "ran").exists() else []
    return code == -9, ran, json.loads((folder / "log").read_text())


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for name in WAYS:
        for number in range(1, 20):
            died, steps, result = killed(place, name, number)
            print(json.dumps([name, died, steps, result]), flush=True)
            if not died:
                break
