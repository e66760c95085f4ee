"""Benchmarks of the web pages: a large store against a small one, and many browsers that follow one run."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from figures import Row, chain
from large_store import PER_COMMIT
from on_postgres import connected, opened, url_of

from holdfast import END, START, ExecutionError, Pause, StateGraph, open_store
from holdfast.journal.checkpoint_ids import moved_mark, new_run_key
from holdfast.journal.journal import genesis, link
from holdfast.service import Service
from holdfast.stores.base import Append, Entry, RunInfo, Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.web import asgi
from holdfast.web.serving import listen

SMALL, LARGE = 1_000, 100_000
CLIENTS, STEPS = 200, 200
ASKED = 60
"""How often each page is asked for."""

RARE = {"failed": 50, "paused": 100, "queued": 200}
"""One in so many runs has this status; all others are completed."""

PATHS = {
    "runs": "/runs",
    "runs, far down": "",
    "runs that failed": "/runs?status=failed",
    "runs of a workflow": "/runs?workflow=report3",
    "runs with a rare tag": "/runs?tag=rare",
    "runs by a part of the id": "/runs?text=-000007",
    "runs in a time": "/runs?since=2001-01-01T00:00",
    "one run": "/runs/{run}",
    "two runs": "/compare?run={run}&run={other}",
    "workflows": "/workflows",
    "costs": "/costs?days=all",
    "fleet": "/fleet",
    "store": "/store",
}
"""The pages that are measured."""


def templates() -> dict[str, tuple[RunInfo, list[Entry]]]:
    """Return a run of each status, with a few entries."""
    store = open_store("memory://")

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.spend("model", input_tokens=100, output_tokens=10, cost=0.01)
        if state["how"] == "failed":
            raise RuntimeError("no paper")
        if state["how"] == "paused":
            raise Pause("Go on?")
        return {"done": True}

    graph = StateGraph(dict, name="report").add_node("read", lambda state: {}).add_node("work", work)
    app = graph.add_edge(START, "read").add_edge("read", "work").add_edge("work", END).compile(store)
    for how in ("completed", *RARE):
        with suppress(ExecutionError):
            app.invoke({"how": how}, run_id=how) if how != "queued" else app.submit({"how": how}, run_id=how)
    found = {how: (store.runs(run=how)[0], list(store.read(how))) for how in ("completed", *RARE)}
    store.close()
    return found


def name_of(number: int) -> str:
    """Return the id of a run."""
    return f"{number * 2654435761 % 2**32:08x}-{number:06d}"


def fill(store: Store, runs: int) -> None:
    """Put copies of a few runs into a store."""
    made = templates()
    for first in range(0, runs, PER_COMMIT):
        appends = []
        for number in range(first, min(first + PER_COMMIT, runs)):
            how = next((how for how, one in RARE.items() if number % one == one // 2), "completed")
            appends.append(copy(*made[how], number, runs))
        assert not any(store.commit(appends))
    if isinstance(store, PostgresStore):
        with connected(store, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def copy(info: RunInfo, entries: list[Entry], number: int, runs: int) -> Append:
    """Return a copy of a run; the higher its number, the later its last update."""
    run, key, ago = name_of(number), new_run_key(), 10.0 * (runs - number)
    chained, copies = genesis(run, key), []
    for entry in entries:
        at = entry.at - ago
        mark = None if entry.mark is None else moved_mark(entry.mark, key, entry.seq, at)
        chained = link(chained, entry.seq, at, mark, entry.body)
        copies.append(Entry(entry.seq, at, chained, entry.body, mark))
    tags = ("rare",) if number % 499 == 0 else ("all",)
    facts = replace(
        info,
        run=run,
        key=key,
        owner="",
        workflow=f"report{number % 10}",
        tags=tags,
        created_at=info.created_at - ago,
        updated_at=info.updated_at - ago,
        due_at=None if info.due_at is None else info.due_at + 1e6,
    )
    return Append(run, 0, copies, facts)


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Serve the pages in a thread; yield their address."""
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(asgi(service=service), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Browser:
    """Somebody who asks for the pages of one server."""

    def __init__(self, address: str, runs: int) -> None:
        self._client = httpx2.Client(base_url=address, timeout=60, headers={"accept": "text/html"})
        usual = [number for number in range(runs) if all(number % one != one // 2 for one in RARE.values())]
        self._names = {"run": name_of(usual[len(usual) // 2]), "other": name_of(usual[len(usual) // 2 + 1])}
        self._cursor = None
        for _ in range(min(5, runs // 400)):
            given = {"limit": 200, **({"cursor": self._cursor} if self._cursor else {})}
            self._cursor = self._client.get("/api/v1/runs", params=given).json()["next"]

    def ask(self, path: str) -> float:
        """Return how long a page takes."""
        target = path.format(**self._names) if path else f"/runs?cursor={self._cursor or ''}"
        begun = time.perf_counter()
        answer = self._client.get(target)
        seconds = time.perf_counter() - begun
        assert answer.status_code == 200, (target, answer.text)
        return seconds


def quartile(seconds: list[float]) -> float:
    """Return what a quarter stays below, since other programs of the machine disturb the rest."""
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def p95(seconds: list[float]) -> float:
    """Return what 95 of 100 stay below."""
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def bench_pages(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure each page with 100,000 runs in the store against 1,000."""
    small, large, asked = (20, 40, 2) if tiny else (SMALL, LARGE, ASKED)
    for kind in ("SQLite", "PostgreSQL"):
        with ExitStack() as stack:
            both = []
            for runs in (small, large):
                store: Store
                if kind == "SQLite":
                    store = open_store(f"sqlite:///{folder / f'{runs}.db'}")
                    stack.callback(store.close)
                else:
                    store = stack.enter_context(opened(url_of(folder / f"pages_{runs}")))
                fill(store, runs)
                service = Service(store, [chain(3)], read_only=True)
                both.append((stack.enter_context(served(service)), runs))
            browsers = [Browser(address, runs) for address, runs in both]
            for name, path in PATHS.items():
                for browser in browsers:
                    browser.ask(path)
                # One after the other, so that both are disturbed alike.
                times = [[browser.ask(path) for browser in browsers] for _ in range(asked)]
                quick, slow = ([pair[place] for pair in times] for place in (0, 1))
                mine, floor = quartile(slow), quartile(quick)
                shown = f"{mine * 1e3:.1f} ms", f"{floor * 1e3:.1f} ms small"
                yield Row(f"page of {name}, {kind}", *shown, mine / floor, 2.0)
                yield Row(f"page of {name}, {kind}, p95", "", "", p95(slow) * 1e3, 100.0, " ms")


# Many browsers that follow one run.


async def follow(host: str, port: int, path: str) -> list[str]:
    """Return the ids of all events of a run, as its stream tells them until the run ends."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n".encode())
    await writer.drain()
    found = []
    while line := await reader.readline():
        if line.startswith(b"id:"):
            found.append(line[3:].strip().decode())
        if line.strip() == b"0" and found:
            break
    writer.close()
    return found


def follow_all(address: str, path: str, clients: int, answer: Any) -> None:
    """Follow a run as so many clients, in this process; send the ids that each got."""
    host, _, port = address.removeprefix("http://").partition(":")

    async def every() -> list[list[str]]:
        return await asyncio.gather(*(follow(host, int(port), path) for _ in range(clients)))

    answer.send(json.dumps(asyncio.run(every())))


def bench_streams(folder: Path, tiny: bool) -> Iterator[Row]:
    """Measure a live run that 200 clients follow against one that nobody does; all of them get all events."""
    clients, steps = (5, 5) if tiny else (CLIENTS, STEPS)
    graph = chain(steps, lambda state: (time.sleep(0.01), {"n": state["n"] + 1})[1])
    store = open_store(f"sqlite:///{folder / 'runs.db'}")
    service = Service(store, [graph])
    with served(service) as address:
        httpx2.get(f"{address}/api/v1/health")
        alone = seconds_of(service, "alone")
        service.execute("chain", {"n": 0}, run_id="followed", delay=2.0)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        path = "/api/v1/runs/followed/events"
        process = multiprocessing.get_context("spawn").Process(
            target=follow_all, args=(address, path, clients, theirs)
        )
        begun = time.perf_counter()
        process.start()
        service.wait("followed", 600)
        run = service.status("followed")
        got = list(json.loads(ours.recv()))
        whole = time.perf_counter() - begun
        process.join()
        expected = [event["id"] for event in service.events("followed")]
        complete = sum(ids == expected for ids in got)
        assert run["status"] == "completed"
        took = service.run("followed")["seconds"]
    store.close()
    yield Row(
        f"{clients} clients follow {len(expected)} events",
        f"{complete} got all",
        f"{clients} clients",
        float(complete),
        float(clients),
        "",
        ">=",
    )
    yield Row("the same, until the last has all", f"{whole:.1f} s", f"{alone:.1f} s alone", whole, None, " s")
    yield Row("its steps while followed", f"{took:.1f} s", f"{alone:.1f} s alone", took / alone, None)


def seconds_of(service: Service, run_id: str) -> float:
    """Return how long the steps of a run take that nobody follows."""
    service.execute("chain", {"n": 0}, run_id=run_id, wait=600)
    return float(service.run(run_id)["seconds"])
