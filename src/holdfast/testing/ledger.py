"""A ledger outside the store of what really happened: effects, steps, and what Holdfast promises, held against it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import fcntl
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.fold import parts_of
from holdfast.journal.journal import genesis, verified
from holdfast.journal.records import Record, StepStarted
from holdfast.state.codec import Codec
from holdfast.stores.base import Store

START = "start"
"""The body of a step began; the key is the step."""
FINISHED = "finished"
"""A step was reported as finished, or found it so in the journal; the key is the step."""
EFFECT = "effect"
"""Something happened outside of the workflow; the key is the idempotency key that it was done with."""
STORED = "stored"
"""A store acknowledged an entry; the key is `RUN:SEQ`, the detail its chain."""
DIED, EXECUTION = "died", "execution"
LEFT, FAILED, RETURNED = "left", "failed", "returned"
"""How the body of a step ends; the key is the step."""
LOOKS = "looks"
"""The function that its node gives as `if_interrupted` looks what became of a step; the key is the step."""
BEGINS = (START, LOOKS)
"""How a pass of a step begins."""
UNKEYED, AGAIN = "effect-without-key", "effect-known"
COUNTED = "counted"
"""Something that a fake counts; the key is what."""
LEDGER_VARIABLE = "HOLDFAST_TEST_LEDGER"
"""Names the ledger to the programs that a step starts."""
STEP_VARIABLE = "HOLDFAST_STEP"
"""Names the step to the programs that it starts; `shell` steps of workflow files set it."""


class Line(NamedTuple):
    """One thing that happened."""

    what: str
    key: str
    detail: str = ""


class FileLedger:
    """Lines in a file, in the order in which they were written, that outlive any process.

    With `sync` they outlive a power cut too: each is on the disk before `write` returns.
    """

    def __init__(self, path: Path | str, *, sync: bool = True) -> None:
        self.path, self._sync = Path(path), sync

    def write(self, what: str, key: str, detail: str = "") -> None:
        """Add a line. On return it outlives whatever the ledger is to outlive."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{what}\t{key}\t{detail}\n".encode())
            if self._sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def lines(self) -> list[Line]:
        """Return all lines, from the first."""
        if not self.path.exists():
            return []
        return [Line(*line.split("\t")) for line in self.path.read_text().splitlines()]


class Journalled(NamedTuple):
    """A run's journal as stored: the seq and chain of each entry, and all records in order."""

    entries: dict[int, str]
    records: list[tuple[int, Record]]


def read_journal(store: Store, run: str, codec: Codec | None = None) -> Journalled:
    """What a store holds of a run that was neither pruned nor forked; every checksum is verified."""
    codec, track = codec or Codec(), Track()
    found = store.runs(run=run)
    entries: dict[int, str] = {}
    records: list[tuple[int, Record]] = []
    if found:
        for entry in verified(store, run, 0, genesis(run, found[0].key), sealed=False):
            entries[entry.seq] = entry.chain.hex()
            records.extend((entry.seq, record) for record in decode_records(entry.body, track, codec))
    return Journalled(entries, records)


def broken_promises(lines: Sequence[Line], store: Store, run: str, codec: Codec) -> list[tuple[str, str]]:
    """Return the promises that Holdfast or a store did not keep in a run: the name of each, and what happened."""
    try:
        journal = read_journal(store, run, codec)
    except HoldfastError as error:
        return [("corruption", f"the journal of {run!r} cannot be read: {error}")]
    return [*_repeated(lines), *_unknown_to(journal, lines, run)]


def _repeated(lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
    finished: set[str] = set()
    for what, key, _ in lines:
        if what == FINISHED:
            finished.add(key)
        elif what == START and key in finished:
            yield "finished", f"step {key!r} ran again after it had finished"


def _unknown_to(journal: Journalled, lines: Sequence[Line], run: str) -> Iterator[tuple[str, str]]:
    intended = {record.step for _, record in plain_records(journal) if isinstance(record, StepStarted)}
    for what, key, detail in lines:
        if what == STORED and key.rpartition(":")[0] == run:
            stored = journal.entries.get(int(key.rpartition(":")[2]))
            if stored != detail:
                yield "acknowledged", f"{key!r} was acknowledged and is {'another' if stored else 'gone'}"
        elif what == START and key.partition(":once:")[0] not in intended:
            yield "intent", f"step {key!r} ran, and the journal does not know that it began"


def plain_records(journal: Journalled) -> Iterator[tuple[int, Any]]:
    """Yield the records of a journal, those that stand for several taken apart."""
    for seq, record in journal.records:
        yield from ((seq, part) for part in parts_of(record))


# The effects of a workflow outside of it, as the fakes of its tests record them.


class Pass(NamedTuple):
    """One run of the body of a step."""

    step: str
    context: Any
    watch: Any

    def is_in_once(self) -> bool:
        """Whether a function given to `ctx.once` is at work."""
        return bool(getattr(self.context, "_once", 0))


current_pass: contextvars.ContextVar[Pass | None] = contextvars.ContextVar("holdfast_pass", default=None)
_elsewhere: contextvars.ContextVar[tuple[FileLedger, str] | None] = contextvars.ContextVar(
    "holdfast_elsewhere", default=None
)
"""The ledger, and the step that is at work, in a process of an executor."""


class Effect(NamedTuple):
    """Something that a workflow did outside of it.

    `step` is who did it, as far as that is known, and `visit` in which of its passes. `again` says that a service that
    knows keys was asked once more under a key that it knew, and did nothing. `in_once`: inside `ctx.once`.
    """

    name: str
    key: str | None
    facts: dict[str, Any]
    step: str = ""
    visit: int = 0
    again: bool = False
    in_once: bool = False

    def __str__(self) -> str:
        facts = "".join(f" {name}={value!r}" for name, value in self.facts.items())
        key = "" if self.key is None else f" key={self.key!r}"
        return f"{self.name!r}{facts}{key}"


_ledger: FileLedger | None = None
"""The ledger that effects are written to now, if there is one."""


def record_effect(name: str, key: str | None = None, **facts: Any) -> bool:
    """Say, from a test's fake of a payment service or the like, that something happens outside of the workflow.

    Without a `key` it happens each time. With one it is asked of a service that knows keys, as payment services do:
    the first time it happens and this answers `True`; asked again under that key, nothing happens: `False`. Outside
    of `crash_everywhere` nothing is written down, and the answer is `True`.
    """
    if key is not None and not isinstance(key, str):
        raise HoldfastError(f"the key of an effect is text, as ctx.idempotency_key is, not {key!r:.80}")
    ledger, step = _place()
    if ledger is None:
        return True
    passing = current_pass.get() if _elsewhere.get() is None else None
    if passing is not None:
        passing.watch.refuse_if_dead()
        step = passing.step
    plain = _plain_facts(name, facts)
    with _alone(ledger):
        known = key is not None and any(
            effect.key == key and effect.name == name for effect in effects_of(ledger.lines())
        )
        what = UNKEYED if key is None else AGAIN if known else EFFECT
        detail = {
            "name": name,
            "key": key,
            "facts": plain,
            "step": step,
            "in_once": passing is not None and passing.is_in_once(),
        }
        ledger.write(what, json.dumps([name, key]), json.dumps(detail))
    if passing is not None and not known:
        passing.watch.reached("effect", f"{name!r} of step {passing.step!r}")
    return not known


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _plain_facts(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as they are written down: what is not plain data as its `repr`, without the address that it is at."""
    try:
        plain: dict[str, Any] = json.loads(
            json.dumps(facts, default=lambda value: _ADDRESS.sub("", repr(value)))
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise HoldfastError(
            f"the facts of the effect {name!r} cannot be written down ({error}): give numbers, texts, lists and "
            "mappings with texts as keys"
        ) from None
    return plain


def counted_in_run(what: str) -> int | None:
    """How often this was said in this run, whichever process did, this time included; `None` outside of crash tests."""
    ledger, _ = _place()
    if ledger is None:
        return None
    with _alone(ledger):
        ledger.write(COUNTED, what)
        return sum(line.what == COUNTED and line.key == what for line in ledger.lines())


def recorded_effects(name: str | None = None) -> list[Effect]:
    """What has happened so far in this run, whichever process did it; with `name` only that.

    For fakes that tell what they have done, say to a function that is given as `if_interrupted`.
    """
    ledger, _ = _place()
    if ledger is None:
        return []
    happened = [effect for effect in effects_of(ledger.lines()) if not effect.again]
    return [effect for effect in happened if name is None or effect.name == name]


@contextlib.contextmanager
def effects_go_to(ledger: FileLedger) -> Iterator[None]:
    """Let effects be written to this ledger, by this process and those that it starts."""
    global _ledger
    earlier, _ledger = _ledger, ledger
    variable = os.environ.get(LEDGER_VARIABLE)
    os.environ[LEDGER_VARIABLE] = str(ledger.path)
    try:
        with _known_in_pools():
            yield
    finally:
        _ledger = earlier
        if variable is None:
            os.environ.pop(LEDGER_VARIABLE, None)
        else:
            os.environ[LEDGER_VARIABLE] = variable


@contextlib.contextmanager
def _known_in_pools() -> Iterator[None]:
    """Let what a body hands to a pool of threads know whose it is."""
    pool = concurrent.futures.ThreadPoolExecutor
    submit: Callable[..., Any] = pool.submit

    @functools.wraps(submit)
    def known(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        passing = current_pass.get()

        def work() -> Any:
            token = current_pass.set(passing)
            try:
                return function(*args, **kwargs)
            finally:
                current_pass.reset(token)

        return submit(self, work)

    pool.submit = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        pool.submit = submit  # type: ignore[method-assign]


@contextlib.contextmanager
def effects_elsewhere(ledger: FileLedger, step: str) -> Iterator[None]:
    """Let effects be written to this ledger as those of a step, in a process that others may use as well."""
    os.environ[LEDGER_VARIABLE] = str(ledger.path)  # For programs that are started here.
    token = _elsewhere.set((ledger, step))
    try:
        yield
    finally:
        _elsewhere.reset(token)


def _place() -> tuple[FileLedger | None, str]:
    """Where effects are to be written, and whose they are if nobody knows better."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere
    if _ledger is not None:
        return _ledger, ""
    path = os.environ.get(LEDGER_VARIABLE)
    if not path or not Path(path).parent.is_dir():  # A process that outlived its test tells nobody.
        return None, ""
    return FileLedger(path, sync=False), os.environ.get(STEP_VARIABLE, "")


@contextlib.contextmanager
def _alone(ledger: FileLedger) -> Iterator[None]:
    """Keep other threads and processes from the ledger meanwhile."""
    with Path(f"{ledger.path}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def effects_of(lines: Iterable[Line]) -> list[Effect]:
    """The effects in a ledger, each with the pass of its step that it belongs to.

    One of which nobody said whose it is belongs to the step whose idempotency key is in its key, or to the only one
    that was under way.
    """
    passes: dict[str, int] = {}
    under_way: set[str] = set()
    found: list[Effect] = []
    for what, key, detail in lines:
        if what in BEGINS:
            passes[key] = passes.get(key, 0) + 1
            under_way.add(key)
        elif what in (LEFT, FAILED, RETURNED):
            under_way.discard(key)
        elif what == EXECUTION:
            under_way.clear()
        elif what in (EFFECT, UNKEYED, AGAIN):
            facts = json.loads(detail)
            step = facts["step"] or _owner(facts["key"], passes, under_way)
            place = (step, passes.get(step, 0), what == AGAIN, facts["in_once"])
            found.append(Effect(facts["name"], facts["key"], facts["facts"], *place))
    return found


def _owner(key: str | None, steps: Iterable[str], under_way: set[str]) -> str:
    named = [step for step in steps if key is not None and f":{step}" in key]
    if named:
        return max(named, key=len)
    return next(iter(under_way)) if len(under_way) == 1 else ""
