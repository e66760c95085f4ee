"""Watching one life of a run: every boundary that it comes to, and the one where it is to die."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.data.codec import Codec
from holdfast.errors import HoldfastError
from holdfast.journal.wire import Track
from holdfast.journal.wire_records import decode_records
from holdfast.stores.base import Append, Conflict, Store
from holdfast.testing.crashing_store import Crash, when_caller_returns
from holdfast.testing.everywhere.boundaries import COMMIT_POINTS, Boundary
from holdfast.testing.everywhere.telling import told
from holdfast.testing.ledger import START, STORED, Ledger
from holdfast.testing.wrapped_store import WrappedStore

DIED = "died"
LIFE = "life"
LEFT, FAILED, RETURNED = "left", "failed", "returned"
"""How the body of a step ends; the key is the step."""
LOOKS = "looks"
"""The function that its node gives as `if_interrupted` looks what became of a step; the key is the step."""
BEGINS = (START, LOOKS)
"""How a pass of a step begins."""


class Watch:
    """Counts the boundaries that a life comes to, and ends it at the one that it is doomed to die at."""

    def __init__(self, ledger: Ledger, doom: Boundary | None, crash: Callable[[], object]) -> None:
        self.ledger, self._doom, self._crash = ledger, doom, crash
        self.seen: list[Boundary] = []
        self.dead = self.is_late = False
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def reached(self, point: str, what: str) -> None:
        """Die here, if this is the place; a life that is dead, as far as its threads go on, goes no further."""
        self.refuse_if_dead()
        with self._lock:
            number = self._counts[point] = self._counts.get(point, 0) + 1
            boundary = Boundary(point, number, what)
            self.seen.append(boundary)
            if not self._is_doom(point, number):
                return
            self.dead = True
        self.ledger.write(DIED, f"{point}-{number}", json.dumps(str(boundary)))
        self._crash()

    def comes_next(self, point: str) -> bool:
        """Whether the next boundary of this kind is the one to die at."""
        return self._is_doom(point, self._counts.get(point, 0) + 1)

    def refuse_if_dead(self) -> None:
        """Raise `Crash` in what goes on although the life is over."""
        if self.dead:
            raise Crash("the process died before this")

    def give_up(self) -> None:
        """End this life, which takes too long: from now on whatever goes on in it is refused."""
        self.dead = self.is_late = True

    def _is_doom(self, point: str, number: int) -> bool:
        return self._doom is not None and self._doom.place == (point, number)


class Pass(NamedTuple):
    """One run of the body of a step."""

    step: str
    context: Any
    watch: Watch

    def is_in_once(self) -> bool:
        """Whether a function given to `ctx.once` is at work."""
        return bool(getattr(self.context, "_once", 0))


class WatchedStore(WrappedStore):
    """A store whose commits are boundaries: before, committed, acknowledged."""

    def __init__(self, inner: Store, watch: Watch, codec: Codec, readable: bool) -> None:
        super().__init__(inner)
        self._watch, self._codec, self._readable = watch, codec, readable
        self._tracks: dict[str, Track] = {}
        self._lock = threading.Lock()

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        before, committed, acknowledged = COMMIT_POINTS
        with self._lock:
            what = "; ".join(self._told(append) for append in appends)
            self._watch.reached(before, what)
            answers = self.inner.commit(appends)
            self._watch.reached(committed, what)
            for append, conflict in zip(appends, answers, strict=True):
                if conflict is None:
                    for entry in append.entries:
                        self._watch.ledger.write(STORED, f"{append.run}:{entry.seq}", entry.chain.hex())
            if self._watch.comes_next(acknowledged):
                when_caller_returns(lambda: self._watch.reached(acknowledged, what))
            else:
                self._watch.reached(acknowledged, what)
        return answers

    def _told(self, append: Append) -> str:
        if not append.entries:
            return "facts of the run"
        track = self._track_of(append.run, append.after)
        if track is None:
            return f"entries {append.entries[0].seq} to {append.entries[-1].seq}"
        records = []
        for entry in append.entries:
            records.extend(decode_records(entry.body, track, self._codec))
        return told(records)

    def _track_of(self, run: str, after: int) -> Track | None:
        """What has to be known to read the next entry of a run, if it can be read at all."""
        if not self._readable:
            return None
        if run not in self._tracks:
            track = self._tracks[run] = Track()
            try:
                for entry in self.inner.read(run, 0, after):
                    decode_records(entry.body, track, self._codec)
            except HoldfastError:
                self._readable = False
                return None
        return self._tracks[run]
