"""Views of a run: a line of a list, its steps, its pauses, its notes, and all of it."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from holdfast.errors import CodecError
from holdfast.journal.checkpoint_ids import checkpoint_id
from holdfast.journal.provenance import Provenance
from holdfast.journal.records import Commanded, Fault
from holdfast.journal.run_state import DONE, SLEEP, Annotation, Refusal, RunState, Spending, Step, node_of
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.state.state import State, origin_of, state_view
from holdfast.stores.base import RunInfo
from holdfast.values import RESULT, RunStatus
from holdfast.views.plain import (
    CODEC,
    TOO_BIG_TO_PREVIEW,
    Unread,
    View,
    ViewCodec,
    iso,
    pairs_of,
    plain,
    preview,
    read_or_unread,
    size_text,
    when,
)
from holdfast.views.projection import node_outline

# Results of the steps of a workflow file, as its state keeps them.


def step_output(state: Mapping[str, Any], name: str, members: tuple[str, ...] = ()) -> Any:
    """Return the output of a step: its own, the list of its items', or those of its `members` by name."""
    record = state.get(name)
    if not isinstance(record, Mapping):
        return None
    if "output" in record:
        return record["output"]
    items = state.get(f"{name}:items")
    if isinstance(items, Mapping):
        last = record.get("visits")
        own = [item for item in items.values() if isinstance(item, Mapping) and item.get("visit") == last]
        own.sort(key=lambda item: item.get("index") or 0)
        return [item.get("output") for item in own if "error" not in item]
    found = {member: state.get(member) for member in members}
    outputs = {
        key: one["output"] for key, one in found.items() if isinstance(one, Mapping) and "output" in one
    }
    return outputs or None


def groups_of(outline: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the steps of every group, by its name."""
    nodes = outline.get("nodes", {})
    groups = {name for name in nodes if f"{name}:done" in nodes}
    groups -= {name for name in groups if f"{name}:item" in nodes or f"{name}:workflow" in nodes}
    found: dict[str, list[str]] = {}
    for name, targets in outline.get("routes", ()) if groups else ():
        if name in groups:
            found.setdefault(name, []).extend(target for target in targets if ":" not in target)
    return {name: tuple(members) for name, members in found.items()}


def is_function(outline: Mapping[str, Any]) -> bool:
    """Return whether a graph is that of a function: one node of its name, whose calls follow no edges."""
    nodes = outline.get("nodes", {})
    inner = nodes[outline["name"]].get("graph") if list(nodes) == [outline.get("name")] else None
    return isinstance(inner, Mapping) and not any(inner.get(kind) for kind in ("edges", "routes", "joins"))


# Steps.


MANY_ITEMS = 1000
"""The outputs of more items than this are not decoded for a preview."""


@dataclass(frozen=True, slots=True)
class Items(View):
    """How far a for-each has come."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class FaultView(View):
    """Why a step, or the run, failed."""

    step: str
    type: str
    message: str
    trace: str = field(default="", repr=False)

    def __str__(self) -> str:
        return str(Fault(self.type, self.message))


@dataclass(frozen=True, slots=True)
class StepView(View):
    """A step of a run's workflow, over all its visits.

    `status` is `pending` (not reached), `next`, `running`, `retrying`, `waiting` (for an answer or at a
    gate), `interrupted`, `failed`, `skipped` or `completed`. In a sub-graph the name is `outer/inner`.
    """

    JSON: ClassVar[str] = (
        "name status visits attempts seconds started_at ended_at retry_at items error=fault note preview"
    )

    name: str
    status: str
    visits: int = 0
    attempts: int = 0
    seconds: float = 0.0
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    retry_at: dt.datetime | None = None
    items: Items | None = None
    fault: FaultView | None = None
    note: str = ""
    """Why it was skipped."""
    _ops: tuple[Op, ...] = field(default=(), repr=False, compare=False)
    _state: State | None = field(default=None, repr=False, compare=False)
    """Of a workflow file's step the state, in which for-each steps and groups keep their outputs."""
    _members: tuple[str, ...] = field(default=(), repr=False)
    _previews: Codec = field(default=CODEC, repr=False, compare=False)
    """What reads values for previews, over all steps of the run; they are not kept."""

    @property
    def output(self) -> Any:
        """What it left behind last: the output of a workflow file's step, the update of a Python node."""
        return read_or_unread(lambda: self._output(self.result))

    def _output(self, result: Any) -> Any:
        if isinstance(result, Mapping) and "output" in result:
            return result["output"]
        return result if self._state is None else step_output(self._state, self.name, self._members)

    @property
    def item_results(self) -> Mapping[str, Mapping[str, Any]]:
        """What became of the finished items of a workflow file's for-each, by key."""
        found = None if self._state is None else self._state.get(f"{self.name}:items")
        return found if isinstance(found, Mapping) else {}

    @property
    def item_errors(self) -> dict[str, Any]:
        """Why items failed, by key."""
        results = read_or_unread(lambda: self.item_results)
        if isinstance(results, Unread):
            return {"": results}
        return {key: item["error"] for key, item in results.items() if "error" in item}

    @property
    def result(self) -> Any:
        """The step's last update, decoded when it is first read; `None` if there is none."""
        return self._result(lambda op: read_or_unread(lambda: op.value))

    def _result(self, read: Callable[[Op], Any]) -> Any:
        for op in self._ops:
            if op.key == self.name and op.kind == "set":
                return read(op)
        return {op.key: read(op) for op in self._ops if op.kind != "drop"} or None

    def preview(self, width: int = 80) -> str:
        """Its output on one line; of a very large one only its size, of many items only their number."""
        size = sum(len(op.raw) for op in self._ops if op.kind != "drop")
        if size > TOO_BIG_TO_PREVIEW:
            return f"<{size_text(size)}>"
        if self._state is not None and self.items is not None and self.items.total > MANY_ITEMS:
            return f"<{self.items.completed} outputs>"
        try:
            output = self._output(self._result(lambda op: self._previews.decode(op.raw)))
        except CodecError as error:
            return f"<unreadable here: {error}>"[:width]
        return "" if output is None else preview(output, width)

    def as_json(self, *, full: bool = False) -> dict[str, Any]:
        """Return the step as plain data; with `full` also output and result, and the errors of its items."""
        facts = View.as_json(self)
        if not full:
            return facts
        errors = {} if self.items is None else {"errors": plain(self.item_errors)}
        return {**facts, "output": plain(self.output), "result": plain(self.result), **errors}


# Where the app of a Python run is.


class AppPlace(NamedTuple):
    """Where the app of a Python run is, and what it is called there."""

    place: str = ""
    """MODULE:NAME, as it was recorded; empty if it is in no variable, or the run came from outside."""
    function: str = ""
    """The name of the workflow, if it is a function."""

    @property
    def name(self) -> str:
        """What the workflow, or the app of a graph, is called in its program."""
        return self.place.rpartition(":")[2] or self.function or "app"

    @property
    def in_python(self) -> str:
        """What has the methods of an `App` there."""
        return f"{self.name}.app" if self.function else self.name

    def resume_call(self, run_id: str) -> str:
        """Return how a run is resumed in its program, in words."""
        return f"{self.name}.resume({run_id!r}) in its program"


UNKNOWN = AppPlace()


def function_in(outline: Mapping[str, Any]) -> str:
    """Return the name of the workflow whose outline this is, if it is a function: its only node, in no order inside."""
    name, nodes = outline.get("name"), outline.get("nodes")
    if not isinstance(name, str) or not isinstance(nodes, Mapping) or list(nodes) != [name]:
        return ""
    inner = nodes[name].get("graph")
    is_function = isinstance(inner, Mapping) and inner.get("name") == name and not inner.get("edges")
    return name if is_function and name.isidentifier() else ""


# Pauses.


_TYPED = {
    "string": "<text>",
    "integer": "<integer>",
    "number": "<number>",
    "boolean": "<true or false>",
    "array": "<JSON list>",
    "object": "<JSON object>",
}
PLACEHOLDERS = frozenset((*_TYPED.values(), "<value>"))
"""What stands for an answer in commands that are shown. None of them is taken for an answer."""


@dataclass(frozen=True, slots=True)
class PauseView(View):
    """Something a run waits for, and how to give it."""

    JSON: ClassVar[str] = "id kind step node name prompt choices schema takes since until command"
    run_id: str
    id: str
    kind: str
    step: str
    name: str
    prompt: str
    schema: Mapping[str, Any] | None
    since: dt.datetime
    until: dt.datetime | None = None
    node: str = ""
    is_alone: bool = True
    """Whether no other open pause of the run has its name."""
    is_of_program: bool = False
    """Whether the run is one of a Python program, which alone can go on with it."""
    app: AppPlace = UNKNOWN
    """Where the app of that program is, as far as that is known."""

    @property
    def handle(self) -> str:
        """What it is answered by: its name, or its id where several have that name."""
        return self.name if self.name and self.is_alone else self.id

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The answers to choose from, or `None` if it takes others."""
        found = (self.schema or {}).get("enum")
        return tuple(found) if isinstance(found, (list, tuple)) else None

    @property
    def is_gate(self) -> bool:
        """Whether it takes no answer: resuming the run passes it."""
        return self.kind in ("before", "after")

    @property
    def is_wait(self) -> bool:
        """Whether it waits for nothing but its time."""
        return self.kind == SLEEP

    @property
    def takes(self) -> str:
        """Which answers it takes, in words."""
        if self.is_gate:
            return "no answer; resuming passes it"
        if self.is_wait:
            return "no answer; it goes on when its time has come"
        if self.choices is not None:
            return "one of " + ", ".join(preview(choice, 40) for choice in self.choices)
        kind = (self.schema or {}).get("type")
        if kind == "boolean":
            return "true or false"
        return "any value" if not isinstance(kind, str) else f"a value of type {kind}"

    @property
    def example(self) -> str:
        """An answer that it takes, or what stands for one in a command, such as `<integer>`."""
        if self.choices:
            return str(self.choices[0])
        return _TYPED.get(str((self.schema or {}).get("type")), "<value>" if self.schema else "<text>")

    @property
    def command(self) -> str:
        """The command that answers it, with a placeholder such as `<text>` for the answer."""
        run = shlex.quote(self.run_id)
        if self.is_gate or self.is_wait:
            place = self.app.place if self.is_of_program else ""
            app = f" --app {shlex.quote(place)}" if place else ""
            is_call = self.is_of_program and not app
            return self.app.resume_call(self.run_id) if is_call else f"holdfast resume {run}{app}"
        return f"holdfast answer {run} {shlex.quote(f'{self.handle}={self.example}')}"


_APP = re.compile(r"[\w./\\ -]{1,400}:[A-Za-z_][\w.]{0,99}")


def app_in(facts: Mapping[str, Any], *, is_foreign: bool) -> str:
    """Return where the app of a run is, as its environment says; nothing for a run that came from outside."""
    app = facts.get("app")
    return app if isinstance(app, str) and _APP.fullmatch(app) and not is_foreign else ""


def mark_shared_names(pauses: Sequence[PauseView]) -> tuple[PauseView, ...]:
    """Return the pauses of a run, with those marked that share a name."""
    names = [pause.name for pause in pauses]
    return tuple(replace(pause, is_alone=names.count(pause.name) == 1) for pause in pauses)


# Finished steps and items of a workflow file, without helper nodes.


NO_STEPS = ("inputs", "output", "ledger")
"""Keys of a workflow file's state that are no steps."""


class Counts(NamedTuple):
    """Numbers of finished steps, counted once per visit, and of finished for-each items."""

    steps: int = 0
    items: int = 0

    def __str__(self) -> str:
        return self.text()

    def text(self, word: str = "") -> str:
        """Return `1 step`, `3 steps and 12 items`; with a word `3 finished steps and 12 items`."""
        named = f"{word} step" if word else "step"
        steps = f"{self.steps} {named}" if self.steps == 1 else f"{self.steps} {named}s"
        items = "1 item" if self.items == 1 else f"{self.items} items"
        return f"{steps} and {items}" if self.items else steps


NOTHING = Counts()


FINISHED = "done"
"""The field in the record of a sub-workflow and of a for-each: the steps and items that have ended in it."""


def finished_in(run: RunState) -> Counts:
    """Return what has ended of a run: of a workflow file its steps and items, of a Python program every step."""
    config = CODEC.decode(run.config, lenient=True) if run.config else {}
    is_of_file = isinstance(config, Mapping) and "workflow_file" in config
    return counted(run) if is_of_file else Counts(run.steps_done)


def counted(run: RunState) -> Counts:
    """Return the steps and items of a workflow file that have ended, saved or in a wave that is not over.

    A sub-workflow, a group, a loop and a for-each are made of others, which are counted instead.
    """
    found: list[Counts] = []
    for path, frame in run.frames.items():
        node = node_of(path) if path else ""
        graph = node_outline(run.outline, node).get("graph", {}) if node else run.outline
        nodes = graph.get("nodes", {}) if isinstance(graph, Mapping) else {}
        state, depth = state_view(frame.cells, CODEC, "", "", "", 0.0), path.count("/") + bool(path)
        found += [ended_in(state, key, nodes) for key, _ in statuses(state) if key.count("/") == depth]
        done = [step for step in frame.active.values() if step.status == DONE and not step.skipped]
        found.append(Counts(sum(_is_whole(step, nodes) for step in done)))
        found.append(Counts(0, sum(_is_item(step.node.rpartition("/")[2], nodes) for step in done)))
    return _sum(found)


def ended_in(state: Mapping[str, Any], key: str, nodes: Mapping[str, Any]) -> Counts:
    """Return what has ended of one step, by its record in the state; `nodes` are those of its workflow."""
    name, record = key.rpartition("/")[2], state.get(key)
    if not isinstance(record, Mapping):
        return NOTHING
    visits, found = record.get("visits", 1), [_noted(record)]
    if f"{name}:{FINISHED}" not in nodes and isinstance(visits, int):
        found.append(Counts(visits - (record.get("status") in ("running", "skipped"))))
    items, is_work = state.get(f"{key}:items"), _is_item(f"{name}:item", nodes)
    for item in items.values() if isinstance(items, Mapping) else ():
        if isinstance(item, Mapping) and item.get("visit") == visits:
            found.append(Counts(0, int("error" not in item)) if is_work else _noted(item))
    return _sum(found)


def _sum(found: Sequence[Counts]) -> Counts:
    return Counts(sum(each.steps for each in found), sum(each.items for each in found))


def _noted(record: Mapping[str, Any]) -> Counts:
    """Return the steps and items that the record of a sub-workflow, an item of one or a for-each says have ended."""
    match record.get(FINISHED):
        case [int(steps), int(items)]:
            return Counts(steps, items)
    return NOTHING


def _is_item(node: str, nodes: Mapping[str, Any]) -> bool:
    """Return True if a node does the work of an item itself, and not in a sub-workflow."""
    return node.endswith(":item") and "graph" not in nodes.get(node, {})


def statuses(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each step in a workflow file's state, with its status."""
    found = []
    for name in state:
        said: Any = state[name] if name not in NO_STEPS and ":" not in name else None
        if isinstance(said, Mapping) and isinstance(said.get("status"), str):
            found.append((name, said["status"]))
    return found


def _is_whole(step: Step, nodes: Mapping[str, Any]) -> bool:
    """Return True if a finished step, whose wave is not over, is no helper, not made of others, and has ended."""
    own = step.node.rpartition("/")[2]
    if step.key is not None or ":" in own or own in NO_STEPS or f"{own}:{FINISHED}" in nodes:
        return False
    try:
        said = [op.value for op in step.ops if op.kind == "set" and op.key == step.node]
    except CodecError:
        return False
    return bool(said) and isinstance(said[0], Mapping) and said[0].get("status") in ("completed", "failed")


# Notes and tags.


@dataclass(frozen=True, slots=True)
class NoteView(View):
    """One note: when it was written, by whom, and what it says."""

    at: dt.datetime
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class AnnotationView(View):
    """The notes and tags of one checkpoint, or, without one, of the run."""

    seq: int
    checkpoint_id: str | None
    tags: tuple[str, ...]
    keep: bool
    """Whether retention leaves it alone."""
    notes: tuple[NoteView, ...]


def annotation_views(info: RunInfo, run: RunState) -> tuple[AnnotationView, ...]:
    """Return the notes and tags of a run, then of its checkpoints in their order."""
    return tuple(annotation_at(info, run, seq) for seq in sorted(run.annotations))


def annotation_at(info: RunInfo, run: RunState, seq: int) -> AnnotationView:
    """Return the notes and tags of the checkpoint at an entry, or, with 0, of the run."""
    annotation = run.annotations.get(seq) or Annotation()
    notes = tuple(NoteView(when(at), by, text) for at, by, text in annotation.notes)
    ident = checkpoint_id(info.key, seq) if seq else None
    return AnnotationView(seq, ident, annotation.tags if seq else info.tags, annotation.keep, notes)


@dataclass(frozen=True, slots=True)
class Owner(View):
    """The process that executes a run, or did last; `alive` is `None` where that was not checked."""

    host: str = ""
    pid: int = 0
    alive: bool | None = None

    @classmethod
    def read(cls, text: str, alive: bool | None) -> Owner:
        """Return the owner that the facts of a run name."""
        try:
            facts = json.loads(text)
            return cls(str(facts["host"]), int(facts["pid"]), alive)
        except (ValueError, KeyError, TypeError):
            return cls(alive=alive)


@dataclass(frozen=True, slots=True)
class RunLine(View):
    """One run in a list of runs: only its facts and the position of its newest checkpoint."""

    JSON: ClassVar[str] = (
        "run_id workflow status dead=is_dead started_at updated_at wave next queue priority due_at tags"
    )
    run_id: str
    workflow: str
    status: RunStatus
    owner: Owner
    started_at: dt.datetime
    updated_at: dt.datetime
    wave: int | None = 0
    """How many waves are completed, as `RUN@N` counts them; `None` if its newest checkpoint is inside a sub-graph."""
    next: tuple[str, ...] = ()
    """The steps that were about to run at its newest checkpoint."""
    queue: str = ""
    """The queue whose workers execute it, if any."""
    priority: int = 0
    due_at: dt.datetime | None = None
    """When a worker is to resume it."""
    tags: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it is being executed, or will be without a person's doing."""
        if self.status == RunStatus.RUNNING:
            return not self.is_dead or bool(self.queue)
        is_asleep = self.status == RunStatus.PAUSED and self.due_at is not None
        return self.status == RunStatus.QUEUED or (is_asleep and bool(self.queue))

    @property
    def is_dead(self) -> bool:
        """Whether it counts as running although its owner is gone."""
        return self.status == RunStatus.RUNNING and self.owner.alive is False

    @property
    def is_orphaned(self) -> bool:
        """Whether it is dead, and workers will resume it."""
        return self.is_dead and bool(self.queue)


@dataclass(frozen=True, slots=True)
class RunView(View):
    """A run: its facts, its steps, its pauses, its state and its result."""

    JSON: ClassVar[str] = (
        "*line owner=line.owner workflow_file=file parent=fork provenance=foreign inputs! output! steps steps_done "
        "items_done=done.items seconds pauses ledger checkpoints checkpoint_id bytes=size commands_refused "
        "refusals=refused facts! annotations error=fault"
    )

    line: RunLine
    steps: tuple[StepView, ...]
    pauses: tuple[PauseView, ...]
    inputs: Mapping[str, Any]
    state: State
    """Values are decoded when they are looked at."""
    config: Mapping[str, Any]
    outline: Mapping[str, Any]
    """Its graph as plain data."""
    ledger: Spending
    """What its steps used up; `unpriced` counts calls whose price is not known."""
    fault: FaultView | None
    done: Counts
    """The finished steps; of a workflow file without helpers, and the items apart."""
    seconds: float
    """Time spent in steps, over all executions."""
    checkpoints: int
    checkpoint_id: str
    """Its newest checkpoint."""
    size: int
    """Bytes of its journal."""
    parent: tuple[str, int] | None = None
    """The run it was forked from, and where."""
    commands_refused: int = 0
    """How many of the commands that it was given were refused."""
    refusals: tuple[Refusal, ...] = ()
    """The last of them, each with its reason."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Its last environment: host, platform, python, holdfast, packages, git, app, and what was added."""
    app: AppPlace = UNKNOWN
    """Where the app of a Python run is, as far as that is known."""
    annotations: tuple[AnnotationView, ...] = ()
    """The notes and tags of it and of its checkpoints."""
    provenance: Provenance | None = None
    """Where it came from, and who confirmed it, if it came from outside."""
    stopped_by: Commanded | None = None
    """The command that stopped it, of those since it was last resumed."""
    codec: ViewCodec = field(default_factory=ViewCodec, repr=False, compare=False)
    """What reads the values of the state, within the limit that they have together."""

    @property
    def steps_done(self) -> int:
        """How many steps are finished, each visit for itself."""
        return self.done.steps

    @property
    def run_id(self) -> str:
        return self.line.run_id

    @property
    def visible_state(self) -> Mapping[str, Any]:
        """The state; of a workflow file without what its helper nodes keep. See `Unread` for what is too much."""
        if self.workflow_file is None:
            return self.state
        return {key: self._read(key) for key in self.state if ":" not in key}

    def _read(self, key: str) -> Any:
        return read_or_unread(lambda: self.state.get(key))

    def value(self, key: str) -> Any:
        """Return the value of one key of the state, however much was read before."""
        with self.codec.alone():
            return self.state[key]

    @property
    def workflow_file(self) -> Mapping[str, Any] | None:
        """The workflow file it was started with: path, digest, source, base; `None` for a Python graph."""
        found = self.config.get("workflow_file")
        return found if isinstance(found, Mapping) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is tagged with: by its config, and since."""
        return self.line.tags

    @property
    def output(self) -> Any:

        if self.workflow_file is not None and "last" in self.outline:
            return self._read("output")
        if self.line.status != RunStatus.COMPLETED:
            return None
        if is_function(self.outline):
            return self._read(RESULT)
        if self.workflow_file is None:
            return dict(pairs_of(self.state))
        name = origin_of(self.state).checkpoint_node.partition(":")[0]
        return read_or_unread(lambda: step_output(self.state, name, groups_of(self.outline).get(name, ())))

    def step(self, name: str) -> StepView | None:
        """Return the step of that name, or the only one in a sub-graph whose own name it is, if there is one."""
        found = next((step for step in self.steps if step.name == name), None)
        inner = self.steps_inside(name)
        return inner[0] if found is None and len(inner) == 1 else found

    def steps_inside(self, name: str) -> list[StepView]:
        """Return the steps in sub-graphs, or of a function, whose own name this is."""
        return [step for step in self.steps if name and step.name.endswith(f"/{name}")]

    @property
    def file(self) -> dict[str, Any] | None:
        """The path and the digest of its workflow file."""
        found = self.workflow_file
        return None if found is None else {key: found.get(key) for key in ("path", "digest")}

    @property
    def fork(self) -> dict[str, Any] | None:
        """The run it was forked from, and where, by name."""
        return None if self.parent is None else {"run_id": self.parent[0], "seq": self.parent[1]}

    @property
    def refused(self) -> list[dict[str, str]]:
        """The last refused commands, each with its reason, by name."""
        names = ("command", "reason", "by")
        return [{name: getattr(each, name) for name in names} for each in self.refusals]

    @property
    def foreign(self) -> dict[str, Any] | None:
        """Where it came from, and who confirmed it, by name."""
        origin = self.provenance
        if origin is None:
            return None
        confirmed = origin.confirmation
        return {
            "source": origin.source,
            "at": iso(when(origin.at)),
            "signed_by": origin.signed_by or None,
            "confirmed_by": None if confirmed is None else confirmed.by,
            "confirmed_at": None if confirmed is None else iso(when(confirmed.at)),
        }

    def as_json(self, *, state: bool = False) -> dict[str, Any]:
        """Return the run as plain data; with `state` also its state."""
        facts = View.as_json(self)
        return {**facts, "state": plain(self.visible_state)} if state else facts
