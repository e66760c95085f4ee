"""Errors and their remedies in the words of Python and of the command line; errors as JSON; tracebacks for users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.cli.errors import REMEDIES, explain_error, in_commands
from holdfast.cli.render import json_text, place_in_code
from holdfast.errors import ExecutionError, Remedy, RunNotFound
from holdfast.values import step_label
from holdfast.views.plain import OWN, user_trace
from holdfast.views.terminal import visible
from tests.cli.processes import CHAIN, call, write


@pytest.mark.parametrize(
    ("remedy", "in_python", "on_the_command_line"),
    [
        (Remedy("resume", "r1"), "resume with app.resume('r1')", "resume with: holdfast resume r1"),
        (
            Remedy("set_max_iterations", "r1", {"limit": 200}),
            "use StateGraph(…, max_iterations=200) or more, then app.resume('r1')",
            "set limits.max_iterations in the file to 200 or more, then: holdfast resume r1",
        ),
        (
            Remedy("resume", "r1", {"remap": {"old": "the new"}}),
            "resume with app.resume('r1', remap={'old': 'the new'})",
            "resume with: holdfast resume r1 --remap 'old=the new'",
        ),
        (
            Remedy("resume", "r1", {"takeover": True}),
            "resume with app.resume('r1', takeover=True)",
            "resume with: holdfast resume r1 --takeover",
        ),
        (
            Remedy("rerun", "a b", {"step": "each[x]"}),
            "app.rerun('a b', 'each[x]') runs this one again",
            "run this one again with: holdfast rerun 'a b' --from 'each[x]'",
        ),
        (Remedy("choose_run_id"), "give the new run another run_id", "choose another --run-id"),
        (Remedy(text="wait for it"), "wait for it", "wait for it"),
        (Remedy("unheard_of"), "", ""),
    ],
)
def test_a_remedy_is_worded_for_python_and_for_the_command_line(
    remedy: Remedy, in_python: str, on_the_command_line: str
) -> None:
    assert str(remedy) == in_python
    assert in_commands(remedy) == on_the_command_line


def test_a_command_names_the_store_that_the_failed_command_was_about() -> None:
    error = RunNotFound("no run 'x'", remedies=(Remedy("list_runs"), Remedy("look_elsewhere")))
    elsewhere = RunNotFound("no run 'x'", remedies=Remedy("list_runs", options={"store": "file:a b"}))

    assert explain_error(error, " --store s.db").startswith(
        "no run 'x'; `holdfast runs --store s.db` lists those"
    )
    assert "`holdfast runs --store 'file:a b'` lists" in explain_error(elsewhere, " --store s.db")
    assert "--store" not in str(error)


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]

    assert len({kind.code for kind in kinds}) == len(kinds) > 20
    assert errors.RunExists.code == "run_exists" and errors.RunExists.exit_code == 2
    assert set(errors.IN_PYTHON) <= set(REMEDIES), "nothing is for Python alone"


@pytest.mark.parametrize(
    ("step", "label"),
    [
        ("work:item#1[a%2Fb]", "work[a/b]"),
        ("outer:workflow#1/publish:done#1", "outer/publish"),
        ("work#2", "work#2"),
        ("status", "status"),
    ],
)
def test_a_step_is_named_without_its_helpers(step: str, label: str) -> None:
    assert step_label(step) == label


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

    code = 1 if arguments[0] == "show" else 2
    assert done.returncode == code and done.stderr
    assert json.loads(done.stdout)["exit_code"] == code and json.loads(done.stdout)["error"]


def test_halves_of_characters_can_be_printed(tmp_path: Path) -> None:
    acts = 'def odd():\n    return "a\\udc80b"\n'
    write(tmp_path, "odd.yaml", 'workflow: {name: odd}\nsteps: [{name: odd, python: "odd.py:odd"}]\n')
    (tmp_path / "odd.py").write_text(acts)

    assert visible("a\udc80") == "a\\udc80"
    assert json.loads(json_text("a\udc80b")) == "a\udc80b"
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
    assert none.returncode == 1 and "give the workflow file, or --store" in none.stderr


@pytest.mark.parametrize(
    "hostile", ["app.resume('r', ", "resume with: ", " ", "((", "key: password=", "\x1b[", "'\\"]
)
def test_a_very_long_error_is_told_as_soon_as_a_short_one(hostile: str) -> None:
    """A step may raise any text: work that grows with its square would take longer than a test has."""
    text = hostile * (200_000 // len(hostile))
    error = ExecutionError(f"step 'a' failed: {text}", remedies=Remedy("resume", "r"), run_id="r")

    told = visible(explain_error(error, ""))

    assert len(told) >= len(text) and "resume with: holdfast resume r" in told
    assert json.loads(json_text({"error": text}))["error"] == text
