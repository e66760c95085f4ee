"""What a worker does, told as lines on stderr or as NDJSON on stdout."""

from __future__ import annotations

import datetime as dt
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.cli.display.closing import place_of_store
from holdfast.cli.display.tables import json_text
from holdfast.cli.display.text import clock, moment, one_line
from holdfast.cli.errors import placed, worded
from holdfast.values import moment as time_of

if TYPE_CHECKING:
    from holdfast.fleet.worker import WorkerEvent


class WorkerLines:
    """Tells what a worker does; may be called from any thread."""

    def __init__(self, name: str, as_json: bool, scrub: Callable[[Any], Any], url: str) -> None:
        self._name, self._as_json, self._scrub = name, as_json, scrub
        self._place = place_of_store(url)
        self._lock = threading.Lock()

    def begin(self, store: str, queues: tuple[str, ...], concurrency: int) -> None:
        """The worker is at work."""
        of = f"the queues {', '.join(queues)}" if queues else "every queue"
        self._write(
            f"worker {self._name} takes up runs of {of} in {store}, {concurrency} at once; Ctrl+C stops it",
            {"kind": "started", "store": store, "queues": list(queues), "concurrency": concurrency},
        )

    def end(self) -> None:
        """The worker is done."""
        self._write(f"worker {self._name} has stopped", {"kind": "stopped"})

    def tell(self, event: WorkerEvent) -> None:
        """Something became of a run."""
        text = placed(_to_workers(worded(str(self._scrub(event.text)))), self._place)
        due = None if event.due_at is None else time_of(event.due_at)
        facts = {"run_id": event.run, "workflow": event.workflow, "queue": event.queue}
        when = None if due is None else due.isoformat(timespec="milliseconds")
        self._write(
            f"{event.run} {event.workflow}: {_what(event.kind, text, due)}",
            {"kind": event.kind, **facts, "text": text, "due_at": when},
        )

    def _write(self, line: str, facts: dict[str, Any]) -> None:
        at = time.time()
        with self._lock:
            if self._as_json:
                when = dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds")
                print_to = sys.stdout
                text = json_text({"at": when, "worker": self._name, **facts}, indent=None)
            else:
                print_to, text = sys.stderr, f"{clock(at)} {one_line(line, 1000)}"
            print_to.write(text + "\n")
            print_to.flush()


def _to_workers(text: str) -> str:
    """A message that tells how to resume a run here, changed to say how workers go on with it."""
    return re.sub(r"(resume with: holdfast resume [^\s;,]+)", r"\1 --detach", text)


def _what(kind: str, text: str, due: dt.datetime | None) -> str:
    """What became of a run, in a few words."""
    told = f": {text}" if text else ""
    match kind:
        case "taken":
            return f"taken up ({text})"
        case "conflict":
            return f"left to another{told}"
        case "refused":
            return f"cannot be taken up{told}"
        case "queued" | "paused" if due is not None:
            return f"left until {moment(due)}"
        case "queued":
            return "handed over"
        case "paused":
            return f"paused, waits for {text}" if text else "paused"
        case _:
            return f"{kind}{told}"
