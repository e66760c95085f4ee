"""Every command that is printed works when it is pasted into a shell, for workflow files and for Python programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import PATIENCE, call, environment, write

REPORT = """
import os, pathlib, sys
from typing import Annotated, TypedDict
from holdfast import END, START, StateGraph, append


class State(TypedDict, total=False):
    log: Annotated[list[str], append]
    topic: str


def note(name):
    with open("ran.txt", "a") as file:
        file.write(name + "\\n")


def first(state):
    note("first")
    return {"log": ["first"]}


def gated(state):
    note("gated")
    if pathlib.Path("die").exists():
        os._exit(9)
    if not pathlib.Path("open").exists():
        raise RuntimeError("the gate is closed")
    return {"log": ["gated"]}


def approve(state, ctx):
    return {"log": [ctx.ask("Publish it?", choices=["yes", "no"], name="approve")]}


def chain(name, **nodes):
    graph, before = StateGraph(State, name=name), START
    for node, (function, options) in nodes.items():
        graph.add_node(node, function, **options)
        graph.add_edge(before, node)
        before = node
    return graph.add_edge(before, END)


STORE = "sqlite:///.holdfast/runs.db"
app = chain("chain", first=(first, {}), gated=(gated, {})).compile(STORE)
asking = chain("asking", first=(first, {}), approve=(approve, {})).compile(STORE, interrupt_after=["approve"])
doubtful = chain("doubtful", first=(first, {}), gated=(gated, {"idempotent": False})).compile(STORE)

if __name__ == "__main__":
    globals()[sys.argv[1]].invoke({}, run_id=sys.argv[2])
"""

FUNCTIONS = """
import os, pathlib, sys
from holdfast import ask, step, workflow

STORE = "sqlite:///.holdfast/runs.db"


def note(name):
    with open("ran.txt", "a") as file:
        file.write(name + "\\n")


@step
def first(n):
    note("first")
    return n


@step
def gated():
    note("gated")
    if pathlib.Path("die").exists():
        os._exit(9)
    if not pathlib.Path("open").exists():
        raise RuntimeError("the gate is closed")


charged = step(name="charged", if_interrupted="fail")(gated.function)


@workflow(store=STORE)
def app():
    return [first(1), first(int(pathlib.Path("number").read_text())), gated()]


@workflow(store=STORE)
def asking():
    return [first(1), ask("Publish it?", choices=["yes", "no"], name="approve")]


@workflow(store=STORE)
def doubtful():
    return [first(1), charged()]


if __name__ == "__main__":
    globals()[sys.argv[1]].run(run_id=sys.argv[2])
"""

NESTED = """
from holdfast import step, workflow

write = step(name="write")(lambda n: n)
read = step(name="read")(lambda n: n)


@workflow
def inner(n):
    return write(read(n))


@workflow(store="sqlite:///.holdfast/runs.db")
def outer(n):
    return write(n) + inner(n)


if __name__ == "__main__":
    outer.run(1, run_id="n")
"""

CLOSURE = """
from holdfast import ask, workflow


def made():
    @workflow(store="sqlite:///.holdfast/runs.db")
    def asking():
        return ask("Publish it?", choices=["yes", "no"])

    return asking


if __name__ == "__main__":
    made().run(run_id="q")
"""

CHAIN = """
workflow: {name: chain}
steps:
  - {name: first, python: "acts.py:first"}
  - {name: gated, python: "fatal.py:gated"}
"""
ASKING = """
workflow: {name: asking}
steps:
  - {name: first, python: "acts.py:first"}
  - name: approve
    ask: {prompt: "Publish it?", choices: ["yes", "no"]}
    interrupt_after: true
"""
DOUBTFUL = CHAIN.replace("chain", "doubtful").replace('gated"}', 'gated", idempotent: false}')
FATAL = """
import os, pathlib
from acts import note

def gated():
    note("gated")
    if pathlib.Path("die").exists():
        os._exit(9)
    if not pathlib.Path("open").exists():
        raise RuntimeError("the gate is closed")
"""

COMMAND = re.compile(r"(?:^|[ `(])((?:\S+ -m )?holdfast (?!demo)[a-z](?:'[^']*'|[^`#])*?)(?:`|  #|$)")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program `holdfast`, which writes down the words that a shell gives it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "holdfast").write_text('#!/bin/sh\nprintf "%s\\0" "$@" >> "$WORDS"\n')
    (folder / "holdfast").chmod(0o755)
    return folder


class Runs:
    """A folder in which each of three workflows was run: one fails, one asks, one dies where it may not be repeated."""

    def __init__(self, folder: Path, shell: Path, *, of_program: bool, program: str = REPORT) -> None:
        self.folder, self._shell = folder, shell
        write(folder, "none.yaml", "")
        (folder / "none.yaml").unlink()
        self.pasted: set[str] = set()
        if of_program:
            (folder / "report.py").write_text(program)
        else:
            for name, text in (("chain", CHAIN), ("asking", ASKING), ("doubtful", DOUBTFUL)):
                write(folder, f"{name}.yaml", text.replace("    interrupt_after: true\n", ""))
            (folder / "fatal.py").write_text(FATAL)
        self.of_program = of_program

    def begin(self, workflow: str, run_id: str) -> str:
        """Run one of the workflows, as its program or as a command; return what was printed."""
        if self.of_program:
            name = "app" if workflow == "chain" else workflow
            command = [sys.executable, "report.py", name, run_id]
            program = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, env=environment()
            )
            return program.stdout + program.stderr
        done = call(self.folder, "run", f"{workflow}.yaml", "--run-id", run_id, "--no-interactive")
        return done.stdout + done.stderr

    def shell(self, line: str, folder: Path) -> tuple[int, str]:
        """Let a shell read a line, and call the command line with the words that it makes of it."""
        words = self._shell / "words"
        words.write_text("")
        env = environment(PATH=f"{self._shell}{os.pathsep}{os.environ['PATH']}", WORDS=str(words))
        line = line.replace(f"{sys.executable} -m holdfast", "holdfast")
        subprocess.run(["bash", "-c", line], cwd=folder, check=True, timeout=PATIENCE, env=env)
        done = call(folder, *words.read_text().split("\0")[:-1])
        return done.returncode, done.stdout + done.stderr

    def paste(self, *texts: str, fixed: bool = True) -> list[str]:
        """Paste every command of these texts into a shell, each in a copy of the folder; return the commands."""
        found = list(dict.fromkeys(line.strip() for text in texts for line in commands(text)))
        for number, line in enumerate(line for line in found if line not in self.pasted):
            copy = self.folder.parent / f"{self.folder.name}-{len(self.pasted)}-{number}"
            shutil.copytree(self.folder, copy)
            if fixed:
                (copy / "open").touch()
                (copy / "die").unlink(missing_ok=True)
            code, printed = self.shell(line, copy)
            asks = "find out whether it took effect" in printed and "--if-interrupted" not in line
            assert code in (0, 4) or asks, (line, code, printed)
            shutil.rmtree(copy)
        self.pasted.update(found)
        return found


def commands(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith("Usage:")]
    return [found for line in lines for found in COMMAND.findall(line) if "RUN" not in found]


@pytest.fixture(params=[True, False], ids=["python", "file"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, shell: Path) -> Runs:
    folder = tmp_path / "work"
    folder.mkdir()
    return Runs(folder, shell, of_program=request.param)


def looked_at(runs: Runs, run: str) -> list[str]:
    """What is printed about a run by commands that only look."""
    texts = []
    for words in (("show", run), ("runs", "status", run), ("resume", run, "--plan")):
        done = call(runs.folder, *words)
        texts.append(done.stdout + done.stderr)
    return texts


def test_the_lines_about_a_failed_run_work(runs: Runs) -> None:
    """S2.12: what is printed resumes the run."""
    ended = runs.begin("chain", "r")
    found = runs.paste(ended, *looked_at(runs, "r"))
    assert any(" resume r" in line for line in found), found

    changed = []
    for words in (
        ("resume", "r", *app(runs, "app")),
        ("fork", "r@1", "--run-id", "f"),
        ("runs", "edit", "r", "log=[]" if runs.of_program else "steps.first.output=two"),
        ("runs", "rollback", "r@1"),
        ("cancel", "r"),
        ("show", "r"),
        ("fork", "r@1", "--run"),
        ("rerun", "r", "--from", "first"),
    ):
        done = call(runs.folder, *words)
        changed.append(done.stdout + done.stderr)
    found = runs.paste(*changed)
    assert any(" resume f" in line for line in found) and any(" resume r" in line for line in found), found
    if runs.of_program:
        assert any("fork r@1 --app report.py:app --run" in line or "--run --app" in line for line in found), (
            found
        )


def test_the_lines_about_a_question_and_a_gate_work(runs: Runs) -> None:
    ended = runs.begin("asking", "q")
    found = runs.paste(ended, *looked_at(runs, "q"))
    assert any(" answer q " in line for line in found)

    answered = call(runs.folder, "answer", "q", "yes")
    again = call(runs.folder, "answer", "q", "yes")
    found = runs.paste(answered.stdout, again.stderr, *looked_at(runs, "q"))
    assert any(" resume q" in line for line in found)
    if runs.of_program:
        call(runs.folder, "resume", "q", *app(runs, "asking"), "--no-interactive")
        gate = runs.paste(*looked_at(runs, "q"))
        assert [line for line in gate if "resume q --app report.py:asking" in line]


def test_the_lines_about_a_process_that_died_work(runs: Runs) -> None:
    (runs.folder / "die").touch()
    runs.begin("doubtful", "d")
    runs.begin("chain", "c")
    doctor = call(runs.folder, "doctor")
    assert [line for line in commands(doctor.stdout) if " resume c" in line or " resume d" in line]
    found = runs.paste(doctor.stdout, *looked_at(runs, "d"), *looked_at(runs, "c"))
    assert any(" resume c" in line for line in found)

    doubt = call(runs.folder, "resume", "d", *app(runs, "doubtful"), "--no-interactive")
    found = runs.paste(doubt.stdout + doubt.stderr, *looked_at(runs, "d"))
    assert [line for line in found if "--if-interrupted rerun" in line]


def test_the_lines_about_runs_of_functions_work(tmp_path: Path, shell: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    runs = Runs(folder, shell, of_program=True, program=FUNCTIONS)
    number = folder / "number"
    number.write_text("2")
    runs.begin("chain", "r")
    failed = call(folder, "resume", "r", *app(runs, "app"))
    found = runs.paste(failed.stderr, *looked_at(runs, "r"))
    assert any("resume r --app report.py:app" in line for line in found), found
    planned = call(folder, "resume", "r", *app(runs, "app"), "--plan").stdout
    assert "2 finished steps kept" in failed.stderr and "2 steps kept" in planned

    number.write_text("3")
    changed = call(folder, "resume", "r", *app(runs, "app"))
    found = runs.paste(changed.stderr)
    assert any("rerun r --from 'app#1/first#2' --app report.py:app" in line for line in found), changed.stderr

    runs.begin("asking", "q")
    assert [line for line in runs.paste(*looked_at(runs, "q")) if " answer q " in line]
    answered = call(folder, "answer", "q", "yes")
    assert [line for line in runs.paste(answered.stdout) if "resume q --app report.py:asking" in line]
    done = call(folder, "resume", "q", *app(runs, "asking"))
    assert "kept 1 step" in done.stdout and "ran 1 step" in done.stdout
    assert "run 'q' is completed" in call(folder, "resume", "q").stderr
    again = call(folder, "rerun", "q", "--from", "first")
    assert [
        line for line in runs.paste(again.stderr) if "rerun q --app report.py:asking --from first" in line
    ]
    call(
        folder, "rerun", "q", "--from", "first", "--run-id", "again", *app(runs, "asking"), "--no-interactive"
    )
    shown = [call(folder, "show", run, "--step", "first") for run in ("q", "again")]
    assert [each.returncode for each in shown] == [0, 0] and "step      asking/first" in shown[0].stdout

    runs.begin("asking", "now")
    stored = call(folder, "answer", "now", "yes", "--resume")
    assert stored.returncode == 2 and "the answer to approve of run now is stored" in stored.stderr
    assert [line for line in runs.paste(stored.stderr) if "resume now --app report.py:asking" in line]

    (folder / "die").touch()
    runs.begin("doubtful", "d")
    doubt = call(folder, "resume", "d", *app(runs, "doubtful"), "--no-interactive")
    found = runs.paste(call(folder, "doctor").stdout, doubt.stdout + doubt.stderr, *looked_at(runs, "d"))
    assert [line for line in found if "--if-interrupted rerun" in line]


def test_a_bare_name_that_several_steps_have_is_refused_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(NESTED)
    subprocess.run([sys.executable, "report.py"], cwd=tmp_path, capture_output=True, env=environment())

    again = call(tmp_path, "rerun", "n", "--from", "write", "--app", "report.py:outer", "--plan")
    shown = call(tmp_path, "show", "n", "--step", "write")

    for done in (again, shown):
        assert done.returncode == 2, done
        assert "did you mean 'outer/write' or 'outer/inner/write'?" in done.stderr, done.stderr
    only = call(tmp_path, "rerun", "n", "--from", "read", "--app", "report.py:outer", "--plan")
    assert only.returncode == 0 and "outer/inner/read" in only.stdout


def test_a_workflow_that_is_in_no_variable_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(CLOSURE)
    subprocess.run([sys.executable, "report.py"], cwd=tmp_path, capture_output=True, env=environment())

    stored = call(tmp_path, "answer", "q", "yes", "--resume")
    assert "resume with: asking.resume('q') in its program" in stored.stderr, stored
    assert "resume with: asking.resume('q') in its program" in call(tmp_path, "show", "q").stdout
    forked = call(tmp_path, "fork", "q@0", "--run-id", "f", "--run").stderr
    assert "fork = asking.app.fork('q@0'), then asking.resume(fork)" in forked, forked


def test_the_line_about_a_python_run_from_a_capsule_confirms_it_and_names_its_app(
    tmp_path: Path, shell: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    runs = Runs(folder, shell, of_program=True, program=FUNCTIONS)
    (folder / "number").write_text("2")
    runs.begin("chain", "r")
    for words in (("capsule", "export", "r", "-o", "r.capsule"), ("delete", "r", "--yes")):
        assert call(folder, *words).returncode == 0
    assert call(folder, "capsule", "import", "r.capsule").returncode == 0

    refused = call(folder, "resume", "r")
    assert "nobody has confirmed it" in refused.stderr
    assert [line for line in runs.paste(refused.stderr) if "resume r --trust --app report.py:app" in line]
    (folder / "report.py").rename(folder / "other.py")
    assert "resume r --trust --app MODULE:NAME" in call(folder, "resume", "r").stderr


def app(runs: Runs, name: str) -> list[str]:
    return ["--app", f"report.py:{name}"] if runs.of_program else []


def test_what_cannot_be_imported_is_refused_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, "chain.yaml", CHAIN)
    (tmp_path / "report.py").write_text(REPORT.replace('if __name__ == "__main__":', "if True:"))
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    for app, reason in (
        ("report", "not of the form MODULE:NAME"),
        ("missing.py:app", "there is no file 'missing.py'"),
        ("missing:app", "there is no module 'missing'"),
        ("broken:app", "needs the package 'nowhere_to_be_found'"),
        ("acts:app", "there is no 'app' in 'acts'"),
        ("acts.py:note", "'note' is function, not a workflow function, an App or a StateGraph"),
        ("report.py:app", "importing report.py fails: KeyError"),
    ):
        done = call(tmp_path, "resume", "r", "--app", app)
        assert done.returncode == 2 and reason in done.stderr, done.stderr
    done = call(tmp_path, "resume", "r", "--app", "acts:app", "--workflow", "chain.yaml")
    assert done.returncode == 2 and "give one of them" in done.stderr


@pytest.mark.parametrize(
    "start", ["{}", "def main():\n    {}\nmain()", "def a():\n    {}\ndef b():\n    a()\nb()"]
)
def test_a_program_that_starts_its_run_when_it_is_imported_is_not_named(tmp_path: Path, start: str) -> None:
    before, _, call_of_it = REPORT.partition('if __name__ == "__main__":\n    ')
    (tmp_path / "report.py").write_text(before + start.format(call_of_it.strip()))
    command = [sys.executable, "report.py", "app", "r"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment())

    shown = call(tmp_path, "show", "r")
    assert "resume with: app.resume('r') in its program" in shown.stdout
    refused = call(tmp_path, "resume", "r", "--app", "report.py:app")
    assert refused.returncode == 2
