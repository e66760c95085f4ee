"""Retention: pruning checkpoints by count and deleting runs by age, off the critical path."""

from __future__ import annotations

import atexit
import datetime as dt
import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from holdfast import clock
from holdfast.engine.owner import has_owner
from holdfast.engine.settings import Retention, Settings
from holdfast.errors import CodecError, CorruptJournal, HoldfastError, ResourceExhausted, StoreError
from holdfast.journal.copying import delete_run, held_back, needed_by, prune_run
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import TolerantCodec
from holdfast.stores import open_store
from holdfast.stores.base import KeepsCheckpoints, RunInfo, Store, StoredCheckpoint
from holdfast.threads import locked, resolved, start
from holdfast.values import RunStatus

logger = logging.getLogger("holdfast")

_HOUR = 3600.0

AT_EXIT = 1.0
"""How many seconds a process that ends waits for pruning."""

CATCH_UP = 10.0
"""How many seconds a run that is far ahead of pruning waits for it."""

_MOST_AT_ONCE = 1000
"""How many checkpoints of a run are looked at while it is being executed."""


def kept_checkpoints(journal: Journal, info: RunInfo) -> set[int]:
    """Return the entries of a run's kept checkpoints; none for a run that cannot be read."""
    try:
        return _kept(journal, info)
    except CorruptJournal:
        return set()


def _kept(journal: Journal, info: RunInfo) -> set[int]:
    run = journal.load(info, TolerantCodec()).run
    return {seq for seq, annotation in run.annotations.items() if annotation.keep}


def prune_workflow(journal: Journal, workflow: str, retention: Retention) -> int:
    """Drop the checkpoints of a workflow that exceed the retention's count; return how many went."""
    keep = retention.max_checkpoints
    if keep is None:
        return 0
    runs = [info for info in journal.store.runs(workflow=workflow) if info.status != RunStatus.DAMAGED]
    checkpoints = {info.run: journal.store.checkpoints(info.run) for info in runs}
    if retention.per == "run":
        kept = {run: found[:keep] for run, found in checkpoints.items()}
    else:
        newest = sorted(
            ((each.at, each.seq, run) for run, found in checkpoints.items() for each in found),
            reverse=True,
        )[:keep]
        chosen = {(run, seq) for _, seq, run in newest}
        kept = {
            run: [each for each in found if (run, each.seq) in chosen] for run, found in checkpoints.items()
        }
    good = last_successful(journal.store, workflow) if retention.keep_successful else []
    staying = {info.run for info in good}
    dropped = 0
    for info in runs:
        found = checkpoints[info.run]
        resumable = info.status != RunStatus.COMPLETED
        wanted = kept[info.run] or (found[:1] if resumable or info.run in staying else [])
        if wanted and wanted[-1] is found[-1]:
            continue
        try:
            held = _kept(journal, info) if found else set[int]()
        except CorruptJournal as error:
            logger.warning("run %s is left alone: %s", info.run, error)
            continue
        if held:
            staying_seqs = held.union(each.seq for each in wanted)
            wanted = [each for each in found if each.seq in staying_seqs]
        if wanted:
            dropped += _prune_run(journal, info, found, wanted[-1].seq)
        elif not resumable and found and not needed_by(journal, info):
            delete_run(journal, info.run)
            dropped += len(found)
    return dropped


def prune_checkpoints(journal: Journal, run_id: str, keep: int) -> None:
    """Drop all but the newest checkpoints of one run, executing or not; kept ones and what is needed stay."""
    for info in journal.store.runs(run=run_id):
        found = journal.store.checkpoints(run_id, None, keep + _MOST_AT_ONCE)
        if not 0 < keep < len(found):
            return
        prune_run(journal, info, min([found[keep - 1].seq, *_kept(journal, info)]))


def _prune_run(journal: Journal, info: RunInfo, checkpoints: list[StoredCheckpoint], horizon: int) -> int:
    """Keep a run's journal from the checkpoint at `horizon` on."""
    horizon = held_back(journal, info, horizon)
    older = sum(each.seq < horizon for each in checkpoints)
    if older:
        prune_run(journal, info, horizon)
    return older


def last_successful(store: Store, workflow: str) -> list[RunInfo]:
    """Return the run of a workflow that was completed last, if there is one."""
    return store.runs(workflow=workflow, status=[RunStatus.COMPLETED], limit=1)


def expire_runs(
    store: Store, max_age: dt.timedelta, *, keep_successful: bool = True, workflow: str | None = None
) -> int:
    """Delete the runs that were not touched for `max_age`; answer how many went.

    A run that is executing, or waits for a worker or its time, or has a checkpoint that somebody wants kept, or
    has finished steps that an unfinished run is to be given, is never deleted, nor, with `keep_successful`, a
    workflow's last successful run, nor one that cannot be read.
    """
    horizon = clock.time() - max_age.total_seconds()
    runs = store.runs(workflow=workflow, before=horizon)
    kept: set[str] = set()
    if keep_successful:
        for name in {info.workflow for info in runs}:
            kept |= {info.run for info in last_successful(store, name)}
    expired, journal = 0, Journal(store, Seal.from_environment(os.environ))
    for info in runs:
        waits = bool(info.queue) and info.due_at is not None and info.due_at > clock.time()
        goes_on = info.status == RunStatus.QUEUED or (info.status == RunStatus.PAUSED and waits)
        # The facts of a run whose owner died are as old as its start.
        newest = store.checkpoints(info.run, limit=1) if info.status == RunStatus.RUNNING else []
        if info.run in kept or goes_on or any(each.at >= horizon for each in newest):
            continue
        if not has_owner(store, info) and not _is_held(journal, info) and not needed_by(journal, info):
            expired += delete_run(journal, info.run)
    return expired


def trim_history(store: Store, count: int | None = None, max_age: dt.timedelta | None = None) -> int:
    """Delete submitted runs that have ended: all but the newest `count`, and those that ended `max_age` ago.

    Failed runs stay, since they can be resumed, and so do runs that `expire_runs` never deletes. Return how many went.
    """
    ended = [info for info in store.runs(status=[RunStatus.COMPLETED, RunStatus.CANCELLED]) if info.queue]
    horizon = None if max_age is None else clock.time() - max_age.total_seconds()
    old = [info for info in ended if horizon is not None and info.updated_at < horizon]
    surplus = [] if count is None else ended[count:]
    journal = Journal(store, Seal.from_environment(os.environ))
    gone = 0
    for info in {each.run: each for each in (*surplus, *old)}.values():
        if not has_owner(store, info) and not _is_held(journal, info) and not needed_by(journal, info):
            gone += delete_run(journal, info.run)
    return gone


def _is_held(journal: Journal, info: RunInfo) -> bool:
    """Return True if a run has a kept checkpoint, or cannot be read to find out."""
    try:
        return bool(_kept(journal, info))
    except (CodecError, CorruptJournal) as error:
        logger.warning("run %s is left alone: %s", info.run, error)
        return True


def apply_retention(journal: Journal, workflow: str, retention: Retention) -> int:
    """Apply a retention to one workflow now; answer how many runs and checkpoints went."""
    gone = prune_workflow(journal, workflow, retention)
    if retention.max_age is not None:
        gone += expire_runs(
            journal.store, retention.max_age, keep_successful=retention.keep_successful, workflow=workflow
        )
    return gone


class Cleaner:
    """A background thread that deletes expired runs every so often, whatever goes wrong meanwhile."""

    def __init__(self, expire: Callable[[], int], interval_minutes: float) -> None:
        if not interval_minutes > 0:
            raise HoldfastError(f"interval_minutes must be more than 0, not {interval_minutes!r}")
        self._expire, self._interval = expire, interval_minutes * 60.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-cleaner", daemon=True)
        start(self._thread, "a periodic clean-up")

    def stop(self) -> None:
        """Stop cleaning and wait for a cleaning that is under way."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                if expired := self._expire():
                    logger.info("cleaned up %d expired runs", expired)
            except Exception as error:
                logger.error("checkpoint cleanup failed: %s", error)
            if self._stop.wait(self._interval):
                return


def periodic_cleanup(
    store: Store | KeepsCheckpoints | str | os.PathLike[str],
    interval_minutes: float = 60,
    *,
    max_age: dt.timedelta = dt.timedelta(hours=24),
    keep_successful: bool = False,
) -> Cleaner:
    """Delete expired runs of a store now and every `interval_minutes`, until `stop()` of what is returned.

    `store` is a store, whatever `open_store` takes, or anything with a method `cleanup_expired(max_age_hours)`, which
    is then called. Errors are logged and survived; a count is logged when something was deleted.
    """
    clean = getattr(store, "cleanup_expired", None)
    if callable(clean) and not keep_successful:
        hours = max_age.total_seconds() / 3600
        return Cleaner(lambda: int(resolved(clean(max_age_hours=hours)) or 0), interval_minutes)
    opened = open_store(store)
    return Cleaner(lambda: expire_runs(opened, max_age, keep_successful=keep_successful), interval_minutes)


class Work(NamedTuple):
    """A run that was executed, or still `is_executing`, with the settings of its app."""

    settings: Settings
    workflow: str
    run_id: str
    is_executing: bool

    @property
    def place(self) -> tuple[int, str]:
        """What is pruned once, however often it is asked for."""
        return id(self.settings.journal.store), self.run_id


class Janitor:
    """A background thread that applies the retention of executions; its failures are only logged.

    A process that ends waits for it, for a second at most.
    """

    def __init__(self) -> None:
        self.reset()
        atexit.register(self.wait, AT_EXIT)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget everything: a forked child leaves pruning the parent's runs to the parent."""
        self._lock = threading.Lock()
        self._todo: dict[tuple[int, str], Work] = {}
        self._current: tuple[int, str] | None = None
        self._aged: dict[str, float] = {}
        self._busy = False
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def ran(self, settings: Settings, workflow: str, run_id: str, *, is_executing: bool = False) -> bool:
        """Have the retention applied after an execution, or, while it lasts, to its run. Return at once.

        The result is whether an earlier request for this run is still to be done.
        """
        if settings.retention is None or settings.policy.preserve == "all":
            return False
        work = Work(settings, workflow, run_id, is_executing)
        is_idle, is_behind = locked(self._lock, self._take_on, work)
        if is_idle:
            thread = threading.Thread(target=self._work, name="holdfast-janitor", daemon=True)
            try:
                start(thread, "pruning")
            except ResourceExhausted as error:
                self._busy = False  # The next execution tries again.
                logger.warning("nothing is pruned for now: %s", error)
            else:
                self._thread = thread
        return is_behind

    def _take_on(self, work: Work) -> tuple[bool, bool]:
        """Note what is to be done; return whether a thread has to be started for it, and whether it is behind."""
        is_behind = work.place in self._todo or work.place == self._current
        self._todo[work.place] = work
        is_idle = not self._busy or (self._thread is not None and not self._thread.is_alive())
        self._busy = True
        return is_idle, is_behind and not is_idle

    def wait(self, timeout: float = 60.0) -> bool:
        """Wait until there is nothing left to do."""
        return locked(self._lock, self._changed.wait_for, lambda: not self._busy, timeout)

    def wait_for(self, settings: Settings, run_id: str) -> None:
        """Wait until what was asked for a run is done; see `CATCH_UP`."""
        place = id(settings.journal.store), run_id

        def is_done() -> bool:
            return not self._busy or (place not in self._todo and place != self._current)

        locked(self._lock, self._changed.wait_for, is_done, CATCH_UP)

    def _work(self) -> None:
        while (work := locked(self._lock, self._next)) is not None:
            try:
                self._clean(work)
            except HoldfastError as error:
                is_closed = isinstance(error, StoreError) and error.is_closed  # Its owner is done with it.
                level = logging.DEBUG if is_closed else logging.WARNING
                logger.log(level, "pruning %r failed: %s", work.workflow, error)
            except Exception:
                logger.exception("pruning %r failed", work.workflow)

    def _next(self) -> Work | None:
        self._current, found = None, None
        if self._todo:
            self._current, found = self._todo.popitem()
        else:
            self._busy = False
        self._changed.notify_all()
        return found

    def _clean(self, work: Work) -> None:
        settings, workflow = work.settings, work.workflow
        retention = settings.retention
        assert retention is not None
        if work.is_executing or retention.per == "run":
            prune_checkpoints(settings.journal, work.run_id, retention.max_checkpoints or 0)
        else:
            prune_workflow(settings.journal, workflow, retention)
        place = f"{settings.journal.store.url}:{workflow}"
        is_due = clock.monotonic() - self._aged.get(place, -_HOUR) >= _HOUR
        if retention.max_age is not None and is_due and not work.is_executing:
            self._aged[place] = clock.monotonic()
            expire_runs(
                settings.journal.store,
                retention.max_age,
                keep_successful=retention.keep_successful,
                workflow=workflow,
            )


janitor = Janitor()
