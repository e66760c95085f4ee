"""Runs from outside: definition and options are shown completely, and nothing runs before the confirmation."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pty
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import HoldfastError, open_store
from holdfast.capsules import import_run, make_key_pair
from holdfast.cli.options import RunOptions
from holdfast.engine.checkpoint_files import check_config
from holdfast.engine.commands.inbox import RunCommand, write_message
from holdfast.engine.submission import requeue
from holdfast.engine.transfer import copy_runs
from holdfast.errors import CodecError, ForeignRun
from holdfast.journal.copying import change_facts, last_entry
from holdfast.journal.journal import Journal
from holdfast.journal.provenance import Provenance
from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.views.plain import escaped, plain, scalar, text_line, tree_lines
from holdfast.views.timeline import timeline
from holdfast.workflows.foreign import source_lines
from holdfast.workflows.workflow import load_workflow
from tests.capsules.samples import exported
from tests.cli.in_process import Call, caller
from tests.graphs import chain
from tests.processes import unmeasured

EVIL = """\
workflow: {name: w}
steps:
  - {name: ask, ask: "Go on?"}
  - {name: act, shell: "touch sprung"}
"""
INNOCENT = EVIL.replace("touch sprung", "true")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///runs.db")
    return caller(capsys)


def paused_run(
    folder: Path,
    text: str,
    *,
    options: RunOptions | None = None,
    inbox: tuple[RunCommand, ...] = (),
    run: str = "r",
) -> Store:
    """A foreign store with a run of a workflow file, which waits for an answer, and that file's path."""
    there = folder / "there"
    there.mkdir(exist_ok=True)
    (there / "w.yaml").write_text(text)
    store, flow = open_store("memory://"), load_workflow(there / "w.yaml")
    outcome = flow.open(store).invoke(
        flow.begin({}), run_id=run, config=(options or RunOptions()).config(flow)
    )
    assert outcome.status == "paused"
    (there / "w.yaml").unlink()
    for wish in inbox:
        store.post(run, write_message(wish))
    return store


def stranger(folder: Path, text: str = EVIL, **how: Any) -> Path:
    return exported(paused_run(folder, text, **how), "r", folder)


def redefinition(folder: Path, text: str) -> RunCommand:
    """A message that lets a run go on with another definition."""
    (folder / "other.yaml").write_text(text)
    flow = load_workflow(folder / "other.yaml")
    outline = flow.open("memory://")._settings.outline
    definition = {"workflow": flow.name, "outline": outline, "config": flow.config(), "names": {}}
    (folder / "other.yaml").unlink()
    return RunCommand("replan", by="a stranger", definition=definition)


# 1. What waits in the inbox of a stranger's run.


def test_commands_in_a_strangers_inbox_are_shown_and_left_out(call: Call, tmp_path: Path) -> None:
    injected = [RunCommand("answer", pause="ask", value=Codec().encode("yes"), by="a stranger")]
    injected.append(RunCommand("skip", step="act", reason="the stranger's reason"))
    injected.append(redefinition(tmp_path, INNOCENT.replace("true", "touch sprung")))
    path = stranger(tmp_path, INNOCENT, inbox=tuple(injected))

    shown = call("import", "--inspect", str(path)).out
    done = call("import", str(path))

    for text in ("kind: answer", "the stranger's reason", "kind: replan", "touch sprung"):
        assert text in shown, text
    assert done.code == 0 and "3 commands that wait in its inbox left out" in done.err
    resumed = call("resume", "r", "--trust", "--no-interactive")
    assert resumed.code == 4, "nobody answered it"
    assert call("resume", "r", "--answer", "yes").code == 0 and not (tmp_path / "sprung").exists()


def test_commands_of_a_trusted_capsule_are_taken_along(tmp_path: Path) -> None:
    path = stranger(
        tmp_path, INNOCENT, inbox=(RunCommand("answer", pause="ask", value=Codec().encode("yes")),)
    )
    store = open_store("memory://")

    import_run(store, path)
    assert not store.inbox("r")
    again = import_run(store, path, trust=True)

    assert again.outcome == "unchanged" and again.is_confirmed and len(store.inbox("r")) == 1


# 2. An entry among its files that cannot be read.


def test_a_file_that_cannot_be_read_is_shown_as_it_is_and_hides_nothing(call: Call, tmp_path: Path) -> None:
    store = paused_run(tmp_path, EVIL)
    path = with_config(
        store,
        tmp_path,
        lambda config: config["workflow_file"]["files"].update({"x.yaml": {"source": "a: [1"}}),
    )

    shown = call("import", "--inspect", str(path)).out

    assert "cannot be resumed" not in shown and "none of which" not in shown
    assert "act (shell): runs a shell command" in shown and "shell: touch sprung" in shown
    assert "a: [1" in shown and "x.yaml:  (unreadable): unknown" in shown


def with_config(store: Store, folder: Path, change: Any, run: str = "r") -> Path:
    """A capsule of a run whose config an attacker changed."""
    from holdfast.journal.records import Resumed
    from holdfast.journal.writer import Writer

    journal, codec = Journal(store), Codec()
    loaded = journal.load(journal.info(run), codec)
    config = codec.decode(loaded.run.config)
    change(config)
    status = loaded.info.status
    writer = Writer(journal, loaded, codec, durable=True)
    from holdfast.journal.records import RunEnded

    writer.record(Resumed("", config=codec.encode(config)))
    writer.record(RunEnded(status))
    writer.flush()
    return exported(store, run, folder)


# 3. Steps that write files.


def test_a_checkpoint_step_is_told_to_write_files_and_writes_none_before_it_is_trusted(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").write_text("precious")
    text = EVIL.replace('shell: "touch sprung"', "checkpoint: {save: ~/precious, outside: true}")
    path = stranger(tmp_path, text)

    shown = call("import", "--inspect", str(path)).out
    call("import", str(path))
    refused = call("resume", "r", "--answer", "yes")

    assert (
        "act (checkpoint): writes ~/precious, anywhere on this machine" in shown
        and "save: ~/precious" in shown
    )
    assert "only compute" not in shown and refused.code == 2 and "save: ~/precious" in refused.err
    assert (tmp_path / "home" / "precious").read_text() == "precious"


def test_only_kinds_that_are_known_to_be_harmless_are_told_to_be(call: Call, tmp_path: Path) -> None:
    path = stranger(tmp_path, EVIL.replace('shell: "touch sprung"', "set: {x: 1}"))

    assert "all of which only compute, ask or wait" in call("import", "--inspect", str(path)).out


# 4. A file on this machine under the path that the capsule names.


def test_the_workflow_in_the_capsule_runs_and_not_a_file_at_its_path(call: Call, tmp_path: Path) -> None:
    keys = make_key_pair(tmp_path / "key")
    path = exported(paused_run(tmp_path, INNOCENT), "r", tmp_path, sign=keys.private)
    (tmp_path / "there" / "w.yaml").write_text(EVIL)

    assert call("import", str(path), "--trust", str(keys.public)).code == 0
    done = call("resume", "r", "--answer", "yes")

    assert done.code == 0, done.err
    assert not (tmp_path / "there" / "sprung").exists() and not (tmp_path / "sprung").exists()


def test_a_sub_workflow_that_is_not_in_the_capsule_is_not_looked_for_on_disk(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "sub.yaml").write_text("workflow: {name: s}\nsteps: [{name: x, set: {a: 1}}]\n")
    store = paused_run(tmp_path, EVIL.replace('shell: "touch sprung"', "workflow: sub.yaml"))
    path = with_config(store, tmp_path, lambda config: config["workflow_file"]["files"].clear())
    (tmp_path / "there" / "sub.yaml").write_text(EVIL)
    call("import", str(path))

    done = call("resume", "r", "--answer", "yes", "--trust")

    assert done.code == 2 and "sub.yaml" in done.err and not (tmp_path / "there" / "sprung").exists()


# 5. What is shown is all there is.

COMPLETE = """\
workflow:
  name: w
  vars: {place: "${SOMEWHERE:-the-default-of-a-variable}"}
  hooks: {on_start: "echo the-hook"}
  checkpoint: {retention: {max_age_days: 3}}
steps:
  - {name: ask, ask: "Go on?"}
  - name: sh
    shell: {run: "cat", stdin: the-stdin, env: {A: the-env}}
  - {name: py, python: "os:getcwd", with: {x: the-argument}, executor: "dask:tcp://the-scheduler:1"}
  - name: llm
    agent: {model: "openai:x", prompt: hello, tools: ["os:the_tool"], base_url: "http://the-base-url"}
  - {name: file, file: {create: the-path, content: the-content}}
  - {name: edit, file: {edit: the-edited, changes: [{replace: the-old, with: the-new}]}}
  - {name: kept, json_state: {merge: the-state, state: {a: the-datum}}}
  - name: db
    sql: {url: "sqlite:///the.db", queries: [DELETE FROM the_table, {query: "SELECT :a", params: {a: the-param}}]}
  - name: loop
    while_loop: {condition: "'the-condition' != ''", steps: [{name: within, shell: echo the-inner-command}]}
  - {name: long, shell: "echo LONG the-end-of-a-long-text"}
""".replace("LONG", "x" * 400)


def test_nothing_of_a_workflow_is_left_out_of_what_is_shown(call: Call, tmp_path: Path) -> None:
    from holdfast.workflows.foreign import effects_of

    flow = {"path": "/w.yaml", "digest": "", "source": COMPLETE, "included": {}, "files": {}}
    shown = "\n".join(source_lines({"workflow_file": flow, "run": {"skip_gates": True}}))

    for text in (
        "${SOMEWHERE:-the-default-of-a-variable}", "echo the-hook", "the-stdin", "the-env", "the-argument",
        "dask:tcp://the-scheduler:1", "os:the_tool", "http://the-base-url", "the-end-of-a-long-text",
        "skip_gates: true", "max_age_days: 3", "the-path", "the-content", "the-edited", "the-old", "the-new",
        "the-state", "the-datum", "sqlite:///the.db", "DELETE FROM the_table", "the-param", "the-condition",
        "the-inner-command",
    ):  # fmt: skip
        assert text in shown, text
    reach = {(effect.name, effect.kind) for effect in effects_of(flow) if effect.reach}
    assert {("py", "executor"), ("checkpoint", "retention"), ("on_start", "hook"), ("llm", "agent")} <= reach
    assert {("file", "file"), ("kept", "json_state"), ("db", "sql"), ("within", "shell")} <= reach


words = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
trees = st.recursive(
    words | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(words, trees, min_size=1, max_size=4), trees)
def test_every_text_of_a_workflow_file_and_its_options_is_in_what_is_shown(
    data: dict[str, Any], options: Any
) -> None:
    """And no character of it does anything to a terminal."""
    source = json.dumps(data, ensure_ascii=False)
    lines = source_lines({"workflow_file": {"path": "w", "source": source}, "run": options})

    shown = "\n".join(lines)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    is_read = "cannot be read as a workflow" not in shown
    for text in texts_of([data if is_read else source, options]):
        for line in text.split("\n"):
            assert escaped(line) in shown, line
    for key in keys_of([data if is_read else {}, options]):
        assert tree_lines({key: 0})[0].removesuffix(" 0") in shown, key


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts_of(item)]
    return (
        [text for item in value for text in texts_of(item)]
        if isinstance(value, list)
        else ([value] if isinstance(value, str) else [])
    )


def keys_of(value: Any) -> list[str]:
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [*value] if isinstance(value, dict) else []
    return [*own, *(key for item in inner for key in keys_of(item))]


def test_stored_options_of_a_stranger_are_shown_before_they_hold(call: Call, tmp_path: Path) -> None:
    path = stranger(tmp_path, EVIL, options=RunOptions(skip_gates=True))
    call("import", str(path))

    refused = call("resume", "r")

    assert refused.code == 2 and "skip_gates: true" in refused.err and not (tmp_path / "sprung").exists()
    assert "capsule run.holdfast, signed by nobody, not confirmed by anybody" in call("show", "r").out
    told = call("show", "r", "--json").json["provenance"]
    assert told["source"] == "capsule run.holdfast" and told["confirmed_by"] is None


# 6. Checkpoint files with a workflow in them.


def test_a_checkpoint_file_with_a_workflow_runs_nothing_before_it_is_trusted(
    call: Call, tmp_path: Path
) -> None:
    store = open_store("memory://")
    flow = load_workflow(
        tmp_path / "w.yaml",
        text=EVIL.replace(
            "workflow: {name: w}",
            'workflow: {name: w, checkpoint: {path: "made"}, hooks: {on_start: "touch hooked"}}',
        ),
    )
    flow.open(store).save_checkpoint(tmp_path / "s.pkl", {"inputs": {}}, "act", RunOptions().config(flow))

    refused = call("resume", "s.pkl")

    assert refused.code == 2 and "shell: touch sprung" in refused.err and "--trust" in refused.err
    assert not any((tmp_path / name).exists() for name in ("sprung", "hooked", "made"))
    with pytest.raises(ForeignRun, match="trust=True") as raised:
        flow.open(store).resume(tmp_path / "s.pkl")
    assert "touch sprung" in raised.value.disclosure

    assert call("resume", "s.pkl", "--trust").code == 0 and (tmp_path / "sprung").exists()
    (info,) = open_store("sqlite:///runs.db").runs()
    origin = Provenance.of(info)
    assert origin is not None and origin.source == "checkpoint file s.pkl" and origin.is_begun


def test_of_a_checkpoint_file_with_a_workflow_file_of_ones_own_only_the_state_is_taken(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(INNOCENT)
    flow = load_workflow(tmp_path / "w.yaml", text=EVIL)
    flow.open("memory://").save_checkpoint(
        tmp_path / "s.pkl", {"inputs": {}}, "act", RunOptions(skip_gates=True).config(flow)
    )

    done = call("resume", "s.pkl", "--workflow", "own.yaml", "--json")

    assert done.code == 0 and not (tmp_path / "sprung").exists()
    config = call("show", done.json["run_id"], "--json", "--state").json
    assert "touch sprung" not in json.dumps(config)


# Confirming.


def test_python_refuses_a_run_from_outside_and_tells_how_to_confirm_it(tmp_path: Path) -> None:
    source, store = open_store("memory://"), open_store("memory://")
    graph = chain("a", "b", name="w")
    graph.compile(source, interrupt_before=["b"]).invoke({"n": 1}, run_id="r", config={"secret": "an option"})
    import_run(store, exported(source, "r", tmp_path))
    app = graph.compile(store, interrupt_before=["b"])

    with pytest.raises(
        ForeignRun, match=r"signed by nobody\), and nobody has confirmed it.*trust=True"
    ) as raised:
        app.resume("r")
    for refused in (
        lambda: app.invoke(checkpoint="r"),
        lambda: asyncio.run(app.aresume("r")),
        lambda: asyncio.run(app.aexecute("r")),
        lambda: app.rerun("r", "a"),
        lambda: app.resume(app.checkpoints("r")[0].id),
        lambda: app.invoke({"n": 1}, reuse="r"),
        lambda: app.requeue("r"),
        lambda: requeue(Journal(store), "r"),
        lambda: app.resume("r", trust="another digest"),
    ):
        with pytest.raises(ForeignRun):
            refused()

    assert "an option" in raised.value.disclosure
    assert app.resume("r", trust=raised.value.digest).status == "completed"
    told = [moment for moment in timeline(Journal(store), "r") if moment.type == "run.confirm"]
    assert len(told) == 1 and told[0].data["digest"] == raised.value.digest and "@" in told[0].data["by"]
    assert Provenance.of(store.runs(run="r")[0]).source == "capsule run.holdfast"  # type: ignore[union-attr]


def test_a_fork_of_a_run_from_outside_is_one_itself(store: Store, tmp_path: Path) -> None:
    source = open_store("memory://")
    graph = chain("a", "b", name="w")
    graph.compile(source, interrupt_before=["b"]).invoke({"n": 1}, run_id="r")
    import_run(store, exported(source, "r", tmp_path))
    app = graph.compile(store, interrupt_before=["b"])

    fork = app.fork("r")

    with pytest.raises(ForeignRun):
        app.resume(fork)
    with pytest.raises(ForeignRun):
        app.promote(fork)
    assert app.resume(fork, trust=True).status == "paused", "gates of a fork are closed again"
    assert app.resume(fork).status == "completed", "it was confirmed"
    with pytest.raises(ForeignRun):
        app.resume("r")


def test_what_changed_since_it_was_shown_has_to_be_confirmed_again(tmp_path: Path) -> None:
    source, store = open_store("memory://"), open_store("memory://")
    graph = chain("a", "b", name="w")
    graph.compile(source, interrupt_before=["b"]).invoke({"n": 1}, run_id="r", config={"x": 1})
    early = exported(source, "r", tmp_path)
    import_run(store, early)
    app = graph.compile(store, interrupt_before=["b"])
    with pytest.raises(ForeignRun) as shown:
        app.resume("r")
    late = with_config(source, tmp_path, lambda config: config.update(x=2))
    assert import_run(store, late).outcome == "updated"

    with pytest.raises(ForeignRun, match="changed since it was shown"):
        app.resume("r", trust=shown.value.digest)

    import_run(store, late, trust=True)
    assert app.resume("r").status == "completed", "it was confirmed when it was imported"


def test_going_back_to_what_nobody_confirmed_has_to_be_confirmed(tmp_path: Path) -> None:
    """An untrusted history may hold other definitions than the one that was shown."""
    source, store = open_store("memory://"), open_store("memory://")
    graph = chain("a", "b", name="w")
    graph.compile(source, interrupt_before=["b"]).invoke({"n": 1}, run_id="r", config={"evil": True})
    first = graph.compile(source).checkpoints("r")[0].id
    path = with_config(source, tmp_path, lambda config: config.clear())
    import_run(store, path, trust=True)
    app = graph.compile(store, interrupt_before=["b"])
    assert app.resume("r").status == "completed"

    with pytest.raises(ForeignRun, match="changed since it was confirmed"):
        app.resume(first)
    assert app.resume(first, trust=True).status in ("completed", "paused")


def test_a_trusted_signature_confirms_and_a_forged_record_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.journal.records import Confirmed
    from holdfast.journal.writer import Writer

    keys, source = make_key_pair(tmp_path / "key"), open_store("memory://")
    graph = chain("a", "b", name="w")
    app = graph.compile(source, interrupt_before=["b"])
    app.invoke({"n": 1}, run_id="r")
    journal = Journal(source)
    loaded = journal.load(journal.info("r"), Codec())
    writer = Writer(journal, loaded, Codec(), durable=True)
    writer.record(Confirmed("", "the stranger", "capsule", ""))
    writer.flush()
    path = exported(source, "r", tmp_path, sign=keys.private)
    one, other = open_store("memory://"), open_store("memory://")

    import_run(one, path)
    with pytest.raises(ForeignRun):
        graph.compile(one).resume("r")
    monkeypatch.setenv("HOLDFAST_TRUSTED", str(keys.public))
    import_run(other, path)

    assert graph.compile(other).resume("r").status == "completed", "one's own capsule needs no word"


def test_one_s_own_run_that_a_stranger_continues_is_from_outside(tmp_path: Path) -> None:
    mine, theirs = open_store("memory://"), open_store("memory://")
    graph = chain("a", "b", "c", name="w")
    app = graph.compile(mine, interrupt_before=["b", "c"])
    app.invoke({"n": 1}, run_id="r")
    import_run(theirs, exported(mine, "r", tmp_path), trust=True)
    assert import_run(mine, exported(mine, "r", tmp_path)).is_confirmed, "it is one's own"
    graph.compile(theirs, interrupt_before=["b", "c"]).resume("r")

    assert import_run(mine, exported(theirs, "r", tmp_path)).outcome == "updated"

    with pytest.raises(ForeignRun):
        app.resume("r")


def test_copies_keep_where_a_run_came_from_and_can_be_a_strangers(tmp_path: Path) -> None:
    source, one, other = (open_store("memory://") for _ in range(3))
    graph = chain("a", "b", name="w")
    graph.compile(source, interrupt_before=["b"]).invoke({"n": 1}, run_id="r")
    source.post("r", write_message(RunCommand("skip", step="b")))

    copy_runs(source, one)
    assert graph.compile(one).resume("r").status == "completed", "between one's own stores nothing is asked"

    (copied,) = copy_runs(source, other, foreign=True).runs
    assert not other.inbox("r") and copied.note == "commands that wait in its inbox were left out: 1"
    with pytest.raises(ForeignRun, match=r"came from outside \(store memory"):
        graph.compile(other).resume("r")
    again = open_store("memory://")
    copy_runs(other, again)
    with pytest.raises(ForeignRun):
        graph.compile(again).resume("r")
    with pytest.raises(HoldfastError, match="copied, not moved"):
        copy_runs(source, again, foreign=True, move=True)


@pytest.mark.parametrize(("said", "code"), [("y", 0), ("", 2)])
def test_somebody_at_a_terminal_is_shown_it_and_asked(said: str, code: int, tmp_path: Path) -> None:
    path = stranger(tmp_path, EVIL)
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    import_run(store, path)
    store.close()
    near, far = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "resume",
        "r",
        "--answer",
        "yes",
        "--store",
        "sqlite:///runs.db",
    ]
    os.write(near, f"{said}\n".encode())

    with subprocess.Popen(
        command, cwd=tmp_path, env=unmeasured(), stdin=far, stdout=far, stderr=subprocess.PIPE, text=True
    ) as process:
        _, err = process.communicate(timeout=120)
    os.close(far)
    os.close(near)

    assert process.returncode == code, err
    assert "shell: touch sprung" in err and "[y/N]" in err
    assert (tmp_path / "there" / "sprung").exists() == (code == 0) or (tmp_path / "sprung").exists() == (
        code == 0
    )


def test_a_worker_takes_no_run_from_outside_that_nobody_confirmed(call: Call, tmp_path: Path) -> None:
    path = stranger(tmp_path, EVIL)
    call("import", str(path))

    refused = call("resume", "r", "--detach", "--answer", "yes")
    answered = call("answer", "r", "ask=yes")
    worked = call("worker", "--until-idle")

    assert refused.code == 2 and "shell: touch sprung" in refused.err and answered.code == 0
    assert worked.code == 0 and not list(tmp_path.rglob("sprung"))
    assert call("resume", "r", "--detach", "--trust").code == 0
    assert call("worker", "--until-idle").code == 0 and list(tmp_path.rglob("sprung"))


def test_a_worker_leaves_a_queued_run_from_outside_alone_and_says_why(call: Call, tmp_path: Path) -> None:
    """Nothing here queues one; a store that somebody wrote to by hand may hold it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "code.py").write_text("def act():\n    pass\n")
    path = stranger(tmp_path, EVIL.replace('shell: "touch sprung"', 'python: "code.py:act"'))
    (tmp_path / "there" / "code.py").write_text("open('sprung', 'w')\ndef act():\n    pass\n")
    call("import", str(path))
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    (info,), last = store.runs(run="r"), last_entry(store, "r")
    assert last is not None
    change_facts(store, dataclasses.replace(info, queue="default", status="queued"), last)
    store.close()

    worked = call("worker", "--until-idle", "--json")

    assert worked.code == 0 and "nobody has confirmed it" in worked.out + worked.err
    assert not list(tmp_path.rglob("sprung"))


# What is shown is what runs.

INCLUDING = EVIL.replace('"touch sprung"', "!file cmd.txt")


def with_odd_keys(store: Store, folder: Path, where: str) -> Path:
    """A capsule of a run whose config has a key beside another one that looks alike."""

    def change(config: dict[Any, Any]) -> None:
        harmless = {**config["workflow_file"], "source": INNOCENT}
        if where == "config":
            config[PurePosixPath("workflow_file")] = harmless
        elif where == "included":
            config["workflow_file"]["included"][PurePosixPath("cmd.txt")] = "echo hello\n"
        elif where == "files":
            config["workflow_file"]["files"][""] = {"source": INNOCENT, "included": {}}
        elif where == "source":
            config["workflow_file"]["source"] = PurePosixPath("touch sprung")
        elif where == "unknown":
            config["workflow_file"]["more"] = "x"
        else:
            deep: Any = "touch sprung"
            for _ in range(70):
                deep = [deep]
            config["options"] = deep

    return with_config(store, folder, change)


@pytest.mark.parametrize("where", ["config", "included", "files", "source", "unknown", "deep"])
def test_a_definition_with_keys_that_look_alike_is_refused_by_every_way_in(
    where: str, call: Call, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "cmd.txt").write_text("touch sprung")
    store = paused_run(tmp_path, INCLUDING)
    path = with_odd_keys(store, tmp_path, where)
    copy_runs(store, open_store(f"sqlite:///{tmp_path / 'runs.db'}"))

    for refused in (
        call("import", "--inspect", str(path)),
        call("import", str(path), "--trust", "--store", "sqlite:///other.db"),
        call("import", str(path), "--store", "sqlite:///other.db"),
        call("resume", "r", "--answer", "yes", "--trust"),
        call("resume", "r", "--answer", "yes"),
        call("fork", "r", "--run"),
    ):
        assert refused.code not in (0, 4) and "the saved definition is refused" in refused.err, refused
    assert not list(tmp_path.rglob("sprung"))


def test_a_checkpoint_file_with_keys_that_look_alike_is_refused(call: Call, tmp_path: Path) -> None:
    flow = load_workflow(tmp_path / "w.yaml", text=EVIL)
    config: dict[Any, Any] = RunOptions().config(flow)
    config[PurePosixPath("workflow_file")] = {**config["workflow_file"], "source": INNOCENT}
    flow.open("memory://").save_checkpoint(tmp_path / "s.pkl", {"inputs": {}}, "act", config)

    refused = call("resume", "s.pkl", "--trust")

    assert refused.code == 1 and "config has the key PurePosixPath('workflow_file')" in refused.err
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(CodecError, match="the saved definition is refused"):
        flow.open("memory://").resume(tmp_path / "s.pkl", trust=True)


def test_a_run_with_a_definition_that_could_not_be_resumed_is_not_started(tmp_path: Path) -> None:
    flow = load_workflow(tmp_path / "w.yaml", text=EVIL)

    with pytest.raises(CodecError, match=r"config\['x'\] has the key 1, a int"):
        flow.open("memory://").invoke({"inputs": {}}, config={**flow.config(), "x": {1: 2}})


class Text(str):
    """A text of another type."""


tricky = st.text(st.sampled_from('a"\\x1b:- |\n\t\x1b(){}[]0.é\u200b'), max_size=5)
odd = (
    tricky
    | st.sampled_from(["true", "null", "1", "1.0", "nan", "-1", "()", "[]", "{}", "0x1", "\\x1b", "\x1b"])
    | st.sampled_from([True, False, None, 1, 1.0, 0, -1, float("nan"), float("inf"), b"a", (), PurePosixPath("a")])
    | tricky.map(PurePosixPath)
    | tricky.map(Text)
)  # fmt: skip
keys = tricky | st.sampled_from(
    [1, True, 1.0, None, float("nan"), PurePosixPath("a"), Text("a"), b"a", "a", "1"]
)
odd_trees = st.recursive(
    odd,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(keys, inner, max_size=2)
    ),
    max_leaves=4,
)


def typed(value: Any) -> str:
    """Return a value as unambiguous text, independent of the code under test."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{typed(key)}: {typed(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(typed, value))}]"
    return f"{type(value).__name__} {value!r}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(odd_trees, min_size=20, max_size=60))
def test_two_values_are_never_shown_by_the_same_lines(values: list[Any]) -> None:
    shown: dict[tuple[str, ...], str] = {}
    for value in values:
        lines = tuple(tree_lines({"x": value}))
        assert shown.setdefault(lines, typed(value)) == typed(value)
        assert all(char.isprintable() or char == "\t" for line in lines for char in line)


def is_text(value: Any) -> bool:
    return type(value) is str


def is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(is_text(key) and is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def are_files(files: dict[Any, Any]) -> bool:
    """Whether each is a file of the definition: it has a name, its text, and texts that it includes."""
    return all(
        name
        and type(file) is dict
        and set(file) <= {"source", "included"}
        and is_text(file.get("source", ""))
        and type(included := file.get("included", {})) is dict
        and all(map(is_text, included.values()))
        for name, file in files.items()
    )


some_files = st.dictionaries(
    tricky,
    st.fixed_dictionaries(
        {"source": tricky}, optional={"included": st.dictionaries(tricky, tricky, max_size=2)}
    ),
    max_size=2,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(tricky, tricky, max_size=3) | st.dictionaries(keys, odd, max_size=3),
    some_files | st.dictionaries(keys, odd | odd_trees, max_size=3),
    tricky | odd_trees,
)
def test_a_definition_is_refused_or_every_value_of_it_is_shown(
    included: dict[Any, Any], files: dict[Any, Any], options: Any
) -> None:
    flow = {"path": "/w.yaml", "digest": "", "source": INNOCENT, "included": included, "files": files}
    config = {"workflow_file": flow, "run": options}
    try:
        check_config(config)
    except CodecError:
        assert not is_plain(config) or not all(map(is_text, included.values())) or not are_files(files)
        return
    assert is_plain(config) and all(map(is_text, included.values())) and are_files(files)
    lines = source_lines(config)
    shown = "\n".join(lines)
    of_files = [text for file in files.values() for text in file.get("included", {}).values()]
    for text in [*included.values(), *of_files]:
        assert all(text_line(line) in shown for line in text.split("\n")) or scalar(text) in shown
    assert all(line in lines for line in tree_lines({"options": {"run": options}}))


def test_keys_that_are_the_same_as_text_hide_none_of_each_other() -> None:
    shown = plain({"a": 1, PurePosixPath("a"): 2, 1: 3, "1": 4, "a (pathlib.PurePosixPath)": 5})

    assert sorted(shown.values()) == [1, 2, 3, 4, 5] and shown["a"] == 1 and shown["1"] == 4


def test_a_strangers_options_are_not_hidden_by_the_names_of_ones_own_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(INNOCENT)
    path = with_config(
        paused_run(tmp_path, EVIL),
        tmp_path,
        lambda config: config.update({"your own workflow file": "theirs"}),
    )
    call("import", str(path))

    refused = call("resume", "r", "--workflow", "own.yaml")

    assert refused.code == 2 and "theirs" in refused.err and "your own workflow file: own.yaml" in refused.err


# A confirmation covers what was shown, and nothing else.

TWICE = """\
workflow: {name: w}
steps:
  - {name: ask, ask: "Go on?"}
  - {name: again, ask: "Really?"}
  - {name: act, shell: "touch sprung"}
"""


def test_a_run_confirmed_with_ones_own_file_goes_on_with_it_and_never_with_the_strangers(
    call: Call, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(TWICE.replace("touch sprung", "touch mine"))
    call("import", str(stranger(tmp_path, TWICE)))

    first = call("resume", "r", "--workflow", "own.yaml", "--trust", "--answer", "a", "--no-interactive")
    assert first.code == 4 and "your own workflow file: own.yaml" in first.err, first.err
    own.unlink()
    forked = call("fork", "r@0", "--run", "--no-interactive")
    assert forked.code == 2 and "shell: touch sprung" in forked.err, "the stranger's is shown and asked about"
    again = call("rerun", "r", "--from", "ask", "--run-id", "again", "--no-interactive")
    assert again.code == 4, again.err
    for name in ("r", "again"):
        while (done := call("resume", name, "--answer", "b", "--no-interactive")).code == 4:
            pass
        assert done.code == 0, done.err
        assert "touch mine" in json.dumps(saved_flow(tmp_path, name))

    assert list(tmp_path.rglob("mine")) and not list(tmp_path.rglob("sprung"))


def saved_flow(folder: Path, run: str) -> Any:
    store = open_store(f"sqlite:///{folder / 'runs.db'}")
    journal = Journal(store)
    try:
        return Codec().decode(journal.load(journal.info(run), Codec()).run.config)["workflow_file"]
    finally:
        store.close()


def test_a_run_of_ones_own_goes_on_with_the_file_that_it_was_given(call: Call, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(TWICE)
    (tmp_path / "own.yaml").write_text(TWICE.replace("touch sprung", "touch mine"))
    assert call("run", "w.yaml", "--run-id", "r", "--no-interactive").code == 4

    assert call("resume", "r", "--workflow", "own.yaml", "--answer", "a", "--no-interactive").code == 4
    assert call("resume", "r", "--answer", "b").code == 0

    assert list(tmp_path.rglob("mine")) and not list(tmp_path.rglob("sprung"))


def test_going_back_behind_ones_own_file_asks_python_too(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(TWICE.replace("touch sprung", "touch mine"))
    call("import", str(stranger(tmp_path, TWICE)))
    call("resume", "r", "--workflow", "own.yaml", "--trust", "--answer", "a", "--no-interactive")
    app = load_workflow(tmp_path / "own.yaml").open(f"sqlite:///{tmp_path / 'runs.db'}")

    first = app.checkpoints("r")[0].id
    for refused in (
        lambda: app.resume(first),
        lambda: app.rerun("r", "ask"),
        lambda: app.resume(app.fork(first)),
    ):
        with pytest.raises(ForeignRun, match="changed since it was confirmed"):
            refused()  # type: ignore[no-untyped-call]


# A workflow file of one's own: a worker's, and one that takes the place of a definition that is refused.


def odd_options(config: dict[Any, Any]) -> None:
    """Leave no definition in a config, and a key beside its options that looks like theirs."""
    del config["workflow_file"]
    config["run"]["skip_gates"] = True
    config[PurePosixPath("run")] = {"skip_gates": False}


def test_a_worker_with_a_file_of_its_own_checks_the_options_that_it_takes_from_a_run(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(EVIL.replace("touch sprung", "touch mine"))
    call("import", str(with_config(paused_run(tmp_path, EVIL), tmp_path, odd_options)))
    assert call("resume", "r", "--detach", "--trust", "--answer", "yes").code == 0

    worked = call("worker", "--workflow", "own.yaml", "--until-idle", "--json")

    assert worked.code == 0 and "PurePosixPath('run')" in worked.out, worked
    assert "holdfast show RUN --state" in worked.out and not list(tmp_path.rglob("mine"))


def test_a_worker_with_a_file_of_its_own_takes_no_options_that_nobody_confirmed(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(EVIL.replace("touch sprung", "touch mine"))
    call("import", str(stranger(tmp_path, EVIL, options=RunOptions(skip_gates=True))))
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    (info,), last = store.runs(run="r"), last_entry(store, "r")
    assert last is not None
    change_facts(store, dataclasses.replace(info, queue="default", status="queued"), last)
    store.close()

    worked = call("worker", "--workflow", "own.yaml", "--until-idle", "--json")
    assert "nobody has confirmed it" in worked.out and not list(tmp_path.rglob("mine"))


@pytest.mark.parametrize("where", ["included", "files", "source", "unknown"])
def test_a_run_whose_definition_is_refused_goes_on_with_a_file_of_ones_own(
    where: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "cmd.txt").write_text("touch sprung")
    (tmp_path / "own.yaml").write_text(EVIL.replace("touch sprung", "touch mine"))
    store = paused_run(tmp_path, INCLUDING)
    with_odd_keys(store, tmp_path, where)
    given = open_store(f"sqlite:///{tmp_path / 'given.db'}")
    copy_runs(store, given)
    given.close()
    assert call("store", "copy", "given.db", "runs.db", "--foreign").code == 0

    refused = call("resume", "r", "--answer", "yes", "--trust")
    assert refused.code == 1 and "holdfast resume RUN --workflow FILE" in refused.err, refused
    done = call("resume", "r", "--workflow", "own.yaml", "--answer", "yes", "--trust")

    assert done.code == 0 and list(tmp_path.rglob("mine")) and not list(tmp_path.rglob("sprung")), done
    assert "touch mine" in json.dumps(saved_flow(tmp_path, "r"))


def test_options_that_are_refused_are_not_taken_with_a_file_of_ones_own_either(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(EVIL.replace("touch sprung", "touch mine"))
    call("import", str(with_config(paused_run(tmp_path, EVIL), tmp_path, odd_options)))

    refused = call("resume", "r", "--workflow", "own.yaml", "--answer", "yes", "--trust")

    assert refused.code == 1 and "--workflow" not in refused.err, "that is what was tried"
    assert "holdfast show RUN --state" in refused.err and not list(tmp_path.rglob("mine"))


def test_what_is_refused_names_a_way_out_of_where_it_stands(call: Call, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "cmd.txt").write_text("touch sprung")
    path = with_odd_keys(paused_run(tmp_path, INCLUDING), tmp_path, "unknown")
    flow = load_workflow(tmp_path / "w.yaml", text=EVIL)
    config: dict[Any, Any] = {**RunOptions().config(flow), PurePosixPath("workflow_file"): {}}
    app = flow.open("memory://")
    app.save_checkpoint(tmp_path / "s.pkl", {"inputs": {}}, "act", config)
    (tmp_path / "own.yaml").write_text(EVIL.replace("touch sprung", "touch mine"))

    for arguments in (["import", str(path)], ["import", "--inspect", str(path)]):
        refused = call(*arguments)
        assert "--workflow" not in refused.err and "exported again" in refused.err, refused
    with pytest.raises(CodecError, match="give plain data") as error:
        app.invoke({"inputs": {}}, config={**flow.config(), "x": {1: 2}})
    assert "--workflow" not in str(error.value)
    told = call("resume", "s.pkl", "--trust")
    assert "holdfast resume s.pkl --workflow FILE" in told.err
    assert call("resume", "s.pkl", "--workflow", "own.yaml").code == 0 and (tmp_path / "mine").exists()


# Commands that are read when they are obeyed.


@pytest.mark.parametrize("how", ["key", "config", "outline", "names", "nothing"])
def test_a_hostile_redefinition_is_refused_and_the_run_goes_on_as_it_was(
    how: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "w.yaml").write_text(INNOCENT)
    assert call("run", "w.yaml", "--run-id", "r", "--no-interactive").code == 4
    wish = redefinition(tmp_path, INNOCENT)
    assert wish.definition is not None
    definition = {**wish.definition, "config": Codec().encode(wish.definition["config"])}
    config: dict[Any, Any] = {**wish.definition["config"]}
    if how == "key":
        config[PurePosixPath("workflow_file")] = {**config["workflow_file"], "source": EVIL}
        definition["config"] = Codec().encode(config)
    elif how == "config":
        definition["config"] = Codec().encode(["workflow_file"])
    elif how == "outline":
        definition["outline"] = {**definition["outline"], "joins": 5, "edges": "all"}
    elif how == "names":
        definition["names"] = {"act": {"a": "b"}}
    else:
        definition = {"workflow": "w"}
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    store.post("r", write_message(wish._replace(definition=definition)))
    store.close()

    done = call("resume", "r", "--answer", "yes")

    assert done.code == 0, done
    told = call("events", "r").out
    assert "replan" in told and "is not a definition" in told and "Error" not in told, told
    assert call("show", "r").code == 0 and not list(tmp_path.rglob("sprung"))


def test_a_redefinition_that_cannot_be_compiled_leaves_a_run_that_goes_on_with_another_file(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "w.yaml").write_text(INNOCENT)
    assert call("run", "w.yaml", "--run-id", "r", "--no-interactive").code == 4
    wish = redefinition(tmp_path, INNOCENT)
    assert wish.definition is not None
    flow = {**wish.definition["config"]["workflow_file"], "source": "workflow: {name: w}\nsteps: 5\n"}
    definition = {**wish.definition, "config": Codec().encode({"workflow_file": flow})}
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    store.post("r", write_message(wish._replace(definition=definition)))
    store.close()

    assert call("resume", "r", "--answer", "yes").code == 130, "it goes on with another definition"
    refused = call("resume", "r")
    assert refused.code == 2 and "holdfast resume r --workflow FILE" in refused.err, refused
    assert call("resume", "r", "--workflow", "w.yaml").code == 0
