"""What happened: the closed union of frozen records that a run's journal is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.state.ops import Op

Ops = tuple[Op, ...]


class Target(NamedTuple):
    """A node to run next. `key` and `item` are those of a for-each item; `item` overlays the state."""

    node: str
    key: str | None = None
    item: Ops = ()


class Fault(NamedTuple):
    """A failure as data: the exception's type, its text, and the traceback's text."""

    type: str
    message: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class RunStarted(NamedTuple):
    """A run began. `outline` describes the graph; `config` is encoded."""

    workflow: str
    ops: Ops
    next: tuple[Target, ...]
    config: bytes
    outline: dict[str, Any]
    driver: str
    parent: tuple[str, int] | None = None


class Forked(NamedTuple):
    """A run began where another stood at one of its checkpoints.

    It is read through the journal of that run, whose key is `key` and whose entry `seq` has the checksum `chain`.
    Journals of earlier versions hold that run, encoded, in `body` instead.
    """

    parent: str
    seq: int
    body: bytes
    run: Any
    """The run as it stood there; whoever folds it takes a copy."""
    driver: str
    config: bytes
    key: bytes = b""
    chain: bytes = b""
    forget: tuple[str, ...] = ()
    """The steps, `*` for all, that do not remember what they noted before."""


class Reset(NamedTuple):
    """The run now stands where it stood at its entry `seq`, or where another, `source`, did. `body` is that, encoded.

    Without a source it is the run itself, whatever it is called by now; `key` is the other's. With `renew` what it
    does from there on is other work than what it did before, for whoever tells that by its idempotency keys.
    """

    source: str
    seq: int
    body: bytes
    run: Any
    """The run as it stood there; whoever folds it takes a copy."""
    by: str = ""
    why: str = ""
    forget: tuple[str, ...] = ()
    """As in `Forked`."""
    key: bytes = b""
    renew: bool = False

    def is_of(self, run: str) -> bool:
        """Whether a run, which this is a record of, was set to a place of its own."""
        return not self.source or (not self.key and self.source == run)


class Reusing(NamedTuple):
    """Steps that another run, or this one earlier, finished after entry `after` and up to `upto` are not run again.

    `key` is that run's; this run itself, whatever it is called by now, has neither a `source` nor a key here. With
    `rerun` this holds for all but the steps of these nodes; without it, for those whose code and whose inputs are the
    same.
    """

    source: str
    key: bytes
    after: int
    upto: int
    rerun: tuple[str, ...] | None = None
    remap: tuple[tuple[str, str], ...] = ()
    """What nodes of that run are called by now, if they were renamed."""
    needs: tuple[tuple[bytes, int], ...] = ()
    """The entries after which the journals of runs, by key, hold what is to be kept; this one has no key here."""


class StepStarted(NamedTuple):
    """The intent: this attempt of this step is about to run."""

    step: str
    attempt: int


class FrameOpened(NamedTuple):
    """A sub-graph's step began: its frame shares `keys` with its parent, gets `ops`, and is about to run `next`.

    `keys` of `("*",)` means every key. Of `reduced` keys, for which both sides have a reducer of the user's,
    the updates are handed to the parent, not what they resulted in.
    """

    step: str
    keys: tuple[str, ...]
    ops: Ops
    next: tuple[Target, ...]
    reduced: tuple[str, ...] = ()


class StepFinished(NamedTuple):
    """The completion: a step ended well, with these changes and, if it chose, these next nodes.

    A `promoted` step is a sub-graph: its changes are those of its own frame. `skipped` says that
    the step did not run again after an interruption, or failed and was passed over. `origin` is the run whose
    result it was given, if it did not run at all.
    """

    step: str
    ops: Ops = ()
    goto: tuple[Target, ...] | None = None
    seconds: float = 0.0
    promoted: bool = False
    skipped: str = ""
    origin: str = ""


class StepFailed(NamedTuple):
    """An attempt failed. It is tried again at `retry_at`; without one the failure is final."""

    step: str
    attempt: int
    fault: Fault
    retry_at: float | None = None
    seconds: float = 0.0


class WaveFinished(NamedTuple):
    """The steps' changes are applied in order, then `ops`; the run is now about to run `next`.

    `steps` are those it takes in, `None` meaning all of the frame's, with a barrier. `waiting` are the joins that
    have seen some of their predecessors.
    """

    frame: str
    ops: Ops
    next: tuple[Target, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...] = ()
    steps: tuple[str, ...] | None = None


class MovedOn(NamedTuple):
    """A lone step of the root graph ended well, and the step of the only node after it, `next`, is about to run.

    The commonest thing that happens, so it has a record of its own; `parts` says what it stands for.
    """

    step: str
    ops: Ops
    next: str
    seconds: float

    def parts(self) -> tuple[StepFinished, WaveFinished, StepStarted]:
        """The three records that this one stands for, if no join is waited for."""
        finished = StepFinished(self.step, self.ops, None, self.seconds)
        node = self.next.rpartition("#")[0]
        return finished, WaveFinished("", (), (Target(node),)), StepStarted(self.next, 1)


class Paused(NamedTuple):
    """A step, or the whole run, waits for an answer, an approval, or a repair."""

    pause: str
    kind: str
    step: str
    node: str
    name: str = ""
    prompt: str = ""
    schema: bytes = b""
    expires_at: float | None = None
    since: float = 0.0


class Answered(NamedTuple):
    """A pause got its answer; `value` is encoded."""

    pause: str
    value: bytes
    by: str = ""


class Noted(NamedTuple):
    """A step remembers something for its next attempts: a memoised result, a deadline."""

    step: str
    key: str
    value: bytes


class OnceStarted(NamedTuple):
    """The intent: a function given to `once` is about to run. `repeated` says that it was in doubt before."""

    step: str
    key: str
    attempt: int
    repeated: bool = False


class OnceFailed(NamedTuple):
    """A function given to `once` raised, so that it is not in doubt."""

    step: str
    key: str


class StateEdited(NamedTuple):
    """The state of a frame was changed from outside.

    Of the keys in `over` it is forgotten what steps that are finished, but whose wave is not, did to them.
    """

    frame: str
    ops: Ops
    by: str = ""
    over: tuple[str, ...] = ()


class Migrated(NamedTuple):
    """The state of a frame was brought from one version of its graph to another."""

    frame: str
    since: str
    until: str
    ops: Ops


class Spent(NamedTuple):
    """An attempt of a step used up something, whatever became of it. Without a price `cost` is `None`."""

    step: str
    attempt: int
    model: str
    input_tokens: int
    output_tokens: int
    cost: float | None
    calls: int = 1


class Described(NamedTuple):
    """Where the run is driven from now on: host, versions, commit; `facts` is encoded."""

    facts: bytes


class Remarked(NamedTuple):
    """Somebody said something of the checkpoint at entry `at`, or, with 0, of the run.

    `keep`, if it is said, is whether retention leaves that checkpoint alone.
    """

    at: int
    text: str = ""
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    keep: bool | None = None
    by: str = ""


class Steered(NamedTuple):
    """What a frame is about to run was changed from outside.

    Steps of `drop` are gone; those of `items` get another overlay of the state; targets of `add` are about to run,
    and if they are `one_off`, nothing follows them. A `replan` says that nothing follows what is left, either.
    """

    frame: str
    drop: tuple[str, ...] = ()
    items: tuple[tuple[str, Ops], ...] = ()
    add: tuple[Target, ...] = ()
    one_off: bool = False
    replan: bool = False
    by: str = ""
    why: str = ""
    anew: bool = False
    """Whether it is as if the run had never come to what is gone."""


class GraphChanged(NamedTuple):
    """The run goes on with another graph. `remap` renames nodes; `config`, if any, is the run's new one, encoded."""

    outline: dict[str, Any]
    remap: tuple[tuple[str, str], ...] = ()
    config: bytes = b""
    by: str = ""


class Commanded(NamedTuple):
    """A message of the run's inbox was taken in, or refused for a reason. `by` and `why` are who sent it and why."""

    number: int
    command: str
    refused: str = ""
    by: str = ""
    why: str = ""


class Resumed(NamedTuple):
    """A driver took the run up. `approve` passes the gates that it was paused at."""

    driver: str
    approve: bool = False
    config: bytes = b""


class Confirmed(NamedTuple):
    """Somebody confirmed that a run from outside may run here; `digest` is that of what was confirmed."""

    digest: str
    by: str
    source: str
    signed_by: str = ""


class RunEnded(NamedTuple):
    """The driver stopped: the run is completed, failed, cancelled, interrupted or paused."""

    status: str
    fault: Fault | None = None
    node: str = ""


Record = (
    RunStarted
    | Forked
    | Reset
    | Reusing
    | StepStarted
    | FrameOpened
    | StepFinished
    | StepFailed
    | WaveFinished
    | MovedOn
    | Paused
    | Answered
    | Noted
    | OnceStarted
    | OnceFailed
    | StateEdited
    | Migrated
    | Spent
    | Described
    | Remarked
    | Steered
    | GraphChanged
    | Commanded
    | Resumed
    | Confirmed
    | RunEnded
)
