"""`holdfast submit`, `worker`, `queue` and `schedule`, and other commands on runs that workers execute."""

from __future__ import annotations

import datetime as dt
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import START, StateGraph, open_store
from holdfast.cli.commands.worker import WorkerLines
from holdfast.fleet.worker import WorkerEvent
from tests.cli.in_process import Call, caller
from tests.cli.processes import ASKING, CHAIN, SLOW, call, ran, start, until, write
from tests.postgres import PostgresServer

TAGGED = """
workflow: {name: tagged, tags: [blue]}
steps:
  - {name: first, python: "acts.py:first"}
"""

RESTING = """
workflow: {name: resting}
steps:
  - {name: rest, wait: 30m}
"""

BOTH = """
workflow: {name: both}
steps:
  - name: together
    parallel:
      - {name: approve, ask: {prompt: "Publish it?", choices: ["yes", "no"]}}
      - {name: second, python: "acts.py:second"}
"""

SECRET = """
workflow: {name: secret}
steps:
  - {name: tell, shell: "echo {{ secrets.PHRASE }} >&2; exit 3"}
"""

PROGRAM = """
from holdfast import START, StateGraph

def work(state):
    return {"done": True}

graph = StateGraph(dict, name="program").add_node("work", work).add_edge(START, "work")
app = graph.compile("memory://")
"""


@pytest.fixture
def holdfast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls commands in a folder of their own, with its workflows in it."""
    monkeypatch.chdir(tmp_path)
    for name, text in [("chain", CHAIN), ("asking", ASKING), ("tagged", TAGGED), ("resting", RESTING)]:
        write(tmp_path, f"{name}.yaml", text)
    (tmp_path / "open").touch()
    return caller(capsys)


def work(holdfast: Call, *words: str) -> list[dict[str, Any]]:
    """Return what a worker prints until it is idle."""
    done = holdfast("worker", "--until-idle", "--json", *words)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.lines]


def kinds(told: list[dict[str, Any]]) -> dict[str, str]:
    """Return the last event of each run."""
    return {event["run_id"]: event["kind"] for event in told if "run_id" in event}


# Submitting.


def test_a_submitted_run_waits_for_a_worker_which_completes_it(holdfast: Call, tmp_path: Path) -> None:
    submitted = holdfast("submit", "chain.yaml", "--run-id", "r1")

    assert (submitted.code, submitted.out) == (0, "r1\n") and ran(tmp_path) == []
    assert holdfast("runs", "status", "r1").out.startswith("r1 queued, next: first")
    told = work(holdfast)
    assert [event["kind"] for event in told] == ["started", "taken", "completed", "stopped"]
    assert ran(tmp_path) == ["first", "second", "gated"]
    assert holdfast("show", "r1", "--output").json == {"result": "through", "count": 2}


def test_a_submit_is_told_as_json_and_a_key_is_one_run(holdfast: Call) -> None:
    words = ("submit", "tagged.yaml", "--key", "order 7", "--json")
    first = holdfast(*words, "--queue", "mail", "--priority", "-4").json
    second = holdfast(*words).json

    facts = {"status": "queued", "queue": "mail", "priority": -4, "due_at": None}
    assert {name: first[name] for name in facts} == facts and first["created"] is True
    assert second == {**first, "created": False}
    assert len(holdfast("runs", "--json").json["runs"]) == 1


def test_a_run_can_be_submitted_for_later(holdfast: Call) -> None:
    at = (dt.datetime.now().astimezone() + dt.timedelta(hours=2)).replace(microsecond=0)

    by_time = holdfast("submit", "tagged.yaml", "--json", "--at", at.isoformat()).json
    local = holdfast("submit", "tagged.yaml", "--json", "--at", at.replace(tzinfo=None).isoformat()).json
    by_delay = holdfast("submit", "tagged.yaml", "--json", "--delay", "1h30m").json

    assert dt.datetime.fromisoformat(by_time["due_at"]) == at
    assert dt.datetime.fromisoformat(local["due_at"]) == at
    assert dt.datetime.fromisoformat(by_delay["due_at"]) < at
    assert kinds(work(holdfast)) == {}
    listed = holdfast("runs")
    assert "DUE" in listed.lines[0] and at.strftime("%Y-%m-%d %H:%M:%S") in listed.out
    assert holdfast("show", by_time["run_id"]).out.count(at.strftime("due          %Y-%m-%d %H:%M")) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tagged.yaml", "-i", "x=1"), "'x'"),
        (("tagged.yaml", "--interrupt-before", "nowhere"), "there is no such step"),
        (("tagged.yaml", "--run-id", "r", "--key", "k"), "either --run-id or --key"),
        (("tagged.yaml", "--delay", "1h", "--at", "2030-01-01"), "either --delay or --at"),
        (("tagged.yaml", "--delay", "soon"), "--delay 'soon'"),
        (("tagged.yaml", "--at", "noon"), "is not a time such as"),
        (("tagged.yaml", "--queue", "a,b"), "a queue is named by"),
        (("tagged.yaml", "--priority", "high"), "not a valid integer"),
        (("tagged.yaml", "--priority", "2147483648"), "is not from -2147483647 to 2147483647"),
        (("tagged.yaml", "--store", "memory://"), "no other process finds a run"),
        (("tagged.yaml", "--key", ""), "a submit key is text"),
        (("missing.yaml",), "does not exist"),
    ],
)
def test_what_cannot_be_submitted_is_refused_and_nothing_is_stored(
    holdfast: Call, words: tuple[str, ...], told: str
) -> None:
    refused = holdfast("submit", *words)

    assert refused.code in (1, 2) and told in refused.err and refused.out == ""
    assert holdfast("runs", "--json").json["runs"] == []


def test_a_run_id_that_is_taken_is_refused(holdfast: Call) -> None:
    holdfast("submit", "tagged.yaml", "--run-id", "r1")

    refused = holdfast("submit", "tagged.yaml", "--run-id", "r1")

    assert refused.code == 2 and "choose another --run-id" in refused.err


# Handing over.


def test_gates_and_answers_of_a_submitted_run_are_handed_back_to_the_workers(
    holdfast: Call, tmp_path: Path
) -> None:
    holdfast("submit", "asking.yaml", "--run-id", "r1", "--interrupt-before", "second", "--queue", "a")
    told = work(holdfast)
    assert told[-2]["kind"] == "paused" and told[-2]["text"] == "approve"
    unanswered = holdfast("resume", "r1", "--detach")
    assert unanswered.code == 2 and "waits for 1 answer" in unanswered.err
    assert "approve: Publish it?" in unanswered.err and " answer r1 approve=yes" in unanswered.err

    answered = holdfast("answer", "r1", "yes")
    assert answered.lines[1] == "a worker of queue a resumes it"
    assert kinds(work(holdfast)) == {"r1": "paused"} and ran(tmp_path) == ["first"]
    assert " resume r1 --detach" in holdfast("show", "r1").out
    assert (
        holdfast("runs", "status", "r1", "--json")
        .json["pauses"][0]["command"]
        .endswith(" resume r1 --detach")
    )
    handed = holdfast("resume", "r1", "--detach", "--queue", "b", "--priority", "2")
    assert handed.out == "run r1 is queued; a worker of queue b resumes it\n"
    assert kinds(work(holdfast, "--queues", "a")) == {}
    assert kinds(work(holdfast, "--queues", "a,b")) == {"r1": "completed"}
    assert ran(tmp_path) == ["first", "second"]


def test_a_run_that_was_driven_here_goes_on_with_the_workers(holdfast: Call, tmp_path: Path) -> None:
    assert holdfast("run", "asking.yaml", "--run-id", "r1", "--no-interactive").code == 4

    wrong = holdfast("resume", "r1", "--detach", "--answer", "maybe")
    handed = holdfast("resume", "--detach", "--answer", "yes", "--json").json

    assert wrong.code == 2 and "must be one of" in wrong.err
    assert (handed["run_id"], handed["status"], handed["queue"]) == ("r1", "queued", "default")
    assert kinds(work(holdfast)) == {"r1": "completed"}
    done = holdfast("resume", "asking.yaml", "--detach")
    assert done.code == 2 and "nothing to resume" in done.err


def test_detach_refuses_what_it_would_not_heed(holdfast: Call) -> None:
    holdfast("run", "asking.yaml", "--run-id", "r1", "--no-interactive")

    for words in (("--plan",), ("--takeover",), ("-i", "x=1"), ("--events", "e"), ("--remap", "a=b")):
        refused = holdfast("resume", "r1", "--detach", *words)
        assert refused.code == 2 and "--detach takes" in refused.err, words
    refused = holdfast("resume", "r1", "--queue", "a")
    assert refused.code == 2 and "add --detach" in refused.err
    assert holdfast("runs", "status", "r1").code == 4


def test_a_run_that_waits_for_an_answer_and_at_a_gate_is_handed_over(holdfast: Call, tmp_path: Path) -> None:
    write(tmp_path, "both.yaml", BOTH)
    holdfast("submit", "both.yaml", "--run-id", "r1", "--interrupt-before", "second")
    assert kinds(work(holdfast)) == {"r1": "paused"}

    assert holdfast("resume", "r1", "--detach").code == 0
    assert kinds(work(holdfast)) == {"r1": "paused"} and ran(tmp_path) == ["second"]
    refused = holdfast("resume", "r1", "--detach", "--json")
    assert refused.code == 2 and "answer with: " in refused.json["error"]


def test_runs_of_the_fleet_are_resumed_by_its_workers(holdfast: Call, tmp_path: Path) -> None:
    (tmp_path / "open").unlink()
    holdfast("submit", "chain.yaml", "--run-id", "r1")

    told = next(event["text"] for event in work(holdfast) if event["kind"] == "failed")

    assert "the gate is closed" in told and told.endswith("resume with: holdfast resume r1 --detach")
    assert holdfast("show", "r1").lines[-1].endswith(" resume r1 --detach")
    holdfast("cancel", "r1")
    assert holdfast("steps", "replan", "r1", "first").lines[-1].endswith(" resume r1 --detach")
    (tmp_path / "open").touch()
    assert holdfast("resume", "r1", "--detach").code == 0 and kinds(work(holdfast)) == {"r1": "completed"}


# Workers.


def test_a_worker_with_flow_drives_those_files_alone_and_as_each_run_wishes(
    holdfast: Call, tmp_path: Path
) -> None:
    holdfast("submit", "chain.yaml", "--run-id", "r1", "--interrupt-after", "first")
    holdfast("submit", "chain.yaml", "--run-id", "r2")
    holdfast("submit", "tagged.yaml", "--run-id", "r3")

    assert kinds(work(holdfast, "--workflow", "chain.yaml")) == {"r1": "paused", "r2": "completed"}
    (tmp_path / "flows").mkdir()
    write(tmp_path / "flows", "tagged.yml", TAGGED)
    assert kinds(work(holdfast, "--workflow", "flows")) == {"r3": "completed"}


def test_a_worker_with_app_drives_the_runs_of_a_program(
    holdfast: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "store_front"):
        (tmp_path / f"{name}.py").write_text(PROGRAM.replace('"program"', f'"{name}"'))
    holdfast("submit", "tagged.yaml", "--run-id", "r0")
    store = open_store("sqlite:///.holdfast/runs.db")
    for name in ("shop", "store_front"):
        graph = StateGraph(dict, name=name).add_node("work", lambda state: None).add_edge(START, "work")
        graph.compile(store).submit({}, run_id=name)
    store.close()

    assert kinds(work(holdfast, "--app", "shop:app", "--app", "store_front:graph")) == {
        "shop": "completed",
        "store_front": "completed",
    }
    assert "shop" in sys.modules
    assert kinds(work(holdfast)) == {"r0": "completed"}


def test_a_run_of_a_program_tells_a_worker_that_does_not_know_it_what_is_missing(
    holdfast: Call, tmp_path: Path
) -> None:
    store = open_store("sqlite:///.holdfast/runs.db")
    graph = StateGraph(dict, name="w").add_node("work", lambda state: None).add_edge(START, "work")
    graph.compile(store).submit({}, run_id="r1")
    store.close()
    worker = start(tmp_path, "worker")
    assert worker.stderr is not None

    told = next(line for line in worker.stderr if "left to others" in line)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)

    assert "runs of workflow 'w'" in told and "holdfast worker --app MODULE:NAME" in told
    assert worker.returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--app", "shop"), "is not of the form MODULE:NAME"),
        (("--app", "no_such_shop:app"), "there is no module 'no_such_shop'"),
        (("--app", "broken_shop:app"), "importing broken_shop fails: ZeroDivisionError"),
        (("--app", "hungry_shop:app"), "hungry_shop needs the package 'no_such_food'"),
        (("--app", "json:app"), "there is no 'app' in 'json'"),
        (("--app", "json:dumps"), "is function, not a workflow function, an App or a StateGraph"),
        (("--workflow", "empty"), "there are no workflow files"),
        (("--workflow", "chain.yaml", "--workflow", "chain.yaml"), "two workflow files are named 'chain'"),
        (("--workflow", "nowhere.yaml"), "does not exist"),
        (("--queues", "a,,b"), "is not a list of names"),
        (("--lease", "5"), "--lease is for PostgreSQL"),
        (("--concurrency", "0"), "0 is not in the range"),
        (("--store", "memory://"), "no other process finds a run"),
    ],
)
def test_a_worker_that_makes_no_sense_is_refused(
    holdfast: Call, tmp_path: Path, words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_shop.py").write_text("1 / 0")
    (tmp_path / "hungry_shop.py").write_text("import no_such_food")
    (tmp_path / "empty").mkdir()

    refused = holdfast("worker", "--until-idle", *words)

    assert refused.code == 2 and told in refused.err


def test_what_a_worker_tells_has_no_secrets_in_it(
    holdfast: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHRASE", "open sesame")
    write(tmp_path, "secret.yaml", SECRET)
    holdfast("submit", "secret.yaml", "--run-id", "r1")

    done = holdfast("worker", "--until-idle")

    assert done.code == 0 and "r1 secret: failed: " in done.err and done.out == ""
    assert "sesame" not in done.err
    assert holdfast("runs", "status", "r1").code == 1


def test_a_worker_tells_harmless_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = WorkerLines("w", False, lambda text: text.replace("sesame", "***"), "sqlite:///x.db")

    lines.tell(WorkerEvent("failed", "r1", "wf", "q", "open sesame \x1b[31m\n red"))
    lines.tell(WorkerEvent("conflict", "r1", "wf", "q", "it was faster"))
    lines.tell(WorkerEvent("paused", "r1", "wf", "q"))

    told = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "r1 wf: failed: open *** red",
        "r1 wf: left to another worker: it was faster",
        "r1 wf: paused",
    ]


def test_a_sleeping_run_is_left_until_its_time_and_shown_as_such(holdfast: Call) -> None:
    holdfast("submit", "resting.yaml", "--run-id", "r1")

    done = holdfast("worker", "--until-idle", "--name", "the night shift")

    assert "worker the night shift executes runs of every queue" in done.err
    assert "r1 resting: released until " in done.err
    shown = holdfast("show", "r1")
    assert "queue        default" in shown.out and "due          2" in shown.out
    assert (
        "takes no answer; it goes on when its time has come" in shown.out and "answer with" not in shown.out
    )
    assert "rest: asleep until " in holdfast("runs", "status", "r1").out
    [pause] = holdfast("show", "r1", "--json").json["pauses"]
    assert " resume r1" in pause["command"]


def test_a_worker_that_is_told_to_stop_hands_its_runs_over(holdfast: Call, tmp_path: Path) -> None:
    """Steps under way finish; the next worker goes on after them."""
    (tmp_path / "open").unlink()
    write(
        tmp_path,
        "slow.yaml",
        SLOW.replace("output:", '  - {name: second, python: "acts.py:second"}\noutput:'),
    )
    holdfast("submit", "slow.yaml", "--run-id", "r1")
    worker = start(tmp_path, "worker", "--json")
    until(lambda: ran(tmp_path) == ["first", "slow"])

    worker.send_signal(signal.SIGTERM)
    (tmp_path / "open").touch()
    out, err = worker.communicate(timeout=60)

    assert worker.returncode == 0, err
    assert [json.loads(line)["kind"] for line in out.splitlines()] == [
        "started",
        "taken",
        "queued",
        "stopped",
    ]
    assert holdfast("runs", "status", "r1").out.startswith("r1 queued") and ran(tmp_path) == ["first", "slow"]
    assert kinds(work(holdfast)) == {"r1": "completed"}
    assert ran(tmp_path) == ["first", "slow", "second"]


def test_a_second_signal_stops_a_worker_at_once(holdfast: Call, tmp_path: Path) -> None:
    (tmp_path / "open").unlink()
    write(tmp_path, "slow.yaml", SLOW.replace('python: "acts.py:slow"', 'shell: "echo x >> begun; sleep 60"'))
    holdfast("submit", "slow.yaml", "--run-id", "r1")
    worker = start(tmp_path, "worker", "--grace", "50")
    until((tmp_path / "begun").exists)

    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)

    assert worker.returncode == 0 and "r1 slow: released" in err, err
    assert holdfast("runs", "--status", "queued", "--json").json["runs"][0]["run_id"] == "r1"


def test_status_waits_for_a_run_that_a_worker_will_drive(holdfast: Call, tmp_path: Path) -> None:
    holdfast("submit", "tagged.yaml", "--run-id", "r1")
    waiting = start(tmp_path, "runs", "status", "r1", "--wait", "--every", "0.05")
    assert call(tmp_path, "runs", "status", "r1").stdout.startswith("r1 queued") and waiting.poll() is None

    work(holdfast)
    out, err = waiting.communicate(timeout=60)

    assert (waiting.returncode, out) == (0, "r1 completed\n"), err


# Looking.


def test_a_run_that_lost_its_worker_counts_as_running(holdfast: Call, tmp_path: Path) -> None:
    """Another worker resumes it, and whoever waits for the run still waits."""
    (tmp_path / "open").unlink()
    write(tmp_path, "slow.yaml", SLOW)
    holdfast("submit", "slow.yaml", "--run-id", "r1")
    worker = start(tmp_path, "worker")
    until(lambda: ran(tmp_path) == ["first", "slow"])
    worker.kill()
    worker.communicate(timeout=60)

    lost = holdfast("runs", "status", "r1")
    assert lost.code == 0 and lost.out.startswith(
        "r1 running (its process is gone; a worker resumes it), next"
    )
    assert "orphaned" in holdfast("runs").lines[1]
    assert [line["dead"] for line in holdfast("runs", "--status", "orphaned", "--json").json["runs"]] == [
        True
    ]
    assert holdfast("runs", "--status", "dead", "--status", "running", "--json").json["runs"] == []
    shown = holdfast("show", "r1").out
    assert "a worker resumes it" in shown and "resume with" not in shown
    checks = {check["name"]: check["text"] for check in holdfast("doctor", "--json").json["checks"]}
    assert "r1" in checks["orphaned runs"] and "dead runs" not in checks
    (tmp_path / "open").touch()
    waiting = start(tmp_path, "runs", "status", "r1", "--wait", "--every", "0.05")
    assert kinds(work(holdfast)) == {"r1": "completed"}
    assert waiting.communicate(timeout=60)[0] == "r1 completed\n"


def test_runs_are_found_by_queue_and_tag(holdfast: Call) -> None:
    holdfast("submit", "tagged.yaml", "--run-id", "r1", "--queue", "a")
    holdfast("submit", "chain.yaml", "--run-id", "r2", "--queue", "a", "--priority", "7")
    holdfast("run", "chain.yaml", "--run-id", "r3")

    def found(*words: str) -> list[str]:
        return [line["run_id"] for line in holdfast("runs", "--json", *words).json["runs"]]

    assert found("--queue", "a") == ["r2", "r1"] and found("--tag", "blue") == ["r1"]
    assert found("--queue", "a", "--limit", "1") == ["r2"] and found("--tag", "blue", "--queue", "b") == []
    assert "that match" in holdfast("runs", "--tag", "green").out
    facts = holdfast("show", "r2", "--json").json
    assert (facts["queue"], facts["priority"], facts["due_at"], facts["held"]) == ("a", 7, None, None)
    assert "queue        a, priority 7" in holdfast("show", "r2").out
    assert "\nqueue " not in holdfast("show", "r3").out


def test_queues_are_listed_on_any_store(holdfast: Call) -> None:
    """R2.5: how many runs are queued, running and paused."""
    assert "no runs wait in " in holdfast("queue", "list").out
    for words in (("--queue", "a"), ("--queue", "a", "--delay", "1h"), ("--queue", "b")):
        holdfast("submit", "tagged.yaml", *words)

    first, second = holdfast("queue", "list", "--json").json["queues"]

    assert (first["queue"], first["queued"], first["due"], first["running"]) == ("a", 2, 1, 0)
    assert second["oldest_seconds"] >= 0 and second["max_running"] is None
    assert holdfast("queue", "list").lines[1].split()[:3] == ["a", "2", "1"]


def test_schedules_and_limits_of_other_stores_are_refused_and_no_store_is_made(
    holdfast: Call, tmp_path: Path
) -> None:
    for words in (
        ("schedule", "list"),
        ("schedule", "add", "s", "tagged.yaml", "--cron", "@daily"),
        ("queue", "pause", "a"),
        ("queue", "set", "a", "--max-running", "1"),
    ):
        refused = holdfast(*words)
        assert refused.code == 3 and "kept by PostgreSQL alone" in refused.err, words
    assert not (tmp_path / ".holdfast").exists()


def test_the_next_times_of_an_expression_need_no_store(holdfast: Call) -> None:
    weekly = ("schedule", "next", "30 9 * * MON", "--zone", "Asia/Tokyo", "--count", "3")

    times = [dt.datetime.fromisoformat(time) for time in holdfast(*weekly, "--json").json["times"]]

    assert [time.strftime("%a %H:%M") for time in times] == ["Mon 09:30"] * 3
    assert times[2] - times[0] == dt.timedelta(days=14)
    assert holdfast(*weekly).lines[0] == f"{times[0]:%a %Y-%m-%d %H:%M} JST"
    for words, told in [(("99 * * * *",), "minute field"), (("@daily", "--zone", "Mars"), "no time zone")]:
        refused = holdfast("schedule", "next", *words)
        assert refused.code == 2 and told in refused.err


# On PostgreSQL.


@pytest.fixture
def pg(holdfast: Call, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The same with a PostgreSQL store."""
    monkeypatch.setenv("HOLDFAST_STORE", postgres_url)
    return holdfast


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


def test_queues_are_limited_paused_and_let_go_again(pg: Call, postgres_url: str) -> None:
    pg("submit", "tagged.yaml", "--run-id", "r1", "--queue", "mail")

    assert pg("queue", "set", "mail", "--max-running", "3").out == "queue mail: 3 at once\n"
    limited = pg("queue", "set", "mail", "--rate", "100/60", "--json").json
    assert limited == {
        "queue": "mail",
        "max_running": 3,
        "rate": {"starts": 100, "seconds": 60.0},
        "is_paused": False,
    }
    assert pg("queue", "pause", "mail").out == "queue mail: paused, 3 at once, 100 in 1m00s\n"
    line = pg("queue", "list").lines[1]
    assert line.split()[:6] == ["mail", "1", "1", "0", "0", "0"] and line.endswith(
        "paused, 3 at once, 100 in 1m00s"
    )
    assert kinds(work(pg)) == {}, "what waits in a paused queue keeps nobody waiting"
    assert pg("queue", "resume", "mail").code == 0
    assert pg("queue", "unset", "mail").out == "queue mail: no limits\n"
    assert kinds(work(pg, "--lease", "5")) == {"r1": "completed"}
    for words, told in [
        ((), "say what the limit is"),
        (("--rate", "fast"), "is not N/SECONDS"),
        (("--rate", "1/"), "is not N/SECONDS"),
        (("--rate", "1/0"), "more than 0"),
        (("--max-running", "0"), "not in the range"),
    ]:
        refused = pg("queue", "set", "mail", *words)
        assert refused.code == 2 and told in refused.err, words


def test_a_schedule_submits_its_runs_through_a_worker(
    pg: Call, postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    added = pg(
        "schedule", "add", "often", "chain.yaml", "--cron", "0 0 1 1 *", "--queue", "q", "--priority", "3"
    )
    assert added.code == 0 and "schedule often submits chain next at " in added.out
    again = pg("schedule", "add", "often", "chain.yaml", "--cron", "@daily")
    assert again.code == 2 and "already; replace it with --replace, or choose another" in again.err
    replaced = pg("schedule", "add", "often", "chain.yaml", "--cron", "@hourly", "--replace", "--json").json
    assert (replaced["cron"], replaced["queue"], replaced["priority"]) == ("@hourly", "default", 0)
    assert "@" in replaced["created_by"]
    postgres_server.sql(f"UPDATE {schema_of(postgres_url)}.schedule SET next_at = now() - interval '1 h'")

    worker = start(tmp_path, "worker", "--json")
    assert worker.stdout is not None
    done = next(found for line in worker.stdout if (found := json.loads(line))["kind"] == "completed")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)

    [line] = pg("schedule", "list", "--json").json["schedules"]
    assert line["last_run"] == done["run_id"] and line["trouble"] is None and line["workflow"] == "chain"
    assert ran(tmp_path) == ["first", "second", "gated"]
    assert line["last_run"] in pg("schedule", "list").out


def test_schedules_are_paused_resumed_and_removed(pg: Call) -> None:
    pg("schedule", "add", "s", "asking.yaml", "--cron", "0 9 * * 1-5", "--zone", "Europe/Berlin")

    assert pg("schedule", "pause", "s").out == "schedule s is paused\n"
    assert pg("schedule", "list").lines[1].endswith(" paused")
    assert pg("schedule", "list", "--json").json["schedules"][0]["next_at"] is None
    assert "submits asking next at" in pg("schedule", "resume", "s").out
    unknown = pg("schedule", "resume", "S").err
    assert "did you mean 's'?; `holdfast schedule list` lists those that are there" in unknown
    assert pg("schedule", "remove", "s", "--json").json == {"name": "s", "removed": True}
    assert "no schedules in postgresql:" in pg("schedule", "list").out
    for words, told in [
        (("pause", "s"), "there is no schedule 's'"),
        (("add", "s", "asking.yaml", "--cron", "0 0 30 2 *"), "a day that no such month has"),
        (("add", "s", "asking.yaml", "--cron", "@daily", "-i", "x=1"), "'x'"),
        (("add", " ", "asking.yaml", "--cron", "@daily"), "a schedule is named by"),
    ]:
        refused = pg("schedule", *words)
        assert refused.code == 2 and told in refused.err, words


def test_a_run_that_is_held_back_says_why_and_gets_another_chance(
    pg: Call, postgres_url: str, postgres_server: PostgresServer
) -> None:
    pg("submit", "tagged.yaml", "--run-id", "r1")
    postgres_server.sql(f"UPDATE {schema_of(postgres_url)}.run SET held = 'it kills workers', strikes = 3")

    assert kinds(work(pg)) == {}
    assert "held         it kills workers" in pg("show", "r1").out
    assert pg("show", "r1", "--json").json["held"] == "it kills workers"
    assert pg("queue", "list", "--json").json["queues"][0]["held"] == 1
    status = pg("runs", "status", "r1", "--wait")
    assert status.code == 1 and status.out.startswith("r1 queued, held: it kills workers; let workers try")
    assert status.out.endswith(" resume r1 --detach\n") and pg("show", "r1").lines[-1].endswith(" --detach")
    facts = pg("runs", "status", "r1", "--json").json
    assert (facts["held"], facts["exit_code"]) == ("it kills workers", 1)
    assert pg("resume", "r1", "--detach").code == 0
    assert kinds(work(pg)) == {"r1": "completed"}


def test_a_missing_server_is_a_clear_error(holdfast: Call) -> None:
    url = "postgresql://localhost:1/nowhere?timeout=0"

    for words in (
        ("submit", "tagged.yaml"),
        ("worker", "--until-idle"),
        ("queue", "list"),
        ("schedule", "list"),
    ):
        refused = holdfast(*words, "--store", url)
        assert refused.code == 3 and "cannot reach postgresql://localhost:1/nowhere" in refused.err, words


def test_the_command_line_as_people_call_it(holdfast: Call, tmp_path: Path) -> None:
    """In processes of their own, with warnings as errors."""
    submitted = call(tmp_path, "submit", "tagged.yaml")
    done = call(tmp_path, "worker", "--until-idle")

    assert submitted.returncode == done.returncode == 0 and submitted.stderr == ""
    assert f"{submitted.stdout.strip()} tagged: completed" in done.stderr and done.stdout == ""


def test_a_queue_takes_no_more_than_so_many_active_runs(holdfast: Call) -> None:
    """R2.5: the number of active jobs is bounded, and the same key is still the same run."""
    for _ in range(2):
        assert holdfast("submit", "resting.yaml", "--max-active", "1", "--key", "a").code == 0
    refused = holdfast("submit", "resting.yaml", "--max-active", "1")
    elsewhere = holdfast("submit", "resting.yaml", "--max-active", "1", "--queue", "other")

    assert refused.code == 1 and "queue 'default' has 1 active run, and --max-active is 1" in refused.err
    assert elsewhere.code == 0


def test_the_timeout_of_a_run_is_kept_with_it(holdfast: Call) -> None:
    """R2.5: the time of a job is bounded, however its file is."""
    late = holdfast("run", "resting.yaml", "--run-id", "r1", "--timeout", "100ms")
    again = holdfast("resume", "r1")
    wrong = holdfast("run", "resting.yaml", "--timeout", "0s")

    assert late.code == again.code == 1 and "time limit" in late.err and "time limit" in again.err
    assert wrong.code == 2 and "more than 0 seconds" in wrong.err


def test_a_worker_trims_the_history(holdfast: Call) -> None:
    holdfast("submit", "chain.yaml", "--run-id", "done")
    assert holdfast("worker", "--until-idle").code == 0
    assert holdfast("worker", "--until-idle", "--history", "0", "--history-age", "1d").code == 0

    assert "done" not in holdfast("runs", "--json").out
