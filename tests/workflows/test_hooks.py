"""Hooks: which data their commands get, and which they do not get."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cli.in_process import Call, caller

FLOW = """\
workflow:
  name: told
  hooks: {on_start: env > on_start, on_complete: env > on_complete, on_error: env > on_error}
steps:
  - {name: work, shell: test -e ready}
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.yaml").write_text(FLOW)
    return caller(capsys)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys and passwords in the environment of the process that runs hooks."""
    pytest.importorskip("cryptography")
    found = {
        "HOLDFAST_KEY": base64.b64encode(bytes(range(32))).decode(),
        "HOLDFAST_CAPSULE_PASSPHRASE": "hidden-passphrase",
        "HOLDFAST_SECRET_TOKEN": "hidden-token",
        "PGPASSWORD": "hidden-pg",
        "PGSSLPASSWORD": "hidden-ssl",
        "WORKFLOW_CHECKPOINT_DSN": "postgresql://me:hidden-in-dsn@host/db",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORDINARY", "seen")
    return found


@pytest.mark.parametrize("driver", ["run", "worker"])
def test_hooks_are_not_given_keys_and_passwords_of_ours(
    driver: str, call: Call, hidden: dict[str, str], tmp_path: Path
) -> None:
    for ready in (False, True):
        if ready:
            (tmp_path / "ready").touch()
        if driver == "run":
            call("run", "told.yaml", "--store", "sqlite:///runs.db")
        else:
            call("submit", "told.yaml", "--store", "sqlite:///runs.db")
            call("worker", "--until-idle", "--store", "sqlite:///runs.db")

    for hook in ("on_start", "on_error", "on_complete"):
        seen = (tmp_path / hook).read_text()
        assert "ORDINARY=seen\n" in seen and "HOLDFAST_WORKFLOW=told\n" in seen, "it is the environment"
        leaked = [name for name, value in hidden.items() if value in seen or f"{name}=hidden" in seen]
        assert leaked == [] and "hidden" not in seen
