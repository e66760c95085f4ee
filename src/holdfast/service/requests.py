"""Requests that clients repeat: each acts once, though the server is killed in the middle of it.

A request with a key is recorded where it acts, in the same append: a new run has an id that is made of the key, and a
command names the request beside who asked. So a repeated request finds what the first one did, in any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from holdfast.engine.commands import control
from holdfast.engine.commands.inbox import open_message
from holdfast.engine.resume import load_latest
from holdfast.errors import CommandRefused, HoldfastError, RunExists
from holdfast.service.reading import RequestInvalid
from holdfast.service.service import Service
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import RunInfo
from holdfast.views.family import ancestors

NEW_RUNS: Mapping[str, str] = {
    "execute": "run_id",
    "execute_inline": "run_id",
    "fork": "new_run_id",
    "rerun": "new_run_id",
}
"""The methods that make a run, and their parameter for its id."""

COMMANDS = (
    *("answer", "pause", "cancel", "resume", "edit", "skip", "replan", "annotate"),
    *("promote", "rollback"),
)
"""The methods that change a run, and journal who asked."""

LONGEST_KEY = 255


class KeyReused(HoldfastError):
    """The idempotency key of one request was given to another."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request with an idempotency key: who asks, the key, and what is asked."""

    who: str
    key: str
    what: bytes

    @classmethod
    def of(cls, who: str, namespace: str, key: str, what: Any) -> Keyed:
        """Return the request of a caller; `what` is plain data, or the bytes of a capsule."""
        if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise RequestInvalid(f"an idempotency key is up to {LONGEST_KEY} printable ASCII characters")
        data = what if isinstance(what, bytes) else json.dumps(what, sort_keys=True).encode()
        return cls(who, f"{namespace}\n{who}\n{key}", data)

    @property
    def name(self) -> str:
        """The digest of the key: the same for the same key of the same caller."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def content(self) -> str:
        """The digest of what is asked."""
        return hashlib.sha256(self.what).hexdigest()[:16]

    @property
    def run_id(self) -> str:
        """The id of the run that this request makes."""
        return str(uuid.UUID(self.name + self.content))

    @property
    def asker(self) -> str:
        """Who asks, with the request, as it is journalled."""
        return f"{self.who} (request {self.name}-{self.content})"

    def is_in(self, by: object) -> bool:
        """Return whether a name in a journal is that of this request; raise `KeyReused` if of another of its key."""
        if not isinstance(by, str) or f"(request {self.name}-" not in by:
            return False
        if f"(request {self.name}-{self.content})" not in by:
            raise self.reused()
        return True

    def reused(self) -> KeyReused:
        """Return the error of a key that was given to another request before."""
        return KeyReused(
            "this idempotency key was given to another request before; each request needs its own"
        )


def once(service: Service, request: Keyed, call: str, given: Mapping[str, Any]) -> Any:
    """Call a method of a service as a request asks, unless the request was carried out before; return its reply.

    If it was, the reply tells of the run as it is now.
    """
    method = getattr(service, call)
    if call not in COMMANDS and call not in NEW_RUNS:
        return method(**given)
    with _turns.setdefault(request.name, _Turn()):
        if call in NEW_RUNS:
            return _new_run(service, request, call, given)
        found = _find(service, request, given["run_id"] if call != "promote" else _target(service, given))
        if found is None:
            return method(**{**given, "who": request.asker})
        return _carried_on(service, call, given, found)


class _Turn:
    """Lets one request of a key act at a time, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()


def _target(service: Service, given: Mapping[str, Any]) -> str:
    """Return the run that a promotion changes."""
    if given.get("into") is not None:
        return str(given["into"])
    parents = ancestors(service.store, service.journal.info(given["run_id"]))
    return next((info.run for info in parents), str(given["run_id"]))


# New runs.


def _new_run(service: Service, request: Keyed, call: str, given: Mapping[str, Any]) -> Any:
    parameter = NEW_RUNS[call]
    if given.get(parameter) is not None:
        raise RequestInvalid(
            f"give either {parameter} or an idempotency key: each makes a request happen once"
        )
    prefix = request.run_id[:19]
    known = service.store.runs(prefix=prefix)
    if any(info.run != request.run_id for info in known):
        raise request.reused()
    if not known:
        with contextlib.suppress(RunExists):  # Another server was given the same request.
            return getattr(service, call)(**{**given, parameter: request.run_id, "who": request.asker})
    if call == "fork" and given.get("start", True):
        service.start_fork(request.run_id)
    found = service.wait(request.run_id, None)
    return found if call in ("execute", "execute_inline") else {**found, "parent": given["run_id"]}


# Commands.


@dataclass(frozen=True, slots=True)
class Found:
    """What a request did to a run: the number of its message if there is one, and why it was refused."""

    info: RunInfo
    number: int
    refused: str = ""


def _find(service: Service, request: Keyed, run_id: str) -> Found | None:
    """Return what a request did to a run: what its journal says, or a message that nobody has read yet."""
    info = service.journal.info(run_id)
    _, entries = service.journal.history(info, TolerantCodec())
    for _, records in entries:
        for record in records:
            if request.is_in(getattr(record, "by", None)):
                return Found(info, 0, getattr(record, "refused", ""))
    loaded = load_latest(service.journal, info, TolerantCodec())
    for message in service.store.inbox(run_id, loaded.run.inbox_seen):
        command = open_message(service.journal, info, message, sealed=loaded.sealed)
        if request.is_in(command.by):
            return Found(info, message.number)
    return None


def _carried_on(service: Service, call: str, given: Mapping[str, Any], found: Found) -> Any:
    """Finish what a request began, and return its reply."""
    run_id, number = found.info.run, found.number
    is_applied = not number or _applied(service, found, call)
    if found.refused:
        raise CommandRefused(f"run {run_id!r}: {call} is refused: {found.refused}")
    match call:
        case "answer":
            if is_applied:
                service.go_on(run_id)
            status = control.APPLIED if is_applied else control.WAITING
            receipt = control.Receipt(run_id, status, number=number)
            return {**receipt.as_json(), "run": service.status(run_id)}
        case "promote" | "rollback":
            [newest] = service.checkpoints(run_id, None, 1)
            return {"checkpoint_id": newest["checkpoint_id"], "run": service.status(run_id)}
        case "edit" | "skip" | "replan" | "annotate":
            return {"applied": is_applied, "run": service.status(run_id)}
    return service.status(run_id)


def _applied(service: Service, found: Found, call: str) -> bool:
    """Apply a message that nobody has read, if no process executes its run; return whether it was applied."""
    run_id, codec = found.info.run, service._codec(found.info)
    app = service._app(found.info)
    control.process_inbox(service.journal, run_id, codec, None if app is None else app.graph)
    run = load_latest(service.journal, service.journal.info(run_id), codec).run
    for refusal in run.refusals:
        if refusal.number == found.number:
            raise CommandRefused(f"run {run_id!r}: {call} is refused: {refusal.reason}")
    return run.inbox_seen >= found.number
