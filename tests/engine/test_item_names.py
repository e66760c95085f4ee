"""Keys of items in step names: readable for people, accepted in both forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, CommandRefused, ExecutionError, Send, StateGraph
from holdfast.journal.run_state import step_id
from holdfast.values import readable_step
from tests.graphs import Log

KEYS = ["a/b", "käse 50%", "x[1]#2", "line\nbreak", "%2F"]


@pytest.mark.parametrize("key", KEYS)
def test_a_step_s_name_is_read_back_whatever_its_key_is(key: str) -> None:
    name = step_id("outer#1", "work", 2, key)

    assert name.count("/") == 1 and name.isprintable()
    assert readable_step(name) == f"outer#1/work#2[{key}]"


def test_what_needs_no_quoting_stays_as_it_is() -> None:
    assert step_id("", "work", 1, "käse, 日本.txt") == "work#1[käse, 日本.txt]"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["work#1[{}]", "work[{}]", "id"])
def test_an_item_is_skipped_and_run_again_by_each_form_of_its_name(
    key: str, form: str, tmp_path: Path
) -> None:
    fail = [True]

    def work(state: Any) -> dict[str, Any]:
        if fail[0]:
            raise ValueError("not yet")
        return {"log": [state["key"]]}

    def named(each: str) -> str:
        return step_id("", "work", 1, each) if form == "id" else form.format(each)

    graph = StateGraph(Log).add_node("work", work, reads=["log"], version="1").add_edge("work", END)
    graph.add_conditional_edges(START, lambda s: [Send("work", {"key": each}, key=each) for each in KEYS])
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    others = [each for each in KEYS if each != key]
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")
    app.skip("r", named(key))
    fail[0] = False

    assert app.resume("r").state["log"] == others
    assert app.rerun("r", named(others[0])).stats.steps_run == 1


@pytest.mark.parametrize("form", ["work#1[a/b]", "work[a/b]", "work#1[a%2Fb]"])
def test_messages_show_the_keys_of_items_as_they_are_and_commands_take_both_forms(
    form: str, tmp_path: Path
) -> None:
    fail = [True]

    def work(state: Any) -> dict[str, Any]:
        if state["x"] == 0 and fail[0]:
            raise ValueError("not yet")
        return {"n": state["x"]}

    graph = StateGraph(Log).add_node("work", work).add_edge("work", END)
    graph.add_conditional_edges(
        START, lambda s: [Send("work", {"x": n}, key=k) for n, k in enumerate(("a/b", "c/d"))]
    )
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(ExecutionError):
        app.invoke(run_id="r")
    with pytest.raises(CommandRefused, match=r"step 'work\[c/d\]' is finished"):
        app.skip("r", form.replace("a", "c").replace("b", "d"))
    app.modify("r", form, {"x": 5})
    fail[0] = False

    with pytest.raises(ExecutionError, match=r"'work\[c/d\]' and 'work\[a/b\]' both set state key 'n'"):
        app.resume("r")


def test_the_question_about_an_interrupted_item_shows_its_key_as_it_is(tmp_path: Path) -> None:
    stop = [True]

    def work(state: Any) -> None:
        if stop[0]:
            raise KeyboardInterrupt

    graph = StateGraph(Log).add_node("work", work, if_interrupted="ask").add_edge("work", END)
    graph.add_conditional_edges(START, lambda s: [Send("work", {}, key="a/b")])
    app = graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(KeyboardInterrupt):
        app.invoke(run_id="r")
    stop[0] = False

    (pause,) = app.resume("r").pauses
    assert "step 'work[a/b]' " in pause.prompt
