"""Which open question an answer is meant for, and what is refused rather than guessed."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast import AnswerRejected, Pause
from holdfast.cli.questions import read_answers, read_json
from tests.cli.processes import call, write

EXPIRING = """
workflow: {name: expiring, checkpoint: {retention: {pause_ttl: 2h}}}
steps:
  - {name: title, ask: "Title?"}
"""
TEXT, BOOLEAN = {"type": "string"}, {"type": "boolean"}

FORM = """
workflow: {name: form}
steps:
  - {name: title, ask: {prompt: "Title?", type: string}}
  - {name: ok, ask: {prompt: "Fine?", type: boolean}}
output: {title: "{{ steps.title.answer }}", ok: "{{ steps.ok.answer }}"}
"""


def pause(name: str, schema: dict[str, Any] | None = None, ident: str = "") -> Pause:
    return Pause(ident or f"{name}#1:{name}", "ask", name, f"{name}#1", name, "?", schema,
                 dt.datetime.now(dt.UTC), None)  # fmt: skip


def test_a_name_may_lack_its_step_and_hold_an_equals_sign() -> None:
    title, item = pause("form.title", TEXT), pause("q[a=b]", TEXT)

    assert read_answers(["title=x=y"], [title]) == {title.id: "x=y"}
    assert read_answers(["q[a=b]=yes", "form.title=t"], [title, item]) == {item.id: "yes", title.id: "t"}


def test_of_names_that_match_the_longest_counts() -> None:
    short, long = pause("q", TEXT), pause("q=a", TEXT)

    assert read_answers(["q=a=1", "q=2"], [short, long]) == {long.id: "1", short.id: "2"}


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["title=x", "ok=true"], "'ok=true' names none of the open questions.*'form.title'"),
        (["one", "two"], "names none of the open questions"),
        (["titel=x"], "did you mean title="),
        (["ok=true"], "'ok' may be asked later"),
        (["title=x", "form.title=y"], "answered twice"),
        (["<text>"], "stands for the answer"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(AnswerRejected, match=reason):
        read_answers(texts, [pause("form.title", TEXT)], lambda: {"ok", "title"})


def test_an_unknown_name_is_refused_where_no_free_text_is_taken() -> None:
    with pytest.raises(AnswerRejected, match="names none of the open questions"):
        read_answers(["sure=true"], [pause("go", BOOLEAN)])
    assert read_answers(["a=b"], [only := pause("pick", {"enum": ["a=b", "c"]})]) == {only.id: "a=b"}


def test_text_with_an_equals_sign_is_an_answer_where_it_resembles_no_name() -> None:
    only = pause("form.title", TEXT)

    assert read_answers(["x = 3"], [only]) == {only.id: "x = 3"}
    assert read_answers(["<b>bold</b>"], [only]) == {only.id: "<b>bold</b>"}


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("Off", False), ("true", True), ("no", False)])
def test_yes_and_no_answer_a_boolean(word: str, value: bool) -> None:
    only = pause("go", BOOLEAN)

    assert read_answers([word], [only]) == {only.id: value}
    with pytest.raises(AnswerRejected, match="must be true or false"):
        read_answers(["perhaps"], [only])


def test_brackets_without_end_are_a_text() -> None:
    text = "[" * 50_000

    assert read_answers([text], [only := pause("form.title", TEXT)]) == {only.id: text}
    with pytest.raises(AnswerRejected, match="true or false"):
        read_answers([text], [pause("go", BOOLEAN)])
    with pytest.raises(click.BadParameter, match="--item: the data is nested too deeply"):
        read_json(text, "--item")


def test_questions_are_answered_one_by_one_and_every_command_says_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path, "form.yaml", FORM)
    paused = call(tmp_path, "run", "form.yaml", "--run-id", "run-one")

    several = call(tmp_path, "answer", "run-one", "title=x", "ok=true")
    early = call(tmp_path, "answer", "run-one", "ok=true", "--json")
    answered = call(tmp_path, "answer", "run-", "title=a=b")
    status, shown = call(tmp_path, "runs", "status", "form.yaml"), call(tmp_path, "show", "run-one")
    on = call(tmp_path, "resume", "run-one")
    done = call(tmp_path, "resume", "run-one", "--answer", "ok=on", "-q")
    over = call(tmp_path, "answer", "run-one", "x")

    assert "resume run-one --answer '<text>'" in paused.stdout
    assert several.returncode == early.returncode == 2
    assert (
        json.loads(early.stdout)["status"] == "error" and "asked later" in json.loads(early.stdout)["error"]
    )
    assert answered.returncode == 0 and "resume run-one" in answered.stdout
    assert status.returncode == 4 and "resume with: " in status.stdout and "resume with: " in shown.stdout
    assert "attempt" not in on.stdout and "<true or false>" in on.stdout
    assert "attempts" not in call(tmp_path, "show", "run-one").stdout
    assert json.loads(done.stdout) == {"title": "a=b", "ok": True}
    assert over.returncode == 2 and "is completed" in over.stderr


def test_questions_of_one_name_are_answered_by_id(tmp_path: Path) -> None:
    write(
        tmp_path,
        "inner.yaml",
        'workflow: {name: inner}\nsteps: [{name: q, ask: {prompt: "?", type: string}}]\n',
    )
    write(
        tmp_path,
        "outer.yaml",
        "workflow: {name: outer}\nsteps:\n  - {name: each, for_each: {in: [1, 2]}, workflow: inner.yaml}\n",
    )
    call(tmp_path, "run", "outer.yaml", "--run-id", "r1")

    pauses = json.loads(call(tmp_path, "show", "r1", "--json").stdout)["pauses"]

    assert len(pauses) == 2 and all(pause["id"] in pause["command"] for pause in pauses)


def test_a_question_says_until_when_the_retention_lets_it_be_answered(tmp_path: Path) -> None:
    """S2.5: `show` and `runs status` know the `pause_ttl` of the workflow file, and what an extension adds."""
    write(tmp_path, "flow.yaml", EXPIRING)
    assert call(tmp_path, "run", "flow.yaml", "--run-id", "r").returncode == 4

    (shown,) = json.loads(call(tmp_path, "show", "r", "--json").stdout)["pauses"]
    (status,) = json.loads(call(tmp_path, "runs", "status", "r", "--json").stdout)["pauses"]
    since, until = (dt.datetime.fromisoformat(shown[name]) for name in ("since", "until"))
    text = call(tmp_path, "show", "r").stdout
    call(tmp_path, "runs", "extend", "r", "--for", "5h")
    (extended,) = json.loads(call(tmp_path, "show", "r", "--json").stdout)["pauses"]

    assert until - since == dt.timedelta(hours=2) and status["until"] == shown["until"]
    assert f", until {until.astimezone():%Y-%m-%d %H:%M:%S}" in text
    assert dt.datetime.fromisoformat(extended["until"]) - since >= dt.timedelta(hours=5)


def test_a_file_that_is_gone_or_broken_shows_what_the_run_saved_or_no_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "flow.yaml", EXPIRING)
    call(tmp_path, "run", "flow.yaml", "--run-id", "r")
    (limit,) = json.loads(call(tmp_path, "show", "r", "--json").stdout)["pauses"]

    path.write_text("no workflow")
    (broken,) = json.loads(call(tmp_path, "show", "r", "--json").stdout)["pauses"]
    path.unlink()
    (gone,) = json.loads(call(tmp_path, "show", "r", "--json").stdout)["pauses"]

    assert broken["until"] is None and gone["until"] == limit["until"] is not None
