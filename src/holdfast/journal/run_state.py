"""A run as its records tell it: frames, steps and pauses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

from holdfast.journal.records import Fault, FramePath, Item, Keyed, Reusing, Target, Text
from holdfast.state.ops import Cells, Op
from holdfast.values import RunStatus

READY, RUNNING, IN_DOUBT, RETRYING = "ready", "running", "in_doubt", "retrying"
WAITING, GATED, FAILED, DONE = "waiting", "gated", "failed", "done"
INTERRUPTED = "if_interrupted"
SECRETS_USED = "secrets"
"""The note of a step that names the secrets that it used last."""
MORE_ITERATIONS, MORE_BUDGET = "limits.iterations", "limits.budget"
"""The questions that ask for more than a limit allows; the answer is how much more."""
"""The name under which people answer what to do with an interrupted step."""

EXPIRED = b""
"""What a question that nobody answered in time is answered with; no value is stored as nothing."""

SLEEP = "sleep"
"""The kind of a pause that only waits for its time."""

NO_ANSWER = ("before", "after", SLEEP)
"""The kinds of pauses that take no answer: gates, which resuming passes, and waits for a time."""

STILL_IN_DOUBT = "in_doubt"
"""The note of an interrupted step that failed without having been started again."""

BEGUN = "begun:"
"""Begins the note of a function given to `once` that has begun and not ended; its key follows."""

ONCE_IN_DOUBT = "once_in_doubt"
"""The kind of a pause that asks what to do with such a function that was interrupted."""

ABOUT_DOUBTS = ("in_doubt", "poison", ONCE_IN_DOUBT)
"""The kinds of pauses that ask what to do with something that was interrupted: rerun, skip or fail it."""

OUTPUT = "output"
"""The key of what a step that a function called has returned."""

ONE_OFF = "one_off"
"""The note of a step that nothing follows."""

WHOLE = ("set", "drop")
"""The kinds of changes that replace what others wrote."""

REFUSALS = 20
"""How many of the last refused commands a run remembers."""

_QUOTED = frozenset("%/[]#")
"""What is quoted of an item's key in a step's id, beside what cannot be printed."""

EVERY_KEY = ("*",)
EVERY_STEP = ("*",)

PATH_LENGTH = 200
"""How many of the last visited nodes a run remembers for its error messages."""


@dataclass(init=False)
class Step:
    """One execution of one node, as far as it has come. Most fields keep their defaults, on the class."""

    id: str
    node: str
    frame: str
    visit: int
    key: str | None = None
    item: Item = ()
    status: str = READY
    attempt: int = 0
    tried: int = 0
    """Attempts that count against the retry budget since the step was last (re)started by a resume."""
    crashes: int = 0
    passed: bool = False
    ops: tuple[Op, ...] = ()
    goto: tuple[Target, ...] | None = None
    retry_at: float | None = None
    fault: Fault | None = None
    notes: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    skipped: str = ""
    begun: int = 0
    """Without a barrier: how many waves of its frame had ended when the step became active."""

    def __init__(
        self,
        id: str,
        node: str,
        frame: str,
        visit: int,
        key: str | None = None,
        item: tuple[Op, ...] = (),
        **progress: Any,
    ) -> None:
        self.id, self.node, self.frame, self.visit, self.key, self.item = id, node, frame, visit, key, item
        self.notes, self.answers = {}, {}
        if progress:
            self.__dict__.update(progress)


@dataclass(slots=True)
class Pause:
    """Something the run waits for. `id` is unique in the run; `name` is what people answer to."""

    id: str
    kind: str
    step: str
    node: str
    name: Text
    prompt: Text
    schema: bytes
    since: float
    expires_at: float | None


class Write(NamedTuple):
    """The last change of a key by a finished step. `whole` says that it replaces what others wrote."""

    step: str
    node: str
    whole: bool
    wave: int


@dataclass(slots=True)
class Frame:
    """The part of a run that belongs to one (sub-)graph: its state and its current position."""

    path: FramePath
    cells: Cells = field(default_factory=dict)
    active: Annotated[dict[str, Step], Keyed("id")] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waves: int = 0
    last_node: str = ""
    log: dict[str, list[Op]] | None = None
    """For a sub-graph: the changes made so far to keys that it shares, to be handed to the parent."""
    shared: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    writes: dict[str, Write] = field(default_factory=dict)
    """Without a barrier: who wrote each key last, for there steps of different waves can be parallel."""

    @property
    def is_body(self) -> bool:
        """Whether its steps are those that the function of a workflow has called."""
        return self.log is None and self.path != ""


class Refusal(NamedTuple):
    """A command that was refused, and why. `number` is that of its message."""

    number: int
    command: Text
    reason: Text
    by: Text = ""


class Spending(NamedTuple):
    """What was used up. `unpriced` counts the calls whose price is not known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0


class Annotation(NamedTuple):
    """What people said of a run or a checkpoint. A note is when, by whom, and what."""

    notes: tuple[tuple[float, Text, Text], ...] = ()
    tags: tuple[Text, ...] = ()
    keep: bool = False


@dataclass(slots=True)
class RunState:
    """A run as its records tell it."""

    workflow: str = ""
    status: str = RunStatus.RUNNING
    frames: Annotated[dict[str, Frame], Keyed("path")] = field(default_factory=dict)
    pauses: Annotated[dict[str, Pause], Keyed("id")] = field(default_factory=dict)
    config: bytes = b""
    outline: dict[str, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    owner: str = ""
    parent: tuple[str, int] | None = None
    fault: Fault | None = None
    fault_node: str = ""
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    """The last failures that were passed over."""
    steps_done: int = 0
    seconds: float = 0.0
    inbox_seen: int = 0
    refused: int = 0
    """How many commands were refused."""
    refusals: list[Refusal] = field(default_factory=list)
    """The last of them."""
    started_at: float = 0.0
    updated_at: float = 0.0
    saved_seq: int = 0
    """The entry of the newest checkpoint."""
    spending: dict[str, Spending] = field(default_factory=dict)
    """What the steps of each node used up, in the runs that this one was forked from, too."""
    inherited: dict[str, Spending] = field(default_factory=dict)
    """How much of that was used up before the fork."""
    inherited_seconds: float = 0.0
    """How many of its seconds the steps took that were finished before the fork."""
    facts: bytes = b""
    """The environment of the last execution, encoded."""
    annotations: dict[int, Annotation] = field(default_factory=dict)
    """By the entry of the checkpoint, 0 for the run as a whole."""
    reuse: Reusing | None = None
    generation: int = 0
    """How often it was set to another place to do other work from there on."""
    resets: int = 0
    """How often the run was set to an earlier checkpoint, or to one of another run."""
    granted: dict[str, float] = field(default_factory=dict)
    """How much more than a limit somebody allowed, by question; iterations are counted by frame."""

    @property
    def root(self) -> Frame:
        return self.frames[""]

    def step(self, name: str) -> Step:
        """Return a step that is still active."""
        return self.frames[frame_of(name)].active[name]

    def more_iterations(self, frame: str) -> int:
        """Return how many iterations somebody allowed a frame beyond the limit of its graph."""
        return int(self.granted.get(f"{frame}:{MORE_ITERATIONS}", 0))

    def active(self) -> Iterable[Step]:
        """Yield every active step of every frame."""
        for frame in self.frames.values():
            yield from frame.active.values()


Copied = TypeVar("Copied", RunState, Frame, Step)


def once_question(key: str) -> str:
    """Return the name of the question what to do with an interrupted `once` function."""
    return f"{INTERRUPTED}:{key}"


def begun_onces(step: Step) -> tuple[str, ...]:
    """Return the keys of the functions given to `once` in a step that have begun and not ended."""
    return tuple(key.removeprefix(BEGUN) for key in step.notes if key.startswith(BEGUN))


def step_id(frame: str, node: str, visit: int, key: str | None) -> str:
    """Return the name of a step. Item keys are quoted, so that a slash always parts two frames."""
    own = f"{node}#{visit}" if key is None else f"{node}#{visit}[{_quoted(key)}]"
    return f"{frame}/{own}" if frame else own


def _quoted(key: str) -> str:
    if key.isalnum():
        return key
    return "".join(
        quote(character, safe="") if character in _QUOTED or not character.isprintable() else character
        for character in key
    )


def frame_of(step: str) -> str:
    """Return the path of the frame that a step belongs to: `outer#1` for `outer#1/inner#2[a]`."""
    return step.rpartition("/")[0] if "/" in step else ""


def node_of(step: str) -> str:
    """Return the node of a step with the nodes that it is nested in: `outer/inner` for `outer#1/inner#2[a]`."""
    return "/".join(part.rpartition("#")[0] for part in step.split("/"))


def names_within(frame: str, remap: Mapping[str, str]) -> dict[str, str]:
    """Return the renamed nodes of the (sub-)graph that a frame runs, without the names of outer nodes."""
    place = node_of(frame) if frame else ""
    found = ((old.rpartition("/"), new) for old, new in remap.items())
    return {name: new.rpartition("/")[2] for (where, _, name), new in found if where == place}


def renamed_path(path: str, remap: Mapping[str, str]) -> str:
    """Return the path that a frame, or a step in it, has after nodes were renamed."""
    place, parts = "", []
    for part in path.split("/"):
        node, mark, visit = part.rpartition("#")
        place = f"{place}/{node}" if place else node
        parts.append(f"{remap[place].rpartition('/')[2]}{mark}{visit}" if place in remap else part)
    return "/".join(parts)


def copy_run(run: RunState) -> RunState:
    """Return a copy that can be folded on without changing `run`."""
    copy = _copied(run)
    for path, frame in run.frames.items():
        copy.frames[path] = own = _copied(frame)
        own.active = {name: _copied(step) for name, step in frame.active.items()}
        own.log = None if frame.log is None else {key: list(ops) for key, ops in frame.log.items()}
    return copy


def _copied(value: Copied) -> Copied:
    """Return a dataclass's instance with lists and dicts of its own."""
    known = {each.name: getattr(value, each.name) for each in fields(value)}
    return replace(value, **{name: each.copy() for name, each in known.items() if type(each) in (dict, list)})


def at_checkpoint(run: RunState) -> RunState:
    """Return the run as of its checkpoint: nothing under way, no question open or answered, gates closed."""
    run = copy_run(run)
    run.status, run.pauses, run.owner, run.fault, run.fault_node = RunStatus.RUNNING, {}, "", None, ""
    for step in run.active():
        if step.status == DONE or step.id in run.frames:
            continue
        step.status, step.tried, step.crashes, step.retry_at, step.fault = READY, 0, 0, None, None
        step.passed, step.answers = False, {}
    return run


def forget_notes(run: RunState, names: Collection[str]) -> None:
    """Let steps that are not finished, and those inside of them, forget what they noted for their next attempts."""
    for step in run.active():
        is_named = any(step.id == name or step.id.startswith(f"{name}/") for name in names)
        if step.notes and step.status != DONE and (names == EVERY_STEP or is_named):
            step.notes = {key: value for key, value in step.notes.items() if key == ONE_OFF}
