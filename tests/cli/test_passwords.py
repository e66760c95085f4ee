"""The password in a store's URL: no command shows it, and no journal keeps it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.cli.store_option import chosen_url
from holdfast.errors import StoreError
from holdfast.journal.journal import Journal
from holdfast.state.codec import Codec
from tests.cli.in_process import Call, caller
from tests.cli.processes import ASKING, CHAIN, write
from tests.postgres import PostgresServer

PASSWORD = "SECRETPW"

COMMANDS = [
    ("run", "chain.yaml", "--run-id", "failed"),
    ("run", "asking.yaml", "--run-id", "asked", "--no-interactive"),
    ("run", "chain.yaml", "--run-id", "told", "--json"),
    ("run", "chain.yaml", "--dry-run"),
    ("resume", "failed", "--plan"),
    ("resume", "failed", "--json"),
    ("resume", "asked", "--detach"),
    ("answer", "asked", "yes"),
    ("submit", "chain.yaml", "--run-id", "sent", "--json"),
    ("worker", "--until-idle", "--lease", "5"),
    ("worker", "--until-idle", "--json"),
    ("resume", "sent", "--detach"),
    ("runs", "edit", "failed", "steps.first.output=1"),
    ("cancel", "failed"),
    ("runs",),
    ("runs", "--json"),
    ("show", "failed"),
    ("show", "failed", "--json", "--state"),
    ("show", "nothing-of-this-name"),
    ("runs", "status", "asked"),
    ("runs", "status", "asked", "--json"),
    ("events", "failed", "--json"),
    ("checkpoints", "list", "--json"),
    ("queue", "list", "--json"),
    ("queue", "set", "mail", "--max-running", "2"),
    ("schedule", "add", "daily", "chain.yaml", "--cron", "@daily", "--json"),
    ("schedule", "list", "--json"),
    ("schedule", "pause", "nothing-of-this-name"),
    ("store", "stats"),
    ("store", "stats", "--json"),
    ("store", "migrate", "--check", "--json"),
    ("doctor",),
    ("doctor", "--json"),
]


@pytest.fixture
def holdfast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls commands in a folder of their own, with two workflows in it, one of which fails."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("chain", CHAIN), ("asking", ASKING)):
        write(tmp_path, f"{name}.yaml", text)
    return caller(capsys)


def with_password(url: str) -> str:
    return url.replace("://postgres@", f"://postgres:{PASSWORD}@")


@pytest.mark.parametrize("way", ["environment", "option"])
def test_a_password_is_neither_shown_nor_kept(
    holdfast: Call,
    way: str,
    emptied_postgres_url: str,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = with_password(emptied_postgres_url)
    given = ("--store", url) if way == "option" else ()
    if not given:
        monkeypatch.setenv("HOLDFAST_STORE", url)
    assert PASSWORD in url

    for words in COMMANDS:
        told = holdfast(*words, *given)
        assert PASSWORD not in told.out + told.err, words
        assert told.code != 3, (words, told.err)
    copied = holdfast("store", "copy", url, "file:copies", "--json")
    assert copied.code == 0 and PASSWORD not in copied.out

    assert PASSWORD not in all_that_is_stored(emptied_postgres_url, postgres_server)


def all_that_is_stored(url: str, server: PostgresServer) -> str:
    """Every record of every journal, and every row beside them."""
    store = open_store(url)
    journal, found = Journal(store, None), []
    for info in store.runs():
        _, history = journal.history(info, Codec(), None)
        found += [repr(records) for _, records in history]
    store.close()
    schema = url.partition("schema=")[2]
    for table in ("run", "snapshot", "inbox", "lease", "queue", "schedule"):
        found += [repr(row) for row in server.sql(f'SELECT * FROM "{schema}"."{table}"')]
    assert any("the gate is closed" in text for text in found)
    return "\n".join(found)


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="only Linux lets a process overwrite its arguments"
)
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{PASSWORD}@127.0.0.1:9/x",
        f"postgresql://u@127.0.0.1:9/x?password={PASSWORD}&timeout=60",
    ],
)
def test_a_password_among_the_arguments_vanishes_from_the_process_list(tmp_path: Path, url: str) -> None:
    """The command waits for a server that is not there, for as long as it takes to look at it."""
    command = [sys.executable, "-m", "holdfast", "runs", "--store", url]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shown = Path(f"/proc/{process.pid}/cmdline")
    try:
        until = time.monotonic() + 50
        while b"127.0.0.1" not in (told := shown.read_bytes()) or PASSWORD.encode() in told:
            assert process.poll() is None and time.monotonic() < until, told
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert b"*" * len(PASSWORD) in told


def test_a_password_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.stores.postgres.connection import read_address

    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("HOLDFAST_STORE_PASSWORD_FILE", str(tmp_path / "password"))

    address = read_address("postgresql://u@h/x")
    assert address.parameters["password"] == PASSWORD and PASSWORD not in repr(address)
    assert read_address("postgresql://u:other@h/y").parameters["password"] == "other"
    monkeypatch.setenv("HOLDFAST_STORE_PASSWORD_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match="HOLDFAST_STORE_PASSWORD_FILE"):
        read_address("postgresql://u@h/x")
    monkeypatch.setenv("HOLDFAST_STORE_PASSWORD", "first")
    assert read_address("postgresql://u@h/x").parameters["password"] == "first"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{PASSWORD}@localhost:1/x?timeout=0",
        f"postgresql://u:{PASSWORD}@localhost:1/x?timeout=0&leese=4",
        f"postgresql://u@localhost:1/x?password={PASSWORD}&timeout=never",
        f"postgresql://u:a?{PASSWORD}@localhost:1/x",
        f"postgresql:u:{PASSWORD}@localhost/x",
        f"mysql://u:{PASSWORD}@localhost/x",
    ],
)
def test_what_goes_wrong_is_told_without_the_password(
    holdfast: Call, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", url)

    for words in (
        ("runs", "--json"),
        ("runs", "--namespace", "n"),
        ("show", "r"),
        ("run", "chain.yaml", "--json"),
        ("resume", "r", "--detach"),
        ("submit", "chain.yaml"),
        ("worker", "--until-idle"),
        ("queue", "pause", "mail"),
        ("schedule", "list"),
        ("store", "stats"),
        ("store", "copy", url, "file:copies"),
        ("doctor",),
    ):
        told = holdfast(*words)
        assert told.code not in (0, 1) and PASSWORD not in told.out + told.err, (words, told.err)


def test_without_its_package_a_url_is_shown_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.postgres.connection", None)

    assert chosen_url(f"postgresql://u:{PASSWORD}@h/x", environ={}) == "postgresql://u@h/x"
