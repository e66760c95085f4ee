"""What happened: the closed union of the records that a run's journal is made of, each declared once.

A record is a named tuple under `record(code)`. The code and the fields, in their order, are what is stored, and the
type of a field says how (`journal/encoding.py`). Codes are never reused and fields never reordered; a new field goes
at the end and has a default. What a record does to a run is written in `journal/fold.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

from holdfast.state.ops import Op

TEXT, FRAME, STEP, CHANGES, NEXT, DERIVED = "text", "frame", "step", "changes", "next", "derived"

Text = Annotated[str, TEXT]
"""Text that somebody wrote. It may hold what MessagePack cannot; that is escaped."""

FramePath = Annotated[str, FRAME]
"""The path of the frame that the changes in the same record belong to."""

StepId = Annotated[str, STEP]
"""The id of a step, in whose frame the changes in the same record are made."""

Ops = Annotated[tuple[Op, ...], CHANGES]
"""Changes of a frame's state. Large values are stored as differences to their predecessors."""

Item = tuple[Op, ...]
"""What overlays the state for one item of a for-each."""


class Keyed(NamedTuple):
    """The mark of a mapping whose keys are a field of its values."""

    field: str


Kind = TypeVar("Kind", bound=type)

RECORDS: dict[int, Any] = {}
"""Every kind of record by its code."""


def record(code: int) -> Callable[[Kind], Kind]:
    """Return a decorator that declares a kind of record and the code that it is stored under."""

    def declare(kind: Kind) -> Kind:
        if code in RECORDS:
            raise ValueError(f"{RECORDS[code].__name__} and {kind.__name__} have the same code {code}")
        RECORDS[code] = kind
        return kind

    return declare


Base = Annotated[Any, DERIVED]
"""The run that a record begins with. It is not stored in the record, but found when the record is read."""


class Target(NamedTuple):
    """A node to run next. `key` and `item` are those of a for-each item; `item` overlays the state."""

    node: str
    key: str | None = None
    item: Item = ()


Next = Annotated[tuple[Target, ...], NEXT]
"""The targets that a frame is about to run in place of those before."""


class Fault(NamedTuple):
    """A failure as data: the exception's type, its text, and the traceback's text."""

    type: Text
    message: Text
    trace: Text = ""

    def __str__(self) -> str:
        if self.message and self.type == "StepInterrupted":
            return self.message
        return f"{self.type}: {self.message}" if self.message else self.type


@record(0)
class RunStarted(NamedTuple):
    """A run began. `outline` describes the graph; `config` is encoded."""

    workflow: str
    ops: Ops
    next: Next
    config: bytes
    outline: dict[str, Any]
    owner: str
    parent: tuple[str, int] | None = None


@record(14)
class Forked(NamedTuple):
    """A run began at a checkpoint of another run.

    It is read through the journal of that run, whose key is `key` and whose entry `seq` has the checksum `chain`.
    """

    parent: str
    seq: int
    run: Base
    """The state of that run at the checkpoint; fold takes a copy."""
    owner: str
    config: bytes
    key: bytes = b""
    chain: bytes = b""
    forget: tuple[str, ...] = ()
    """The steps, `*` for all, whose notes are dropped."""


@record(17)
class Reset(NamedTuple):
    """The run was set to its state at entry `seq`, or to that of another run, `source`; `body` is that, encoded.

    Without a source it is the run itself, whatever its id is now; `key` is the other run's key. With `renew` later
    steps get new idempotency keys.
    """

    source: str
    seq: int
    body: bytes
    run: Base
    """The state of the run at that entry; fold takes a copy."""
    by: Text = ""
    why: Text = ""
    forget: tuple[str, ...] = ()
    """As in `Forked`."""
    key: bytes = b""
    renew: bool = False

    def is_of(self, run: str) -> bool:
        """Return whether the run that this record is of was set to a checkpoint of its own."""
        return not self.source or (not self.key and self.source == run)


class Given(NamedTuple):
    """The result of a step that a function is going to call with `item`: what a person says that it returns."""

    step: str
    item: Item
    ops: Item


@record(18)
class Reusing(NamedTuple):
    """Results of steps that another run, or this one earlier, finished after entry `after` and up to `upto` are reused.

    `key` is that run's; this run itself has neither a `source` nor a key here. With `rerun` all results are reused but
    those of these nodes; without it, those of steps whose code and inputs are the same.
    """

    source: str
    key: bytes
    after: int
    upto: int
    rerun: tuple[str, ...] | None = None
    remap: tuple[tuple[str, str], ...] = ()
    """The new names of renamed nodes of that run."""
    needs: tuple[tuple[bytes, int], ...] = ()
    """By run key (none for this run): the entry after which its journal has to be kept."""
    given: tuple[Given, ...] = ()


@record(26)
class StepCalled(NamedTuple):
    """The function of a workflow called a step; `frame` is the path of the step that runs that function.

    `item` says what the step was called with. A step that is called again starts over. `starts` says that its first
    attempt is about to run, as mostly, so that no other record has to say so.
    """

    frame: str
    node: str
    visit: int
    key: str | None = None
    item: Item = ()
    starts: bool = False


@record(1)
class StepStarted(NamedTuple):
    """The intent: this attempt of this step is about to run."""

    step: str
    attempt: int


@record(13)
class FrameOpened(NamedTuple):
    """A sub-graph's step began: its frame shares `keys` with its parent, gets `ops`, and is about to run `next`.

    `keys` of `("*",)` means every key. Of `reduced` keys, for which both sides have a reducer of the user's,
    the updates are handed to the parent, not what they resulted in.
    """

    step: FramePath
    keys: tuple[str, ...]
    ops: Ops
    next: Next
    reduced: tuple[str, ...] = ()


@record(2)
class StepFinished(NamedTuple):
    """The completion: a step ended well, with these changes and, if it chose, these next nodes.

    A `promoted` step is a sub-graph: its changes are those of its own frame, unless it has `ops`. `skipped` says why
    the step did not run again after an interruption, or that its failure was passed over. `origin` is the run whose
    result was reused.
    """

    step: StepId
    ops: Ops = ()
    goto: tuple[Target, ...] | None = None
    seconds: float = 0.0
    promoted: bool = False
    skipped: Text = ""
    origin: str = ""


@record(3)
class StepFailed(NamedTuple):
    """An attempt failed. It is tried again at `retry_at`; without one the failure is final."""

    step: str
    attempt: int
    fault: Fault
    retry_at: float | None = None
    seconds: float = 0.0


@record(4)
class WaveFinished(NamedTuple):
    """The steps' changes are applied in order, then `ops`; the run is now about to run `next`.

    `steps` are those of the wave; `None` means all of the frame's, with a barrier. `waiting` are the joins that
    have seen some of their predecessors.
    """

    frame: FramePath
    ops: Ops
    next: Next
    waiting: tuple[tuple[str, tuple[str, ...]], ...] = ()
    steps: tuple[str, ...] | None = None


@record(15)
class StepAdvanced(NamedTuple):
    """A lone step of the root graph ended well, and the step of the only node after it, `next`, is about to run.

    The commonest thing that happens, so it has a record of its own.
    """

    step: str
    ops: Ops
    next: str
    seconds: float


@record(5)
class Paused(NamedTuple):
    """A step, or the whole run, waits for an answer, an approval, or a repair."""

    pause: str
    kind: str
    step: str
    node: str
    name: Text = ""
    prompt: Text = ""
    schema: bytes = b""
    expires_at: float | None = None
    since: float = 0.0


@record(6)
class Answered(NamedTuple):
    """A pause got its answer; `value` is encoded."""

    pause: str
    value: bytes
    by: Text = ""


@record(7)
class Noted(NamedTuple):
    """A step remembers something for its next attempts: a memoised result, a deadline."""

    step: str
    key: str
    value: bytes


@record(23)
class OnceStarted(NamedTuple):
    """The intent: a function given to `once` is about to run. `repeated` says that it was in doubt before."""

    step: str
    key: Text
    attempt: int
    repeated: bool = False


@record(24)
class OnceFailed(NamedTuple):
    """A function given to `once` raised, so that it is not in doubt."""

    step: str
    key: Text


@record(8)
class StateEdited(NamedTuple):
    """The state of a frame was changed from outside.

    Changes of the keys in `over` by finished steps of unfinished waves are dropped.
    """

    frame: FramePath
    ops: Ops
    by: Text = ""
    over: tuple[str, ...] = ()


@record(19)
class Migrated(NamedTuple):
    """The state of a frame was brought from one version of its graph to another."""

    frame: FramePath
    since: str
    until: str
    ops: Ops


@record(20)
class Spent(NamedTuple):
    """An attempt of a step used up something, whatever became of it. Without a price `cost` is `None`."""

    step: str
    attempt: int
    model: Text
    input_tokens: int
    output_tokens: int
    cost: float | None
    calls: int = 1


@record(21)
class Described(NamedTuple):
    """The environment of the execution that begins: host, versions, commit; `facts` is encoded."""

    facts: bytes


@record(22)
class RunAnnotated(NamedTuple):
    """Somebody said something of the checkpoint at entry `at`, or, with 0, of the run.

    `keep`, if it is said, is whether retention leaves that checkpoint alone.
    """

    at: int
    text: Text = ""
    add: tuple[Text, ...] = ()
    remove: tuple[Text, ...] = ()
    keep: bool | None = None
    by: Text = ""


@record(16)
class Steered(NamedTuple):
    """What a frame is about to run was changed from outside.

    Steps of `drop` are gone; those of `items` get another overlay of the state; targets of `add` are about to run,
    and if they are `one_off`, nothing follows them. A `replan` says that nothing follows what is left, either.
    """

    frame: str
    drop: tuple[str, ...] = ()
    items: tuple[tuple[str, Item], ...] = ()
    add: tuple[Target, ...] = ()
    one_off: bool = False
    replan: bool = False
    by: Text = ""
    why: Text = ""
    uncounted: bool = False
    """Whether visits of dropped nodes are not counted either."""


@record(9)
class GraphChanged(NamedTuple):
    """The run goes on with another graph. `remap` renames nodes; `config`, if any, is the run's new one, encoded."""

    outline: dict[str, Any]
    remap: tuple[tuple[str, str], ...] = ()
    config: bytes = b""
    by: Text = ""


@record(10)
class Commanded(NamedTuple):
    """A command of the run's inbox was applied, or refused for a reason. `by` and `why` say who sent it and why."""

    number: int
    command: Text
    refused: Text = ""
    by: Text = ""
    why: Text = ""


@record(11)
class Resumed(NamedTuple):
    """An execution of the run began. `approve` passes the gates that it was paused at."""

    owner: str
    approve: bool = False
    config: bytes = b""


@record(25)
class Confirmed(NamedTuple):
    """Somebody confirmed that a run from outside may run here; `digest` is that of what was confirmed."""

    digest: Text
    by: Text
    source: Text
    signed_by: Text = ""


@record(12)
class RunEnded(NamedTuple):
    """The execution ended: the run is completed, failed, cancelled, interrupted or paused."""

    status: str
    fault: Fault | None = None
    node: str = ""


Record = (
    RunStarted
    | Forked
    | Reset
    | Reusing
    | StepCalled
    | StepStarted
    | FrameOpened
    | StepFinished
    | StepFailed
    | WaveFinished
    | StepAdvanced
    | Paused
    | Answered
    | Noted
    | OnceStarted
    | OnceFailed
    | StateEdited
    | Migrated
    | Spent
    | Described
    | RunAnnotated
    | Steered
    | GraphChanged
    | Commanded
    | Resumed
    | Confirmed
    | RunEnded
)
