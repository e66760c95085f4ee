"""What travels to another process and back, without one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast import Command, State, register_type
from holdfast.engine.context import Context
from holdfast.engine.executors.process_pool import MainProcess, MainProgram
from holdfast.engine.executors.remote import (
    WAYS_OUT,
    Facts,
    NotSent,
    RemoteContext,
    Reply,
    SentState,
    Task,
    perform,
)
from holdfast.errors import CodecError, ExecutorLost, HoldfastError
from holdfast.graph.validation import choice_of
from holdfast.state.codec import Codec
from holdfast.state.ops import ReadOnly, advance, freeze, make_op
from holdfast.state.state import changed_since, state_view
from holdfast.state.types import Types
from tests.engine.executors import functions

PROCESSES = choice_of("processes")
FACTS = Facts("r", "work#1", "work", 1, None, 1, "r:work#1", {}, "a worker process", 20)


def task_of(function: Any, *args: Any) -> Task:
    return Task.of("node 'work'", PROCESSES, function, args)


def done(task: Task, given: State | None = None, data: bytes | None = None) -> Any:
    reply = Reply(*pickle.loads(perform(task.packed() if data is None else data)))
    return reply.settled(task, given)


def state_of(**values: Any) -> State:
    codec = Codec(Types.of(functions.Point))
    ops = [make_op(codec, "set", key, value) for key, value in values.items()]
    return state_view(advance({}, ops), codec, "r", "", "before", 1.0)


def sent(state: State) -> SentState:
    return SentState.of(state, by_value=False)


def keys(state: Any) -> list[Any]:
    return [*state, state.run_id, state.checkpoint_node, state.timestamp.timestamp()]


def values(state: Any) -> list[Any]:
    return list(state.values())


def grow(value: Any) -> None:
    if isinstance(value, dict):
        value["new"] = 1
    elif isinstance(value, set):
        value.add("new")
    else:
        value.append("new")


def unheard_of(ctx: Any) -> Any:
    return ctx.unheard_of


def leave(state: Any) -> Any:
    return Command(update=state.merge({"n": 2}), goto="x")


class Local:
    """A type that is no plain data."""


def test_a_state_arrives_as_it_was() -> None:
    state = state_of(n=1, point=functions.Point(2))

    assert done(task_of(keys, sent(state))) == ["n", "point", "r", "before", 1.0]
    assert done(task_of(values, sent(state))) == [1, functions.Point(2)]


@pytest.mark.parametrize("value", [["a"], {"a": 1}, {"a"}, [["a"]]], ids=repr)
def test_what_is_read_only_here_is_so_there(value: Any) -> None:
    frozen, _ = freeze(value)

    with pytest.raises(ReadOnly):
        done(task_of(grow, frozen))
    done(task_of(grow, value))


def test_a_type_that_is_not_known_there_hurts_only_who_looks() -> None:
    state = state_of(n=1, point=functions.Point(2))
    for packed in ((), (b"nonsense",), (pickle.dumps(("Local", Local)),)):
        elsewhere = sent(state)._replace(types=packed)

        assert done(task_of(keys, elsewhere))[:2] == ["n", "point"]
        with pytest.raises(CodecError, match="the stored type 'Point' is not allowed here"):
            done(task_of(values, elsewhere))


def test_a_type_with_functions_of_its_own_is_known_where_it_is_registered() -> None:
    register_type(Local, encode=lambda value: 1, decode=lambda data: Local())

    (value,) = done(task_of(values, sent(state_of(local=Local()))))

    assert isinstance(value, Local)


def test_a_state_that_is_returned_changes_only_what_it_changes() -> None:
    given = state_of(n=1, log=["a"])

    found = done(task_of(leave, sent(given)), given)

    assert found.goto == "x" and changed_since(found.update, given) == {"n": 2}


def test_what_cannot_be_loaded_there_is_named() -> None:
    with pytest.raises(NotSent, match="node 'work' cannot be loaded in a worker process: UnpicklingError"):
        done(task_of(functions.process, 1), data=b"nonsense")


def test_what_cannot_be_loaded_here_is_named_with_what_happened_there() -> None:
    task = task_of(functions.process, 1)
    with pytest.raises(NotSent, match="its result cannot be brought back from a worker process"):
        Reply(b"nonsense", b"", "", [], []).settled(task, None)
    with pytest.raises(NotSent, match=r"its error cannot be brought back(.|\n)*the trace"):
        Reply(b"", b"nonsense", "the trace", [], []).settled(task, None)


def test_errors_come_back_as_what_they_are_or_are_told() -> None:
    with pytest.raises(functions.Odd) as odd:
        done(task_of(functions.is_odd, None))
    assert odd.value.sum == 3
    with pytest.raises(NotSent, match="Keeps: held"):
        done(task_of(functions.keeps, None))
    with pytest.raises(NotSent, match="returned something that cannot be brought back"):
        done(task_of(functions.unstorable, None))
    with pytest.raises(ExecutorLost, match="node 'work' was interrupted in a worker process"):
        done(task_of(functions.interrupts, None))


def test_what_no_context_has_is_no_part_of_this_one() -> None:
    with pytest.raises(AttributeError, match="unheard_of"):
        done(task_of(unheard_of, FACTS))


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(NotSent, match="node 'work': its arguments cannot be sent to a worker process"):
        task_of(functions.process, lambda: None).packed()


def test_a_main_program_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    """What it raises, and how to write it so that it can."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('not here')\n")
    here = MainProcess.here()._replace(main_name=None, main_file=str(broken))

    with pytest.raises(HoldfastError, match="cannot be loaded: not here; put what starts the run under"):
        MainProgram().load(here)


def test_every_name_of_a_context_is_known_in_another_process() -> None:
    """A new one is added to `RemoteContext`, to its facts, or to what is refused there with a way out."""
    public = {name for name in dir(Context) if not name.startswith("_")}

    assert public <= {*WAYS_OUT, *Facts._fields, *vars(RemoteContext)}
