"""A run's journal as dated events in words, read once or followed while the run goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from holdfast.errors import CodecError, CorruptJournal
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.encoding import Track
from holdfast.journal.fold import apply, parts_of
from holdfast.journal.journal import Journal, break_at, genesis
from holdfast.journal.records import (
    Answered,
    Commanded,
    Confirmed,
    Described,
    Fault,
    Forked,
    FrameOpened,
    GraphChanged,
    Migrated,
    Noted,
    OnceFailed,
    OnceStarted,
    Paused,
    Record,
    Reset,
    Resumed,
    Reusing,
    RunAnnotated,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepAdvanced,
    StepCalled,
    StepFailed,
    StepFinished,
    StepStarted,
    WaveFinished,
)
from holdfast.journal.run_state import ABOUT_DOUBTS, SECRETS_USED, RunState
from holdfast.journal.sealing import is_sealed
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.stores.base import Entry, StoredCheckpoint
from holdfast.values import START, RunStatus, readable_step
from holdfast.views.plain import CODEC, TOO_BIG_TO_PREVIEW, View, ViewCodec, iso, plain, preview_raw, when

# The environment of a run in words: host, versions, commit, and what of it changed.


_KNOWN = ("host", "platform", "python", "holdfast", "packages", "git")
_SHORT = 10


def read_environment(raw: bytes, codec: Codec = CODEC) -> dict[str, Any]:
    """Return a stored environment as plain data; empty if there is none, or if it cannot be read."""
    if not raw:
        return {}
    try:
        found = plain(codec.decode(raw))
    except CodecError:
        return {}
    return found if isinstance(found, dict) else {}


def host_text(facts: Mapping[str, Any]) -> str:
    """The host and what runs there: `box, Linux 6.1 x86_64, Python 3.12.1, holdfast 1.0`."""
    python, own = facts.get("python"), facts.get("holdfast")
    parts = [facts.get("host"), facts.get("platform"), f"Python {python}" if python else "", ""]
    parts[3] = f"holdfast {own}" if own and own != "unknown" else ""
    return ", ".join(str(part) for part in parts if part)


def commit_text(facts: Mapping[str, Any]) -> str:
    """The commit of the code: `commit 1a2b3c4d5e on main, with changes`."""
    git = _mapping(facts.get("git"))
    if not git.get("commit"):
        return ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    changed = {"True": ", with changes", "False": ", unchanged"}.get(str(git.get("dirty")), "")
    return f"commit {str(git['commit'])[:_SHORT]}{branch}{changed}"


def packages_text(facts: Mapping[str, Any]) -> str:
    """The libraries, and what the compiled graph added."""
    libraries = [f"{name} {version}" for name, version in _mapping(facts.get("packages")).items()]
    own = [f"{name}: {value}" for name, value in facts.items() if name not in _KNOWN]
    return ", ".join([*libraries, *own])


def environment_text(facts: Mapping[str, Any]) -> str:
    """All of it on one line."""
    return ", ".join(part for part in (host_text(facts), commit_text(facts), packages_text(facts)) if part)


def environment_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is different in another place, or of other code: `another host: box, was: tower`."""
    found = []
    for name, value in _flat(after).items():
        known = _flat(before).get(name)
        if known is None and name == "changes":
            if value == "yes":
                found.append("the code has changes that are in no commit")
        elif known != value:
            found.append(f"another {name}: {value}" + (f", was: {known}" if known else ""))
    gone = [name for name in _flat(before) if name not in _flat(after) and name != "changes"]
    return [*found, *(f"no {name} any more" for name in gone)]


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    git = _mapping(facts.get("git"))
    found = {name: str(facts[name]) for name in ("host", "platform", "python", "holdfast") if name in facts}
    if git.get("commit"):
        found |= {"commit": str(git["commit"])[:_SHORT], "branch": str(git.get("branch", ""))}
    if git.get("dirty") is not None:
        found["changes"] = "yes" if git["dirty"] else "no"
    libraries = {str(name): str(version) for name, version in _mapping(facts.get("packages")).items()}
    own = {name: str(value) for name, value in facts.items() if name not in _KNOWN}
    return {**found, **libraries, **own}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


ENDINGS = {
    RunStatus.COMPLETED: "graph.complete",
    RunStatus.FAILED: "graph.fail",
    RunStatus.PAUSED: "graph.pause",
    RunStatus.CANCELLED: "graph.cancel",
    RunStatus.INTERRUPTED: "graph.cancel",
    RunStatus.QUEUED: "graph.queue",
}


@dataclass(frozen=True, slots=True)
class TimelineEvent(View):
    """One thing that the journal says happened. `type` is that of the matching event, where there is one."""

    seq: int
    at: dt.datetime
    type: str
    step: str
    """The step's id, `outer#1/node#2[item]`; empty for what concerns the whole run."""
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def timeline(journal: Journal, run_id: str, after_seq: int = 0) -> Iterator[TimelineEvent]:
    """Yield the events of a run after entry `after_seq`, in order, as far as they are stored now."""
    return Timeline(journal, run_id, after_seq).read()


class Timeline:
    """A position in a run's journal. `read` yields what has been stored since, so a run can be followed.

    Pruned entries are left out; where entries are pruned meanwhile, reading goes on with what is left.
    """

    def __init__(self, journal: Journal, run_id: str, after_seq: int = 0) -> None:
        self._journal, self._info = journal, journal.info(run_id)
        self.seq, self._chain, self._sealed = 0, genesis(run_id, self._info.key), False
        """`seq` is the entry that was read last."""
        self._run, self._track = RunState(), Track()
        first = next(iter(journal.store.read(run_id)), None)
        start = max(after_seq, first.seq if first is not None and first.seq > 1 else 0)
        if start:
            self._jump(start)

    def _jump(self, seq: int) -> None:
        loaded = self._journal.load(self._info, CODEC, seq)
        self.seq, self._chain, self._run, self._track = loaded.seq, loaded.chain, loaded.run, loaded.track
        self._sealed = loaded.sealed

    @property
    def status(self) -> RunStatus:
        """The run's status at that entry."""
        return RunStatus(self._run.status)

    def read(self) -> Iterator[TimelineEvent]:
        """Yield the events since the last read."""
        for entry in self._journal.store.read(self._info.run, self.seq):
            if entry.seq != self.seq + 1:
                self._jump(entry.seq)
                continue
            yield from self._taken(entry)

    def _taken(self, entry: Entry) -> list[TimelineEvent]:
        """Take in a whole entry before any of it is yielded, so that stopping half-way loses no position."""
        run = self._info.run
        if broken := break_at(self._chain, self._sealed, entry):
            raise CorruptJournal(f"run {run!r}: {broken}", run=run, seq=entry.seq)
        events, codec = list[TimelineEvent](), ViewCodec()
        for record in self._journal.records(self._info, entry, self._track, CODEC):
            for part in parts_of(record):
                found = tell(part, codec, run, self._run)
                events += [TimelineEvent(entry.seq, when(entry.at), *found)] if found is not None else []
            apply(self._run, record, entry.at)
        if entry.mark is not None:
            saved = decode_checkpoint(self._info.key, StoredCheckpoint.of(entry), run)
            text = f"checkpoint {saved.id}, next: {', '.join(saved.next) or 'nothing'}"
            data = {"checkpoint_id": saved.id, **_fields(saved, "wave", "nodes", "next", "size")}
            events.append(TimelineEvent(entry.seq, saved.created_at, "checkpoint.save", "", text, data))
        self.seq, self._chain, self._sealed = entry.seq, entry.chain, is_sealed(entry.body)
        return events


Telling = tuple[str, str, str, dict[str, Any]]
"""The type, the step, the text and the data of an event."""


def tell(record: Record, codec: Codec, run_id: str, run: RunState | None = None) -> Telling | None:
    """Return what a record of a run tells people; `None` if nothing. `run` is the run as it was before the record."""
    if isinstance(record, StepStarted | StepFinished | StepFailed | FrameOpened):
        is_start = record.step.rpartition("/")[2].startswith(START)
        return None if is_start else _tell_step(record, codec)
    match record:
        case RunStarted():
            data = {"workflow": record.workflow, "input": _values(record.ops, codec)}
            return "graph.start", "", f"run of {record.workflow} started", data
        case Forked():
            text = f"run forked from {record.parent} at entry {record.seq}"
            return "graph.start", "", text, _fields(record, "parent", "seq")
        case Resumed():
            return "checkpoint.resume", "", "run resumed", _fields(record, "approve")
        case Paused():
            text = f"{readable_step(record.step)} waits: {record.prompt}"
            return "pause", record.step, text, _fields(record, "pause", "kind", "name", "prompt")
        case Answered():
            return _tell_answer(record, run, codec)
        case Described():
            return _tell_environment(record, {} if run is None else read_environment(run.facts, codec), codec)
        case Spent():
            return _tell_spent(record)
        case RunEnded():
            return _tell_end(record)
        case OnceStarted(repeated=True):
            text = f"once {record.key!r} of {record.step} was in doubt, and runs again"
            data = {**_fields(record, "step", "key"), "decision": "rerun"}
            return "once.in_doubt", record.step, text, data
        case Noted(key=key) if key == SECRETS_USED:
            return _tell_secrets(record, codec)
        case StepCalled() | WaveFinished() | Noted() | OnceStarted() | OnceFailed() | StepAdvanced():
            return None
    return _tell_intervention(record, codec, run_id)


def _tell_secrets(record: Noted, codec: Codec) -> Telling:
    found = codec.decode(record.value)
    names = [str(name)[:100] for name in found[:100]] if isinstance(found, (list, tuple)) else []
    text = f"{readable_step(record.step)} uses secrets: {', '.join(names)}"
    return "secrets.use", record.step, text, {"names": names}


def _tell_step(record: StepStarted | StepFinished | StepFailed | FrameOpened, codec: Codec) -> Telling:
    step, name = record.step, readable_step(record.step)
    match record:
        case StepStarted(attempt=attempt):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            return "node.start", step, f"{name} started{again}", {"attempt": attempt}
        case FrameOpened():
            return "node.start", step, f"{name} started", {"attempt": 1, "keys": record.keys}
        case StepFinished(skipped=skipped) if skipped:
            return "node.skip", step, f"{name} skipped: {skipped}", {"reason": skipped}
        case StepFinished(origin=origin) if origin:
            data: dict[str, Any] = {"origin": origin, "update": _values(record.ops, codec)}
            return "node.reuse", step, f"{name} reused from {origin}", data
        case StepFinished(seconds=seconds):
            data = {"seconds": seconds, "update": _values(record.ops, codec)}
            return "node.complete", step, f"{name} done in {seconds:.3f} s", data
        case StepFailed(attempt=attempt, fault=fault):
            data = {**_fields(record, "attempt", "seconds"), **_fault(fault)}
            if record.retry_at is None:
                return "node.error", step, f"{name} failed (attempt {attempt}): {fault}", data
            again = iso(when(record.retry_at)) or ""
            text = f"{name} failed (attempt {attempt}), tried again at {again}: {fault}"
            return "node.retry", step, text, {**data, "retry_at": again}
    assert_never(record)


def _tell_answer(record: Answered, run: RunState | None, codec: Codec) -> Telling:
    pause = run.pauses.get(record.pause) if run is not None else None
    name, kind, step = (pause.name, pause.kind, pause.step) if pause else (record.pause, "ask", "")
    answer, shown = _value(record.value, codec), preview_raw(record.value, codec)
    if kind in ABOUT_DOUBTS:
        answer = shown = record.value.decode("utf-8", "replace")
    data = {"pause": record.pause, "name": name, "answer": answer, "by": record.by}
    return "answer", step, f"{name} was answered{_by(record)}: {shown}", data


def _tell_environment(record: Described, before: dict[str, Any], codec: Codec) -> Telling:
    """Return where a run is executed now; if it is known where it was before, only what is different."""
    facts = read_environment(record.facts, codec)
    changes = environment_changes(before, facts) if before else []
    text = "; ".join(changes) if before else f"executed on {environment_text(facts)}"
    return "run.describe", "", text or "executed on the same", {"facts": facts, "changes": changes}


def _tell_spent(record: Spent) -> Telling:
    tokens = f"{record.input_tokens} tokens in, {record.output_tokens} out"
    what = [record.model, tokens if record.input_tokens or record.output_tokens else ""]
    what.append("of unknown price" if record.cost is None else f"${record.cost:.6g}")
    text = f"{readable_step(record.step)} spent: {', '.join(part for part in what if part)}"
    return "node.spend", record.step, text, record._asdict()


def _tell_end(record: RunEnded) -> Telling:
    where = f" at {record.node}" if record.node else ""
    why = where or (f": {record.fault}" if record.fault is not None else "")
    data = {"status": str(record.status), "node": record.node}
    if record.fault is not None:
        data |= _fault(record.fault)
    return ENDINGS[RunStatus(record.status)], "", f"run {record.status}{why}", data


def _tell_intervention(record: Any, codec: Codec, run_id: str) -> Telling:
    """Return what was done to a run from outside, or on a resume."""
    by, why = _by(record), f": {record.why}" if getattr(record, "why", "") else ""
    match record:
        case StateEdited():
            keys = ", ".join(dict.fromkeys(op.key for op in record.ops))
            data = {"update": _values(record.ops, codec), "by": record.by}
            return "state.update", "", f"state changed from outside{by}: {keys}", data
        case Steered():
            return _tell_plan(record, codec)
        case Reset():
            text = f"rolled back to entry {record.seq}{by}{why}"
            if not record.is_of(run_id):
                text = f"the result of {record.source} (entry {record.seq}) was promoted{by}{why}"
            data = {"source": record.source or run_id, **_fields(record, "seq", "by", "why")}
            return "state.reset", "", text, data
        case Reusing():
            which = "that are the same" if record.rerun is None else f"but not {', '.join(record.rerun)}"
            text = f"finished steps of {record.source or 'its own'} are reused, {which}"
            text += "".join(f"; the result of {readable_step(each.step)} is given" for each in record.given)
            return "steps.reuse", "", text, {"seq": record.upto, **_fields(record, "source", "rerun")}
        case Migrated():
            data = {"from": record.since, "to": record.until, "update": _values(record.ops, codec)}
            whose = f"state of {record.frame}" if record.frame else "state"
            versions = f"{record.since or '(none)'} to {record.until or '(none)'}"
            return "state.migrate", "", f"{whose} migrated from version {versions}", data
        case RunAnnotated():
            return _tell_annotation(record)
        case GraphChanged():
            data = {"remap": dict(record.remap), "by": record.by}
            return "graph.changed", "", f"the workflow changed{by}", data
        case Confirmed():
            text = f"it came from outside ({record.source}), and was confirmed{by}"
            return "run.confirm", "", text, record._asdict()
        case Commanded():
            refused = f"; refused: {record.refused}" if record.refused else ""
            text = f"{record.command} was asked for{by}{why}{refused}"
            return "command", "", text, _fields(record, "command", "refused", "by", "why")
    raise AssertionError(record)


def _tell_annotation(record: RunAnnotated) -> Telling:
    what = [f"note: {record.text}"] if record.text else []
    what += [f"tagged {tag}" for tag in record.add] + [f"no longer tagged {tag}" for tag in record.remove]
    if record.keep is not None:
        what.append("kept for good" if record.keep else "no longer kept for good")
    where = f"checkpoint at entry {record.at}" if record.at else "run"
    return "run.annotate", "", f"{where}{_by(record)}: {'; '.join(what)}", record._asdict()


def _tell_plan(record: Steered, codec: Codec) -> Telling:
    added = [target.node if target.key is None else f"{target.node}[{target.key}]" for target in record.add]
    changed = [name for name, _ in record.items]
    parts = {"dropped": list(record.drop), "added": added, "other arguments for": changed}
    text = "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)
    data = {
        **_fields(record, "frame", "replan", "by", "why"),
        "drop": list(record.drop),
        "add": added,
        "items": {name: _values(item, codec) for name, item in record.items},
    }
    found = text or "nothing more is to come"
    return "plan.change", "", f"plan changed{_by(record)}: {found}", data


def _by(record: Any) -> str:
    return f" by {record.by}" if getattr(record, "by", "") else ""


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _fault(fault: Fault) -> dict[str, Any]:
    return {"error": str(fault), "error_type": fault.type}


def _values(ops: tuple[Op, ...], codec: Codec) -> dict[str, Any]:
    """Return what an update sets, as plain data; of a very large value only its size."""
    return {op.key: _value(op.raw, codec) for op in ops if op.kind != "drop"}


def _value(raw: bytes, codec: Codec) -> Any:
    if len(raw) > TOO_BIG_TO_PREVIEW:
        return preview_raw(raw, codec)
    try:
        return plain(codec.decode(raw))
    except CodecError:
        return preview_raw(raw, codec)
