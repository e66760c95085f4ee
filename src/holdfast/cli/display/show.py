"""How `holdfast show` and its kin look as text."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import errors
from holdfast.cli.display.tables import print_facts, print_json, print_table, terminal_width
from holdfast.cli.display.text import (
    as_json,
    count,
    duration,
    moment,
    money,
    one_line,
    plain,
    user_trace,
    visible,
)
from holdfast.cli.reading import answer_command, pauses_as_json, resume_command, standing
from holdfast.cli.store_option import absolute_url, default_url, same_store
from holdfast.cli.targets import Kept
from holdfast.values import RunStatus, readable_step
from holdfast.views.plain import plain as views_plain
from holdfast.views.plain import preview, size_text
from holdfast.views.run_view import NOTHING, Counts
from holdfast.views.timeline import code_told, others_told, place_told

if TYPE_CHECKING:
    from holdfast.engine.settings import Stats
    from holdfast.views.run_view import Items, Ledger, PauseView, RemarkView, RunLine, RunView, StepView


# How a drive ended: as lines for people, as one JSON document, and as an exit code.


OUTPUT_LIMIT = 4000
"""How many characters of an output are shown; `--json` and `holdfast show` have all."""

_CODES = {
    RunStatus.COMPLETED: errors.COMPLETED,
    RunStatus.PAUSED: errors.PAUSED,
    RunStatus.INTERRUPTED: errors.INTERRUPTED,
    RunStatus.RUNNING: errors.COMPLETED,
    RunStatus.QUEUED: errors.COMPLETED,
}


def status_code(status: str) -> int:
    """The exit code that mirrors how a run stands; one that still runs is no failure."""
    return _CODES.get(RunStatus(status), errors.FAILED)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command's work on a run ended. `before` is what it found finished."""

    status: RunStatus
    run_id: str
    workflow: str
    store: str
    seconds: float = 0.0
    output: Any = None
    stats: Stats | None = None
    steps_run: int = 0
    cost: float = 0.0
    pauses: tuple[PauseView, ...] = ()
    error: str = ""
    node: str = ""
    kept: Kept | None = None
    before: Kept | None = None
    warnings: tuple[str, ...] = ()
    reason: str = ""
    place: str = ""
    """Where the user's own code failed."""
    trace: str = ""
    """The traceback of a failed step, if it is wanted."""
    reused: Counts = NOTHING
    """How many steps and items were given the results of an earlier run."""
    is_in_doubt: bool = False
    """Whether it failed at an interrupted step that may not be repeated unasked."""

    @property
    def exit_code(self) -> int:
        """The exit code that says so."""
        return status_code(self.status)

    @property
    def resume(self) -> str:
        """The command that goes on with the run; empty if there is nothing to go on with."""
        lost = self.store.startswith("memory:") or (self.kept is None and not self.pauses)
        if self.status == RunStatus.COMPLETED or lost:
            return ""
        asking = [word for text in self._examples() for word in ("--answer", text)]
        return command("resume", self.run_id, *asking, store=self.store)

    def as_json(self) -> dict[str, Any]:
        """Keys: status, run_id, workflow, store, output, stats, steps_run, steps_reused, cost, pauses, error,
        warnings, resume."""
        stats = None if self.stats is None else dataclasses.asdict(self.stats)
        return {
            "status": str(self.status),
            "run_id": self.run_id,
            "workflow": self.workflow,
            "store": self.store,
            "output": plain(self.output),
            "stats": stats,
            "steps_run": self.steps_run,
            "steps_reused": self.reused.steps,
            "cost": self.cost,
            "pauses": pauses_as_json(self.pauses, self.store),
            "error": self._error(),
            "warnings": list(self.warnings),
            "resume": self.resume or None,
        }

    def _error(self) -> dict[str, Any] | None:
        if not self.error:
            return None
        kept = self.kept or Kept()
        return {
            "step": kept.failed_step or self.node,
            "attempt": kept.failed_attempt or None,
            "message": self.error,
        }

    def lines(self) -> list[str]:
        """What to tell people."""
        told = {
            RunStatus.COMPLETED: self._completed,
            RunStatus.PAUSED: self._paused,
            RunStatus.FAILED: self._failed,
        }.get(self.status, self._stopped)
        return [*self._saved_line(), *told(), *(f"warning: {one_line(text)}" for text in self.warnings)]

    def _saved_line(self) -> list[str]:
        before, stats, parts = self.before, self.stats, []
        if before is not None and (self.status == RunStatus.COMPLETED or self.steps_run):
            parts.append(f"kept {before.counts} ({_saved(before.seconds, before.cost)})")
        if stats is not None and stats.steps_reused:
            saved = _saved(stats.seconds_saved, stats.cost_saved)
            parts.append(f"reused {self.reused} ({saved})")
        return [f"{', '.join(parts)}, ran {self.steps_run}"] if parts else []

    def _completed(self) -> list[str]:
        cost = f", {money(self.cost)}" if self.cost else ""
        lines = [f"completed in {duration(self.seconds)}: run {self.run_id}{cost}"]
        if self.output is not None and self.output != {}:
            lines += ["output:", bounded(self.output, self.run_id, self.store)]
        return lines

    def _failed(self) -> list[str]:
        kept = self.kept
        step = (kept.failed_step if kept else "") or self.node
        attempt = f" (attempt {kept.failed_attempt})" if kept and kept.failed_attempt > 1 else ""
        what = f"step {step!r} failed{attempt}" if step else "failed"
        trace = [visible(self.trace).rstrip()] if self.trace else []
        lines = [*trace, f"failed: run {self.run_id}: {what}: {visible(self.error)}"]
        if self.place:
            name = step.partition("[")[0].partition(" ")[0]
            more = command("show", self.run_id, "--step", name, store=self.store)
            lines += [f"  at {visible(self.place)}", f"  more: {more}"]
        return [*lines, *self._how_to_go_on()]

    def _stopped(self) -> list[str]:
        reason = f" ({one_line(self.reason)})" if self.reason else ""
        return [f"{self.status}{reason}: run {self.run_id} is saved", *self._how_to_go_on()]

    def _how_to_go_on(self) -> list[str]:
        kept, resume = self.kept, self.resume
        if not resume:
            return ["nothing of the run is kept"]
        lines = []
        if kept is not None:
            cost = f", {money(kept.cost)}" if kept.cost else ""
            lines = [f"{kept.counts.told('finished')} kept ({kept.seconds:.1f} s{cost})"]
        return [*lines, *self._settled()] if self.is_in_doubt else [*lines, f"resume with: {resume}"]

    def _settled(self) -> list[str]:
        """The commands that say what is to become of an interrupted step."""
        return ["look what became of it, then go on with one of:", *doubt_commands(self.run_id, self.store)]

    def _paused(self) -> list[str]:
        lines = [f"paused: run {self.run_id}"]
        for pause in self.pauses:
            lines += _pause_lines(pause)
        return [*lines, *self._how_to_answer()]

    def _how_to_answer(self) -> list[str]:
        resume, given = self.resume, self._examples()
        if not given or not resume:
            return [f"go on with: {resume}"] if resume else ["nothing of the run is kept"]
        return [
            f"answer and go on: {resume}",
            f"answer only:      {command('answer', self.run_id, *given, store=self.store)}",
        ]

    def _examples(self) -> list[str]:
        """For every question an answer, or what stands for one, as a command takes it."""
        questions = [pause for pause in self.pauses if not pause.is_gate]
        named = len(questions) > 1
        return [f"{pause.handle}={pause.example}" if named else pause.example for pause in questions]


def _saved(seconds: float, cost: float) -> str:
    return f"{seconds:.1f} s{f', {money(cost)}' if cost else ''} saved"


def _pause_lines(pause: PauseView) -> list[str]:
    name = f"{one_line(pause.name)}: " if pause.name and pause.name != pause.prompt else ""
    prompt = visible(pause.prompt).replace("\n", "\n    ")
    lines = [f"  {name}{prompt}"]
    if pause.choices:
        lines.append(f"    choices: {', '.join(visible(str(choice)) for choice in pause.choices)}")
    until = f", until {moment(pause.until)}" if pause.until is not None else ""
    return [*lines, f"    since {moment(pause.since)}{until}"]


def doubt_commands(run_id: str, store: str, *, in_program: bool = False) -> list[str]:
    """The commands, or calls, that go on past an interrupted step that may not be repeated unasked."""
    ways = (("rerun", "it did not happen: run it again"), ("skip", "it did happen: go on after it"))
    if in_program:
        return [f"  app.resume({run_id!r}, if_interrupted={way!r})  # {meaning}" for way, meaning in ways]
    return [
        f"  {command('resume', run_id, '--if-interrupted', way, store=store)}  # {meaning}"
        for way, meaning in ways
    ]


def bounded(output: Any, run_id: str, store: str) -> str:
    """An output as pretty JSON, or as it is if it is text; cut where it gets long."""
    text = visible(output if isinstance(output, str) else as_json(output))
    if len(text) <= OUTPUT_LIMIT:
        return text
    whole = command("show", run_id, "--output", store=store)
    return f"{text[:OUTPUT_LIMIT]}\n… {len(text) - OUTPUT_LIMIT} more characters: {whole}"


def command(name: str, run_id: str, *words: str, store: str) -> str:
    """A command line about a run that works when it is pasted into a shell in this folder."""
    where = _where(store)
    values = list(words) if name == "answer" else []
    options = [*where, *(words if name != "answer" else ())]
    if any(value.startswith("-") for value in (run_id, *values)):
        return _pasteable([*program(), name, *options, "--", run_id, *values])
    return _pasteable([*program(), name, run_id, *values, *options])


def place_of_store(store: str) -> str:
    """Return the options, as they are pasted after a command, that say where the runs are; none for the default."""
    return "".join(f" {_pasteable([word])}" for word in _where(store))


def _where(store: str) -> list[str]:
    return [] if same_store(store, default_url()) else ["--store", absolute_url(store)]


def _pasteable(words: Sequence[str]) -> str:
    """Words as one line for a shell; what cannot be shown is written as bash reads it, in `$'…'`."""
    return " ".join(shlex.quote(word) if _is_shown(word) else _ansi_quoted(word) for word in words)


def _is_shown(word: str) -> bool:
    return visible(word) == word and not {"\n", "\t"} & set(word)


def _ansi_quoted(word: str) -> str:
    signs = (
        _byte_codes(sign) if not _is_shown(sign) else {"'": "\\'", "\\": "\\\\"}.get(sign, sign)
        for sign in word
    )
    return f"$'{''.join(signs)}'"


def _byte_codes(sign: str) -> str:
    try:
        raw = sign.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = sign.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def program(argv: Sequence[str] | None = None) -> list[str]:
    """The words that start this program again."""
    started = Path((argv or sys.argv)[0])
    if started.name == "holdfast":
        found = shutil.which("holdfast")
        same = found is not None and Path(found).resolve() == started.resolve()
        return ["holdfast"] if same else [str(started.absolute())]
    return [sys.executable, "-m", "holdfast"]


MOST = 4000
"""How many characters of an output are shown."""


def print_run(view: RunView, url: str, held: str | None = None) -> None:
    """Print all about a run; `held` is why workers leave it alone, if they do."""
    print_facts([*_facts(view, url), ("held back", one_line(held or "", 500))])
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
        ("error", one_line(f"{place}{fault}", 500) if fault is not None else ""),
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
        ("kept", one_line(", ".join(said.checkpoint_id or "" for said in view.remarks if said.keep), 500)),
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
    told = f"{last.command}: {last.reason}"
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
        return one_line(str(step.fault), width)
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
        print_json(views_plain({"name": f"{step.name}[{key}]", **item}))
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
    yield "error", one_line(str(step.fault), 500) if step.fault else ""


def values_of(view: RunView, keys: Iterable[str]) -> dict[str, Any]:
    """Return keys of a run's state as JSON carries them, each read for itself."""
    unknown = [key for key in keys if key not in view.state]
    if unknown:
        known = one_line(", ".join(view.state), 500) or "none"
        raise click.BadParameter(
            f"the state of run {view.run_id!r} has no key {unknown[0]!r}; it has: {known}"
        )
    return {key: views_plain(view.value(key)) for key in keys}


def shortened(value: object, rest: str) -> str:
    """A value as indented JSON; of a long one the beginning, and what prints the rest."""
    text = visible(json.dumps(views_plain(value), indent=2, ensure_ascii=False))
    if len(text) <= MOST:
        return text
    return f"{text[:MOST]}\n… {len(text) - MOST} characters more: {rest}"
