"""A map over 200 items in another process is killed with SIGKILL half-way, and resumed.

Every item is journalled when it finishes, so the resume runs only the rest. An item that was running
when the process was killed runs again: steps run at least once.

Run it: python examples/map_killed_half_way.py
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

from holdfast import END, START, Send, StateGraph, append

ITEMS, AT_ONCE = 200, 8


class Work(TypedDict, total=False):
    item: int
    squares: Annotated[list[int], append]
    total: int


def build(ledger: Path) -> StateGraph:
    def square(state: Any) -> dict[str, Any]:
        with ledger.open("a") as file:
            file.write(f"{state['item']}\n")
        time.sleep(0.02)
        return {"squares": [state["item"] ** 2]}

    graph = StateGraph(Work, name="squares")
    graph.add_conditional_edges(
        START, lambda state: [Send("square", {"item": i}, key=str(i)) for i in range(ITEMS)]
    )
    graph.add_node("square", square)
    graph.add_node("sum", lambda state: {"total": sum(state["squares"])})
    graph.add_edge("square", "sum")
    graph.add_edge("sum", END)
    return graph


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


def killed_half_way(folder: Path, ledger: Path) -> None:
    """Start the map in another process, and kill it when half of the items have started."""
    child = subprocess.Popen([sys.executable, __file__, str(folder)])
    while len(lines(ledger)) < ITEMS // 2 and child.poll() is None:
        time.sleep(0.005)
    child.kill()
    child.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = folder / "ledger.txt"
        print(f"A map over {ITEMS} items starts in a process of its own ...")
        killed_half_way(folder, ledger)
        before = lines(ledger)
        print(f"... and is killed with SIGKILL after {len(before)} items have begun.")

        app = build(ledger).compile(store=folder / "runs.db", max_parallel=AT_ONCE)
        out = app.resume("map-1")
        app.store.close()
        after = lines(ledger)[len(before) :]

    finished = out.stats.steps_kept
    twice = [item for item, count in Counter(before + after).items() if count > 1]
    print(f"Resumed: {finished} items were finished and kept, {len(after)} ran now.")
    print(f"Finished items that ran twice: {finished + len(after) - ITEMS}.")
    print(f"Items under way at the kill, which ran again: {len(twice)} (at most {AT_ONCE} run at once).")
    print(f"{out.status}: the sum of the squares is {out.state['total']}.")
    assert 0 < finished < ITEMS, "the kill came too early or too late"
    assert finished + len(after) == ITEMS
    assert len(set(after)) == len(after) and len(twice) == len(before) - finished <= AT_ONCE
    assert list(out.state["squares"]) == [i * i for i in range(ITEMS)]
    assert out.state["total"] == sum(i * i for i in range(ITEMS))


def child(folder: Path) -> None:
    build(folder / "ledger.txt").compile(store=folder / "runs.db", max_parallel=AT_ONCE).invoke(
        run_id="map-1"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(Path(sys.argv[1]))
    else:
        main()
