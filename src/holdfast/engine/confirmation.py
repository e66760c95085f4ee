"""Runs from outside: nothing of one runs before somebody confirmed what it would run with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.engine.checkpoint_files import check_config
from holdfast.engine.commands.inbox import RunCommand, open_message, write_message
from holdfast.errors import CodecError, ForeignRun, Remedy, problem_of
from holdfast.journal.journal import Journal
from holdfast.journal.provenance import Provenance, definition_digest, me, set_back
from holdfast.journal.records import Confirmed
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.stores.base import Message, RunInfo
from holdfast.views.plain import CODEC, tree_lines

Trust = bool | str
"""Whether a caller confirms what a run from outside would run with; text is the digest of what was shown."""


@dataclass(frozen=True, slots=True)
class Disclosure:
    """All that a run from outside would run with: its definition, its options, and what waits in its inbox."""

    run_id: str
    workflow: str
    provenance: Provenance
    digest: str
    config: Mapping[str, Any]
    """Under `workflow_file` the workflow file that came with it, if one did; everything else is options."""
    inbox: tuple[Mapping[str, Any], ...]

    @property
    def is_confirmed(self) -> bool:
        """Whether it may run as it is."""
        return self.provenance.allows(self.digest)

    def with_file(self, path: Path) -> Disclosure:
        """Return the same for people: of a workflow file of their own its path, and not all that is in it."""
        rest = {key: value for key, value in self.config.items() if key != "workflow_file"}
        return replace(self, config={"your own workflow file": str(path), "taken from the run": rest})

    def lines(self) -> list[str]:
        """Return all of it as text without control characters; nothing is cut."""
        return [
            *tree_lines({"config": self.config}),
            *(tree_lines({"inbox": list(self.inbox)}) if self.inbox else ()),
        ]


def disclose(
    journal: Journal, info: RunInfo, run: RunState, config: Mapping[str, Any] | None = None
) -> Disclosure | None:
    """Return what a run from outside would run with, from the run itself; `None` for a run that was started here.

    `config` is what is laid over its own, a workflow file of the owner's say: then this is what is confirmed, unless
    all of what came with the run was confirmed before.
    """
    provenance = Provenance.of(info)
    if provenance is None:
        return None
    messages = journal.store.inbox(info.run)
    waiting = [message for message in messages if message.number > run.inbox_seen]
    came = [message for message in messages if message.number <= provenance.messages]
    digest, raw = digest_of(journal, info, run, came), run.config
    if config:
        codec = TolerantCodec()  # As it will be stored.
        raw = codec.encode({**(codec.decode(raw) if raw else {}), **config})
        if not provenance.allows(digest):
            digest = digest_of(journal, info, run, came, raw)
    shown = tuple(message_shown(open_message(journal, info, message, sealed=False)) for message in waiting)
    return Disclosure(info.run, info.workflow, provenance, digest, config_shown(raw), shown)


def as_of(journal: Journal, info: RunInfo, seq: int | None, codec: Codec) -> tuple[RunInfo, RunState]:
    """Return a run as it is now, or at a checkpoint: what is confirmed is what will run."""
    run = journal.load(info, codec).run
    if seq is None or seq == run.saved_seq:
        return info, run
    return replace(info, origin=set_back(info.origin)), journal.load(info, codec, seq).run


def digest_of(
    journal: Journal, info: RunInfo, run: RunState, came: Iterable[Message], config: bytes | None = None
) -> str:
    """Return the digest of what a run would run with, messages that `came` with it included, however sealed."""
    commands = (open_message(journal, info, message, sealed=False) for message in came)
    return definition_digest(run, map(write_message, commands), config)


def confirm(
    journal: Journal,
    info: RunInfo,
    run: RunState,
    trust: Trust = False,
    config: Mapping[str, Any] | None = None,
) -> tuple[RunInfo, Confirmed | None]:
    """Return the facts of a run that is about to run, and what is to be recorded; `ForeignRun` if it may not.

    `trust` confirms a run from outside: what has this digest, or, with `True`, whatever is there. `config` is what the
    run gets laid over its own config, and goes on with from now on.
    """
    provenance = Provenance.of(info)
    if provenance is None or provenance.is_begun:
        return info, None
    found = disclose(journal, info, run, config)
    assert found is not None
    if not found.is_confirmed:
        if trust is not True and trust != found.digest:
            raise _refusal(found, was_shown=bool(trust))
        provenance = provenance.confirmed(me(), found.digest)
    return replace(info, origin=provenance.begun().text()), provenance.record()


def admitted_file(found: Disclosure, trust: Trust, path: str) -> Provenance:
    """Return where a run comes from that a checkpoint file with a workflow begins; `ForeignRun` if it may not."""
    if trust is not True and trust != found.digest:
        why = (
            "has changed since it was shown" if trust else "has a workflow in it, and nobody has confirmed it"
        )
        raise ForeignRun(
            f"the checkpoint file {path} {why}",
            remedies=Remedy("confirm", path),
            digest=found.digest,
            disclosure="\n".join(found.lines()),
        )
    return found.provenance.confirmed(me(), found.digest).begun()


def refuse_unconfirmed(journal: Journal, info: RunInfo, codec: Codec, trust: Trust = False) -> None:
    """Raise `ForeignRun` for a run from outside that nobody confirmed."""
    if info.origin:
        confirm(journal, info, journal.load(info, codec).run, trust)


def _refusal(found: Disclosure, was_shown: bool) -> ForeignRun:
    origin, run = found.provenance, found.run_id
    why = "it has changed since it was shown" if was_shown else "nobody has confirmed it"
    if not was_shown and origin.confirmation is not None:
        why = "it has changed since it was confirmed"
    return ForeignRun(
        f"run {run!r} came from outside ({origin.source}, {origin.signer}), and {why}",
        remedies=Remedy("confirm", run),
        run=run,
        digest=found.digest,
        disclosure="\n".join(found.lines()),
    )


def config_shown(raw: bytes, codec: Codec = CODEC, *remedies: Remedy) -> dict[Any, Any]:
    """Return a stored config as it is read; `CodecError`, with `remedies`, if a definition in it is not plain data."""
    if not raw:
        return {}
    try:
        found = codec.decode(raw)
    except CodecError as error:
        return {"unreadable": problem_of(error), "bytes": raw.hex()}
    check_config(found, *remedies)
    return found if type(found) is dict else {"": found}


def message_shown(command: RunCommand, codec: Codec = CODEC) -> dict[str, Any]:
    """Return a message of an inbox, with all that is encoded in it."""
    return {name: _value_shown(value, codec) for name, value in command._asdict().items() if value}


def _value_shown(value: Any, codec: Codec) -> Any:
    if isinstance(value, bytes):
        try:
            return codec.decode(value)
        except CodecError:
            return value.hex()
    if isinstance(value, Mapping):
        return {key: _value_shown(item, codec) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return {name: _value_shown(item, codec) for name, item in value._asdict().items() if item}
    if isinstance(value, (list, tuple)):
        return [_value_shown(item, codec) for item in value]
    return value
