"""How `holdfast show` and its kin look as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.closing import command, doubt_commands
from holdfast.cli.display.tables import print_facts, print_json, print_table, terminal_width
from holdfast.cli.display.text import count, duration, moment, money, one_line, visible
from holdfast.cli.display.traces import user_trace
from holdfast.cli.errors import worded
from holdfast.cli.reading import answer_command, resume_command, standing
from holdfast.values import RunStatus, readable_step
from holdfast.views import plain, preview
from holdfast.views.facts import code_told, others_told, place_told
from holdfast.views.plain import size_text

if TYPE_CHECKING:
    from holdfast.views import Items, Ledger, PauseView, RunLine, RunView, StepView
    from holdfast.views.remarks import RemarkView

MOST = 4000
"""How many characters of an output are shown."""


def print_run(view: RunView, url: str, held: str | None = None) -> None:
    """Print all about a run; `held` is why workers leave it alone, if they do."""
    print_facts([*_facts(view, url), ("held back", one_line(worded(held or ""), 500))])
    for said in view.remarks:
        _print_remark(said)
    if view.steps:
        click.echo()
        print_table(("step", "status", "visits", "time", "output"), [_row(step) for step in view.steps])
    for pause in view.pauses:
        print_pause(pause, url, view.line.queue)
    if view.output is not None and view.line.status == RunStatus.COMPLETED:
        click.echo("\noutput")
        click.echo(shortened(view.output, command("show", view.run_id, "--output", store=url)))
    fault = view.fault
    if fault is not None and fault.type == "StepInterrupted":
        click.echo("\nlook what became of it, then go on with one of:")
        click.echo("\n".join(doubt_commands(view.run_id, url, in_program=view.flow is None)))
    elif held is not None:
        click.echo(f"\nlet workers try again: {resume_command(view.run_id, url, view.line.queue)}")
    elif (
        (view.line.is_dead and not view.line.is_orphaned)
        or _is_to_be_resumed(view)
        or view.line.status
        in (
            RunStatus.FAILED,
            RunStatus.INTERRUPTED,
            RunStatus.CANCELLED,
        )
    ):
        of_program = view.flow is None and not view.line.queue
        click.echo(
            f"\ngo on with: {resume_command(view.run_id, url, view.line.queue, is_of_program=of_program)}"
        )


def _print_remark(said: RemarkView) -> None:
    """Print the notes to a run or a checkpoint, and the tags of a checkpoint; those of a run are among its facts."""
    where = f"checkpoint {said.checkpoint_id}" if said.checkpoint_id else "run"
    if said.checkpoint_id and said.tags:
        click.echo(f"\n{where} is tagged {one_line(', '.join(said.tags))}")
    for note in said.notes:
        by = f" by {one_line(note.by)}" if note.by else ""
        click.echo(f"\nnote to the {where}{by}, {moment(note.at)}")
        for line in visible(note.text).splitlines():
            click.echo(f"  {line}")


def _is_to_be_resumed(view: RunView) -> bool:
    """Whether a paused run waits for nothing any more but to be resumed."""
    return view.line.status == RunStatus.PAUSED and not view.pauses


def _facts(view: RunView, url: str) -> list[tuple[str, str]]:
    line, flow = view.line, view.flow or {}
    file = f"{flow['path']} ({str(flow.get('digest'))[:12]})" if flow.get("path") else ""
    fault = view.fault
    place = f"{fault.step}: " if fault is not None and fault.step else ""
    who = f"process {line.driver.pid} on {line.driver.host}" if line.driver.pid else ""
    return [
        ("run", view.run_id),
        ("workflow", line.workflow),
        ("status", standing(line)),
        ("error", one_line(worded(f"{place}{fault}"), 500) if fault is not None else ""),
        ("driver", who),
        ("queue", _queue(line)),
        ("due", moment(line.due_at) if line.due_at is not None else ""),
        ("file", one_line(file)),
        ("store", url),
        ("started", moment(line.started_at)),
        ("updated", moment(line.updated_at)),
        ("steps", f"{view.done} done in {duration(view.seconds)}"),
        ("spent", _usage(view.ledger)),
        ("checkpoints", f"{view.checkpoints}, {size_text(view.size)}, newest {view.checkpoint_id or 'none'}"),
        ("refused", _refused(view)),
        ("forked from", f"{view.parent[0]} at entry {view.parent[1]}" if view.parent else ""),
        ("came from", one_line(_provenance(view), 300)),
        ("tags", one_line(", ".join(view.tags))),
        ("kept", one_line(", ".join(said.checkpoint_id for said in view.remarks if said.keep), 500)),
        ("driven on", one_line(place_told(view.facts), 300)),
        ("code", one_line(code_told(view.facts), 300)),
        ("with", one_line(others_told(view.facts), 500)),
        ("inputs", one_line(preview(view.inputs, 300)) if view.inputs else ""),
    ]


def _provenance(view: RunView) -> str:
    origin = view.provenance
    if origin is None:
        return ""
    confirmed = origin.confirmation
    who = "not confirmed by anybody" if confirmed is None else f"confirmed by {confirmed.by}"
    return f"{origin.source}, {origin.signer}, {who}"


def _queue(line: RunLine) -> str:
    return f"{line.queue}, priority {line.priority}" if line.queue and line.priority else line.queue


def _refused(view: RunView) -> str:
    if not view.refusals:
        return ""
    last = view.refusals[-1]
    told = worded(f"{last.command}: {last.reason}")
    return one_line(f"{count(view.commands_refused, 'command')}, the last: {told}", 300)


def _usage(ledger: Ledger) -> str:
    if not ledger.calls:
        return ""
    unpriced = f", {ledger.unpriced} without a price" if ledger.unpriced else ""
    tokens = f"{ledger.input_tokens} tokens in, {ledger.output_tokens} out"
    return f"{count(ledger.calls, 'call')}, {tokens}, {money(ledger.cost)}{unpriced}"


def _row(step: StepView) -> list[str]:
    status = step.status if step.items is None else f"{step.status} {_progress(step.items)}"
    retries = (
        f" ({count(step.attempts, 'attempt')})" if step.attempts > step.visits and not step.items else ""
    )
    time = duration(step.seconds) if step.visits else ""
    return [step.name, status, f"{step.visits or ''}{retries}", time, _outcome(step)]


def _progress(items: Items) -> str:
    parts = [f"{items.completed}/{items.total}"]
    for name in ("failed", "skipped", "running"):
        if getattr(items, name):
            parts.append(f"{getattr(items, name)} {name}")
    return ", ".join(parts)


def _outcome(step: StepView) -> str:
    width = max(40, terminal_width() - 60)
    if step.fault is not None and step.status in ("failed", "retrying", "skipped"):
        return one_line(worded(str(step.fault)), width)
    return one_line(step.note or step.preview(width), width)


def print_pause(pause: PauseView, url: str, queue: str = "") -> None:
    """Print a question and how to answer it."""
    until = f", until {moment(pause.until)}" if pause.until else ""
    click.echo(f"\nwaits at {one_line(readable_step(pause.step))} since {moment(pause.since)}{until}")
    for text in visible(pause.prompt).splitlines():
        click.echo(f"  {text}")
    click.echo(f"  takes {one_line(pause.takes)}")
    if not pause.is_wait:
        click.echo(f"  answer with: {answer_command(pause, url, queue)}")


def print_step(view: RunView, step: StepView) -> None:
    """Print all about one step of a run."""
    print_facts(list(_step_facts(view, step)))
    trace = user_trace(step.fault.trace) if step.fault is not None else ""
    if trace:
        click.echo(f"\n{visible(trace).rstrip()}")
    if step.result is not None:
        click.echo("\nresult")
        click.echo(shortened(step.result, "--json"))
    if step.items is not None:
        _print_part("outputs", step.output)
        _print_part("errors", step.item_errors)


def _print_part(title: str, value: object) -> None:
    if value:
        click.echo(f"\n{title}")
        click.echo(shortened(value, "--json"))


def print_named_step(view: RunView, name: str, as_json: bool) -> None:
    """Print all about the step, or the item as in `work[7]`, of that name."""
    base, bracket, rest = name.partition("[")
    step = view.step(name) or view.step(base)
    if step is None:
        known = ", ".join(known.name for known in view.steps)
        raise click.BadParameter(f"run {view.run_id!r} has no step {name!r}; it has: {known}")
    if bracket and step.name == base:
        _print_item(view, step, rest.removesuffix("]"), as_json)
    elif as_json:
        print_json(step.as_json(full=True))
    else:
        print_step(view, step)


def _print_item(view: RunView, step: StepView, key: str, as_json: bool) -> None:
    found = step.item_results
    if key not in found:
        known = ", ".join([*found][:20]) or "none yet"
        raise click.BadParameter(f"step {step.name!r} has no finished item {key!r}; finished: {known}")
    item = {name: value for name, value in found[key].items() if name != "visit"}
    if as_json:
        print_json(plain({"name": f"{step.name}[{key}]", **item}))
        return
    status = "failed" if "error" in item else "completed"
    print_facts([("item", f"{step.name}[{key}]"), ("run", view.run_id), ("status", status)])
    for name, value in item.items():
        click.echo(f"\n{name}")
        click.echo(shortened(value, "--json"))


def _step_facts(view: RunView, step: StepView) -> Iterator[tuple[str, str]]:
    yield "step", step.name
    yield "run", view.run_id
    yield "status", step.status if step.items is None else f"{step.status} {_progress(step.items)}"
    yield "visits", str(step.visits)
    yield "attempts", str(step.attempts)
    yield "time", duration(step.seconds)
    yield "started", moment(step.started_at) if step.started_at else ""
    yield "ended", moment(step.ended_at) if step.ended_at else ""
    yield "tried again", moment(step.retry_at) if step.retry_at else ""
    yield "note", one_line(step.note)
    yield "error", one_line(worded(str(step.fault)), 500) if step.fault else ""


def values_of(view: RunView, keys: Iterable[str]) -> dict[str, Any]:
    """Return keys of a run's state as JSON carries them, each read for itself."""
    unknown = [key for key in keys if key not in view.state]
    if unknown:
        known = one_line(", ".join(view.state), 500) or "none"
        raise click.BadParameter(
            f"the state of run {view.run_id!r} has no key {unknown[0]!r}; it has: {known}"
        )
    return {key: plain(view.value(key)) for key in keys}


def shortened(value: object, rest: str) -> str:
    """A value as indented JSON; of a long one the beginning, and what prints the rest."""
    text = visible(json.dumps(plain(value), indent=2, ensure_ascii=False))
    if len(text) <= MOST:
        return text
    return f"{text[:MOST]}\n… {len(text) - MOST} characters more: {rest}"
