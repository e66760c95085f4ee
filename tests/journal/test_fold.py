"""Folding: what records add up to."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import RunStatus
from holdfast.journal.encoding import Track, decode_records, decode_run, encode_run
from holdfast.journal.fold import apply, fold, parts_of
from holdfast.journal.journal import Loaded
from holdfast.journal.records import (
    Answered,
    Commanded,
    Fault,
    FrameOpened,
    GraphChanged,
    Noted,
    OnceFailed,
    OnceStarted,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StateEdited,
    Steered,
    StepAdvanced,
    StepCalled,
    StepFailed,
    StepFinished,
    StepStarted,
    Target,
    WaveFinished,
)
from holdfast.journal.run_state import (
    INTERRUPTED,
    RunState,
    at_checkpoint,
    begun_onces,
    copy_run,
    frame_of,
    step_id,
)
from holdfast.state.codec import Codec
from holdfast.state.ops import Op, make_op
from tests.journal.histories import KINDS, History, history

CODEC = Codec()
FAULT = Fault("ValueError", "bad")


def put(key: str, value: Any, kind: str = "set") -> Op:
    return make_op(CODEC, kind, key, value)


def begun(*nodes: str, **state: Any) -> list[Record]:
    ops = tuple(put(key, value) for key, value in state.items())
    return [RunStarted("w", ops, tuple(map(Target, nodes)), CODEC.encode({}), {"nodes": {}}, "me")]


def folded(records: list[Record]) -> RunState:
    return fold((record, float(at)) for at, record in enumerate(records, 1))


def state(run: RunState, frame: str = "") -> dict[str, Any]:
    return {key: slot.get() for key, slot in run.frames[frame].cells.items()}


def statuses(run: RunState) -> dict[str, str]:
    return {step.id: step.status for step in run.active()}


def same(one: RunState, other: RunState) -> bool:
    return encode_run(one, Track(), CODEC) == encode_run(other, Track(), CODEC)


def test_a_started_run_has_its_first_steps_ready() -> None:
    run = folded(begun("a", "b", n=1))

    assert statuses(run) == {"a#1": "ready", "b#1": "ready"} and state(run) == {"n": 1}
    assert (run.workflow, run.status, run.owner, run.started_at) == ("w", "running", "me", 1.0)


def test_changes_show_only_when_the_wave_ends_and_in_node_order() -> None:
    history = [
        *begun("a", "b", n=0),
        StepStarted("a#1", 1),
        StepStarted("b#1", 1),
        StepFinished("b#1", (put("n", 2),)),
        StepFinished("a#1", (put("n", 1),)),
    ]
    before = folded(history)
    after = folded([*history, WaveFinished("", (), (Target("c"),))])

    assert state(before) == {"n": 0} and statuses(before) == {"a#1": "done", "b#1": "done"}
    assert state(after) == {"n": 2} and statuses(after) == {"c#1": "ready"}
    assert after.root.waves == 1 and after.root.last_node == "b" and after.path == ["b", "a"]


@pytest.mark.parametrize("visits", [0, 2])
def test_moving_on_is_finishing_a_step_and_a_wave_and_starting_the_next(visits: int) -> None:
    earlier = [*begun("a", n=1), StepStarted("a#1", 1)]
    for visit in range(1, visits + 1):
        earlier += parts_of(StepAdvanced(f"a#{visit}", (), f"a#{visit + 1}", 0.5))
    moved = StepAdvanced(f"a#{visits + 1}", (put("n", 5), put("log", ["x"], "append")), "b#1", 0.25)

    short, long = folded([*earlier, moved]), folded([*earlier, *parts_of(moved)])

    short.updated_at = long.updated_at
    assert encode_run(short, Track(), CODEC) == encode_run(long, Track(), CODEC)
    assert statuses(short) == {"b#1": "running"} and state(short) == {"n": 5, "log": ["x"]}


@pytest.mark.parametrize("key", [None, "k/1"])
def test_a_call_that_starts_at_once_is_a_call_and_the_start_of_its_step(key: str | None) -> None:
    earlier = [*begun("a", n=1), StepStarted("a#1", 1)]
    called = StepCalled("a#1", "fetch", 2, key, (put("digest", "ab"),), starts=True)

    short, long = folded([*earlier, called]), folded([*earlier, *parts_of(called)])

    short.updated_at = long.updated_at
    assert encode_run(short, Track(), CODEC) == encode_run(long, Track(), CODEC)
    (step,) = short.frames["a#1"].active.values()
    assert (step.status, step.attempt, step.tried) == ("running", 1, 1)
    assert folded([*earlier, called._replace(starts=False)]).step(step.id).status == "ready"


def test_what_a_wave_reduced_comes_after_the_steps_own_changes() -> None:
    run = folded(
        [
            *begun("a", n=1),
            StepFinished("a#1", (put("n", 5, "reduce"),)),
            WaveFinished("", (put("n", 6),), ()),
        ]
    )

    assert state(run) == {"n": 6} and not run.root.active


def test_without_a_barrier_a_wave_takes_in_only_some_steps() -> None:
    run = folded(
        [
            *begun("a", "b"),
            StepFinished("a#1", (put("n", 1),)),
            WaveFinished("", (), (Target("c"),), (("a+b>d", ("a",)),), ("a#1",)),
        ]
    )

    assert statuses(run) == {"b#1": "ready", "c#1": "ready"} and run.root.waiting == {"a+b>d": ("a",)}


def test_visits_count_once_a_wave_and_items_have_keys() -> None:
    items = tuple(Target("a", key, (put("n", key),)) for key in ("x", "y/z"))
    run = folded([*begun("a"), StepFinished("a#1"), WaveFinished("", (), items)])

    assert list(statuses(run)) == ["a#2[x]", "a#2[y%2Fz]"] and run.root.visits == {"a": 2}
    assert run.step("a#2[y%2Fz]").item == items[1].item


def test_failures_wait_for_a_retry_or_are_final() -> None:
    retrying = folded(
        [*begun("a"), StepStarted("a#1", 1), StepFailed("a#1", 1, FAULT, retry_at=9.0, seconds=2.0)]
    )
    failed = folded([*begun("a"), StepStarted("a#1", 1), StepFailed("a#1", 1, FAULT)])

    assert statuses(retrying) == {"a#1": "retrying"} and retrying.step("a#1").retry_at == 9.0
    assert statuses(failed) == {"a#1": "failed"} and failed.step("a#1").fault == FAULT
    assert retrying.seconds == 2.0 and retrying.faults == failed.faults == []


def test_a_failure_that_was_passed_over_is_remembered() -> None:
    failed = [*begun("a"), StepStarted("a#1", 1), StepFailed("a#1", 1, FAULT)]

    assert folded([*failed, StepFinished("a#1", skipped="bad")]).faults == [("a#1", FAULT)]
    assert (
        folded([*begun("a"), StepStarted("a#1", 1), StepFinished("a#1", skipped="interrupted")]).faults == []
    )


@pytest.mark.parametrize(
    ("before", "after", "crashes", "tried"),
    [
        ([], "ready", 0, 0),
        ([StepStarted("a#1", 1)], "in_doubt", 1, 1),
        ([StepStarted("a#1", 1), StepFailed("a#1", 1, FAULT, 5.0)], "retrying", 0, 1),
        ([StepStarted("a#1", 1), StepFailed("a#1", 1, FAULT)], "ready", 0, 0),
        ([StepStarted("a#1", 1), StepFinished("a#1")], "done", 0, 1),
        ([StepStarted("a#1", 1), RunEnded("interrupted")], "in_doubt", 0, 1),
        ([StepStarted("a#1", 1), Resumed("me"), StepStarted("a#1", 2)], "in_doubt", 2, 2),
        ([Paused("p", "before", "a#1", "a")], "gated", 0, 0),
        ([Paused("p", "ask", "a#1", "a", "q")], "waiting", 0, 0),
    ],
)
def test_what_a_resume_makes_of_a_step(before: list[Record], after: str, crashes: int, tried: int) -> None:
    step = folded([*begun("a"), *before, Resumed("other")]).step("a#1")

    assert (step.status, step.crashes, step.tried) == (after, crashes, tried)


def test_a_gate_opens_only_when_it_is_approved() -> None:
    history = [*begun("a"), Paused("p", "before", "a#1", "a"), RunEnded("paused")]

    closed, opened = folded([*history, Resumed("me")]), folded([*history, Resumed("me", approve=True)])

    assert statuses(closed) == {"a#1": "gated"} and closed.pauses
    assert statuses(opened) == {"a#1": "ready"} and not opened.pauses and opened.step("a#1").passed


def test_an_answer_readies_its_step_once_all_its_pauses_are_answered() -> None:
    history = [
        *begun("a"),
        StepStarted("a#1", 1),
        Paused("p", "ask", "a#1", "a", "first"),
        Paused("q", "ask", "a#1", "a", "second"),
        Answered("p", b"1"),
    ]

    assert statuses(folded(history)) == {"a#1": "waiting"}
    run = folded([*history, Answered("q", b"2")])
    assert statuses(run) == {"a#1": "ready"} and run.step("a#1").answers == {"first": b"1", "second": b"2"}
    assert run.step("a#1").tried == 0 and not run.pauses


def test_a_decision_about_an_interrupted_step_is_used_once() -> None:
    history = [
        *begun("a"),
        StepStarted("a#1", 1),
        Resumed("me"),
        Paused("p", "poison", "a#1", "a", INTERRUPTED),
        Answered("p", b"rerun"),
    ]
    run = folded(history)

    assert statuses(run) == {"a#1": "in_doubt"} and run.step("a#1").crashes == 0
    apply(run, StepStarted("a#1", 2), 9.0)
    assert INTERRUPTED not in run.step("a#1").answers


def test_a_finished_step_takes_its_pauses_along() -> None:
    run = folded(
        [
            *begun("a", "b"),
            Paused("p", "ask", "a#1", "a"),
            Paused("q", "ask", "b#1", "b"),
            StepFinished("a#1"),
        ]
    )

    assert list(run.pauses) == ["q"]


def test_notes_are_kept_with_the_step() -> None:
    assert folded([*begun("a"), Noted("a#1", "once:x", b"1")]).step("a#1").notes == {"once:x": b"1"}


def test_a_function_that_began_is_known_until_it_ends() -> None:
    started = [*begun("a"), OnceStarted("a#1", "x", 1)]
    assert begun_onces(folded(started).step("a#1")) == ("x",)
    for end in (Noted("a#1", "once:x", b"1"), Noted("a#1", "awaited:x", b"1"), OnceFailed("a#1", "x")):
        assert begun_onces(folded([*started, end]).step("a#1")) == ()
    assert begun_onces(folded([*started, Noted("a#1", "once:y", b"1")]).step("a#1")) == ("x",)


def test_a_sub_graph_sees_shared_keys_and_hands_its_changes_up() -> None:
    history = [
        *begun("sub", n=1, hidden=2),
        FrameOpened("sub#1", ("n",), (put("own", 3),), (Target("x"),)),
    ]
    opened = folded(history)
    assert state(opened, "sub#1") == {"n": 1, "own": 3}
    assert statuses(opened) == {"sub#1": "running", "sub#1/x#1": "ready"}

    history += [
        StepStarted("sub#1/x#1", 1),
        StepFinished("sub#1/x#1", (put("n", 5), put("own", 6))),
        WaveFinished("sub#1", (), ()),
        StepFinished("sub#1", promoted=True),
    ]
    closed = folded(history)
    assert list(closed.frames) == [""] and statuses(closed) == {"sub#1": "done"} and state(closed)["n"] == 1
    done = folded([*history, WaveFinished("", (), ())])
    assert state(done) == {"n": 5, "hidden": 2}


def test_a_sub_graph_that_ends_with_changes_of_its_own_hands_up_these_and_no_others() -> None:
    run = folded(
        [
            *begun("branch", n=1),
            FrameOpened("branch#1", ("n",), (), (Target("x"),)),
            StepStarted("branch#1/x#1", 1),
            StepFinished("branch#1/x#1", (put("n", 5),)),
            WaveFinished("branch#1", (), ()),
            StepFinished("branch#1", (put("result", 5),), promoted=True),
            WaveFinished("", (), ()),
        ]
    )
    assert state(run) == {"n": 1, "result": 5} and list(run.frames) == [""]


def test_a_sub_graph_may_share_every_key() -> None:
    run = folded([*begun("sub", n=1, m=2), FrameOpened("sub#1", ("*",), (), (Target("x"),))])

    assert state(run, "sub#1") == {"n": 1, "m": 2}


def test_an_edit_a_command_and_an_end_are_taken_in() -> None:
    run = folded(
        [
            *begun("a", n=1),
            StateEdited("", (put("n", 7),)),
            Commanded(3, "cancel"),
            RunEnded("failed", FAULT, "a"),
        ]
    )

    assert state(run) == {"n": 7} and run.inbox_seen == 3
    assert (run.status, run.fault, run.fault_node, run.owner) == ("failed", FAULT, "a", "")


def test_an_edit_over_a_key_forgets_what_finished_steps_did_to_it() -> None:
    history: list[Record] = [*begun("a", "b", n=0), StepFinished("a#1", (put("n", 1), put("m", 2)))]
    ended: list[Record] = [StepFinished("b#1"), WaveFinished("", (), ())]

    plain = folded([*history, StateEdited("", (put("n", 7),)), *ended])
    over = folded([*history, StateEdited("", (put("n", 7),), over=("n",)), *ended])

    assert state(plain) == {"n": 1, "m": 2} and state(over) == {"n": 7, "m": 2}


def test_a_changed_graph_renames_steps_visits_and_joins() -> None:
    run = folded(
        [
            *begun("a", "b"),
            StepFinished("a#1"),
            WaveFinished("", (), (Target("c"),), (("a+c>d", ("a",)),), ("a#1",)),
            GraphChanged({"nodes": {"z": 1}}, (("c", "z"), ("a", "y"))),
        ]
    )

    assert run.outline == {"nodes": {"z": 1}}
    assert [step.node for step in run.active()] == ["b", "z"] and "c#1" in run.root.active
    assert run.root.visits == {"b": 1, "z": 1, "y": 1} and run.root.waiting == {"a+c>d": ("y",)}


def test_a_graph_may_change_together_with_the_config() -> None:
    run = folded([*begun("a"), GraphChanged({"nodes": {"b": 1}}, (), b"other", "ann")])

    assert run.config == b"other" and folded([*begun("a"), GraphChanged({"nodes": {}})]).config != b""


# Steering.

STEERED = [
    *begun("a", "b"),
    StepStarted("a#1", 1),
    Paused("p", "ask", "b#1", "b", "q"),
]


def visits(run: RunState) -> dict[str, int]:
    return dict(run.root.visits)


@pytest.mark.parametrize(
    ("record", "steps", "counted"),
    [
        (Steered(""), {"a#1": "running", "b#1": "waiting"}, {"a": 1, "b": 1}),
        (Steered("", ("b#1",)), {"a#1": "running"}, {"a": 1, "b": 1}),
        (
            Steered("", ("b#1",), add=(Target("b"), Target("c"))),
            {"a#1": "running", "b#2": "ready", "c#1": "ready"},
            {"a": 1, "b": 2, "c": 1},
        ),
        (
            Steered("", add=(Target("a"), Target("a"))),
            {"a#1": "running", "b#1": "waiting", "a#2": "ready", "a#3": "ready"},
            {"a": 3, "b": 1},
        ),
        (
            Steered("", add=(Target("c", "x"), Target("c", "y"))),
            {"a#1": "running", "b#1": "waiting", "c#1[x]": "ready", "c#1[y]": "ready"},
            {"a": 1, "b": 1, "c": 1},
        ),
    ],
)
def test_what_steering_makes_of_the_steps(
    record: Steered, steps: dict[str, str], counted: dict[str, int]
) -> None:
    run = folded([*STEERED, record])

    assert statuses(run) == steps and visits(run) == counted
    assert set(run.pauses) == ({"p"} if "b#1" in steps else set())


def test_further_items_join_those_that_are_under_way() -> None:
    items = [Steered("", add=(Target("c", "x"),)), Steered("", add=(Target("c", "y"), Target("c")))]

    assert list(statuses(folded([*begun(), *items]))) == ["c#1[x]", "c#1[y]", "c#2"]


def test_nothing_follows_a_one_off_step_whatever_it_says() -> None:
    once = [*begun(), Steered("", add=(Target("c"),), one_off=True)]
    for record in (StepFinished("c#1"), StepFinished("c#1", goto=(Target("d"),))):
        assert folded([*once, StepStarted("c#1", 1), record]).step("c#1").goto == ()

    followed = [*begun(), Steered("", add=(Target("c"),)), StepFinished("c#1", goto=(Target("d"),))]
    assert folded(followed).step("c#1").goto == (Target("d"),)


def test_nothing_follows_what_a_new_plan_leaves_and_joins_are_forgotten() -> None:
    history: list[Record] = [
        *begun("a", "b", "c"),
        StepFinished("a#1", goto=(Target("x"),)),
        WaveFinished("", (), (Target("d"),), (("e/a/b", ("a",)),), ("a#1",)),
        StepFinished("b#1", goto=(Target("y"),)),
        StepStarted("c#1", 1),
        Steered("", ("d#1",), replan=True),
        StepFinished("c#1"),
    ]
    run = folded(history)

    assert {step.id: step.goto for step in run.active()} == {"b#1": (), "c#1": ()}
    assert run.root.waiting == {}


def test_other_arguments_replace_the_item_of_a_step() -> None:
    run = folded([*STEERED, Steered("", items=(("b#1", (put("n", 5),)),))])

    assert run.step("b#1").item == (put("n", 5),) and run.step("a#1").item == ()


def test_refused_commands_are_counted_and_the_last_remembered() -> None:
    records = [Commanded(n, "skip", f"no {n}" if n % 2 else "", "ann") for n in range(1, 60)]
    run = folded([*begun("a"), *records])

    assert run.refused == 30 and run.inbox_seen == 59 and len(run.refusals) == 20
    assert run.refusals[-1] == (59, "skip", "no 59", "ann")


def test_a_copy_can_be_folded_on_alone() -> None:
    run = folded(begun("a", n=1))
    copy = copy_run(run)
    for record in (
        Noted("a#1", "k", b"1"),
        StepFinished("a#1", (put("n", 2),)),
        WaveFinished("", (), (Target("b"),)),
    ):
        apply(copy, record, 9.0)

    assert same(run, folded(begun("a", n=1))) and state(copy) == {"n": 2}


def test_a_checkpoint_has_nothing_under_way() -> None:
    run = folded(
        [
            *begun("a", "b", "c"),
            StepStarted("a#1", 1),
            Paused("p", "ask", "b#1", "b", "q"),
            StepFinished("c#1"),
            RunEnded("paused"),
        ]
    )
    taken = at_checkpoint(run)

    assert statuses(taken) == {"a#1": "ready", "b#1": "ready", "c#1": "done"} and not taken.pauses
    assert taken.status == RunStatus.RUNNING and statuses(run)["a#1"] == "running"


@pytest.mark.parametrize(
    ("frame", "node", "visit", "key", "name"),
    [
        ("", "a", 1, None, "a#1"),
        ("o#1", "a", 2, "k", "o#1/a#2[k]"),
        ("", "a", 1, "x/y#z[0]%", "a#1[x%2Fy%23z%5B0%5D%25]"),
        ("", "a", 1, "two words", "a#1[two words]"),
    ],
)
def test_step_names_can_be_taken_apart(frame: str, node: str, visit: int, key: str | None, name: str) -> None:
    assert step_id(frame, node, visit, key) == name and frame_of(name) == frame


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_item_keys_never_share_a_step_name(one: str, other: str) -> None:
    first, second = step_id("f#1", "a", 1, one), step_id("f#1", "a", 1, other)

    assert (first == second) is (one == other)
    assert frame_of(first) == "f#1"


# Histories of real runs.


def test_the_recorded_histories_hold_every_kind_of_record() -> None:
    seen = {type(record) for kind in KINDS for record, _ in history(kind).records}

    assert seen == set(get_args(Record))


@pytest.mark.parametrize("kind", KINDS)
def test_any_prefix_of_a_history_folds(kind: str) -> None:
    records = history(kind).records

    run = RunState()
    for count, (record, at) in enumerate(records, 1):
        apply(run, record, at)
        assert same(fold(records[:count]), run)
    assert run.status == history(kind).info.status


def loaded_at(told: History, seq: int) -> Loaded:
    return told.journal.load(told.info, CODEC, seq)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_a_run_equals_folding_its_records(kind: str) -> None:
    told = history(kind)
    for seq, count in enumerate(told.ends, 1):
        folded_run = fold(told.records[:count])
        loaded = loaded_at(told, seq)
        folded_run.saved_seq = loaded.run.saved_seq
        assert same(loaded.run, folded_run), seq


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_at_any_entry_goes_on_like_the_journal_itself(kind: str) -> None:
    told = history(kind)
    last = len(told.ends)
    whole = loaded_at(told, last).run
    for seq in range(1, last + 1):
        loaded = loaded_at(told, seq)
        body = encode_run(loaded.run, loaded.track, CODEC)

        track = Track()
        run = decode_run(body, track, CODEC)

        assert same(run, loaded.run) and track.bases == loaded.track.bases
        assert abs(track.live - loaded.track.live) < 200 + loaded.track.live / 5
        assert encode_run(run, track, CODEC) == body
        for entry in told.store.read(told.info.run, seq):
            for record in decode_records(entry.body, track, CODEC):
                apply(run, record, entry.at)
            if entry.mark is not None:
                run.saved_seq = entry.seq
        assert same(run, whole)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_folding_in_two_goes_equals_folding_in_one(kind: str, data: st.DataObject) -> None:
    records = history(kind).records
    middle = data.draw(st.integers(0, len(records)))
    first = fold(records[:middle])
    run = copy_run(first)
    for record, at in records[middle:]:
        apply(run, record, at)

    assert same(run, fold(records))
    assert same(first, fold(records[:middle])), "a copy changed what it was made of"
