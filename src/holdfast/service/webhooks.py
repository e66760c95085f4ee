"""Webhooks: what happened to runs is sent to addresses that the operator names.

Each delivery is a run of its own, in a namespace beside that of the runs: what was delivered, what is tried again and
what failed is known however often the server is killed. Its id is made of what happened, so nothing is noted twice.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import httpx2

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.errors import HoldfastError, RunExists, RunNotFound
from holdfast.fleet.worker import History
from holdfast.graph.builder import StateGraph
from holdfast.graph.graph import Retry
from holdfast.service.links import Question
from holdfast.service.reading import kept_beside, pause_facts
from holdfast.service.service import Service, TooManyRuns
from holdfast.service.targets import Target
from holdfast.stores.base import RunInfo, namespace_of
from holdfast.values import END, START, RunStatus
from holdfast.views.plain import iso, when
from holdfast.views.run_view import PauseView, RunView
from holdfast.views.runs import run_view
from holdfast.views.timeline import Timeline

logger = logging.getLogger("holdfast.webhooks")

SECONDS = 10.0
"""How long a receiver may take."""

LOOK = 1.0
"""Seconds between two looks at the store."""

OVERLAP = 300.0
"""Seconds by which a look begins before the last one: a run is stored a little later than its time says."""

OLDEST = 3 * 86_400.0
"""What happened more seconds ago is not sent any more."""

SAVED_EVERY = 60.0
"""Seconds between two notes of how far the store was looked through."""

MOST_WAITING = 10_000
"""How many deliveries wait at once; more wait in the journals of their runs."""

MOST_KEPT = 20_000
"""How many deliveries that ended are kept, and how many runs are remembered as looked through."""

MOST_PAUSES = 20
"""How many of the questions of a run an event has."""

LONGEST_TEXT = 8_000
"""How many characters a question or its schema may have; a longer schema is left out."""

GONE = 410
DELIVERY, POSITION = "delivery", "position"
_NEVER = 1e9
_PAGE = 500
_SPACE = uuid.UUID("6f0d7c56-51c5-4a0c-9d0b-6a1a35a1a5b4")


class NotTaken(HoldfastError):
    """A receiver did not take a delivery; it is tried again, after `retry_after` seconds if it said so."""

    retry_after: float = 0.0


RETRY = Retry(attempts=36, delay=1.0, max_delay=3600.0, on=NotTaken)
"""How often a delivery is tried: for a day."""


class NotWanted(HoldfastError):
    """A delivery that is not tried again: nobody wants it any more."""


_is_sending = ContextVar("_is_sending", default=False)


def _is_harmless(record: logging.LogRecord) -> bool:
    """Return whether a line of the HTTP client's log may be written: addresses of webhooks are secrets."""
    return not _is_sending.get()


for _name in ("httpx2", "httpcore2.connection", "httpcore2.http11"):
    logging.getLogger(_name).addFilter(_is_harmless)


class Happened(NamedTuple):
    """That a run paused, failed or ended: how, where in its journal, and when."""

    status: str
    seq: int
    at: float


class Webhooks:
    """Sends what happens to the runs of a service to targets, from `start` to `close`."""

    def __init__(self, service: Service, targets: Sequence[Target]) -> None:
        self._service = service
        self._namespace = namespace_of(service.store)
        self._targets = {target.name: target for target in targets}
        self.deliveries = Service(
            kept_beside(service.store, "webhooks"),
            [self._graph(), _positions()],
            concurrency=16,
            max_active=MOST_WAITING,
            history=History(runs=MOST_KEPT),
        )
        """The deliveries, as runs."""
        self._since: dict[str, float] = {}
        self._seen = self._saved = 0.0
        self._read: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-webhooks", daemon=True)

    def start(self) -> None:
        """Begin to look and to deliver, where the last server left off."""
        self._begin()
        self.deliveries.start()
        self._thread.start()

    def __enter__(self) -> Webhooks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; what was not delivered is delivered by the next server."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self.deliveries.close(at_once=True)

    def _work(self) -> None:
        while not self._ending.is_set():
            try:
                self.look()
            except TooManyRuns:
                logger.warning("%s deliveries wait; no more are begun before some are done", MOST_WAITING)
            except HoldfastError as error:
                logger.error("webhooks: the store cannot be looked through: %s", error)
            self._ending.wait(LOOK)

    # How far the store was looked through: a run that never begins, for each target.

    def _begin(self) -> None:
        now = clock.time()
        seen = {name: position["seen"] for name, position in self._positions()}
        known = {name: position["since"] for name, position in self._positions()}
        self._since = {name: max(known.get(name, now), now - OLDEST) for name in self._targets}
        self._seen = max(min(seen.get(name, now) for name in self._targets), now - OLDEST)
        for name in self._targets.keys() - known.keys():
            self._save(name, now)

    def _positions(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the positions that are stored, the oldest first."""
        while True:
            found = self.deliveries.store.runs(workflow=POSITION, limit=_PAGE)
            with suppress(
                RunNotFound
            ):  # Another server has replaced one meanwhile: look again, or it is missed.
                states = [(info, self.deliveries.state(info.run)["state"]) for info in found]
                states.sort(key=lambda each: each[0].created_at)
                return [(state["target"], {**state, "run_id": info.run}) for info, state in states]

    def _save(self, name: str, seen: float) -> None:
        """Store a position, then forget those before it."""
        inputs = {"target": name, "since": self._since[name], "seen": seen}
        before = [position["run_id"] for target, position in self._positions() if target == name]
        self.deliveries.execute(POSITION, inputs, delay=_NEVER, tags=[name])
        for run_id in before:
            try:
                self.deliveries.delete(run_id)
            except RunNotFound:
                continue

    # Looking for what happened.

    def look(self) -> None:
        """Begin a delivery of everything that happened since the last look."""
        begun = clock.time()
        is_new = False
        for info in self._changed(self._seen):
            is_new = self._look_at(info) or is_new
        self._seen = begun - OVERLAP
        if is_new and begun - self._saved > SAVED_EVERY:
            self._saved = begun
            for name in self._targets:
                self._save(name, self._seen)

    def _changed(self, since: float) -> Iterator[RunInfo]:
        past: tuple[float, str] | None = None
        while True:
            page = self._service.store.runs(since=since, past=past, limit=_PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            past = page[-1].updated_at, page[-1].run

    def _look_at(self, info: RunInfo) -> bool:
        """Begin the deliveries of a run; return whether there are new ones."""
        name = f"{info.run}\n{info.key.hex()}"
        updated_at, seq = self._read.get(name, (0.0, 0))
        if updated_at == info.updated_at or info.status in (RunStatus.RUNNING, RunStatus.QUEUED):
            return False
        try:
            found, last = self._happened(info, seq)
            is_new = sum(self._submitted(info, each) for each in found) > 0
        except RunNotFound:
            return False
        except TooManyRuns:
            raise
        except HoldfastError as error:
            logger.error("webhooks: run %s cannot be read: %s", info.run, error)
            last, is_new = seq, False
        self._read[name] = info.updated_at, last
        self._read.move_to_end(name)
        while len(self._read) > MOST_KEPT:
            self._read.popitem(last=False)
        return is_new

    def _happened(self, info: RunInfo, seq: int) -> tuple[list[Happened], int]:
        """Return what happened to a run after an entry of its journal, and its last entry."""
        timeline = Timeline(self._service.journal, info.run, seq)
        is_cut, begun = timeline.seq > seq, timeline.seq
        found = [
            Happened(each.data["status"], each.seq, each.at.timestamp())
            for each in timeline.read()
            if each.type.startswith("graph.") and "status" in each.data
        ]
        if is_cut and not found:  # Its journal is pruned up to its end.
            found = [Happened(info.status, begun, info.updated_at)]
        return found, timeline.seq

    def _submitted(self, info: RunInfo, happened: Happened) -> bool:
        wanted = [
            target
            for target in self._targets.values()
            if happened.status in target.events and happened.at >= self._since[target.name]
        ]
        if not wanted or (happened.status == RunStatus.PAUSED and not self._asks(info, happened.seq)):
            return False
        facts = {
            "run_id": info.run,
            "workflow": info.workflow,
            "status": happened.status,
            "at": happened.at,
            "seq": happened.seq,
        }
        return sum(self._begun(info, target.name, facts) for target in wanted) > 0

    def _begun(self, info: RunInfo, target: str, facts: dict[str, Any]) -> bool:
        """Begin a delivery, unless it was begun before."""
        said = json.dumps([target, self._namespace, info.run, info.key.hex(), facts["seq"], facts["status"]])
        try:
            self.deliveries.execute(
                DELIVERY, {"target": target, **facts}, run_id=str(uuid.uuid5(_SPACE, said)), tags=[target]
            )
        except RunExists:
            return False
        return True

    def _asks(self, info: RunInfo, seq: int) -> bool:
        """Return whether a paused run waits for somebody rather than for its time."""
        pauses = self._view(info.run, seq).pauses
        return not pauses or not all(pause.is_wait for pause in pauses)

    def _view(self, run_id: str, seq: int) -> RunView:
        """Return a run as it was then; as it is now if that was pruned."""
        try:
            return run_view(self._service.journal, run_id, upto=seq)
        except RunNotFound:
            raise
        except HoldfastError:
            return run_view(self._service.journal, run_id)

    # Delivering.

    def _graph(self) -> StateGraph:
        graph = StateGraph(dict, name=DELIVERY)
        graph.add_node("send", self._send, retry=RETRY, version="1")
        return graph.add_edge(START, "send").add_edge("send", END)

    async def _send(self, state: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
        """Send one delivery; raise `NotTaken` if it has to be tried again."""
        target = self._targets.get(state["target"])
        if target is None:
            raise NotWanted(f"the operator has no webhook {state['target']!r} any more")
        body = json.dumps(
            await asyncio.to_thread(self._payload, ctx.run_id, state), ensure_ascii=False
        ).encode()
        headers = {"content-type": "application/json", **signed(target.key, ctx.run_id, clock.time(), body)}
        silence = _is_sending.set(True)
        try:
            # A redirect is not followed: who sent the event and its signature elsewhere could replay it.
            async with (
                httpx2.AsyncClient(timeout=SECONDS, follow_redirects=False) as client,
                asyncio.timeout(SECONDS),
                client.stream("POST", target.url, content=body, headers=headers) as reply,
            ):
                status, wait = reply.status_code, reply.headers.get("retry-after", "")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # Its text may have the address.
            raise NotTaken(f"webhook {target.name!r} could not be reached: {type(error).__name__}") from None
        finally:
            _is_sending.reset(silence)
        if status == GONE:
            raise NotWanted(f"webhook {target.name!r} wants no more of this (status {GONE})")
        if not 200 <= status < 300:
            raise NotTaken(
                f"webhook {target.name!r} answered with status {status}",
                retry_after=float(wait) if wait.isdecimal() and len(wait) < 6 else 0.0,
            )
        return {"answered": status}

    def _payload(self, ident: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a receiver gets: facts about the run, as it was when it happened."""
        run_id, status = state["run_id"], state["status"]
        event: dict[str, Any] = {
            "id": ident,
            "type": f"run.{status}",
            "at": iso(when(state["at"])),
            "namespace": self._namespace,
            "run_id": run_id,
            "workflow": state["workflow"],
            "status": status,
        }
        try:
            view = self._view(run_id, state["seq"])
        except RunNotFound:
            return {**event, "deleted": True}
        event["tags"] = list(view.line.tags)
        if status == RunStatus.FAILED:
            error = view.as_json()["error"] or {}
            event["error"] = {name: error.get(name) for name in ("step", "type", "message")}
        if status == RunStatus.PAUSED:
            event["pauses"] = [self._pause(run_id, pause) for pause in view.pauses[:MOST_PAUSES]]
        return event

    def _pause(self, run_id: str, pause: PauseView) -> dict[str, Any]:
        facts = pause_facts(pause)
        event = {name: facts[name] for name in ("question", "kind", "choices", "schema", "takes", "until")}
        small = {name: value for name, value in event.items() if len(json.dumps(value)) <= LONGEST_TEXT}
        links = self._service.links
        link = None
        if links is not None and facts["takes_answer"]:
            link = links.link(Question.of(self._namespace, self._service.journal.info(run_id), pause))
        return {"prompt": pause.prompt[:LONGEST_TEXT], **small, "answer_link": link}


def signed(key: bytes, ident: str, at: float, body: bytes) -> dict[str, str]:
    """Return the headers that say who sent a body, and when (those of Standard Webhooks)."""
    seconds = str(int(at))
    made = hmac.new(key, f"{ident}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": ident,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{base64.b64encode(made).decode()}",
    }


def _positions() -> StateGraph:
    graph = StateGraph(dict, name=POSITION)
    graph.add_node("hold", lambda state: {}, version="1")
    return graph.add_edge(START, "hold").add_edge("hold", END)
