"""What the outside may ask of a run, decided between its steps: as records, or refused with the reason."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.engine.commands.inbox import (
    ANSWER,
    CANCEL,
    EDIT,
    INJECT,
    MODIFY,
    PAUSE,
    REMARK,
    REPLAN,
    SKIP,
    Ground,
    NeedsGraph,
    Refused,
    Wish,
    warn_of_decided_route,
)
from holdfast.engine.commands.replan import inject, modify, redefine, replan, skip, told
from holdfast.engine.resume import edits
from holdfast.engine.saving import Saving
from holdfast.errors import CommandRefused, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.journal.records import Answered, Record, Remarked, StepFinished
from holdfast.journal.wire import safe_text
from holdfast.stores.base import RunInfo

# Tags, notes and keeping: what people say of a run or of one of its checkpoints, at any time.


LONGEST_TAG = 200
LONGEST_NOTE = 100_000
MOST_TAGS = 100
"""How many tags one remark may add or remove."""


def remark_of(
    at: int, text: str = "", add: Iterable[str] = (), remove: Iterable[str] = (), keep: bool | None = None
) -> dict[str, Any]:
    """A remark as a message carries it; one that says nothing, or too much, is refused."""
    found = {"add": _tags(add), "remove": _tags(remove)}
    text = safe_text(text) if isinstance(text, str) else text
    if not isinstance(text, str) or len(text) > LONGEST_NOTE:
        raise CommandRefused(f"a note is text of at most {LONGEST_NOTE} characters, not {text!r:.80}")
    if both := sorted({*found["add"]} & {*found["remove"]}):
        raise CommandRefused(f"a tag is either added or removed, not both: {', '.join(both)}")
    if not text.strip() and not any(found.values()) and keep is None:
        raise CommandRefused("there is nothing to say: give a text, or tags")
    return {"at": at, "text": text, **found, "keep": keep}


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise CommandRefused(f"tags are several words, not one text: {tags!r:.80}")
    given = list(tags)
    for tag in given:
        is_word = isinstance(tag, str) and 0 < len(tag) <= LONGEST_TAG and tag.isprintable()
        if not is_word or tag != tag.strip() or "," in tag:
            raise CommandRefused(
                f"a tag is printable text of at most {LONGEST_TAG} characters without commas, not {tag!r:.80}"
            )
    found = list(dict.fromkeys(given))
    if len(found) > MOST_TAGS:
        raise CommandRefused(f"at most {MOST_TAGS} tags at once, not {len(found)}")
    return found


def remarked(wish: Wish) -> Remarked:
    """The record that a message comes to."""
    said: Mapping[str, Any] = wish.remark or {}
    try:
        checked = remark_of(
            int(said.get("at", 0)),
            str(said.get("text", "")),
            map(str, said.get("add", ())),
            map(str, said.get("remove", ())),
            None if said.get("keep") is None else bool(said["keep"]),
        )
    except CommandRefused as error:
        raise Refused(str(error)) from None
    return Remarked(
        checked["at"],
        checked["text"],
        tuple(checked["add"]),
        tuple(checked["remove"]),
        checked["keep"],
        wish.by,
    )


def tags_after(info: RunInfo, record: Remarked) -> RunInfo:
    """A run's plain facts once a remark is made: what is said of the run as a whole changes its tags."""
    if record.at or not (record.add or record.remove):
        return info
    left = [tag for tag in info.tags if tag not in record.remove]
    return dataclasses.replace(info, tags=tuple(dict.fromkeys([*left, *record.add])))


logger = logging.getLogger("holdfast")


def obey(saving: Saving, graph: Graph, wish: Wish) -> str:
    """Record what a message asks of a driven run; answers why it is refused, or nothing."""
    ground = Ground(saving.run_id, saving.run, saving.settings.codec, graph, driven=True)
    try:
        found = decided(ground, wish)
    except Refused as refusal:
        return str(refusal)
    except NeedsGraph:
        return "the graph that the run is driven with does not fit"
    for record in found:
        if isinstance(record, StepFinished):
            facts = {"step": record.step, "error": False, "seconds": 0.0}
            update = {op.key: op.value for op in record.ops}
            saving.say("node.complete", saving.run.step(record.step).node, **facts, update=update)
        saving.record(record)
        if isinstance(record, Remarked):
            saving.writer.set_info(tags_after(saving.writer.info, record))
    if wish.command == EDIT:
        warn_of_decided_route(ground)
    return ""


def decided(ground: Ground, wish: Wish) -> list[Record]:
    """What a message comes to; raises `Refused`, or `NeedsGraph` if the graph that it takes is not at hand."""
    handler = _HANDLERS.get(wish.command)
    if handler is None:
        raise Refused(f"unknown command {wish.command!r}")
    try:
        return handler(ground, wish)
    except (Refused, NeedsGraph):
        raise
    except Exception as error:
        # A message must never bring a run down, for it would do so again after every resume.
        logger.exception("run %s: %r cannot be obeyed", ground.run_id, wish.command)
        raise Refused(f"it cannot be done: {error!r}") from error


def _answer(ground: Ground, wish: Wish) -> list[Record]:
    given = [(wish.pause, wish.value), *((change.path[0], change.value) for change in wish.changes)]
    for pause, _ in given:
        if pause not in ground.run.pauses:
            raise Refused(
                f"nothing waits for {pause!r} any more: it was answered before, or its time was over"
            )
    return [Answered(pause, value, wish.by) for pause, value in given]


def _edit(ground: Ground, wish: Wish) -> list[Record]:
    graph, state = ground.graph_at(""), ground.state(ground.run.root)
    for change in wish.changes:
        channel = graph.schema.channels.get(change.path[0])
        if len(change.path) > 1 and channel is not None and channel.reducer is not None:
            raise Refused(
                f"{change.path[0]!r} has a reducer; give an update of the whole key, for it to take in"
            )
    try:
        found = edits(graph, ground.run, ground.settled(state, wish.changes), ground.codec)
    except KeyError:
        raise NeedsGraph from None
    except HoldfastError as error:
        raise Refused(str(error)) from None
    plain = tuple(
        key for key in dict.fromkeys(change.path[0] for change in wish.changes) if _is_plain(graph, key)
    )
    return [record._replace(by=wish.by, over=plain) for record in found if record.ops or plain]


def _is_plain(graph: Graph, key: str) -> bool:
    """Whether a key is set as it is, so that what was about to be done to it is of no account."""
    channel = graph.schema.channels.get(key)
    return channel is None or channel.reducer is None


def _skip(ground: Ground, wish: Wish) -> list[Record]:
    return skip(ground, wish.step, told("asked for", wish.by, wish.reason))


def _modify(ground: Ground, wish: Wish) -> list[Record]:
    return modify(ground, wish.step, wish.changes, wish.by, wish.reason)


def _inject(ground: Ground, wish: Wish) -> list[Record]:
    return inject(ground, wish.additions, wish.frame, wish.follow, wish.by, wish.reason)


def _replan(ground: Ground, wish: Wish) -> list[Record]:
    if wish.definition is not None:
        return redefine(ground, wish.definition, wish.by)
    return replan(ground, wish.additions, wish.frame, wish.follow, wish.by, wish.reason)


def _remark(ground: Ground, wish: Wish) -> list[Record]:
    return [remarked(wish)]


def _stop(ground: Ground, wish: Wish) -> list[Record]:
    """What stops a drive is heeded by the drive itself."""
    return []


_HANDLERS: dict[str, Callable[[Ground, Wish], list[Record]]] = {
    CANCEL: _stop,
    PAUSE: _stop,
    ANSWER: _answer,
    EDIT: _edit,
    SKIP: _skip,
    MODIFY: _modify,
    INJECT: _inject,
    REPLAN: _replan,
    REMARK: _remark,
}
