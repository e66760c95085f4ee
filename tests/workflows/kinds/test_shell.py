"""`shell` steps, with real processes: what they are given, what they leave, and that they always end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.values import RunStatus
from holdfast.workflows.kinds import shell as process
from holdfast.workflows.kinds.shell import Command
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.scope import StepFailed, StepTimedOut
from tests.graphs import Heard
from tests.workflows.workshop import Workshop

PATH = {"PATH": os.environ["PATH"]}


def run(script: str, **options: Any) -> process.Finished:
    return Command(script, **{"env": PATH, **options}).run(lambda: False, lambda line: None)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


# What comes out.


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo hello", "hello"),
        ("printf 'a\\n\\n'", "a\n"),
        ("printf 'a\\r\\n'", "a"),
        ("""echo '{"n": [1, 2.5, null]}'""", {"n": [1, 2.5, None]}),
        ("echo 12", 12),
        ("echo true", True),
        ("echo 007", "007"),
        ("echo NaN", "NaN"),
        ("echo 12e4567", "12e4567"),
        ("true", ""),
        ("echo '{broken'", "{broken"),
    ],
)
def test_what_a_command_prints_is_its_output(shop: Workshop, command: str, output: Any) -> None:
    found = shop.step(f"steps: [{{name: x, shell: {json.dumps(command)}}}]")

    assert found["output"] == output
    assert (found["status"], found["exit_code"], found["stderr"]) == ("completed", 0, "")


@pytest.mark.parametrize(
    ("form", "command", "output"),
    [
        ("text", "echo 12", "12\n"),
        ("lines", "printf 'a b\\n\\nc\\n'", ["a b", "", "c"]),
        ("lines", "printf 'a\\013b\\n'", ["a\x0bb"]),
        ("lines", "true", []),
        ("json", "echo '[1]'", [1]),
    ],
)
def test_output_in_a_form_that_is_asked_for(shop: Workshop, form: str, command: str, output: Any) -> None:
    text = f"steps: [{{name: x, shell: {{run: {json.dumps(command)}, output: {form}}}}}]"

    assert shop.step(text)["output"] == output


def test_output_that_was_to_be_json_and_is_not(shop: Workshop) -> None:
    told = shop.error("steps: [{name: x, shell: {run: 'echo no', output: json}}]")

    assert "'x'" in told and "was to print JSON and did not" in told and "'no\\n'" in told


def test_output_that_is_not_utf_8(shop: Workshop) -> None:
    found = shop.step("""steps: [{name: x, shell: "printf 'a\\\\377b'; printf '\\\\376' >&2"}]""")

    assert (found["output"], found["stderr"]) == ("a\ufffdb", "\ufffd")


def test_a_failure_tells_the_code_and_the_end_of_what_was_said(shop: Workshop) -> None:
    told = shop.error("steps: [{name: x, shell: 'seq 100 >&2; echo it broke >&2; exit 3'}]")

    assert "the command ended with code 3" in told and "100\nit broke" in told
    assert "\n50\n" not in told


def test_a_command_that_is_killed_tells_the_signal(shop: Workshop) -> None:
    assert "was ended by signal 9" in shop.error("steps: [{name: x, shell: 'kill -9 $$'}]")


def test_other_codes_can_be_good(shop: Workshop) -> None:
    found = shop.step("steps: [{name: x, shell: {run: 'exit 2', ok_codes: [0, 2]}}]")

    assert (found["status"], found["exit_code"]) == ("completed", 2)


def test_a_long_standard_error_is_kept_at_its_end(shop: Workshop) -> None:
    found = shop.step("steps: [{name: x, shell: 'yes 0123456789 | head -c 3000000 >&2; echo last >&2'}]")

    assert len(found["stderr"]) <= process.KEPT_ERRORS and found["stderr"].endswith("last\n")


def test_output_beyond_the_bound_fails_the_step_and_ends_the_command(shop: Workshop) -> None:
    told = shop.error("steps: [{name: x, shell: 'echo $$ > pid; yes'}]")

    assert "more than 10 MB" in told
    wait_for(lambda: is_gone(int((shop.folder / "pid").read_text())))


def test_lines_of_standard_error_are_told_as_they_come(shop: Workshop) -> None:
    heard = Heard()
    shop.run("steps: [{name: x, shell: 'echo one >&2; sleep 0.2; echo two >&2'}]", observer=heard)

    told = [event.data["message"] for event in heard.events if event.type == "node.message"]
    assert told == ["one", "two"]


# What goes in.


def test_values_arrive_as_they_are_and_are_never_run(shop: Workshop) -> None:
    nasty = "a'b\"c; touch broken $(touch broken) `touch broken` \\ \n|&<> $HOME *"
    text = """
        workflow:
          name: test
          inputs: {nasty: {}}
        steps:
          - name: x
            shell:
              run: |
                printf '%s|' {{ inputs.nasty }} "{{ inputs.nasty }}" '{{ inputs.nasty }}'
              output: text
        """

    found = shop.step(text, {"nasty": nasty})

    assert found["output"] == f"{nasty}|" * 3
    assert not (shop.folder / "broken").exists()


HEAD = """
workflow:
  name: test
  inputs: {x: {}}
steps:
  - name: x
    shell:
      shell: bash
"""
TOUCHES = "a[$(touch PWNED)]"


@pytest.mark.parametrize(
    "step",
    [
        """run: 'echo {{ inputs.x }}; [ -v "$HOLDFAST_VALUE_1" ]'""",
        """run: 'echo {{ inputs.x }}; test -v "$HOLDFAST_VALUE_1"'""",
        """run: 'if [ -v "$HOLDFAST_VALUE_1" ]; then echo {{ inputs.x }}; fi'""",
        """run: 'echo {{ inputs.x }}; [ -v "$N" ]'\n      env: {N: "{{ inputs.x }}"}""",
        """run: 'echo {{ inputs.x }}; [ "$O" "$N" ]'\n      env: {O: '-v', N: "{{ inputs.x }}"}""",
        """run: 'echo {{ inputs.x }}'\n      env: {BASH_ENV: "{{ inputs.x }}"}""",
    ],
)
def test_a_value_is_not_run_by_bash_where_it_reads_variables_as_code(shop: Workshop, step: str) -> None:
    with contextlib.suppress(ExecutionError, WorkflowInvalid):
        shop.run(f"{HEAD}      {step}", {"x": TOUCHES})

    assert not (shop.folder / "PWNED").exists()


@pytest.mark.parametrize(
    "name",
    ["BASH_ENV", "ENV", "PS4", "PATH", "IFS", "LD_PRELOAD", "PYTHONPATH", "GIT_SSH_COMMAND", "BASH_FUNC_a%%"],
)
def test_variables_that_decide_what_is_run_take_text_but_no_values(shop: Workshop, name: str) -> None:
    with pytest.raises(WorkflowInvalid, match="a value cannot be put into"):
        shop.load(HEAD + f"      run: echo\n      env: {{{name!r}: 'a{{{{ inputs.x }}}}'}}")

    shop.load(HEAD + f"      run: echo\n      env: {{{name!r}: 'a', GIT_AUTHOR_NAME: '{{{{ inputs.x }}}}'}}")


@pytest.mark.parametrize("program", ["./charge.sh", "bin/charge", "bash charge.sh"])
def test_a_value_does_not_choose_the_folder_of_a_program(shop: Workshop, program: str) -> None:
    text = HEAD + f"      run: {program} {{{{ inputs.x }}}}\n      programs: [{program}]\n"

    with pytest.raises(WorkflowInvalid, match="in the folder that a value in `cwd` names"):
        shop.load(text + "      cwd: '{{ inputs.x }}'")
    shop.load(text + "      cwd: fixed")
    shop.load(text.replace(program, "charge") + "      cwd: '{{ inputs.x }}'")


@pytest.mark.parametrize(
    "rest",
    [
        "echo {{ inputs.x }} > {{ inputs.x }}",
        'echo {{ inputs.x }} > "/dev{{ inputs.x[4:] }}"',
        "cat {{ inputs.x }} < '/'{{ inputs.x[1:] }}",
        "echo {{ inputs.x }} >> \"$FILE\"\n      env: {FILE: '{{ inputs.x }}'}",
        "echo {{ inputs.x }} > ${A}{{ inputs.x[6:] }}\n      env: {A: '{{ inputs.x[:6] }}'}",
    ],
)
def test_a_redirection_to_a_value_opens_no_connection(shop: Workshop, rest: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        told = shop.error(HEAD + f"      run: {rest}", {"x": address})

        with pytest.raises(BlockingIOError):
            server.accept()
    assert "for which bash opens a connection" in told


def test_the_environment_of_a_command(shop: Workshop) -> None:
    shop.env |= {"ORDINARY": "seen", "HOLDFAST_SECRET_A": "hidden1", "WORKFLOW_SECRET_B": "hidden2"}
    text = """
        workflow:
          name: test
          inputs: {n: {type: integer, default: 3}, flag: {type: boolean, default: true}}
        steps:
          - name: x
            shell:
              run: env
              env: {N: "{{ inputs.n }}", FLAG: "{{ inputs.flag }}", LIST: "{{ [1, 2] }}"}
              output: lines
        """
    found = shop.step(text)["output"]

    assert {"ORDINARY=seen", "N=3", "FLAG=true", "LIST=[1, 2]"} <= set(found)
    assert {"HOLDFAST_RUN_ID=r", "HOLDFAST_STEP=x#1", "HOLDFAST_IDEMPOTENCY_KEY=r:x#1"} <= set(found)
    assert not any("hidden" in line for line in found)


SECRETS = {
    "HOLDFAST_KEY": "hidden-key",
    "HOLDFAST_KEY_OLD": "hidden-old-key",
    "HOLDFAST_CAPSULE_PASSPHRASE": "hidden-passphrase",
    "HOLDFAST_STORE_PASSWORD": "hidden-password",
    "HOLDFAST_STORE": "postgresql://me:hidden-in-url@host/db?sslpassword=hidden-too&schema=s",
    "WORKFLOW_CHECKPOINT_DSN": "postgresql://me:hidden-in-dsn@host/db",
    "PGPASSWORD": "hidden-pg",
    "PGSSLPASSWORD": "hidden-ssl",
}


def test_commands_are_not_given_keys_and_passwords_of_ours(shop: Workshop) -> None:
    shop.env |= SECRETS
    found = shop.step("steps: [{name: x, shell: {run: env, output: text}}]")["output"]

    assert "hidden" not in found and "HOLDFAST_STORE=postgresql://me@host/db?schema=s\n" in found


def test_a_step_may_name_one_of_them(shop: Workshop) -> None:
    shop.env |= SECRETS
    text = """
        steps:
          - name: x
            shell: {run: 'test "$PGPASSWORD" = hidden-pg', env: {PGPASSWORD: "{{ secrets.PGPASSWORD }}"}}
        """

    assert shop.step(text)["status"] == "completed"


@pytest.mark.parametrize(
    ("stdin", "arrives"),
    [
        ("hello {{ inputs.name }}", "hello you"),
        ("{{ inputs.data }}", '{"list": [1, "ü"]}'),
        ({"a": "{{ inputs.name }}"}, '{"a": "you"}'),
        (None, ""),
    ],
)
def test_standard_input(shop: Workshop, stdin: Any, arrives: str) -> None:
    text = f"""
        workflow:
          name: test
          inputs: {{name: {{default: you}}, data: {{type: object, default: {{list: [1, ü]}}}}}}
        steps: [{{name: x, shell: {{run: cat, stdin: {json.dumps(stdin)}, output: text}}}}]
        """

    assert shop.step(text)["output"] == arrives


def test_standard_input_larger_than_a_pipe_to_a_command_that_writes_meanwhile() -> None:
    data = b"0123456789" * 400_000

    assert run("cat", stdin=data).stdout.encode() == data


def test_standard_input_that_nobody_reads() -> None:
    assert run("exec <&-; echo done", stdin=b"x" * 10_000_000).stdout == "done\n"


def test_a_command_runs_beside_its_workflow_or_where_it_says(shop: Workshop) -> None:
    (shop.folder / "sub folder").mkdir()
    text = "steps: [{name: x, shell: {run: 'pwd; echo $PWD', cwd: 'sub folder', output: lines}}]"

    assert shop.step("steps: [{name: x, shell: pwd}]")["output"] == str(shop.folder)
    app = shop.open(text)
    found = app.invoke({"inputs": {}}).state["x"]["output"]
    assert found == [str(shop.folder / "sub folder")] * 2


def test_a_folder_that_is_not_there(shop: Workshop) -> None:
    told = shop.error("steps: [{name: x, shell: {run: pwd, cwd: nowhere}}]")

    assert "shell.cwd" in told and "nowhere" in told


def test_bash_if_it_is_wanted(shop: Workshop) -> None:
    found = shop.step("steps: [{name: x, shell: {run: 'a=(1 2 3); echo ${#a[@]}', shell: bash}}]")

    assert found["output"] == 3


def test_a_shell_that_is_not_there() -> None:
    with pytest.raises(StepFailed, match="no 'fish-of-nowhere' on the PATH"):
        run("true", shell="fish-of-nowhere")


def test_a_script_that_is_too_long_for_the_system() -> None:
    with pytest.raises(StepFailed, match="hand large values over with `stdin`"):
        run("true", env={**PATH, "HUGE": "x" * 10_000_000})


def test_a_script_error_in_a_template_names_the_field(shop: Workshop) -> None:
    told = shop.error(
        """
        workflow:
          name: test
          inputs: {data: {type: object, default: {}}}
        steps: [{name: x, shell: {run: "echo {{ inputs.data.missing }}"}}]
        """
    )

    assert "shell.run: " in told and "there is no 'missing' in inputs.data" in told


def test_descriptors_of_ours_are_not_inherited(tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        listed = run("ls -l /proc/self/fd").stdout

    assert "ours" not in listed
    open_ones = [line.split()[-3] for line in listed.splitlines()[1:]]
    assert [number for number in open_ones if int(number) > 3] == []


def test_many_commands_leave_no_descriptors_behind() -> None:
    run("true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        run("echo a; echo b >&2", stdin=b"x")
    with pytest.raises(StepTimedOut):
        run("sleep 60", timeout=0.1)

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_standard_descriptors_may_be_closed(shop: Workshop) -> None:
    """A daemon has none: what a command is given then takes their numbers."""
    shop.write(
        "workflow: {name: test}\nsteps: [{name: x, shell: {run: 'cat; echo out; echo err >&2', stdin: in}}]\n"
    )

    assert shop.start("import os; os.closerange(0, 3)").wait(60) == 0
    assert shop.state()["x"]["output"] == "inout"
    assert shop.state()["x"]["stderr"] == "err\n"


def test_children_that_nobody_may_wait_for(shop: Workshop) -> None:
    """A program may have the system forget its children; how they ended is then not known."""
    shop.write("workflow: {name: test}\nsteps: [{name: x, shell: echo out}]\n")

    assert shop.start("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)").wait(60) == 0
    assert shop.state()["x"]["output"] == "out"


def test_many_commands_at_once_in_threads() -> None:
    results: list[str] = []

    def work(number: int) -> None:
        for turn in range(5):
            results.append(run(f"cat; echo {number}.{turn}", stdin=b"x" * 100_000).stdout[-8:])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 120 and len(set(results)) == 120


# The end.


def test_a_timeout_ends_the_command_and_all_that_it_started(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            shell: |
              sh -c 'trap "" TERM; echo $$ > deep; sleep 100' &
              (sleep 100 & echo $! > deeper; wait) &
              echo $$ > pid; wait
            timeout: 500ms
        """
    told = shop.error(text)

    assert "took longer than 0.5 s and was ended" in told
    for name in ("pid", "deep", "deeper"):
        pid = int((shop.folder / name).read_text())
        wait_for(lambda pid=pid: is_gone(pid))


def test_a_command_may_clean_up_when_its_time_is_over(shop: Workshop) -> None:
    script = "trap 'echo cleaned > cleaned; exit 0' TERM; touch ready; sleep 100 & wait"
    shop.error(f"steps: [{{name: x, shell: {json.dumps(script)}, timeout: 1s}}]")

    assert (shop.folder / "cleaned").exists()


def test_timeouts_are_retried_if_that_is_wanted(shop: Workshop) -> None:
    text = """
        steps:
          - name: x
            shell: "if [ -e second ]; then echo ok; else touch second; sleep 100; fi"
            timeout: 1s
            retry: {attempts: 2, delay: 10ms, on: timeout}
        """

    assert shop.step(text)["output"] == "ok"


def test_other_failures_are_not_retried_then(shop: Workshop) -> None:
    shop.error("steps: [{name: x, shell: 'echo x >> tries; exit 1', retry: {delay: 10ms, on: timeout}}]")

    assert (shop.folder / "tries").read_text() == "x\n"


def test_any_failure_is_retried_by_default_if_retries_are_wanted(shop: Workshop) -> None:
    shop.error("steps: [{name: x, shell: 'echo x >> tries; exit 1', retry: {delay: 10ms, attempts: 4}}]")

    assert (shop.folder / "tries").read_text() == "x\n" * 4


def test_kill_9_of_the_run_ends_its_commands(shop: Workshop) -> None:
    shop.write(
        """
        workflow: {name: test}
        steps:
          - name: both
            parallel:
              - {name: a, shell: "trap '' TERM; echo $$ > a; sleep 100"}
              - {name: b, shell: "(echo $$ > b; sleep 100) | cat"}
        """
    )
    running = shop.start()
    wait_for(lambda: all((shop.folder / n).exists() and (shop.folder / n).read_text() for n in "ab"))
    running.kill()
    running.wait()

    for name in "ab":
        pid = int((shop.folder / name).read_text())
        wait_for(lambda pid=pid: is_gone(pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_run_ends_its_command_and_leaves_the_step_in_doubt(shop: Workshop, number: int) -> None:
    shop.write(
        """
        workflow: {name: test}
        steps:
          - {name: a, python: "steps.py:say", with: {word: a}}
          - {name: x, shell: "echo x >> tries; echo $$ > pid; [ -e done ] || sleep 100", idempotent: false}
        """
    )
    running = shop.start()
    wait_for(lambda: (shop.folder / "pid").exists() and (shop.folder / "pid").read_text())
    running.send_signal(number)
    running.wait(20)

    pid = int((shop.folder / "pid").read_text())
    wait_for(lambda: is_gone(pid))
    with pytest.raises(ExecutionError, match="interrupted and may or may not have taken effect"):
        shop.resume()
    (shop.folder / "done").touch()
    assert shop.resume(if_interrupted="rerun").status == RunStatus.COMPLETED
    assert shop.calls() == ["a"] and (shop.folder / "tries").read_text() == "x\nx\n"


def test_a_cancel_from_outside_ends_the_command(shop: Workshop) -> None:
    flow = shop.load("steps: [{name: x, shell: 'echo $$ > pid; sleep 100'}]")
    app = flow.open(shop.url)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(app.invoke(flow.begin({}), run_id="r")))
    thread.start()
    wait_for(lambda: (shop.folder / "pid").exists() and (shop.folder / "pid").read_text())
    app.cancel("r")
    thread.join(20)

    assert found[0].status == RunStatus.CANCELLED
    wait_for(lambda: is_gone(int((shop.folder / "pid").read_text())))


def test_what_a_command_leaves_in_the_background_goes_on(shop: Workshop) -> None:
    script = "sh -c 'echo $$ > left; while [ ! -e stop ]; do sleep 0.1; done' & while [ ! -s left ]; do sleep 0.1; done"
    found = shop.step(f"steps: [{{name: x, shell: {json.dumps(script)}}}]")

    assert found["status"] == "completed", "whoever waits for what is left waits for ever"
    pid = int((shop.folder / "left").read_text())
    assert not is_gone(pid)
    (shop.folder / "stop").touch()
    wait_for(lambda: is_gone(pid))


def test_a_command_waits_for_its_own_children_only() -> None:
    assert run("wait; echo waited", timeout=20.0).stdout == "waited\n"
    assert run("sleep 0.1 & wait; echo waited", timeout=20.0).stdout == "waited\n"
