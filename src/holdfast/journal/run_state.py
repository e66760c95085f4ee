"""A run as its records tell it: frames, steps and pauses."""

from __future__ import annotations

import datetime as dt
import secrets
import struct
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

import ormsgpack

from holdfast.errors import CheckpointNotFound, CorruptJournal
from holdfast.journal.records import Fault, Target
from holdfast.state.ops import Cells, Op
from holdfast.stores.base import Mark
from holdfast.values import RunStatus

READY, RUNNING, IN_DOUBT, RETRYING, WAITING, GATED, FAILED, DONE = (
    "ready",
    "running",
    "in_doubt",
    "retrying",
    "waiting",
    "gated",
    "failed",
    "done",
)
INTERRUPTED = "if_interrupted"
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
    item: tuple[Op, ...] = ()
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
    name: str
    prompt: str
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
    """The part of a run that belongs to one (sub-)graph: its state and its place."""

    path: str
    cells: Cells = field(default_factory=dict)
    active: dict[str, Step] = field(default_factory=dict)
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


class Refusal(NamedTuple):
    """A command that was refused, and why. `number` is that of its message."""

    number: int
    command: str
    reason: str
    by: str = ""


class Spending(NamedTuple):
    """What was used up. `unpriced` counts the calls whose price is not known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0


class Remark(NamedTuple):
    """What people said of a run or a checkpoint. A note is when, by whom, and what."""

    notes: tuple[tuple[float, str, str], ...] = ()
    tags: tuple[str, ...] = ()
    keep: bool = False


class Reuse(NamedTuple):
    """Where results are taken from instead of running steps; see `Reusing`."""

    source: str
    key: bytes
    after: int
    upto: int
    rerun: tuple[str, ...] | None
    remap: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[bytes, int], ...] = ()


@dataclass(slots=True)
class RunState:
    """A run as its records tell it."""

    workflow: str = ""
    status: str = RunStatus.RUNNING
    frames: dict[str, Frame] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    config: bytes = b""
    outline: dict[str, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    driver: str = ""
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
    """Where the run was last driven."""
    remarks: dict[int, Remark] = field(default_factory=dict)
    """By the entry of the checkpoint, 0 for the run as a whole."""
    reuse: Reuse | None = None
    generation: int = 0
    """How often it was set to another place to do other work from there on."""
    resets: int = 0
    """How often the run was set to where it, or another, stood before."""

    @property
    def root(self) -> Frame:
        return self.frames[""]

    def step(self, name: str) -> Step:
        """A step that is still active."""
        return self.frames[frame_of(name)].active[name]

    def active(self) -> Iterable[Step]:
        """Every active step of every frame."""
        for frame in self.frames.values():
            yield from frame.active.values()


def once_question(key: str) -> str:
    """The name under which people answer what to do with an interrupted function given to `once`."""
    return f"{INTERRUPTED}:{key}"


def begun_onces(step: Step) -> tuple[str, ...]:
    """The keys of the functions given to `once` in a step that have begun and not ended."""
    return tuple(key.removeprefix(BEGUN) for key in step.notes if key.startswith(BEGUN))


def step_id(frame: str, node: str, visit: int, key: str | None) -> str:
    """The name of a step. Item keys are quoted, so that a slash always parts two frames."""
    own = f"{node}#{visit}" if key is None else f"{node}#{visit}[{_quoted(key)}]"
    return f"{frame}/{own}" if frame else own


def _quoted(key: str) -> str:
    if key.isalnum():
        return key
    return "".join(
        quote(letter, safe="") if letter in _QUOTED or not letter.isprintable() else letter for letter in key
    )


def frame_of(step: str) -> str:
    """The path of the frame that a step belongs to: `outer#1` for `outer#1/inner#2[a]`."""
    return step.rpartition("/")[0] if "/" in step else ""


def node_of(step: str) -> str:
    """The node of a step with the nodes that it is nested in: `outer/inner` for `outer#1/inner#2[a]`."""
    return "/".join(part.rpartition("#")[0] for part in step.split("/"))


def names_within(frame: str, remap: Mapping[str, str]) -> dict[str, str]:
    """Of renamed nodes such as `outer/old` those of the (sub-)graph that a frame runs, without the outer names."""
    place = node_of(frame) if frame else ""
    found = ((old.rpartition("/"), new) for old, new in remap.items())
    return {name: new.rpartition("/")[2] for (where, _, name), new in found if where == place}


def renamed_path(path: str, remap: Mapping[str, str]) -> str:
    """The path that a frame, or a step in it, has after nodes were renamed."""
    place, parts = "", []
    for part in path.split("/"):
        node, mark, visit = part.rpartition("#")
        place = f"{place}/{node}" if place else node
        parts.append(f"{remap[place].rpartition('/')[2]}{mark}{visit}" if place in remap else part)
    return "/".join(parts)


def copy_run(run: RunState) -> RunState:
    """A copy that can be folded on without changing `run`."""
    frames = {}
    for path, frame in run.frames.items():
        steps = {
            name: replace(step, notes=dict(step.notes), answers=dict(step.answers))
            for name, step in frame.active.items()
        }
        frames[path] = replace(
            frame,
            cells=dict(frame.cells),
            active=steps,
            visits=dict(frame.visits),
            waiting=dict(frame.waiting),
            writes=dict(frame.writes),
            log=None if frame.log is None else {key: list(ops) for key, ops in frame.log.items()},
        )
    return replace(
        run,
        frames=frames,
        pauses=dict(run.pauses),
        path=list(run.path),
        faults=list(run.faults),
        refusals=list(run.refusals),
        spending=dict(run.spending),
        inherited=dict(run.inherited),
        remarks=dict(run.remarks),
    )


def at_checkpoint(run: RunState) -> RunState:
    """The run as it stood at its checkpoint: nothing under way, no question open or answered, gates closed again."""
    run = copy_run(run)
    run.status, run.pauses, run.driver, run.fault, run.fault_node = RunStatus.RUNNING, {}, "", None, ""
    for step in run.active():
        if step.status == DONE or step.id in run.frames:
            continue
        step.status, step.tried, step.crashes, step.retry_at, step.fault = READY, 0, 0, None, None
        step.passed, step.answers = False, {}
    return run


def forget_notes(run: RunState, names: Collection[str]) -> None:
    """Let steps that are not finished, and those inside of them, forget what they noted for their next attempts."""
    for step in run.active():
        if step.notes and step.status != DONE and (names == EVERY_STEP or _is_within(step.id, names)):
            step.notes = {key: value for key, value in step.notes.items() if key == ONE_OFF}


def _is_within(step: str, names: Collection[str]) -> bool:
    return any(step == name or step.startswith(f"{name}/") for name in names)


# Checkpoint ids and marks: naming a position in a run's journal, and its plain facts.


_LOW = (1 << 56) - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position in a run's journal where the run can be resumed, inspected, forked.

    `wave` counts the completed waves of the run, or, inside a sub-graph, of that: `frame` names it. `nodes` have just
    finished, `next` are about to run; `size` is what this checkpoint added to the store, in bytes.
    """

    id: str
    seq: int
    wave: int
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    created_at: dt.datetime
    size: int
    frame: str = ""

    @property
    def run_wave(self) -> int | None:
        """The wave of the run itself, which `RUN@N` counts; `None` inside a sub-graph."""
        return None if self.frame else self.wave


def new_run_key() -> bytes:
    """Eight random bytes that mark a run's checkpoint ids as its own; the top bit is free for SQL."""
    return (secrets.randbits(63)).to_bytes(8, "big")


def checkpoint_id(key: bytes, seq: int) -> str:
    """The id of the checkpoint at `seq`: a version 4 UUID, so that looking it up needs no index.

    It holds 66 bits that only the run has, and 56 bits of the position, scrambled with them.
    """
    run = int.from_bytes(key, "big")
    value = (run << 58 | ((seq * 0x9E3779B97F4A7 + run) & _LOW) << 2) & ((1 << 122) - 1)
    high, middle, low = value >> 74, value >> 62 & 0xFFF, value & ((1 << 62) - 1)
    return str(uuid.UUID(int=high << 80 | 0x4 << 76 | middle << 64 | 0b10 << 62 | low))


_INVERSE = pow(0x9E3779B97F4A7, -1, 1 << 56)


def locate_checkpoint(ident: str) -> tuple[bytes, int]:
    """The run key and the position that a checkpoint id names."""
    try:
        number = uuid.UUID(ident).int
    except ValueError:
        raise CheckpointNotFound(f"checkpoint not found: {ident} (a checkpoint id is a UUID)") from None
    value = number >> 80 << 74 | (number >> 64 & 0xFFF) << 62 | number & ((1 << 62) - 1)
    run = value >> 58
    seq = ((value >> 2 & _LOW) - run) * _INVERSE & _LOW
    return run.to_bytes(8, "big"), seq


def is_checkpoint_id(text: str) -> bool:
    """Whether `text` has the form of a checkpoint id."""
    try:
        return len(text) == 36 and uuid.UUID(text).version == 4
    except ValueError:
        return False


def encode_mark(wave: int, nodes: list[str], next_: list[str], frame: str) -> bytes:
    """The plain facts of a checkpoint, as stored beside its entry."""
    return ormsgpack.packb([wave, nodes, next_, frame])


_LIST_OF_FOUR, _LIST_OF_SIX, _LIST_OF_SEVEN = b"\x94", b"\x96", b"\x97"
_SUM, _COUNT = struct.Struct(">BHBH"), struct.Struct(">BI")
_NUMBER, _LONG_NUMBER = 0xCD, 0xCE
_PLACE = struct.Struct(">8sQd")


def sealed_mark(mark: bytes, key: bytes, seq: int, at: float, resets: int | None = None) -> bytes:
    """A mark with a checksum for its place as two more numbers: whoever lists checkpoints sees no more of an entry.

    A mark that was sealed for another place is sealed anew. The mark of a run that was ever reset also says how often,
    as a last number; if that is not given, it is what the mark said before.
    """
    if mark[:1] != _LIST_OF_FOUR:
        resets = times_reset(mark) if resets is None else resets
        mark = plain_mark(mark)
    own = mark[1:]
    if resets:
        count = _COUNT.pack(_LONG_NUMBER, resets)
        high, low = divmod(_sum(own + count, key, seq, at), 1 << 16)
        return b"".join((_LIST_OF_SEVEN, own, _SUM.pack(_NUMBER, high, _NUMBER, low), count))
    high, low = divmod(_sum(own, key, seq, at), 1 << 16)
    return b"".join((_LIST_OF_SIX, own, _SUM.pack(_NUMBER, high, _NUMBER, low)))


def times_reset(mark: bytes) -> int:
    """How often the run had been reset when this mark was made."""
    return int(ormsgpack.unpackb(mark)[6]) if mark[:1] == _LIST_OF_SEVEN else 0


def _sum(own: bytes, key: bytes, seq: int, at: float) -> int:
    return crc32(own, crc32(_PLACE.pack(key, seq, at)))


def plain_mark(mark: bytes) -> bytes:
    """A mark as `encode_mark` made it, without a checksum."""
    return ormsgpack.packb(ormsgpack.unpackb(mark)[:4])


def _facts(key: bytes, mark: Mark) -> tuple[int, list[str], list[str], str]:
    """What a mark says; raises `ValueError` or `TypeError` if it is not what was written."""
    wave, nodes, next_, frame, *seal = ormsgpack.unpackb(mark.mark)
    if seal:
        high, low, *count = seal
        if _sum(_sealed(mark.mark), key, mark.seq, mark.at) != high << 16 | low or len(count) > 1:
            raise ValueError("its checksum does not match")
    elif ormsgpack.packb([wave, nodes, next_, frame]) != mark.mark:
        raise ValueError("something follows it")
    if (
        not isinstance(wave, int)
        or not isinstance(frame, str)
        or not (_are_texts(nodes) and _are_texts(next_))
    ):
        raise TypeError("it has other parts than a mark")
    return wave, nodes, next_, frame


def _sealed(mark: bytes) -> bytes:
    """The part of a mark that its checksum is for."""
    if mark[:1] != _LIST_OF_SEVEN:
        return mark[1 : -_SUM.size]
    return mark[1 : -_SUM.size - _COUNT.size] + mark[-_COUNT.size :]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def read_mark(key: bytes, mark: Mark, run: str) -> Checkpoint:
    """A checkpoint from what the store lists. One of the first versions has a mark without a checksum."""
    try:
        wave, nodes, next_, frame = _facts(key, mark)
        at = dt.datetime.fromtimestamp(mark.at, dt.UTC)
    except (ValueError, TypeError, OverflowError, OSError, struct.error):
        raise CorruptJournal(
            f"the checkpoint at {mark.seq} of run {run!r} has a damaged mark", run=run, seq=mark.seq
        ) from None
    return Checkpoint(
        checkpoint_id(key, mark.seq), mark.seq, wave, tuple(nodes), tuple(next_), at, mark.size, frame
    )
