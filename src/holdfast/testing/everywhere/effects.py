"""What a workflow does to the world, as the fakes of its tests see it; the record outlives the process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.testing.everywhere.watching import BEGINS, FAILED, LEFT, LIFE, RETURNED, Pass
from holdfast.testing.ledger import EFFECT, FileLedger, Ledger, Line

UNKEYED = "effect-without-key"
AGAIN = "effect-known"
COUNTED = "counted"
"""Something that a fake counts; the key is what."""
LEDGER_VARIABLE = "HOLDFAST_TEST_LEDGER"
"""Names the ledger to the programs that a step starts."""
STEP_VARIABLE = "HOLDFAST_STEP"
"""Names the step to the programs that it starts; `shell` steps of workflow files set it."""

current_pass: contextvars.ContextVar[Pass | None] = contextvars.ContextVar("holdfast_pass", default=None)
_elsewhere: contextvars.ContextVar[tuple[FileLedger, str] | None] = contextvars.ContextVar(
    "holdfast_elsewhere", default=None
)
"""The ledger, and the step that is at work, in a process of an executor."""


class Effect(NamedTuple):
    """Something that a workflow did to the world.

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


class _Book:
    """The ledger that effects are written to now, if there is one."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.lock = threading.Lock()

    def reset(self) -> None:
        self.lock = threading.Lock()


_book = _Book()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_book.reset)


def record_effect(name: str, key: str | None = None, **facts: Any) -> bool:
    """Say, from a test's fake of a payment service or the like, that something happens in the world.

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
    with _book.lock, _between_processes(ledger):
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
    with _book.lock, _between_processes(ledger):
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
def effects_go_to(ledger: Ledger) -> Iterator[None]:
    """Let effects be written to this ledger, by this process and those that it starts."""
    earlier, _book.ledger = _book.ledger, ledger
    variable = os.environ.get(LEDGER_VARIABLE)
    if isinstance(ledger, (FileLedger, OpenLedger)):
        os.environ[LEDGER_VARIABLE] = str(ledger.path)
    try:
        with _known_in_pools():
            yield
    finally:
        _book.ledger = earlier
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


class OpenLedger(Ledger):
    """A ledger in memory that several threads write to, and other programs by way of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._taken = 0
        self._lock = threading.Lock()

    def write(self, what: str, key: str, detail: str = "") -> None:
        with self._lock:
            self._take_in()
            super().write(what, key, detail)

    def lines(self) -> list[Line]:
        with self._lock:
            self._take_in()
            return list(super().lines())

    def _take_in(self) -> None:
        """Add what programs have written since."""
        if not self.path.exists():
            return
        added = FileLedger(self.path).lines()[self._taken :]
        self._taken += len(added)
        self._lines += added


@contextlib.contextmanager
def effects_elsewhere(ledger: FileLedger, step: str) -> Iterator[None]:
    """Let effects be written to this ledger as those of a step, in a process that others may use as well."""
    os.environ[LEDGER_VARIABLE] = str(ledger.path)  # For programs that are started here.
    token = _elsewhere.set((ledger, step))
    try:
        yield
    finally:
        _elsewhere.reset(token)


def _place() -> tuple[Ledger | None, str]:
    """Where effects are to be written, and whose they are if nobody knows better."""
    elsewhere = _elsewhere.get()
    if elsewhere is not None:
        return elsewhere
    if _book.ledger is not None:
        return _book.ledger, ""
    path = os.environ.get(LEDGER_VARIABLE)
    if not path or not Path(path).parent.is_dir():  # A process that outlived its test tells nobody.
        return None, ""
    return FileLedger(path, sync=False), os.environ.get(STEP_VARIABLE, "")


@contextlib.contextmanager
def _between_processes(ledger: Ledger) -> Iterator[None]:
    if not isinstance(ledger, FileLedger):
        yield
        return
    import fcntl

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
        elif what == LIFE:
            under_way.clear()
        elif what in (EFFECT, UNKEYED, AGAIN):
            told = json.loads(detail)
            step = told["step"] or _owner(told["key"], passes, under_way)
            place = (step, passes.get(step, 0), what == AGAIN, told["in_once"])
            found.append(Effect(told["name"], told["key"], told["facts"], *place))
    return found


def _owner(key: str | None, steps: Iterable[str], under_way: set[str]) -> str:
    named = [step for step in steps if key is not None and f":{step}" in key]
    if named:
        return max(named, key=len)
    return next(iter(under_way)) if len(under_way) == 1 else ""
