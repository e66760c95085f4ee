"""Pictures of runs: what any reader sees, read from the journal alone."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import pathlib
import uuid
from typing import Any, TypedDict

import pytest

from holdfast import END, START, CheckpointPolicy, ExecutionError, Retry, Send, State, StateGraph, open_store
from holdfast.checkpoints import JournalCheckpointStore
from holdfast.errors import CheckpointNotFound, CodecError, CorruptJournal, RunNotFound
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Unknown
from holdfast.stores.base import Store
from holdfast.views.plain import MAX_DEPTH, TOO_BIG_TO_PREVIEW, plain, preview, size_text
from holdfast.views.run_view import PauseView
from holdfast.views.runs import find_checkpoint_info, find_run_info, run_list, run_pauses, run_view
from holdfast.views.timeline import Timeline, timeline
from tests.graphs import Log, chain, fan, one, says


def boom(state: Any) -> None:
    raise ValueError("no luck")


def failed(app: Any, run: str, **values: Any) -> None:
    with pytest.raises(ExecutionError):
        app.invoke(values or {"n": 1}, run_id=run)


def asks(state: Any, ctx: Any) -> dict[str, Any]:
    return {"log": [ctx.ask("which?", choices=["a", "b"], name="q")]}


def statuses(store: Store, run: str, **options: Any) -> dict[str, str]:
    return {step.name: step.status for step in run_view(Journal(store), run, **options).steps}


# A run as it stands.


def test_a_completed_run_shows_its_steps_inputs_and_output(store: Store) -> None:
    chain("a", "b", name="w").compile(store).invoke({"n": 3}, run_id="r")

    view = run_view(Journal(store), "r")

    assert [(step.name, step.status, step.visits, step.attempts) for step in view.steps] == [
        ("a", "completed", 1, 1),
        ("b", "completed", 1, 1),
    ]
    assert (view.line.workflow, view.line.status, view.steps_done) == ("w", "completed", 2)
    assert view.inputs == {"n": 3, "log": []}
    assert view.output == {"n": 3, "log": ["a", "b"]}
    assert view.steps[1].output == {"log": ["b"]} and view.steps[1].preview() == '{"log": ["b"]}'
    assert view.steps[0].started_at is not None and view.steps[0].ended_at is not None
    assert view.checkpoints == len(store.checkpoints("r")) and view.size > 0
    assert view.checkpoint_id == JournalCheckpointStore(store).load("r").checkpoint_id  # type: ignore[union-attr]
    assert view.workflow_file is None and view.tags == () and view.fault is None and view.pauses == ()


def test_a_failed_run_says_where_and_why_and_what_was_not_reached(store: Store) -> None:
    failed(chain("a", "b", "c", nodes={"b": boom}, name="w").compile(store), "r")

    view = run_view(Journal(store), "r")

    assert statuses(store, "r") == {"a": "completed", "b": "failed", "c": "pending"}
    assert view.fault is not None and str(view.fault) == "ValueError: no luck" and view.fault.step == "b"
    assert "in boom" in view.fault.trace and view.output is None
    assert view.steps[1].fault is not None and view.steps[1].fault.message == "no luck"


def test_retries_are_counted_and_a_step_that_made_it_has_no_fault(memory: Store) -> None:
    tries: list[int] = []

    def flaky(state: Any) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("busy")
        return {"n": 2}

    one(flaky, retry=Retry(attempts=3, delay=0.0)).compile(memory).invoke({"n": 1}, run_id="r")
    (step,) = run_view(Journal(memory), "r").steps

    assert (step.status, step.visits, step.attempts, step.fault) == ("completed", 1, 3, None)


def test_the_visits_of_a_loop_are_one_step(memory: Store) -> None:
    graph = StateGraph(dict, name="loop")
    graph.add_node("more", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "more")
    graph.add_conditional_edges("more", lambda state: END if state["n"] == 7 else "more", ["more", END])
    graph.compile(memory).invoke({"n": 0}, run_id="r")

    (step,) = run_view(Journal(memory), "r").steps

    assert (step.visits, step.attempts, step.output) == (7, 7, {"n": 7})


def test_a_for_each_is_one_step_with_its_items_counted(memory: Store) -> None:
    graph = StateGraph(Log, name="each")
    graph.add_node("publish", lambda state: None)

    def work(state: Any) -> dict[str, Any]:
        if state["x"] == 3 and "b" not in state["log"]:
            raise ValueError("three")
        return {"log": [str(state["x"])]}

    graph.add_node("publish:item", work)
    graph.add_node("publish:done", says("done"))
    graph.add_edge(START, "publish")
    sends = [Send("publish:item", {"x": number}) for number in range(5)]
    graph.add_conditional_edges("publish", lambda state: sends, ["publish:item"])
    graph.add_edge("publish:item", "publish:done")
    graph.add_edge("publish:done", END)
    app = graph.compile(memory)
    failed(app, "r")

    (step,) = run_view(Journal(memory), "r").steps
    assert step.name == "publish" and step.status == "failed"
    assert step.items is not None
    assert step.items.as_json() == {"total": 5, "completed": 4, "failed": 1, "skipped": 0, "running": 0}

    app.resume("r", update={"log": ["b"]})
    (step,) = run_view(Journal(memory), "r").steps
    assert step.status == "completed" and step.visits == 1
    assert step.items is not None and (step.items.total, step.items.completed) == (5, 5)


def test_a_failure_that_was_passed_over_is_shown_as_failed(memory: Store) -> None:
    policy = CheckpointPolicy(on_failure="continue")
    chain("a", "b", nodes={"a": boom}).compile(memory, policy=policy).invoke({"n": 1}, run_id="r")

    view = run_view(Journal(memory), "r")

    assert statuses(memory, "r") == {"a": "failed", "b": "completed"}
    assert str(view.steps[0].fault) == "ValueError: no luck" and view.line.status == "completed"


def test_the_steps_of_a_sub_graph_carry_its_name(memory: Store) -> None:
    graph = StateGraph(Log, name="outer")
    graph.add_node("sub", chain("x", "y", nodes={"y": boom}))
    graph.add_edge(START, "sub")
    graph.add_edge("sub", END)
    failed(graph.compile(memory), "r")

    assert statuses(memory, "r") == {"sub": "interrupted", "sub/x": "completed", "sub/y": "failed"}


def test_a_pause_says_what_is_asked_and_how_to_answer(store: Store) -> None:
    app = chain("a", "b", nodes={"b": asks}).compile(store)
    app.invoke({"n": 1}, run_id="my run")

    view = run_view(Journal(store), "my run")
    (pause,) = view.pauses

    assert statuses(store, "my run")["b"] == "waiting"
    assert (pause.name, pause.prompt, pause.choices, pause.step) == ("q", "which?", ("a", "b"), "b")
    assert pause.takes == "one of a, b" and pause.until is None
    assert pause.command == "holdfast answer 'my run' q=a"
    assert run_pauses(Journal(store), store.runs(run="my run")[0]) == view.pauses

    app.resume("my run", "a")
    assert run_view(Journal(store), "my run").pauses == ()


def test_a_gate_takes_no_answer(memory: Store) -> None:
    chain("a", "b").compile(memory, interrupt_before=["b"]).invoke({"n": 1}, run_id="r")

    (pause,) = run_view(Journal(memory), "r").pauses

    assert pause.is_gate and pause.command == "app.resume('r') in its program" and "no answer" in pause.takes
    assert statuses(memory, "r") == {"a": "completed", "b": "waiting"}


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (None, "any value"),
        ({"type": "integer"}, "a value of type integer"),
        ({"enum": [True]}, "one of true"),
    ],
)
def test_what_a_pause_takes_in_words(schema: Any, takes: str) -> None:
    now = dt.datetime.now(dt.UTC)

    assert PauseView("r", "p", "ask", "s", "q", "?", schema, now).takes == takes


def test_a_run_whose_driver_is_gone_is_dead_and_its_step_interrupted(memory: Store) -> None:
    seen: dict[str, Any] = {}

    def look(state: Any) -> dict[str, Any]:
        journal = Journal(memory)
        seen["alive"] = statuses(memory, "r", is_alive=lambda driver: True)
        seen["dead"] = statuses(memory, "r", is_alive=lambda driver: False)
        seen["line"] = run_list(journal, is_alive=lambda driver: False)[0]
        seen["unknown"] = run_list(journal)[0]
        return {"n": 2}

    one(look).compile(memory).invoke({"n": 1}, run_id="r")

    assert seen["alive"] == {"work": "running"} and seen["dead"] == {"work": "interrupted"}
    assert seen["line"].is_dead and seen["line"].owner.pid > 0 and seen["line"].as_json()["dead"] is True
    assert not seen["unknown"].is_dead and seen["unknown"].owner.alive is None
    assert not run_list(Journal(memory), is_alive=lambda driver: False)[0].is_dead


def test_a_run_that_ended_while_it_was_looked_at_is_not_called_dead(memory: Store) -> None:
    """Its owner may end normally between the reading of its status and the check whether it is alive."""
    lines = []

    def ends(driver: str) -> bool:
        info = memory.runs(run="r")[0]
        done = dataclasses.replace(info, status="completed")
        head = list(memory.read("r"))[-1].seq
        from holdfast.stores.base import Append

        assert memory.commit([Append("r", head, [], done)]) == [None]
        return False

    def look(state: Any) -> None:
        lines.append(run_list(Journal(memory), is_alive=ends)[0])

    one(look).compile(memory).invoke({"n": 1}, run_id="r")

    assert lines[0].status == "completed" and not lines[0].is_dead


def test_a_pruned_run_still_has_its_steps_and_state(store: Store) -> None:
    chain("a", "b", "c", "d").compile(store).invoke({"n": 1}, run_id="r")
    JournalCheckpointStore(store).prune(max_count=1)

    view = run_view(Journal(store), "r")

    assert statuses(store, "r") == dict.fromkeys("abcd", "completed")
    assert view.state["log"] == ["a", "b", "c", "d"] and view.checkpoints == 1 and view.inputs == {}


def test_a_fork_knows_its_parent_and_what_was_done_before(memory: Store) -> None:
    app = chain("a", "b", "c").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    forked = app.resume(app.checkpoints("r")[0].id).run_id

    view = run_view(Journal(memory), forked)

    assert view.parent is not None and view.parent[0] == "r" and view.as_json()["parent"]["run_id"] == "r"
    assert [(step.name, step.status, step.visits) for step in view.steps] == [
        (name, "completed", 1) for name in "abc"
    ]


def test_a_run_at_an_earlier_entry(memory: Store) -> None:
    app = chain("a", "b", "c").compile(memory)
    app.invoke({"n": 1}, run_id="r")
    first = app.checkpoints("r")[0]

    view = run_view(Journal(memory), "r", upto=first.seq)

    assert view.state["log"] == ["a"] and view.checkpoint_id == first.id


def test_a_state_saved_by_hand_can_be_looked_at(memory: Store) -> None:
    JournalCheckpointStore(memory).save(State({"x": 1}, run_id="r"))

    view = run_view(Journal(memory), "r")

    assert view.steps == () and view.state == {"x": 1} and view.outline == {}


def test_an_encrypted_run_needs_its_key(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "a" * 64)
    chain("a").compile(memory).invoke({"n": 1}, run_id="r")

    with pytest.raises(CodecError, match="run 'r' is encrypted; set HOLDFAST_KEY"):
        run_view(Journal(memory), "r")
    with pytest.raises(CodecError, match="HOLDFAST_KEY"):
        list(timeline(Journal(memory), "r"))
    assert run_list(Journal(memory))[0].status == "completed"
    assert run_view(Journal(memory, Seal.from_text("a" * 64)), "r").state["log"] == ["a"]


class Exotic:
    """A type that the program knew and the reader does not."""

    def __init__(self, word: str) -> None:
        self.word = word


def test_values_of_unknown_types_are_shown_as_data(memory: Store) -> None:
    """The program's schema declares the type, the reader knows nothing of it."""
    one(lambda state: {"thing": Point(1, 2)}, Things).compile(memory).invoke({}, run_id="r")

    view = run_view(Journal(memory), "r")

    shown = view.as_json(state=True)["state"]["thing"]
    assert shown["$type"].endswith("Point") and shown["value"] == {"x": 1, "y": 2}
    assert "Point" in view.steps[0].preview()


def test_everything_a_view_says_is_json(store: Store) -> None:
    app = chain("a", "b", nodes={"b": asks}, name="w").compile(store)
    app.invoke(
        {"n": 1}, run_id="r", config={"tags": ["x"], "workflow_file": {"path": "f.yaml", "digest": "d" * 64}}
    )

    data = json.loads(json.dumps(run_view(Journal(store), "r").as_json(state=True), allow_nan=False))

    assert set(data) == {
        "run_id", "workflow", "status", "dead", "started_at", "updated_at", "wave", "next", "owner", "workflow_file",
        "tags", "parent", "provenance", "inputs", "output", "steps", "steps_done", "items_done", "seconds", "pauses",
        "ledger",
        "checkpoints", "checkpoint_id", "bytes", "commands_refused", "refusals", "facts", "annotations", "error",
        "state",
        "queue", "priority", "due_at",
    }  # fmt: skip
    assert data["workflow_file"] == {"path": "f.yaml", "digest": "d" * 64} and data["tags"] == ["x"]
    assert set(data["steps"][0]) == {
        "name", "status", "visits", "attempts", "seconds", "started_at", "ended_at", "retry_at", "items",
        "error", "note", "preview",
    }  # fmt: skip
    assert data["started_at"].endswith("+00:00") and data["next"] == ["b"]


# Lists.


def test_runs_are_listed_last_touched_first_and_filtered(store: Store) -> None:
    good, bad = (
        chain("a", name="good").compile(store),
        chain("a", nodes={"a": boom}, name="bad").compile(store),
    )
    good.invoke({"n": 1}, run_id="g1")
    failed(bad, "b1")
    good.invoke({"n": 1}, run_id="g2")
    journal = Journal(store)

    assert [line.run_id for line in run_list(journal)] == ["g2", "b1", "g1"]
    assert [line.run_id for line in run_list(journal, workflow="good")] == ["g2", "g1"]
    assert [line.run_id for line in run_list(journal, status=["failed"])] == ["b1"]
    assert [line.run_id for line in run_list(journal, limit=1)] == ["g2"]
    assert run_list(journal, status=["failed"])[0].next == ("a",)


class Counting:
    """A store that counts which bytes were read."""

    def __init__(self, store: Store) -> None:
        self._store, self.reads = store, 0

    def read(self, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return self._store.read(*args, **kwargs)

    def snapshot(self, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return self._store.snapshot(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_list_reads_no_journal(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    chain("a", "b").compile(store).invoke({"n": 1}, run_id="r")
    counting: Any = Counting(store)

    assert run_list(Journal(counting))[0].wave == 2

    assert counting.reads == 0


def test_a_run_is_found_by_id_by_workflow_and_by_checkpoint(memory: Store) -> None:
    app = chain("a", name="w").compile(memory)
    app.invoke({"n": 1}, run_id="r1")
    app.invoke({"n": 1}, run_id="r2")
    journal, ident = Journal(memory), app.checkpoints("r1")[0].id

    assert find_run_info(journal, "r1").run == "r1"
    assert find_run_info(journal, "w").run == "r2"
    assert find_run_info(journal, ident).run == "r1"
    assert find_checkpoint_info(journal, ident) == (memory.runs(run="r1")[0], app.checkpoints("r1")[0].seq)
    with pytest.raises(RunNotFound, match="no run, checkpoint or workflow 'x'"):
        find_run_info(journal, "x")
    with pytest.raises(CheckpointNotFound):
        find_checkpoint_info(journal, str(uuid.uuid4()))


# The timeline.


def types_of(store: Store, run: str, after: int = 0) -> list[str]:
    return [moment.type for moment in timeline(Journal(store), run, after)]


def test_the_timeline_tells_what_happened_in_order(store: Store) -> None:
    app = chain("a", "b", nodes={"b": asks}, name="w").compile(store)
    app.invoke({"n": 1}, run_id="r")
    app.resume("r", "b")

    moments = list(timeline(Journal(store), "r"))

    aside = ("checkpoint.save", "run.describe")
    assert [moment.type for moment in moments if moment.type not in aside] == [
        "graph.start", "node.start", "node.complete", "node.start", "pause", "graph.pause",
        "answer", "checkpoint.resume", "node.start", "node.complete", "graph.complete",
    ]  # fmt: skip
    assert [moment.seq for moment in moments] == sorted(moment.seq for moment in moments)
    told = {moment.type: moment for moment in moments}
    assert told["answer"].data["answer"] == "b" and told["answer"].step == "b#1"
    assert told["pause"].data["prompt"] == "which?"
    assert told["node.complete"].data["update"] == {"log": ["b"]}
    assert told["checkpoint.save"].data["checkpoint_id"] == app.checkpoints("r")[-1].id
    assert json.loads(json.dumps([moment.as_json() for moment in moments]))[0]["text"] == "run of w started"


def test_failures_retries_and_skips_are_told(memory: Store) -> None:
    app = one(boom, retry=Retry(attempts=2, delay=0.0)).compile(memory)
    failed(app, "r")
    fan("a", "b", nodes={"a": boom}).compile(memory, policy=CheckpointPolicy(on_failure="continue")).invoke(
        {"n": 1}, run_id="s"
    )

    moments = {moment.type: moment for moment in timeline(Journal(memory), "r")}
    assert "tried again at" in moments["node.retry"].text and moments["node.error"].data["attempt"] == 2
    assert moments["graph.fail"].text == "run failed at work"
    skipped = [moment for moment in timeline(Journal(memory), "s") if moment.type == "node.skip"]
    assert [moment.text for moment in skipped] == ["a#1 skipped: ValueError: no luck"]


def test_edits_forks_and_changed_graphs_are_told(memory: Store) -> None:
    app = chain("a", "b", nodes={"b": boom}, name="w").compile(memory)
    failed(app, "r")
    chain("a", "b", name="w").compile(memory).resume("r", update={"n": 5}, on_change="warn")
    forked = chain("a", "b", name="w").compile(memory).resume(app.checkpoints("r")[0].id).run_id

    assert {"state.update", "graph.changed"} <= set(types_of(memory, "r"))
    first = next(timeline(Journal(memory), forked))
    assert first.type == "graph.start" and first.data["parent"] == "r"


def test_a_timeline_goes_on_where_it_was_left(store: Store) -> None:
    app = chain("a", "b", nodes={"b": asks}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    told = Timeline(Journal(store), "r")
    before = list(told.read())
    assert list(told.read()) == [] and told.status == "paused"

    app.resume("r", "a")
    after = list(told.read())

    assert [*before, *after] == list(timeline(Journal(store), "r"))
    assert told.status == "completed" and told.seq == after[-1].seq
    assert [moment.seq for moment in timeline(Journal(store), "r", before[-1].seq)] == [m.seq for m in after]


def test_leaving_a_reading_half_way_repeats_and_loses_nothing_of_later_entries(memory: Store) -> None:
    chain("a", "b", "c").compile(memory).invoke({"n": 1}, run_id="r")
    told = Timeline(Journal(memory), "r")
    first = next(told.read())

    rest = list(told.read())

    assert first.seq == 1 and rest[0].seq == 2
    assert told.status == "completed"


def test_a_timeline_survives_pruning_while_it_is_followed(store: Store) -> None:
    app = chain("a", "b", nodes={"b": asks}).compile(store)
    app.invoke({"n": 1}, run_id="r")
    told = Timeline(Journal(store), "r")
    next(told.read())
    app.resume("r", "a")
    JournalCheckpointStore(store).prune(max_count=1)

    list(told.read())

    assert told.status == "completed"
    assert types_of(store, "r") == []


def test_a_damaged_entry_is_refused(memory: Store) -> None:
    chain("a", "b").compile(memory).invoke({"n": 1}, run_id="r")

    class Damaged(Counting):
        def read(self, *args: Any, **kwargs: Any) -> Any:
            for entry in self._store.read(*args, **kwargs):
                yield (
                    entry._replace(body=entry.body[:-1] + bytes([entry.body[-1] ^ 1]))
                    if entry.seq == 2
                    else entry
                )

    damaged: Any = Damaged(memory)
    with pytest.raises(CorruptJournal, match="entry 2 is damaged"):
        list(timeline(Journal(damaged), "r"))


# Plain values.


@dataclasses.dataclass
class Point:
    x: int
    y: Any


class Things(TypedDict, total=False):
    thing: Point


class Colour(enum.Enum):
    RED = "red"


NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (1.5, 1.5),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ("ä", "ä"),
        ("\ud800", "\\ud800"),
        (b"\x00\xff", {"$type": "bytes", "base64": "AP8="}),
        (NOON, "2026-01-02T12:00:00+00:00"),
        (NOON.date(), "2026-01-02"),
        (dt.timedelta(minutes=1), 60.0),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        ({1: {None: 2}}, {"1": {"None": 2}}),
        (Colour.RED, "red"),
        (Unknown("t", {"a": (1,)}), {"$type": "t", "value": {"a": [1]}}),
        (Point(1, {2}), {"$type": f"{__name__}.Point", "x": 1, "y": [2]}),
    ],
)
def test_values_as_plain_data(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False).encode()


def test_integers_that_python_does_not_write_are_text() -> None:
    large = 10**5000
    value = {"n": -large, "m": 10**4200, large: {(large,): 1}, "f": fractions.Fraction(1, large)}

    assert plain(value) == {
        "n": hex(-large),
        "m": 10**4200,
        hex(large): {"<tuple of very large numbers>": 1},
        "f": "<fractions.Fraction of very large numbers>",
    }
    json.dumps(plain(value), allow_nan=False)
    assert preview(value)


def test_arrays_and_objects_are_named() -> None:
    numpy = pytest.importorskip("numpy")

    assert plain(numpy.array([1, 2])) == {"$type": "numpy.ndarray", "value": [1, 2]}
    assert plain(Exotic("w")) == {"$type": f"{__name__}.Exotic", "word": "w"}
    assert plain(object())["$type"] == "object"


def test_values_that_are_nested_too_deep_are_cut() -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]

    shown = plain(deep)
    for _ in range(MAX_DEPTH + 1):
        (shown,) = shown

    assert "too deep" in shown["text"] and len(preview(deep)) <= 80


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two\n lines", "two lines"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (b"abc", "<3 bytes>"),
        ("x" * 100, "x" * 19 + "…"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, …"),
    ],
)
def test_previews_are_one_short_line(value: Any, shown: str) -> None:
    assert preview(value, 20) == shown


def test_a_very_large_value_is_measured_not_decoded(memory: Store) -> None:
    text = "x" * (TOO_BIG_TO_PREVIEW + 1)
    one(lambda state: {"text": text}, dict).compile(memory).invoke({}, run_id="r")

    (step,) = run_view(Journal(memory), "r").steps

    assert step.preview() == "<262.2 KB>" and step.output == {"text": text}


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1500, "1.5 KB"), (2_000_000, "2.0 MB"), (5e9, "5.0 GB")]
)
def test_sizes_in_words(size: float, text: str) -> None:
    assert size_text(size) == text
