"""Commands: what may be asked of a run from outside, as values, as messages, and in the inbox of an execution."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack

from holdfast import clock
from holdfast.errors import CodecError, CorruptJournal, StoreError, problem_of
from holdfast.journal.encoding import safe_text
from holdfast.journal.journal import Journal
from holdfast.journal.records import Commanded
from holdfast.stores.base import Message, RunInfo
from holdfast.threads import locked

if TYPE_CHECKING:
    from holdfast.engine.saving import Saving

logger = logging.getLogger("holdfast")

CANCEL, PAUSE, ANSWER = "cancel", "pause", "answer"
EDIT, SKIP, MODIFY, INJECT, REPLAN = "edit", "skip", "modify", "inject", "replan"
EXTEND = "extend"
ANNOTATE = "annotate"
"""Tags, notes and kept checkpoints; the only command that a completed run still takes."""

UNREADABLE = "unreadable"
"""The kind of a message that is damaged, or sealed with another key."""

STOPS = (CANCEL, PAUSE)
ABOUT_NEXT_STEPS = (SKIP, MODIFY, INJECT, REPLAN)
"""Commands about the steps that come next: finished steps must be routed first."""

STALE = "it was meant for an earlier execution of this run"
LATE = "the run is about to go on with another definition; ask again when it does"

POLL = 0.25
"""Seconds between two looks into the inbox of an executing run."""


class Change(NamedTuple):
    """A new value at a path of the state: `("inputs", "topic")` is inside `inputs`. `value` is encoded."""

    path: tuple[str, ...]
    value: bytes


class StepRequest(NamedTuple):
    """A step to run: a node, and the key and item that a `Send` would have. Values of `item` are encoded."""

    node: str
    key: str | None = None
    item: tuple[Change, ...] = ()


class RunCommand(NamedTuple):
    """One command with its arguments. `value` is an encoded answer to `pause`."""

    kind: str
    reason: str = ""
    pause: str = ""
    value: bytes = b""
    by: str = ""
    refused: str = ""
    """Why it is refused before it is looked at; never part of a message."""
    step: str = ""
    """A step's id or a node's name."""
    changes: tuple[Change, ...] = ()
    additions: tuple[StepRequest, ...] = ()
    frame: str = ""
    follow: bool = False
    """Whether the usual successors of the added steps follow them."""
    definition: Mapping[str, Any] | None = None
    """A new definition of the workflow: workflow, outline, config, names (renamed steps)."""
    annotation: Mapping[str, Any] | None = None
    """What is noted of the run or of a checkpoint: at, text, add, remove, keep."""

    @property
    def redefines(self) -> bool:
        """Whether the run is to go on with another definition of its workflow."""
        return self.kind == REPLAN and self.definition is not None


# Messages: a command as bytes, with a checksum.

_HEAD, _DIGEST_BYTES = b"\x01", 8


def write_message(command: RunCommand) -> bytes:
    """Return a command as the bytes of a message."""
    content = {name: value for name, value in command._asdict().items() if value}
    return checksummed(ormsgpack.packb(_storable(content)))


def read_message(body: bytes) -> RunCommand:
    """Return the command of a message; one that cannot be read is `UNREADABLE`."""
    content = body[len(_HEAD) + _DIGEST_BYTES :]
    if body != checksummed(content):
        return RunCommand(UNREADABLE)
    try:
        return _command(ormsgpack.unpackb(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return RunCommand(UNREADABLE)


def open_message(journal: Journal, info: RunInfo, message: Message, *, sealed: bool) -> RunCommand:
    """Return the command of a stored message, decrypted with the journal's key if need be.

    A run that is `sealed` refuses messages that are not; the command then says why in `refused`.
    """
    try:
        return read_message(journal.bodies(info).open_message(message, sealed=sealed))
    except CodecError:
        return RunCommand(UNREADABLE)
    except CorruptJournal as error:
        return RunCommand(UNREADABLE, refused=problem_of(error))


def checksummed(content: bytes) -> bytes:
    """Return the body of a message: its content after a version byte and a checksum."""
    return _HEAD + hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def _storable(value: Any) -> Any:
    """Return a value with all text encodable: a terminal may pass bytes that are no text."""
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, Mapping):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, (list, tuple)) else value


_TEXTS = ("reason", "pause", "by", "step", "frame")


def _command(message: Mapping[str, Any]) -> RunCommand:
    value, maps = message.get("value", b""), (message.get("definition"), message.get("annotation"))
    definition, annotation = (found if isinstance(found, dict) else None for found in maps)
    return RunCommand(
        str(message["kind"]),
        **{name: str(message.get(name, "")) for name in _TEXTS},
        value=value if isinstance(value, bytes) else b"",
        changes=_changes(message.get("changes", ())),
        additions=tuple(_request(*wire) for wire in message.get("additions", ())),
        follow=message.get("follow") is True,
        definition=definition,
        annotation=annotation,
    )


def _changes(wires: Sequence[Any]) -> tuple[Change, ...]:
    changes = tuple(Change(tuple(map(str, path)), value) for path, value in wires)
    if not all(change.path and isinstance(change.value, bytes) for change in changes):
        raise ValueError("a change without a path or without an encoded value")
    return changes


def _request(node: Any, key: Any, item: Sequence[Any]) -> StepRequest:
    return StepRequest(str(node), None if key is None else str(key), _changes(item))


class Inbox:
    """The inbox of an executing run: every message is read, applied between two steps, and recorded once."""

    def __init__(
        self,
        saving: Saving,
        apply: Callable[[RunCommand], str],
        on_stop: Callable[[RunCommand], None],
        *,
        resumed: bool,
        by_worker: bool,
    ) -> None:
        """`apply` records what a command asks and returns why it is refused, or ""; `on_stop` stops the execution.

        A person who resumes a run wants it to go on: earlier commands to stop are stale. A worker decides nothing,
        so it follows them.
        """
        self._saving, self._apply, self._on_stop = saving, apply, on_stop
        self._journal = saving.settings.journal
        self.waiting: dict[int, RunCommand] = {}
        """The commands that were read and are not recorded yet, by the numbers of their messages."""
        self._local: list[RunCommand] = []
        self._applied = 0
        self._is_redefined = False
        self.polled = float("-inf") if resumed and by_worker else clock.perf_counter()
        """When the inbox was last looked into, by `clock.perf_counter`."""
        self._lock = threading.Lock()
        if resumed and not by_worker:
            self.look(stops_are_stale=True)

    @property
    def is_about_next_steps(self) -> bool:
        """Whether the oldest of them is about the steps that come next."""
        command = locked(self._lock, lambda: self.waiting[min(self.waiting)])
        return command.kind in ABOUT_NEXT_STEPS and not (command.redefines or self._is_redefined)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look into the inbox."""
        return clock.perf_counter() - self.polled > POLL

    def note(self, command: RunCommand) -> None:
        """Keep a command of this process, which was followed without a message, to record it at the end."""
        self._local.append(command)

    def look(self, *, stops_are_stale: bool = False) -> None:
        """Read new messages. Commands to stop take effect at once, all others between steps."""
        with self._looking():
            messages = self._journal.store.inbox(self._saving.run_id, self._saving.run.inbox_seen)
            self._keep(messages, stops_are_stale)

    async def look_async(self) -> None:
        """As `look`, without blocking the event loop."""
        with self._looking():
            self._keep(await self._journal.inboxes.look(self._saving.run_id, self._saving.run.inbox_seen))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.polled = clock.perf_counter()
        try:
            yield
        except StoreError as error:
            logger.warning("run %s: the inbox cannot be read: %s", self._saving.run_id, error)

    def _keep(self, messages: Sequence[Message], stops_are_stale: bool = False) -> None:
        writer = self._saving.writer
        for message in messages:
            command = open_message(self._journal, writer.info, message, sealed=writer.sealed)
            stops = command.kind in STOPS
            if stops and stops_are_stale:
                command = command._replace(refused=STALE)
            is_new = locked(self._lock, self._add, message.number, command)
            if is_new and stops and not stops_are_stale:
                self._on_stop(command)

    def _add(self, number: int, command: RunCommand) -> bool:
        if number in self.waiting or number <= self._applied:
            return False
        self.waiting[number] = command
        return True

    def apply_next(self, *, busy: bool = False) -> bool:
        """Apply the oldest command and record that, so that no later execution applies it again.

        While steps are running (`busy`), a new definition has to wait, with all commands after it: return False.
        """
        found = locked(self._lock, self._next, busy)
        if found is None:
            return False
        number, command = found
        if number > self._saving.run.inbox_seen:
            refused = self._saving.writer.together(lambda: self._apply_recorded(number, command))
            if command.redefines and not refused:
                self._is_redefined = True
                self._on_stop(command)
        return True

    def _next(self, busy: bool) -> tuple[int, RunCommand] | None:
        number = min(self.waiting)
        command = self.waiting[number]
        if busy and command.redefines:
            return None
        del self.waiting[number]
        self._applied = max(self._applied, number)
        return number, command

    def _apply_recorded(self, number: int, command: RunCommand) -> str:
        late = LATE if self._is_redefined and command.kind not in STOPS else ""
        refused = command.refused or late or self._apply(command)
        self._record(number, command, refused)
        return refused

    def close(self, completed: bool) -> None:
        """Apply, or at least record, what is left before the execution ends; a completed run takes no more."""
        while self._local:
            self._record(self._saving.run.inbox_seen, self._local.pop(0), "")
        if completed:
            locked(self._lock, self._refuse_all, "the run is completed")
        while self.waiting:
            self.apply_next()

    def _refuse_all(self, reason: str) -> None:
        self.waiting = {
            number: command
            if command.kind == ANNOTATE
            else command._replace(refused=command.refused or reason)
            for number, command in self.waiting.items()
        }

    def _record(self, number: int, command: RunCommand, refused: str) -> None:
        kind, reason, by = command.kind, command.reason, command.by
        if refused:
            who = by or "somebody"
            logger.warning("run %s: %r of %s was refused: %s", self._saving.run_id, kind, who, refused)
        self._saving.record(Commanded(number, kind, refused, by, reason))
        self._saving.say("command", command=kind, by=by, reason=reason, refused=refused)
