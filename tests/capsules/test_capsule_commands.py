"""`holdfast capsule export`, `import` and `keygen`, as people and programs call them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.capsules import exports as exporting
from holdfast.capsules.signing import LockedSink
from tests.capsules.samples import forged
from tests.capsules.test_hostile_capsules import body, started
from tests.cli.in_process import Call, caller
from tests.cli.processes import PROGRAM, Session

FLOW = """
workflow: {name: report, hooks: {on_complete: "echo finished"}}
steps:
  - {name: one, shell: "echo ${NOBODY_SET_THIS:-hi}"}
  - name: both
    parallel:
      - {name: left, http: "https://localhost/{{ secrets.TOKEN }}"}
      - {name: right, set: {x: 1}}
  - {name: approve, ask: {prompt: "ok?"}}
  - {name: two, python: "acts.py:two"}
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls commands in an empty folder."""
    for name in ("HOLDFAST_CAPSULE_PASSPHRASE", "HOLDFAST_TRUSTED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(exporting, "LockedSink", lambda sink, secret: LockedSink(sink, secret, work=14))
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


@pytest.fixture
def paused(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a run of a workflow file that waits for an answer, and a capsule `run.holdfast` of it."""
    text = FLOW.replace('http: "https://localhost/{{ secrets.TOKEN }}"', "set: {y: 2}")
    (tmp_path / "report.yaml").write_text(text)
    (tmp_path / "acts.py").write_text("def two():\n    return 2\n")
    assert call("run", "report.yaml", "--run-id", "weekly", "--no-interactive").code == 4
    done = call("export", "report", "-o", "run.holdfast")
    assert done.code == 0 and re.fullmatch(
        r"wrote run weekly \(paused\) to run.holdfast: \d+ entries, .* KB\n", done.out
    )
    return "weekly"


def test_a_run_goes_from_store_to_store_and_is_resumed_there(call: Call, paused: str, tmp_path: Path) -> None:
    """S1.17: with the file gone, the run brings its workflow along."""
    (tmp_path / "report.yaml").unlink()

    done = call("import", "run.holdfast", "--store", "file:other")

    assert (
        done.code == 0
        and "run weekly of report (paused) copied" in done.out
        and "signed by nobody" in done.out
    )
    assert "resuming it runs the workflow file in it" in done.out and "1 shell" in done.out
    command = done.lines[-1].partition("resume with: ")[2].split("holdfast ")[1].split()
    refused = call(*command, "--answer", "yes")
    assert (
        refused.code == 2
        and "nobody has confirmed it" in refused.err
        and "--trust" in refused.err.splitlines()[-1]
    )
    assert call(*command, "--answer", "yes", "--trust").code == 0
    assert call("show", "weekly", "--store", "file:other", "--json").json["status"] == "completed"
    again = call("import", "run.holdfast", "--store", "file:other", "--json")
    assert again.json["outcome"] == "unchanged" and again.json["status"] == "completed"
    assert call("runs", "status", "weekly").code == 4, "the original still waits"


def test_looking_into_a_capsule_shows_what_it_would_do_and_writes_nothing(
    call: Call, paused: str, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))

    done = call("import", "--inspect", "run.holdfast")
    data = call("import", "--inspect", "run.holdfast", "--json").json

    assert sorted(tmp_path.rglob("*")) == before
    for text in (
        "weekly",
        "report",
        "paused",
        "signed       by nobody",
        "not encrypted: inputs",
        "approve",
        "waiting",
    ):
        assert text in done.out, text
    assert "one (shell): runs a shell command" in done.out and "on_complete (hook): runs" in done.out
    assert "on_complete: echo finished" in done.out
    assert "it would read of your environment: ${NOBODY_SET_THIS}" in done.out
    kinds = {effect["name"]: effect["kind"] for effect in data["effects"]}
    assert kinds == {
        "one": "shell", "both": "parallel", "left": "set", "right": "set", "approve": "ask", "two": "python",
        "on_complete": "hook",
    }  # fmt: skip
    assert data["steps"][0] == {**data["steps"][0], "name": "one", "status": "completed"}


def test_exporting_writes_over_nothing_unless_told(call: Call, paused: str, tmp_path: Path) -> None:
    first = (tmp_path / "run.holdfast").read_bytes()

    refused = call("export", "weekly", "-o", "run.holdfast")
    forced = call("export", "week", "-o", "run.holdfast", "--force", "--json")

    assert refused.code == 2 and "--force overwrites it" in refused.err
    assert forced.code == 0 and forced.json["run_id"] == "weekly" and forced.json["bytes"] == len(first)
    assert (tmp_path / "run.holdfast").read_bytes() == first, "the same run gives the same bytes"


def test_a_signed_and_encrypted_capsule(
    call: Call, paused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = call("capsule", "keygen", "-o", "me")
    (tmp_path / "secret").write_text("a passphrase\n")
    print_ = re.search(r"fingerprint: (.+)", made.out)[1]  # type: ignore[index]
    assert call("capsule", "keygen", "-o", "you", "--json").json["public"] == "you.pub"
    assert call("capsule", "keygen", "-o", "me").code == 2

    done = call("export", "weekly", "-o", "e", "--sign", "me", "--encrypt", "--passphrase-file", "secret")

    assert f"signed by {print_}, encrypted" in done.out
    assert call("import", "--inspect", "e").out.startswith("an encrypted capsule, ")
    assert call("import", "--inspect", "e", "--json").json["open"] is False
    assert call("import", "e").code == 2
    refused = call("import", "e", "--passphrase-file", "secret", "--trust", "you.pub")
    assert refused.code == 2 and "none of the 1 trusted keys" in refused.err
    monkeypatch.setenv("HOLDFAST_CAPSULE_PASSPHRASE", "a wrong one")
    assert "passphrase is wrong" in call("import", "e").err
    monkeypatch.setenv("HOLDFAST_CAPSULE_PASSPHRASE", "a passphrase")
    monkeypatch.setenv("HOLDFAST_TRUSTED", "you.pub")
    assert call("import", "e").code == 2
    monkeypatch.setenv("HOLDFAST_TRUSTED", "you.pub:me.pub")
    assert f"signed by {print_}" in call("import", "e", "--as", "mine").out
    assert call("runs", "status", "mine").code == 4
    assert call("import", "run.holdfast").code == 2, "it is not signed"


def test_a_passphrase_is_asked_for_at_a_terminal(call: Call, paused: str, tmp_path: Path) -> None:
    session = Session(tmp_path, "export", "weekly", "-o", "e", "--encrypt")
    for prompt in ("passphrase", "epeat"):
        session.expect(prompt)
        session.write("open sesame\n")
    assert session.end() == 0 and "open sesame" not in session.screen

    session = Session(tmp_path, "import", "--inspect", "e")
    session.expect("passphrase")
    session.write("open sesame\n")
    assert session.end() == 0 and "weekly" in session.screen


def test_lines_of_json_are_for_reading(call: Call, paused: str, tmp_path: Path) -> None:
    printed = [json.loads(line) for line in call("export", "weekly", "-o", "-", "--format", "jsonl").lines]
    written = call("export", "weekly", "-o", "weekly.jsonl", "--format", "jsonl", "--json").json

    lines = [json.loads(line) for line in (tmp_path / "weekly.jsonl").read_text().splitlines()]
    assert lines == printed and written["lines"] == len(lines)
    assert lines[0]["run_id"] == "weekly" and lines[1]["type"] == "RunStarted"
    finished = next(line for line in lines if line.get("type") == "StepFinished")
    assert finished["step"] == "one#1" and finished["ops"][0]["value"]["output"].strip() == "hi"
    refused = call("import", "weekly.jsonl")
    assert refused.code == 2 and "which are for reading" in refused.err
    assert call("export", "weekly", "-o", "x", "--format", "jsonl", "--encrypt").code == 2


def test_a_capsule_goes_through_a_pipe(call: Call, paused: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "export", "weekly", "-o", "-"], cwd=tmp_path, capture_output=True, timeout=60
    )

    assert done.returncode == 0 and done.stdout == (tmp_path / "run.holdfast").read_bytes()
    assert done.stderr.startswith(b"wrote run weekly (paused) to stdout")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "weekly"], "Missing option '-o'"),
        (["export", "nobody", "-o", "x"], "no run, checkpoint or workflow 'nobody'"),
        (["export", "weekly", "-o", "-", "--json"], "both write to stdout"),
        (["export", "weekly", "-o", "x", "--passphrase-file", "secret"], "is for --encrypt"),
        (["export", "weekly", "-o", "x", "--encrypt"], "HOLDFAST_CAPSULE_PASSPHRASE"),
        (["export", "weekly", "-o", "x", "--sign", "nothing"], "cannot be read"),
        (["export", "weekly", "-o", "no/where"], "cannot be written"),
        (["import", "nothing"], "cannot be read"),
        (["import", "."], "cannot be read"),
        (["import", "report.yaml"], "it is not a capsule"),
        (["import", "run.holdfast", "--inspect", "--as", "x"], "--as has no meaning"),
        (["import", "run.holdfast", "--passphrase-file", "x"], "is not encrypted"),
        (["import", "run.holdfast", "--store", "memory://"], "in memory"),
        (["import", "run.holdfast", "--as", "a\tb"], "not taken as a run id"),
        (["workflow", "inspect", "run.holdfast"], "is a capsule; look into it with"),
    ],
)
def test_bad_input_is_told(call: Call, paused: str, words: list[str], said: str) -> None:
    done = call(*words)

    assert done.code in (1, 2) and said in done.err, done.err


def test_a_passphrase_in_the_environment_is_for_encrypted_capsules(
    call: Call, paused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CAPSULE_PASSPHRASE", "secret")
    for words in (["run.holdfast"], ["run.holdfast", "--inspect"]):
        done = call("import", *words)

        assert done.code == 2 and "HOLDFAST_CAPSULE_PASSPHRASE says that it should be" in done.err


def test_a_checkpoint_is_no_run(call: Call, paused: str) -> None:
    ident = call("checkpoints", "list", "--json").json["checkpoints"][0]["checkpoint_id"]

    done = call("export", ident, "-o", "x")

    assert done.code == 2 and "is a checkpoint of run weekly" in done.err


def test_another_history_is_refused_with_the_way_out(call: Call, paused: str) -> None:
    call("import", "run.holdfast", "--store", "file:other")
    call("resume", "weekly", "--answer", "no")
    call("resume", "weekly", "--answer", "yes", "--store", "file:other", "--trust")
    call("export", "weekly", "-o", "late", "--force")

    done = call("import", "late", "--store", "file:other", "--json")

    assert done.code == 2 and "--as ID" in done.json["error"]
    assert call("import", "late", "--store", "file:other", "--as", "weekly-2").code == 0


def test_what_a_stranger_wrote_does_nothing_to_a_terminal(call: Call, tmp_path: Path) -> None:
    import ormsgpack

    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
    source = f'workflow: {{name: w}}\nsteps:\n  - {{name: s, shell: "{evil!s}"}}\n'
    config = b"\x01" + ormsgpack.packb({"workflow_file": {"path": evil, "source": source}})
    nodes: dict[str, Any] = {evil: {"fingerprint": evil}}
    outline = {"name": evil, "nodes": nodes, "edges": []}
    forged(
        tmp_path / "evil",
        [body(started(next_=[evil], config=config, outline=outline))],
        workflow=evil,
        tags=(evil,),
    )

    for words in (
        ["import", "--inspect", "evil"],
        ["import", "--inspect", "evil", "--json"],
        ["import", "evil"],
    ):
        done = call(*words)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.out + done.err), words


def test_deeds_are_read_without_files_and_without_the_environment(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.workflows.foreign import effects_of, reads_of, source_lines

    monkeypatch.setenv("NOBODY_SET_THIS", "a local secret")
    (tmp_path / "local.txt").write_text("local text")
    flow = {"path": str(tmp_path / "x.yaml"), "source": FLOW, "files": {"sub.yaml": {"source": FLOW}}}

    effects = effects_of(flow)

    shown = "\n".join(source_lines({"workflow_file": flow}))
    assert len(effects) == 14 and "local secret" not in str(effects) + shown
    assert "https://localhost/{{ secrets.TOKEN }}" in shown and effects[-1].name == "sub.yaml: on_complete"
    assert reads_of(flow) == ["${NOBODY_SET_THIS}", "secrets.TOKEN"]
    assert reads_of({"source": "{{ secrets[ inputs.x ] }} $${ESCAPED}"}) == ["secrets[ inputs.x "]
    for source in (
        "steps: [{name: a, shell: !file local.txt}]",
        "a: &a [*a]",
        "steps: {",
        "[" * 2000,
        "plain",
        7,
    ):
        flow = {"path": str(tmp_path / "x.yaml"), "source": source}
        assert [effect.kind for effect in effects_of(flow)] == ["unreadable"], source
        assert str(source) in "\n".join(source_lines({"workflow_file": flow})), "it is shown as it is"
    found = effects_of({"source": "steps: [1, {name: x}, {shell: {run: ls}}]\nworkflow: 1"})
    assert [effect.kind for effect in found] == ["unknown", "unknown", "shell"] and all(
        d.reach for d in found
    )


def test_a_run_of_a_python_graph_brings_no_code(call: Call, tmp_path: Path) -> None:
    from tests.graphs import chain

    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    chain("a", name="w").compile(store).invoke({"n": 1}, run_id="r")
    store.close()
    assert call("export", "r", "-o", "r", "--store", "runs.db").code == 0

    assert "no code is in it" in call("import", "--inspect", "r").out
    done = call("import", "r", "--json")
    assert done.json["effects"] == [] and done.json["outcome"] == "copied"
