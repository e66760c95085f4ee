"""Fail-over to a replica that is promoted by hand, with acknowledged commits on both servers, or on one only."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from holdfast import END, START, Context, CorruptJournal, HoldfastError, RunConflict, StateGraph, StoreError
from holdfast.events import CallbackObserver
from holdfast.stores.postgres.embedded import Programs
from tests.crash.workflows import Ledger as WorkLedger
from tests.crash.workflows import Work, Workflow
from tests.invariants import ACKNOWLEDGED, FENCE, STORED, Ledger, Violation
from tests.postgres import open_folder
from tests.proof.server.clusters import TcpServer
from tests.proof.server.tally import Tally
from tests.proof.server.trials import WORK, Trial, Witnessed

SCHEMA = "proof"
STEPS = 5


class Gate:
    """A gate that holds a step until it is opened, and reports when a step has reached it."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(60), "the gate stayed shut"


gates: dict[str, Gate] = {}
"""The gates of the run under test, by node."""


def gated(ledger: WorkLedger, pause: float) -> Workflow:
    """A chain whose steps wait at gates."""
    noted = cast(Ledger, ledger)

    def work(state: Any, ctx: Context) -> dict[str, Any]:
        noted.write("start", ctx.step)
        if ctx.node in gates:
            gates[ctx.node].pass_through()
        return {"n": state["n"] * 3 + 1, "log": [ctx.node]}

    graph = StateGraph(Work, name="gated")
    names = [f"s{number}" for number in range(STEPS)]
    for one, other in zip([START, *names], [*names, END], strict=True):
        if other != END:
            graph.add_node(other, work)
        graph.add_edge(one, other)
    return Workflow(graph, {"n": 1})


WORK["gated"] = gated


class Pair:
    """A primary and its replica. `is_synchronous` says whether a commit waits for the replica."""

    def __init__(self, programs: Programs, folder: Path, is_synchronous: bool) -> None:
        self.primary = TcpServer(programs, folder / "primary")
        self.replica = TcpServer(programs, folder / "replica")
        self._programs, self._is_synchronous = programs, is_synchronous

    def start(self) -> None:
        self.primary.create()
        self.primary.start()
        self.primary.protect()
        with Witnessed(self.primary.url(SCHEMA)):
            pass  # Its schema is made.
        self._copy()
        self.replica.start()
        if self._is_synchronous:
            self.primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'replica'")
            self.primary.sql("SELECT pg_reload_conf()")
        self.wait_until_followed("sync" if self._is_synchronous else "async")

    def _copy(self) -> None:
        folder = self.replica.folder
        self._programs.make_folder(folder)
        self._programs.run(
            "pg_basebackup",
            *("-h", str(self.primary.folder), "-p", str(self.primary.port), "-U", "postgres"),
            *("-D", str(folder), "--checkpoint=fast", "--no-sync", "-X", "stream"),
        )
        with (folder / "postgresql.conf").open("a") as file:
            file.write(
                f"port = {self.replica.port}\nunix_socket_directories = '{folder}'\n"
                f"primary_conninfo = 'host={self.primary.folder} port={self.primary.port} user=postgres "
                "application_name=replica'\n"
            )
        (folder / "standby.signal").touch()

    def wait_until_followed(self, how: str) -> None:
        """Wait until the replica streams."""
        self._until(
            lambda: bool(
                self.primary.sql(
                    "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = %s", how
                )
            )
        )

    def fail_over(self) -> None:
        """Stop the primary as a power cut would, and promote the replica."""
        self.primary.stop("immediate")
        self.promote()

    def promote(self) -> None:
        """Make the replica the primary."""
        self.replica._run("pg_ctl", "promote", "-w")
        self._until(lambda: self.replica.sql("SELECT pg_is_in_recovery()") == [(False,)])

    def _until(self, happened: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    def url(self, **parameters: object) -> str:
        """Both servers, of which libpq takes the one that can be written to."""
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}"
        return (
            f"postgresql://postgres:{TcpServer.PASSWORD}@{hosts}/postgres?schema={SCHEMA}"
            f"&target_session_attrs=read-write{given}"
        )

    def stop(self) -> None:
        for server in (self.primary, self.replica):
            with suppress(StoreError, OSError):
                server.stop("immediate")
            shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def _pair(is_synchronous: bool) -> Iterator[Pair]:
    with open_folder() as folder:
        pair = Pair(Programs.find(), folder, is_synchronous)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()


class Stale:
    """An owner in a thread, held at gates, and its result."""

    def __init__(
        self, pair: Pair, run: str, *held: str, timeout: float = 60.0, is_heir: bool = False
    ) -> None:
        gates.clear()
        gates.update({node: Gate() for node in held})
        self.gates = dict(gates)
        self.store = Witnessed(pair.url(timeout=timeout, lease=1))
        self.trial = Trial("gated", run, self.store)
        self.store.ledger = self.trial.ledger
        self.ended: object = None
        self._is_heir = is_heir
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()

    def at(self, node: str) -> None:
        """Wait until the owner is held there."""
        assert self.gates[node].reached.wait(60), f"{node} is never reached"

    def past(self, node: str) -> None:
        """Let the owner continue."""
        self.gates[node].opened.set()

    def end(self) -> object:
        """Return the result of the owner: an outcome, or an error."""
        self._thread.join(120)
        assert not self._thread.is_alive(), "the driver does not come to an end"
        gates.clear()
        self.store.close()
        return self.ended

    def _drive(self) -> None:
        app = self.trial.workflow.graph.compile(self.store)
        observer = CallbackObserver(self.trial.ledger.observe)
        try:
            if self._is_heir:
                outcome = app.resume(self.trial.run, takeover=True, observer=observer)
            else:
                outcome = app.invoke(self.trial.workflow.input, run_id=self.trial.run, observer=observer)
            self.trial.keep(outcome.state)
            self.ended = outcome
        except HoldfastError as error:
            self.ended = error


def synchronous(tally: Tally) -> None:
    """What was acknowledged is on the replica, and the run goes on there; the old primary acknowledges nothing."""
    with _pair(True) as pair:
        _goes_on_by_itself(tally, pair)
        _the_old_primary_comes_back(tally, pair)


def _goes_on_by_itself(tally: Tally, pair: Pair) -> None:
    driver = Stale(pair, "on", "s1", "s3")
    driver.at("s1")
    driver.past("s1")
    driver.at("s3")
    pair.fail_over()
    tally.hit("failover", "synchronous replica promoted under a driver")
    driver.past("s3")
    ended = driver.end()
    with Witnessed(pair.replica.url(SCHEMA)) as looking:
        driver.trial.direct = looking
        result = driver.trial.check("")
        if isinstance(ended, HoldfastError):
            result.violations.append(Violation(ACKNOWLEDGED, f"the driver could not go on: {ended}"))
        tally.runs += 1
        tally.judge("failover", "gated", "synchronous", result.violations)


def _the_old_primary_comes_back(tally: Tally, pair: Pair) -> None:
    """Two servers believe that they are the primary: a commit on the old one is acknowledged to nobody."""
    pair.primary.start()
    store = Witnessed(pair.primary.url(SCHEMA, timeout=0))
    trial = Trial("chain", "split", store)
    store.ledger = trial.ledger
    app = trial.workflow.graph.compile(store)
    ended: list[object] = []

    def drive() -> None:
        try:
            ended.append(app.invoke(trial.workflow.input, run_id="split"))
        except HoldfastError as error:
            ended.append(error)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    thread.join(1.0)
    acknowledged = [line for line in trial.ledger.lines() if line.what == STORED]
    pair.primary.stop("immediate")
    thread.join(60)
    tally.hit("failover", "the old primary comes back")
    violations = []
    if acknowledged or not isinstance(ended[0], HoldfastError):
        violations.append(Violation(FENCE, f"the old primary acknowledged {acknowledged}"))
    store.close()
    tally.runs += 1
    tally.judge("failover", "chain", "split brain", violations)


def asynchronous(tally: Tally, *, is_overtaken: bool = True) -> None:
    """Acknowledged entries may be lost: the owner gets an error and stops, and the run continues from what there is."""
    with _pair(False) as pair:
        driver = Stale(pair, "lost", "s1", "s3")
        driver.at("s1")
        _follow(pair)
        pair.replica.stop("immediate")
        driver.past("s1")
        driver.at("s3")  # The ends of s1 and s2 were acknowledged by a server that is about to go.
        pair.primary.stop("immediate")
        pair.replica.start()
        pair.promote()
        tally.hit("failover", "asynchronous replica promoted without the last commits")
        # With an heir that has come just as far, only what the entries say tells the two histories apart.
        # It has another timeout, and so another URL, for it stands for another process.
        heir = Stale(pair, "lost", "s2", is_heir=True, timeout=59.0) if is_overtaken else None
        if heir is not None:
            heir.at("s2")
            tally.hit("failover", "and another driver has come just as far as the first had")
        driver.past("s3")
        ended = driver.end()
        violations = []
        if not isinstance(ended, RunConflict) or "restored to an earlier time" not in str(ended):
            violations.append(Violation(FENCE, f"the loss was not noticed: {ended}"))
        with Witnessed(pair.url(timeout=30)) as store:
            again = Trial("gated", "lost", store)
            if heir is None:
                again.take_over(store)
            else:
                heir.past("s2")
                heir.end()
                again.result.state = heir.trial.result.state
            try:
                violations += again.check("").violations
            except CorruptJournal as error:
                violations.append(Violation(FENCE, f"two histories are mixed: {error}"))
            if again.result.state != _UNDISTURBED:
                violations.append(Violation(FENCE, f"two histories are mixed: {again.result.state}"))
        tally.runs += 1
        tally.conflicts += 1
        tally.judge("failover", "gated", "asynchronous", violations)


_UNDISTURBED = '{"log": ["s0", "s1", "s2", "s3", "s4"], "n": 364, "total": 0}'


def _follow(pair: Pair) -> None:
    """Wait until the replica has all that the primary has."""
    ((wanted,),) = pair.primary.sql("SELECT pg_current_wal_lsn()::text")
    deadline = time.monotonic() + 60
    while not pair.replica.sql("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", wanted)[0][0]:
        assert time.monotonic() < deadline, "the replica does not follow"
        time.sleep(0.02)


def zombie(tally: Tally) -> None:
    """An owner that slept through a failover, and whose run another has taken over, is refused by the new primary."""
    with _pair(True) as pair:
        driver = Stale(pair, "slept", "s2")
        driver.at("s2")
        pair.fail_over()
        tally.hit("failover", "a driver wakes up after the fail-over, and its run is another's")
        held, shut = dict(gates), driver.gates["s2"]
        gates.clear()
        with Witnessed(pair.url(timeout=30)) as heir:
            again = Trial("gated", "slept", heir)
            app = again.workflow.graph.compile(heir)
            outcome = app.resume("slept", takeover=True)
            again.keep(outcome.state)
            gates.update(held)
            shut.opened.set()
            ended = driver.end()
            violations = list(again.check("").violations)
        if not isinstance(ended, RunConflict):
            violations.append(Violation(FENCE, f"a driver that was replaced ended as {ended!r}"))
        if again.result.state != _UNDISTURBED:
            violations.append(Violation(FENCE, f"two histories are mixed: {again.result.state}"))
        tally.runs += 1
        tally.conflicts += 1
        tally.judge("failover", "gated", "zombie", violations)
