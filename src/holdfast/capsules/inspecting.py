"""Looking into a capsule without importing it: no code runs, and what a stranger wrote is bounded."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.capsules.capsule import Capsule
from holdfast.capsules.contents import canonical
from holdfast.capsules.folding import LIMIT, TooLarge, fold_capsule, reading
from holdfast.capsules.opening import is_locked, open_capsule, told
from holdfast.capsules.signing import Trust, demanded, fingerprint
from holdfast.capsules.summary import CarefulCodec, flow_of, summary_of
from holdfast.data.seal import Seal
from holdfast.engine.commands.inbox import open_message
from holdfast.engine.confirmation import config_shown, message_shown
from holdfast.engine.saved_config import AGAIN
from holdfast.errors import CapsuleLocked
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import RunState
from holdfast.views.plain import iso, plain, when
from holdfast.views.step_view import StepView
from holdfast.views.tally import Tallies, step_views


@dataclass(frozen=True, slots=True)
class CapsuleStep:
    """A step of the run in a capsule: how it stands, how often it was visited and tried, how long it took."""

    name: str
    status: str
    visits: int
    attempts: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Keys: name, status, visits, attempts, seconds."""
        return {
            "name": plain(self.name),
            "status": self.status,
            "visits": self.visits,
            "attempts": self.attempts,
            "seconds": round(self.seconds, 6),
        }


@dataclass(frozen=True, slots=True)
class CapsuleInfo:
    """What is in a capsule. Of one that is encrypted, and not opened, nothing is known but its size.

    All of it is verified to be what was written; that is no reason to believe it. `signed_by` is the fingerprint of
    the key that it is signed with. What comes from the journal is missing where `is_read` is false: it is sealed with
    the key of a store, or too large.
    """

    size: int
    encrypted: bool = False
    is_open: bool = True
    digest: str = ""
    signed_by: str = ""
    run_id: str = ""
    workflow: str = ""
    status: str = ""
    under_way: bool = False
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    tags: tuple[str, ...] = ()
    parent: str = ""
    """The run it was forked from."""
    entries: int = 0
    pruned: int = 0
    """How many entries its journal lacks at its beginning."""
    checkpoints: int = 0
    messages: int = 0
    journal_size: int = 0
    sealed: bool = False
    is_read: bool = False
    steps: tuple[CapsuleStep, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Its definition, ledger and environment, from its journal."""
    flow: Mapping[str, Any] | None = None
    """The workflow file in it: path, source, included files, sub-workflows; `None` for a Python graph."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """All that the run was started with: `flow`, its options, and whatever else."""
    inbox: tuple[Mapping[str, Any], ...] = ()
    """The commands that wait in its inbox."""
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Keys: bytes, encrypted, open, digest, signed_by, run_id, workflow, status, under_way, created_at,
        updated_at, tags, parent, entries, pruned, checkpoints, messages, journal_bytes, sealed, read, steps, flow,
        ledger, environment, config, inbox, notes."""
        flow = self.summary.get("flow")
        return {
            "bytes": self.size,
            "encrypted": self.encrypted,
            "open": self.is_open,
            "digest": self.digest or None,
            "signed_by": self.signed_by or None,
            "run_id": plain(self.run_id) or None,
            "workflow": plain(self.workflow) or None,
            "status": self.status or None,
            "under_way": self.under_way,
            "created_at": iso(self.created_at),
            "updated_at": iso(self.updated_at),
            "tags": [plain(tag) for tag in self.tags],
            "parent": plain(self.parent) or None,
            "entries": self.entries,
            "pruned": self.pruned,
            "checkpoints": self.checkpoints,
            "messages": self.messages,
            "journal_bytes": self.journal_size,
            "sealed": self.sealed,
            "read": self.is_read,
            "steps": [step.as_json() for step in self.steps],
            "flow": flow,
            "ledger": self.summary.get("ledger"),
            "environment": self.summary.get("environment"),
            "config": plain(self.config),
            "inbox": [plain(message) for message in self.inbox],
            "notes": list(self.notes),
        }


def inspect_capsule(
    path: str | Path,
    *,
    passphrase: str | None = None,
    trust: Trust = False,
    max_state: int = LIMIT,
    seal: Seal | None = None,
) -> CapsuleInfo:
    """What is in a capsule, verified. Nothing of it is run, imported, or used as a path.

    An encrypted capsule tells its size unless `passphrase` opens it. With `trust`, files or folders of public keys, by
    default those of HOLDFAST_TRUSTED, one of them has to have signed it. Reading the run takes at most about
    `max_state` bytes; a larger one tells only its facts. `seal` is the key that the journal is encrypted with, if it
    is, by default that of HOLDFAST_KEY.
    """
    with told(path):
        if passphrase is None and is_locked(Path(path)):
            if demanded(trust):
                raise CapsuleLocked("it is encrypted; give its passphrase, for its signature is demanded")
            return CapsuleInfo(_size(Path(path)), encrypted=True, is_open=False)
        own = seal if seal is not None else Seal.from_environment(os.environ)
        with open_capsule(path, passphrase, trust) as capsule:
            try:
                tallies = fold_capsule(capsule, own, max_state)
                notes = () if tallies is not None else (_SEALED,)
            except TooLarge as error:
                tallies, notes = None, (str(error),)
            return _info(capsule, tallies, notes, own)


_SEALED = "its journal is encrypted with the key of the store that it is from; set HOLDFAST_KEY to that key to read it"
_ANOTHER = (
    "the summary in it is not the one of its journal: another version wrote it, or its sender is not honest"
)


def _size(path: Path) -> int:
    return path.stat().st_size


def _info(
    capsule: Capsule, tallies: Tallies | None, notes: tuple[str, ...], seal: Seal | None
) -> CapsuleInfo:
    facts, run = capsule.facts, None if tallies is None else tallies.run
    with reading():
        flow = None if run is None else flow_of(run)
        summary = {} if run is None else summary_of(run)
        config = {} if run is None else config_shown(run.config, CarefulCodec(), AGAIN)
        inbox = () if run is None else _inbox(capsule, run, seal)
        steps = () if tallies is None else _steps(tallies, flow is not None)
    if run is not None and capsule.summary is not None and capsule.summary != canonical(summary):
        notes = (*notes, _ANOTHER)
    return CapsuleInfo(
        size=capsule.size,
        encrypted=capsule.is_encrypted,
        digest=capsule.digest.hex(),
        signed_by="" if capsule.signed_by is None else fingerprint(capsule.signed_by),
        run_id=facts.run,
        workflow=facts.workflow,
        status=facts.status,
        under_way=facts.under_way,
        created_at=when(facts.created_at),
        updated_at=when(facts.updated_at),
        tags=facts.tags,
        parent=str(run.parent[0]) if run is not None and run.parent else "",
        entries=capsule.entry_count,
        pruned=facts.first - 1,
        checkpoints=capsule.checkpoint_count,
        messages=capsule.message_count,
        journal_size=capsule.body_bytes,
        sealed=bool(capsule.sealed),
        is_read=run is not None,
        steps=tuple(map(_step, steps)),
        summary=summary,
        flow=flow,
        config=config,
        inbox=inbox,
        notes=notes,
    )


def _inbox(capsule: Capsule, run: RunState, seal: Seal | None) -> tuple[Mapping[str, Any], ...]:
    name, journal, codec = capsule.facts.run, Journal(capsule, seal), CarefulCodec()
    waiting = (message for message in capsule.inbox(name) if message.number > run.inbox_seen)
    return tuple(
        message_shown(open_message(journal, capsule.info, message, sealed=False), codec)
        for message in waiting
    )


def _steps(tallies: Tallies, is_flow: bool) -> tuple[StepView, ...]:
    return step_views(tallies, tallies.run.outline, driven=False, is_flow=is_flow)


def _step(view: StepView) -> CapsuleStep:
    return CapsuleStep(view.name, view.status, view.visits, view.attempts, float(view.seconds))
