"""Encryption at the command line: keys and the mode in which they are required come from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.engine.commands.inbox import ANSWER, RunCommand, write_message
from tests.cli.in_process import Call, caller

KEY = "6b" * 32
FLOW = """workflow: {name: asking}
steps:
  - {name: who, ask: {prompt: "who?", type: string}}
"""


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str, tmp_path: Path
) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.yaml").write_text(FLOW)
    return caller(capsys)


def test_where_encryption_is_required_no_command_writes_or_reads_what_is_not(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("run", "asking.yaml", "--run-id", "plain").code == 4
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "require")
    for words in (
        ("run", "asking.yaml", "--run-id", "r"),
        ("resume", "plain"),
        ("show", "plain"),
        (
            "store",
            "fsck",
        ),
        ("worker", "--until-idle"),
    ):
        told = call(*words)
        assert told.code and "encryption is required, and there is no key; set HOLDFAST_KEY" in told.err

    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    call("run", "asking.yaml", "--run-id", "r")

    assert call("show", "r").code == 0
    for words in (("show", "plain"), ("resume", "plain"), ("answer", "plain", "me")):
        told = call(*words)
        assert told.code and "entry 1 is not encrypted, and encryption is required" in told.err
    told = call("store", "fsck")
    assert told.code and "entry 1 is not encrypted, and encryption is required" in told.out + told.err
    assert "what is not encrypted is refused" in call("doctor").out


def test_an_unsealed_answer_is_not_obeyed_and_fsck_tells(
    call: Call, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", KEY)
    call("run", "asking.yaml", "--run-id", "r")
    store = open_store(sqlite_url)
    store.post("r", write_message(RunCommand(ANSWER, value=b"\x01\xa6forged", by="mallory")))
    store.close()

    told = call("store", "fsck")
    assert told.code and "message 1 is not encrypted, and the run is" in told.out + told.err
    monkeypatch.delenv("HOLDFAST_KEY")
    assert "set HOLDFAST_KEY" in call("answer", "r", "me").err
    monkeypatch.setenv("HOLDFAST_KEY", KEY)

    assert call("answer", "r", "me").code == 0
    call("resume", "r")

    assert "forged" not in call("show", "r", "--json").out and call("runs", "status", "r").code == 0
