"""A full disk under the server: runs stop clearly, and go on when there is room again.

Three ways, as the machine allows: a tablespace on a small tmpfs (ENOSPC in the tables), a whole server on a small tmpfs
(ENOSPC in the log: the server itself goes down), and a limit on the size of the server's files (EFBIG). The last needs
no privilege and is always used.
"""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psycopg

from holdfast import END, START, Context, ExecutionError, StateGraph, StoreError
from holdfast.stores.postgres.embedded import Programs
from tests.crash.workflows import Ledger as WorkLedger
from tests.crash.workflows import Work, Workflow
from tests.invariants import CORRUPTION, NOT_STRANDED, Ledger, Violation
from tests.postgres import PostgresServer, open_folder
from tests.proof.server.tally import Tally
from tests.proof.server.trials import WORK, Trial, Witnessed

STEPS, SIZE = 6, 250_000
_SEGMENT = 1 << 20
"""The size of the log's files: small, so that a limit or a full disk is met soon."""


def bulky(ledger: WorkLedger, pause: float) -> Workflow:
    """Each step leaves a text that cannot be compressed, so that the tables have to grow."""
    noted = cast(Ledger, ledger)

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        noted.write("start", ctx.step)
        return {"n": state["n"] + 1, "log": [random.Random(ctx.node).randbytes(SIZE).hex()]}

    graph = StateGraph(Work, name="bulky")
    names = [f"step{number}" for number in range(STEPS)]
    for one, other in zip([START, *names], [*names, END], strict=True):
        if other != END:
            graph.add_node(other, work)
        graph.add_edge(one, other)
    return Workflow(graph, {"n": 0})


WORK["bulky"] = bulky


class CannotMount(Exception):
    """Whoever runs this may not mount file systems."""


class SmallLogServer(PostgresServer):
    """A server whose log has small files."""

    def _run(self, program: str, *arguments: str) -> None:
        small = ("--wal-segsize=1",) if program == "initdb" else ()
        super()._run(program, *arguments, *small)


class Full:
    """A server whose disk can be filled and emptied."""

    def __init__(
        self,
        server: PostgresServer,
        fill: Callable[[], None],
        free: Callable[[], None],
        timeout: float = 0.0,
    ) -> None:
        self.server, self.fill, self.free, self.timeout = server, fill, free, timeout


def full_disks(tally: Tally, times: int, *, always_only: bool = False) -> None:
    """Fill the disk under so many runs, on each kind that there can be here, or only on the one that always can."""
    for name, made in WAYS.items():
        if always_only and made is not _limited_files:
            continue
        try:
            with made() as disk:
                _fill_often(tally, disk, name, times)
        except CannotMount:
            tally.note(f"full disk: {name} cannot be had here (no right to mount); the others were used")


def _fill_often(tally: Tally, disk: Full, name: str, times: int) -> None:
    server = disk.server
    with Witnessed(server.url("proof", timeout=disk.timeout)) as store:
        first = Trial("bulky", f"{name}-undisturbed", store)
        wanted = first.drive(store).state
        tally.judge("disk", "bulky", name, first.check("").violations)
        for number in range(times):
            trial = Trial("bulky", f"{name}-{number}", store)
            disk.fill()
            said = _stopped(trial, store)
            tally.hit("disk", f"full: {name}")
            disk.free()
            with suppress(psycopg.Error, StoreError):
                server.sql("SELECT 1")
            trial.drive(store, rest=0.2, attempts=100)
            result = trial.check(wanted)
            if said is None:
                result.violations.append(Violation(CORRUPTION, "the run completed on a full disk"))
            elif "; " not in said:
                result.violations.append(Violation(NOT_STRANDED, f"no way out is told: {said}"))
            tally.runs += 1
            tally.stops += result.stops
            tally.judge("disk", "bulky", f"{name}, {trial.run}", result.violations)


def _stopped(trial: Trial, store: Witnessed) -> str | None:
    """Return the error of a run that executes while the disk is full."""
    store.ledger = trial.ledger
    app = trial.workflow.graph.compile(store)
    try:
        app.invoke(trial.workflow.input, run_id=trial.run)
    except (StoreError, ExecutionError) as error:
        trial.result.stops += 1
        return str(error)
    return None


@contextmanager
def _mounted(folder: Path, size: int) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(folder)]
    folder.mkdir()
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise CannotMount(str(error)) from error
    if done.returncode:
        raise CannotMount(done.stderr.decode().strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


class _Ballast:
    """A file that takes all the room that is left."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self, but: int = 0) -> None:
        """Take everything, except so many bytes."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            if but:
                file.truncate(max(0, file.tell() - but))

    def free(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def _small_tablespace() -> Iterator[Full]:
    programs = Programs.find()
    with open_folder() as folder, _mounted(folder / "small", 64 << 20):
        place = folder / "small" / "space"
        programs.make_folder(place)
        with _started(PostgresServer(programs, folder / "data")) as server:
            server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
            server.sql("ALTER ROLE postgres SET default_tablespace = 'small'")
            ballast = _Ballast(folder / "small" / "ballast")
            yield Full(server, ballast.fill, ballast.free)


@contextmanager
def _small_server() -> Iterator[Full]:
    programs = Programs.find()
    with open_folder() as folder, _mounted(folder / "small", 160 << 20):
        server = SmallLogServer(programs, folder / "small" / "data")
        ballast = _Ballast(folder / "small" / "ballast")

        def fill() -> None:
            """Room for some rows, but for no further file of the log."""
            server.sql("CHECKPOINT; SELECT pg_switch_wal()")
            ballast.fill(but=_SEGMENT // 2)

        def free() -> None:
            ballast.free()
            try:
                server.sql("SELECT 1")
            except psycopg.OperationalError:
                with suppress(StoreError):
                    server.stop("immediate")
                server.start()

        with _started(server, max_wal_size="'2MB'", min_wal_size="'2MB'", wal_recycle="off") as server:
            yield Full(server, fill, free)


@contextmanager
def _limited_files() -> Iterator[Full]:
    programs = Programs.find()
    with open_folder() as folder, _started(SmallLogServer(programs, folder / "data")) as server:

        def fill() -> None:
            ((largest,),) = server.sql(
                "SELECT coalesce(max(pg_relation_size(reltoastrelid)), 0) FROM pg_class WHERE relname = 'entry'"
            )
            with _file_limit(max(_SEGMENT, int(largest))):
                server.restart()

        yield Full(server, fill, server.restart, timeout=20.0)  # For it restarts to be limited.


@contextmanager
def _file_limit(size: int) -> Iterator[None]:
    """While this block runs, processes are started that may not write files larger than this."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@contextmanager
def _started(server: PostgresServer, **settings: object) -> Iterator[PostgresServer]:
    server.create()
    with (server.folder / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in settings.items())
    server.start()
    try:
        yield server
    finally:
        with suppress(StoreError, OSError):
            server.stop("immediate")


WAYS = {
    "a tablespace on a small tmpfs": _small_tablespace,
    "a server on a small tmpfs": _small_server,
    "a limit on the size of files": _limited_files,
}
