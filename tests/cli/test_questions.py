"""Asking in the terminal: choices, free text, typed values, gates, and answers from elsewhere."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.cli.processes import ASKING, CHAIN, Session, call, ran, write
from tests.cli.test_resume import TWO

FREE = """
workflow: {name: free}
steps:
  - {name: pages, ask: {prompt: "How many pages?", type: integer}}
  - {name: go, ask: {prompt: "Really?", type: boolean}}
  - {name: tone, ask: {prompt: "Which tone?", default: calm}}
  - {name: text, ask: {prompt: "The text?", type: string, multiline: true}}
  - name: code
    ask: {prompt: "Which code?", choices: [{value: 7, label: Seven}, {value: 1, label: One}, {value: "x"}]}
output:
  pages: "{{ steps.pages.answer }}"
  go: "{{ steps.go.answer }}"
  tone: "{{ steps.tone.answer }}"
  text: "{{ steps.text.answer }}"
  code: "{{ steps.code.answer }}"
"""


def output_of(session: Session) -> object:
    return json.loads(session.screen.rpartition("output:\n")[2])


@pytest.mark.parametrize(("word", "answer"), [("2", "no"), ("yes", "yes"), ("No", "no")])
def test_a_choice_is_made_by_number_or_by_text(tmp_path: Path, word: str, answer: str) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml")
    session.expect("? Publish it?\n  1  yes\n  2  no\nAnswer 1-2: ")
    session.write(f"{word}\n")

    assert session.end() == 0 and output_of(session) == {"approved": answer}


def test_what_does_not_fit_is_asked_again_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml")
    for word, reason in [("maybe", "must be one of 'yes', 'no'"), ("3", "must be one of"), ("", "is needed")]:
        session.expect("Answer 1-2: ")
        session.write(f"{word}\n")
        session.expect(reason)
    session.expect("Answer 1-2: ")
    session.write("1\n")

    assert session.end() == 0 and output_of(session) == {"approved": "yes"}


def test_answers_of_every_type_are_read_as_what_they_are(tmp_path: Path) -> None:
    write(tmp_path, "free.yaml", FREE)

    session = Session(tmp_path, "run", "free.yaml")
    session.expect("How many pages?\nAnswer: ")
    session.write("many\n")
    session.expect("Not taken: the answer must be of type integer")
    session.write("12\n")
    session.expect("Really?\nAnswer: ")
    session.write("y\n")
    session.expect("Which tone?\nAnswer [calm]: ")
    session.write("\n")
    session.expect("a line with only a dot, or Ctrl+D, ends it.")
    session.write("42\nlines\n.\n")
    session.expect("Answer 1-3: ")
    session.write("1\n")

    assert session.end() == 0
    expected = {"pages": 12, "go": True, "tone": "calm", "text": "42\nlines", "code": 1}
    assert output_of(session) == expected


def test_ctrl_d_ends_an_answer_of_many_lines(tmp_path: Path) -> None:
    write(tmp_path, "free.yaml", """
workflow: {name: free}
steps: [{name: text, ask: {prompt: "The text?", type: string, multiline: true}}, {name: more, ask: "More?"}]
output: {text: "{{ steps.text.answer }}", more: "{{ steps.more.answer }}"}
""")  # fmt: skip

    session = Session(tmp_path, "run", "free.yaml")
    session.expect("or Ctrl+D, ends it.")
    session.write("one\ntwo\n\x04")
    session.expect("Answer: ")
    session.write("no more\n")

    assert session.end() == 0 and output_of(session) == {"text": "one\ntwo", "more": "no more"}


def test_ctrl_d_at_a_choice_leaves_the_run_paused_on_a_new_line(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    session.expect("Answer 1-2: ")
    session.write("\x04")

    assert session.end() == 4 and "Answer 1-2: \n" in session.screen


def test_ctrl_c_leaves_the_run_paused(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    session.expect("Answer 1-2: ")
    session.write("\x03")

    assert session.end() == 130 and "Traceback" not in session.screen
    assert "answer and resume: " in session.screen and "resume r1 --answer yes" in session.screen
    assert call(tmp_path, "resume", "r1", "--answer", "yes").returncode == 0


def test_sigterm_leaves_the_run_paused(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    session.expect("Answer 1-2: ")
    session.kill(signal.SIGTERM)

    assert session.end() == 143 and "answer and resume: " in session.screen


def test_an_answer_from_another_terminal_is_taken_at_once(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    session.expect("Answer 1-2: ")
    answered = call(tmp_path, "answer", "r1", "no", "--by", "Grace")

    assert answered.returncode == 0
    assert session.end() == 0 and output_of(session) == {"approved": "no"}
    assert "Answered by Grace." in session.screen


def test_a_run_that_was_taken_up_elsewhere_is_left_to_them(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--run-id", "r1")
    session.expect("Answer 1-2: ")
    assert call(tmp_path, "resume", "r1", "--answer", "yes").returncode == 0

    # It looks now and then: the other may still be at it.
    assert session.end() == 0
    assert re.search(r"The run was resumed elsewhere; it is (running|completed)\.", session.screen)
    assert ran(tmp_path) == ["first", "second"]


def test_answers_given_before_leaving_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "two.yaml", TWO)

    session = Session(tmp_path, "run", "two.yaml", "--run-id", "r1")
    session.expect("? Title?\nAnswer: ")
    session.write("Tides\n")
    session.expect("? Pages?\nAnswer: ")
    session.write("\x03")
    assert session.end() == 130
    done = call(tmp_path, "resume", "r1", "--answer", "3", "-q")

    assert done.returncode == 0 and json.loads(done.stdout) == ["Tides", 3]


def test_a_gate_lets_the_state_be_changed(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()

    session = Session(tmp_path, "run", "chain.yaml", "--interrupt-before", "gated")
    session.expect("Paused before 'gated'.")
    session.write("u\n")
    session.expect("> ")
    session.write("nonsense\n")
    session.expect("'nonsense' is not key=value.")
    session.write('second={"status": "completed", "output": {"count": 9}}\n')
    session.expect("> ")
    session.write("\n")
    session.expect("[a]bort? ")
    session.write("c\n")

    assert session.end() == 0 and output_of(session) == {"result": "through", "count": 9}


def test_nobody_is_asked_if_that_is_not_wanted(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)

    session = Session(tmp_path, "run", "asking.yaml", "--no-interactive")

    assert session.end() == 4 and "Answer 1-2" not in session.screen and "answer and resume" in session.screen


def test_a_resume_asks_too(tmp_path: Path) -> None:
    write(tmp_path, "asking.yaml", ASKING)
    call(tmp_path, "run", "asking.yaml", "--run-id", "r1")

    session = Session(tmp_path, "resume")
    session.expect("Answer 1-2: ")
    session.write("1\n")

    assert session.end() == 0 and output_of(session) == {"approved": "yes"}
    assert ran(tmp_path) == ["first", "second"]
