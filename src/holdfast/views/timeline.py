"""A run's journal as dated moments, read once or followed while the run goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from holdfast.errors import CodecError, CorruptJournal
from holdfast.journal.checkpoint_ids import read_mark
from holdfast.journal.encoding import Track
from holdfast.journal.fold import apply
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
    MovedOn,
    Noted,
    OnceFailed,
    OnceStarted,
    Paused,
    Record,
    Remarked,
    Reset,
    Resumed,
    Reusing,
    RunEnded,
    RunStarted,
    Spent,
    StateEdited,
    Steered,
    StepFailed,
    StepFinished,
    StepStarted,
    WaveFinished,
)
from holdfast.journal.run_state import ABOUT_DOUBTS, RunState
from holdfast.journal.sealing import is_sealed
from holdfast.state.codec import Codec
from holdfast.state.ops import Op
from holdfast.stores.base import Entry, Mark
from holdfast.values import START, RunStatus, readable_step
from holdfast.views.plain import CODEC, TOO_BIG_TO_PREVIEW, View, ViewCodec, iso, plain, preview_raw, when

# Where a run was driven, in words: host, versions, commit, and what of it changed.


_KNOWN = ("host", "platform", "python", "holdfast", "packages", "git")
_SHORT = 10


def read_facts(raw: bytes, codec: Codec = CODEC) -> dict[str, Any]:
    """Facts as a journal holds them, as plain data; nothing if there are none, or they cannot be read."""
    if not raw:
        return {}
    try:
        found = plain(codec.decode(raw))
    except CodecError:
        return {}
    return found if isinstance(found, dict) else {}


def place_told(facts: Mapping[str, Any]) -> str:
    """The host and what runs there: `box, Linux 6.1 x86_64, Python 3.12.1, holdfast 1.0`."""
    python, own = facts.get("python"), facts.get("holdfast")
    parts = [facts.get("host"), facts.get("platform"), f"Python {python}" if python else "", ""]
    parts[3] = f"holdfast {own}" if own and own != "unknown" else ""
    return ", ".join(str(part) for part in parts if part)


def code_told(facts: Mapping[str, Any]) -> str:
    """The commit of the code: `commit 1a2b3c4d5e on main, with changes`."""
    git = _mapping(facts.get("git"))
    if not git.get("commit"):
        return ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    changed = {"True": ", with changes", "False": ", unchanged"}.get(str(git.get("dirty")), "")
    return f"commit {str(git['commit'])[:_SHORT]}{branch}{changed}"


def others_told(facts: Mapping[str, Any]) -> str:
    """The libraries, and what whoever compiled the graph added."""
    libraries = [f"{name} {version}" for name, version in _mapping(facts.get("packages")).items()]
    own = [f"{name}: {value}" for name, value in facts.items() if name not in _KNOWN]
    return ", ".join([*libraries, *own])


def facts_told(facts: Mapping[str, Any]) -> str:
    """All of it on one line."""
    return ", ".join(part for part in (place_told(facts), code_told(facts), others_told(facts)) if part)


def changes_told(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is different in another place, or of other code: `another host: box, was: tower`."""
    told = []
    for name, value in _flat(after).items():
        known = _flat(before).get(name)
        if known is None and name == "changes":
            if value == "yes":
                told.append("the code has changes that are in no commit")
        elif known != value:
            told.append(f"another {name}: {value}" + (f", was: {known}" if known else ""))
    gone = [name for name in _flat(before) if name not in _flat(after) and name != "changes"]
    return [*told, *(f"no {name} any more" for name in gone)]


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
class Moment(View):
    """One thing that the journal says happened. `type` is that of the matching event, where there is one."""

    seq: int
    at: dt.datetime
    type: str
    step: str
    """The step's id, `outer#1/node#2[item]`; empty for what concerns the whole run."""
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def timeline(journal: Journal, run_id: str, after_seq: int = 0) -> Iterator[Moment]:
    """The moments of a run after entry `after_seq`, in order, as far as they are stored now."""
    return Timeline(journal, run_id, after_seq).read()


class Timeline:
    """A place in a run's journal. `read` gives what has been stored since, so a run can be followed.

    What was pruned is not told; where it happens meanwhile, the telling goes on with what is left.
    """

    def __init__(self, journal: Journal, run_id: str, after_seq: int = 0) -> None:
        self._journal, self._info = journal, journal.info(run_id)
        self._seq, self._chain, self._sealed = 0, genesis(run_id, self._info.key), False
        self._run, self._track = RunState(), Track()
        first = next(iter(journal.store.read(run_id)), None)
        start = max(after_seq, first.seq if first is not None and first.seq > 1 else 0)
        if start:
            self._jump(start)

    def _jump(self, seq: int) -> None:
        loaded = self._journal.load(self._info, CODEC, seq)
        self._seq, self._chain, self._run, self._track = loaded.seq, loaded.chain, loaded.run, loaded.track
        self._sealed = loaded.sealed

    @property
    def seq(self) -> int:
        """The entry that was read last."""
        return self._seq

    @property
    def status(self) -> RunStatus:
        """How the run stood at that entry."""
        return RunStatus(self._run.status)

    def read(self) -> Iterator[Moment]:
        """The moments since the last read."""
        for entry in self._journal.store.read(self._info.run, self._seq):
            if entry.seq != self._seq + 1:
                self._jump(entry.seq)
                continue
            yield from self._taken(entry)

    def _taken(self, entry: Entry) -> list[Moment]:
        """Take in a whole entry before any of it is told, so that stopping half-way loses no place."""
        run = self._info.run
        if broken := break_at(self._chain, self._sealed, entry):
            raise CorruptJournal(f"run {run!r}: {broken}", run=run, seq=entry.seq)
        moments, codec = list[Moment](), ViewCodec()
        for record in self._journal.records(self._info, entry, self._track, CODEC):
            moments += self._moments(record, entry, codec)
            apply(self._run, record, entry.at)
        if entry.mark is not None:
            moments.append(self._checkpoint(entry))
        self._seq, self._chain, self._sealed = entry.seq, entry.chain, is_sealed(entry.body)
        return moments

    def _moments(self, record: Record, entry: Entry, codec: Codec) -> Iterator[Moment]:
        for part in record.parts() if isinstance(record, MovedOn) else (record,):
            told = self._tell(part, codec)
            if told is not None:
                type_, step, text, data = told
                yield Moment(entry.seq, when(entry.at), type_, step, text, data)

    def _checkpoint(self, entry: Entry) -> Moment:
        mark = Mark(entry.seq, entry.at, entry.mark or b"", len(entry.body))
        found = read_mark(self._info.key, mark, self._info.run)
        then = ", ".join(found.next) or "nothing"
        data = {"checkpoint_id": found.id, "wave": found.wave, "nodes": found.nodes, "next": found.next}
        text = f"checkpoint {found.id}, next: {then}"
        return Moment(entry.seq, found.created_at, "checkpoint.save", "", text, {**data, "size": found.size})

    def _tell(self, record: Record, codec: Codec) -> Told | None:
        if isinstance(record, StepStarted | StepFinished | StepFailed | FrameOpened):
            return None if _is_start(record.step) else _tell_step(record, codec)
        if isinstance(record, Reset):
            where = {
                "source": record.source or self._info.run,
                "seq": record.seq,
                "by": record.by,
                "why": record.why,
            }
            return "state.reset", "", reset_told(record, self._info.run), where
        if isinstance(record, Answered):
            pause = self._run.pauses.get(record.pause)
            name, kind = (pause.name, pause.kind) if pause else (record.pause, "ask")
            raw = record.value
            shown = raw.decode("utf-8", "replace") if kind in ABOUT_DOUBTS else preview_raw(raw, codec)
            by = f" by {record.by}" if record.by else ""
            answer = shown if kind in ABOUT_DOUBTS else _value(raw, codec)
            data = {"pause": record.pause, "name": name, "answer": answer, "by": record.by}
            return "answer", pause.step if pause else "", f"{name} was answered{by}: {shown}", data
        if isinstance(record, Described):
            return _tell_described(record, read_facts(self._run.facts, codec), codec)
        return tell_run(record, codec)


Told = tuple[str, str, str, dict[str, Any]]


def _is_start(step: str) -> bool:
    return step.rpartition("/")[2].startswith(START)


def _tell_step(record: StepStarted | StepFinished | StepFailed | FrameOpened, codec: Codec) -> Told:
    step = record.step
    match record:
        case StepStarted(attempt=attempt):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            return "node.start", step, f"{readable_step(step)} started{again}", {"attempt": attempt}
        case FrameOpened():
            return "node.start", step, f"{readable_step(step)} started", {"attempt": 1, "keys": record.keys}
        case StepFinished(skipped=skipped) if skipped:
            return "node.skip", step, f"{readable_step(step)} skipped: {skipped}", {"reason": skipped}
        case StepFinished(origin=origin) if origin:
            data: dict[str, Any] = {"origin": origin, "update": _values(record.ops, codec)}
            return "node.reuse", step, f"{readable_step(step)} reused from {origin}", data
        case StepFinished(seconds=seconds):
            data = {"seconds": seconds, "update": _values(record.ops, codec)}
            return "node.complete", step, f"{readable_step(step)} done in {seconds:.3f} s", data
        case StepFailed():
            return _tell_failure(record)
    assert_never(record)


def _tell_failure(record: StepFailed) -> Told:
    data: dict[str, Any] = {"attempt": record.attempt, "seconds": record.seconds, **_fault(record.fault)}
    if record.retry_at is None:
        text = f"{readable_step(record.step)} failed (attempt {record.attempt}): {record.fault}"
        return "node.error", record.step, text, data
    again = when(record.retry_at)
    failed = f"{readable_step(record.step)} failed (attempt {record.attempt})"
    text = f"{failed}, tried again at {iso(again)}: {record.fault}"
    return "node.retry", record.step, text, {**data, "retry_at": iso(again)}


def tell_run(record: Record, codec: Codec) -> Told | None:
    """What a record that concerns the whole run tells: type, step, text, data; `None` if nothing to people."""
    match record:
        case RunStarted():
            data = {"workflow": record.workflow, "input": _values(record.ops, codec)}
            return "graph.start", "", f"run of {record.workflow} started", data
        case Forked():
            origin = {"parent": record.parent, "seq": record.seq}
            return "graph.start", "", f"run forked from {record.parent} at entry {record.seq}", origin
        case Resumed():
            return "checkpoint.resume", "", "run resumed", {"approve": record.approve}
        case Paused():
            names = ("pause", "kind", "name", "prompt")
            data = {name: getattr(record, name) for name in names}
            return "pause", record.step, f"{readable_step(record.step)} waits: {record.prompt}", data
        case StateEdited():
            keys = ", ".join(op.key for op in record.ops)
            data = {"update": _values(record.ops, codec), "by": record.by}
            return "state.update", "", f"state changed from outside{_by(record)}: {keys}", data
        case Steered():
            return _tell_steered(record, codec)
        case Reset():
            where = {"source": record.source, "seq": record.seq, "by": record.by, "why": record.why}
            return "state.reset", "", reset_told(record), where
        case Reusing():
            source = {"source": record.source, "seq": record.upto, "rerun": record.rerun}
            which = "that are the same" if record.rerun is None else f"but not {', '.join(record.rerun)}"
            return (
                "steps.reuse",
                "",
                f"finished steps of {record.source or 'its own'} are taken over, {which}",
                source,
            )
        case Migrated():
            data = {"from": record.since, "to": record.until, "update": _values(record.ops, codec)}
            whose = f"state of {record.frame}" if record.frame else "state"
            versions = f"{record.since or '(none)'} to {record.until or '(none)'}"
            return "state.migrate", "", f"{whose} brought from version {versions}", data
        case Spent():
            return _tell_spent(record)
        case Described():
            return _tell_described(record, {}, codec)
        case Remarked():
            return _tell_remark(record)
        case GraphChanged():
            data = {"remap": dict(record.remap), "by": record.by}
            return "graph.changed", "", f"the workflow changed{_by(record)}", data
        case Confirmed():
            text = f"it came from outside ({record.source}), and was confirmed{_by(record)}"
            return "run.confirm", "", text, record._asdict()
        case Commanded():
            return _tell_command(record)
        case RunEnded():
            return _tell_end(record)
        case OnceStarted(repeated=True):
            data = {"step": record.step, "key": record.key, "decision": "rerun"}
            return (
                "once.in_doubt",
                record.step,
                f"once {record.key!r} of {record.step} was in doubt, and runs again",
                data,
            )
        case WaveFinished() | Noted() | OnceStarted() | OnceFailed():
            return None
    raise AssertionError(record)


def reset_told(record: Reset, run: str | None = None) -> str:
    """A reset in words, to whoever knows of which run it is."""
    why = f": {record.why}" if record.why else ""
    if run is None:
        return f"run set to where {record.source or 'it'} stood at entry {record.seq}{_by(record)}{why}"
    if record.is_of(run):
        return f"rolled back to entry {record.seq}{_by(record)}{why}"
    return f"the result of {record.source} (entry {record.seq}) was promoted{_by(record)}{why}"


def _tell_spent(record: Spent) -> Told:
    tokens = f"{record.input_tokens} tokens in, {record.output_tokens} out"
    what = [record.model, tokens if record.input_tokens or record.output_tokens else ""]
    what.append("of unknown price" if record.cost is None else f"${record.cost:.6g}")
    text = f"{readable_step(record.step)} spent: {', '.join(part for part in what if part)}"
    return "node.spend", record.step, text, record._asdict()


def _tell_described(record: Described, before: dict[str, Any], codec: Codec) -> Told:
    """Where a run is driven now; if it is known where it was before, only what is different."""
    facts = read_facts(record.facts, codec)
    changes = changes_told(before, facts) if before else []
    text = "; ".join(changes) if before else f"driven on {facts_told(facts)}"
    return "run.describe", "", text or "driven on the same", {"facts": facts, "changes": changes}


def _tell_remark(record: Remarked) -> Told:
    what = [f"note: {record.text}"] if record.text else []
    what += [f"tagged {tag}" for tag in record.add] + [f"no longer tagged {tag}" for tag in record.remove]
    if record.keep is not None:
        what.append("kept for good" if record.keep else "no longer kept for good")
    where = f"checkpoint at entry {record.at}" if record.at else "run"
    return "run.remark", "", f"{where}{_by(record)}: {'; '.join(what)}", record._asdict()


def _by(record: StateEdited | Steered | GraphChanged | Commanded | Reset | Remarked | Confirmed) -> str:
    return f" by {record.by}" if record.by else ""


def _tell_command(record: Commanded) -> Told:
    why = f": {record.why}" if record.why else ""
    refused = f"; refused: {record.refused}" if record.refused else ""
    names = ("command", "refused", "by", "why")
    data = {name: getattr(record, name) for name in names}
    return "command", "", f"{record.command} was asked for{_by(record)}{why}{refused}", data


def _tell_steered(record: Steered, codec: Codec) -> Told:
    added = [target.node if target.key is None else f"{target.node}[{target.key}]" for target in record.add]
    changed = [name for name, _ in record.items]
    parts = {"dropped": list(record.drop), "added": added, "other arguments for": changed}
    text = "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names)
    data = {
        "frame": record.frame,
        "drop": list(record.drop),
        "add": added,
        "items": {name: _values(item, codec) for name, item in record.items},
        "replan": record.replan,
        "by": record.by,
        "why": record.why,
    }
    told = text or "nothing more is to come"
    return "plan.change", "", f"plan changed{_by(record)}: {told}", data


def _tell_end(record: RunEnded) -> Told:
    where = f" at {record.node}" if record.node else ""
    why = where or (f": {record.fault}" if record.fault is not None else "")
    data = {"status": str(record.status), "node": record.node}
    if record.fault is not None:
        data |= _fault(record.fault)
    return ENDINGS[RunStatus(record.status)], "", f"run {record.status}{why}", data


def _fault(fault: Fault) -> dict[str, Any]:
    return {"error": str(fault), "error_type": fault.type}


def _values(ops: tuple[Op, ...], codec: Codec) -> dict[str, Any]:
    """What an update sets, as plain data; of a very large value only its size."""
    return {op.key: _value(op.raw, codec) for op in ops if op.kind != "drop"}


def _value(raw: bytes, codec: Codec) -> Any:
    if len(raw) > TOO_BIG_TO_PREVIEW:
        return preview_raw(raw, codec)
    try:
        return plain(codec.decode(raw))
    except CodecError:
        return preview_raw(raw, codec)
