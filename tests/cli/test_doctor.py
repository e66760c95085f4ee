"""`holdfast doctor`."""

from __future__ import annotations

import os
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.cli.commands import doctor as store_health
from holdfast.cli.commands.doctor import sync_seconds
from holdfast.stores.base import SCHEMA_VERSION
from tests.cli.in_process import SOURCE, Call, abandon, caller
from tests.graphs import chain


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str, tmp_path: Path
) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


def checks(call: Call, *words: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in call("doctor", "--json", *words).json["checks"]}


def test_a_sound_installation_is_sound(call: Call, sqlite_url: str, tmp_path: Path) -> None:
    store = open_store(sqlite_url)
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    store.close()

    told, found = call("doctor", "--json"), checks(call)

    assert told.code == 0 and told.json["ok"] is True
    assert all(check["state"] == "ok" for check in found.values())
    assert found["apsw"]["text"] == metadata.version("apsw")
    assert f"schema {SCHEMA_VERSION}, " in found["store"]["text"] and found["runs"]["text"] == "1 run"
    assert ("ms" in found["sync time"]["text"] and "GB" in found["free disk"]["text"]) or "MB" in found[
        "free disk"
    ]["text"]
    assert [path.name for path in tmp_path.iterdir() if "sync" in path.name] == []


def test_text_has_a_line_a_check(call: Call) -> None:
    told = call("doctor")

    assert told.lines[0].split() == ["CHECK", "STATE", "FOUND"]
    assert any(line.split()[:2] == ["python", "ok"] for line in told.lines)


def test_a_store_that_is_not_there_is_not_created(call: Call, tmp_path: Path) -> None:
    found = checks(call)

    assert "the first run creates it" in found["store"]["text"] and list(tmp_path.iterdir()) == []


def test_variables_are_named_and_never_shown(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_TOKEN", "hush-hush")
    monkeypatch.setenv("HOLDFAST_KEY", "c" * 64)

    told = call("doctor", "--json")

    assert "HOLDFAST_KEY, HOLDFAST_SECRET_TOKEN, HOLDFAST_STORE" in told.out
    assert "hush-hush" not in told.out and "cccc" not in told.out


def test_a_key_that_is_none_is_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "not-a-key-at-all")

    told = call("doctor", "--json")

    assert told.code == 3 and told.json["ok"] is False and "not-a-key-at-all" not in told.out


def test_a_store_that_is_no_store_is_broken(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text("a text that is long enough to be looked at as a database header")

    assert call("doctor").code == 3
    assert "is not a SQLite database" in checks(call)["store"]["text"]


def test_dead_runs_are_told(call: Call, sqlite_url: str, tmp_path: Path) -> None:
    abandon(sqlite_url, "lost-1", folder=tmp_path)

    found = checks(call)

    assert found["write-ahead log"]["state"] == "ok"
    assert found["dead runs"]["state"] == "warning" and "lost-1" in found["dead runs"]["text"]
    assert call("doctor").code == 0


def test_little_room_and_slow_disks_are_told(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(sqlite_url).close()
    monkeypatch.setattr(store_health, "LOW", 1 << 62)
    monkeypatch.setattr(store_health, "SLOW_SYNC", 0.0)
    found = checks(call)
    assert (found["free disk"]["state"], found["sync time"]["state"]) == ("warning", "warning")

    monkeypatch.setattr(store_health, "NONE", 1 << 62)
    assert checks(call)["free disk"]["state"] == "broken"


def test_runs_of_the_future_are_told(call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    chain("a").compile(sqlite_url).invoke({"n": 1}, run_id="r")
    then = time.time() - 3600
    monkeypatch.setattr("holdfast.cli.commands.doctor.time.time", lambda: then)

    assert checks(call)["clock and runs"]["state"] == "warning"


def test_a_clock_that_was_never_set_is_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.commands.doctor.time.time", lambda: 1000.0)

    assert checks(call)["clock"]["state"] == "broken"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_broken(call: Call, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert call("doctor").code == 3
    finally:
        tmp_path.chmod(0o700)


def test_stores_in_folders_and_in_memory(call: Call, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'runs'}"
    chain("a").compile(url).invoke({"n": 1}, run_id="r")

    assert checks(call, "--store", url)["runs"]["text"] == "1 run"
    assert "not on disk" in checks(call, "--store", "memory://")["store"]["text"]


def test_a_server_is_asked_how_long_a_commit_takes(call: Call, emptied_postgres_url: str) -> None:
    new = checks(call, "--store", emptied_postgres_url)
    chain("a").compile(emptied_postgres_url).invoke({"n": 1}, run_id="r")

    found = checks(call, "--store", emptied_postgres_url)

    assert "runs" in found and found["runs"]["text"] == "1 run" and new["store"]["state"] == "ok"
    assert " ms to the server and back" in found["commit time"]["text"]
    assert "PostgreSQL 1" in found["store"]["text"] and "not on disk" not in found["store"]["text"]


def test_a_server_that_may_only_be_read_is_told(call: Call, emptied_postgres_url: str) -> None:
    open_store(emptied_postgres_url).close()
    url = f"{emptied_postgres_url}&options=-c%20default_transaction_read_only=on"

    told = call("doctor", "--json", "--store", url)

    assert told.code == 3 and "may only be read" in told.out


def test_every_extra_is_told_of(call: Call) -> None:
    found = checks(call)

    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    given = project["optional-dependencies"]
    assert {name.removeprefix("extra ") for name in found if name.startswith("extra ")} == {*given} - {
        "all",
        "docs",
        "fuzz",
        "test",
    }
    assert found["extra postgres"]["text"] == f"psycopg {metadata.version('psycopg')}"


def test_a_missing_package_is_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.commands.doctor.REQUIRED", ("no-such-distribution",))
    monkeypatch.setattr("holdfast.cli.commands.doctor.EXTRAS", {"encryption": ("no-such-distribution",)})

    found = checks(call)

    assert found["no-such-distribution"]["state"] == "broken"
    assert (
        found["extra encryption"]["state"] == "ok"
        and "holdfast[encryption]" in found["extra encryption"]["text"]
    )


def test_the_time_of_a_sync_is_measured(tmp_path: Path) -> None:
    assert sync_seconds(tmp_path, 1) > 0 and list(tmp_path.iterdir()) == []
