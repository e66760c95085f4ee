"""Every way out that a message names is taken here: the call or the command is followed, and works."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest

import holdfast
from holdfast import (
    App,
    ExecutionError,
    ForeignRun,
    HoldfastError,
    RunExists,
    RunPaused,
    Send,
    StateGraph,
    append,
    open_store,
)
from holdfast.cli.errors import REMEDIES
from holdfast.cli.main import ENTRIES, commands, main
from holdfast.engine.commands.inbox import RunCommand
from holdfast.engine.transfer import copy_runs
from holdfast.errors import IN_PYTHON
from holdfast.journal.copying import change_facts, last_entry
from holdfast.journal.records import RunEnded
from holdfast.journal.writer import Writer
from holdfast.state import standard_types as budget
from holdfast.values import START, RunStatus
from holdfast.workflows.workflow import load_workflow
from tests.capsules.test_untrusted_runs import INNOCENT, paused_run, stranger, with_config
from tests.cli.processes import call, start, until
from tests.engine.test_policies import RecordingStore
from tests.graphs import Log, chain
from tests.integrity.damage import damage_entry, sql

SOURCE = Path(holdfast.__file__).parent
_GROUPED = (
    "store fsck",
    "store migrate",
    "capsule export",
    "capsule import",
    "capsule keygen",
    "workflow inspect",
)
REMEDY = re.compile(
    rf"\b(app\.\w+)\(|\b(holdfast\.\w+)\(|(?<!from )\b(holdfast (?:{'|'.join([*_GROUPED, *ENTRIES])}))\b"
)

Cure = Callable[["Bench"], None]
CURES: dict[tuple[str, str], Cure] = {}
"""By the module of a message and the call or command that it names: a story in which that is followed."""

ELSEWHERE = {
    ("engine/loop.py", "resume"): "tests/engine/test_exhaustion.py: it takes a process without memory",
    ("engine/continuation.py", "resume"): "tests/engine/test_if_exists.py",
    ("engine/continuation.py", "choose_run_id"): "tests/engine/test_if_exists.py",
    ("engine/settings.py", "app.resume"): "tests/views/test_python_progress.py",
    ("engine/waves.py", "settle"): "tests/engine/test_resume.py",
    ("engine/waves.py", "skip"): "tests/workflows/test_commands.py: a step that ran beside itself",
    ("engine/waves.py", "set_max_iterations"): "below",
    ("engine/graph_changes.py", "resume"): "below: a step that was renamed",
    ("engine/time_travel/rerun.py", "reuse"): "tests/engine/time_travel: after pruning",
    ("cli/session.py", "resume"): "tests/integrity/test_fsck.py",
    ("cli/session.py", "look_elsewhere"): "tests/cli/test_store_option.py",
    ("cli/commands/run.py", "holdfast resume"): "tests/cli/test_resume_plan.py",
    ("cli/commands/run.py", "holdfast runs"): "tests/cli/test_fleet_commands.py: after a queue is full",
    ("fleet/schedules.py", "list_schedules"): "tests/cli/test_fleet_commands.py",
    ("fleet/schedules.py", "replace_schedule"): "tests/cli/test_fleet_commands.py",
    ("errors.py", "plan"): "tests/engine/test_resume_plan.py",
    ("mcp/server.py", "list_workflows"): "tests/mcp/test_mcp.py: an unknown workflow",
    ("service/catalogue.py", "list_workflows"): "tests/service/test_service.py",
    ("service/service.py", "list_workflows"): "tests/service/test_service.py",
    ("service/service.py", "answer"): "tests/service/test_service.py",
    ("service/service.py", "cancel"): "tests/service/test_service.py",
    ("cli/options.py", "holdfast resume"): "tests/cli/test_pasted_lines.py: a Python program",
    ("cli/options.py", "holdfast validate"): "tests/cli/test_pasted_lines.py: a Python program",
    ("web/pages/wording.py", "holdfast resume"): "tests/capsules/test_untrusted_runs.py: at a terminal",
    ("web/pages/run_actions.py", "holdfast capsule import"): "tests/web/test_run_page.py: a run is exported",
    ("web/context.py", "holdfast ui"): "tests/web/test_serve.py",
    ("web/app.py", "holdfast ui"): "tests/web/test_serve.py",
    ("integrity/repair.py", "holdfast store fsck"): "no advice: it is who wrote a record",
    ("views/plain.py", "holdfast show"): "tests/cli/test_runs.py: it takes a lower limit of memory",
    ("workflows/workflow.py", "holdfast.register"): "tests/workflows/test_resume_by_id.py",
    ("workflows/workflow.py", "app.resume_from_checkpoint"): "tests/workflows/test_resume_by_id.py",
}
"""Ways out that are taken by other tests, which need more than a folder for it."""


@dataclass
class Bench:
    """A folder with a store, and the command line in it."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    request: pytest.FixtureRequest | None = None

    def fixture(self, name: str) -> Any:
        """Return what only some stories need, a PostgreSQL server say."""
        assert self.request is not None
        return self.request.getfixturevalue(name)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'runs.db'}"

    def holdfast(self, *words: str, code: int | None = 0) -> str:
        """Call a command; return what it says."""
        self.capsys.readouterr()
        found = main([*words])
        out, err = self.capsys.readouterr()
        assert code is None or found == code, out + err
        return out + err

    def paste(self, told: str, begin: str) -> str:
        """Call the command that a text names from `begin` on, as if somebody pasted it."""
        return self.holdfast(*_pasted(told, begin))

    def file(self, text: str, name: str = "flow.yaml") -> str:
        (self.folder / name).write_text(text)
        return name


def cures(module: str, *remedies: str) -> Callable[[Cure], Cure]:
    def noted(story: Cure) -> Cure:
        CURES.update({(module, remedy): story for remedy in remedies})
        return story

    return noted


def also(story: Cure) -> Cure:
    """Try a story for remedies that others name, or that name a variable of the program."""
    CURES["", story.__name__] = story
    return story


def failed(call: Callable[[], object], kind: type[BaseException] = ExecutionError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def followed(told: str, app: App, call: str) -> Any:
    """Return the result of the call that a message names, executed literally."""
    text = told[told.index(call) :]
    return eval(text[: text.index(")") + 1], {"app": app})


def shaky(broken: list[bool], url: str, **options: Any) -> App:
    def work(state: Any) -> dict[str, Any]:
        if broken[0]:
            raise ValueError("no")
        return {"log": ["work"]}

    return chain("first", "work", nodes={"work": work}, name="shaky", **options).compile(url)


@cures("engine/waves.py", "resume")
def after_a_failure(bench: Bench) -> None:
    broken = [True]
    app = shaky(broken, bench.url)
    told = failed(lambda: app.invoke(run_id="r"))
    broken[0] = False

    assert followed(told, app, "app.resume(").state["log"] == ["first", "work"]


def test_the_cure_for_too_many_iterations_is_an_argument_of_the_graph(tmp_path: Path) -> None:
    def looping(limit: int) -> App:
        graph = StateGraph(dict, name="loop", max_iterations=limit).add_edge(START, "a")
        graph.add_node("a", lambda state: {"n": state.get("n", 0) + 1})
        graph.add_conditional_edges("a", lambda state: "a" if state["n"] < 5 else holdfast.END)
        return graph.compile(f"sqlite:///{tmp_path / 'runs.db'}")

    told = failed(lambda: looping(3).invoke(run_id="r"))
    larger = re.search(r"StateGraph\(…, max_iterations=(\d+)\)", told)

    assert larger is not None
    assert followed(told, looping(int(larger[1])), "app.resume(").state["n"] == 5


@cures("engine/waves.py", "reuse")
def after_parallel_writes(bench: Bench) -> None:
    class Reduced(TypedDict, total=False):
        x: int
        found: Annotated[list[int], append]

    def app(schema: Any) -> App:
        graph = StateGraph(schema, name="each").add_node("work", lambda s: {"found": [s["x"]]})
        graph.add_conditional_edges(START, lambda s: [Send("work", {"x": n}) for n in range(3)])
        return graph.compile(bench.url)

    told = failed(lambda: app({"x": int, "found": list}).invoke(run_id="r"))
    assert "found: Annotated[list, append]" in told
    assert followed(told, app(Reduced), "app.invoke(").state["found"] == [0, 1, 2]


@cures("engine/runner.py", "resume", "read", "delete", "cancel", "choose_run_id")
def a_run_id_that_is_taken(bench: Bench) -> None:
    broken = [True]
    app = shaky(broken, bench.url)
    failed(lambda: app.invoke(run_id="r"))
    told = failed(lambda: app.invoke(run_id="r"), RunExists)
    broken[0] = False
    assert followed(told, app, "app.resume(").status == "completed"

    told = failed(lambda: app.invoke(run_id="r"), RunExists)
    assert "app.resume" not in told and followed(told, app, "app.get_state(")["log"] == ["first", "work"]
    followed(told, app, "app.delete(")
    assert app.invoke(run_id="r").status == "completed"

    started, go_on = threading.Event(), threading.Event()

    def waits(state: Any, ctx: Any) -> None:
        started.set()
        while not ctx.cancelled and not go_on.wait(0.01):
            pass

    live = chain("wait", nodes={"wait": waits}, name="live").compile(bench.url)
    thread = threading.Thread(target=lambda: live.invoke(run_id="live"))
    thread.start()
    try:
        assert started.wait(60)
        told = failed(lambda: live.invoke(run_id="live"), RunExists)
        assert "resume" not in told
        followed(told, live, "app.cancel(")
    finally:
        go_on.set()
        thread.join(60)
    assert not thread.is_alive()


@cures("engine/blocking.py", "resume")
def after_ctrl_c(bench: Bench) -> None:
    broken = [True]

    def interrupt(state: Any) -> dict[str, Any]:
        if broken[0]:
            raise KeyboardInterrupt
        return {"log": ["work"]}

    app = chain("first", "work", nodes={"work": interrupt}, name="stopped").compile(bench.url)
    told = failed(lambda: app.invoke(run_id="r"), KeyboardInterrupt)
    broken[0] = False

    assert followed(told, app, "app.resume(").state["log"] == ["first", "work"]


@cures("journal/writer.py", "resume", "choose_run_id")
def a_writer_that_was_interrupted(bench: Bench) -> None:
    app = shaky([False], bench.url)
    app.fork(app.invoke(run_id="r").run_id, 1, run_id="f")
    journal, codec = app._settings.journal, app._settings.codec
    writer = Writer(journal, journal.load(journal.info("f"), codec), codec, durable=True)

    def cut_off() -> None:
        writer.record(RunEnded(RunStatus.INTERRUPTED))
        raise KeyboardInterrupt

    failed(lambda: writer.together(cut_off), KeyboardInterrupt)
    told = failed(writer.flush, HoldfastError)
    assert followed(told, app, "app.resume(").state["log"] == ["first", "work"]


class Frame:
    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


class Tagged(dict[str, int]):
    pass


class Pair(NamedTuple):
    a: int


@cures("state/codec.py", "holdfast.register_type")
@cures("state/types.py", "holdfast.register_type")
def a_type_that_cannot_be_stored(bench: Bench) -> None:
    def app() -> App:
        graph = (
            StateGraph(dict)
            .add_node("a", lambda s: {"frame": Frame([1]), "pair": Pair(1)})
            .add_edge(START, "a")
        )
        return graph.compile(bench.url)

    told = failed(app().invoke)
    assert "holdfast.register_type(Frame, encode=…, decode=…)" in told
    told = failed(lambda: holdfast.register_type(Frame), HoldfastError)
    assert "holdfast.register_type(Frame, encode=..., decode=...)" in told
    holdfast.register_type(Frame, encode=lambda frame: frame.rows, decode=Frame)
    told = failed(app().invoke)
    assert "holdfast.register_type(Pair)" in told
    holdfast.register_type(Pair)
    assert app().invoke().state["frame"].rows == [1]


FLOW = "workflow: {name: flow}\nsteps:\n  - {name: a, set: {n: 1}}\n  - {name: b, shell: test -e ready}\n"


WAITS = (
    "workflow: {name: waits}\nsteps:\n"
    "  - {name: a, shell: 'touch begun; while ! test -e open; do sleep 0.05; done', if_interrupted: rerun}\n"
)


@also
def a_file_that_failed(bench: Bench) -> None:
    file = bench.file(FLOW)
    told = bench.holdfast("run", file, "--run-id", "r", code=1)
    assert "resume with:" in told
    (bench.folder / "ready").touch()
    told = bench.holdfast("run", file, "--run-id", "r", code=None)
    assert "completed" in bench.paste(told, "holdfast resume")
    told = bench.holdfast("run", file, "--run-id", "r", code=None)
    assert "workflow     flow" in bench.paste(told, "holdfast show")


def test_a_file_that_used_up_its_iterations_goes_on_with_the_number_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, capsys)
    text = (
        "workflow: {name: loop, limits: {max_iterations: 3}}\nsteps:\n"
        "  - {name: a, set: {n: 1}, routes: [{to: a, when: visits.a < 5}, {to: $end}]}\n"
    )
    told = bench.holdfast("run", bench.file(text), "--run-id", "r", code=1)
    larger = re.search(r"limits.max_iterations in the file to (\d+) or more", told)
    assert larger is not None, told
    bench.file(text.replace("max_iterations: 3", f"max_iterations: {larger[1]}"))

    assert "completed" in bench.paste(told, "holdfast resume")


def test_a_step_that_was_renamed_goes_on_with_the_option_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, capsys)
    bench.holdfast("run", bench.file(FLOW.replace("name: b", "name: build")), "--run-id", "r", code=1)
    bench.file(FLOW.replace("name: b, shell: test -e ready", "name: builds, shell: 'true'"))
    told = bench.holdfast("resume", "r", code=None)

    assert "(did you mean 'builds'?), which the workflow no longer has" in told, told
    assert "completed" in bench.paste(told, "holdfast resume r --remap")


@also
def a_file_under_way_under_that_id(bench: Bench) -> None:
    file = bench.file(WAITS)
    process = start(bench.folder, "run", file, "--run-id", "r")
    try:
        until((bench.folder / "begun").exists)
        told = bench.holdfast("run", file, "--run-id", "r", code=None)
        bench.paste(told, "holdfast cancel")
        process.communicate(timeout=60)
    finally:
        (bench.folder / "open").touch()
        process.communicate(timeout=60)
    assert "cancelled" in bench.holdfast("runs", "status", "r", code=None)


@also
def a_route_that_was_chosen(bench: Bench) -> None:
    text = (
        "workflow: {name: sized, inputs: {big: {type: boolean, default: false}}}\nsteps:\n"
        "  - {name: a, set: {n: 1}, routes: [{to: large, when: inputs.big}, {to: small}]}\n"
        "  - {name: large, set: {x: large}, routes: [{to: $end}]}\n  - {name: small, set: {x: small}}\n"
    )
    bench.holdfast("run", bench.file(text), "--run-id", "r")
    told = bench.holdfast("fork", "r@a", "--set", "inputs.big:=true", "--run-id", "f1")
    assert "a fork as node 'a' has it chosen" in told, told
    out = bench.holdfast("fork", "r@a", "--set", "inputs.big:=true", "--as-node", "a", "--run")
    assert '"x": "large"' in out


@also
def a_fork_of_a_python_run(bench: Bench) -> None:
    app = chain("a", "b", name="py").compile(bench.url)
    app.invoke(run_id="r")
    for options in (["--run"], ["--set", "n:=5"], ["--set", "n:=5", "--run"]):
        told = bench.holdfast("fork", "r@1", *options, "--store", bench.url, code=2)
        call = re.search(r"fork = (app\.fork\('r@1'.*\)), then (app\.resume\(fork\))", told)
        assert call is not None, told
        fork = eval(call[1].replace("{…}", "{'n': 5}"), {"app": app})
        assert eval(call[2], {"app": app, "fork": fork}).status == "completed"


@cures("cli/targets.py", "list_runs")
@cures("views/run_view.py", "holdfast resume")
def a_python_run_on_the_command_line(bench: Bench) -> None:
    app = chain("a", "b", name="py").compile(bench.url, interrupt_before=["b"])
    app.invoke(run_id="r")
    told = bench.holdfast("resume", "r", "--store", bench.url, code=2)
    shown = bench.holdfast("show", "r", "--store", bench.url)
    assert "answer with: app.resume('r') in its program" in shown and "holdfast resume" not in shown
    assert followed(told, app, "app.resume(").status == "completed"
    told = bench.holdfast("resume", "--store", bench.url, code=None)
    assert "no run in" in told and "r" in bench.holdfast("runs", "--store", bench.url)


@cures("views/runs.py", "list_checkpoints")
@cures("journal/journal.py", "list_runs", "look_elsewhere")
@cures("capsules/exports.py", "list_runs")
@cures("engine/transfer.py", "list_runs")
@cures("integrity/check.py", "list_runs")
@cures("cli/commands/runs.py", "holdfast run")
def names_that_are_not_there(bench: Bench) -> None:
    told = bench.holdfast("runs")
    bench.file(FLOW, "flow.yaml")
    assert "holdfast run " in told
    (bench.folder / "ready").touch()
    bench.holdfast("run", "flow.yaml", "--run-id", "here")
    searches = (
        ["show", "nope"],
        ["export", "nope", "-o", "x.hf"],
        ["store", "fsck", "nope"],
        ["store", "fsck", "nope", "--repair", "--yes"],
        ["store", "copy", "sqlite:///.holdfast/runs.db", "file:copies", "nope"],
    )
    for words in searches:
        assert "here" in bench.paste(bench.holdfast(*words, code=1), "holdfast runs")
    elsewhere = "--store=sqlite:///elsewhere.db"
    bench.holdfast("run", "flow.yaml", "--run-id", "there", elsewhere)
    for words in (["show", "nope"], ["export", "nope", "-o", "x.hf"], ["store", "fsck", "nope"]):
        told = bench.holdfast(*words, elsewhere, code=1)
        assert "there" in bench.paste(told, "holdfast runs"), "the command names the store that was asked"
    told = bench.holdfast("run", "flow.yaml", "--run-id", "there", elsewhere, code=None)
    assert "there" in bench.paste(told, "holdfast show")
    told = bench.holdfast("store", "copy", "elsewhere.db", "file:copies", "nope", code=1)
    assert "there" in bench.paste(told, "holdfast runs")
    gone = "0c1a92eb-6053-4d3b-8b04-8c5b1d0c1a92"
    told = bench.holdfast("checkpoints", "show", gone, code=None)
    assert "here" in bench.paste(told, "holdfast checkpoints list")


@cures("capsules/format.py", "export")
@cures("capsules/signing.py", "make_keys")
@cures("cli/commands/workflow.py", "holdfast capsule import")
def capsules_and_keys(bench: Bench) -> None:
    pytest.importorskip("cryptography")
    (bench.folder / "ready").touch()
    bench.holdfast("run", bench.file(FLOW), "--run-id", "r")
    told = bench.holdfast("import", "flow.yaml", code=None)
    assert "holdfast capsule export RUN -o FILE" in told
    bench.holdfast("export", "r", "-o", "r.hf")
    told = bench.holdfast("workflow", "inspect", "r.hf", code=None)
    assert "holdfast capsule import --inspect FILE" in told
    assert "flow" in bench.holdfast("import", "--inspect", "r.hf")
    bench.file("not a key", "key")
    told = bench.holdfast("export", "r", "-o", "signed.hf", "--sign", "key", code=None)
    assert "holdfast capsule keygen -o NAME" in told, told
    bench.holdfast("capsule", "keygen", "-o", "mine")
    bench.holdfast("export", "r", "-o", "signed.hf", "--sign", "mine")


@cures(
    "cli/commands/workflow.py",
    "holdfast validate",
    "holdfast workflow inspect",
    "holdfast run",
    "holdfast runs",
)
@cures("cli/main.py", "holdfast init", "holdfast run", "holdfast resume")
def the_first_steps(bench: Bench) -> None:
    helped = bench.holdfast("--help")
    told = bench.paste(
        helped.replace("holdfast init hello.yaml  ", "holdfast init hello.yaml\n"), "holdfast init"
    )
    lines = [
        re.split(r" {2,}", line.strip())[0] for line in told.splitlines() if line.startswith("  holdfast")
    ]
    assert len(lines) == 4
    for line in lines:
        bench.paste(line, "holdfast")
    bench.holdfast("run", bench.file(FLOW), code=1)
    (bench.folder / "ready").touch()
    assert "holdfast resume  " in helped and "completed" in bench.holdfast("resume")


@cures("views/run_view.py", "holdfast answer")
def a_question(bench: Bench) -> None:
    ask = "workflow: {name: asks}\nsteps:\n  - {name: sure, ask: {prompt: 'Sure?', choices: ['yes', 'no']}}\n"
    bench.holdfast("run", bench.file(ask), "--run-id", "r", "--no-interactive", code=None)
    (pause,) = json.loads(bench.holdfast("show", "r", "--json"))["pauses"]
    words = shlex.split(pause["command"])
    told = bench.holdfast(*words[words.index("answer") :])
    assert "completed" in bench.holdfast("resume", "r") and "resume with:" in told


def test_a_long_output_is_shown_by_the_command_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, capsys)
    text = (
        "workflow: {name: long}\nsteps:\n  - {name: a, shell: seq 1 20000}\noutput: '{{ steps.a.output }}'\n"
    )
    told = bench.holdfast("run", bench.file(text), "--run-id", "r", "--store", "sqlite:///elsewhere.db")
    command = re.search(r"more characters: .*(show .*)", told)
    assert command is not None and "19999" not in told
    assert "19999" in bench.holdfast(*shlex.split(command[1]))


@cures("engine/saving.py", "resume")
def a_store_that_fails(bench: Bench) -> None:
    store = RecordingStore()

    def breaks(state: Any) -> dict[str, Any]:
        store.broken = not store.broken
        return {"log": ["work"]}

    app = chain("first", "work", "last", nodes={"work": breaks}, name="spoilt").compile(store)
    told = failed(lambda: app.invoke(run_id="r"))
    store.broken = False
    assert followed(told, chain("first", "work", "last", name="spoilt").compile(store), "app.resume(").state[
        "log"
    ] == ["first", "work", "last"]


EXPIRING = (
    "workflow: {name: expiring, checkpoint: {retention: {pause_ttl: 0.01}}}\nsteps:\n"
    "  - {name: sure, ask: 'Sure?'}\n"
)


@cures("engine/resume.py", "resume", "extend")
def an_answer_that_comes_too_late(bench: Bench) -> None:
    def asks(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": [ctx.ask("sure?", timeout=0.01, default="by default")]}

    app = chain("ask", nodes={"ask": asks}, name="late").compile(bench.url)
    pause = app.invoke(run_id="r").pauses[0]
    until(lambda: pause.expires_at is not None and time.time() > pause.expires_at.timestamp())
    told = failed(lambda: app.resume("r", "yes"), HoldfastError)
    assert followed(told, app, "app.resume(").state["log"] == ["by default"]

    bench.holdfast("run", bench.file(EXPIRING), "--run-id", "w", code=4)
    time.sleep(0.03)
    told = bench.holdfast("answer", "w", "yes", code=2)
    assert "can be answered" in bench.paste(told, "holdfast runs extend")
    assert "completed" in bench.holdfast("resume", "w", "--answer", "yes")


PROGRAM = """
import pathlib
from holdfast import START, StateGraph

def work(state):
    return {"done": True}

graph = StateGraph(dict, name="w").add_node("work", work).add_edge(START, "work")
"""


@cures("cli/commands/worker.py", "holdfast worker")
def a_run_whose_program_the_worker_does_not_know(bench: Bench) -> None:
    bench.file(PROGRAM, "shop.py")
    graph = StateGraph(dict, name="w").add_node("work", lambda s: {"done": True}).add_edge(START, "work")
    graph.compile(bench.url).submit({}, run_id="r")
    worker = start(bench.folder, "worker", "--store", bench.url)
    assert worker.stderr is not None
    told = next(line for line in worker.stderr if "left to others" in line)
    worker.terminate()
    worker.communicate(timeout=60)
    option = re.search(r"holdfast worker (--app) MODULE:NAME", told)
    assert option is not None, told
    worker = start(bench.folder, "worker", option[1], "shop:graph", "--until-idle", "--store", bench.url)
    said = worker.communicate(timeout=60)
    assert "completed" in bench.holdfast("runs", "status", "r", "--store", bench.url), said


@cures("cli/commands/doctor.py", "holdfast worker")
@cures("cli/commands/fleet.py", "holdfast submit")
def a_run_that_lost_its_worker(bench: Bench) -> None:
    file = bench.file(WAITS)
    bench.holdfast("run", bench.file(FLOW, "other.yaml"), code=1)
    told = bench.holdfast("queue", "list")
    assert "submit one with: holdfast submit WORKFLOW.yaml" in told
    bench.holdfast("submit", file, "--run-id", "r")
    worker = start(bench.folder, "worker")
    until((bench.folder / "begun").exists)
    worker.kill()
    worker.communicate(timeout=60)
    told = bench.holdfast("doctor", code=None)
    (bench.folder / "open").touch()
    assert "lost their worker; holdfast worker resumes them: r" in " ".join(told.split()), told
    bench.holdfast("worker", "--until-idle")
    assert "completed" in bench.holdfast("runs", "status", "r")


@cures("cli/targets.py", "fork")
def a_moment_that_cannot_be_resumed(bench: Bench) -> None:
    bench.holdfast("run", bench.file(FLOW), "--run-id", "r", code=1)
    told = bench.holdfast("resume", "r@0", code=None)
    assert "holdfast fork" in told, told
    (bench.folder / "ready").touch()
    assert "completed" in bench.paste(told, "holdfast fork")


@also
def commands_in_the_inbox_of_a_strangers_run(bench: Bench) -> None:
    (bench.folder / "a b").mkdir()
    path = stranger(bench.folder / "a b", INNOCENT, inbox=(RunCommand("answer", pause="x", by="a stranger"),))
    told = bench.holdfast("import", str(path))
    assert "an inspection of" in told and "an import with trust takes them" in told, told
    assert "a stranger" in bench.holdfast("import", str(path), "--inspect")
    bench.holdfast("import", str(path), "--trust")
    store = open_store("sqlite:///.holdfast/runs.db")
    assert len(store.inbox("r")) == 1
    store.close()


@cures("cli/targets.py", "holdfast resume")
@cures("engine/confirmation.py", "confirm")
def a_strangers_run_and_a_strangers_checkpoint_file(bench: Bench) -> None:
    bench.holdfast("import", str(stranger(bench.folder, INNOCENT)))
    told = bench.holdfast("resume", "r", "--answer", "yes", "--no-interactive", code=2)
    assert "a question" not in bench.paste(told, "holdfast resume")
    assert "completed" in bench.holdfast("runs", "status", "r")

    flow = load_workflow(bench.folder / "w.yaml", text=INNOCENT)
    app = flow.open(bench.url)
    file = bench.folder / "s.pkl"
    app.save_checkpoint(file, {"inputs": {}}, "act", flow.config())
    assert followed(failed(lambda: app.resume(file), ForeignRun), app, "app.resume(").status == "completed"
    told = bench.holdfast("resume", "s.pkl", code=2)
    assert "completed" in bench.paste(told, "holdfast resume")

    bench.holdfast("import", str(bench.folder / "run.holdfast"), "--as", "again", "--store", bench.url)
    told = failed(lambda: app.resume("again", answer="yes"), ForeignRun)
    assert followed(told, app, "app.resume(").status == "paused", "it is confirmed, and waits for its answer"
    assert app.resume("again", answer="yes").status == "completed"


@cures("views/plain.py", "holdfast show")
def values_that_are_too_large_together(bench: Bench) -> None:
    bench.fixture("monkeypatch").setattr(budget, "MOST_TOGETHER", 70_000)
    graph = StateGraph(dict, name="large").add_edge(START, "a")
    graph.add_node("a", lambda s: {f"k{n}": [f"{n}"] * 1000 for n in range(5)})
    graph.compile(bench.url).invoke(run_id="r")
    place = ["--store", bench.url]
    state = json.loads(bench.holdfast("show", "r", "--state", *place))
    left_out = {key: value for key, value in state.items() if not isinstance(value, list)}
    assert left_out and len(left_out) < len(state)
    for key, told in left_out.items():
        command = json.dumps(told, ensure_ascii=False).replace("RUN", "r").replace("KEY", key)
        found = json.loads(bench.holdfast(*_pasted(command, "holdfast show"), *place))
        assert found[key] == [key[1:]] * 1000


@cures("engine/checkpoint_files.py", "use_own_file", "begin_own_run")
def a_definition_and_options_that_are_refused(bench: Bench) -> None:
    file = bench.file(INNOCENT, "own.yaml")
    told = _changed_by_hand(
        bench, "definition", lambda config: config["workflow_file"].update(more="x"), code=1
    )
    told = told.replace("RUN", "definition").replace("FILE", f"{file} --answer yes")
    assert "completed" in bench.paste(told.replace(")", ";"), "holdfast resume")
    told = _changed_by_hand(
        bench, "options", lambda config: config.update({PurePosixPath("workflow_file"): {}}), code=1
    )
    again = bench.holdfast("resume", "options", "--workflow", file, "--answer", "yes", code=1)
    assert "--workflow" not in told + again and "holdfast show RUN" in again
    assert "inputs" in bench.paste(told.replace("RUN", "options").replace(")", ";"), "holdfast show")


@cures("engine/checkpoint_files.py", "use_own_file")
def a_checkpoint_file_with_a_definition_that_is_refused(bench: Bench) -> None:
    flow = load_workflow(bench.folder / "w.yaml", text=INNOCENT)
    config: dict[Any, Any] = {**flow.config(), PurePosixPath("workflow_file"): {}}
    flow.open("memory://").save_checkpoint(bench.folder / "a b.pkl", {"inputs": {}}, "act", config)
    told = bench.holdfast("resume", "a b.pkl", code=1)
    file = bench.file(INNOCENT, "own.yaml")
    assert "completed" in bench.paste(told.replace("FILE", file).replace(")", ";"), "holdfast resume")


@cures("cli/targets.py", "holdfast resume")
def a_definition_that_cannot_be_used(bench: Bench) -> None:
    bench.holdfast("run", bench.file(FLOW), "--run-id", "r", code=1)
    bench.file(FLOW + "  - {name: c, shel: 'true'}\n")
    told = bench.holdfast("resume", "r", code=2)
    assert "did you mean" in told and "--workflow" not in told, "the file is there, and can be corrected"

    source = "workflow: {name: w}\nsteps: 5\n"
    told = _changed_by_hand(
        bench, "broken", lambda config: config["workflow_file"].update(source=source), code=2
    )
    file = bench.file(INNOCENT, "own.yaml")
    assert "completed" in bench.paste(told.replace("FILE", f"{file} --answer yes"), "holdfast resume")


@also
def a_step_of_a_program_that_is_in_doubt(bench: Bench) -> None:
    def pays(state: Any) -> dict[str, Any]:
        if stopping[0]:
            raise KeyboardInterrupt
        return {"log": ["paid again"]}

    for way, log in (("rerun", ["paid again"]), ("skip", [])):
        stopping = [True]
        graph = StateGraph(Log, name=way).add_node("pay", pays, if_interrupted="fail").add_edge(START, "pay")
        app = graph.compile(bench.url)
        failed(lambda app=app: app.invoke({"log": []}, run_id=app.name), KeyboardInterrupt)  # type: ignore[misc]
        stopping[0] = False
        failed(lambda app=app: app.resume(app.name))  # type: ignore[misc]
        told = bench.holdfast("show", way, "--store", bench.url)
        assert followed(told, app, f"app.resume('{way}', if_interrupted='{way}'").state["log"] == log


@also
def a_run_that_failed_with_a_worker(bench: Bench) -> None:
    elsewhere = ["--store", "sqlite:///the others.db"]
    bench.holdfast("submit", bench.file(FLOW), "--run-id", "r", *elsewhere)
    told = bench.holdfast("worker", "--until-idle", *elsewhere)
    (bench.folder / "ready").touch()
    assert "resumes it" in bench.paste(told, "holdfast resume")
    bench.holdfast("worker", "--until-idle", *elsewhere)
    assert "completed" in bench.holdfast("runs", "status", "r", *elsewhere)


@cures("errors.py", "check")
@cures("cli/commands/store.py", "holdfast store fsck")
def a_run_that_is_damaged(bench: Bench) -> None:
    for place in ([], ["--store", "sqlite:///the others.db"]):
        store = open_store(place[-1] if place else "sqlite:///.holdfast/runs.db")
        app = chain("a", "b", "c").compile(store)
        app.invoke(run_id="r")
        app.invoke(run_id="facts")
        damage_entry(store, "r", 3)
        sql(store, "UPDATE runs SET status = 'failed' WHERE run = 'facts'")
        store.close()
        told = bench.holdfast("show", "r", *place, code=1)
        told = bench.holdfast(*_pasted(told, "holdfast store fsck"), code=1)
        assert "a repair writes a new run" in told and "a repair restores it" in told
        assert "this would repair" in bench.holdfast(*_pasted(told, "holdfast store fsck"), code=2)
        bench.holdfast(*_pasted(told, "holdfast store fsck"), "--yes")
        assert "2 runs fine, 1 run damaged and repaired as another" in bench.holdfast("store", "fsck", *place)


@cures("stores/sqlite/writing.py", "repair")
def facts_of_a_run_that_are_damaged(bench: Bench) -> None:
    place = ["--store", bench.url]
    store = open_store(bench.url)
    chain("a", "b").compile(store).invoke(run_id="r")
    sql(store, "UPDATE runs SET status = 'failed' WHERE run = 'r'")
    store.close()
    told = bench.holdfast("show", "r", *place, code=1)
    bench.holdfast(*_pasted(told, "holdfast store fsck"), "--yes")
    assert "completed" in bench.holdfast("runs", "status", "r", *place)

    store = open_store(bench.url)
    (info,), last = store.runs(run="r"), last_entry(store, "r")
    assert last is not None
    change_facts(store, dataclasses.replace(info, status="odd"), last)
    store.close()
    told = bench.holdfast("runs", *place, code=1)
    told = bench.holdfast(*_pasted(told, "holdfast store fsck"), code=1)
    bench.holdfast(*_pasted(told, "holdfast store fsck"), "--yes")
    assert "completed" in bench.holdfast("runs", *place)


@cures("stores/files/store.py", "holdfast store fsck")
def a_folder_of_a_run_that_is_damaged(bench: Bench) -> None:
    place = ["--store", "file:files"]
    store = open_store("file:files")
    chain("a", "b").compile(store).invoke(run_id="r")
    store.close()
    for name in ("run.json", "journal"):
        path = bench.folder / "files" / "r" / name
        path.write_bytes(b"{}" + path.read_bytes()[2:])
    told = call(bench.folder, "runs", *place).stderr
    told = bench.holdfast(*_pasted(told, "holdfast store fsck"), *place, code=1)
    assert "neither its journal nor its run.json says which run it is of" in told


@cures("stores/postgres/schema.py", "migrate")
@cures("stores/postgres/connection.py", "migrate")
@cures("cli/commands/store.py", "holdfast store migrate")
def a_schema_that_is_missing(bench: Bench) -> None:
    server, url = bench.fixture("postgres_server"), bench.fixture("postgres_url")
    schema = url.partition("schema=")[2]
    told = bench.holdfast("store", "migrate", "--check", "--store", url, code=1)
    assert "was created" in bench.paste(told, "holdfast store migrate")

    server.sql("CREATE ROLE cured LOGIN")
    try:
        server.sql(f"DROP SCHEMA {schema} CASCADE")
        theirs = url.replace("postgres@", "cured@")
        told = failed(lambda: open_store(theirs), HoldfastError)
        words = _pasted(told, "holdfast store migrate")
        assert "was created" in bench.holdfast(*words, "--store", url)
        server.sql(f"SELECT {schema}.admit('cured', 'default')")
        bench.holdfast("runs", "--store", theirs)
    finally:
        server.sql("DROP OWNED BY cured; DROP ROLE cured")

    store = open_store(url)
    try:
        server.sql(f"DROP SCHEMA {schema} CASCADE")
        told = failed(lambda: store.runs(), HoldfastError)
        words = _pasted(told, "holdfast store migrate")
        assert "was created" in bench.holdfast(*words, "--store", url)
        assert store.runs() == []
    finally:
        store.close()


@cures("state/types.py", "holdfast.register_type")
def two_types_of_one_name(bench: Bench) -> None:
    def made(place: str) -> Any:
        return type("Twin", (), {"__module__": place})

    how: dict[str, Any] = {"encode": lambda twin: 1, "decode": lambda data: other()}
    holdfast.register_type(made("a"), **how)
    other = made("b")
    told = failed(lambda: holdfast.register_type(other, **how), HoldfastError)
    call = re.search(r"holdfast\.register_type\(Twin, name=\.\.\.\)", told)
    assert call is not None, told
    eval(call[0].replace("...", "'other twin', **how"), {"holdfast": holdfast, "Twin": other, "how": how})
    graph = StateGraph(dict).add_node("a", lambda s: {"twin": other()}).add_edge(START, "a")
    assert type(graph.compile(bench.url).invoke().state["twin"]) is other


@cures("engine/resume.py", "fork")
def a_place_that_is_not_resumed_but_forked(bench: Bench) -> None:
    app = chain("a", "b", name="py").compile(bench.url)
    app.invoke(run_id="r")
    for place in ("r@0", "r@a", "r@-1"):
        told = failed(lambda place=place: app.resume(place), HoldfastError)  # type: ignore[misc]
        call = re.search(r"app\.resume\(app\.fork\('.*'\)\)", told)
        assert call is not None, told
        assert eval(call[0], {"app": app}).state["log"] == ["a", "b"]
    assert "app.fork" not in failed(lambda: app.resume("x@0"), HoldfastError), "there is no run x"

    bench.holdfast("run", bench.file(FLOW), "--run-id", "workflow_file", code=1)
    told = bench.holdfast("resume", "flow@a", "--detach", code=1)
    (bench.folder / "ready").touch()
    assert "completed" in bench.paste(told, "holdfast fork")


ITEMS = (
    "workflow: {name: items}\nsteps:\n"
    "  - {name: each, for_each: {in: [a/b, 'c@d', \"e'f\"], key: '{{ item }}'}, set: {x: '{{ item }}'}}\n"
    "  - {name: last, set: {y: 1}}\n"
)


@cures("engine/time_travel/checkpoints.py", "fork", "rerun")
def an_item_has_no_checkpoint_of_its_own(bench: Bench) -> None:
    def fan(state: Any) -> list[Send]:
        return [Send("each", {"x": key}, key=key) for key in ("a/b", "c@d", "e'f")]

    graph = StateGraph({"x": str, "found": Annotated[list[str], append]}, name="py")
    graph.add_node("each", lambda s: {"found": [s["x"]]}).add_conditional_edges(START, fan)
    app = graph.compile(bench.url)
    app.invoke(run_id="r")
    bench.holdfast("run", bench.file(ITEMS), "--run-id", "items")
    for place in ("each[a/b]", "each[c@d]", "each[e'f]", "each#1[a/b]"):
        told = failed(lambda place=place: app.fork(f"r@{place}"), HoldfastError)  # type: ignore[misc]
        assert app.resume(followed(told, app, "app.fork(")).status == "completed", told
        assert followed(told, app, "app.rerun(").stats.steps_run == 1
        told = bench.holdfast("fork", f"items@{place}", code=1)
        assert "completed" in bench.paste(told, "holdfast fork")
        assert "reused 0 steps and 2 items" in bench.paste(told, "holdfast rerun")


@cures("functions/calls.py", "holdfast.now")
def a_time_that_is_an_argument_of_a_step(bench: Bench) -> None:
    is_down = True

    @holdfast.step
    def fetch(since: str) -> str:
        return since

    def report(take: Callable[[], Any]) -> str:
        found = fetch(str(take()))
        if is_down:
            raise ConnectionError("down")
        return found

    @holdfast.workflow(store=bench.url)
    def varying() -> str:
        return report(time.perf_counter)

    @holdfast.workflow(store=bench.url)
    def recorded() -> str:
        return report(holdfast.now)

    failed(lambda: varying.run(run_id="v"))
    assert "holdfast.now()" in failed(lambda: varying.run(run_id="v"))
    failed(lambda: recorded.run(run_id="r"))
    is_down = False
    assert recorded.run(run_id="r")


@cures("functions/calls.py", "rerun")
def a_step_of_a_function_with_other_arguments(bench: Bench) -> None:
    now, is_down = ["a"], True

    @holdfast.step
    def fetch(name: str) -> str:
        return name.upper()

    @holdfast.workflow(store=bench.url)
    def report() -> str:
        found = fetch(now[0])
        if is_down:
            raise ConnectionError("down")
        return found

    failed(lambda: report.run(run_id="r"))
    now[0], is_down = "b", False
    told = failed(lambda: report.run(run_id="r"))
    rerun = followed(told, report.app, "app.rerun(")
    assert report.run(run_id=rerun.run_id) == "B"


@cures("functions/workflows.py", "answer", "resume")
def a_function_that_waits(bench: Bench) -> None:
    @holdfast.workflow(store=bench.url)
    def asking() -> str:
        return str(holdfast.ask("Publish?", choices=["yes", "no"]))

    told = failed(lambda: asking.run(run_id="r"), RunPaused)
    call = told[told.index("asking.resume(") :].replace("…", "'yes'")
    assert eval(call, {"asking": asking}) == "yes"
    assert asking.run(run_id="r") == "yes"

    is_pausing = True

    @holdfast.workflow(store=bench.url)
    def paused() -> int:
        if is_pausing:
            paused.app.pause("p")
        return one()

    @holdfast.step
    def one() -> int:
        return 1

    told = failed(lambda: paused.run(run_id="p"), RunPaused)
    is_pausing = False
    assert followed(told, paused.app, "app.resume(").status == "completed"
    assert paused.run(run_id="p") == 1


@cures("functions/checks.py", "holdfast.sleep", "holdfast.ask")
def a_function_that_does_by_itself_what_is_to_be_recorded(bench: Bench) -> None:
    module = """
import time
from holdfast import workflow

@workflow
def wait() -> str:
    time.sleep(0)
    return "yes"

@workflow
def talk() -> str:
    return input("Go on?")
"""
    (bench.folder / "program.py").write_text(module)
    told = bench.holdfast("validate", "program:wait", "program:talk", "--strict", code=None)
    for named, do in (("holdfast.sleep()", "time.sleep(0)"), ("holdfast.ask()", 'input("Go on?")')):
        assert named in told
        module = module.replace(do, named.replace("()", "(0)" if "sleep" in named else '("Go on?")'))
    (bench.folder / "program.py").write_text(module.replace("import time", "import holdfast"))
    told = call(bench.folder, "validate", "program:wait", "program:talk").stdout
    assert "holdfast.sleep" not in told and "holdfast.ask" not in told


def _changed_by_hand(bench: Bench, run: str, change: Callable[[dict[Any, Any]], object], *, code: int) -> str:
    """What is said about a run whose config somebody changed who can write to the store."""
    given, own = paused_run(bench.folder, INNOCENT, run=run), open_store("sqlite:///.holdfast/runs.db")
    with_config(given, bench.folder, change, run)
    copy_runs(given, own)
    own.close()
    return bench.holdfast("resume", run, "--answer", "yes", code=code)


def _pasted(told: str, begin: str) -> list[str]:
    """The words of the command that a text names from `begin` on, without the program's."""
    return shlex.split(re.split(r"[`;,\n]", told[told.index(begin) :])[0])[1:]


def test_a_value_that_a_script_may_not_have_is_handed_over_as_the_message_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, capsys)
    top = "workflow: {name: env, inputs: {x: {type: string, default: hi}}}\nsteps:\n  - name: a\n"
    told = bench.holdfast("run", bench.file(top + "    shell: 'test \"{{ inputs.x }}\" = hi'\n"), code=2)
    shape = re.search(r'as in (shell: \{.*"\}\}), and write "\$NAME"', told)
    assert shape is not None, told
    cured = shape[1].replace("…", "'test \"$NAME\" = hi'", 1).replace("…", "inputs.x", 1)
    assert "completed" in bench.holdfast("run", bench.file(f"{top}    {cured}\n"))
    told = bench.holdfast("run", bench.file(top + "    env: {X: 1}\n    shell: 'true'\n"), code=2)
    assert "it belongs inside `shell`" in told and "did you mean" not in told


@pytest.mark.parametrize("story", dict.fromkeys(CURES.values()), ids=lambda story: story.__name__)
def test_the_way_out_that_a_message_names_works(
    story: Cure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    story(Bench(tmp_path, capsys, request))


def test_every_call_and_command_that_a_message_names_is_tried() -> None:
    named = {(module, remedy) for module, remedy in _named()}

    assert named - {*CURES, *ELSEWHERE} == set(), "add a story that follows it"
    assert {key for key in {*CURES, *ELSEWHERE} if key[0]} - named == set(), "no message names that any more"
    assert {action for _, action in named} >= {*IN_PYTHON, *REMEDIES}, "no error names that"


def test_every_option_that_a_message_names_is_one_of_the_commands() -> None:
    known = {
        option
        for command in _commands()
        for param in command.params
        for option in param.opts + param.secondary_opts
    }
    named = {
        option
        for module, text in _texts()
        if module.startswith(("cli/", "capsules/", "engine/", "views/"))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text)
    }

    assert named - known - {"--help", "--no-optional-locks", "--porcelain"} == set(), (
        "the last two are of git"
    )


def _commands() -> Iterator[Any]:
    import click

    todo: list[Any] = [commands]
    while todo:
        command = todo.pop()
        yield command
        if isinstance(command, click.Group):
            context = click.Context(command)
            todo += [command.get_command(context, name) for name in command.list_commands(context)]


def _named() -> Iterator[tuple[str, str]]:
    for module, text in _texts():
        for found in REMEDY.findall(text) if module not in ("errors.py", "cli/errors.py") else ():
            yield module, next(filter(None, found))
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy" and node.args:
                yield path.relative_to(SOURCE).as_posix(), ast.literal_eval(node.args[0])


@functools.cache
def _texts() -> list[tuple[str, str]]:
    """Every text of the package that is no docstring, with its module; values in it are `…`."""
    return [
        (path.relative_to(SOURCE).as_posix(), text)
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(SOURCE / "testing")
        for text in _texts_of(ast.parse(path.read_text()))
    ]


def _texts_of(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    parts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value
