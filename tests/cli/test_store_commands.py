"""`holdfast store`, and `--namespace` on every command that has `--store`."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import apsw
import click
import pytest

from holdfast import CheckpointPolicy, open_store
from holdfast.cli.command_lines import command_line
from holdfast.cli.main import ENTRIES, commands
from holdfast.cli.store_option import absolute_url, chosen_url, default_url, same_store
from holdfast.stores.base import SCHEMA_VERSION
from holdfast.stores.inspection import exists, store_place
from tests.cli.in_process import Call, caller, three_runs
from tests.cli.processes import ASKING, Session, call, pasted, ran, start, until, write
from tests.stores.copied_runs import asking, contents, drive, let_go_once_asked


@pytest.fixture(name="call")
def called(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def here(call: Call, *words: str) -> list[str]:
    return sorted(run["run_id"] for run in call("runs", "--json", *words).json["runs"])


# Namespaces.


def options_of(group: click.Group, context: click.Context) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        assert each is not None
        if isinstance(each, click.Group):
            found |= {f"{name} {inner}": names for inner, names in options_of(each, context).items()}
        else:
            found[name] = {word for parameter in each.params for word in parameter.opts}
    return found


def test_every_command_with_a_store_takes_a_namespace() -> None:
    found = options_of(commands, click.Context(commands))

    assert set(ENTRIES) <= {name.partition(" ")[0] for name in found}
    with_store = {name for name, words in found.items() if "--store" in words and name != "demo"}
    assert len(with_store) > 10
    assert with_store == {name for name, words in found.items() if "--namespace" in words}


def test_runs_of_one_namespace_are_out_of_reach_in_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S2.4: the runs of namespaces are isolated, and what is printed to be pasted stays in its own."""
    write(tmp_path, "asking.yaml", ASKING)
    paused = call(tmp_path, "run", "asking.yaml", "--run-id", "r1", "--namespace", "team", "--json")

    assert paused.returncode == 4 and (tmp_path / ".holdfast" / "runs@team.db").is_file()
    asking("sqlite:///.holdfast/runs.db").store.close()
    inside = caller(capsys)
    for words in (
        ("show", "r1"),
        ("cancel", "r1"),
        ("answer", "r1", "yes"),
        ("resume", "r1", "--answer", "yes"),
    ):
        refused = inside(*words)
        assert refused.code == 1 and "no run" in refused.err and refused.out == ""
    resume = json.loads(paused.stdout)["resume"]
    assert "namespace=team" in resume
    done = pasted(tmp_path, resume.replace("ANSWER", "yes"))
    assert done.returncode == 0, done.stderr
    assert ran(tmp_path) == ["first", "second"]
    listed = inside("runs", "--namespace", "team", "--json").json
    assert [run["status"] for run in listed["runs"]] == ["completed"] and "namespace=team" in listed["store"]


def test_the_environment_names_the_namespace_and_hints_need_not_repeat_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_runs("sqlite:///.holdfast/runs.db?namespace=team").close()
    assert "nothing has been run" in call("show", "bad").err
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "team")

    assert here(call) == ["asked", "bad", "good"]
    told = call("show", "bad")
    assert told.code == 0 and "--store" not in told.out
    assert "--store" not in command_line("resume", "bad", store=chosen_url(None))
    usual = command_line("resume", "bad", store=chosen_url("?namespace=default"))
    assert shlex.split(usual)[-1] == f"sqlite:///{tmp_path}/.holdfast/runs.db?namespace=default"
    assert "there are no runs" in call("show", "bad", "--namespace", "default").err


def test_a_namespace_goes_with_any_way_to_name_a_store(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("sqlite:///a.db", "file:b"):
        three_runs(f"{url}?namespace=team").close()

    for words in (
        ["--store", "sqlite:///a.db"],
        ["--store", "a.db"],
        ["--store", "file:b"],
        ["--store", "./b"],
    ):
        assert here(call, *words, "--namespace", "team") == ["asked", "bad", "good"], words
    assert here(call, "--store", "a.db?namespace=team") == ["asked", "bad", "good"]
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///a.db?namespace=team")
    assert here(call, "--namespace", "team") == here(call) == ["asked", "bad", "good"]
    refused = call("runs", "--namespace", "other")
    assert refused.code == 3 and "names the namespace 'team', and 'other' is wanted" in refused.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--namespace", "a b"], "'a b' cannot name a namespace"),
        (["--namespace", ""], "'' cannot name a namespace"),
        (["--store", "sqlite:///x.db?namespace=a", "--namespace", "b"], "names the namespace 'a'"),
    ],
)
def test_a_wrong_namespace_is_refused_as_a_wrong_word(words: list[str], reason: str, call: Call) -> None:
    refused = call("runs", *words)

    assert refused.code == 2 and reason in refused.err


def test_urls_keep_their_namespace_wherever_they_are_looked_at_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"HOLDFAST_NAMESPACE": "team"}
    assert chosen_url(None, None, env) == default_url(env) == "sqlite:///.holdfast/runs.db?namespace=team"
    assert chosen_url("?namespace=x", "file:workflow", env) == "file:workflow?namespace=x"
    assert chosen_url("pg-embedded:p?schema=s", None, env) == "pg-embedded:p?schema=s&namespace=team"
    assert absolute_url("file:b?namespace=x") == f"file://{tmp_path}/b?namespace=x"
    assert absolute_url("pg-embedded:p?schema=s") == f"pg-embedded:{tmp_path}/p?schema=s"
    assert absolute_url("a.db?namespace=x") == f"sqlite:///{tmp_path}/a.db?namespace=x"
    assert store_place("sqlite:///~/a.db") == Path.home() / "a.db"
    assert same_store("a.db?namespace=x", f"sqlite:///{tmp_path}/a.db?namespace=x")
    assert not same_store("a.db?namespace=x", "a.db") and not same_store(
        "pg-embedded:p", "pg-embedded:p?schema=s"
    )
    assert not exists("sqlite:///a.db?namespace=x") and not exists("pg-embedded:p")
    open_store("sqlite:///a.db?namespace=x").close()
    assert exists("sqlite:///a.db?namespace=x") and not exists("sqlite:///a.db")


def test_a_password_in_a_url_is_never_printed(call: Call) -> None:
    url = chosen_url("postgresql://ada:sesame@db.invalid/runs?schema=s")

    assert url == "postgresql://ada@db.invalid/runs?schema=s"
    assert chosen_url("postgres://ada@h/d?password=sesame", None, {"HOLDFAST_NAMESPACE": "t"}).endswith(
        "@h/d?namespace=t"
    )


def test_the_doctor_looks_at_the_namespace_s_own_file(call: Call) -> None:
    three_runs("sqlite:///.holdfast/runs.db?namespace=team").close()

    told = call("doctor", "--namespace", "team", "--json")
    checks = {check["name"]: check for check in told.json["checks"]}
    assert "namespace=team" in checks["store"]["text"] and checks["runs"]["text"] == "3 runs"


# Copying.


def test_runs_are_copied_and_copied_again(call: Call) -> None:
    three_runs("sqlite:///runs.db").close()

    first = call("store", "copy", "sqlite:///runs.db", "file:backup")
    again = call("store", "copy", "runs.db", "file:backup", "--json")

    assert first.code == 0 and first.err == ""
    assert first.out.startswith("3 runs copied (") and "new entries" in first.out
    assert first.out.endswith("from sqlite:///runs.db to file:backup\n")
    assert again.json["counts"]["unchanged"] == 3 and again.json["stopped"] is False
    assert again.json["runs"][0] == {
        "run_id": "good",
        "workflow": again.json["runs"][0]["workflow"],
        "outcome": "unchanged",
        "entries": 0,
        "bytes": 0,
        "note": None,
    }
    assert here(call, "--store", "file:backup") == ["asked", "bad", "good"]


def test_runs_are_chosen_by_id_workflow_and_status(call: Call) -> None:
    three_runs("sqlite:///runs.db").close()

    assert call("store", "copy", "runs.db", "a.db", "good", "aske").code == 0
    assert here(call, "--store", "a.db") == ["asked", "good"]
    call("store", "copy", "runs.db", "b.db", "--status", "failed", "--status", "paused")
    assert here(call, "--store", "b.db") == ["asked", "bad"]
    none = call("store", "copy", "runs.db", "c.db", "--workflow", "none")
    assert none.code == 0 and none.out.startswith("no runs to copy, from")
    wrong = call("store", "copy", "runs.db", "c.db", "nobody")
    assert wrong.code == 1 and "no run 'nobody'" in wrong.err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["runs.db", "./runs.db"], 2, "are the same store"),
        (["memory://", "x.db"], 2, "in the memory of a process"),
        (["runs.db", "memory"], 2, "in the memory of a process"),
        (["none.db", "x.db"], 1, "there are no runs at none.db"),
        (["runs.db", "runs.txt"], 3, "cannot tell what kind of store"),
        (["runs.db", "x.db", "--status", "happy"], 2, "'happy' is not one of"),
        (["runs.db", "x.db", "--move", "--wait", "-1"], 2, "--wait"),
    ],
)
def test_what_cannot_be_copied_is_refused(words: list[str], code: int, reason: str, call: Call) -> None:
    three_runs("sqlite:///runs.db").close()

    refused = call("store", "copy", *words)

    assert refused.code == code and reason in refused.err
    assert not Path("none.db").exists() and not Path("x.db").exists()


def test_damaged_and_different_runs_are_told_and_the_exit_code_says_so(call: Call) -> None:
    three_runs("sqlite:///runs.db").close()
    asking("sqlite:///other.db").invoke({}, run_id="asked")
    connection = apsw.Connection("runs.db")
    connection.execute("UPDATE entries SET body = x'00' WHERE id = (1 << 32 | 1)")
    connection.close()

    told = call("store", "copy", "runs.db", "other.db", "--move")

    assert told.code == 1
    assert "left out (damaged): run good: " in told.err and "left out (different): run asked: " in told.err
    assert told.out.startswith("1 run moved, 1 run different, 1 run damaged (")
    assert here(call, "--store", "runs.db") == ["asked", "good"]
    assert here(call, "--store", "other.db") == ["asked", "bad"]


def test_a_run_under_way_is_copied_with_a_word_of_warning_and_moved_once_it_paused(
    call: Call, tmp_path: Path
) -> None:
    source = open_store("sqlite:///runs.db")
    driver = drive(source.url, tmp_path)

    copied = call("store", "copy", "runs.db", "copy.db")
    late = call("store", "copy", "runs.db", "moved.db", "--move", "--wait", "0")
    let_go_once_asked(source, tmp_path)
    moved = call("store", "copy", "runs.db", "moved.db", "--move", "--wait", "60")

    assert copied.code == 0 and "note: run live: process" in copied.err and "steps run twice" in copied.err
    assert late.code == 1 and "left out (busy): run live: " in late.err
    assert moved.code == 0 and moved.out.startswith("1 run moved")
    assert driver.communicate(timeout=60)[0].strip() == "interrupted"
    assert call("runs", "status", "live", "--store", "moved.db").out.startswith("live interrupted")
    assert here(call, "--store", "runs.db") == []
    source.close()


def many_runs(url: str, number: int) -> list[str]:
    store = open_store(url)
    app = asking(store, policy=CheckpointPolicy(durability="process"))
    names = [f"run-{index:03}" for index in range(number)]
    for name in names:
        app.invoke({}, run_id=name)
    store.close()
    return names


def test_ctrl_c_stops_between_runs_and_the_progress_is_shown_to_people(tmp_path: Path, call: Call) -> None:
    three_runs("sqlite:///runs.db").close()
    driver = drive(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    words = ("runs.db", "file:moved", "good", "live", "asked", "--move", "--wait", "60")
    session = Session(tmp_path, "store", "copy", *words)
    session.expect("1 of 3 runs, ")
    source = open_store("sqlite:///runs.db")
    until(lambda: bool(source.inbox("live")))
    session.kill(signal.SIGINT)

    code = session.end()
    driver.kill()
    driver.communicate()
    source.close()

    assert code == 130 and "runs/s" in session.screen and "stopping after this run" in session.screen
    assert "left out (busy): run live" in session.screen
    assert "stopped: 1 run moved, 1 run busy" in session.screen
    assert here(call, "--store", "file:moved") == ["good"]
    assert here(call, "--store", "runs.db") == ["asked", "bad", "live"]


def test_a_move_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    names = many_runs("sqlite:///runs.db", 60)
    source, target = open_store("sqlite:///runs.db"), open_store("file:moved")
    wanted = {name: contents(source, name) for name in names}
    process = start(tmp_path, "store", "copy", "runs.db", "file:moved", "--move")
    until(lambda: len(source.runs()) < 59)

    process.kill()
    process.communicate()

    left, there = {info.run for info in source.runs()}, {info.run for info in target.runs()}
    assert left | there == set(names)
    done = call(tmp_path, "store", "copy", "runs.db", "file:moved", "--move")
    assert done.returncode == 0, done.stderr
    assert source.runs() == [] and {name: contents(target, name) for name in names} == wanted
    source.close()
    target.close()


# Looking after a store.


def test_stats_tell_what_a_store_holds(call: Call, tmp_path: Path) -> None:
    three_runs("sqlite:///runs.db?namespace=team").close()

    told = call("store", "stats", "--store", "runs.db", "--namespace", "team")
    data = call("store", "stats", "--store", "runs.db?namespace=team", "--json").json

    assert told.code == 0 and "3 (1 completed, 1 failed, 1 paused)" in told.out
    assert "LARGEST RUNS" in told.out and "namespace    team" in told.out
    assert data["statuses"] == {"completed": 1, "failed": 1, "paused": 1} and data["runs"] == 3
    assert (
        data["kind"] == "sqlite"
        and data["place"] == f"{tmp_path}/runs@team.db"
        and data["namespace"] == "team"
    )
    assert data["entries"] > data["checkpoints"] > 0 and data["entry_bytes"] > 0 and data["owners"] == []
    assert {large["run_id"] for large in data["largest"]} == {"good", "bad", "asked"}
    assert data["oldest"] < data["newest"] and data["disk_bytes"] > data["entry_bytes"]


def test_stats_tell_who_drives(call: Call, tmp_path: Path) -> None:
    driver = drive(f"sqlite:///{tmp_path}/runs.db", tmp_path)

    told = call("store", "stats", "--store", "runs.db")
    driver.kill()
    driver.communicate()

    assert f"process {driver.pid} on " in told.out and "(1 run)" in told.out
    assert call("store", "stats", "--store", "runs.db", "--json").json["owners"] == []
    assert call("store", "stats", "--store", "none.db").code == 1


def test_migrate_tells_from_which_version_to_which(call: Call) -> None:
    assert call("store", "migrate", "--check", "--store", "none.db").code == 3
    assert not Path("none.db").exists()

    done = call("store", "migrate", "--store", "runs.db")
    again = call("store", "migrate", "--store", "runs.db", "--json")

    assert done.code == 0 and f"schema {SCHEMA_VERSION} was created" in done.out
    assert again.code == 0 and again.json == {
        "store": f"sqlite:///{Path('runs.db').absolute()}",
        "from": SCHEMA_VERSION,
        "to": SCHEMA_VERSION,
        "newest": SCHEMA_VERSION,
    }
    assert call("store", "migrate", "--check", "--store", "runs.db").out.endswith("is up to date\n")


def test_a_store_on_a_server_is_migrated_copied_to_and_measured(call: Call, postgres_url: str) -> None:
    """S2.19, S1.17."""
    three_runs("sqlite:///runs.db").close()

    assert call("store", "migrate", "--check", "--store", postgres_url).code == 1
    done = call("store", "migrate", "--store", postgres_url)
    copied = call("store", "copy", "runs.db", postgres_url, "--move")
    stats = call("store", "stats", "--store", postgres_url, "--json").json

    assert done.code == 0 and f"schema {SCHEMA_VERSION} was created" in done.out
    assert copied.code == 0 and copied.out.startswith("3 runs moved")
    assert stats["kind"] == "postgresql" and stats["runs"] == 3 and stats["entries"] > 3
    assert here(call, "--store", postgres_url) == ["asked", "bad", "good"]
