"""Random commands to random graphs, from inside and outside of executions: nothing breaks, and every run ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import (
    END,
    START,
    App,
    CommandRefused,
    ExecutionError,
    HoldfastError,
    Send,
    StateGraph,
    open_store,
)
from holdfast.journal.encoding import Track, decode_run, encode_run
from holdfast.journal.fold import apply
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec
from holdfast.values import RunStatus
from tests.graphs import Log

NAMES = ("a", "b", "c", "sub", "sub/x", "sub/y", "a#1", "zzz")
NODES = ("a", "b", "c", "sub", "sub/x", "zzz")
WORK = ("ok", "ask", "fail")


class Asked(NamedTuple):
    """One command, with what belongs to it."""

    verb: str
    name: str
    number: int
    flag: bool

    def put(self, app: App) -> None:
        """Ask it of the run; what is refused is refused."""
        steps = [self.name, Send(self.name, {"n": self.number}, key=str(self.number))][: 1 + self.flag]
        verbs: dict[str, Callable[[], object]] = {
            "edit": lambda: app.edit("r", {"n" if self.flag else "nn": self.number}),
            "skip": lambda: app.skip("r", self.name),
            "modify": lambda: app.modify("r", self.name, {"n": self.number}),
            "inject": lambda: app.inject("r", steps, follow=self.flag),
            "replan": lambda: app.replan("r", steps if self.number else [], follow=self.flag),
            "pause": lambda: app.pause("r"),
            "cancel": lambda: app.cancel("r"),
            "answer": lambda: app.answer("r", answers={pause.id: 1 for pause in app.pauses("r")[:1]}),
        }
        try:
            verbs[self.verb]()
        except (CommandRefused, HoldfastError):
            return


VERBS = ("edit", "skip", "modify", "inject", "replan", "pause", "cancel", "answer")
asked = st.builds(Asked, st.sampled_from(VERBS), st.sampled_from(NODES), st.integers(0, 3), st.booleans())


class Play:
    """A graph whose nodes follow a script, and send the next command of the script meanwhile."""

    def __init__(
        self, work: dict[str, str], edges: list[tuple[str, str]], script: list[Asked], barrier: bool
    ) -> None:
        self.work, self.script = work, script
        self.asking, self.quiet = 0, threading.Condition()
        inner = StateGraph(Log, name="inner").add_node("x", self.node("x")).add_node("y", self.node("y"))
        inner.add_edge(START, "x").add_edge("x", "y")
        graph = StateGraph(Log, name="g", max_iterations=60)
        for name in ("a", "b", "c"):
            graph.add_node(name, self.node(name))
        graph.add_node("sub", inner)
        for source, target in [(START, "a"), ("a", "b"), ("b", "c"), ("c", "sub"), *edges]:
            graph.add_edge(source, target)
        self.app = graph.add_edge("sub", END).compile(open_store("memory://"), barrier=barrier)

    def node(self, name: str) -> Any:
        def run(state: Any, ctx: Any) -> dict[str, Any]:
            with self.quiet:
                self.asking += 1
            if self.script:
                self.script.pop(0).put(self.app)
            with self.quiet:
                self.asking -= 1
                self.quiet.notify_all()
            if self.work[name] == "fail":
                raise ValueError(name)
            return {"log": [ctx.ask("well?", name=name) if self.work[name] == "ask" else name]}

        return run

    def drive(self, begin: bool = False) -> RunStatus:
        """Return the run when nobody executes it or sends commands any more.

        A step that was abandoned in its thread may still be asking when the execution ends.
        """
        status = self._driven(begin)
        with self.quiet:
            late = self.asking > 0
            assert self.quiet.wait_for(lambda: not self.asking, 60)
        return RunStatus(self.app._settings.journal.info("r").status) if late else status

    def _driven(self, begin: bool) -> RunStatus:
        try:
            if begin:
                return self.app.invoke({"n": 0}, run_id="r").status
            return self.app.resume("r").status
        except ExecutionError:
            return RunStatus.FAILED


def check(app: App, status: RunStatus) -> None:
    """A run stands for a reason, its journal folds to what is loaded, and a snapshot to the same."""
    journal, codec = app._settings.journal, Codec()
    info = journal.info("r")
    loaded = journal.load(info, codec)
    run = loaded.run
    assert info.status == run.status == status and run.inbox_seen <= len(app.store.inbox("r"))
    assert status != RunStatus.PAUSED or run.pauses
    assert status != RunStatus.FAILED or run.fault is not None
    assert status == RunStatus.COMPLETED or run.inbox_seen == len(app.store.inbox("r"))
    folded = RunState()
    _, history = journal.history(info, codec)
    for entry, records in history:
        for record in records:
            apply(folded, record, entry.at)
    folded.saved_seq = run.saved_seq
    body = encode_run(run, Track(), codec)
    assert encode_run(folded, Track(), codec) == body
    assert encode_run(decode_run(body, Track(), codec), Track(), codec) == body
    ids = [step.id for step in run.active()]
    assert len(ids) == len(set(ids)) and {pause.step for pause in run.pauses.values()} <= set(ids)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries({name: st.sampled_from(WORK) for name in ("a", "b", "c", "x", "y")}),
    st.lists(st.sampled_from([("a", "c"), ("a", "sub")]), unique=True),
    st.lists(asked, max_size=8),
    st.lists(st.lists(asked, max_size=3), max_size=5),
    st.booleans(),
)
def test_whatever_is_asked_of_it_a_run_folds_and_ends(
    work: dict[str, str],
    edges: list[tuple[str, str]],
    script: list[Asked],
    between: list[list[Asked]],
    barrier: bool,
) -> None:
    play = Play(work, edges, script, barrier)
    status = play.drive(begin=True)
    check(play.app, status)
    for wishes in between:
        for wish in wishes:
            wish.put(play.app)
        if status == RunStatus.COMPLETED:
            break
        status = play.drive()
        check(play.app, status)
    script.clear()
    work.update(dict.fromkeys(work, "ok"))
    for _ in range(5):
        if status == RunStatus.COMPLETED:
            break
        for pause in play.app.pauses("r"):
            play.app.answer("r", answers={pause.id: "late"})
        status = play.drive()
        check(play.app, status)
    assert status == RunStatus.COMPLETED


def test_the_same_with_an_event_loop_of_somebody_else() -> None:
    script = [Asked("skip", "b", 0, False), Asked("inject", "c", 2, True)]
    play = Play(dict.fromkeys(("a", "b", "c", "x", "y"), "ok"), [], script, True)

    status = asyncio.run(play.app.ainvoke({"n": 0}, run_id="r")).status

    check(play.app, status)
    assert status == RunStatus.COMPLETED and script == []
