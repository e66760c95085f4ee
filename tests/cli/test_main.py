"""The way in and out of the command line: overview, suggestions, exit codes, and no tracebacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast import (
    AnswerRejected,
    CorruptJournal,
    ExecutionError,
    GraphInvalid,
    HoldfastError,
    RunNotFound,
    StoreError,
)
from holdfast.cli.errors import exit_code, message, report
from holdfast.cli.main import ELSEWHERE, ENTRIES, Entry, commands, main
from holdfast.workflows.scope import InputInvalid
from holdfast.workflows.secrets import SecretError
from tests.cli.processes import PROGRAM, call

HEAVY = ("rich", "yaml", "jinja2", "pydantic", "pydantic_ai", "httpx", "apsw", "asyncio", "logging")


def test_the_overview_names_every_command_in_its_section(tmp_path: Path) -> None:
    done = call(tmp_path, "--help")

    assert done.returncode == 0 and done.stderr == ""
    for section in ("Run:", "Look and go back:", "Fleet:", "Files and stores:"):
        assert f"\n{section}\n" in done.stdout
    for name, entry in ENTRIES.items():
        assert f"  {name} " in done.stdout and entry.help.split(";")[0][:40] in done.stdout
    assert "holdfast run hello.yaml -i name=Ada" in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 80


def test_the_overview_imports_only_click() -> None:
    program = (
        "import sys\n"
        "from holdfast.cli.main import main\n"
        "main(['--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "ours = sorted(name for name in sys.modules if name.startswith('holdfast.'))\n"
        "print(ours, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    heavy, ours = done.stderr.strip().splitlines()
    assert heavy == "[]"
    names = ("cli", "cli.errors", "cli.main", "names", "views", "views.terminal")
    assert ours == str([f"holdfast.{name}" for name in names])


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command with the words that call it, those of groups included."""
    todo: list[tuple[str, click.Command]] = [("", commands)]
    while todo:
        words, command = todo.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                todo.append((f"{words} {name}".strip(), inner))
        yield words, command


@pytest.mark.parametrize(("words", "command"), [found for found in every_command() if found[0]])
def test_every_command_has_a_help_text_with_an_example(words: str, command: click.Command) -> None:
    assert command.name == words.split()[-1]
    assert command.help and f"  holdfast {words}" in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{words} {parameter.opts}"


SHARED = [
    "--all",
    "--by",
    "--every",
    "--force",
    "--heartbeat",
    "--inputs",
    "--json",
    "--namespace",
    "--passphrase-file",
    "--plan",
    "--priority",
    "--reason",
    "--remap",
    "--reuse",
    "--run-id",
    "--set",
    "--skip-gates",
    "--store",
    "--yes",
]


@pytest.mark.parametrize("flag", SHARED)
def test_a_shared_option_has_one_wording(flag: str) -> None:
    own = {("demo", "--store"), ("runs cost", "--by")}
    wordings = {
        parameter.help
        for words, command in every_command()
        for parameter in command.params
        if isinstance(parameter, click.Option) and flag in parameter.opts and (words, flag) not in own
    }

    assert len(wordings) == 1


def test_export_and_import_are_understood_without_the_name_of_their_group(tmp_path: Path) -> None:
    for name in ("export", "import"):
        assert call(tmp_path, name, "--help").stdout.startswith(f"Usage: holdfast {name} ")
        assert f"  {name} " not in call(tmp_path, "--help").stdout


def test_an_option_of_the_list_of_runs_does_not_go_before_another_command(tmp_path: Path) -> None:
    done = call(tmp_path, "runs", "--store", "sqlite:///x.db", "status", "r")

    assert done.returncode == 2 and "write --store after `runs status`" in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu"], "Did you mean 'run'"),
        (["demo", "--sotre", "x"], "'--store'"),
        (["nonsense-entirely"], "No such command"),
    ],
)
def test_a_mistyped_word_is_refused_with_what_was_meant(tmp_path: Path, words: list[str], hint: str) -> None:
    done = call(tmp_path, *words)

    assert done.returncode == 2 and done.stdout == ""
    assert hint in done.stderr and "Usage: holdfast" in done.stderr and "--help` tells more" in done.stderr


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["replay", "r1"], "holdfast events RUN --replay"),
        (["gate", "respond"], "holdfast answer RUN VALUE"),
        (["stop", "r1"], "holdfast cancel RUN"),
    ],
)
def test_a_command_of_another_system_is_refused_with_ours(
    tmp_path: Path, words: list[str], known: str
) -> None:
    """R1.9, R4.6: which command does that here."""
    done = call(tmp_path, *words)

    assert done.returncode == 2 and f"No such command {words[0]!r}; here it is `{known}`" in done.stderr


def test_the_commands_named_for_those_of_other_systems_are_there() -> None:
    for other, known in ELSEWHERE.items():
        name, *rest = known.split()
        command = commands.get_command(click.Context(commands), name)
        assert command is not None and other not in ENTRIES, known
        inner = [word for word in rest if word.islower() and not word.startswith("-")]
        assert not inner or command.get_command(click.Context(command), inner[0]) is not None, known  # type: ignore[attr-defined]
        options = {option for each in command.params for option in each.opts}
        assert {word for word in rest if word.startswith("--")} <= options, known


def test_without_a_command_the_overview_is_the_answer(tmp_path: Path) -> None:
    done = call(tmp_path)

    assert done.returncode == 2 and "Files and stores:" in done.stderr


def test_the_version_is_told(tmp_path: Path) -> None:
    for option in ("-V", "--version"):
        done = call(tmp_path, option)
        assert done.returncode == 0 and done.stdout.startswith("holdfast ")


def test_a_traceback_is_shown_only_on_request_wherever_that_stands(tmp_path: Path) -> None:
    plain = call(tmp_path, "demo", "--store", "nowhere://x")
    before = call(tmp_path, "--debug", "demo", "--store", "nowhere://x")
    after = call(tmp_path, "demo", "--store", "nowhere://x", "--debug")

    assert {plain.returncode, before.returncode, after.returncode} == {3}
    assert plain.stderr.startswith("holdfast: no store is known") and "Traceback" not in plain.stderr
    assert "Traceback" in before.stderr and "Traceback" in after.stderr


def test_what_stands_after_two_dashes_is_no_option(tmp_path: Path) -> None:
    done = call(tmp_path, "run", "--", "--debug")

    assert done.returncode == 2 and "'--debug' does not exist" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ExecutionError("x"), 1),
        (HoldfastError("x"), 1),
        (CorruptJournal("x"), 1),
        (ValueError("x"), 1),
        (GraphInvalid("g", ["x"]), 2),
        (InputInvalid("w", ["x"]), 2),
        (RunNotFound("x"), 1),
        (AnswerRejected("x"), 2),
        (click.UsageError("x"), 2),
        (StoreError("x"), 3),
        (SecretError("x"), 3),
        (ModuleNotFoundError("x", name="x"), 3),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (SystemExit(143), 143),
        (SystemExit("text"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_an_unexpected_error_is_one_line_that_says_how_to_learn_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(ValueError("odd")) == 1
    assert capsys.readouterr().err == (
        "holdfast: unexpected ValueError: odd; run again with --debug to see where\n"
    )
    assert message(SystemExit(3)) == "" and message(SystemExit("why")) == "holdfast: why"
    assert message(KeyboardInterrupt()) == "holdfast: interrupted"


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ENTRIES, "lost", Entry("Run", "no_such_module", "Nothing."))

    assert main(["lost"]) == 3
    assert "'holdfast.cli.commands.no_such_module' is missing" in capsys.readouterr().err


def test_a_reader_who_leaves_early_is_not_talked_about(tmp_path: Path) -> None:
    script = f"{' '.join(PROGRAM)} --help | true"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
