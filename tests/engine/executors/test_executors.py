"""Heavy steps elsewhere: threads, processes, and pools of the user's own."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    END,
    START,
    ExecutionError,
    ExecutorLost,
    GraphInvalid,
    HoldfastError,
    Outcome,
    Retry,
    Send,
    StateGraph,
    StepTimeout,
)
from holdfast.engine.executors.executors import shared
from holdfast.engine.executors.remote import NotSent, Unavailable
from holdfast.state.ops import ReadOnly
from holdfast.stores.base import Store
from tests.engine.executors import functions
from tests.graphs import Heard

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def processes_end() -> Iterator[None]:
    yield
    shared.close()


def graph_of(function: Any, executor: Any, **options: Any) -> StateGraph:
    graph = StateGraph(functions.Away, name="away")
    graph.add_node("work", function, executor=executor, **options)
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    return graph


def run(function: Any, executor: Any = "processes", input: Any = None, **options: Any) -> Outcome:
    return graph_of(function, executor, **options).compile("memory://").invoke(input, config={"who": "me"})


def cause(function: Any, executor: Any = "processes", input: Any = None, **options: Any) -> BaseException:
    with pytest.raises(ExecutionError) as failed:
        run(function, executor, input, **options)
    assert failed.value.cause is not None
    return failed.value.cause


def each(function: Any, executor: Any, **options: Any) -> StateGraph:
    graph = StateGraph(functions.Away, name="each")
    graph.add_node("work", function, executor=executor, **options)
    graph.add_conditional_edges(
        START, lambda state: [Send("work", {"item": item}, item) for item in state["items"]], ["work"]
    )
    return graph


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def told(folder: Path) -> list[str]:
    path = folder / "told"
    return path.read_text().splitlines() if path.exists() else []


def is_gone(pid: str | int) -> bool:
    """Whether a process is no more, or is only waited for by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class TestThreads:
    def test_a_lone_sync_node_leaves_the_drive_s_thread(self) -> None:
        seen = []
        run(lambda state: seen.append(threading.current_thread()), "threads")

        assert seen[0] is not threading.current_thread()

    def test_an_async_node_has_an_event_loop_of_its_own_there(self) -> None:
        seen = []

        async def work(state: Any, ctx: Any) -> dict[str, Any]:
            async def count() -> int:
                return 4

            seen.append(threading.current_thread())
            await ctx.sleep(0.001)
            return {"n": await ctx.once("n", count)}

        assert run(work, "threads").state["n"] == 4
        assert seen[0] is not threading.current_thread()

    def test_an_async_node_that_takes_too_long_is_left(self) -> None:
        import asyncio

        begun, left = threading.Event(), threading.Event()

        async def work(state: Any) -> None:
            begun.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                left.set()
                raise

        while not begun.is_set():  # On a busy machine the time may be over before the node begins.
            assert isinstance(cause(work, "threads", timeout=0.05), StepTimeout)
        assert left.wait(60)

    def test_a_thread_pool_of_the_user_s_does_the_work_and_is_not_shut_down(self) -> None:
        """The context is the whole one: the node stays in this process."""
        with concurrent.futures.ThreadPoolExecutor(1, "mine") as pool:

            def work(state: Any, ctx: Any) -> dict[str, Any]:
                name = ctx.once("name", lambda: threading.current_thread().name)
                return {"log": [name, ctx.ask("go on?")]}

            app = graph_of(work, pool).compile("memory://")
            paused = app.invoke(run_id="r")
            done = app.resume("r", answer="yes")

            assert paused.status == "paused"
            assert done.state["log"] == ["mine_0", "yes"]
            assert pool.submit(int, "3").result() == 3

    def test_what_no_future_can_carry_comes_out_of_a_thread_pool_as_itself(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert isinstance(cause(functions.stops_iterating, pool), StopIteration)

    def test_a_pool_that_is_shut_down_is_named(self) -> None:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.shutdown()

        assert "the ThreadPoolExecutor takes no more steps" in str(cause(functions.process, pool))


class TestProcesses:
    def test_a_node_runs_in_another_process_and_its_update_is_kept(self) -> None:
        assert run(functions.process).state["n"] != os.getpid()
        assert run(functions.process_later).state["n"] != os.getpid()
        assert run(functions.double, input={"n": 21}).state["n"] == 42

    def test_only_the_nodes_that_say_so_leave_this_process(self, store: Store) -> None:
        graph = StateGraph(functions.Away, name="mixed")
        graph.add_node("first", lambda state: {"n": 1, "log": [str(os.getpid())]})
        graph.add_node("second", functions.double, executor="processes")
        graph.add_node("third", lambda state: {"n": state["n"] + 1, "log": [str(os.getpid())]})
        graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", "third")

        state = graph.compile(store).invoke().state

        assert state["n"] == 3 and set(state["log"]) == {str(os.getpid())}

    def test_a_node_knows_which_attempt_of_which_step_it_is(self, caplog: pytest.LogCaptureFixture) -> None:
        """Log messages of the process appear here, at the level that is set here."""
        caplog.set_level(logging.INFO, "holdfast.nodes")

        out = run(functions.facts)

        step = ["work#1", "work", "1", "None", "1"]
        assert out.state["log"] == [out.run_id, *step, f"{out.run_id}:work#1", "me", "me"]
        assert [record.getMessage() for record in caplog.records] == ["at work on work#1"]
        assert caplog.records[0].step == "work#1"

    def test_of_very_much_that_is_logged_the_end_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        run(functions.chatty)

        lines = [record.getMessage() for record in caplog.records]
        assert lines[0] == "100 earlier messages of this step are left out"
        assert lines[1] == "line 100" and lines[-1] == "line 1099"

    @pytest.mark.parametrize(
        "name", ["ask", "ask_all", "once", "recall", "sleep", "emit", "stream", "heartbeat", "cancelled"]
    )
    def test_what_needs_the_engine_is_refused_with_the_way_out(self, name: str) -> None:
        error = cause(functions.asks, input={"item": name})

        assert isinstance(error, Unavailable)
        assert str(error).startswith(f"ctx.{name} does not work in a worker process")

    def test_the_state_is_read_only_there_too(self) -> None:
        assert isinstance(cause(functions.grows, input={"log": ["a"]}), ReadOnly)
        assert "state['point'] was changed in place" in str(
            cause(functions.moves, input={"point": functions.Point(1)})
        )
        assert run(functions.moved, input={"point": functions.Point(1)}).state["point"] == functions.Point(2)

    def test_a_whole_state_and_a_command_come_back(self) -> None:
        graph = graph_of(functions.as_command, "processes", goto=["last"])
        graph.add_node("last", lambda state: {"log": [f"last {state['n']}"]})

        state = graph.compile("memory://").invoke({"n": 1, "log": ["a"]}).state

        assert (state["n"], state["log"]) == (8, ["a", "last 8"])
        assert run(functions.as_state, input={"log": ["a"]}).state == {"log": ["a"], "n": 7}
        assert run(functions.as_less, input={"n": 1, "log": ["a"]}).state == {"n": 1}

    def test_errors_are_what_they_are(self) -> None:
        """With the traceback of where they happened, also in the journal."""
        app = graph_of(functions.fails, "processes").compile("memory://")
        with pytest.raises(ExecutionError, match="KeyError: 'gone'") as failed:
            app.invoke()

        assert type(failed.value.cause) is KeyError and failed.value.cause.args == ("gone",)
        assert 'raise KeyError("gone")' in str(failed.value.cause.__cause__)

        odd = cause(functions.is_odd)
        assert isinstance(odd, functions.Odd) and (str(odd), odd.sum) == ("odd", 3)
        assert isinstance(cause(functions.stops_iterating), StopIteration)

    def test_an_error_that_cannot_be_brought_back_is_told(self) -> None:
        error = cause(functions.keeps)

        assert isinstance(error, NotSent) and str(error) == "Keeps: held"
        assert "raise Keeps" in str(error.__cause__)

    def test_a_result_that_cannot_be_brought_back_names_node_and_executor(self) -> None:
        error = cause(functions.unstorable)

        assert isinstance(error, NotSent)
        assert "node 'work' returned something that cannot be brought back from a worker process" in str(
            error
        )

    def test_a_for_each_keeps_each_item_as_it_finishes(self, store: Store, tmp_path: Path) -> None:
        app = each(functions.works_on, "processes:2", max_parallel=2).compile(store)
        with pytest.raises(ExecutionError, match="item 'b'"):
            app.invoke({"items": ["a", "b", "c"], "folder": str(tmp_path)}, run_id="r")
        (tmp_path / "fixed").touch()

        assert app.resume("r").state["log"] == ["a", "b", "c"]
        assert sorted(told(tmp_path)) == ["a", "b", "b", "c"]

    def test_another_executor_is_no_other_code(self, store: Store) -> None:
        def build(executor: str | None) -> Any:
            return graph_of(functions.process, executor).compile(
                store, on_change="fail", interrupt_before=["work"]
            )

        build("processes").invoke(run_id="r")

        assert build(None).resume("r").state["n"] == os.getpid()

    def test_a_run_of_an_event_loop_goes_on_meanwhile(self) -> None:
        import asyncio

        async def both() -> tuple[Outcome, Outcome]:
            app = graph_of(functions.process, "processes").compile("memory://")
            return await asyncio.gather(app.ainvoke(), app.ainvoke())

        assert {out.status for out in asyncio.run(both())} == {"completed"}


class TestLost:
    def test_a_process_that_dies_is_a_failure_worth_another_try(self, tmp_path: Path, heard: Heard) -> None:
        """Without a retry rule, too."""
        app = graph_of(functions.dies_at_first, "processes").compile("memory://", observer=heard)

        out = app.invoke({"folder": str(tmp_path)})

        first, second = told(tmp_path)
        assert out.state["n"] == int(second) != int(first)
        assert out.stats.retries == 1
        assert "the worker process exited with code 3" in heard.of("node.error")[0].data["error"]

    def test_after_three_tries_the_run_fails_and_can_be_resumed(self, memory: Store) -> None:
        with pytest.raises(ExecutionError) as failed:
            graph_of(functions.dies, "processes").compile(memory).invoke(run_id="r")

        assert isinstance(failed.value.cause, ExecutorLost)
        assert graph_of(functions.process, "processes").compile(memory).resume("r").status == "completed"

    def test_the_node_s_own_rule_says_how_often(self, heard: Heard) -> None:
        graph = graph_of(functions.dies, "processes", retry=Retry(attempts=2, delay=0.01))
        with pytest.raises(ExecutionError):
            graph.compile("memory://", observer=heard).invoke()

        assert len(heard.of("node.error")) == 2

    def test_siblings_lose_nothing(self, tmp_path: Path) -> None:
        """One that always dies takes no other with it, however long that one takes."""
        graph = StateGraph(functions.Away, name="siblings")
        graph.add_node("dies", functions.dies, executor="processes:2", on_error=lambda state, error: None)
        graph.add_node("stays", functions.takes_a_moment, executor="processes:2")
        graph.add_edge(START, "dies").add_edge(START, "stays")

        out = graph.compile("memory://").invoke({"item": "kept"})

        assert out.state["log"] == ["kept"]
        assert out.stats.retries == 2

    def test_a_process_that_died_idle_is_replaced(self) -> None:
        """No attempt is lost with it."""
        process = run(functions.process, "processes:1").state["n"]
        os.kill(process, signal.SIGKILL)
        until(lambda: is_gone(process))

        out = run(functions.process, "processes:1", retry=Retry(attempts=1))

        assert out.state["n"] != process

    def test_what_was_interrupted_there_did_not_mean_us(self) -> None:
        retry = Retry(attempts=1)

        assert "node 'work' was interrupted in a worker process" in str(
            cause(functions.interrupts, retry=retry)
        )

    def test_a_node_that_asks_is_asked_about(self, store: Store, tmp_path: Path) -> None:
        """A lost process leaves its step in doubt, as a crash does."""
        app = graph_of(functions.dies_at_first, "processes", if_interrupted="ask").compile(store)

        paused = app.invoke({"folder": str(tmp_path)}, run_id="r")

        assert [pause.kind for pause in paused.pauses] == ["in_doubt"]
        assert len(told(tmp_path)) == 1
        assert app.resume("r", answer="rerun").status == "completed"

    def test_a_node_that_looks_decides_itself(self, tmp_path: Path) -> None:
        def look(ctx: Any) -> dict[str, Any]:
            return {"n": 5}

        out = run(functions.dies_at_first, input={"folder": str(tmp_path)}, if_interrupted=look)

        assert out.state["n"] == 5 and len(told(tmp_path)) == 1

    def test_a_node_that_may_not_be_repeated_is_not(self, store: Store, tmp_path: Path) -> None:
        app = graph_of(functions.dies_at_first, "processes", idempotent=False, retry=Retry()).compile(store)
        for drive in (lambda: app.invoke({"folder": str(tmp_path)}, run_id="r"), lambda: app.resume("r")):
            with pytest.raises(ExecutionError, match="may or may not have taken effect"):
                drive()

        assert len(told(tmp_path)) == 1
        assert app.resume("r", if_interrupted="rerun").status == "completed"


class TestTimes:
    def test_a_timeout_ends_the_process(self, tmp_path: Path) -> None:
        """The timeout is reported even if the step never returns, and its process is free again."""
        while not told(tmp_path):  # On a busy machine the time may be over before the node tells anything.
            error = cause(functions.hangs, "processes:1", {"folder": str(tmp_path)}, timeout=0.5)
            assert isinstance(error, StepTimeout)

        until(lambda: is_gone(told(tmp_path)[0]))
        assert run(functions.process, "processes:1").status == "completed"

    def test_a_timeout_begins_when_the_step_does(self) -> None:
        """Those that wait for one of the processes are not late."""
        app = each(functions.takes_a_moment, "processes:1", timeout=5.0).compile("memory://")

        assert app.invoke({"items": ["a", "b", "c", "d"]}).state["log"] == ["a", "b", "c", "d"]

    def test_a_run_that_is_cancelled_waits_for_nothing(self, memory: Store, tmp_path: Path) -> None:
        app = each(functions.hangs, "processes:1").compile(memory)
        stopping = threading.Thread(target=lambda: until(lambda: told(tmp_path)) and app.cancel("r"))
        stopping.start()

        out = app.invoke({"items": ["a", "b"], "folder": str(tmp_path)}, run_id="r")

        stopping.join()
        assert out.status == "cancelled"
        until(lambda: is_gone(told(tmp_path)[0]))
        assert len(told(tmp_path)) == 1, "what waited was never begun"


PROGRAM = """
import os, sys
from holdfast import END, START, StateGraph
from tests.engine.executors import functions
graph = StateGraph(functions.Away, name="away")
graph.add_node("work", functions.hangs, executor="processes")
graph.add_edge(START, "work")
graph.compile(sys.argv[1]).invoke({"folder": sys.argv[2]}, run_id="r")
"""


def script(text: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(text)
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-W", "error", path, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestPrograms:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
    def test_no_process_outlives_the_program(self, number: signal.Signals, tmp_path: Path) -> None:
        """Nor does the program wait for it."""
        program = script(PROGRAM, tmp_path, f"sqlite:///{tmp_path / 'runs.db'}", str(tmp_path))
        worker = until(lambda: told(tmp_path))[0]

        program.send_signal(number)
        program.communicate(timeout=60)

        until(lambda: is_gone(worker))

    def test_functions_and_types_of_the_main_program_are_found(self, tmp_path: Path) -> None:
        text = """
            import dataclasses, os, typing
            from holdfast import StateGraph
            @dataclasses.dataclass
            class Mine:
                n: int
            class State(typing.TypedDict):
                mine: Mine
            def work(state):
                return {"mine": Mine(state["mine"].n + 1)}
            if __name__ == "__main__":
                graph = StateGraph(State)
                graph.add_node("work", work, executor="processes", after=[])
                print(graph.compile().invoke({"mine": Mine(1)}).state["mine"])
        """
        out, err = script(text.replace("\n" + " " * 12, "\n"), tmp_path).communicate(timeout=60)

        assert (out.strip(), err) == ("Mine(n=2)", "")

    def test_a_program_that_starts_runs_when_it_is_loaded_is_told(self, tmp_path: Path) -> None:
        """Once more in the worker process, it starts nothing there."""
        text = """
            from pathlib import Path
            from holdfast import ExecutionError, StateGraph
            def note(state):
                with Path("notes").open("a") as file:
                    file.write("x")
            def work(state):
                return None
            graph = StateGraph(dict)
            graph.add_node("note", note, after=[])
            graph.add_node("work", work, executor="processes", after=["note"])
            try:
                graph.compile().invoke()
            except ExecutionError as error:
                print(error)
        """
        out, _ = script(text.replace("\n" + " " * 12, "\n"), tmp_path).communicate(timeout=60)

        assert "node 'work' cannot be loaded in a worker process" in out
        assert 'put what starts the run under `if __name__ == "__main__":`' in out
        assert (tmp_path / "notes").read_text() == "x"

    def test_a_forked_child_has_processes_of_its_own(self, tmp_path: Path) -> None:
        text = """
            import os, warnings
            from holdfast import StateGraph
            from tests.engine.executors import functions
            graph = StateGraph(functions.Away)
            graph.add_node("work", functions.process, executor="processes:1", after=[])
            app = graph.compile()
            mine = app.invoke().state["n"]
            warnings.simplefilter("ignore")
            child = os.fork()
            if child == 0:
                print(app.invoke().state["n"] != mine, flush=True)
                raise SystemExit
            os.waitpid(child, 0)
            print(app.invoke().state["n"] == mine)
        """
        out, err = script(text.replace("\n" + " " * 12, "\n"), tmp_path).communicate(timeout=60)

        assert (out.split(), err) == (["True", "True"], "")


@pytest.fixture(scope="module")
def pool() -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """A pool as users have them."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as made:
        yield made


class TestOwn:
    def test_any_executor_does_the_work_and_is_not_shut_down(
        self, pool: concurrent.futures.ProcessPoolExecutor
    ) -> None:
        assert run(functions.process, pool).state["n"] != os.getpid()
        assert isinstance(cause(functions.fails, pool), KeyError)
        assert pool.submit(int, "3").result() == 3

    def test_a_function_without_a_name_is_sent_itself(
        self, pool: concurrent.futures.ProcessPoolExecutor
    ) -> None:
        factor = 3

        assert run(lambda state: {"n": factor * state["n"]}, pool, {"n": 2}).state["n"] == 6

    def test_the_context_is_that_of_another_process(
        self, pool: concurrent.futures.ProcessPoolExecutor
    ) -> None:
        error = cause(functions.asks, pool, {"item": "ask"})

        assert "ctx.ask does not work in the ProcessPoolExecutor" in str(error)

    def test_what_cannot_be_sent_is_named(self, pool: concurrent.futures.ProcessPoolExecutor) -> None:
        error = cause(functools.partial(functions.process, threading.Lock()), pool)

        assert isinstance(error, NotSent)
        assert "node 'work': its function cannot be sent to the ProcessPoolExecutor" in str(error)

    def test_a_pool_that_breaks_is_lost(self) -> None:
        context = multiprocessing.get_context("forkserver")
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            error = cause(functions.dies, pool, retry=Retry(attempts=2, delay=0.01))

        assert isinstance(error, ExecutorLost) and "BrokenProcessPool" in str(error)

    def test_a_pool_that_gives_up_is_lost(self) -> None:
        """As one that is shut down with `cancel_futures` does."""

        class GivesUp(concurrent.futures.Executor):
            def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
                future: concurrent.futures.Future[Any] = concurrent.futures.Future()
                future.cancel()
                future.set_running_or_notify_cancel()
                return future

        error = cause(functions.process, GivesUp(), retry=Retry(attempts=1))

        assert isinstance(error, ExecutorLost) and "the GivesUp gave the step up" in str(error)

    def test_a_pool_that_cannot_do_it_is_no_loss(self) -> None:
        class Refuses(concurrent.futures.Executor):
            def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
                raise ValueError("not today")

        error = cause(functions.process, Refuses())

        assert type(error) is HoldfastError
        assert str(error) == "node 'work' cannot be run by the Refuses: ValueError: not today"


def problem(executor: Any, function: Any = functions.process, **options: Any) -> str:
    with pytest.raises(GraphInvalid) as refused:
        graph_of(function, executor, **options).compile("memory://")
    (found,) = refused.value.problems
    return found


class TestProblems:
    @pytest.mark.parametrize(
        ("executor", "hint"),
        [
            ("proceses", "did you mean 'processes'?"),
            ("processes:0", "processes:NUMBER"),
            ("processes:many", "processes:NUMBER"),
            ("threads:4", "max_parallel says how many"),
            ("dask", "name the scheduler, as in dask:tcp://host:8786"),
            ("dask:", "name the scheduler"),
            ("", "it must be one of threads, processes"),
            (4, "or a concurrent.futures.Executor (an instance)"),
            (concurrent.futures.ThreadPoolExecutor, "(an instance)"),
        ],
    )
    def test_nonsense_is_told_with_what_could_be_meant(self, executor: Any, hint: str) -> None:
        found = problem(executor)

        assert found.startswith(f"node 'work' has executor={executor!r}") and hint in found

    def test_a_function_that_another_process_cannot_find_is_told(self) -> None:
        def inner(state: Any) -> None:
            return None

        assert "cannot find its function 'TestProblems." in problem("processes", inner)
        assert "(a lambda or a function inside another)" in problem("processes", lambda state: None)
        found = problem("processes", functools.partial(functions.process, threading.Lock()))
        assert "cannot pickle '_thread.lock' object" in found

    def test_a_function_of_an_interactive_session_is_told(self) -> None:
        text = (
            "from holdfast import StateGraph\n"
            "def work(state): return None\n"
            "graph = StateGraph(dict)\n"
            "graph.add_node('work', work, executor='processes', after=[])\n"
            "print(graph.problems())\n"
        )
        places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-c", text], env={"PYTHONPATH": places}, capture_output=True, text=True
        )

        assert "was typed into this session, where another process cannot find it" in done.stdout

    def test_a_sub_graph_takes_none(self) -> None:
        inner = StateGraph(functions.Away, name="inner")
        inner.add_node("x", functions.process, after=[])

        assert "is a sub-graph and takes no executor; set it on its nodes" in problem("threads", inner)

    def test_dask_gets_nothing_that_may_not_be_repeated(self) -> None:
        found = problem("dask:tcp://127.0.0.1:1", idempotent=False)

        assert "Dask repeats the steps of a worker that is lost" in found

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "distributed", None)

        assert "pip install 'holdfast[dask]'" in problem("dask:tcp://127.0.0.1:1")
