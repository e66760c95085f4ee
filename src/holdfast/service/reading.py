"""Reading the workflows and runs of a store, as plain data that JSON can carry."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast import clock
from holdfast.engine.owner import is_alive, this_owner
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.engine.time_travel.queries import compare_runs, diff_states, run_forks, run_history
from holdfast.errors import INVALID, CheckpointNotFound, HoldfastError, NotPaused, Remedy, suggestion
from holdfast.fleet.queues import held_back, is_postgres, queue_lines
from holdfast.fleet.schedules import Schedules
from holdfast.integrity.check import check_runs, check_store
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.journal import Journal, unknown_run
from holdfast.service import catalogue
from holdfast.service.catalogue import Catalogue
from holdfast.service.links import KEY_VARIABLE, AnswerLinks, LinkRefused, NoLinks, Question, refuse_late
from holdfast.service.metrics import OldestPause
from holdfast.state.state import state_view
from holdfast.stores.base import (
    LAST_SEQ,
    Footprint,
    Measured,
    RunInfo,
    StatusCount,
    Store,
    count_runs,
    in_namespace,
    namespace_of,
)
from holdfast.values import END, START, RunStatus
from holdfast.views import usage
from holdfast.views.charges import BY, row_of, rows
from holdfast.views.history import CheckpointView, checkpoint_list, latest_runs
from holdfast.views.outlines import folded, steps_of
from holdfast.views.plain import CODEC, ViewCodec, iso, plain, user_trace
from holdfast.views.run_view import PauseView, RunLine, RunView, annotation_at
from holdfast.views.runs import find_checkpoint_info, find_run_info, lines_of, run_line, run_pauses, run_view
from holdfast.views.timeline import Timeline
from holdfast.workflows.model import json_schema

GOING_ON = (RunStatus.QUEUED, RunStatus.RUNNING)

MOST_LISTED = 500
"""How many runs, checkpoints or events one answer has at most."""

MOST_LOOKED_AT = 1_000
"""How many runs are looked at for one page of a search by tag or text; the cursor then goes on after them."""

MOST_COSTED = 1_000
"""How many runs, the latest, are added up for costs."""

MOST_TIMES = 50
"""For how many times at once costs are kept."""

COUNTED_FOR = 20.0
"""For how many times as long as counting took its result is kept, so that counting never takes all time."""


class RequestInvalid(HoldfastError):
    """What was asked for makes no sense: a cursor, a limit, a status or a name."""

    exit_code = INVALID


Found = TypeVar("Found")


class Recent(Generic[Found]):
    """Something that takes longer the more runs there are: kept for many times as long as it took to find out."""

    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find
        self._kept: tuple[float, Found] | None = None

    def get(self) -> Found:
        """Return it as of a short while ago at most."""
        begun = clock.monotonic()
        if self._kept is not None and begun <= self._kept[0]:
            return self._kept[1]
        found = self._find()
        now = clock.monotonic()
        self._kept = now + COUNTED_FOR * (now - begun), found
        return found

    def forget(self) -> None:
        """Find it out again when it is asked for next."""
        self._kept = None


class Reader:
    """Everything that a service can be asked about; nothing here changes a store."""

    def __init__(self, journal: Journal, workflows: Catalogue) -> None:
        self.journal, self.store, self.catalogue = journal, journal.store, workflows
        self._counted = Recent(lambda: count_runs(self.store))
        self._queued = Recent(lambda: queue_lines(self.store))
        self._charges = usage.KnownCharges(journal)
        self._costs: dict[object, Recent[dict[str, Any]]] = {}
        self.oldest_pause = OldestPause(journal)
        """Since when the oldest open pause waits."""
        self.links: AnswerLinks | None = None
        """Makes links that answer questions, if the operator gave a key."""

    # Workflows.

    def workflows(self) -> list[dict[str, Any]]:
        """Return every workflow in a few facts."""
        return [catalogue.summary(offered) for offered in self.catalogue.offered]

    def workflow(self, name: str) -> dict[str, Any]:
        """Return a workflow: its description, its inputs and its steps."""
        return catalogue.description(self.catalogue.find(name))

    def schema(self, name: str | None = None) -> dict[str, Any]:
        """Return the JSON Schema of a workflow's inputs, or, without a name, of workflow files."""
        return json_schema() if name is None else catalogue.input_schema(self.catalogue.find(name))

    def validate(self, text: str) -> dict[str, Any]:
        """Return the problems and warnings of the text of a workflow file."""
        return catalogue.validation(text)

    # Lists of runs.

    def counts(self) -> dict[str, int]:
        """Return how many runs there are of each status, as of a few seconds ago at most."""
        found = self.status_counts()
        return {str(status): found[status].runs for status in RunStatus if status in found}

    def status_counts(self) -> dict[str, StatusCount]:
        """Return how many runs there are of each status, and how old the oldest is."""
        return self._counted.get()

    def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
        counts: bool = False,
    ) -> dict[str, Any]:
        """Return a page of runs, the last updated first, and the cursor of the next page.

        `text` is a part of a run's id or of its workflow's name. `since` and `until` bound the time of the last
        update, in seconds since 1970. With `counts`, how many runs the store has of each status.
        """
        statuses = [status] if isinstance(status, str) else None if status is None else list(status)
        for each in statuses or ():
            if each not in tuple(RunStatus):
                raise RequestInvalid(f"there is no status {each!r:.80}; there are {', '.join(RunStatus)}")
        limit = checked_limit(limit)
        wanted = {"status": statuses, "workflow": workflow, "since": since, "before": until}
        found, past = self._page(wanted, tag, text, limit, _read_cursor(cursor))
        lines = lines_of(self.journal, found, self._is_alive)
        page = {"runs": [line.as_json() for line in lines], "next": past and _cursor(past)}
        return {**page, "counts": self.counts()} if counts else page

    def _page(
        self,
        wanted: Mapping[str, Any],
        tag: str | None,
        text: str | None,
        limit: int,
        past: tuple[float, str] | None,
    ) -> tuple[list[RunInfo], tuple[float, str] | None]:
        """Return the runs of a page, and where the next one begins, if there is one."""
        found: list[RunInfo] = []
        looked = 0
        while True:
            size = limit + 1 if tag is None and text is None else min(MOST_LISTED, MOST_LOOKED_AT)
            batch = self.store.runs(past=past, limit=size, **wanted)
            for info in batch:
                if len(found) == limit:
                    return found, (found[-1].updated_at, found[-1].run)
                past = info.updated_at, info.run
                if _matches(info, tag, text):
                    found.append(info)
            looked += len(batch)
            if len(batch) < size:
                return found, None
            if looked >= MOST_LOOKED_AT:
                return found, past

    # One run.

    def _info(self, run_id: str) -> RunInfo:
        found = self.store.runs(run=run_id)
        if not found:
            raise unknown_run(self.store, run_id, "run")
        return found[0]

    def _view(self, run_id: str) -> RunView:
        return run_view(self.journal, self._info(run_id).run, is_alive=self._is_alive)

    def _is_alive(self, owner: str) -> bool:
        """Return whether the owner of a run is alive: this process, which may have a worker, or another."""
        return owner == this_owner(self.store) or is_alive(owner, self.store)

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a run: status, progress, steps, what it waits for, inputs, output, costs."""
        view = self._view(run_id)
        return {
            **_with_user_trace(view.as_json()),
            "steps": [_with_user_trace(step.as_json()) for step in view.steps],
            "pauses": [pause_facts(pause) for pause in view.pauses],
            "held": self._held(view.line),
            "progress": progress_of(view),
        }

    def status(self, run_id: str) -> dict[str, Any]:
        """Return the status of a run and what it waits for; cheap however long the run is."""
        info = self._info(run_id)
        line = run_line(self.journal, info, self._is_alive)
        pauses = run_pauses(self.journal, info) if line.status == RunStatus.PAUSED else ()
        facts = [pause_facts(pause) for pause in pauses]
        return {**line.as_json(), "pauses": facts, "held": self._held(line), "goes_on": line.goes_on}

    def _held(self, line: RunLine) -> str | None:
        is_executed = line.status == RunStatus.RUNNING and not line.is_dead
        is_theirs = line.goes_on and bool(line.queue) and not is_executed
        return held_back(self.store, line.run_id) if is_theirs else None

    def answer_links(self, run_id: str, *, who: str = "") -> dict[str, Any]:
        """Return a link for each question of a run: it answers once, without a login."""
        if self.links is None:
            raise NoLinks(
                "this service has no key for answer links",
                remedies=Remedy(text=f"its operator sets {KEY_VARIABLE}"),
            )
        info = self._info(run_id)
        pauses = run_pauses(self.journal, info) if info.status == RunStatus.PAUSED else ()
        found = [
            {
                "question": pause.handle,
                "prompt": pause.prompt,
                "until": iso(pause.until),
                "link": self.links.link(Question.of(namespace_of(self.store), info, pause)),
            }
            for pause in pauses
            if not (pause.is_gate or pause.is_wait)
        ]
        if not found:
            raise NotPaused(f"run {run_id!r} is {info.status} and asks nothing")
        return {"run_id": run_id, "links": found}

    def asked_by(self, link: Question) -> tuple[RunInfo, PauseView]:
        """Return the run and the pause of an answer link; raise `LinkRefused` if the question is over."""
        for info in self.store.runs(run=link.run_id):
            is_open = info.key.hex() == link.key and info.status in (*GOING_ON, RunStatus.PAUSED)
            pauses = run_pauses(self.journal, info) if is_open else ()
            for pause in pauses:
                if Question.of(link.namespace, info, pause) == link:
                    refuse_late(pause)
                    return info, pause
        raise LinkRefused("this question was answered already, or is over")

    def steps(self, run_id: str) -> list[dict[str, Any]]:
        """Return the steps of a run, each with its status, attempts and times."""
        return [_with_user_trace(step.as_json()) for step in self._view(run_id).steps]

    def step(self, run_id: str, name: str) -> dict[str, Any]:
        """Return a step of a run with its output, its errors, what it cost, and the events that tell of it."""
        view = self._view(run_id)
        found = view.step(name)
        if found is None:
            known = ", ".join(step.name for step in view.steps)
            raise RequestInvalid(f"run {run_id!r} has no step {name!r:.200}; it has {known:.2000}")
        view.codec.renew()
        cost = [row for row in usage.ledger(self.journal, view.run_id).by_step() if row.name == name]
        events = [each for each in self.events(run_id, limit=MOST_LISTED) if is_of(each["step"], name)]
        return {
            **_with_user_trace(found.as_json(full=True)),
            "cost": cost[0].as_json() if cost else None,
            "events": events,
        }

    def state(
        self, run_id: str, checkpoint: str | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the state of a run, now or at a checkpoint: an id, or `@3`, `@-1`, `@STEP`."""
        target = run_id if checkpoint is None else checkpoint
        if checkpoint is not None and checkpoint.startswith("@"):
            target = f"{run_id}{checkpoint}"
        found = find_position(self.store, target)
        if found.info.run != run_id:
            raise CheckpointNotFound(f"checkpoint {checkpoint} is one of run {found.info.run!r}")
        view = run_view(self.journal, run_id, upto=found.seq)
        point = checkpoint_at(self.store, found)
        for key in keys or ():
            if key not in view.state:
                raise _no_key(key, view)
        values = plain(view.visible_state) if keys is None else {key: plain(view.value(key)) for key in keys}
        ident = None if point is None else point.id
        return {"run_id": run_id, "checkpoint_id": ident, "state": values}

    def history(self, run_id: str, limit: int = 50, before: str | None = None) -> dict[str, Any]:
        """Return a page of a run's checkpoints, newest first, each with what happened since the one before."""
        self._info(run_id)
        page = run_history(self.journal, run_id, limit=checked_limit(limit), before=before)
        return {**page.as_json(), "next": page[-1].id if page.more and len(page) else None}

    def forks(self, run_id: str) -> dict[str, Any]:
        """Return the runs that a run comes from, and those that come from it."""
        self._info(run_id)
        return run_forks(self.journal, run_id).as_json()

    def diff(self, one: str, other: str | None = None, keys: Sequence[str] = ()) -> dict[str, Any]:
        """Return what differs between two checkpoints, or between one and the one before it."""
        return diff_states(self.journal, one, other, keys=keys).as_json()

    def compare(self, one: str, other: str) -> dict[str, Any]:
        """Return what two runs did differently."""
        return compare_runs(self.journal, one, other).as_json()

    # Checkpoints.

    def checkpoints(
        self, run_id: str | None = None, workflow: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Return the newest checkpoints of a run, of a workflow or of the store, newest first."""
        limit = checked_limit(limit)
        infos = (
            latest_runs(self.store, workflow, limit)
            if run_id is None
            else [find_run_info(self.journal, run_id)]
        )
        return [point.as_json() for point in checkpoint_list(self.store, infos, limit)]

    def checkpoint(self, ident: str) -> dict[str, Any]:
        """Return a checkpoint: its place in the run, how far that was, its state, its tags and notes."""
        info, seq = find_checkpoint_info(self.journal, ident)
        stored = self.store.checkpoints(info.run, before=seq + 1, limit=1)[0]
        saved, codec = decode_checkpoint(info.key, stored, info.run), ViewCodec()
        run = self.journal.load(info, codec, seq).run
        state = state_view(run.root.cells, codec, info.run, saved.id, run.root.last_node, run.updated_at)
        said = annotation_at(info, self.journal.load(info, CODEC).run, seq)
        progress = progress_of(run_view(self.journal, info.run, upto=seq))
        facts = {"workflow": info.workflow, "status": run.status, "progress": progress, "state": plain(state)}
        return {**CheckpointView(info.run, saved).as_json(), **facts, **said.as_json()}

    # Events.

    def events(self, run_id: str, after: str | int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the events of a run after one of them; `id` is `SEQ.N`, the n-th event of an entry of the journal."""
        return self.journal.read_whole(
            run_id, lambda: list(itertools.islice(self.follow(run_id, after).read(), limit))
        )

    def follow(self, run_id: str, after: str | int | None = 0) -> Following:
        """Return a position in the events of a run, to read on from as the run goes on; `None` is its end now."""
        run = self._info(run_id).run
        return self.journal.read_whole(run, lambda: Following(self.journal, run, after))

    # Graphs.

    def graph(self, *, run_id: str | None = None, workflow: str | None = None) -> dict[str, Any]:
        """Return the nodes and edges of a workflow for drawing; of a run with the status of each step."""
        if (run_id is None) == (workflow is None):
            raise RequestInvalid("give either a run or a workflow")
        if run_id is None:
            offered = self.catalogue.find(str(workflow))
            outline = folded(offered.app.outline(), of_file=offered.file is not None)
            return _drawn(outline, {})
        view = self._view(run_id)
        if not view.outline:
            return {"name": view.line.workflow, "nodes": [], "edges": []}
        outline = folded(view.outline, of_file=view.workflow_file is not None)
        return _drawn(outline, {step.name: step.as_json() for step in view.steps})

    # Costs, the fleet, health.

    def costs(self, by: str = "workflow", since: float | None = None) -> dict[str, Any]:
        """Return what the latest runs used, by workflow, model, run, step or day."""
        if by not in BY:
            raise RequestInvalid(f"costs are added up by workflow, model, run, step or day, not {by!r:.80}")
        found = self.all_costs((by,), since)
        return {
            "by": by,
            "runs": found["runs"],
            "total": found["total"],
            "rows": found[by],
            "unreadable": found["unreadable"],
        }

    def all_costs(
        self, kinds: Sequence[str], since: float | None = None, until: float | None = None
    ) -> dict[str, Any]:
        """Return what the latest runs used in a time, added up in several ways at once, as of a short while ago."""
        asked = tuple(kinds), since, until
        if asked not in self._costs and len(self._costs) >= MOST_TIMES:
            self._costs.clear()
        return self._costs.setdefault(asked, Recent(lambda: self._all_costs(*asked))).get()

    def _all_costs(self, kinds: Sequence[str], since: float | None, until: float | None) -> dict[str, Any]:
        infos = self.store.runs(since=since, limit=MOST_COSTED)
        every, unreadable = self._charges.of(infos)
        charges = [
            charge
            for charge in every
            if (since is None or charge.at >= since) and (until is None or charge.at < until)
        ]
        return {
            "runs": len(infos),
            "is_all": len(infos) < MOST_COSTED,
            "total": row_of("total", charges).as_json(),
            "unreadable": unreadable,
            **{by: [row.as_json() for row in rows(charges, by)][:MOST_LISTED] for by in kinds},
        }

    def cost(self, run_id: str) -> dict[str, Any]:
        """Return what a run has used, by step and by model."""
        return usage.ledger(self.journal, self._info(run_id).run).as_json()

    def fleet(self) -> dict[str, Any]:
        """Return the queues, the schedules, and the processes that execute runs."""
        owners: dict[tuple[str, int], dict[str, Any]] = {}
        running = self.store.runs(status=[RunStatus.RUNNING], limit=MOST_LISTED)
        for line in lines_of(self.journal, running, self._is_alive):
            place = line.owner.host, line.owner.pid
            known = owners.setdefault(place, {**line.owner.as_json(), "runs": []})
            known["runs"].append(line.run_id)
        schedules = Schedules(self.store).lines() if is_postgres(self.store) else []
        return {
            "queues": [line.as_json() for line in self._queued.get()],
            "schedules": [line.as_json() for line in schedules],
            "workers": list(owners.values()),
        }

    def fsck(self) -> dict[str, Any]:
        """Return whether the runs of the store are intact."""
        return check_store(self.store, seal=self.journal.seal).as_json()

    def check_latest(self, limit: int = MOST_LISTED, seconds: float = 5.0) -> dict[str, Any]:
        """Return whether the latest runs are intact: as many as can be checked in so many seconds."""
        infos, begun = self.store.runs(limit=checked_limit(limit)), clock.monotonic()
        reports = check_runs(self.store, infos, seal=self.journal.seal, seconds=seconds)
        return {
            "checked": len(reports),
            "is_all": len(reports) == len(infos) < limit,
            "seconds": clock.monotonic() - begun,
            "entries": sum(report.entries for report in reports),
            "checkpoints": sum(report.checkpoints for report in reports),
            "damaged": [report.as_json() for report in reports if not report.is_fine],
        }

    def footprint(self) -> dict[str, Any]:
        """Return the kind of the store, its version and its size on disk, where these are known."""
        known = self.store.footprint() if isinstance(self.store, Measured) else None
        kind, _, schema, size = known or Footprint(self.store.url.partition(":")[0], "")
        return {"kind": kind, "schema": schema, "disk_bytes": size}


WHOLE_ENTRY = 1 << 40
"""More events than an entry has."""


class Following:
    """The events of a run as plain data with ids, read on from a position."""

    def __init__(self, journal: Journal, run_id: str, after: str | int | None) -> None:
        seq, number = (LAST_SEQ, 0) if after is None else read_event_id(after)
        self._timeline = Timeline(journal, run_id, max(0, seq - 1))
        self._skip = (self._timeline.seq, WHOLE_ENTRY) if after is None else (seq, number)

    @property
    def place(self) -> tuple[int, int]:
        """The event after which it reads: entry, and number in the entry."""
        return max(self._skip, (self._timeline.seq, 0))

    @property
    def status(self) -> str:
        """The run's status at that position."""
        return str(self._timeline.status)

    def read_until(self, seq: int) -> Iterator[dict[str, Any]]:
        """Yield the events up to an entry."""
        return itertools.takewhile(lambda each: each["seq"] <= seq, self.read())

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were stored since the last read."""
        last, number = 0, 0
        for each in self._timeline.read():
            number = number + 1 if each.seq == last else 0
            last = each.seq
            if (each.seq, number) > self._skip:
                yield {"id": f"{each.seq}.{number}", **each.as_json()}


def read_event_id(after: str | int) -> tuple[int, int]:
    """Return the place of an event; a number alone stands for a whole entry."""
    seq, dot, number = str(after).partition(".")
    if not seq.isdecimal() or len(seq) > 10 or (dot and (not number.isdecimal() or len(number) > 10)):
        raise RequestInvalid(f"{after!r:.80} is no id of an event; those look like 12.0")
    return int(seq), int(number) if dot else WHOLE_ENTRY


def is_of(step: str, name: str) -> bool:
    """Return whether the id of a step is one of a step with that name."""
    return "/".join(part.partition("#")[0].partition(":")[0] for part in step.split("/")) == name


def progress_of(view: RunView) -> dict[str, int]:
    """Return how many steps are completed, of those that are not skipped."""
    statuses = [step.status for step in view.steps if step.status != "skipped"]
    return {"done": statuses.count("completed"), "total": len(statuses)}


LONGEST_NAMESPACE = 63


def kept_beside(store: Store, kind: str) -> str:
    """Return the URL of what a server keeps beside the runs of a store: the namespace `OWN.KIND` of the same store.

    Where that is too long for a name, a digest stands for the end of the store's own namespace.
    """
    own = namespace_of(store)
    name = f"{own}.{kind}"
    if len(name) > LONGEST_NAMESPACE:
        digest = hashlib.blake2b(own.encode(), digest_size=8).hexdigest()
        name = f"{own[: LONGEST_NAMESPACE - len(digest) - len(kind) - 2]}-{digest}.{kind}"
    return beside(store, name)


def beside(store: Store, name: str) -> str:
    """Return the URL of the same store in another namespace."""
    own = namespace_of(store)
    place = re.sub(
        rf"([?&])namespace={re.escape(own)}(&|$)", lambda found: found[1] if found[2] else "", store.url
    )
    return in_namespace(place.rstrip("?&"), name)


def pause_facts(pause: PauseView) -> dict[str, Any]:
    """Return a pause as plain data, with the name that an answer is given under, and an example of one."""
    facts = {key: value for key, value in pause.as_json().items() if key != "command"}
    takes_answer = not (pause.is_gate or pause.is_wait)
    return {
        **facts,
        "question": pause.handle if takes_answer else None,
        "example": pause.example if takes_answer else None,
        "takes_answer": takes_answer,
    }


def _with_user_trace(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a run or a step as plain data, with the frames of the user's code only in its error."""
    error = facts["error"]
    return facts if error is None else {**facts, "error": {**error, "trace": user_trace(error["trace"])}}


def _no_key(key: str, view: RunView) -> RequestInvalid:
    known = [each for each in view.state if view.workflow_file is None or ":" not in each]
    return RequestInvalid(
        f"the state has no key {key!r:.200}{suggestion(key, known)}; its keys: {', '.join(known) or 'none':.2000}"
    )


def _drawn(outline: Mapping[str, Any], steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    nodes, edges = [], []
    for step in steps_of(outline):
        known = steps.get(step.name, {})
        nodes.append({"name": step.name, "layer": step.layer or None, "status": known.get("status")})
        edges += [
            {"from": step.name, "to": "$end" if route.to == END else route.to, "when": route.when}
            for route in step.routes
        ]
    first = [edge[1] for edge in outline["edges"] if edge[0] == START]
    first += [target for source, targets in outline["routes"] if source == START for target in targets]
    edges = [{"from": "$start", "to": name, "when": ""} for name in dict.fromkeys(first)] + edges
    return {"name": outline["name"], "nodes": nodes, "edges": edges}


def checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_LISTED:
        raise RequestInvalid(f"limit must be a whole number from 1 to {MOST_LISTED}, not {limit!r:.80}")
    return limit


def _matches(info: RunInfo, tag: str | None, text: str | None) -> bool:
    if tag is not None and tag not in info.tags:
        return False
    return text is None or text.casefold() in f"{info.run}\n{info.workflow}".casefold()


def _cursor(past: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([past[0].hex(), past[1]]).encode()).decode().rstrip("=")


def _read_cursor(text: str | None) -> tuple[float, str] | None:
    if not text:
        return None
    with contextlib.suppress(ValueError, binascii.Error, TypeError, OverflowError, RecursionError):
        at, run = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if isinstance(at, str) and isinstance(run, str):
            run.encode()
            return float.fromhex(at), run
    raise RequestInvalid(f"{text!r:.80} is no cursor; take `next` of the page before")
