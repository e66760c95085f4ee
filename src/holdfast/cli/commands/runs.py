"""`holdfast runs`, `show` and `status`: how runs stand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.display.tables import json_text, print_json, print_table, terminal_width
from holdfast.cli.display.text import moment, one_line
from holdfast.cli.errors import COMPLETED, FAILED, INTERRUPTED, PAUSED
from holdfast.cli.main import SpreadGroup
from holdfast.cli.reading import (
    held_reason,
    how_to_resume,
    json_option,
    line_of,
    pauses_as_json,
    reading,
    reading_moments,
    reading_run,
    resume_command,
    standing,
    viewing,
)
from holdfast.cli.store_option import chosen_url, store_option
from holdfast.errors import RunNotFound
from holdfast.values import RunStatus, readable_step

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo
    from holdfast.views.run_view import PauseView, RunLine
    from holdfast.views.timeline import Timeline


GONE = ("dead", "orphaned")
"""Words for runs that count as running, and whose process is gone."""

STATUSES = (*(str(status) for status in RunStatus), *GONE)

EXIT_CODES = {
    RunStatus.COMPLETED: COMPLETED,
    RunStatus.RUNNING: COMPLETED,
    RunStatus.QUEUED: COMPLETED,
    RunStatus.FAILED: FAILED,
    RunStatus.CANCELLED: FAILED,
    RunStatus.PAUSED: PAUSED,
    RunStatus.INTERRUPTED: INTERRUPTED,
}


@click.group(cls=SpreadGroup, invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    multiple=True,
    help="Only runs that stand like this; may be given several times. `dead` and `orphaned` count as running, but "
    "their process is gone; workers go on with orphaned ones.",
)
@click.option("--queue", metavar="NAME", help="Only runs of this queue.")
@click.option("--tag", metavar="TAG", help="Only runs that are tagged with it.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@store_option
@json_option
@click.pass_context
def runs(
    ctx: click.Context,
    workflow: str | None,
    status: tuple[str, ...],
    queue: str | None,
    tag: str | None,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    """List the runs of a store, the one that was touched last first; or do something with one of them.

    \b
    Example:
      holdfast runs --status failed --status dead
      holdfast runs status 3f2a --wait
      holdfast runs rollback research@2
    """
    if ctx.invoked_subcommand is not None:
        return _refuse_options(ctx)
    url = chosen_url(store)
    try:
        found = _found(store, workflow, status, queue, tag, limit)
    except RunNotFound:
        found = []
    if as_json:
        print_json({"store": url, "runs": [line.as_json() for line in found]})
    elif found:
        print_table(*_fitting(found))
    else:
        filtered = workflow or status or queue or tag
        matching = " that match" if filtered else " yet; start one with: holdfast run WORKFLOW.yaml"
        click.echo(one_line(f"no runs in {url}{matching}", 2_000))
    return 0


runs.elsewhere = {
    "edit": "steer",
    "compare": "history",
    "rollback": "fork",
    "promote": "fork",
    "tag": "notes",
    "note": "notes",
}


def _refuse_options(ctx: click.Context) -> int:
    """Refuse options of the list in front of another command, which they do not reach."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            option = name.removeprefix("as_")
            raise click.UsageError(f"write --{option} after `runs {ctx.invoked_subcommand}`")
    return COMPLETED


def _found(
    store: str | None,
    workflow: str | None,
    status: tuple[str, ...],
    queue: str | None,
    tag: str | None,
    limit: int,
) -> list[RunLine]:
    from holdfast.engine.owner import liveness
    from holdfast.views.runs import run_list

    wanted = ["running" if name in GONE else name for name in status] or None
    some = limit if not {"running", *GONE} & {*status} else None
    journal = reading(store)
    found = run_list(
        journal,
        workflow=workflow,
        status=wanted,
        queue=queue,
        tag=tag,
        limit=some,
        is_alive=liveness(journal.store),
    )
    return [line for line in found if not status or _word(line) in status][:limit]


def _word(line: RunLine) -> str:
    if line.is_orphaned:
        return "orphaned"
    return "dead" if line.is_dead else str(line.status)


def _fitting(lines: list[RunLine]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The columns and rows of the list: whole if there is room, else with short times, then with fewer columns."""
    short, whole = "%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"
    due = ("due",) if any(line.due_at is not None for line in lines) else ()
    facts = ("run", "workflow", "status", *due)
    every = (*facts, "started", "updated", "next")
    ways = [(every, whole), (every, short), ((*facts, "updated", "next"), short)]
    ways += [((*facts, "updated"), short), (every[:3], short), (("run", "status"), short)]
    for columns, times in ways:
        rows = [[_cell(line, column, times) for column in columns] for line in lines]
        if _width(columns, rows) <= terminal_width() or columns == ("run", "status"):
            break
    return columns, rows


def _cell(line: RunLine, column: str, times: str) -> str:
    if column in ("started", "updated", "due"):
        at = {"started": line.started_at, "updated": line.updated_at, "due": line.due_at}[column]
        return at.astimezone().strftime(times) if at is not None else ""
    return {
        "run": line.run_id,
        "workflow": line.workflow,
        "status": _word(line),
        "next": ", ".join(line.next),
    }[column]


def _width(columns: tuple[str, ...], rows: list[list[str]]) -> int:
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


@click.command()
@click.argument("run", metavar="RUN|WORKFLOW")
@click.option("--state", is_flag=True, help="Print the whole state as JSON.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Print this key of the state as JSON; may be repeated.",
)
@click.option("--step", "step_name", metavar="NAME", help="Print all about one step.")
@click.option("--output", "only_output", is_flag=True, help="Print nothing but the run's output, as JSON.")
@store_option
@json_option
def show(
    run: str,
    state: bool,
    keys: tuple[str, ...],
    step_name: str | None,
    only_output: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Show all about a run: its steps, what it waits for, what came of it.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name or file, which means its
    latest run. RUN@3 is the run as it stood after wave 3, RUN@-1 one checkpoint before the newest, RUN@STEP
    after the last time that a step finished. Values of a state that is too large to be read as a whole are left out,
    which is said in their place; --key reads each for itself.

    \b
    Example:
      holdfast show research
      holdfast show research@2 --state
      holdfast show research --key draft
      holdfast show research --step search
      holdfast show research --output | jq .title
    """
    from holdfast.cli.display import show as show_text
    from holdfast.views.plain import plain

    if sum((state, bool(keys), step_name is not None, only_output)) > 1:
        raise click.UsageError("give only one of --state, --key, --step and --output")
    journal, view, past = viewing(store, run)
    if keys:
        print_json(show_text.values_of(view, keys))
    elif only_output:
        view.codec.renew()
        print_json(plain(view.output))
    elif step_name is not None:
        view.codec.renew()
        show_text.print_named_step(view, step_name, as_json)
    elif as_json:
        facts = view.as_json(state=state)
        pauses = pauses_as_json(view.pauses, journal.store.url, view.line.queue)
        held = None if past else held_reason(journal, view.line)
        print_json(
            {**facts, "pauses": pauses, "held": held, "store": journal.store.url, "as_of": past or None}
        )
    elif state:
        print_json(plain(view.visible_state))
    else:
        if past:
            click.echo(f"as it stood {past}\n")
        show_text.print_run(view, journal.store.url, None if past else held_reason(journal, view.line))
    return 0


@runs.command()
@click.argument("run", metavar="RUN|WORKFLOW")
@click.option("--wait", is_flag=True, help="Wait until the run stops: while it is driven, or a worker will.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --wait looks.",
)
@store_option
@json_option
def status(run: str, wait: bool, every: float, store: str | None, as_json: bool) -> int:
    """Say how a run stands, in a word and with the exit code.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name or file, which means its
    latest run. The exit code is 0 for completed and while it is running or queued, 1 for failed, cancelled and held
    back, 4 for paused, 130 for interrupted or if its process is gone. A run that lost its worker counts as
    running, for another takes it up; one that is held back was taken up three times and nothing came of it.

    \b
    Example:
      holdfast runs status research --wait && echo finished
    """
    from holdfast.views.runs import run_pauses

    journal, run = reading_run(store, run)
    url = journal.store.url
    line = line_of(journal, run)
    held = held_reason(journal, line)
    while wait and line.goes_on and held is None:
        time.sleep(every)
        line = line_of(journal, line.run_id)
        held = held_reason(journal, line)
    pauses = run_pauses(journal, journal.info(line.run_id)) if line.status == RunStatus.PAUSED else ()
    code = _code(line, held)
    if as_json:
        waiting = pauses_as_json(pauses, url, line.queue)
        print_json({**line.as_json(), "pauses": waiting, "held": held, "exit_code": code})
    elif held is not None:
        again = resume_command(line.run_id, url, line.queue)
        why = one_line(held, 500)
        click.echo(f"{one_line(line.run_id)} {line.status}, held back: {why}; let workers try again: {again}")
    else:
        click.echo(f"{one_line(line.run_id)} {standing(line)}{_what(journal, line, pauses)}")
    return code


def _code(line: RunLine, held: str | None) -> int:
    if held is not None:
        return FAILED
    return INTERRUPTED if line.is_dead and not line.is_orphaned else EXIT_CODES[line.status]


def _waits_for(pause: PauseView) -> str:
    if pause.is_wait and pause.until is not None:
        return f"{readable_step(pause.step)}: asleep until {moment(pause.until)}"
    return f"{pause.name or readable_step(pause.step)}: {pause.prompt}"


def _what(journal: Journal, line: RunLine, pauses: tuple[PauseView, ...]) -> str:
    if pauses:
        return ": " + "; ".join(one_line(_waits_for(pause)) for pause in pauses)
    if line.status == RunStatus.PAUSED:
        resume = how_to_resume(journal, journal.info(line.run_id), journal.store.url)
        return f", nothing is open; go on with: {resume}"
    return f", next: {one_line(', '.join(line.next))}" if line.next else ""


# `holdfast events`: what happened in a run, from its journal, and what is happening now.


OPEN = (RunStatus.RUNNING, RunStatus.PAUSED)
"""How a run stands that may go on by itself or once it is answered."""


@click.command()
@click.argument("run", metavar="RUN|WORKFLOW")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; a paused run has not ended.")
@click.option(
    "--since",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="SEQ",
    help="Only what was stored after this entry of the journal.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.02),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="How often --follow looks.",
)
@store_option
@json_option
def events(run: str, follow: bool, since: int, every: float, store: str | None, as_json: bool) -> int:
    """Tell what happened in a run, one line a moment, oldest first.

    RUN is a run's id or its beginning, or a workflow's name or file, which means its latest run. With --json
    every line is one JSON object with the keys seq, at, type, step, text and data.

    \b
    Example:
      holdfast events research --follow
      holdfast events research --json | jq -r 'select(.type == "node.error") | .text'
    """
    from holdfast.views.timeline import Timeline

    journal, run = reading_run(store, run)
    run_id = line_of(journal, run).run_id
    told = Timeline(journal, run_id, since)
    try:
        _print(told, as_json)
        while follow and _goes_on(journal, run_id, told):
            time.sleep(every)
            _print(told, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _print(told: Timeline, as_json: bool) -> None:
    for each in told.read():
        text = f"{moment(each.at)}  {each.seq:>5}  {one_line(each.text, 500)}"
        click.echo(json_text(each.as_json(), indent=None) if as_json else text)


def _goes_on(journal: Journal, run_id: str, told: Timeline) -> bool:
    if told.status not in OPEN:
        return False
    line = line_of(journal, run_id)
    is_lost = line.is_dead and (not line.is_orphaned or held_reason(journal, line) is not None)
    if is_lost and told.status == RunStatus.RUNNING:
        click.echo(f"the process of run {run_id!r} is gone; nothing follows until it is resumed", err=True)
        return False
    return True


# `holdfast runs cost`: what runs have used up, and what they saved.


BY = ("step", "model", "run", "workflow", "day")
_LONGEST = 1000


@runs.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1)
@click.option("--workflow", metavar="NAME", help="All runs of this workflow.")
@click.option("--since", metavar="TIME", help="Only what was used up in the last 7d, 12h, 30m.")
@click.option(
    "--by",
    type=click.Choice(BY),
    help="What to tell apart; the steps of one run, or several runs, unless it is given. Days are in UTC.",
)
@click.option("--family", is_flag=True, help="The RUN, what it was forked from, and all forks of these.")
@click.option("--ids", is_flag=True, help="Tell each visit and each item of a step apart.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many lines.")
@store_option
@json_option
def cost(
    runs: tuple[str, ...],
    workflow: str | None,
    since: str | None,
    by: str | None,
    family: bool,
    ids: bool,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    """Tell what runs have used up: tokens, money, time; what of it was in vain, and what resumes saved.

    RUN is a run's id or its beginning (4 characters or more), a workflow's name or file, which means its latest
    run, or a moment such as RUN@3, which means by then. Without one all runs count. What a fork inherited was used
    up by the run that it was forked from, so over several runs nothing is counted twice.

    \b
    Example:
      holdfast runs cost research
      holdfast runs cost research --family --by run
      holdfast runs cost --since 7d --by model --json
    """
    if runs and workflow is not None:
        raise click.UsageError("give either RUNs or --workflow")
    if family and len(runs) != 1:
        raise click.UsageError("--family takes one RUN")
    if ids and by not in (None, "step"):
        raise click.UsageError("--ids tells steps apart; give it with --by step, or without --by")
    begin = None if since is None else time.time() - _seconds(since)
    if len(runs) == 1 and by is None and not family and begin is None:
        return _of_one(runs[0], ids, limit, store, as_json)
    return _of_many(
        runs, workflow, begin, by or ("step" if ids else "run"), family, ids, limit, store, as_json
    )


def _seconds(text: str) -> float:
    from holdfast.workflows.model import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise click.BadParameter(f"--since: {error}") from None


def _of_one(target: str, ids: bool, limit: int, store: str | None, as_json: bool) -> int:
    from holdfast.cli.display.tables import print_ledger
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.views.usage import ledger

    journal, (meant,) = reading_moments(store, target)
    moment = find_position(journal.store, meant)
    found = ledger(journal, moment.info.run, upto=moment.seq)
    if as_json:
        print_json({**found.as_json(ids=ids), "store": journal.store.url})
    else:
        print_ledger(found, ids, limit)
    return 0


def _of_many(
    runs: tuple[str, ...],
    workflow: str | None,
    since: float | None,
    by: str,
    family: bool,
    ids: bool,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    from holdfast.cli.display.tables import print_rows
    from holdfast.views.charges import row_of, rows
    from holdfast.views.usage import charges_of

    journal, meant = reading_moments(store, *runs) if runs else (reading(store), [])
    found = _runs(journal, meant, workflow, since, family)
    unread: dict[str, str] = {}
    charges = list(
        charges_of(
            journal,
            [info.run for info in found],
            since=since,
            unreadable=lambda run, error: unread.update({run: str(error)}),
        )
    )
    whole, parts = row_of("total", charges), rows(charges, by, ids=ids)
    if as_json:
        print_json(
            {
                "store": journal.store.url,
                "by": by,
                "runs": len(found),
                "total": whole.as_json(),
                "rows": [row.as_json() for row in parts[:limit]],
                "more": max(0, len(parts) - limit),
                "unreadable": [{"run_id": run, "error": error} for run, error in unread.items()],
            }
        )
    elif found:
        print_rows(by, whole, parts, limit, len(found))
    else:
        click.echo(f"no runs in {journal.store.url} that match")
    for error in unread.values():
        click.echo(f"left out, since it cannot be read: {one_line(error, _LONGEST)}", err=True)
    return 0


def _runs(
    journal: Journal, meant: list[str], workflow: str | None, since: float | None, family: bool
) -> list[RunInfo]:
    """The runs that are meant, each once."""
    from holdfast.engine.time_travel.checkpoints import find_position
    from holdfast.values import RunStatus
    from holdfast.views.family import relatives

    if not meant:
        every = journal.store.runs(workflow=workflow)
        # The facts of a run whose process died are as old as its start.
        return [
            info
            for info in every
            if since is None or info.updated_at >= since or info.status == RunStatus.RUNNING
        ]
    moments = [find_position(journal.store, text) for text in meant]
    for text, named in zip(meant, moments, strict=True):
        if named.seq is not None:
            raise click.UsageError(f"{text} is a moment of a run; give it alone, without --by and --since")
    if family:
        return [info for info, _ in relatives(journal.store, moments[0].info)]
    return list({moment.info.run: moment.info for moment in moments}.values())
