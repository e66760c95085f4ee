"""Heavy steps on a Dask cluster: a real one, whose workers are killed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ExecutionError, ExecutorLost, Retry
from holdfast.engine.executors.executors import shared
from holdfast.engine.executors.remote import Unavailable
from holdfast.stores.base import Store
from tests.engine.executors import functions
from tests.engine.executors.test_executors import cause, each, graph_of, run, told, until
from tests.graphs import Heard
from tests.workflows.workshop import Workshop

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, in processes. What a lost one was doing is ours to repeat."""
    import dask
    import distributed

    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    made = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )
    yield made
    shared.close()
    made.close()


@pytest.fixture(scope="module")
def dask(cluster: Any) -> str:
    return f"dask:{cluster.scheduler_address}"


def test_nodes_run_on_the_cluster_whatever_their_functions_are(dask: str) -> None:
    factor = 3

    assert run(functions.process, dask).state["n"] != os.getpid()
    assert run(functions.process_later, dask).state["n"] != os.getpid()
    assert run(lambda state: {"n": factor * state["n"]}, dask, {"n": 2}).state["n"] == 6


def test_a_step_is_told_who_it_is_and_what_it_cannot_ask(dask: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.nodes")

    out = run(functions.facts, dask)

    assert out.state["log"][1:7] == ["work#1", "work", "1", "None", "1", f"{out.run_id}:work#1"]
    assert "at work on work#1" in caplog.messages
    error = cause(functions.asks, dask, {"item": "ask"})
    assert isinstance(error, Unavailable) and "ctx.ask does not work in the Dask cluster at tcp://" in str(
        error
    )


def test_errors_are_what_they_are(dask: str) -> None:
    """Also of a type that only this test knows."""

    class Own(Exception):
        pass

    def fails(state: Any) -> None:
        raise Own("there")

    error = cause(fails, dask)

    assert type(error) is Own and error.args == ("there",)
    assert "cannot be brought back from the Dask cluster" in str(cause(functions.unstorable, dask))


def test_a_repeated_step_is_done_again(dask: str, tmp_path: Path) -> None:
    """Dask must not take it for one that it did before."""
    graph = graph_of(functions.works_on, dask, retry=Retry(attempts=3, delay=0.01))
    with pytest.raises(ExecutionError):
        graph.compile("memory://").invoke({"item": "b", "folder": str(tmp_path)})

    assert told(tmp_path) == ["b", "b", "b"]


def test_a_worker_that_is_killed_costs_one_attempt_and_no_finished_item(
    cluster: Any, dask: str, sqlite_url: str, heard: Heard, tmp_path: Path
) -> None:
    def kill_the_hanging() -> None:
        # Dask itself repeats what it does not know to be fetched.
        until(lambda: len(heard.of("node.complete")) == 3 and len(cluster.scheduler.tasks) == 1)
        (line,) = [line for line in told(tmp_path) if line.startswith("b ")]
        os.kill(int(line.split()[1]), signal.SIGKILL)

    app = each(functions.hangs_once, dask).compile(sqlite_url, observer=heard)
    killing = threading.Thread(target=kill_the_hanging)
    killing.start()

    out = app.invoke({"items": ["a", "b", "c", "d"], "folder": str(tmp_path)})

    killing.join()
    assert out.state["log"] == ["a", "b", "c", "d"]
    assert out.stats.retries == 1
    assert sorted(line.split()[0] for line in told(tmp_path)) == ["a", "b", "b", "c", "d"]


def test_a_file_beside_a_workflow_goes_there_with_its_step(
    dask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on other machines have no such file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    shop = Workshop(tmp_path)
    shop.write(
        "import os\n\ndef where():\n    return one()\n\ndef one():\n    return os.getpid()\n", "own.py"
    )

    step = shop.step(f"steps:\n  - {{name: x, python: 'own.py:where', executor: '{dask}'}}")

    assert isinstance(step["output"], int) and step["output"] != os.getpid()


def test_a_timeout_does_not_wait_for_the_cluster(dask: str) -> None:
    error = cause(functions.takes_a_moment, dask, {"item": "x"}, timeout=0.05)

    assert "ran longer than its timeout" in str(error)


def test_a_cluster_that_is_gone_is_lost_and_one_that_comes_back_is_found(
    monkeypatch: pytest.MonkeyPatch, memory: Store
) -> None:
    """Waiting steps are retried and fail; when there is a cluster again, the run is resumed."""
    monkeypatch.setattr("holdfast.engine.executors.executors._CONNECT_SECONDS", 0.5)
    first = local_cluster(workers=0)
    address = first.scheduler_address
    app = graph_of(functions.process, f"dask:{address}").compile(memory)
    closing = threading.Thread(target=lambda: until(lambda: first.scheduler.tasks) and first.close())
    closing.start()
    with pytest.raises(ExecutionError) as failed:
        app.invoke(run_id="r")
    closing.join()
    assert isinstance(failed.value.cause, ExecutorLost)

    with local_cluster(workers=1, port=int(address.rpartition(":")[2])):
        assert app.resume("r").status == "completed"
        shared.close()


def local_cluster(workers: int, port: int = 0) -> Any:
    import distributed

    return distributed.LocalCluster(
        n_workers=workers,
        processes=False,
        protocol="tcp://",
        dashboard_address=None,
        host="127.0.0.1",
        scheduler_port=port,
    )


def test_a_scheduler_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.executors.executors._CONNECT_SECONDS", 0.2)

    error = cause(functions.process, "dask:tcp://127.0.0.1:1", retry=Retry(attempts=1))

    assert isinstance(error, ExecutorLost)
    assert "the Dask scheduler at tcp://127.0.0.1:1 cannot be reached" in str(error)
    nonsense = cause(functions.process, "dask:carrier-pigeon://roof")
    assert "'dask:carrier-pigeon://roof' does not name a Dask scheduler" in str(nonsense)
