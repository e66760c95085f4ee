"""A run, its pauses and its steps as text: what `holdfast show` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_lines import (
    answer_line,
    app_words,
    command_line,
    doubt_lines,
    resume_line,
    skip_lines,
)
from holdfast.cli.render import (
    local_time,
    print_block,
    print_facts,
    print_json,
    print_table,
    shortened,
    spent_text,
    terminal_width,
)
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import plain, preview, size_text, user_trace
from holdfast.views.terminal import count, duration, one_line, visible
from holdfast.views.timeline import commit_text, host_text, packages_text

if TYPE_CHECKING:
    from holdfast.views.run_view import AnnotationView, PauseView, RunLine, RunView, StepView


def status_text(line: RunLine) -> str:
    """Return the status of a run in a few words."""
    if line.is_orphaned:
        return "running (its process is gone; a worker resumes it)"
    return "dead (running, but its process is gone)" if line.is_dead else str(line.status)


def print_run(view: RunView, url: str, held: str | None = None) -> None:
    """Print all about a run; `held` is why workers do not resume it, if they do not."""
    print_facts([*_facts(view, url), ("held", one_line(held or "", 500))])
    for said in view.annotations:
        _print_annotation(said)
    if view.steps:
        click.echo()
        print_table(("step", "status", "visits", "time", "output"), map(_row, view.steps))
    for pause in view.pauses:
        _print_pause(pause, url, view.line.queue)
    if view.output is not None and view.line.status == RunStatus.COMPLETED:
        whole = command_line("show", view.run_id, "--output", store=url)
        print_block("output", shortened(plain(view.output), whole))
    _print_next_command(view, url, held)


def _print_next_command(view: RunView, url: str, held: str | None) -> None:
    line = view.line
    app = view.app if view.workflow_file is None else None
    words = app_words(app.place) if app is not None and not line.queue else []
    lost = line.is_dead and not line.is_orphaned
    answered = line.status == RunStatus.PAUSED and not view.pauses
    stopped = line.status in (RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.CANCELLED)
    if view.fault is not None and view.fault.type == "StepInterrupted":
        ways = doubt_lines(view.run_id, url, app=app, words=words)
        print_block("find out whether it took effect, then resume with one of:", "\n".join(ways))
    elif view.fault is not None and view.fault.type == "ParallelWrite" and stopped:
        first, *ways = skip_lines(
            view.run_id,
            view.fault.step,
            url,
            app=None if line.queue else app,
            words=words,
        )
        print_block(first, "\n".join(ways))
    elif held is not None:
        click.echo(f"\nlet workers try again: {resume_line(view.run_id, url, line.queue)}")
    elif lost or answered or stopped:
        resume = resume_line(view.run_id, url, line.queue, app=app)
        click.echo(f"\nresume with: {resume}")


def _print_annotation(said: AnnotationView) -> None:
    """Print the notes to a run or a checkpoint, and the tags of a checkpoint; those of a run are among its facts."""
    where = f"checkpoint {said.checkpoint_id}" if said.checkpoint_id else "run"
    if said.checkpoint_id and said.tags:
        click.echo(f"\n{where} is tagged {one_line(', '.join(said.tags))}")
    for note in said.notes:
        by = f" by {one_line(note.by)}" if note.by else ""
        click.echo(f"\nnote to the {where}{by}, {local_time(note.at)}")
        for line in visible(note.text).splitlines():
            click.echo(f"  {line}")


def _facts(view: RunView, url: str) -> list[tuple[str, str]]:
    line, source, fault = view.line, view.workflow_file or {}, view.fault
    file = f"{source['path']} ({str(source.get('digest'))[:12]})" if source.get("path") else ""
    place = f"{fault.step}: " if fault is not None and fault.step else ""
    newest, refused, source_text = view.checkpoint_id or "none", "", ""
    if view.refusals:
        last = view.refusals[-1]
        text = f"{last.command}: {last.reason}"
        refused = one_line(f"{count(view.commands_refused, 'command')}, the last: {text}", 300)
    if (origin := view.provenance) is not None:
        confirmed = origin.confirmation
        who = "not confirmed by anybody" if confirmed is None else f"confirmed by {confirmed.by}"
        source_text = f"{origin.source}, {origin.signer}, {who}"
    facts = [
        ("run", view.run_id),
        ("workflow", line.workflow),
        ("status", status_text(line)),
        ("error", f"{place}{fault}" if fault is not None else ""),
        ("owner", f"process {line.owner.pid} on {line.owner.host}" if line.owner.pid else ""),
        ("queue", f"{line.queue}, priority {line.priority}" if line.queue and line.priority else line.queue),
        ("due", local_time(line.due_at)),
        ("file", file),
        ("store", url),
        ("started", local_time(line.started_at)),
        ("updated", local_time(line.updated_at)),
        ("steps", f"{view.done} done in {duration(view.seconds)}"),
        ("spent", spent_text(view.ledger)),
        ("checkpoints", f"{view.checkpoints}, {size_text(view.size)}, newest {newest}"),
        ("refused", refused),
        ("forked from", f"{view.parent[0]} at entry {view.parent[1]}" if view.parent else ""),
        ("came from", source_text),
        ("tags", ", ".join(view.tags)),
        ("kept", ", ".join(said.checkpoint_id or "" for said in view.annotations if said.keep)),
        ("executed on", host_text(view.facts)),
        ("code", commit_text(view.facts)),
        ("with", packages_text(view.facts)),
        ("inputs", preview(view.inputs, 300) if view.inputs else ""),
    ]
    return [(name, one_line(text, 500)) for name, text in facts]


def _row(step: StepView) -> list[str]:
    attempts = count(step.attempts, "attempt")
    retries = f" ({attempts})" if step.attempts > step.visits and not step.items else ""
    time = duration(step.seconds) if step.visits else ""
    width = max(40, terminal_width() - 60)
    if step.fault is not None and step.status in ("failed", "retrying", "skipped"):
        outcome = str(step.fault)
    else:
        outcome = step.note or step.preview(width)
    return [step.name, _status(step), f"{step.visits or ''}{retries}", time, one_line(outcome, width)]


def _status(step: StepView) -> str:
    if (items := step.items) is None:
        return step.status
    numbers = {name: getattr(items, name) for name in ("failed", "skipped", "running")}
    others = [f"{number} {name}" for name, number in numbers.items() if number]
    return ", ".join([f"{step.status} {items.completed}/{items.total}", *others])


def _print_pause(pause: PauseView, url: str, queue: str) -> None:
    until = f", until {local_time(pause.until)}" if pause.until else ""
    click.echo(f"\nwaits at {one_line(readable_step(pause.step))} since {local_time(pause.since)}{until}")
    for text in visible(pause.prompt).splitlines():
        click.echo(f"  {text}")
    click.echo(f"  takes {one_line(pause.takes)}")
    if not pause.is_wait:
        click.echo(f"  answer with: {answer_line(pause, url, queue)}")


# One step.


def print_step(view: RunView, name: str, as_json: bool) -> None:
    """Print all about the step, or the item as in `work[7]`, of that name."""
    base, bracket, rest = name.partition("[")
    step = view.step(name) or view.step(base)
    if step is None:
        known = ", ".join(known.name for known in view.steps)
        several = [inner.name for inner in view.steps_inside(base)]
        meant = f"did you mean {' or '.join(map(repr, several))}?" if several else f"it has: {known}"
        raise click.BadParameter(f"run {view.run_id!r} has no step {name!r}; {meant}")
    if bracket and step is not view.step(name):
        _print_item(view, step, rest.removesuffix("]"), as_json)
    elif as_json:
        print_json(step.as_json(full=True))
    else:
        _print_step(view, step)


def _print_step(view: RunView, step: StepView) -> None:
    print_facts(_step_facts(view, step))
    trace = user_trace(step.fault.trace) if step.fault is not None else ""
    if trace:
        click.echo(f"\n{visible(trace).rstrip()}")
    parts: dict[str, Any] = {} if step.result is None else {"result": step.result}
    if step.items is not None:
        lists = {"outputs": step.output, "errors": step.item_errors}
        parts |= {title: value for title, value in lists.items() if value}
    for title, value in parts.items():
        print_block(title, shortened(plain(value), "--json"))


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
        print_block(name, shortened(plain(value), "--json"))


def _step_facts(view: RunView, step: StepView) -> Iterator[tuple[str, str]]:
    yield "step", step.name
    yield "run", view.run_id
    yield "status", _status(step)
    yield "visits", str(step.visits)
    yield "attempts", str(step.attempts)
    yield "time", duration(step.seconds)
    yield "started", local_time(step.started_at)
    yield "ended", local_time(step.ended_at)
    yield "tried again", local_time(step.retry_at)
    yield "note", one_line(step.note)
    yield "error", one_line(str(step.fault), 500) if step.fault else ""


def values_of(view: RunView, keys: Iterable[str]) -> dict[str, Any]:
    """Return keys of a run's state as plain data, each read by itself."""
    unknown = [key for key in keys if key not in view.state]
    if unknown:
        known = one_line(", ".join(view.state), 500) or "none"
        raise click.BadParameter(
            f"the state of run {view.run_id!r} has no key {unknown[0]!r}; it has: {known}"
        )
    return {key: plain(view.value(key)) for key in keys}
