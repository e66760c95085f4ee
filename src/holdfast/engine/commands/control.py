"""What any process may ask of a stored run: stop, take an answer, go on in another way than it was to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast import clock
from holdfast.engine.commands.inbox import (
    ANSWER,
    CANCEL,
    EDIT,
    INJECT,
    MODIFY,
    PAUSE,
    REPLAN,
    SKIP,
    Addition,
    Change,
    Wish,
)
from holdfast.engine.commands.posting import (
    APPLIED,
    PATIENCE,
    TRIES,
    WAITING,
    Receipt,
    ask,
    awaited,
    post,
    see_to,
    stopping,
    waits_for_worker,
)
from holdfast.engine.owner import active_runs, has_owner, is_alive
from holdfast.engine.resume import load_latest, refuse_finished, take_answers
from holdfast.engine.settings import Pause, Retention, public_pauses
from holdfast.errors import CommandRefused, HoldfastError, RunConflict
from holdfast.graph.graph import Graph, Send
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Commanded, Record, RunEnded
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.values import RunStatus

# What a caller gives with a command, as parts of a message: values are encoded, nonsense is refused at onc.


Path = str | tuple[str, ...]
Update = Mapping[Path, Any] | Mapping[str, Any] | Mapping[tuple[str, ...], Any]
"""New values by key; a tuple of keys is a place inside: `("inputs", "topic")`."""

Step = str | Send | Mapping[str, Any]
"""A step to be run: a node's name, a `Send`, or a mapping with `node` and perhaps `item` and `key`."""

_PARTS = {"node", "item", "key"}


def changes_of(command: str, update: Update, codec: Codec) -> tuple[Change, ...]:
    """An update as changes."""
    if not isinstance(update, Mapping) or not update:
        raise CommandRefused(
            f"{command} takes a mapping with values, such as {{'key': value}}, not {update!r:.80}"
        )
    return tuple(_change(command, key, value, codec) for key, value in update.items())


def _change(command: str, key: Any, value: Any, codec: Codec) -> Change:
    path = key if isinstance(key, tuple) else (key,)
    if not path or not all(isinstance(part, str) and _is_text(part) for part in path):
        raise CommandRefused(f"{command} names what it changes by text, or a tuple of texts, not {key!r:.80}")
    try:
        return Change(path, codec.encode(value))
    except HoldfastError as error:
        raise CommandRefused(f"{command}: state key {'.'.join(path)!r}: {error}") from None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def additions_of(command: str, steps: Step | Iterable[Step], codec: Codec) -> tuple[Addition, ...]:
    """Steps to be run as additions."""
    alone = isinstance(steps, (str, Send, Mapping)) or not isinstance(steps, Iterable)
    given: list[Any] = [steps] if alone else list(steps)  # type: ignore[arg-type]
    return tuple(_addition(command, step, codec) for step in given)


def _addition(command: str, step: Any, codec: Codec) -> Addition:
    if isinstance(step, str):
        step = {"node": step}
    elif isinstance(step, Send):
        step = {"node": step.node, "item": step.item, "key": step.key}
    if not isinstance(step, Mapping) or "node" not in step or set(step) - _PARTS:
        raise CommandRefused(
            f"{command} takes nodes' names, Sends, or mappings with node, item and key, not {step!r:.80}"
        )
    node, key, item = step["node"], step.get("key"), step.get("item")
    if not isinstance(node, str) or not node or not _is_text(node):
        raise CommandRefused(f"{command} names nodes by text, not {node!r:.80}")
    if key is not None and (not isinstance(key, str) or not key or not _is_text(key)):
        raise CommandRefused(f"{command}: the key of an item is text that is not empty, not {key!r:.80}")
    if item is None or item == {}:
        return Addition(node, key)
    changes = changes_of(command, item, codec)
    if any(len(change.path) > 1 for change in changes):
        raise CommandRefused(
            f"{command}: the item of {node!r} holds whole values only; name its keys by text"
        )
    return Addition(node, key, changes)


def cancel(
    journal: Journal, run_id: str, reason: str = "cancelled", *, by: str = "", codec: Codec | None = None
) -> RunStatus:
    """Stop a run until it is resumed. A run that is driven, in any process, stops soon.

    Answers the status the run then has: `running` if its driver has still to notice.
    """
    return _stop(journal, run_id, Wish(CANCEL, reason, by=by), codec or Codec())


def pause(
    journal: Journal, run_id: str, reason: str = "paused", *, by: str = "", codec: Codec | None = None
) -> RunStatus:
    """Let a run that is driven save itself and stop, so that `resume` goes on. Answers as `cancel` does."""
    return _stop(journal, run_id, Wish(PAUSE, reason, by=by), codec or Codec())


def waiting(journal: Journal, run_id: str, *, codec: Codec | None = None) -> tuple[Pause, ...]:
    """What a run waits for."""
    codec = codec or Codec()
    return public_pauses(journal.load(journal.info(run_id), codec).run, codec)


def answer(
    journal: Journal,
    run_id: str,
    value: Any = None,
    *,
    answers: Mapping[str, Any] | None = None,
    by: str = "",
    codec: Codec | None = None,
    retention: Retention | None = None,
    patience: float = PATIENCE,
) -> Receipt:
    """Answer what a run waits for, without executing it: `value` if it is one thing, `answers` by name or id.

    Returns what became of it. If nobody executes the run, the answers are recorded now, and the next `resume` goes on
    with them. Otherwise the process that executes it takes them, all or none: if it has not done so within `patience`
    seconds, the receipt is `waiting`, and `receipts.find` tells more later. If somebody else was faster, or the run
    went on, they are `refused`, which the run's journal tells, too. Answers that do not fit raise `AnswerRejected`.
    """
    codec = codec or Codec()
    for last in range(TRIES):
        loaded = load_latest(journal, journal.info(run_id), codec)
        info = loaded.info
        refuse_finished(info)
        found = take_answers(info, loaded.run, value, answers, codec, retention)
        given = [record._replace(by=by) for record in found]
        names = tuple(loaded.run.pauses[record.pause].name for record in given)
        if has_owner(journal.store, loaded.info):
            if not given:
                return Receipt(run_id, APPLIED, names, by=by)
            (pause, sent, _), *more = given
            others = tuple(Change((record.pause,), record.value) for record in more)
            number = post(journal, run_id, Wish(ANSWER, pause=pause, value=sent, by=by, changes=others))
            receipt = Receipt(run_id, WAITING, names, by=by, number=number)
            return awaited(journal, receipt, codec, patience)
        try:
            if waits_for_worker(info.status, info):
                # A worker goes on with it.
                _append(journal, loaded, codec, [*given, RunEnded(RunStatus.QUEUED)], RunStatus.QUEUED)
            else:
                _append(journal, loaded, codec, given)
        except RunConflict:
            if last == TRIES - 1:
                raise
        else:
            return Receipt(run_id, APPLIED, names, by=by)
    raise AssertionError("a try either returns or raises")


def edit(
    journal: Journal,
    run_id: str,
    update: Update,
    *,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    patience: float = 0.0,
) -> str:
    """Change the state of a run, as its reducers take the update.

    Answers, as all that follow here, the status that the run has when that is done, or `asked` if it is still to be
    done: by the run's driver between two steps, or, if the run's graph is needed and not given, by the next one.
    What is refused raises `CommandRefused`, if it is known within `patience` seconds, and is in the journal.
    """
    codec = codec or Codec()
    wish = Wish(EDIT, reason, by=by, changes=changes_of(EDIT, update, codec))
    return ask(journal, run_id, wish, codec, graph, patience)


def skip(
    journal: Journal,
    run_id: str,
    step: str,
    *,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    patience: float = 0.0,
) -> str:
    """Pass over a step that is not running: `step` is its id, or its node's name, which means all of them."""
    wish = Wish(SKIP, reason, by=by, step=_named(SKIP, step))
    return ask(journal, run_id, wish, codec or Codec(), graph, patience)


def modify(
    journal: Journal,
    run_id: str,
    step: str,
    update: Update,
    *,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    patience: float = 0.0,
) -> str:
    """Let a step that is still to begin, or to begin anew, see other values than the state has."""
    codec = codec or Codec()
    changes = changes_of(MODIFY, update, codec)
    wish = Wish(MODIFY, reason, by=by, step=_named(MODIFY, step), changes=changes)
    return ask(journal, run_id, wish, codec, graph, patience)


def inject(
    journal: Journal,
    run_id: str,
    steps: Step | Iterable[Step],
    *,
    frame: str = "",
    follow: bool = False,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    patience: float = 0.0,
) -> str:
    """Run further steps beside those that are about to run, or are running; nothing follows them unless `follow`.

    `frame` is the sub-graph under way that they are of; a node can also be named `outer/inner`.
    """
    codec = codec or Codec()
    additions = additions_of(INJECT, steps, codec)
    if not additions:
        raise CommandRefused("inject takes at least one step")
    wish = Wish(INJECT, reason, by=by, additions=additions, frame=frame, follow=follow)
    return ask(journal, run_id, wish, codec, graph, patience)


def replan(
    journal: Journal,
    run_id: str,
    steps: Step | Iterable[Step],
    *,
    frame: str = "",
    follow: bool = True,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    graph: Graph | None = None,
    patience: float = 0.0,
) -> str:
    """Run these steps instead of all that are neither running nor finished, and of what would follow those.

    Without steps the run ends after what is running. What usually follows the new ones does, if `follow`.
    """
    codec = codec or Codec()
    additions = additions_of(REPLAN, steps, codec)
    wish = Wish(REPLAN, reason, by=by, additions=additions, frame=frame, follow=follow)
    return ask(journal, run_id, wish, codec, graph, patience)


def redefine(
    journal: Journal,
    run_id: str,
    workflow: str,
    outline: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    by: str = "",
    reason: str = "",
    codec: Codec | None = None,
    patience: float = 0.0,
) -> str:
    """Go on with another definition of the run's workflow: `config` is laid over the run's, `names` renames steps.

    A driver stops between two waves, as interrupted, or as queued in the fleet; whoever goes on reads the config.
    """
    codec = codec or Codec()
    definition = {
        "workflow": workflow,
        "outline": dict(outline),
        "config": codec.encode(dict(config)),
        "names": dict(names or {}),
    }
    return ask(journal, run_id, Wish(REPLAN, reason, by=by, definition=definition), codec, None, patience)


def _named(command: str, step: str) -> str:
    if not isinstance(step, str) or not step:
        raise CommandRefused(f"{command} names a step by its id or its node's name, not {step!r:.80}")
    return step


def _stop(journal: Journal, run_id: str, wish: Wish, codec: Codec) -> RunStatus:
    drive = active_runs.find(journal.store, run_id)
    if drive is not None:
        drive.request(wish)
        return RunStatus.RUNNING
    for _ in range(TRIES - 1):
        try:
            return _stop_undriven(journal, run_id, wish, codec)
        except RunConflict:
            continue  # Somebody recorded an answer, or took the run up, at this very moment.
    return _stop_undriven(journal, run_id, wish, codec)


def _stop_undriven(journal: Journal, run_id: str, wish: Wish, codec: Codec) -> RunStatus:
    """Stop a run that no drive of this process has: by a message, or, if nobody has it, in its journal."""
    info = journal.info(run_id)
    refuse_finished(info)
    if has_owner(journal.store, info):
        post(journal, run_id, wish)
        see_to(journal, run_id, codec)
        return RunStatus(journal.info(run_id).status)
    loaded = load_latest(journal, info, codec)
    facts = loaded.info
    refuse_finished(facts)
    if facts.status == RunStatus.RUNNING and is_alive(facts.driver, journal.store):
        raise RunConflict(f"run {run_id!r} was taken up by another driver just now; ask again")
    status = stopping(wish.command, facts.status, facts)
    if status is None:
        return RunStatus(facts.status)
    asked = Commanded(loaded.run.inbox_seen, wish.command, "", wish.by, wish.reason)
    _append(journal, loaded, codec, [asked, RunEnded(status)], status)
    return status


def _append(
    journal: Journal,
    loaded: Loaded,
    codec: Codec,
    found: Sequence[Record],
    status: RunStatus | None = None,
) -> None:
    writer = Writer(journal, loaded, codec, durable=True)
    for record in found:
        writer.record(record)
    facts = dataclasses.replace(loaded.info, updated_at=clock.time())
    if status is not None:
        facts = dataclasses.replace(facts, status=status.value, driver="", due_at=None)
    writer.set_info(facts)
    writer.flush()
