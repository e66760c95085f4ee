"""One run with one exception at one place, and what has to hold afterwards in the very same process."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, Outcome, RunNotFound, open_store
from holdfast.events import CallbackObserver
from holdfast.integrity import check_store
from holdfast.stores.base import Store
from tests.invariants import (
    CORRUPTION,
    FINISHED_ONCE,
    NOT_STRANDED,
    RECOVERY,
    SAME_RESULT,
    STORED,
    Ledger,
    Violation,
    check_run,
)
from tests.proof.interrupting.injecting import LINE_KINDS, Counting, Place, Raising
from tests.proof.interrupting.shapes import SHAPES, Shape

MOST_RESUMES = 8


@dataclass(frozen=True)
class Case:
    """What is run, where, and how it is interrupted."""

    shape: str
    scheme: str
    kind: str

    def __str__(self) -> str:
        return f"--shape {self.shape} --store {self.scheme} --kind {self.kind}"


class Run:
    """A run of a shape in a store of its own process, as somebody in a notebook has it."""

    def __init__(self, shape: str, url: str, name: str, ledger: Ledger | None = None) -> None:
        self.ledger, self.name, self.url = ledger or Ledger(), name, url
        self.shape: Shape = SHAPES[shape](self.ledger)
        self.observer = CallbackObserver(self.ledger.observe)
        self.task: asyncio.Task[Any] | None = None
        self.open()

    def open(self) -> None:
        """Open the store, or open it once more, beside what is open already."""
        self.store = _witnessed(open_store(self.url), self.ledger)
        self.app = self.shape.graph.compile(self.store, durability="full", **self.shape.options)

    def begin(self) -> Outcome:
        """Start it and answer what it asks, until it is completed."""
        return self._finish(self._do(self.app.invoke, self.app.ainvoke, {"n": 1}, run_id=self.name))

    def go_on(self) -> str:
        """Resume it, or start it if nothing of it was stored; its result."""
        known = self.store.runs(run=self.name)
        if known and known[0].status == "paused":
            self.ledger.write("approved", "gate")  # To resume a run is to let it go past its gate.
        if not known or known[0].status != "completed":
            try:
                self._finish(self._do(self.app.resume, self.app.aresume, self.name))
            except RunNotFound:
                self.begin()
        return json.dumps(self.app.get_state(self.name).to_dict(), sort_keys=True)

    def _do(self, sync: Callable[..., Any], awaited: Callable[..., Any], *args: Any, **given: Any) -> Outcome:
        given["observer"] = self.observer
        if not self.shape.is_async:
            return sync(*args, **given)

        async def main() -> Any:
            self.task = asyncio.current_task()
            return await awaited(*args, **given)

        return asyncio.run(main())

    def _finish(self, outcome: Outcome) -> Outcome:
        for _ in range(MOST_RESUMES):
            if outcome.status != "paused":
                break
            if any(pause.kind == "after" for pause in outcome.pauses):
                self.ledger.write("approved", "gate")
            answers = {p.id: self._answer(p) for p in outcome.pauses if p.kind not in ("before", "after")}
            outcome = self._do(self.app.resume, self.app.aresume, self.name, answers=answers or None)
        assert outcome.status == "completed", outcome
        return outcome

    def _answer(self, pause: Any) -> Any:
        wanted = self.shape.answers
        return (
            wanted.get(pause.name, wanted.get(pause.name.partition(" ")[0], "rerun"))
            if pause.name
            else "rerun"
        )


def looked_at(run: Run) -> list[Violation]:
    """The ledger held against the store, in which `fsck` finds nothing."""
    shared = (
        [run.name] if run.url.startswith("postgres") else None
    )  # Trials of other processes are there too.
    found = [Violation(CORRUPTION, f"fsck: {problem}") for problem in check_store(run.store, shared).problems]
    found += check_run(run.ledger.lines(), run.store, run.name)
    lines = [line.what for line in run.ledger.lines()]
    if "passed" in lines and "approved" not in lines[: lines.index("passed")]:
        found.append(Violation(FINISHED_ONCE, "the run went past its gate before anybody let it"))
    return found


def _witnessed(store: Store, ledger: Ledger) -> Store:
    """The store, whose acknowledgements the ledger hears of before the engine does."""
    inner = store.commit

    def commit(appends: Any) -> Any:
        answers = inner(appends)
        for append, conflict in zip(appends, answers, strict=True):
            for entry in append.entries if conflict is None else ():
                ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
        return answers

    store.commit = commit  # type: ignore[method-assign]
    return store


def uninterrupted(case: Case, url: str, name: str) -> tuple[str, dict[tuple[str, int], int]]:
    """The result of a run that nothing happens to, and the places that it passes."""
    run, counting = Run(case.shape, url, name), Counting(case.kind)
    with counting.watching():
        run.begin()
    result = run.go_on()
    run.store.delete(name)
    run.store.close()
    return result, dict(counting.passed)


class Trial:
    """One run with one exception. `found` is what was broken."""

    def __init__(self, case: Case, place: Place, url: str, name: str, wanted: str, beside: bool) -> None:
        self.case, self.place, self.wanted, self.beside = case, place, wanted, beside
        self.run = Run(case.shape, url, name)
        self.raising = Raising(case.kind, place, lambda: self.run.task)
        self.found: list[str] = []

    @property
    def struck(self) -> str:
        """Where the exception was raised; nothing if the run never came there."""
        return self.raising.struck

    def hold(self) -> None:
        """Interrupt the run, resume it, and look at everything."""
        self._interrupt()
        try:
            if self.beside:
                old = self.run.store
                self.run.open()
            self._resume()
            # A lock that this thread left taken may be open to it, and to nobody else.
            _in_thread(self._look)
            if self.beside:
                old.close()
        except BaseException as error:  # Whatever it is, it is what is looked for.
            self._note(NOT_STRANDED, f"what followed failed with {_told(error)}")

    def _interrupt(self) -> None:
        try:
            with self.raising.watching():
                self.run.begin()
        except BaseException as error:
            if not _is_clear(error, self.case.kind):
                self._note(RECOVERY, f"no clear error, but {_told(error)}")

    def _resume(self) -> None:
        for _ in range(2):
            try:
                result = self.run.go_on()
                break
            except HoldfastError as error:
                self._note(NOT_STRANDED, f"the resume failed with {_told(error)}")
        else:
            return
        if result != self.wanted:
            self._note(SAME_RESULT, f"the result is {result}, uninterrupted it is {self.wanted}")

    def _look(self) -> None:
        run, name = self.run, self.run.name
        for violation in looked_at(run):
            self._note(violation.invariant, violation.what)
        other = run.store if run.url == "memory://" else open_store(run.url)
        other.post(name, b"\0")
        if not other.delete(name):
            self._note(NOT_STRANDED, "the run cannot be deleted")
        other.close()
        run.store.close()

    def _note(self, invariant: Any, what: str) -> None:
        where = f"{self.case} --at {self.place}"
        self.found.append(f"{where} ({self.struck}): {Violation(invariant, what)}")


def _in_thread(action: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _is_clear(error: BaseException, kind: str) -> bool:
    """Whether it is the exception itself, or an error of ours that it led to."""
    raised = {"cancel": asyncio.CancelledError, "signal": SystemExit}.get(kind) or LINE_KINDS[kind]
    return isinstance(error, (raised, HoldfastError))


def _told(error: BaseException) -> str:
    """An error as one line, with the place where it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} ({' '.join(str(error).split())}){where}"
