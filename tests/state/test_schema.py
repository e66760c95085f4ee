"""Schemas: which keys a state may hold, and how updates become changes."""

from __future__ import annotations

import operator
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field

from holdfast import CodecError, StateGraph, StateInvalid, add, append, keep_last, merge, union
from holdfast.state import TaskResult, WorkflowState
from holdfast.state.codec import Codec
from holdfast.state.ops import Cells, Op, advance
from holdfast.state.schema import Schema, as_mapping
from holdfast.state.state import state_view
from holdfast.state.types import BUILTIN


def concat(old: list[int] | None, new: list[int]) -> list[int]:
    return [*(old or []), *new]


def biggest(old: int | None, new: int) -> int:
    return new if old is None else max(old, new)


class Typed(TypedDict, total=False):
    n: int
    note: NotRequired[str]
    log: Annotated[list[str], append]
    facts: Annotated[dict[str, int], merge]
    total: Annotated[int, add]
    tags: Annotated[set[str], union]
    recent: Annotated[list[int], keep_last(2)]
    top: Annotated[int, biggest]
    joined: Annotated[list[int], concat]


@dataclass
class Plain:
    n: int
    name: str = "anonymous"
    log: Annotated[list[str], append] = field(default_factory=list)


class Model(BaseModel):
    n: int
    name: str = "anonymous"
    age: int = Field(default=1, ge=0)
    log: Annotated[list[str], append] = Field(default_factory=list)


CODEC = Codec(BUILTIN)


def first(schema: Any, values: dict[str, Any]) -> Cells:
    return advance({}, Schema.of(schema).initial(CODEC, values))


def values_of(cells: Cells) -> dict[str, Any]:
    return state_view(cells, CODEC, "r", "", "", 0.0).to_dict()


def updated(schema: Any, cells: Cells, *updates: dict[str, Any]) -> tuple[list[Op], Cells]:
    """All the changes of one wave and the cells after it."""
    known = Schema.of(schema)
    resolved = [op for update in updates for op in known.resolve(CODEC, cells, update)]
    after = advance(cells, resolved)
    reduced = known.reduce(CODEC, after, resolved)
    return [*resolved, *reduced], advance(after, reduced)


def kinds(ops: list[Op]) -> list[str]:
    return [f"{op.kind} {op.key}" for op in ops]


def test_a_typed_dict_declares_keys_and_reducers() -> None:
    schema = Schema.of(Typed)

    assert list(schema.channels) == [*Typed.__annotations__]
    assert schema.channels["log"].reducer is append and schema.channels["top"].reducer is biggest
    assert schema.channels["note"].annotation is str and not schema.is_open


def test_keys_with_built_in_reducers_begin_empty() -> None:
    assert values_of(first(Typed, {"n": 1})) == {
        "n": 1,
        "log": [],
        "facts": {},
        "total": 0,
        "tags": set(),
        "recent": [],
    }


def test_input_replaces_the_beginning() -> None:
    cells = first(Typed, {"log": ("a",), "tags": ["x", "x"], "total": 5, "recent": [1, 2, 3]})

    begun = values_of(cells)
    assert (
        begun["log"] == ["a"] and begun["tags"] == {"x"} and begun["total"] == 5 and begun["recent"] == [2, 3]
    )


@pytest.mark.parametrize("schema", [Plain, Model])
def test_dataclasses_and_models_bring_their_defaults(schema: Any) -> None:
    begun = values_of(first(schema, {"n": 1}))

    assert begun["n"] == 1 and begun["name"] == "anonymous" and begun["log"] == []


def test_default_lists_are_not_shared_between_runs() -> None:
    one = first(Plain, {"n": 1})
    _, changed = updated(Plain, one, {"log": ["a"]})

    assert values_of(changed)["log"] == ["a"] and values_of(first(Plain, {"n": 1}))["log"] == []


def test_a_model_validates_input_and_updates() -> None:
    assert values_of(first(Model, {"n": "7"}))["n"] == 7
    with pytest.raises(StateInvalid, match="state key 'n' of Model"):
        first(Model, {"n": "many"})
    with pytest.raises(StateInvalid, match=r"state key 'age' of Model.*-1"):
        updated(Model, first(Model, {"n": 1}), {"age": -1})


def test_an_open_schema_takes_any_text_key() -> None:
    for source in (None, dict, dict[str, Any]):
        assert values_of(first(source, {"anything": 1})) == {"anything": 1}
    with pytest.raises(StateInvalid, match="unknown state key 3"):
        Schema.of(dict).resolve(CODEC, {}, {3: 1})  # type: ignore[dict-item]


def test_a_mapping_of_annotations_is_a_schema() -> None:
    assert values_of(first({"n": int, "log": Annotated[list, append]}, {"n": 1})) == {"n": 1, "log": []}


def test_an_undeclared_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        StateInvalid, match=r"unknown state key 'logg': Typed declares .*; did you mean 'log'"
    ):
        updated(Typed, {}, {"logg": ["a"]})
    with pytest.raises(StateInvalid, match="unknown state key 'x'"):
        first(Typed, {"x": 1})


@pytest.mark.parametrize("source", [3, "State", int, object, list])
def test_what_is_no_schema_is_refused(source: Any) -> None:
    with pytest.raises(StateInvalid, match="is not a state schema: give a TypedDict, a dataclass"):
        Schema.of(source)


def test_annotations_that_cannot_be_resolved_are_refused_with_advice() -> None:
    class Broken(TypedDict):
        n: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(StateInvalid, match=r"annotations of Broken cannot be read.*module level"):
        Schema.of(Broken)


@pytest.mark.parametrize(
    ("update", "change", "key", "value"),
    [
        ({"n": 2}, "set", "n", 2),
        ({"log": ["b", "c"]}, "append", "log", ["a", "b", "c"]),
        ({"facts": {"y": 2}}, "merge", "facts", {"x": 1, "y": 2}),
        ({"total": 2.5}, "add", "total", 3.5),
        ({"tags": {"u"}}, "union", "tags", {"t", "u"}),
        ({"tags": ["u", "t"]}, "union", "tags", {"t", "u"}),
        ({"recent": [3]}, "keep", "recent", [2, 3]),
    ],
)
def test_a_built_in_reducer_journals_only_its_delta(
    update: dict[str, Any], change: str, key: str, value: Any
) -> None:
    cells = first(
        Typed, {"n": 1, "log": ["a"], "facts": {"x": 1}, "total": 1, "tags": {"t"}, "recent": [1, 2]}
    )

    ops, after = updated(Typed, cells, update)

    assert kinds(ops) == [f"{change} {key}"]
    assert len(ops[0].raw) < 16
    assert values_of(after)[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [("log", "text"), ("log", {"a": 1}), ("facts", ["a"]), ("total", "1"), ("tags", "abc"), ("recent", 3)],
)
def test_an_update_that_does_not_fit_its_reducer_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(StateInvalid, match=f"state key '{key}' has the reducer"):
        updated(Typed, {}, {key: value})
    with pytest.raises(StateInvalid, match=f"state key '{key}' has the reducer"):
        first(Typed, {key: value})


def test_an_update_that_changes_nothing_costs_nothing() -> None:
    cells = first(dict, {"n": 1, "name": "x", "items": [1, 2], "when": (1, 2)})
    items = state_view(cells, CODEC, "r", "", "", 0.0)["items"]

    for update in ({"n": 1}, {"name": "x"}, {"items": items}, {"items": [*items]}, {"when": (1, 2)}):
        assert updated(dict, cells, update)[0] == []
    for empty in ({"log": []}, {"facts": {}}, {"tags": set()}):
        assert updated(Typed, first(Typed, {}), empty)[0] == []


def test_true_is_not_taken_for_one() -> None:
    ops, after = updated(dict, first(dict, {"n": 1}), {"n": True})

    assert kinds(ops) == ["set n"] and values_of(after)["n"] is True


def test_a_custom_reducer_is_settled_with_its_wave_in_order() -> None:
    cells = first(Typed, {"top": 3})

    ops, after = updated(Typed, cells, {"top": 2}, {"top": 9}, {"top": 4})

    assert kinds(ops)[:3] == ["reduce top"] * 3
    assert {op.kind for op in ops[3:]} == {"set"}
    assert values_of(after)["top"] == 9


def test_a_custom_reducer_first_meets_nothing() -> None:
    _, after = updated(Typed, first(Typed, {}), {"top": 2})

    assert values_of(after)["top"] == 2


def test_a_list_that_a_custom_reducer_merely_grew_is_journalled_as_an_append() -> None:
    cells = first(Typed, {"joined": list(range(1000))})

    ops, after = updated(Typed, cells, {"joined": [7]})

    assert kinds(ops) == ["reduce joined", "append joined"]
    assert sum(len(op.raw) for op in ops) < 32
    assert values_of(after)["joined"] == [*range(1000), 7]


def test_a_list_without_a_reducer_that_merely_grew_is_an_append_too() -> None:
    cells = first(dict, {"items": [{"a": 1}, "b"]})
    items = state_view(cells, CODEC, "r", "", "", 0.0)["items"]

    ops, after = updated(dict, cells, {"items": [*items, "c"]})

    assert kinds(ops) == ["append items"] and values_of(after)["items"] == [{"a": 1}, "b", "c"]


@pytest.mark.parametrize("new", [["b", "a"], ["a"], [], ["x", "b", "c"]])
def test_a_list_that_did_anything_but_grow_is_set(new: list[str]) -> None:
    ops, after = updated(dict, first(dict, {"items": ["a", "b"]}), {"items": new})

    assert kinds(ops) == ["set items"] and values_of(after)["items"] == new


def test_callables_of_the_standard_library_are_reducers() -> None:
    schema = {"n": Annotated[int, operator.add]}

    _, after = updated(schema, first(schema, {"n": 1}), {"n": 2}, {"n": 3})

    assert values_of(after) == {"n": 6}


@pytest.mark.parametrize("bad", [lambda old: old, 3, lambda: None])
def test_a_bad_reducer_is_reported_not_raised(bad: Any) -> None:
    problems = Schema.of({"n": Annotated[int, bad]}).problems()

    assert len(problems) == 1 and "state key 'n' has a bad reducer" in problems[0]


def test_good_reducers_are_no_problem() -> None:
    assert Schema.of(Typed).problems() == []


def test_keep_last_needs_room_for_one() -> None:
    with pytest.raises(StateInvalid, match="at least 1"):
        keep_last(0)


@pytest.mark.parametrize(
    ("reducer", "old", "new", "result"),
    [
        (append, [1], [2], [1, 2]),
        (append, None, (2,), [2]),
        (merge, {"a": 1}, {"a": 2}, {"a": 2}),
        (add, 1, 2, 3),
        (add, None, 2, 2),
        (union, {1}, [2], {1, 2}),
        (keep_last(1), [1], [2], [2]),
    ],
)
def test_built_in_reducers_can_be_called(reducer: Any, old: Any, new: Any, result: Any) -> None:
    assert reducer(old, new) == result


def test_a_value_that_cannot_be_stored_names_its_key_at_once() -> None:
    with pytest.raises(CodecError, match="state key 'n'"):
        updated(dict, {}, {"n": object()})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="state key 'n': the value is nested too deeply or contains itself"):
        updated(dict, {}, {"n": loop})


def test_a_stored_object_is_not_the_one_the_node_still_holds() -> None:
    ends = deque([1])
    _, after = updated(dict, {}, {"ends": ends})
    ends.append(2)

    assert list(values_of(after)["ends"]) == [1]


def test_replacing_ignores_the_reducers() -> None:
    cells = first(Typed, {"log": ["a", "b"], "top": 5})

    ops = Schema.of(Typed).replace(CODEC, cells, {"log": ["z"], "top": 1})

    assert kinds(ops) == ["set log", "set top"] and values_of(advance(cells, ops))["log"] == ["z"]


def test_the_types_a_schema_declares_can_be_stored() -> None:
    schema = Schema.of({"plain": Plain, "models": list[Model]})
    codec = Codec(schema.types(BUILTIN))

    assert codec.decode(codec.encode(Plain(1))) == Plain(1)
    assert codec.decode(codec.encode([Model(n=1)])) == [Model(n=1)]
    with pytest.raises(CodecError):
        CODEC.encode(Plain(1))


def test_what_a_node_returns_may_be_a_dict_a_dataclass_or_a_model() -> None:
    assert as_mapping(None, "it") == {}
    assert as_mapping({"n": 1}, "it") == {"n": 1}
    assert as_mapping(Plain(1, "x", ["a"]), "it") == {"n": 1, "name": "x", "log": ["a"]}
    assert as_mapping(Model(n=1), "it") == {"n": 1}
    with pytest.raises(StateInvalid, match="it must be a dict of state keys, not int: 3"):
        as_mapping(3, "it")


def test_the_ready_made_workflow_state_grows_and_merges() -> None:
    """S0.8"""
    cells = first(WorkflowState, {})
    task: TaskResult = {"task_id": "t1", "result": [1], "timestamp": 1.0, "duration": 0.5}

    _, after = updated(
        WorkflowState,
        cells,
        {"messages": ["hello"], "tasks": [task], "context": {"a": 1}},
        {"decisions": ["go"], "context": {"b": 2}},
    )

    assert values_of(after) == {
        "messages": ["hello"],
        "tasks": [task],
        "decisions": ["go"],
        "context": {"a": 1, "b": 2},
    }


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Annotated[list, "append"], "the text 'append' is no reducer"),
        (Annotated[list, "Apend"], "the text 'Apend' is no reducer"),
        (Annotated[list, list], "list is a type and no reducer"),
        (Annotated[append, list], "the type comes first"),
        (Annotated[list, append, merge], "append and merge are two reducers"),
        (append, "append is no type"),
    ],
)
def test_what_was_meant_as_a_reducer_and_is_none_is_refused_with_what_to_write(
    annotation: Any, why: str
) -> None:
    told = f"state key 'r': {why}; write r: Annotated[list, append]"
    with pytest.raises(StateInvalid, match=re.escape(told)):
        StateGraph({"r": annotation})


def test_a_reducers_name_as_text_is_refused_in_dataclasses_and_models_too() -> None:
    @dataclass
    class Data:
        r: Annotated[list[int], "append"] = field(default_factory=list)

    class Model(BaseModel):
        r: Annotated[list[int], "append"] = Field(default_factory=list)

    for schema in (Data, Model):
        with pytest.raises(StateInvalid, match="from holdfast import append"):
            StateGraph(schema)


def test_other_texts_beside_a_type_are_documentation() -> None:
    schema = Schema.of({"r": Annotated[list, "what was found"], "m": Annotated[float, "metres"]})

    assert schema.channels["r"].reducer is None and schema.channels["m"].reducer is None
