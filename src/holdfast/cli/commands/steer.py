"""`holdfast runs edit` and `holdfast steps`: changing how a run goes on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.display.show import command
from holdfast.cli.display.text import as_json, one_line
from holdfast.cli.reading import by_option, found_run, reason_option, resume_command, run_argument
from holdfast.cli.reading import plain_json_option as json_option
from holdfast.cli.store_option import store_option
from holdfast.cli.targets import REPLANNED, config_of, stored_workflow
from holdfast.cli.values import all_steps, read_inputs, read_pairs, value_of
from holdfast.engine.commands import control
from holdfast.engine.commands.control import ASKED
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.owner import has_owner
from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.journal.provenance import me
from holdfast.journal.run_state import RunState
from holdfast.state.codec import Codec
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus
from holdfast.workflows.scope import place_in_state
from holdfast.workflows.workflow import Workflow

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.commands.inbox import RunCommand


@click.group()
def steps() -> None:
    """Change which steps of a run come next, and what they see.

    \b
    Example:
      holdfast steps skip report publish
      holdfast steps replan report review publish
    """


_STEP = click.argument("step", metavar="STEP")
_CHANGES = click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)


@click.command()
@run_argument
@_CHANGES
@reason_option
@by_option
@json_option
@store_option
def edit(run: str, pairs: tuple[str, ...], json: bool, **who: str | None) -> None:
    """Change the state of a run, between two of its steps.

    RUN is a run's id or its beginning (4 characters or more), or a workflow's name. Of a workflow file, NAME is
    inputs.X or steps.STEP.output; of a Python graph a key of the state, or key.part.part for a place inside. VALUE is
    JSON or text, NAME=@FILE reads it from a file, NAME:=JSON insists on JSON. Keys with a reducer take the value as an
    update, as from a node.

    Whoever drives the run does it soon; if nobody does, it is done now, and `resume` goes on with it. What cannot
    be done is refused with the reason. All that steers a run is told by `holdfast events`, with who asked for it.

    \b
      holdfast runs edit report inputs.topic=tides --reason "the customer called"
      holdfast runs edit 3f2a 'steps.draft.output=@draft.md'
    """

    with steering("edit", run, json, **who) as steer:
        steer.edit(pairs)


@steps.command()
@run_argument
@_STEP
@reason_option
@by_option
@json_option
@store_option
def skip(run: str, step: str, json: bool, **who: str | None) -> None:
    """Pass over a step that is about to run, waits, failed, or was interrupted. What follows it follows.

    STEP is the step's name, step[KEY] for one item of a for-each, outer/inner in a sub-workflow, or a step's id. A step
    that is running is not skipped; neither is one whose turn has not come.

    \b
      holdfast steps skip report publish --reason "not this time"
      holdfast steps skip 3f2a 'fetch[7]'
    """

    with steering("skip", run, json, **who) as steer:
        steer.skip(step)


@steps.command()
@run_argument
@_STEP
@_CHANGES
@reason_option
@by_option
@json_option
@store_option
def modify(run: str, step: str, pairs: tuple[str, ...], json: bool, **who: str | None) -> None:
    """Let one step that has not begun, or that failed, see other values; the state stays as it is.

    NAME is as for `edit`; for an item of a for-each also item, or what the file calls it.

    \b
      holdfast steps modify report summarise inputs.words:=200
      holdfast steps modify 3f2a 'fetch[7]' item=https://example.org/mirror
    """

    with steering("modify", run, json, **who) as steer:
        steer.modify(step, pairs)


@steps.command()
@run_argument
@click.argument("node", metavar="STEP")
@click.option("--item", metavar="JSON", help="Values that the step sees over the state: a JSON object.")
@click.option("--key", metavar="KEY", help="Make it an item with this key, as of a for-each.")
@click.option("--follow", is_flag=True, help="Let what usually follows the step follow it.")
@reason_option
@by_option
@json_option
@store_option
def inject(
    run: str,
    node: str,
    item: str | None,
    key: str | None,
    follow: bool,
    json: bool,
    **who: str | None,
) -> None:
    """Run a further step of the workflow now, beside those that are about to run or are running.

    Its results count, and nothing follows it unless --follow is given. STEP is outer/inner in a sub-workflow.

    \b
      holdfast steps inject report fetch --follow --reason "the page changed"
    """

    with steering("inject", run, json, **who) as steer:
        steer.inject(node, read_item(item), key, follow)


@steps.command()
@run_argument
@click.argument("plan", metavar="[FILE | STEP...]", nargs=-1)
@click.option("--nothing", is_flag=True, help="Run nothing more: the run ends after what is running.")
@click.option(
    "--remap", multiple=True, metavar="OLD=NEW", help="With FILE: a step was renamed. May be repeated."
)
@reason_option
@by_option
@json_option
@store_option
def replan(
    run: str, plan: tuple[str, ...], nothing: bool, remap: tuple[str, ...], json: bool, **who: str | None
) -> None:
    """Run these steps instead of those that were to come, or go on with a changed workflow file.

    With STEPs, all that is neither running nor finished is dropped, and these run; what usually follows them
    follows. With FILE, the run goes on with that version of its workflow: finished steps stay finished, the name
    must be the same, and every step that is under way or next must be there, or be renamed with --remap.

    \b
      holdfast steps replan report review publish
      holdfast steps replan 3f2a --nothing --reason "good enough"
      holdfast steps replan 3f2a report-v2.yaml
    """

    names = read_pairs(remap, "--remap")
    flow = _changed_file(plan)
    if nothing == bool(plan):
        raise click.UsageError("say what to go on with: a workflow file, steps, or --nothing")
    if names and flow is None:
        raise click.UsageError("--remap is for a workflow file")
    with steering("replan", run, json, **who) as steer:
        if flow is None:
            steer.replan(plan)
        else:
            steer.redefine(flow, names)


def _changed_file(plan: tuple[str, ...]) -> Workflow | None:
    files = [word for word in plan if word.endswith((".yaml", ".yml"))]
    if not files:
        return None
    if len(plan) > 1:
        raise click.UsageError(f"give either one workflow file, or steps, not {' '.join(plan)}")
    if not Path(files[0]).is_file():
        raise click.UsageError(f"there is no file {files[0]}")
    from holdfast.workflows.workflow import load_workflow

    return load_workflow(Path(files[0]))


# Steering a run from the command line: names and values as people write them, and what came of it in words.


TIMEOUT = 1.0
"""Seconds that a command waits for the process that executes the run to say what came of it."""


@contextlib.contextmanager
def steering(
    name: str, run: str, as_json: bool, *, store: str | None, by: str | None, reason: str | None
) -> Iterator[Steering]:
    """The run that is meant, ready to be steered."""
    with found_run(run, store) as (journal, run_id, url):
        info = journal.info(run_id)
        config = config_of(journal, info)
        flow, is_flow = (_flow(journal, info, config), True) if "flow" in config else (None, False)
        of_program = not is_flow and not info.queue
        resume = resume_command(run_id, url, info.queue, is_of_program=of_program)
        look = command("events", run_id, store=url)
        goes_on = "" if has_owner(journal.store, info) else resume
        speaker = Speaker(name, by or me(), reason or "", as_json, goes_on, look)
        yield Steering(speaker, journal, run_id, journal.load(info, Codec()).run, flow, is_flow)


def _flow(journal: Journal, info: RunInfo, config: dict[str, Any]) -> Workflow | None:
    """The workflow file of a run, if it can be read, and, if it came from outside, was confirmed."""
    try:
        refuse_unconfirmed(journal, info, Codec())
        return stored_workflow(info, config)
    except HoldfastError:
        return None


def read_item(text: str | None) -> dict[str, Any] | None:
    """What `--item` means."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--item: not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise click.BadParameter(
            f'--item takes a JSON object with values, such as {{"n": 1}}, not {text!r:.80}'
        )
    return found


@dataclass(frozen=True, slots=True)
class Speaker:
    """A command, whose it is and why, and how its caller is told what came of it."""

    command: str
    by: str
    reason: str
    as_json: bool
    goes_on: str
    """How to go on with the run, if it was not driven when the command was given."""
    look: str
    """How to see what came of it later."""

    def tell(self, run_id: str, answer: str, status: str, done: str, asked: str) -> None:
        """Tell what came of the command: it is `done`, or the run is asked to do it."""
        applied = answer != ASKED
        if self.as_json:
            facts = {"run_id": run_id, "command": self.command, "applied": applied, "status": status}
            click.echo(as_json(facts))
            return
        click.echo(one_line(f"run {run_id}: {done}" if applied else f"run {run_id} is asked to {asked}"))
        if status == RunStatus.QUEUED:
            click.echo("a worker goes on with it")
        elif status == RunStatus.RUNNING and not applied:
            click.echo(f"it does between two steps; see: {self.look}")
        elif status != RunStatus.RUNNING and self.goes_on:
            click.echo(
                f"go on with: {self.goes_on}" if applied else f"it does when it goes on: {self.goes_on}"
            )


@dataclass(frozen=True, slots=True)
class Steering:
    """One command to one run. `flow` is the run's workflow file, if it has one that can be read."""

    speaker: Speaker
    journal: Journal
    run_id: str
    run: RunState
    flow: Workflow | None
    is_flow: bool
    _opened: list[App | None] = field(default_factory=list)

    def edit(self, pairs: Sequence[str]) -> None:
        """Change the state."""
        update = self._changes(pairs)
        answer = self._send(control.edit(update, self._codec))
        self._tell(answer, f"{self._listed(update)} changed", f"change {self._listed(update)}")

    def skip(self, step: str) -> None:
        """Pass over a step."""
        answer = self._send(control.skip(step))
        self._tell(answer, f"{step} is skipped", f"skip {step}")

    def modify(self, step: str, pairs: Sequence[str]) -> None:
        """Change what a step is given."""
        update = self._changes(pairs, step)
        answer = self._send(control.modify(step, update, self._codec))
        listed = self._listed(update)
        self._tell(answer, f"{step} sees other {listed}", f"let {step} see other {listed}")

    def inject(self, node: str, item: dict[str, Any] | None, key: str | None, follow: bool) -> None:
        """Run a further step."""
        step = {"node": node, "item": item, "key": key}
        answer = self._send(control.inject([step], self._codec, follow=follow))
        self._tell(answer, f"{node} is to run", f"run {node}")

    def replan(self, steps: Sequence[str]) -> None:
        """Run other steps."""
        answer = self._send(control.replan(list(steps), self._codec))
        then = f"go on with {', '.join(steps)}" if steps else "end after what is running"
        self._tell(answer, f"it is to {then}", then)

    def redefine(self, flow: Workflow, names: dict[str, str]) -> None:
        """Go on with another version of the run's workflow file."""
        if not self.is_flow:
            raise click.UsageError(
                f"run {self.run_id!r} was not started from a workflow file; compile the changed graph, and resume it"
            )
        app = flow.open(self.journal.store)
        command = control.redefine(
            flow.name,
            app._settings.outline,
            {**flow.config(), REPLANNED: time.time()},
            names=names,
        )
        answer = control.send(self.journal, self.run_id, command, timeout=TIMEOUT, **self._who)
        self._tell(answer, f"it goes on with {flow.path}", f"go on with {flow.path}")

    # What people write.

    def changes(self, pairs: Sequence[str], step: str = "") -> dict[tuple[str, ...], Any]:
        """Changes of the run's state, or of what a step is given, as people write them, by their places in it."""
        return self._changes(pairs, step)

    def _changes(self, pairs: Sequence[str], step: str = "") -> dict[tuple[str, ...], Any]:
        typed, text = read_inputs(None, pairs)
        values = {**typed, **{name: value_of(given) for name, given in text.items()}}
        if not self.is_flow:
            return {self._key(name): value for name, value in values.items()}
        if "/" not in step:
            values |= self._inputs(typed, text)
        item = self._item_name(step)
        return {
            place_in_state(self.run.outline, name.split("."), step, item): value
            for name, value in values.items()
        }

    def _key(self, name: str) -> tuple[str, ...]:
        """A key of a Python graph's state, or a place inside one."""
        known = any(name in frame.cells for frame in self.run.frames.values())
        return (name,) if known else tuple(name.split("."))

    def _inputs(self, typed: dict[str, Any], text: dict[str, str]) -> dict[str, Any]:
        """The inputs among some changes, read as the workflow declares them; wrong ones are refused."""
        prefix = "inputs."
        plain = {name.removeprefix(prefix): value for name, value in typed.items() if _is_input(name)}
        written = {name.removeprefix(prefix): value for name, value in text.items() if _is_input(name)}
        if self.flow is None or not (plain or written):
            return {}
        slot = self.run.root.cells.get("inputs")
        saved = dict(slot.get() or {}) if slot is not None else {}
        others = {name: value for name, value in saved.items() if name not in written}
        found = self.flow.read_inputs({**others, **plain}, written)
        return {f"{prefix}{name}": found[name] for name in (*plain, *written)}

    def _item_name(self, step: str) -> str:
        """What a step of the file calls its item."""
        own = step.partition("[")[0]
        steps = all_steps(self.flow.definition.steps) if self.flow is not None else ()
        each = next((found.for_each for found in steps if found.name == own), None)
        return each.as_ if each is not None else "item"

    # Asking, and telling what came of it.

    @property
    def _who(self) -> dict[str, Any]:
        return {"by": self.speaker.by, "reason": self.speaker.reason}

    @property
    def _codec(self) -> Codec:
        app = self._app()
        return Codec() if app is None else app._settings.codec

    def _send(self, command: RunCommand) -> str:
        app = self._app()
        graph = None if app is None else app.graph
        return control.send(
            self.journal,
            self.run_id,
            command,
            codec=self._codec,
            graph=graph,
            timeout=TIMEOUT,
            **self._who,
        )

    def _app(self) -> App | None:
        """The run's workflow on its store; `None` if it cannot be opened, and then its driver has to decide."""
        if not self._opened:
            try:
                self._opened.append(None if self.flow is None else self.flow.open(self.journal.store))
            except HoldfastError:
                self._opened.append(None)
        return self._opened[0]

    def _listed(self, update: dict[tuple[str, ...], Any]) -> str:
        return ", ".join(".".join(path) for path in update)

    def _tell(self, answer: str, done: str, asked: str) -> None:
        status = answer if answer != ASKED else self.journal.info(self.run_id).status
        self.speaker.tell(self.run_id, answer, str(status), done, asked)


def _is_input(name: str) -> bool:
    return name.startswith("inputs.") and name.count(".") == 1
