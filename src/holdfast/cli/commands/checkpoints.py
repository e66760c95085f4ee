"""`holdfast checkpoints`: the places in runs' journals that a run can be resumed from or looked at."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.tables import print_facts, print_json, print_table
from holdfast.cli.display.text import count, moment, one_line
from holdfast.cli.main import SpreadGroup
from holdfast.cli.reading import confirm, json_option, reading, reading_moments, yes_option
from holdfast.cli.store_option import chosen_url, meant_run, store_option
from holdfast.engine.owner import has_owner
from holdfast.engine.retention import kept_checkpoints, last_successful
from holdfast.errors import CheckpointNotFound, RunNotFound
from holdfast.journal.copying import delete_run, held_back, needed_by, prune_run
from holdfast.journal.journal import Journal
from holdfast.state.state import state_view
from holdfast.stores.base import Mark, RunInfo
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.journal.checkpoint_ids import Checkpoint
    from holdfast.stores.base import Store


@click.group(cls=SpreadGroup)
def checkpoints() -> None:
    """List, show, keep, prune and clear checkpoints.

    \b
    Example:
      holdfast checkpoints list research
      holdfast checkpoints prune --older-than 7d --dry-run
    """


checkpoints.elsewhere = {"keep": "notes"}


@checkpoints.command("list")
@click.argument("run", required=False, metavar="[RUN|WORKFLOW]")
@click.option("--workflow", metavar="NAME", help="Those of all runs of this workflow.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@store_option
@json_option
def list_(run: str | None, workflow: str | None, limit: int, store: str | None, as_json: bool) -> int:
    """List checkpoints, newest first: of one run, of a workflow, or of the whole store.

    \b
    Example:
      holdfast checkpoints list research --limit 5
    """
    try:
        found = _found(reading(store), run, workflow, limit)
    except RunNotFound:
        if run is not None:
            raise
        found = []
    if as_json:
        facts = [_facts(run_id, checkpoint) for run_id, checkpoint in found]
        print_json({"store": chosen_url(store), "checkpoints": facts})
    elif found:
        rows = [_row(run_id, checkpoint) for run_id, checkpoint in found]
        print_table(("checkpoint", "run", "wave", "after", "next", "saved", "bytes"), rows)
    else:
        click.echo(f"no checkpoints in {chosen_url(store)}")
    return 0


def _found(
    journal: Journal, run: str | None, workflow: str | None, limit: int
) -> list[tuple[str, Checkpoint]]:
    from holdfast.journal.checkpoint_ids import read_mark
    from holdfast.views.runs import find_run_info

    if run is not None and workflow is not None:
        raise click.UsageError("give either a run or --workflow")
    infos = (
        _touched_last(journal.store, workflow, limit)
        if run is None
        else [find_run_info(journal, meant_run(journal.store, run))]
    )
    of_runs = [
        [
            (info.run, read_mark(info.key, mark, info.run))
            for mark in journal.store.marks(info.run, limit=limit)
        ]
        for info in infos
    ]
    merged = heapq.merge(*of_runs, key=lambda found: (found[1].created_at, found[1].seq), reverse=True)
    return list(itertools.islice(merged, limit))


def _touched_last(store: Store, workflow: str | None, limit: int) -> list[RunInfo]:
    """The runs that the newest checkpoints are of: a run that is not running was touched with its newest."""
    running = store.runs(workflow=workflow, status=["running"])
    others = {info.run: info for info in store.runs(workflow=workflow, limit=limit)}
    found = {**others, **{info.run: info for info in running}}.values()
    return [info for info in found if info.status != "damaged"]


def _facts(run_id: str, checkpoint: Checkpoint) -> dict[str, Any]:
    from holdfast.views.plain import iso

    return {
        "checkpoint_id": checkpoint.id,
        "run_id": run_id,
        "seq": checkpoint.seq,
        "wave": checkpoint.run_wave,
        "nodes": list(checkpoint.nodes),
        "next": list(checkpoint.next),
        "created_at": iso(checkpoint.created_at),
        "bytes": checkpoint.size,
    }


def _wave(found: Checkpoint) -> str:
    return "" if found.run_wave is None else str(found.run_wave)


def _row(run_id: str, found: Checkpoint) -> list[str]:
    after, then = _steps(found.nodes), _steps(found.next)
    return [found.id, run_id, _wave(found), after, then, moment(found.created_at), str(found.size)]


def _steps(nodes: tuple[str, ...]) -> str:
    """Nodes as the steps they belong to, items only counted."""
    from holdfast.graph.graph import base_name

    counts = Counter(map(base_name, nodes))
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counts.items()) or "-"


@checkpoints.command()
@click.argument("checkpoint", metavar="ID|RUN@PLACE")
@store_option
@json_option
def show(checkpoint: str, store: str | None, as_json: bool) -> int:
    """Show a run as it stood at a checkpoint: its state, and the steps that were next.

    RUN@3 is after wave 3, RUN@-1 one checkpoint before the newest, RUN@STEP after the last time that a step finished.

    \b
    Example:
      holdfast checkpoints show 6eca4c13-89b6-47b8-9f78-4c0b03999354
      holdfast checkpoints show research@3
    """
    from holdfast.cli.display.show import command, shortened
    from holdfast.journal.checkpoint_ids import read_mark
    from holdfast.views.plain import CODEC, ViewCodec, plain
    from holdfast.views.run_view import remark_at

    journal, (meant,) = reading_moments(store, checkpoint)
    info, seq = _meant(journal, meant)
    mark = read_mark(info.key, journal.store.marks(info.run, before=seq + 1, limit=1)[0], info.run)
    codec = ViewCodec()
    run = journal.load(info, codec, seq).run
    state = plain(state_view(run.root.cells, codec, info.run, mark.id, run.root.last_node, run.updated_at))
    resume = command("resume", mark.id, store=journal.store.url)
    said = remark_at(info, journal.load(info, CODEC).run, seq)
    if as_json:
        facts = {**_facts(info.run, mark), "workflow": info.workflow, "state": state, "resume": resume}
        print_json({**facts, **{name: said.as_json()[name] for name in ("tags", "keep", "notes")}})
        return 0
    print_facts(
        [
            ("checkpoint", mark.id),
            ("run", one_line(info.run)),
            ("workflow", one_line(info.workflow)),
            ("saved", moment(mark.created_at)),
            ("wave", _wave(mark)),
            ("after", one_line(_steps(mark.nodes))),
            ("next", one_line(_steps(mark.next))),
            ("tags", one_line(", ".join(said.tags))),
            ("kept", "for good" if said.keep else ""),
            *(("note", one_line(note.text, 500)) for note in said.notes),
            ("go on with", resume),
        ]
    )
    click.echo("\nstate")
    click.echo(shortened(state, "--json"))
    return 0


def _meant(journal: Journal, text: str) -> tuple[RunInfo, int]:
    """The run and the position of the checkpoint that somebody means."""
    from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
    from holdfast.views.runs import find_checkpoint_info

    if "@" not in text:
        return find_checkpoint_info(journal, text)
    moment = find_position(journal.store, text)
    point = checkpoint_at(journal.store, moment)
    if point is None:
        raise CheckpointNotFound(
            f"run {moment.info.run!r} has no checkpoint there; `show {text}` shows its state"
        )
    return moment.info, point.seq


@checkpoints.command()
@click.option(
    "--older-than", metavar="TIME", help="Runs that nobody touched for so long: 7d, 12h, 30m, 1d12h."
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="How many checkpoints each workflow keeps, the newest.",
)
@click.option("--workflow", metavar="NAME", help="Only this workflow.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@yes_option
@store_option
@json_option
def prune(
    older_than: str | None,
    keep: int | None,
    workflow: str | None,
    dry_run: bool,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Remove old runs and old checkpoints.

    A workflow's last successful run stays, a run that can be resumed keeps its newest checkpoint unless it is
    too old, and a run that a live process drives is never touched.

    \b
    Example:
      holdfast checkpoints prune --older-than 7d --dry-run
      holdfast checkpoints prune --keep 5 --workflow research --yes
    """

    if older_than is None and keep is None:
        raise click.UsageError("say what may go: --older-than TIME, --keep N, or both")
    before = None if older_than is None else time.time() - _seconds(older_than)
    try:
        journal = reading(store)
    except RunNotFound:
        return _told([], dry_run, as_json)
    found = planned(journal, before=before, keep=keep, workflow=workflow)
    return _remove(journal, found, dry_run, yes, as_json)


def _seconds(text: str) -> float:
    from holdfast.workflows.model import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise click.BadParameter(f"--older-than {text!r}: {error}") from None


@checkpoints.command()
@click.argument("workflow")
@yes_option
@store_option
@json_option
def clear(workflow: str, yes: bool, store: str | None, as_json: bool) -> int:
    """Remove every run of a workflow and all their checkpoints, but no run that a live process drives.

    \b
    Example:
      holdfast checkpoints clear research --yes
    """

    journal = reading(store)
    going, staying = whole_runs(journal, workflow)
    if not going and not staying:
        raise RunNotFound(f"no runs of a workflow {workflow!r} in {journal.store.url}")
    for info in staying:
        click.echo(f"run {one_line(info.run)} is being executed and stays", err=True)
    return _remove(journal, going, False, yes, as_json)


def _remove(journal: Journal, found: list[Removal], dry_run: bool, yes: bool, as_json: bool) -> int:

    if dry_run or not found:
        return _told(found, dry_run, as_json)
    confirm(f"remove {_sum(found)}", yes)
    return _told(carry_out(journal, found), False, as_json)


def _told(found: list[Removal], dry_run: bool, as_json: bool) -> int:
    if as_json:
        sums = {
            "runs": sum(gone.whole for gone in found),
            "checkpoints": sum(gone.checkpoints for gone in found),
        }
        print_json({"dry_run": dry_run, **sums, "removed": [gone.as_json() for gone in found]})
        return 0
    if dry_run and found:
        rows = [
            [gone.info.run, gone.info.workflow, gone.info.status, str(gone.checkpoints), _extent(gone)]
            for gone in found
        ]
        print_table(("run", "workflow", "status", "checkpoints", "what goes"), rows)
    click.echo(f"{'would remove' if dry_run else 'removed'} {_sum(found)}")
    return 0


def _extent(gone: Removal) -> str:
    return "the whole run" if gone.whole else "its oldest checkpoints"


def _sum(found: list[Removal]) -> str:
    if not found:
        return "nothing"
    runs = count(sum(gone.whole for gone in found), "run")
    return f"{runs} and {count(sum(gone.checkpoints for gone in found), 'checkpoint')}"


# Which runs and checkpoints may go, and removing them. A run that a live process drives is never touched.


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes of one run: so many of its oldest checkpoints, or the `whole` run with all of them."""

    info: RunInfo
    checkpoints: int
    whole: bool
    horizon: int = 0
    """The entry of the oldest checkpoint that stays."""

    def as_json(self) -> dict[str, Any]:
        """Keys: run_id, workflow, status, checkpoints, whole."""
        facts = {"run_id": self.info.run, "workflow": self.info.workflow, "status": self.info.status}
        return {**facts, "checkpoints": self.checkpoints, "whole": self.whole}


def planned(
    journal: Journal, *, before: float | None = None, keep: int | None = None, workflow: str | None = None
) -> list[Removal]:
    """What goes if runs not touched since `before` are dropped and each workflow keeps `keep` checkpoints.

    A workflow's last successful run stays, and so does the newest checkpoint of a run that can be resumed,
    unless it is too old. Checkpoints that somebody wants kept stay in any case, and their runs with them, and so does
    what an unfinished run that stays is to be given.
    """
    found: list[Removal] = []
    runs = journal.store.runs(workflow=workflow, before=before if keep is None else None)
    for name in dict.fromkeys(info.workflow for info in runs):
        of_name = [info for info in runs if info.workflow == name]
        marks = {info.run: _marks(journal, info) for info in of_name}
        last_good = {info.run for info in last_successful(journal.store, name)}
        kept = _newest(marks, keep)
        for info in of_name:
            if has_owner(journal.store, info):
                continue
            removal = _removal(info, marks[info.run], kept, before, info.run in last_good)
            if removal is not None:
                removal = _without_kept(journal, removal, marks[info.run])
            found += [removal] if removal else []
    going = {removal.info.run for removal in found if removal.whole}
    return [
        removal
        for removal in found
        if not removal.whole or going.issuperset(needed_by(journal, removal.info))
    ]


def _newest(marks: dict[str, list[Mark]], keep: int | None) -> set[tuple[str, int]] | None:
    if keep is None:
        return None
    every = sorted(((mark.at, mark.seq, run) for run, found in marks.items() for mark in found), reverse=True)
    return {(run, seq) for _, seq, run in every[:keep]}


def _removal(
    info: RunInfo, marks: list[Mark], kept: set[tuple[str, int]] | None, before: float | None, last_good: bool
) -> Removal | None:
    touched = max([info.updated_at, *(mark.at for mark in marks[:1])])
    if before is not None and touched < before and not last_good:
        return Removal(info, len(marks), True)
    if kept is None or not marks:
        return None
    staying = [mark for mark in marks if (info.run, mark.seq) in kept]
    if not staying and info.status == RunStatus.COMPLETED and not last_good:
        return Removal(info, len(marks), True)
    horizon = (staying or marks[:1])[-1].seq
    older = sum(mark.seq < horizon for mark in marks)
    return Removal(info, older, False, horizon) if older else None


def _without_kept(journal: Journal, removal: Removal, marks: list[Mark]) -> Removal | None:
    """What may go of a run of which somebody wants checkpoints kept for good."""
    held = kept_checkpoints(journal, removal.info)
    if not held and removal.whole:
        return removal
    horizon = min([*held, *([removal.horizon] if removal.horizon else [])])
    horizon = held_back(journal, removal.info, horizon)
    older = sum(mark.seq < horizon for mark in marks)
    return Removal(removal.info, older, False, horizon) if older else None


def whole_runs(journal: Journal, workflow: str) -> tuple[list[Removal], list[RunInfo]]:
    """The removal of every run of a workflow, and the runs that stay because a live process drives them."""
    runs = journal.store.runs(workflow=workflow)
    going = [info for info in runs if not has_owner(journal.store, info)]
    staying = [info for info in runs if has_owner(journal.store, info)]
    return [Removal(info, len(_marks(journal, info)), True) for info in going], staying


def _marks(journal: Journal, info: RunInfo) -> list[Mark]:
    """The checkpoints of a run; those of one whose journal is damaged do not count."""
    return [] if info.status == RunStatus.DAMAGED else journal.store.marks(info.run)


def carry_out(journal: Journal, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned; answer what went. A run that somebody took up meanwhile stays."""
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
