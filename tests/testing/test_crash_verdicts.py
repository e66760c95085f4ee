"""What `crash_everywhere` holds against a workflow, and what not: effects, results, questions that nobody answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from holdfast import END, START, Context, HoldfastError, Retry, Send, StateGraph, append
from holdfast.testing import CrashReport, RunSeen, crash_everywhere, record_effect, recorded_effects
from tests.testing.shops import careful_shop, chain, pay_carefully, pay_carelessly


class Batch(TypedDict, total=False):
    orders: list[str]
    order: str
    number: int
    sent: Annotated[list[Any], append]


def tried(graph: Any, inputs: Any = None, **options: Any) -> CrashReport:
    """The report of a crash test, fast unless something else is wanted."""
    return crash_everywhere(graph, inputs or {}, **{"mode": "fast", "check": False, **options})


def said(graph: Any, inputs: Any = None, **options: Any) -> str:
    """The same in one line."""
    return " ".join(str(tried(graph, inputs, **options)).split())


def mail(ctx: Context, **facts: Any) -> None:
    record_effect("mail", ctx.idempotency_key, **facts)


# What an effect is about.

_held: dict[str, str] = {}


def remember(state: Any) -> dict[str, Any]:
    _held["to"] = "ann"
    return {}


def mail_whom_it_remembers(state: Any, ctx: Context) -> dict[str, Any]:
    mail(ctx, to=_held.get("to"))
    return {}


def test_an_effect_that_is_another_one_after_a_crash_is_caught() -> None:
    _held.clear()

    report = said(chain("post", ("remember", remember), ("mail", mail_whom_it_remembers)), mode="process")

    assert "step 'mail#1' did 'mail', but not what it does when nobody disturbs it" in report
    assert "expected: 'mail' with to='ann'" in report and "happened: 'mail' with to=None" in report
    assert "a global variable" in report


def mail_with_the_time(state: Any, ctx: Context) -> dict[str, Any]:
    when = ctx.once("when", random.random)
    mail(ctx, to="ann", at=when)
    return {}


def test_facts_that_undisturbed_runs_do_not_agree_on_are_not_compared() -> None:
    assert tried(chain("post", ("mail", mail_with_the_time))).passed


def mail_then_ask(state: Any, ctx: Context) -> dict[str, Any]:
    record_effect("mail", at=random.random())
    return {"verdict": ctx.ask("Ship it?", name="ship")}


def test_facts_that_vary_do_not_hide_a_repetition() -> None:
    report = said(chain("post", ("mail", mail_then_ask)), answers={"ship": "yes"})

    assert "IT BREAKS WITHOUT ANY CRASH" in report
    assert "did 'mail' twice: once before `ctx.ask('ship')`, and again when the answer comes" in report


def ask_and_log(state: Any, ctx: Context) -> dict[str, Any]:
    """What is remembered, or asked for under a key, is done once however often the body runs."""
    for number in range(3):
        ctx.once(f"note {number}", lambda: record_effect("note", f"{random.random()}", at=random.random()))
        record_effect("log", f"{ctx.idempotency_key}:{number}", at=ctx.once(f"at {number}", random.random))
        ctx.ask("Go on?", name=f"q{number}")
    return {}


def test_what_is_done_once_in_each_of_several_passes_is_no_repetition() -> None:
    report = tried(chain("post", ("talk", ask_and_log)), answers=lambda pause: "yes", limit=1)

    assert report.passed and report.effects == 6, report


def test_facts_are_plain_or_refused_by_name() -> None:
    def odd(state: Any, ctx: Context) -> dict[str, Any]:
        mail(ctx, what={(1, 2): 3})
        return {}

    def addressed(state: Any, ctx: Context) -> dict[str, Any]:
        mail(ctx, what=object())
        return {}

    assert "the facts of the effect 'mail' cannot be written down (keys must be str" in said(
        chain("post", ("mail", odd))
    )
    assert tried(chain("post", ("mail", addressed))).passed


# Who did it, and how often.


def take_orders(state: Any) -> dict[str, Any]:
    return {"orders": [str(random.random()) for _ in range(2)]}


def send(state: Any, ctx: Context) -> dict[str, Any]:
    mail(ctx)
    return {"sent": [state["order"]]}


def send_carelessly(state: Any) -> dict[str, Any]:
    record_effect("mail")
    return {"sent": [state["order"]]}


def mailing(each: Any, **options: Any) -> StateGraph:
    graph = StateGraph(Batch, name="mailing")
    graph.add_node("take", take_orders).add_node("send", each, **options).add_edge(START, "take")
    graph.add_conditional_edges(
        "take",
        lambda state: [Send("send", {"order": order}, key=order) for order in state["orders"]],
        ["send"],
    )
    return graph.add_edge("send", END)


def test_items_that_are_named_at_random_are_counted_together() -> None:
    assert tried(mailing(send)).passed
    lost = said(mailing(send, if_interrupted="skip"), same=lambda one, other: True)
    assert "node 'send' did 'mail' not at all, and twice when nobody disturbed it" in lost
    assert "did 'mail' twice: it ran, the process died" in said(mailing(send_carelessly))


_coin = itertools.cycle(["left", "right"])


def toss(state: Any) -> dict[str, Any]:
    """A coin that nobody can foresee, but for tests, which are not to depend on luck."""
    return {"orders": [next(_coin)]}


def go(state: Any, ctx: Context) -> dict[str, Any]:
    mail(ctx, way=ctx.node)
    return {"sent": [ctx.node]}


def test_a_way_that_was_chosen_by_chance_and_journalled_is_not_held_against_the_run() -> None:
    graph = StateGraph(Batch, name="coin")
    graph.add_node("toss", toss).add_node("left", go).add_node("right", go).add_edge(START, "toss")
    graph.add_conditional_edges("toss", lambda state: state["orders"][0], ["left", "right"])
    graph.add_edge("left", END).add_edge("right", END)

    assert tried(graph).passed


_count = itertools.count(1)


def mail_by_count(state: Any, ctx: Context) -> dict[str, Any]:
    """More each time that it runs within one process."""
    lives = sum(effect.name == "life" for effect in recorded_effects())
    record_effect("life", str(next(_count)))
    for number in range(1 + lives):
        record_effect("mail", f"{ctx.idempotency_key}:{number}", number=number)
    return {}


def test_more_than_usual_is_told_without_calling_it_a_repetition() -> None:
    report = said(chain("post", ("mail", mail_by_count)), repeatable=["life"], points="effect", limit=1)

    assert "step 'mail#1' did 'mail' twice, and once when nobody disturbed it" in report


def pooled(state: Any, ctx: Context) -> dict[str, Any]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(record_effect, "mail", f"{ctx.idempotency_key}:a").result()
        pool.submit(record_effect, "note").result()
    return {"sent": [ctx.node]}


async def pooled_by_the_loop(state: Any, ctx: Context) -> dict[str, Any]:
    await asyncio.get_running_loop().run_in_executor(None, record_effect, "mail", ctx.idempotency_key)
    return {"sent": [ctx.node]}


def siblings(body: Any) -> StateGraph:
    graph = StateGraph(Batch, name="siblings")
    for node in ("one", "two", "three"):
        graph.add_node(node, body).add_edge(START, node).add_edge(node, END)
    return graph


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["fast", "process"])
def test_what_siblings_do_in_threads_is_theirs(mode: str) -> None:
    report = tried(siblings(pooled), repeatable=["note"], mode=mode, limit=8)
    assert report.passed, report
    assert tried(siblings(pooled_by_the_loop), mode=mode, limit=8).passed
    if mode == "fast":
        careless = said(siblings(pooled), points="ran")
        assert "did 'note' twice: it ran, the process died" in careless and "'?'" not in careless


def in_threads_of_its_own(state: Any, ctx: Context) -> dict[str, Any]:
    thread = threading.Thread(target=record_effect, args=("note",))
    thread.start()
    thread.join()
    return {"sent": [ctx.node]}


def test_what_nobody_knows_the_step_of_is_counted_all_together() -> None:
    report = said(siblings(in_threads_of_its_own), points="before")

    assert "did 'note'" in report and "BREAKS if the process dies" in report and "'?'" not in report


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["fast", "process"])
def test_programs_that_items_start_side_by_side_are_theirs(tmp_path: Path, mode: str) -> None:
    flow = tmp_path / "mail.yaml"
    flow.write_text(
        "workflow: {name: mail}\nsteps:\n  - name: mail\n"
        "    for_each: {in: [ann, bob], as: who, max_parallel: 2}\n"
        f"    shell: {{run: '{sys.executable} mail.py {{{{ who }}}}', programs: ['{sys.executable} mail.py']}}\n"
    )
    program = tmp_path / "mail.py"
    imports = "import os, sys\nfrom holdfast.testing import record_effect\n"
    program.write_text(
        f"{imports}record_effect('mail', os.environ['HOLDFAST_IDEMPOTENCY_KEY'], to=sys.argv[1])"
    )

    report = tried(flow, mode=mode, limit=3)

    assert report.passed and report.effects == 2, report
    program.write_text(f"{imports}record_effect('mail', to=sys.argv[1])")
    assert "did 'mail' twice: it ran, the process died" in said(flow, mode=mode, points="ran")


def send_elsewhere(state: Any, ctx: Context) -> dict[str, Any]:
    mail(ctx, number=state["number"])
    return {"sent": [state["number"]]}


def send_elsewhere_carelessly(state: Any) -> dict[str, Any]:
    record_effect("mail", number=state["number"])
    return {"sent": [state["number"]]}


def posting(each: Any) -> StateGraph:
    graph = StateGraph(Batch, name="posting").add_node("send", each, executor="processes:1")
    graph.add_conditional_edges(START, lambda state: [Send("send", {"number": n}) for n in (1, 2)], ["send"])
    return graph.add_edge("send", END)


def test_what_other_processes_do_is_seen_in_fast_mode_run_after_run() -> None:
    assert tried(posting(send_elsewhere), points="before").passed
    assert "did 'mail' twice: it ran, the process died" in said(
        posting(send_elsewhere_carelessly), points="before"
    )
    assert tried(posting(send_elsewhere), points="before").passed


def finish(ctx: Context) -> dict[str, Any]:
    """Looks what became of a step, and does what is left of it."""
    if not any(effect.key == ctx.idempotency_key for effect in recorded_effects("charge")):
        record_effect("charge", ctx.idempotency_key, amount=7)
    return {"receipt": "paid 7"}


async def finish_later(ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    return finish(ctx)


@pytest.mark.parametrize("look", [finish, finish_later])
def test_who_looks_after_an_interrupted_step_may_do_what_is_left_of_it(look: Any) -> None:
    report = tried(chain("shop", ("pay", pay_carefully), if_interrupted=look), {"amount": 7})

    assert report.passed, report


def test_who_looks_and_does_it_all_over_again_is_caught() -> None:
    def again(ctx: Context) -> dict[str, Any]:
        record_effect("charge", amount=7)
        return {"receipt": "paid 7"}

    assert "step 'pay#1' did 'charge' twice: it ran, the process died" in said(
        chain("shop", ("pay", pay_carelessly), if_interrupted=again), {"amount": 7}
    )


# Results, invariants, retries.


def first(state: Any, ctx: Context) -> dict[str, Any]:
    """Late only if it runs again."""
    time.sleep(0.0 if record_effect("begun", ctx.idempotency_key) else 0.2)
    return {"sent": ["first"]}


def second(state: Any, ctx: Context) -> dict[str, Any]:
    """Late only if it does not run again."""
    time.sleep(0.2 if record_effect("begun", ctx.idempotency_key) else 0.0)
    return {"sent": ["second"]}


def test_the_order_of_those_who_need_not_wait_for_each_other_is_not_compared() -> None:
    graph = StateGraph(Batch, name="race").add_node("first", first).add_node("second", second)
    for node in ("first", "second"):
        graph.add_edge(START, node).add_edge(node, END)

    report = tried(graph, options={"barrier": False}, points="before", limit=3)

    assert report.passed and any("barrier=False" in note for note in report.notes), report


@pytest.mark.parametrize("answer", [0, (), False])
def test_an_invariant_that_answers_with_nothing_does_not_hold(answer: Any) -> None:
    assert "the invariant 'invariant' does not hold" in said(
        careful_shop(), {"amount": 1}, invariant=lambda run: answer, limit=1
    )


@pytest.mark.parametrize("answer", [None, True, 1])
def test_an_invariant_that_answers_nothing_at_all_holds(answer: Any) -> None:
    assert tried(careful_shop(), {"amount": 1}, invariant=lambda run: answer, limit=1).passed


@pytest.mark.parametrize("mode", ["fast", "process"])
def test_an_invariant_fails_in_the_words_of_pytest(mode: str) -> None:
    def never(run: RunSeen) -> None:
        pytest.fail("it never does")

    report = said(careful_shop(), {"amount": 1}, invariant=never, mode=mode, limit=1)

    assert "the invariant 'never' does not hold" in report and "it never does" in report


def test_a_comparison_that_fails_is_told() -> None:
    def same(one: Any, other: Any) -> bool:
        return bool(one["nothing"] == other["nothing"])

    report = said(careful_shop(), {"amount": 1}, same=same, limit=3)

    assert "`same` raised an error when it compared the results" in report and "KeyError: 'nothing'" in report


def test_attempts_that_a_crash_took_are_told_of() -> None:
    def flaky(state: Any, ctx: Context) -> dict[str, Any]:
        record_effect("try")
        if len(recorded_effects("try")) < 3:
            raise ConnectionError("no")
        return {}

    report = said(chain("shop", ("pay", flaky), retry=Retry(3)), repeatable=["try"], points="committed")

    assert "An attempt that a crash interrupts is one of the attempts that `Retry` allows" in report


# Questions.


def ask_in_vain(state: Any, ctx: Context) -> dict[str, Any]:
    return {"verdict": ctx.ask("Still?", name="still", timeout=3600, default="no")}


@pytest.mark.parametrize("answers", [None, lambda pause: NotImplemented])
def test_the_time_of_a_question_without_an_answer_runs_out(answers: Any) -> None:
    report = tried(
        chain("shop", ("ask", ask_in_vain)), answers=answers, invariant=lambda run: run["verdict"] == "no"
    )

    assert report.passed and any("nobody answered 'still'" in note for note in report.notes), report


def chat(state: Any, ctx: Context) -> dict[str, Any]:
    for number in range(60):
        ctx.ask("And?", name=f"q{number}")
    return {}


def test_any_number_of_questions_is_answered() -> None:
    assert tried(chain("chat", ("chat", chat)), answers=lambda pause: "so", limit=1).passed


# What is left behind.


def test_ctrl_c_ends_the_test_and_not_only_a_life(tmp_path: Path) -> None:
    program = tmp_path / "stopped.py"
    program.write_text(
        "import sys, time\n"
        "from holdfast import END, START, StateGraph\n"
        "from holdfast.testing import crash_everywhere\n"
        "def slow(state):\n"
        "    print('slow', flush=True)\n"
        "    time.sleep(600)\n"
        "graph = StateGraph(dict, name='slow').add_node('slow', slow).add_edge(START, 'slow').add_edge('slow', END)\n"
        "crash_everywhere(graph, mode='fast', timeout=600)\n"
    )
    for number, code in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)):
        process = subprocess.Popen(
            [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "slow\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors


def waits_with_a_program(state: Any) -> dict[str, Any]:
    process = subprocess.Popen(["sleep", "600"])
    Path(state["pids"], str(process.pid)).touch()
    Path(state["pids"], str(os.getpid())).touch()
    time.sleep(600)
    return {}


def is_at_work(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_late_process_has_started_ends_with_it(tmp_path: Path) -> None:
    report = said(
        chain("shop", ("wait", waits_with_a_program), schema=dict),
        {"pids": str(tmp_path)},
        mode="process",
        timeout=5,
    )

    assert "did not end within 5 seconds" in report
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(is_at_work(pid) for pid in pids)


def test_a_test_that_is_broken_off_leaves_no_process_behind(tmp_path: Path) -> None:
    def ring(number: int, frame: Any) -> None:
        if len(list(tmp_path.iterdir())) == 2:
            raise TimeoutError("somebody has no patience")
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    earlier = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeoutError, match="no patience"):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            tried(
                chain("shop", ("wait", waits_with_a_program), schema=dict),
                {"pids": str(tmp_path)},
                mode="process",
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(is_at_work(pid) for pid in pids)


def test_a_relative_folder_is_one_of_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()

    folders: list[Path] = []

    def store(folder: Path) -> str:
        folders.append(folder)
        return f"sqlite:///{folder}/runs.db"

    assert tried(careful_shop(), {"amount": 1}, folder="runs", store=store, limit=2).passed
    assert all(folder.is_relative_to(tmp_path / "runs") for folder in folders) and folders
    assert list(Path("runs").iterdir()) == []


def test_a_body_that_ends_the_process_is_told_of() -> None:
    report = said(chain("shop", ("leave", lambda state: os._exit(0))), mode="process")

    assert "a body ended the process, with exit code 0" in report


def main_graph() -> StateGraph:
    return careful_shop()


def test_a_fresh_interpreter_is_not_sent_what_it_cannot_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_graph, "__module__", "__main__")

    with pytest.raises(HoldfastError, match=r"cannot be sent this workflow.*main_graph"):
        tried(main_graph, {"amount": 1}, mode="process", start="spawn")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "5"}, "limit must be at least 1, or None for no limit, not '5'"),
        ({"repeatable": 3}, "repeatable must be a list of names, not 3"),
        ({"config": 3}, "config must be a mapping, not 3"),
        ({"options": 3}, "options must be a mapping, not 3"),
        ({"folder": "nowhere"}, "the folder 'nowhere' does not exist"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        tried(careful_shop(), {"amount": 1}, **options)
