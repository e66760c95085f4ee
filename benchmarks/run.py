"""Benchmarks of Holdfast against the cost of its store, in one run, as ratios.

    python benchmarks/run.py            every benchmark
    python benchmarks/run.py chain wave only these
    python benchmarks/run.py --check    exit with 1 if a target is missed
    python benchmarks/run.py --tiny     check that they work, those on PostgreSQL with meaningless small sizes

The floor of a durable step is a raw apsw loop on the same disk with the same PRAGMAs, the same bytes
and one commit per step; on PostgreSQL (an embedded server that syncs) a raw psycopg loop. Contenders take
turns, and medians are compared, because machines are noisy.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import apsw
import ormsgpack
from figures import ROUNDS, SESSION, Holding, Row, chain, loop, one_more_async, rows_of

from holdfast import END, START, App, StateGraph, append
from holdfast.state import WorkflowState
from holdfast.state.codec import unpack
from holdfast.stores.sqlite.store import SqliteStore


def raw_loop(path: Path, synchronous: str, bodies: list[tuple[bytes, bytes, bytes]]) -> float:
    """Return the seconds per commit of a plain loop that writes these rows, one commit each."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(
        "CREATE TABLE entries (id INTEGER PRIMARY KEY, at REAL, chain BLOB, mark BLOB, body BLOB)"
    )
    execute = connection.cursor().execute
    begun = time.perf_counter()
    for number, (link, mark, body) in enumerate(bodies):
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, time.time(), link, mark, body))
        execute("COMMIT")
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds / len(bodies)


def disk_bytes(app: App, path: Path) -> int:
    app.store.close()
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def bench_chain(folder: Path) -> Iterator[Row]:
    """Measure a chain of 200 steps against a raw loop with one commit per step, both on a fresh database."""
    graph = chain(200)
    graph.compile("memory://").invoke({"n": 0})
    for durability, synchronous, target in (("full", "FULL", 1.5), ("process", "NORMAL", 6.0)):
        ours, floor = [], []
        for turn in range(2 * ROUNDS):
            path = folder / f"{durability}{turn}.db"
            app = graph.compile(f"sqlite:///{path}", durability=durability)
            begun = time.perf_counter()
            outcome = app.invoke({"n": 0})
            ours.append((time.perf_counter() - begun) / 200)
            floor.append(
                raw_loop(folder / f"raw-{durability}{turn}.db", synchronous, rows_of(app, outcome.run_id))
            )
            app.store.close()
        mine, raw = statistics.median(ours), statistics.median(floor)
        ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
        yield Row(
            f"chain of 200, {durability}",
            f"{mine * 1e6:.0f} µs/step",
            f"{raw * 1e6:.0f} µs raw",
            ratio,
            target,
        )


def bench_messages(folder: Path) -> Iterator[Row]:
    """Measure a list that grows by 1 KB per step: time per step late against early, and bytes on disk."""
    steps = 4200
    stamps: list[float] = []

    def work(state: Any) -> dict[str, Any]:
        stamps.append(time.perf_counter())
        count = len(state["messages"])
        return {"n": count + 1, "messages": [{"role": "user", "content": random_text(count)}]}

    path = folder / "messages.db"
    app = loop(work, steps).compile(f"sqlite:///{path}", durability="process")
    outcome = app.invoke({"n": 0})
    gaps = [after - before for before, after in itertools.pairwise(stamps)]
    early, late = statistics.median(gaps[150:350]), statistics.median(gaps[3900:4100])
    yield Row(
        "growing messages, step 4,000 v 250",
        f"{late * 1e6:.0f} µs",
        f"{early * 1e6:.0f} µs",
        late / early,
        1.3,
    )
    held = sum(len(ormsgpack.packb(dict(message))) for message in outcome.state["messages"])
    stored = disk_bytes(app, path)
    yield Row(
        "growing messages, bytes on disk",
        f"{stored / 1e6:.1f} MB",
        f"{held / 1e6:.1f} MB",
        stored / held,
        1.6,
    )


def random_text(seed: int) -> str:
    """Return 1 KB that does not compress well and is the same in every run."""
    value, letters = seed * 2654435761 % 2**32, []
    for _ in range(1000):
        value = (value * 1103515245 + 12345) % 2**31
        letters.append(chr(33 + (value >> 16) % 90))
    return "".join(letters)


def bench_wave(folder: Path) -> Iterator[Row]:
    """Measure a wave of 200 steps: how many commits it takes."""
    for kind in ("sync", "async"):
        graph = StateGraph({"n": int, "seen": Annotated[list[int], append]}, name="wave")
        for index in range(200):
            graph.add_node(f"step{index}", _seer(index, kind == "async"), after=[])
        app = graph.compile(f"sqlite:///{folder / kind}.db")
        outcome = app.invoke({"n": 0})
        assert outcome.state["seen"] == list(range(200))
        yield Row(
            f"wave of 200 {kind} steps",
            f"{outcome.stats.commits} commits",
            "",
            outcome.stats.commits,
            5,
            "",
        )
        app.store.close()


def _seer(index: int, is_async: bool) -> Callable[..., Any]:
    def see(state: Any) -> dict[str, Any]:
        return {"seen": [index]}

    async def see_async(state: Any) -> dict[str, Any]:
        return {"seen": [index]}

    return see_async if is_async else see


def bench_concurrent(folder: Path) -> Iterator[Row]:
    """Measure 100 concurrent runs of 20 steps against one run, in steps per second."""
    app = chain(20, one_more_async).compile(f"sqlite:///{folder / 'many.db'}")

    async def many(count: int) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(app.ainvoke({"n": 0}) for _ in range(count)))
        return count * 20 / (time.perf_counter() - begun)

    asyncio.run(many(3))
    alone, together = [], []
    for _ in range(ROUNDS):
        alone.append(asyncio.run(many(1)))
        together.append(asyncio.run(many(100)))
    app.store.close()
    one, hundred = statistics.median(alone), statistics.median(together)
    yield Row(
        "100 runs at once v one, full",
        f"{hundred:.0f} steps/s",
        f"{one:.0f} steps/s",
        hundred / one,
        4.0,
        better=">=",
    )


def bench_untouched(folder: Path) -> Iterator[Row]:
    """Measure 10 MB that 100 steps do not change: bytes written after the first checkpoint."""
    app = chain(100, schema=Holding).compile(f"sqlite:///{folder / 'untouched.db'}", durability="process")
    outcome = app.invoke({"n": 0, "blob": os.urandom(10_000_000)})
    first, *later = app.checkpoints(outcome.run_id)
    written = sum(entry.size for entry in later)
    snapshot = app.store.snapshot(outcome.run_id)
    if snapshot is not None and snapshot.seq > first.seq:
        written += len(snapshot.body)
    app.store.close()
    yield Row(
        "10 MB untouched, after the first of 100 steps",
        f"{written / 1e6:.3f} MB",
        "",
        written / 1e6,
        1,
        " MB",
    )


def bench_cold_resume(folder: Path) -> Iterator[Row]:
    """Measure a cold resume of 1,000 steps and 1 MB, to its first new step, against decoding the same bytes."""
    path = folder / "cold.db"
    begun_step: list[float] = []

    def work(state: Any) -> dict[str, Any]:
        if state["n"] == 1000:
            begun_step.append(time.perf_counter())
            raise RuntimeError("enough")
        return {"n": state["n"] + 1, "messages": [{"role": "user", "content": random_text(state["n"])}]}

    app = loop(work, 2000).compile(f"sqlite:///{path}", durability="process")
    try:
        app.invoke({"n": 0}, run_id="cold")
    except Exception:
        begun_step.clear()
    app.store.close()
    ours, floor = [], []
    for _ in range(ROUNDS):
        shutil.copy(path, folder / "copy.db")
        begun = time.perf_counter()
        app = loop(work, 2000).compile(f"sqlite:///{folder / 'copy.db'}", durability="process")
        try:
            app.resume("cold")
        except Exception:
            ours.append(begun_step.pop() - begun)
        app.store.close()
        shutil.copy(path, folder / "copy.db")
        begun = time.perf_counter()
        read_and_decode(folder / "copy.db")
        floor.append(time.perf_counter() - begun)
    mine, raw = statistics.median(ours), statistics.median(floor)
    yield Row(
        "cold resume, 1,000 steps and 1 MB",
        f"{mine * 1e3:.1f} ms",
        f"{raw * 1e3:.1f} ms read",
        mine / raw,
        3.0,
    )


def read_and_decode(path: Path) -> None:
    """Open the store, read the run's entries and decode them and the values in them, and nothing else."""
    store = SqliteStore(path)
    for entry in store.read("cold"):
        for record in ormsgpack.unpackb(entry.body[1:]):
            if record[0] == 2:
                for change in record[2]:
                    raw = unpack(change[2], change[3]) if change[2] else change[3]
                    ormsgpack.unpackb(raw[1:])
    store.close()


def bench_checkpoints(folder: Path) -> Iterator[Row]:
    """Measure saving and resuming with 1,000 tasks in the state, and the size of a typical checkpoint."""

    def work(state: Any) -> dict[str, Any]:
        number = len(state["tasks"])
        return {
            "tasks": [{"task_id": f"t{number}", "result": "done", "timestamp": time.time(), "duration": 0.1}]
        }

    graph = StateGraph(WorkflowState, name="tasks", max_iterations=2000)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_edge("work", "work", when=lambda state: len(state["tasks"]) < 1200)
    graph.add_edge("work", END)
    path = folder / "tasks.db"
    marks: list[tuple[str, float, int]] = []
    app = graph.compile(
        f"sqlite:///{path}",
        observer=lambda event: marks.append((event.type, time.perf_counter(), event.data.get("size", 0))),
    )
    tasks = [{"task_id": f"t{n}", "result": "x" * 40, "timestamp": 0.0, "duration": 0.1} for n in range(1000)]
    outcome = app.invoke({"tasks": tasks}, run_id="tasks")
    waits = []
    started = None
    for kind, at, _ in marks:
        if kind == "node.start":
            if started is not None:
                waits.append((at - started) * 1e3)
            started = at
    size = max(size for kind, _, size in marks if kind == "checkpoint.save") / 1e3
    p95 = sorted(waits)[int(len(waits) * 0.95)]
    yield Row("save with 1,000 tasks, p95 of a whole step", f"{p95:.2f} ms", "", p95, 50.0, " ms")
    yield Row("typical checkpoint", f"{size:.1f} KB", "", size, 100.0, " KB")
    begun = time.perf_counter()
    app.get_state("tasks", checkpoint_id=outcome.checkpoint_id)
    latency = (time.perf_counter() - begun) * 1e3
    yield Row("loading that run", f"{latency:.1f} ms", "", latency, 100.0, " ms")
    app.store.close()


def bench_import(folder: Path) -> Iterator[Row]:
    """Measure `import holdfast` against a bare interpreter, in CPU time."""
    ours, bare = [], []
    for _ in range(ROUNDS * 2):
        bare.append(cpu_of("pass"))
        ours.append(cpu_of("import holdfast"))
    mine, floor = statistics.median(ours), statistics.median(bare)
    yield Row("import holdfast, CPU", f"{mine * 1e3:.0f} ms", f"{floor * 1e3:.0f} ms bare", mine / floor, 5.0)
    used = statistics.median(cpu_of("from holdfast import StateGraph") for _ in range(ROUNDS))
    yield Row(
        "first use of StateGraph, CPU",
        f"{used * 1e3:.0f} ms",
        f"{floor * 1e3:.0f} ms bare",
        used / floor,
        15.0,
    )


def cpu_of(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_help(folder: Path) -> Iterator[Row]:
    """Measure `holdfast --help`, cold, against a bare interpreter, in CPU time."""
    ours, bare = [], []
    for _ in range(ROUNDS * 2):
        bare.append(cpu_of("pass"))
        ours.append(
            cpu_of("import sys; sys.argv = ['holdfast', '--help']; import holdfast.__main__ as m; m.main()")
        )
    mine, floor = statistics.median(ours), statistics.median(bare)
    yield Row("holdfast --help, CPU", f"{mine * 1e3:.0f} ms", f"{floor * 1e3:.0f} ms bare", mine / floor, 8.0)


WORK = """
import os, sys, time

stamps = []

def work(ctx):
    stamps.append(time.perf_counter())
    if len(stamps) == int(os.environ["STEPS"]):
        print((stamps[-1] - stamps[0]) / (len(stamps) - 1), file=sys.stderr)
    return {"n": 1}
"""
SAME_IN_PYTHON = """
import sys
from work import work
from holdfast import END, START, StateGraph

def node(name):
    return lambda state, ctx: {name: {"status": "completed", "output": work(ctx), "visits": 1}}

names = [f"s{index}" for index in range(int(sys.argv[1]))]
graph = StateGraph({name: dict for name in names}, name="w")
before = START
for name in names:
    graph.add_node(name, node(name)).add_edge(before, name)
    before = name
graph.add_edge(before, END).compile(sys.argv[2]).invoke({})
"""


def bench_workflow_file(folder: Path) -> Iterator[Row]:
    """Measure a step of `holdfast run` against a step of the same graph in Python, both in their own processes."""
    (folder / "work.py").write_text(WORK)
    (folder / "same.py").write_text(SAME_IN_PYTHON)
    steps = 300
    text = "".join(f"  - {{name: s{index}, python: 'work.py:work'}}\n" for index in range(steps))
    path = folder / "chain.yaml"
    path.write_text("workflow: {name: w, limits: {max_iterations: 1000}}\nsteps:\n" + text)

    def timed(*arguments: str) -> float:
        environment = {**os.environ, "STEPS": str(steps)}
        done = subprocess.run(
            [sys.executable, *arguments],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
        )
        return float(done.stderr.split()[-1])

    ours, floor = [], []
    for turn in range(ROUNDS):
        url = f"sqlite:///{folder / f'{turn}.db'}"
        ours.append(timed("-m", "holdfast", "run", str(path), "--store", url))
        floor.append(timed("same.py", str(steps), url.replace(".db", "-same.db")))
    mine, theirs = statistics.median(ours), statistics.median(floor)
    yield Row(
        "a step of `holdfast run` v in Python",
        f"{mine * 1e6:.0f} µs/step",
        f"{theirs * 1e6:.0f} µs",
        mine / theirs,
        1.3,
    )


BENCHMARKS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "chain": bench_chain,
    "messages": bench_messages,
    "wave": bench_wave,
    "concurrent": bench_concurrent,
    "untouched": bench_untouched,
    "cold": bench_cold_resume,
    "checkpoints": bench_checkpoints,
    "import": bench_import,
    "help": bench_help,
    "workflow-file": bench_workflow_file,
}

SCALED = {
    "pg-chain": ("on_postgres", "bench_chain"),
    "pg-concurrent": ("on_postgres", "bench_concurrent"),
    "pg-workers": ("fleet", "bench_workers"),
    "pg-failover": ("fleet", "bench_failover"),
    "large": ("large_store", "bench_large"),
    "pages": ("web_pages", "bench_pages"),
    "streams": ("web_pages", "bench_streams"),
    "history": ("past", "bench_history"),
    "diff": ("comparing", "bench_diff"),
    "speculation": ("speculation", "bench_speculation"),
    "functions": ("functions", "bench_functions"),
}
"""Benchmarks with a tiny form, by module and function; all but the last three need the extras of PostgreSQL."""


def rows(name: str, folder: Path, tiny: bool) -> Iterator[Row]:
    """Return the description of a benchmark."""
    if name in BENCHMARKS:
        return BENCHMARKS[name](folder)
    module, function = SCALED[name]
    measured: Iterator[Row] = getattr(importlib.import_module(module), function)(folder, tiny)
    return measured


def show(row: Row) -> None:
    verdict = "" if row.good else "  MISSED"
    target = "" if row.target is None else f"{row.better} {row.target:g}{row.unit}"
    figure = f"{row.figure:.2f}{row.unit}"
    print(f"{row.name:48} {row.measured:>16} {row.floor:>16} {figure:>10} {target:>10}{verdict}", flush=True)


def main(arguments: list[str]) -> int:
    check, tiny = "--check" in arguments, "--tiny" in arguments
    every = list(SCALED) if tiny else [*BENCHMARKS, *SCALED]
    names = [name for name in arguments if name not in ("--check", "--tiny")] or every
    unknown = [name for name in names if name not in every]
    if unknown:
        print(f"no {'tiny ' if tiny else ''}benchmark {', '.join(unknown)}; there are {', '.join(every)}")
        return 2
    print(f"{'benchmark':48} {'measured':>16} {'floor':>16} {'figure':>10} {'target':>10}")
    missed = 0
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=SESSION) as session:
        Path(session).chmod(0o755)  # The user of the PostgreSQL server must be able to enter.
        for name in names:
            folder = Path(session) / name
            folder.mkdir()
            for row in rows(name, folder, tiny):
                missed += not row.good
                show(row)
            shutil.rmtree(folder)
    print(f"{missed} target(s) missed" if missed else "every target met")
    return 1 if check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
