"""`holdfast runs`, `show`, `events`, `runs status` and `runs cost`: what is known of runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import answerable, resume_line, resume_line_of
from holdfast.cli.errors import COMPLETED, FAILED, INTERRUPTED, STATUS_CODES
from holdfast.cli.main import SpreadGroup
from holdfast.cli.options import (
    JSON,
    RUN,
    RUN_AT,
    STORE,
    WORKFLOW_NAME,
    Options,
    choice,
    every,
    flag,
    limit,
    number,
    option,
    read_duration,
    repeated,
    value,
)
from holdfast.cli.render import (
    json_text,
    local_time,
    print_facts,
    print_json,
    print_table,
    spent_text,
    terminal_width,
)
from holdfast.cli.run_text import print_run, print_step, status_text, values_of
from holdfast.cli.session import Session, command
from holdfast.engine.owner import liveness
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.errors import RunNotFound
from holdfast.events import DIALECTS, NoOpObserver, Translator
from holdfast.fleet.queues import held_back
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.names import LazyModule
from holdfast.values import RunStatus, readable_step
from holdfast.views import usage
from holdfast.views.charges import row_of, rows
from holdfast.views.family import relatives
from holdfast.views.plain import CODEC, plain
from holdfast.views.run_view import Owner
from holdfast.views.runs import find_run_info, run_list, run_pauses, run_view
from holdfast.views.terminal import count, duration, money, one_line
from holdfast.views.timeline import Timeline

if TYPE_CHECKING:
    from holdfast.stores.base import RunInfo
    from holdfast.views.charges import Portion, Row
    from holdfast.views.run_view import PauseView, RunLine, RunView
    from holdfast.views.usage import RunLedger
    from holdfast.workflows import workflow as workflows

else:
    workflows = LazyModule("workflows.workflow")

GONE = ("dead", "orphaned")
"""Words for runs with the status running whose process is gone."""

STATUSES = (*(str(status) for status in RunStatus), *GONE)


def _question_ttl(config: Mapping[str, Any], info: RunInfo) -> float | None:
    return workflows.question_ttl(config, info)


def held_reason(session: Session, line: RunLine) -> str | None:
    """Return why workers do not resume a run of theirs; `None` if they do."""
    is_executed = line.status == RunStatus.RUNNING and not line.is_dead
    is_theirs = line.goes_on and bool(line.queue) and not is_executed
    return held_back(session.store, line.run_id) if is_theirs else None


@command(
    WORKFLOW_NAME,
    option(
        "--status",
        "Only runs with this status; may be repeated. The process of a `dead` or `orphaned` run is gone; workers "
        "resume orphaned ones.",
        type=click.Choice(STATUSES),
        multiple=True,
    ),
    value("--queue", "NAME", "Only runs of this queue."),
    value("--tag", "TAG", "Only runs with this tag."),
    limit(),
    STORE,
    JSON,
    cls=SpreadGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
)
def runs(session: Session, options: Options) -> None:
    """List the runs of a store, the last updated one first; or do something with one of them.

    \b
    Example:
      holdfast runs --status failed --status dead
      holdfast runs status 3f2a --wait
      holdfast runs rollback research@2
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
                flag = name.removeprefix("as_")
                raise click.UsageError(f"write --{flag} after `runs {context.invoked_subcommand}`")
        return
    try:
        found = _found(session, options)
    except RunNotFound:
        found = []
    filtered = options.workflow or options.status or options.queue or options.tag
    empty = " that match" if filtered else " yet; start one with: holdfast run WORKFLOW.yaml"
    columns, times = _fitting(found)
    session.print_rows(
        "runs",
        found,
        columns,
        lambda line: [_cell(line, column, times) for column in columns],
        f"no runs in {{url}}{empty}",
    )


runs.elsewhere = {
    "edit": "control",
    "extend": "control",
    "compare": "history",
    "rollback": "fork",
    "promote": "fork",
    "tag": "checkpoints",
    "note": "checkpoints",
}


def _found(session: Session, options: Options) -> list[RunLine]:
    status, workflow = options.status, session.workflow(options.workflow)
    found = run_list(
        session.journal,
        workflow=workflow,
        status=["running" if name in GONE else name for name in status] or None,
        queue=options.queue,
        tag=options.tag,
        limit=options.limit if not {"running", *GONE} & {*status} else None,
        is_alive=liveness(session.store),
    )
    return [line for line in found if not status or _word(line) in status][: options.limit]


def _word(line: RunLine) -> str:
    if line.is_orphaned:
        return "orphaned"
    return "dead" if line.is_dead else str(line.status)


def _fitting(lines: list[RunLine]) -> tuple[tuple[str, ...], str]:
    """Return the columns of the list and the form of times: all if there is room, else short times, then fewer."""
    short, whole = "%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"
    due = ("due",) if any(line.due_at is not None for line in lines) else ()
    facts = ("run", "workflow", "status", *due)
    every = (*facts, "started", "updated", "next")
    ways = [(every, whole), (every, short), ((*facts, "updated", "next"), short)]
    ways += [((*facts, "updated"), short), (every[:3], short), (("run", "status"), short)]
    for columns, times in ways:
        rows = [[_cell(line, column, times) for column in columns] for line in lines]
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= terminal_width():
            break
    return columns, times


def _cell(line: RunLine, column: str, times: str) -> str:
    if column in ("started", "updated", "due"):
        at = getattr(line, f"{column}_at")
        return at.astimezone().strftime(times) if at is not None else ""
    cells = {
        "run": line.run_id,
        "workflow": line.workflow,
        "status": _word(line),
        "next": ", ".join(line.next),
    }
    return cells[column]


# `holdfast show`.


@command(
    RUN_AT,
    flag("--state", "Print the whole state as JSON."),
    repeated("--key keys", "KEY", "Print this key of the state as JSON."),
    value("--step", "NAME", "Print all about one step."),
    flag("--output", "Print nothing but the run's output, as JSON."),
    STORE,
    JSON,
)
def show(session: Session, options: Options) -> None:
    """Show all about a run: its steps, what it waits for, its output.

    Values of a state that is too large to be read as a whole are left out, and replaced by a note; --key reads each by
    itself.

    \b
    Example:
      holdfast show research
      holdfast show research@2 --state
      holdfast show research --key draft
      holdfast show research --step search
      holdfast show research --output | jq .title
    """
    if sum((options.state, bool(options.keys), options.step is not None, options.output)) > 1:
        raise click.UsageError("give only one of --state, --key, --step and --output")
    view, past = view_of(session, options.run)
    url = session.store.url
    if options.keys:
        print_json(values_of(view, options.keys))
    elif options.output:
        view.codec.renew()
        print_json(plain(view.output))
    elif options.step is not None:
        view.codec.renew()
        print_step(view, options.step, session.as_json)
    elif session.as_json:
        pauses = answerable(view.pauses, url, view.line.queue)
        held = None if past else held_reason(session, view.line)
        facts = view.as_json(state=options.state)
        print_json({**facts, "pauses": pauses, "held": held, "store": url, "as_of": past or None})
    elif options.state:
        print_json(plain(view.visible_state))
    else:
        if past:
            click.echo(f"as of {past}\n")
        print_run(view, url, None if past else held_reason(session, view.line))


def view_of(session: Session, text: str) -> tuple[RunView, str]:
    """Return a run, and, if an earlier checkpoint of it is named, the words for that."""
    [name] = session.names(text)
    journal, store = session.journal, session.store
    if ("@" not in name or store.runs(run=name)) and not is_checkpoint_id(name):
        info = find_run_info(journal, name)
        return run_view(journal, info.run, is_alive=liveness(store), ttl_of=_question_ttl), ""
    found = find_position(store, name)
    view = run_view(journal, found.info.run, upto=found.seq, ttl_of=_question_ttl)
    status = RunStatus(journal.load(found.info, CODEC, found.seq).run.status)
    point = checkpoint_at(store, found)
    past = f"entry {found.seq}"
    if point is not None:
        inside = f" of {point.frame}" if point.frame else ""
        past = f"wave {point.wave}{inside}, checkpoint {point.id}"
    return replace(view, line=replace(view.line, status=status, owner=Owner())), past


# `holdfast runs status`.


@command(
    RUN,
    flag("--wait", "Wait until the run stops: while a process executes it, or a worker will."),
    every(1.0),
    STORE,
    JSON,
    group=runs,
)
def status(session: Session, options: Options) -> int:
    """Print the status of a run in a word, and return it as the exit code.

    The exit code is 0 for completed, running and queued, 1 for failed, cancelled and held, 4 for paused, 130 for
    interrupted or if its process is gone. A run that lost its worker counts as running, for another resumes it; a held
    run made no progress in three attempts.

    \b
    Example:
      holdfast runs status research --wait && echo finished
    """
    line = session.line(options.run)
    held = held_reason(session, line)
    while options.wait and line.goes_on and held is None:
        time.sleep(options.every)
        line = session.line(line.run_id)
        held = held_reason(session, line)
    info, url = session.journal.info(line.run_id), session.store.url
    pauses = run_pauses(session.journal, info, _question_ttl) if line.status == RunStatus.PAUSED else ()
    code = STATUS_CODES.get(line.status, FAILED)
    if held is not None:
        code, again = FAILED, resume_line(line.run_id, url, line.queue)
        text = f"{line.status}, held: {one_line(held, 500)}; let workers try again: {again}"
    else:
        code = INTERRUPTED if line.is_dead and not line.is_orphaned else code
        text = f"{status_text(line)}{_details(session, line, pauses)}"
    waiting = answerable(pauses, url, line.queue)
    data = {**line.as_json(), "pauses": waiting, "held": held, "exit_code": code}
    session.print(data, f"{one_line(line.run_id)} {text}")
    return code


def _details(session: Session, line: RunLine, pauses: Sequence[PauseView]) -> str:
    if pauses:
        return ": " + "; ".join(one_line(_waits_for(pause)) for pause in pauses)
    if line.status == RunStatus.PAUSED:
        resume = resume_line_of(session.journal, session.journal.info(line.run_id))
        return f", nothing is open; resume with: {resume}"
    return f", next: {one_line(', '.join(line.next))}" if line.next else ""


def _waits_for(pause: PauseView) -> str:
    if pause.is_wait and pause.until is not None:
        return f"{readable_step(pause.step)}: asleep until {local_time(pause.until)}"
    return f"{pause.name or readable_step(pause.step)}: {pause.prompt}"


# `holdfast events`.


@command(
    RUN,
    flag("-f --follow", "Continue until the run ends; a paused run has not ended."),
    number("--since", 0, "SEQ", "Only what was stored after this entry of the journal.", 0),
    flag("--replay", "Print the events at the pace at which they happened."),
    number("--speed", 0.001, "TIMES", "Replay so many times as fast.", 1.0),
    every(0.3),
    choice("--dialect", DIALECTS, "Name the types of events as another system does."),
    STORE,
    JSON,
)
def events(session: Session, options: Options) -> int:
    """Print what happened in a run, one line an event, oldest first.

    With --json every line is one JSON object with the keys seq, at, type, step, text and data. With --dialect lines
    have the types of the events, as another system names them.

    \b
    Example:
      holdfast events research --follow
      holdfast events research --replay --speed 20 --dialect task
      holdfast events research --json | jq -r 'select(.type == "node.error") | .text'
      holdfast events research --json --dialect task | jq -r 'select(.type == "task_error") | .text'
    """
    if options.follow and options.replay:
        raise click.UsageError(
            "--follow prints events as they happen, --replay those of the past; give one of them"
        )
    run_id = session.run(options.run).run
    timeline = Timeline(session.journal, run_id, options.since)
    try:
        _print_events(session, timeline, options.dialect, options.speed if options.replay else None)
        while options.follow and _continues(session, run_id, timeline):
            time.sleep(options.every)
            _print_events(session, timeline, options.dialect)
    except KeyboardInterrupt:
        return INTERRUPTED
    return COMPLETED


def _print_events(
    session: Session, timeline: Timeline, dialect: str | None, speed: float | None = None
) -> None:
    """Print the events that were stored since the last call; with a speed, at the pace at which they happened.

    In a dialect lines have its names of the types; what it has no events for is left out.
    """
    last, translate = None, Translator(NoOpObserver(), dialect or "node").translate
    width = max(map(len, DIALECTS[dialect or "node"].values()), default=0)
    for happened in timeline.read():
        if speed is not None and last is not None:
            time.sleep(max(0.0, (happened.at - last).total_seconds()) / speed)
        last, each = happened.at, translate(happened)
        if each is None:
            continue
        named = f"{each.type:<{width}}  " if dialect is not None else ""
        text = f"{local_time(each.at)}  {each.seq:>5}  {named}{one_line(each.text, 500)}"
        click.echo(json_text(each, indent=None) if session.as_json else text)


def _continues(session: Session, run_id: str, timeline: Timeline) -> bool:
    if timeline.status not in (RunStatus.RUNNING, RunStatus.PAUSED):
        return False
    line = session.line(run_id)
    is_lost = line.is_dead and (not line.is_orphaned or held_reason(session, line) is not None)
    if is_lost and timeline.status == RunStatus.RUNNING:
        click.echo(f"the process of run {run_id!r} is gone; nothing follows until it is resumed", err=True)
        return False
    return True


# `holdfast runs cost`.


BY = {"step": "step", "model": "model", "run": "run", "workflow": "workflow", "day": "day (UTC)"}


@command(
    click.argument("runs", metavar="[RUN[@PLACE]...]", nargs=-1),
    WORKFLOW_NAME,
    value("--since", "TIME", "Only what was used in the last 7d, 12h, 30m."),
    choice("--by", BY, "A row for each of these; by default the steps of one run, or runs."),
    flag("--family", "The RUN, what it was forked from, and all forks of these."),
    flag("--ids", "A row for each visit and each item of a step."),
    limit(),
    STORE,
    JSON,
    group=runs,
)
def cost(session: Session, options: Options) -> None:
    """Print what runs have used: tokens, money, time; what of it was wasted, and what resumes saved.

    RUN@3 means up to then. Without a RUN all runs count. What a fork inherited was used by the run that it was forked
    from, so over several runs nothing is counted twice.

    \b
    Example:
      holdfast runs cost research
      holdfast runs cost research --family --by run
      holdfast runs cost --since 7d --by model --json
    """
    names, by, ids = options.runs, options.by, options.ids
    if names and options.workflow is not None:
        raise click.UsageError("give either RUNs or --workflow")
    if options.family and len(names) != 1:
        raise click.UsageError("--family takes one RUN")
    if ids and by not in (None, "step"):
        raise click.UsageError("--ids makes rows of steps; give it with --by step, or without --by")
    since = None if options.since is None else time.time() - read_duration("--since", options.since)
    if len(names) == 1 and by is None and not options.family and since is None:
        found = session.checkpoint(names[0])
        ledger = usage.ledger(session.journal, found.info.run, upto=found.seq)
        if not session.as_json:
            _print_ledger(ledger, ids, options.limit)
        session.print({**ledger.as_json(ids=ids), "store": session.store.url})
        return
    chosen = _chosen(session, options, since)
    _print_costs(session, chosen, since, by or ("step" if ids else "run"), options)


def _chosen(session: Session, options: Options, since: float | None) -> list[RunInfo]:
    """Return the runs that are named, each once."""
    if not options.runs:
        workflow = session.workflow(options.workflow)
        found = session.store.runs(workflow=workflow)
        # The facts of a run whose process died are as old as its start.
        return [
            info
            for info in found
            if since is None or info.updated_at >= since or info.status == RunStatus.RUNNING
        ]
    named = {text: find_position(session.store, text) for text in session.names(*options.runs)}
    for text, found_at in named.items():
        if found_at.seq is not None:
            raise click.UsageError(f"{text} is a checkpoint; give it alone, without --by and --since")
    infos = [found_at.info for found_at in named.values()]
    if options.family:
        return [info for info, _ in relatives(session.store, infos[0])]
    return list({info.run: info for info in infos}.values())


def _print_costs(
    session: Session, found: list[RunInfo], since: float | None, by: str, options: Options
) -> None:
    unread: dict[str, str] = {}
    charges = list(
        usage.charges_of(
            session.journal,
            [info.run for info in found],
            since=since,
            unreadable=lambda run, error: unread.update({run: str(error)}),
        )
    )
    whole, parts, limit = row_of("total", charges), rows(charges, by, ids=options.ids), options.limit
    data: dict[str, Any] = {
        "store": session.store.url,
        "by": by,
        "runs": len(found),
        "total": whole,
        "rows": parts[:limit],
        "more": max(0, len(parts) - limit),
        "unreadable": [{"run_id": run, "error": error} for run, error in unread.items()],
    }
    if session.as_json or not found:
        session.print(data, f"no runs in {session.store.url} that match")
    else:
        facts = [("spent", spent_text(whole.spent) or "nothing"), ("wasted", _wasted(whole))]
        print_facts([("runs", str(len(found))), *facts, ("time", f"{duration(whole.seconds)} in steps")])
        _print_rows(by, parts, limit)
    for error in unread.values():
        click.echo(f"left out, since it cannot be read: {one_line(error, 1000)}", err=True)


def _print_ledger(ledger: RunLedger, ids: bool, limit: int) -> None:
    own = ledger.own
    saved = f"{_portion(ledger.saved)}, by {count(ledger.resumes, 'resume')}" if ledger.resumes else ""
    print_facts(
        [
            ("run", ledger.run_id),
            ("workflow", ledger.workflow),
            ("status", str(ledger.status)),
            ("spent", spent_text(ledger.total) or "nothing"),
            ("before the fork", spent_text(ledger.inherited)),
            ("wasted", _wasted(own)),
            ("time", f"{duration(own.seconds)} in steps, executed for {duration(ledger.executed_seconds)}"),
            ("saved", saved),
            ("reused", f"{_portion(ledger.reused)}, from other runs" if ledger.reused.steps else ""),
        ]
    )
    _print_rows("step", ledger.by_step(ids=ids), limit)
    _print_rows("model", ledger.by_model(), limit)


def _wasted(row: Row) -> str:
    parts = [money(row.wasted.cost) if row.wasted.cost else ""]
    parts.append(duration(row.wasted_seconds) if row.wasted_seconds else "")
    return ", ".join(part for part in parts if part)


def _portion(portion: Portion) -> str:
    cost = f", {money(portion.cost)}" if portion.cost else ""
    return f"{count(portion.steps, 'step')}, {duration(portion.seconds)}{cost}"


def _print_rows(by: str, rows: Sequence[Row], limit: int) -> None:
    if not rows:
        return
    timed = ("done", "time") if by != "model" else ()
    click.echo()
    columns = (BY[by], *timed, "calls", "in", "out", "cost", "wasted")
    print_table(columns, [_cells(row, bool(timed)) for row in rows[:limit]])
    if len(rows) > limit:
        click.echo(f"… {len(rows) - limit} more; see them with --limit {len(rows)}")


def _cells(row: Row, timed: bool) -> list[str]:
    spent = row.spent
    cost = money(spent.cost) + ("+" if spent.unpriced else "")
    numbers = [str(spent.calls), str(spent.input_tokens), str(spent.output_tokens), cost]
    times = [str(row.steps or ""), duration(row.seconds)] if timed else []
    return [row.name or "(unnamed)", *times, *(numbers if spent.calls else [""] * 4), _wasted(row)]
