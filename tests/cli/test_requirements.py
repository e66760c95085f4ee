"""Workflow files through the real command line: every kind of step, and what the earlier designs asked of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agents.llm_server import LlmServer, rate_limit, reply
from tests.cli import processes


class Called(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


def call(*words: str, cwd: Path, env: dict[str, str] | None = None) -> Called:
    done = processes.call(cwd, *words, env=processes.environment(**(env or {})))
    return Called(done.returncode, done.stdout, done.stderr)


SECRET = "correct-horse-battery"


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        answer = json.dumps(
            {"path": self.path, "body": json.loads(body), "token": self.headers.get("X-Token")}
        )
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


EVERY_KIND = """
workflow:
  name: every-kind
  description: One step of every kind
  inputs:
    who: {type: string, required: true}
  vars: {greeting: Hello}
  checkpoint: {durability: process}
steps:
  - name: values
    set: {text: "{{ vars.greeting }}, {{ inputs.who }}"}
  - name: command
    shell: |
      printf '{"words": %s, "secret": "%s"}' 2 "{{ secrets.TOKEN }}"
  - name: request
    http:
      url: "${SERVER}/echo?from={{ workflow.name }}"
      headers: {X-Token: "{{ secrets.TOKEN }}"}
      json: {words: "{{ steps.command.output.words }}"}
  - name: model
    agent:
      model: openai:test
      base_url: ${LLM}
      prompt: "Say {{ steps.values.output.text }}"
      api_key: "{{ secrets.TOKEN }}"
      price: {input: 1, output: 2}
    retry: {attempts: 3, delay: 10ms}
  - name: function
    python: own.py:shout
    with: {text: "{{ steps.model.output }}"}
  - name: moment
    wait: 10ms
  - name: together
    parallel:
      - {name: left, set: {n: 1}}
      - {name: right, shell: echo 2}
  - name: inner
    workflow: inner.yaml
    with: {n: "{{ steps.together.outputs.right }}"}
  - name: keep
    checkpoint: {save: kept.pkl}
  - name: each
    for_each: {in: {a: 1, b: 2}}
    set: {twice: "{{ item * 2 }}"}
  - name: question
    ask: {prompt: "Is {{ steps.function.output }} loud enough?", choices: [yes, no]}
    routes:
      - {to: good, when: "answer == 'yes'"}
      - {to: bad}
  - name: good
    end: {status: success, reason: fine}
  - name: bad
    end: {status: failure, reason: "{{ steps.function.output }} was too quiet"}
output:
  shouted: "{{ steps.function.output }}"
  request: "{{ steps.request.output }}"
  status: "{{ steps.request.status_code }}"
  inner: "{{ steps.inner.output }}"
  twice: "{{ steps.each.outputs }}"
  left: "{{ steps.left.output.n }}"
"""
INNER = """
workflow: {name: inner, inputs: {n: {type: integer}}}
steps:
  - {name: more, set: {n: "{{ inputs.n + 1 }}"}}
output: "{{ steps.more.output.n }}"
"""


@pytest.fixture
def every_kind(tmp_path: Path, server: str) -> Iterator[tuple[Path, dict[str, str], LlmServer]]:
    (tmp_path / "every.yaml").write_text(EVERY_KIND)
    (tmp_path / "inner.yaml").write_text(INNER)
    (tmp_path / "own.py").write_text("def shout(text):\n    return text.upper() + '!'\n")
    with LlmServer() as llm:
        llm.script([rate_limit(retry_after=0), reply("hello there")])
        yield tmp_path, {"SERVER": server, "LLM": llm.url, "TOKEN": SECRET}, llm


def test_every_kind_of_step_runs_from_the_command_line(
    every_kind: tuple[Path, dict[str, str], LlmServer],
) -> None:
    """R1.1, R1.2, R1.3, R1.4, R1.5, R1.7, R1.8, R1.14, R2.1-R2.3, R4.4, R4.5: the format and its kinds of steps."""
    folder, env, _ = every_kind

    first = call("run", "every.yaml", "--input", "who=Ada", "--run-id", "r", "--json", cwd=folder, env=env)
    assert first.code == 4, first
    assert json.loads(first.out)["pauses"][0]["prompt"] == "Is HELLO THERE! loud enough?"
    second = call("resume", "r", "--answer", "yes", "--json", cwd=folder, env=env)

    assert second.code == 0, second
    done = json.loads(second.out)
    assert done["output"] == {
        "shouted": "HELLO THERE!",
        "request": {"path": "/echo?from=every-kind", "body": {"words": 2}, "token": "***"},
        "status": 201,
        "inner": 3,
        "twice": [{"twice": 2}, {"twice": 4}],
        "left": 1,
    }
    assert done["cost"] == pytest.approx(20e-6)
    assert (folder / "kept.pkl").exists()


def test_a_workflow_may_end_in_failure(every_kind: tuple[Path, dict[str, str], LlmServer]) -> None:
    """R1.14: terminate with a reason."""
    folder, env, _ = every_kind
    call("run", "every.yaml", "--input", "who=Ada", "--run-id", "r", cwd=folder, env=env)

    done = call("resume", "r", "--answer", "no", cwd=folder, env=env)

    assert done.code == 1 and "HELLO THERE! was too quiet" in done.err


def test_a_secret_is_nowhere_on_disk_nor_in_any_output(
    every_kind: tuple[Path, dict[str, str], LlmServer],
) -> None:
    """R2.7: secrets are redacted in the journal, in logs, events, outputs and errors."""
    folder, env, llm = every_kind
    arguments = ["--run-id", "r", "--events", "events.jsonl", "--debug"]
    first = call("run", "every.yaml", "--input", "who=Ada", *arguments, cwd=folder, env=env)
    second = call("resume", "r", "--answer", "no", "--events", "events.jsonl", "--debug", cwd=folder, env=env)
    looks = [call(*words, cwd=folder, env=env) for words in (["show", "r", "--state"], ["events", "r"])]

    assert llm.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    for told in (first, second, *looks):
        assert SECRET not in told.out + told.err
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in written) and any(path.suffix == ".jsonl" for path in written)
    for path in written:
        assert SECRET.encode() not in path.read_bytes(), path


RATE_LIMITED = """
workflow:
  name: limited
  checkpoint:
    enabled: true
    storage: sqlite
    path: saved/${workflow.name}
    on_failure: pause
    retention: {max_checkpoints: 10, max_age_days: 7, keep_successful: true}
  limits: {max_iterations: 10, timeout: 1h, budget: 1}
steps:
  - {name: cheap, shell: echo done >> ledger}
  - name: costly
    agent: {model: "openai:test", base_url: "${LLM}", prompt: hello, price: {input: 1, output: 1}}
    retry: {attempts: 1}
output: {said: "{{ steps.costly.output }}"}
"""


def test_a_rate_limit_is_resumed_from_the_command_line_by_the_workflows_name(tmp_path: Path) -> None:
    """S1.6-S1.9, S1.15, R1.6, R1.9, R1.11, R1.15: the checkpoint block, failures, and the commands around them."""
    (tmp_path / "limited.yaml").write_text(RATE_LIMITED)
    with LlmServer() as llm:
        env = {"LLM": llm.url, "HOLDFAST_STORE": f"sqlite:///{tmp_path}/saved/limited/runs.db"}

        def holdfast(*words: str) -> Called:
            return call(*words, cwd=tmp_path, env=env)

        llm.script([rate_limit(), reply("at last")])
        failed = holdfast("run", "limited.yaml", "--run-id", "r")
        assert failed.code == 1 and "429" in failed.err and "resume r" in failed.err
        assert json.loads(holdfast("runs", "status", "r", "--json").out)["status"] == "failed"
        plan = holdfast("resume", "limited", "--plan")
        assert plan.code == 0 and "kept" in plan.out and len(llm.requests) == 1
        done = holdfast("resume", "limited", "--json")
        assert done.code == 0 and json.loads(done.out)["output"] == {"said": "at last"}
        assert (tmp_path / "ledger").read_text() == "done\n"
        listed = json.loads(holdfast("checkpoints", "list", "--workflow", "limited", "--json").out)
        assert listed
        assert holdfast("checkpoints", "prune", "--older-than", "7d", "--yes").code == 0
        assert holdfast("checkpoints", "clear", "limited", "--yes").code == 0
        assert holdfast("runs", "status", "r").code != 0


def test_the_budget_holds_over_resumes(tmp_path: Path) -> None:
    """R1.6: the budget is enforced across resumes, and nothing is counted twice."""
    more = "  - {name: more, agent: {model: 'openai:test', base_url: '${LLM}', prompt: more}}\noutput: {said"
    text = RATE_LIMITED.replace("budget: 1", "budget: 0.00001").replace("output: {said", more)
    (tmp_path / "limited.yaml").write_text(text)
    with LlmServer() as llm:
        env = {"LLM": llm.url}
        first = call("run", "limited.yaml", "--run-id", "r", cwd=tmp_path, env=env)
        second = call(
            "resume", "r", "--store", f"sqlite:///{tmp_path}/saved/limited/runs.db", cwd=tmp_path, env=env
        )

        assert first.code == 1 and "budget" in first.err
        assert second.code == 1 and "budget" in second.err and len(llm.requests) == 1


def test_gates_from_the_command_line_and_from_the_file_stop_the_run(tmp_path: Path) -> None:
    """R4.6: a gate set from the command line stops the run, and passing it goes on."""
    (tmp_path / "two.yaml").write_text(
        "workflow: {name: two}\nsteps:\n  - {name: a, set: {n: 1}}\n  - {name: b, set: {n: 2}, interrupt: before}\n"
    )

    stopped = call("run", "two.yaml", "--run-id", "r", "--interrupt-after", "a", cwd=tmp_path)
    assert stopped.code == 4
    gate = call("resume", "r", cwd=tmp_path)
    assert gate.code == 4
    done = call("resume", "r", "--json", cwd=tmp_path)

    assert done.code == 0 and json.loads(done.out)["output"] == {"n": 2}


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_the_event_stream_can_be_kept_and_followed(tmp_path: Path, flag: list[str]) -> None:
    """R1.10: events go to the console and into a file, and can be read back from the journal."""
    (tmp_path / "one.yaml").write_text("workflow: {name: one}\nsteps:\n  - {name: a, set: {n: 1}}\n")

    done = call("run", "one.yaml", "--run-id", "r", "--events", "log/events.jsonl", *flag, cwd=tmp_path)

    assert done.code == 0
    kinds = [json.loads(line)["type"] for line in (tmp_path / "log/events.jsonl").read_text().splitlines()]
    assert "node.start" in kinds and "graph.complete" in kinds
    assert call("events", "r", *flag, cwd=tmp_path).out


def test_hooks_are_told_how_a_run_goes_and_cannot_harm_it(tmp_path: Path) -> None:
    """R1.14: hooks on_start, on_complete and on_error."""
    text = """
workflow:
  name: told
  tags: [nightly]
  hooks:
    on_start: echo "$HOLDFAST_WORKFLOW $HOLDFAST_RUN_ID $HOLDFAST_STATUS" >> told; exit 3
    on_complete: echo "$HOLDFAST_STATUS" >> told
    on_error: echo "$HOLDFAST_STATUS $HOLDFAST_ERROR" >> told
steps:
  - {name: a, shell: test -e open}
"""
    (tmp_path / "told.yaml").write_text(text)

    assert call("run", "told.yaml", "--run-id", "r", cwd=tmp_path).code == 1
    (tmp_path / "open").touch()
    done = call("resume", "r", cwd=tmp_path)

    assert done.code == 0 and "hook on_start ended with code 3" in done.err
    told = (tmp_path / "told").read_text().splitlines()
    assert told[0] == told[2] == "told r running" and told[3] == "completed"
    assert told[1].startswith("failed") and "ended with code 1" in told[1]
    assert json.loads(call("show", "r", "--json", cwd=tmp_path).out)["tags"] == ["nightly"]
