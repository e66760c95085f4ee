"""Messages of the engine in the words of the command line; errors as JSON; tracebacks for users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.display.text import OWN, as_json, place_in_code, user_trace, visible
from holdfast.cli.errors import worded
from tests.cli.calling import CHAIN, call, write


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("kept, resume with app.resume('r1')", "kept, resume with: holdfast resume r1"),
        (
            "build the graph with StateGraph(…, max_iterations=200) or more, then app.resume('r1')",
            "set limits.max_iterations in the file to 200 or more, then: holdfast resume r1",
        ),
        ("put it back, or resume with remap={'old': 'new'}", "put it back, or resume with --remap OLD=NEW"),
        ("resume with takeover=True", "resume with --takeover"),
        ("the code of node 'b' changed", "step 'b' changed"),
        ("node 'work:item' was added", "step 'work' was added"),
        ("step 'work:item#1[7]' failed", "step 'work[7]' failed"),
        ("go on with it by giving the graph its old name: StateGraph(…, name='w')",
         "go on with it by giving the file its old name: workflow.name: w"),
        ("the status:done of it", "the status:done of it"),
    ],
)  # fmt: skip
def test_what_is_said_to_programmers_is_told_to_people(said: str, told: str) -> None:
    assert worded(said) == told


@pytest.mark.parametrize(
    "hostile",
    [
        "a" * 3_000_000,
        "no store is known for (known: " * 100_000,
        "step 'a" * 400_000,
        "app.resume('" * 200_000,
        "no run, checkpoint or workflow " * 100_000,
        "step 'a#1[" * 300_000,
        "resume with remap={'" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_very_long_message_is_told_as_soon_as_a_short_one(hostile: str) -> None:
    """Patterns that try every place of such a text with every other would take hours."""
    told = worded(hostile)

    assert told.endswith(hostile[-1000:])


def test_the_beginning_of_a_long_message_is_worded() -> None:
    assert (
        worded("resume with app.resume('r1'): " + "x" * 20_000)
        == "resume with: holdfast resume r1: " + "x" * 20_000
    )
    assert worded("no store is known for 'x' (known: a, b (c))").startswith(
        "no store is known for 'x'; write sqlite"
    )


def test_the_limit_of_iterations_is_told_in_terms_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "loop.yaml", """
workflow: {name: loop, limits: {max_iterations: 3}}
steps:
  - {name: first, python: "acts.py:first", routes: [{to: $end, when: "visits.first > 9"}, {to: first}]}
""")  # fmt: skip

    failed = call(tmp_path, "run", "loop.yaml", "--run-id", "r1")

    assert failed.returncode == 1, failed.stderr
    assert "limits.max_iterations" in failed.stderr and "app.resume" not in failed.stderr


def test_a_run_id_that_is_taken_is_refused_in_words_and_as_json(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "open").touch()
    call(tmp_path, "run", "chain.yaml", "--run-id", "r1")

    again = call(tmp_path, "run", "chain.yaml", "--run-id", "r1", "--json")

    told = json.loads(again.stdout)
    assert again.returncode == told["exit_code"] == 2 and told["status"] == "error"
    assert "choose another --run-id" in told["error"] and "app." not in again.stderr


@pytest.mark.parametrize("arguments", [("run", "none.yaml"), ("show", "r9"), ("run", "bad.yaml")])
def test_errors_are_told_as_json_where_json_is_wanted(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "bad.yaml").write_text("steps: [")

    done = call(tmp_path, *arguments, "--json")

    assert done.returncode == 2 and done.stderr
    assert json.loads(done.stdout)["exit_code"] == 2 and json.loads(done.stdout)["error"]


def test_halves_of_characters_can_be_printed(tmp_path: Path) -> None:
    acts = 'def odd():\n    return "a\\udc80b"\n'
    write(tmp_path, "odd.yaml", 'workflow: {name: odd}\nsteps: [{name: odd, python: "odd.py:odd"}]\n')
    (tmp_path / "odd.py").write_text(acts)

    assert visible("a\udc80") == "a\\udc80"
    assert json.loads(as_json("a\udc80b")) == "a\udc80b"
    for option in ("--json", "-q"):
        done = call(tmp_path, "run", "odd.yaml", option)
        assert "Traceback" not in done.stderr and "UnicodeEncodeError" not in done.stderr


def test_a_failed_function_is_named_by_its_place_and_shown_without_our_frames(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)

    failed = call(tmp_path, "run", "chain.yaml", "--run-id", "r1")
    debugged = call(tmp_path, "resume", "r1", "--debug")
    shown = call(tmp_path, "show", "r1", "--step", "gated")

    assert "  at acts.py:" in failed.stderr and "in gated" in failed.stderr
    assert "show r1 --step gated" in failed.stderr and "Traceback" not in failed.stderr
    assert "Traceback" in debugged.stderr and "acts.py" in debugged.stderr
    assert 'acts.py", line' in shown.stdout and "attempt.py" not in shown.stdout


def test_a_traceback_of_nothing_but_our_own_code_is_not_shown() -> None:
    own = f'Traceback (most recent call last):\n  File "{OWN}a.py", line 1, in f\n    g()\nStepFailed: no\n'

    assert user_trace(own) == ""
    assert place_in_code(None) == ""


def test_an_unknown_store_and_an_unknown_run_say_what_to_write(tmp_path: Path) -> None:
    odd = call(tmp_path, "runs", "--store", "foo://x")
    none = call(tmp_path, "show", "r1")

    assert "sqlite:///PATH" in odd.stderr and "file:///DIR" in odd.stderr
    assert none.returncode == 2 and "give the workflow file, or --store" in none.stderr
