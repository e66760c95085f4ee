"""A chain of ten steps hits a rate limit at step 9. Later it is resumed, and no finished step runs again.

Run it: python examples/ten_steps_rate_limited.py
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

from holdfast import END, START, ExecutionError, StateGraph, append


class Report(TypedDict, total=False):
    topic: str
    chapters: Annotated[list[str], append]


class RateLimited(Exception):
    pass


calls: Counter[int] = Counter()
"""How often each chapter was requested, recorded outside Holdfast."""

limited = True


def write_chapter(number: int, topic: str) -> str:
    """Fake of an expensive call of a language model."""
    calls[number] += 1
    if limited and number == 9:
        raise RateLimited("429: too many requests, try again in an hour")
    return f"chapter {number} about {topic}"


def build() -> StateGraph:
    graph = StateGraph(Report, name="report")
    previous = START
    for number in range(1, 11):

        def node(state: Any, number: int = number) -> dict[str, Any]:
            return {"chapters": [write_chapter(number, state["topic"])]}

        graph.add_node(f"chapter_{number}", node)
        graph.add_edge(previous, f"chapter_{number}")
        previous = f"chapter_{number}"
    graph.add_edge(previous, END)
    return graph


def main() -> None:
    global limited
    with tempfile.TemporaryDirectory() as folder:
        app = build().compile(store=f"sqlite:///{Path(folder) / 'runs.db'}")

        print("Writing ten chapters ...")
        try:
            app.invoke({"topic": "tides"}, run_id="report-1")
        except ExecutionError as error:
            print(f"Stopped: {error}")
            assert error.node == "chapter_9" and isinstance(error.cause, RateLimited)
        print(f"Saved so far: {len(app.get_state('report-1')['chapters'])} chapters.")

        print("An hour later ...")
        limited = False
        out = app.resume("report-1")
        print(f"{out.status}: {out.stats.steps_kept} chapters kept, {out.stats.steps_run} written now.")
        app.store.close()

    print(f"Calls made: {sum(calls.values())}; only chapter 9 was asked for twice.")
    assert out.status == "completed"
    assert out.state["chapters"] == [f"chapter {number} about tides" for number in range(1, 11)]
    assert (out.stats.steps_kept, out.stats.steps_run) == (8, 2)
    assert calls == {number: 2 if number == 9 else 1 for number in range(1, 11)}


if __name__ == "__main__":
    main()
