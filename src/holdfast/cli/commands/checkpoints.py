"""`holdfast checkpoints`, `runs tag` and `runs note`: listing, keeping and removing checkpoints; tags and notes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import click

from holdfast.cli.command_lines import command_line
from holdfast.cli.options import (
    BY,
    JSON,
    STORE,
    WORKFLOW_NAME,
    YES,
    Options,
    flag,
    limit,
    number,
    read_duration,
    repeated,
    value,
)
from holdfast.cli.render import local_time, print_block, print_facts, print_json, print_table, shortened
from holdfast.cli.session import Session, command
from holdfast.engine.commands import control
from holdfast.engine.owner import has_owner
from holdfast.engine.retention import kept_checkpoints, last_successful
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.errors import CheckpointNotFound, RunNotFound
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import Checkpoint, decode_checkpoint
from holdfast.journal.copying import delete_run, held_back, needed_by, prune_run
from holdfast.journal.journal import Journal
from holdfast.journal.provenance import me
from holdfast.state.state import state_view
from holdfast.stores.base import RunInfo, StoredCheckpoint
from holdfast.values import RunStatus
from holdfast.views.history import CheckpointView, checkpoint_list, latest_runs
from holdfast.views.plain import CODEC, View, ViewCodec, plain
from holdfast.views.run_view import annotation_at, annotation_views
from holdfast.views.runs import find_checkpoint_info
from holdfast.views.terminal import count, one_line, visible

TIMEOUT = 1.0
"""How many seconds to wait until the process that executes the run has recorded an annotation."""


def _row(point: CheckpointView) -> list[str]:
    """Return the cells of a table."""
    saved = point.saved
    steps = [_steps(saved.nodes), _steps(saved.next)]
    return [saved.id, point.run_id, _wave(saved), *steps, local_time(saved.created_at), str(saved.size)]


def _wave(saved: Checkpoint) -> str:
    """Return the number of the wave; empty for none."""
    return "" if saved.run_wave is None else str(saved.run_wave)


def _steps(nodes: tuple[str, ...]) -> str:
    """Return the names of the nodes' steps as text, with the count of those that occur more than once."""
    counts = Counter(map(base_name, nodes))
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counts.items()) or "-"


@click.group()
def checkpoints() -> None:
    """List, show, keep, prune and clear checkpoints.

    \b
    Example:
      holdfast checkpoints list research
      holdfast checkpoints prune --older-than 7d --dry-run
    """


@command(
    click.argument("run", required=False, metavar="[RUN]"),
    WORKFLOW_NAME,
    limit(),
    STORE,
    JSON,
    group=checkpoints,
    name="list",
)
def list_checkpoints(session: Session, options: Options) -> None:
    """List checkpoints, newest first: of one run, of a workflow, or of the whole store.

    \b
    Example:
      holdfast checkpoints list research --limit 5
    """
    if options.run is not None and options.workflow is not None:
        raise click.UsageError("give either a run or --workflow")
    try:
        found = _found(session, options)
    except RunNotFound:
        if options.run is not None or options.workflow is not None:
            raise
        found = []
    if options.workflow is not None and not found:
        raise RunNotFound(f"no checkpoints of a workflow {options.workflow!r} in {session.url()}")
    columns = ("checkpoint", "run", "wave", "after", "next", "saved", "bytes")
    session.print_rows("checkpoints", found, columns, _row, "no checkpoints in {url}")


def _found(session: Session, options: Options) -> list[CheckpointView]:
    limit = options.limit
    if options.run is not None:
        infos = [session.run(options.run)]
        return checkpoint_list(session.store, infos, limit)
    workflow = session.workflow(options.workflow)
    return checkpoint_list(session.store, latest_runs(session.store, workflow, limit), limit)


@command(click.argument("checkpoint", metavar="ID|RUN@PLACE"), STORE, JSON, group=checkpoints)
def show(session: Session, options: Options) -> None:
    """Show a run at a checkpoint: its state, and the steps that were next.

    \b
    Example:
      holdfast checkpoints show 6eca4c13-89b6-47b8-9f78-4c0b03999354
      holdfast checkpoints show research@3
    """
    [name] = session.names(options.checkpoint)
    if "@" in name:
        found = find_position(session.store, name)
        at = checkpoint_at(session.store, found)
        if at is None:
            raise CheckpointNotFound(
                f"run {found.info.run!r} has no checkpoint there; `show {name}` shows its state"
            )
        info, seq = found.info, at.seq
    else:
        info, seq = find_checkpoint_info(session.journal, name)
    store, journal, codec = session.store, session.journal, ViewCodec()
    saved = decode_checkpoint(info.key, store.checkpoints(info.run, before=seq + 1, limit=1)[0], info.run)
    point, run = CheckpointView(info.run, saved), journal.load(info, codec, seq).run
    state = plain(state_view(run.root.cells, codec, info.run, saved.id, run.root.last_node, run.updated_at))
    resume = command_line("resume", saved.id, store=store.url)
    said = annotation_at(info, journal.load(info, CODEC).run, seq)
    if session.as_json:
        facts = {**point.as_json(), "workflow": info.workflow, "state": state, "resume": resume}
        print_json({**facts, "tags": said.tags, "keep": said.keep, "notes": said.notes})
        return
    print_facts(
        [
            ("checkpoint", saved.id),
            ("run", info.run),
            ("workflow", info.workflow),
            ("saved", local_time(saved.created_at)),
            ("wave", _wave(saved)),
            ("after", _steps(saved.nodes)),
            ("next", _steps(saved.next)),
            ("tags", ", ".join(said.tags)),
            ("kept", "for good" if said.keep else ""),
            *(("note", one_line(note.text, 500)) for note in said.notes),
            ("resume with", resume),
        ]
    )
    print_block("state", shortened(state, "--json"))


# Tags and notes.


TARGET = click.argument("target", metavar="RUN[@PLACE]")


@command(
    TARGET,
    click.argument("tags", metavar="[TAG...]", nargs=-1),
    repeated("--remove", "TAG", "Remove this tag."),
    BY,
    STORE,
    JSON,
)
def tag(session: Session, options: Options) -> None:
    """Tag a run or a checkpoint, or print its tags. `holdfast runs --tag` finds tagged runs.

    \b
    Example:
      holdfast runs tag research good reviewed
      holdfast runs tag research@3 before-the-crash
      holdfast runs tag research --remove good
    """
    tags, remove = options.tags, options.remove
    if not tags and not remove:
        _print_annotations(session, options.target, "tags")
        return
    parts = [f"tagged {', '.join(tags)}"] if tags else []
    parts += [f"no longer tagged {', '.join(remove)}"] if remove else []
    _annotate(session, options, "tag", ", ".join(parts), add=tags, remove=remove)


@command(TARGET, click.argument("text", metavar="[TEXT]", required=False), BY, STORE, JSON)
def note(session: Session, options: Options) -> None:
    """Add a note to a run or a checkpoint, or print the notes. Notes are never changed or removed.

    TEXT of - is read from stdin.

    \b
    Example:
      holdfast runs note research "the second draft is the better one"
      holdfast runs note research@5 "from here the prices are the new ones"
      holdfast runs note research
    """
    if options.text is None:
        _print_annotations(session, options.target, "notes")
        return
    content = sys.stdin.read().rstrip("\n") if options.text == "-" else options.text
    _annotate(session, options, "note", "noted", text=content)


@command(TARGET, flag("--no drop", "Let retention remove it again."), BY, STORE, JSON, group=checkpoints)
def keep(session: Session, options: Options) -> None:
    """Keep a checkpoint for good: no retention and no pruning removes it, nor its run.

    Without @PLACE it is the newest checkpoint of the run. `holdfast checkpoints clear` and `holdfast delete` still
    remove it.

    \b
    Example:
      holdfast checkpoints keep research@3
      holdfast checkpoints keep research@3 --no
    """
    done = "the checkpoint is no longer kept" if options.drop else "the checkpoint is kept"
    _annotate(session, options, "keep", done, keep=not options.drop)


def _annotate(session: Session, options: Options, name: str, done: str, **what: Any) -> None:
    """Add an annotation, and print what came of it."""
    [text] = session.names(options.target)
    answer = control.annotate(session.journal, text, by=options.by or me(), timeout=TIMEOUT, **what)
    info, applied = find_position(session.store, text).info, answer != control.ASKED
    later = "" if applied else "; the process that executes the run records it between two steps"
    facts = {"run_id": info.run, "command": name, "applied": applied, "status": info.status}
    session.print({**facts, "tags": info.tags}, f"{text}: {done}{later}")


def _print_annotations(session: Session, target: str, what: str) -> None:
    found = session.checkpoint(target)
    every = annotation_views(found.info, session.journal.load(found.info, CODEC).run)
    chosen = [said for said in every if found.seq in (None, said.seq)]
    if session.as_json:
        print_json({"run_id": found.info.run, "tags": found.info.tags, "annotations": chosen})
        return
    if what == "tags" and found.seq is None:
        click.echo(one_line(", ".join(found.info.tags) or "no tags", 500))
    lines = []
    for said in chosen:
        words = [*said.tags, *(["kept"] if said.keep else [])]
        if what == "tags" and said.seq and words:
            lines.append(one_line(f"{said.checkpoint_id}: {', '.join(words)}", 500))
        for written in said.notes if what == "notes" else ():
            by = f" by {one_line(written.by)}" if written.by else ""
            lines.append(f"{said.checkpoint_id or 'run'}, {local_time(written.at)}{by}")
            lines += [f"  {line}" for line in visible(written.text).splitlines()]
    if not lines and (what == "notes" or found.seq is not None):
        lines = [f"no {what}"]
    for line in lines:
        click.echo(line)


# Removing runs and checkpoints.


@command(
    value("--older-than", "TIME", "Runs that were not updated for so long: 7d, 12h, 30m, 1d12h."),
    number("--keep", 1, "N", "How many checkpoints each workflow keeps, the newest."),
    WORKFLOW_NAME,
    flag("--dry-run", "Print what would go, and change nothing."),
    YES,
    STORE,
    JSON,
    group=checkpoints,
)
def prune(session: Session, options: Options) -> None:
    """Remove old runs and old checkpoints.

    A workflow's last successful run stays, a run that can be resumed keeps its newest checkpoint unless it is too old,
    and a run that a live process executes is never touched.

    \b
    Example:
      holdfast checkpoints prune --older-than 7d --dry-run
      holdfast checkpoints prune --keep 5 --workflow research --yes
    """
    if options.older_than is None and options.keep is None:
        raise click.UsageError("say what may go: --older-than TIME, --keep N, or both")
    before = None
    if options.older_than is not None:
        before = time.time() - read_duration("--older-than", options.older_than)
    try:
        workflow = session.workflow(options.workflow)
        if workflow is not None and not session.store.runs(workflow=workflow, limit=1):
            raise RunNotFound(f"no runs of a workflow {workflow!r} in {session.url()}")
        found = planned(session.journal, before=before, keep=options.keep, workflow=workflow)
    except RunNotFound:
        if options.workflow is not None:
            raise
        found = []
    _remove(session, found, options.dry_run, options.yes)


@command(click.argument("workflow"), YES, STORE, JSON, group=checkpoints)
def clear(session: Session, options: Options) -> None:
    """Remove every run of a workflow and all their checkpoints, but no run that a live process executes.

    \b
    Example:
      holdfast checkpoints clear research --yes
    """
    workflow, store = session.workflow(options.workflow), session.store
    runs = store.runs(workflow=workflow)
    if not runs:
        raise RunNotFound(f"no runs of a workflow {workflow!r} in {store.url}")
    executed = [info for info in runs if has_owner(store, info)]
    for info in executed:
        click.echo(f"run {one_line(info.run)} is being executed and stays", err=True)
    going = [
        Removal(info, len(_stored(session.journal, info)), True) for info in runs if info not in executed
    ]
    _remove(session, going, False, options.yes)


@dataclass(frozen=True, slots=True)
class Removal(View):
    """What goes of one run: so many of its oldest checkpoints, or the `whole` run with all of them."""

    JSON: ClassVar[str] = "run_id=info.run workflow=info.workflow status=info.status checkpoints whole"

    info: RunInfo
    checkpoints: int
    whole: bool
    horizon: int = 0
    """The entry of the oldest checkpoint that stays."""


def _remove(session: Session, found: list[Removal], dry_run: bool, yes: bool) -> None:
    def amount() -> str:
        runs = count(sum(gone.whole for gone in found), "run")
        points = count(sum(gone.checkpoints for gone in found), "checkpoint")
        return f"{runs} and {points}" if found else "nothing"

    if found and not dry_run:
        session.confirm(f"remove {amount()}", yes)
        found = carry_out(session.journal, found)
    if dry_run and found and not session.as_json:
        columns = ("run", "workflow", "status", "checkpoints", "what goes")
        extents = {True: "the whole run", False: "its oldest checkpoints"}
        facts = [(gone, gone.info) for gone in found]
        print_table(
            columns,
            [
                [info.run, info.workflow, info.status, str(gone.checkpoints), extents[gone.whole]]
                for gone, info in facts
            ],
        )
    data = {
        "dry_run": dry_run,
        "runs": sum(gone.whole for gone in found),
        "checkpoints": sum(gone.checkpoints for gone in found),
        "removed": found,
    }
    session.print(data, f"{'would remove' if dry_run else 'removed'} {amount()}")


def planned(
    journal: Journal, *, before: float | None = None, keep: int | None = None, workflow: str | None = None
) -> list[Removal]:
    """Return what goes if runs not updated since `before` go and each workflow keeps `keep` checkpoints.

    A workflow's last successful run stays, and so does the newest checkpoint of a run that can be resumed, unless it is
    too old. Kept checkpoints stay in any case, and their runs with them, and so do results that an unfinished run that
    stays will reuse.
    """
    found: list[Removal] = []
    runs = journal.store.runs(workflow=workflow, before=before if keep is None else None)
    for name in dict.fromkeys(info.workflow for info in runs):
        stored = {info.run: (info, _stored(journal, info)) for info in runs if info.workflow == name}
        last_good = {info.run for info in last_successful(journal.store, name)}
        newest = sorted(
            ((each.at, each.seq, run) for run, (_, points) in stored.items() for each in points), reverse=True
        )
        kept = None if keep is None else {(run, seq) for _, seq, run in newest[:keep]}
        for info, points in stored.values():
            if not has_owner(journal.store, info):
                removal = _removal(info, points, kept, before, info.run in last_good)
                removal = removal and _without_kept(journal, removal, points)
                found += [removal] if removal else []
    going = {removal.info.run for removal in found if removal.whole}
    return [
        removal
        for removal in found
        if not removal.whole or going.issuperset(needed_by(journal, removal.info))
    ]


def _removal(
    info: RunInfo,
    stored: list[StoredCheckpoint],
    kept: set[tuple[str, int]] | None,
    before: float | None,
    last_good: bool,
) -> Removal | None:
    updated = max([info.updated_at, *(each.at for each in stored[:1])])
    if before is not None and updated < before and not last_good:
        return Removal(info, len(stored), True)
    if kept is None or not stored:
        return None
    staying = [each for each in stored if (info.run, each.seq) in kept]
    if not staying and info.status == RunStatus.COMPLETED and not last_good:
        return Removal(info, len(stored), True)
    horizon = (staying or stored[:1])[-1].seq
    older = sum(each.seq < horizon for each in stored)
    return Removal(info, older, False, horizon) if older else None


def _without_kept(journal: Journal, removal: Removal, stored: list[StoredCheckpoint]) -> Removal | None:
    """Return what may go of a run of which checkpoints are kept for good."""
    held = kept_checkpoints(journal, removal.info)
    if not held and removal.whole:
        return removal
    horizon = min([*held, *([removal.horizon] if removal.horizon else [])])
    horizon = held_back(journal, removal.info, horizon)
    older = sum(each.seq < horizon for each in stored)
    return Removal(removal.info, older, False, horizon) if older else None


def _stored(journal: Journal, info: RunInfo) -> list[StoredCheckpoint]:
    """Return the checkpoints of a run; none if its journal is damaged."""
    return [] if info.status == RunStatus.DAMAGED else journal.store.checkpoints(info.run)


def carry_out(journal: Journal, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned; return what went. A run that was resumed meanwhile stays."""
    gone, removals = [], list(removals)
    going = {removal.info.run for removal in removals if removal.whole}
    for removal in removals:
        run = removal.info.run
        now = journal.store.runs(run=run)
        if not now or has_owner(journal.store, now[0]) or now[0].updated_at != removal.info.updated_at:
            continue
        if removal.whole:
            delete_run(journal, run, going=going)
        else:
            prune_run(journal, now[0], removal.horizon)
        gone.append(removal)
    return gone
