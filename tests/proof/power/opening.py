"""Opening what a power cut left: is all there that was acknowledged, and nothing else?"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast import HoldfastError, open_store
from holdfast.integrity import check_store
from holdfast.journal.journal import Journal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import RunInfo, Store
from holdfast.stores.inspection import inspecting
from tests.invariants import ACKNOWLEDGED, CORRUPTION, PRUNING, STORED, Line, Violation
from tests.proof.places import url_in
from tests.proof.power.disk import Image
from tests.proof.power.witness import BEING_PRUNED, DELETED, DELETING, POSTED, PRUNED, TRIED

_NONSENSE = random.Random(0).randbytes(32768)


def put(image: Image, home: Path) -> None:
    """Make a folder what the power cut left."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for folder in image.folders:
        (home / folder).mkdir()
    for name, content in image.files.items():
        (home / name).write_bytes(content)
        if name.endswith("-wal"):
            # What processes share about it is never synced: it may be there, and say anything.
            (home / f"{name.removesuffix('-wal')}-shm").write_bytes(_NONSENSE)


class Expected:
    """What the lines of a ledger say that a store holds."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.written: dict[str, dict[int, str]] = {}
        self.stored: dict[str, int] = {}
        self.posted: dict[str, dict[int, str]] = {}
        self.doomed: set[str] = set()
        self.deleted: set[str] = set()
        self.horizons: dict[str, set[int]] = {}
        for what, key, detail in lines:
            run, _, number = key.rpartition(":")
            if what == TRIED:
                self.written.setdefault(run, {})[int(number)] = detail
            elif what == STORED:
                self.stored[run] = max(self.stored.get(run, 0), int(number))
            elif what == POSTED:
                self.posted.setdefault(run, {})[int(number)] = detail
            elif what == DELETING:
                self.doomed.add(key)
            elif what == DELETED:
                self.deleted.add(key)
            elif what == BEING_PRUNED:
                self.horizons.setdefault(key, {1}).add(int(detail))
            elif what == PRUNED:
                self.horizons[key] = {int(detail)}


def examine(home: Path, scheme: str, expected: Expected, *, check: bool) -> list[Violation]:
    """Open the store in a home and look at all of it; with `check` as `fsck` does, too."""
    try:
        store = open_store(url_in(home, scheme))
    except HoldfastError as error:
        return [Violation(CORRUPTION, f"the store cannot be opened: {error}")]
    try:
        return list(_examined(store, expected, check=check))
    finally:
        store.close()


def examine_reported(home: Path, scheme: str, expected: Expected) -> list[Violation]:
    """Where damage may be left, if only it is reported: what is intact of each run has all that was stored.

    A fork is not looked at: it is as damaged as the run that it was forked from.
    """
    store = open_store(url_in(home, scheme))
    try:
        with inspecting(store) as inspector:
            forks = {info.run for info in inspector.runs().infos if info.parent}
        reports = {report.run: report for report in check_store(store).runs}
    finally:
        store.close()
    lost = []
    for run, stored in expected.stored.items():
        report = reports.get(run)
        intact = report.intact.end if report is not None and report.intact is not None else 0
        if intact < stored and run not in expected.doomed | forks:
            lost.append(
                Violation(ACKNOWLEDGED, f"of {run!r} {intact} entries are intact, {stored} were stored")
            )
    return lost


def _examined(store: Store, expected: Expected, *, check: bool) -> Iterator[Violation]:
    try:
        infos = {info.run: info for info in store.runs()}
    except HoldfastError as error:
        yield Violation(CORRUPTION, f"the runs cannot be listed: {error}")
        return
    for run in infos.keys() - expected.written.keys():
        yield Violation(CORRUPTION, f"there is a run {run!r} that was never written")
    for run in expected.written:
        yield from _of_run(store, run, infos.get(run), expected)
    if check:
        report = check_store(store)
        for problem in report.problems:
            yield Violation(CORRUPTION, f"fsck: {problem}")
        for one in report.runs:
            for damage in one.damages:
                yield Violation(CORRUPTION, f"fsck of {one.run!r}: {damage}")


def _of_run(store: Store, run: str, info: RunInfo | None, expected: Expected) -> Iterator[Violation]:
    if info is None:
        if expected.stored.get(run) and run not in expected.doomed:
            yield Violation(ACKNOWLEDGED, f"run {run!r} is gone")
        return
    if run in expected.deleted:
        yield Violation(ACKNOWLEDGED, f"run {run!r} is there again, although it was deleted")
    try:
        journal = Journal(store)
        entries = {entry.seq: entry.chain.hex() for entry in store.read(run)}
        journal.load(info, TolerantCodec())
        inbox = {message.number: message.body.hex() for message in store.inbox(run)}
    except HoldfastError as error:
        yield Violation(CORRUPTION, f"run {run!r} cannot be read: {error}")
        return
    written = expected.written[run]
    for seq, chain in entries.items():
        if written.get(seq) != chain:
            yield Violation(CORRUPTION, f"entry {seq} of {run!r} was never written")
    if max(entries) < expected.stored.get(run, 0):
        yield Violation(
            ACKNOWLEDGED, f"run {run!r} ends at {max(entries)}, {expected.stored[run]} were stored"
        )
    if (first := min(entries)) not in expected.horizons.get(run, {1}):
        yield Violation(PRUNING, f"run {run!r} begins with entry {first}")
    for number, body in expected.posted.get(run, {}).items():
        if inbox.get(number) != body:
            yield Violation(ACKNOWLEDGED, f"message {number} to {run!r} is gone")
