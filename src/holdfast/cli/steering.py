"""Steering a run from the command line: names and values as people write them, and what came of it in words."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.asking.given import read_inputs, value_of
from holdfast.cli.display.closing import command
from holdfast.cli.display.text import as_json, one_line
from holdfast.cli.display.wording import all_steps
from holdfast.cli.reading import resume_command
from holdfast.cli.speaking import found_run, me
from holdfast.cli.stored import REPLANNED, config_of, stored_flow
from holdfast.data.codec import Codec
from holdfast.engine.commands import control
from holdfast.engine.commands.wishing import ASKED
from holdfast.engine.confirmation import refuse_unconfirmed
from holdfast.engine.driver import is_driven
from holdfast.errors import HoldfastError
from holdfast.flows.flow import Flow
from holdfast.flows.places import place_in_state
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import RunState
from holdfast.stores.base import RunInfo
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.engine.app import App

PATIENCE = 1.0
"""How long, in seconds, a command waits for a driver to say what came of it."""


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
        goes_on = "" if is_driven(journal.store, info) else resume
        speaker = Speaker(name, by or me(), reason or "", as_json, goes_on, look)
        yield Steering(speaker, journal, run_id, journal.load(info, Codec()).run, flow, is_flow)


def _flow(journal: Journal, info: RunInfo, config: dict[str, Any]) -> Flow | None:
    """The workflow file of a run, if it can be read, and, if it came from outside, was confirmed."""
    try:
        refuse_unconfirmed(journal, info, Codec())
        return stored_flow(info, config)
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
    flow: Flow | None
    is_flow: bool
    _opened: list[App | None] = field(default_factory=list)

    def edit(self, pairs: Sequence[str]) -> None:
        """Change the state."""
        update = self._changes(pairs)
        answer = control.edit(self.journal, self.run_id, update, **self._how())
        self._tell(answer, f"{self._listed(update)} changed", f"change {self._listed(update)}")

    def skip(self, step: str) -> None:
        """Pass over a step."""
        answer = control.skip(self.journal, self.run_id, step, **self._how())
        self._tell(answer, f"{step} is skipped", f"skip {step}")

    def modify(self, step: str, pairs: Sequence[str]) -> None:
        """Change what a step is given."""
        update = self._changes(pairs, step)
        answer = control.modify(self.journal, self.run_id, step, update, **self._how())
        listed = self._listed(update)
        self._tell(answer, f"{step} sees other {listed}", f"let {step} see other {listed}")

    def inject(self, node: str, item: dict[str, Any] | None, key: str | None, follow: bool) -> None:
        """Run a further step."""
        step = {"node": node, "item": item, "key": key}
        answer = control.inject(self.journal, self.run_id, [step], follow=follow, **self._how())
        self._tell(answer, f"{node} is to run", f"run {node}")

    def replan(self, steps: Sequence[str]) -> None:
        """Run other steps."""
        answer = control.replan(self.journal, self.run_id, list(steps), **self._how())
        then = f"go on with {', '.join(steps)}" if steps else "end after what is running"
        self._tell(answer, f"it is to {then}", then)

    def redefine(self, flow: Flow, names: dict[str, str]) -> None:
        """Go on with another version of the run's workflow file."""
        if not self.is_flow:
            raise click.UsageError(
                f"run {self.run_id!r} was not started from a workflow file; compile the changed graph, and resume it"
            )
        app = flow.open(self.journal.store)
        answer = control.redefine(
            self.journal,
            self.run_id,
            flow.name,
            app.settings.outline,
            {**flow.config(), REPLANNED: time.time()},
            names=names,
            by=self.speaker.by,
            reason=self.speaker.reason,
            patience=PATIENCE,
        )
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

    def _how(self) -> dict[str, Any]:
        app = self._app()
        own = {} if app is None else {"codec": app.settings.codec, "graph": app.graph}
        speaker = self.speaker
        return {"by": speaker.by, "reason": speaker.reason, "patience": PATIENCE, **own}

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
