"""What the reading commands share: the journal to read, the run that is meant, commands to paste."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CannotReuse
from holdfast.state.codec import Codec
from holdfast.values import RunStatus
from holdfast.views.projection import project

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo, Store
    from holdfast.views.run_view import PauseView, RunLine, RunView
    from holdfast.workflows.workflow import Workflow


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def json_option(command: Decorated) -> Decorated:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def reading(store: str | None, of_flow: str | None = None) -> Journal:
    """The journals of the store that is meant; one that is not there is refused, not created."""
    return open_journal(open_existing(chosen_url(store, of_flow)))


def reading_run(store: str | None, run: str) -> tuple[Journal, str]:
    """The journals to read, and the run that is meant: `run`, or the workflow if that is a file."""
    if run.endswith((".yaml", ".yml")) and Path(run).is_file():
        from holdfast.workflows.workflow import load_workflow

        flow = load_workflow(Path(run))
        return reading(store, flow.store_url()), flow.name
    return reading(store), run


def view_of(journal: Journal, target: str) -> RunView:
    """The run that a run id, a checkpoint id or a workflow's name means, as it stands."""
    from holdfast.engine.owner import liveness
    from holdfast.views.runs import find_run_info, run_view

    return run_view(
        journal,
        find_run_info(journal, meant_run(journal.store, target)).run,
        is_alive=liveness(journal.store),
    )


def line_of(journal: Journal, target: str) -> RunLine:
    """As `view_of`, no more than a line."""
    from holdfast.engine.owner import liveness
    from holdfast.views.runs import find_run_info, run_line

    return run_line(
        journal, find_run_info(journal, meant_run(journal.store, target)), liveness(journal.store)
    )


def standing(line: RunLine) -> str:
    """How a run stands, in a few words."""
    if line.is_orphaned:
        return "running (its process is gone; a worker takes it up)"
    return "dead (running, but its process is gone)" if line.is_dead else str(line.status)


def held_reason(journal: Journal, line: RunLine) -> str | None:
    """Why workers leave a run alone that they would have to go on with, if they do."""
    from holdfast.fleet.queues import held_back

    is_driven = line.status == RunStatus.RUNNING and not line.is_dead
    is_theirs = line.goes_on and bool(line.queue) and not is_driven
    return held_back(journal.store, line.run_id) if is_theirs else None


def how_to_resume(journal: Journal, info: RunInfo, url: str) -> str:
    """How to go on with a run: a command, or, for one of a Python program that no worker takes up, a call."""
    from holdfast.cli.targets import config_of

    is_of_program = not info.queue and "flow" not in config_of(journal, info)
    return resume_command(info.run, url, info.queue, is_of_program=is_of_program)


def resume_command(run_id: str, url: str, queue: str, *, is_of_program: bool = False) -> str:
    """The command that goes on with a run; one of a queue is handed to the workers."""
    from holdfast.cli.display.show import command
    from holdfast.views.run_view import resume_call

    if is_of_program:
        return resume_call(run_id)
    return command("resume", run_id, *(["--detach"] if queue else []), store=url)


def answer_command(pause: PauseView, url: str, queue: str = "") -> str:
    """The command that answers a pause, or passes a gate; it works when it is pasted."""
    from holdfast.cli.display.show import command

    if pause.is_gate or pause.is_wait:
        return resume_command(pause.run_id, url, queue, is_of_program=pause.is_of_program)
    return command("answer", pause.run_id, f"{pause.handle}={pause.example}", store=url)


def pauses_as_json(pauses: Sequence[PauseView], url: str, queue: str = "") -> list[dict[str, Any]]:
    """Pauses as plain data, each with the command that answers it on its store."""
    return [{**pause.as_json(), "command": answer_command(pause, url, queue)} for pause in pauses]


# Moments as people name them on the command line: what `find_position` takes, and beginnings of ids and file.


def reading_moments(store: str | None, *texts: str) -> tuple[Journal, list[str]]:
    """The journals to read, and each moment as `find_position` takes it. The first may say, as a file, which store."""
    run, at, place = _parted(texts[0])
    if _is_file(run):
        journal, name = reading_run(store, run)
        texts = (f"{name}{at}{place}", *texts[1:])
    else:
        journal = reading(store)
    return journal, [meant_moment(journal.store, text) for text in texts]


def viewing(store: str | None, text: str) -> tuple[Journal, RunView, str]:
    """The journals to read, a run as it stands or stood at a moment, and, if it is a past one, the words for that."""
    from holdfast.engine.owner import liveness
    from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
    from holdfast.views.plain import CODEC
    from holdfast.views.run_view import Driver
    from holdfast.views.runs import find_run_info, run_view

    journal, (meant,) = reading_moments(store, text)
    if "@" not in meant or journal.store.runs(run=meant):
        info = find_run_info(journal, meant)
        return journal, run_view(journal, info.run, is_alive=liveness(journal.store)), ""
    moment = find_position(journal.store, meant)
    view = run_view(journal, moment.info.run, upto=moment.seq)
    status = RunStatus(journal.load(moment.info, CODEC, moment.seq).run.status)
    point = checkpoint_at(journal.store, moment)
    told = (
        f"after wave {point.wave}, at checkpoint {point.id}"
        if point is not None
        else f"at entry {moment.seq}"
    )
    return journal, replace(view, line=replace(view.line, status=status, driver=Driver())), told


def meant_moment(store: Store, text: str) -> str:
    """A moment with the whole id of its run, or the name of its workflow."""
    if store.runs(run=text):
        return text
    run, at, place = _parted(text)
    if _is_file(run):
        from holdfast.workflows.workflow import load_workflow

        run = load_workflow(Path(run)).name
    return f"{meant_run(store, run)}{at}{place}"


def _parted(text: str) -> tuple[str, str, str]:
    from holdfast.engine.time_travel.checkpoints import parted

    run, at, place = parted(text)
    return (run, at, place) if at else (text, "", "")


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()


# What the commands share that ask something of a run: which run, who asks, and why.


run_argument = click.argument("run", metavar="RUN")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Say why.")
by_option = click.option("--by", metavar="NAME", help="Who asks for it; by default you at this machine.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(what: str, yes: bool) -> None:
    """Ask whether something that cannot be undone may be done; without a terminal only `--yes` says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {what}; --yes says that it may")
    click.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True, err=True)


plain_json_option = click.option("--json", "json", is_flag=True, help="Print JSON.")


@contextlib.contextmanager
def found_run(run: str, store: str | None) -> Iterator[tuple[Journal, str, str]]:
    """The journals of the store, the id of the run that is meant, and the store's URL."""
    from holdfast.engine.resume import find_run

    url = chosen_url(store)
    opened: Any = open_existing(url)
    try:
        info, _ = find_run(opened, meant_run(opened, run))
        yield open_journal(opened), info.run, url
    finally:
        opened.close()


# The run that a new one takes finished steps over from, as the command line names it.


@dataclass(frozen=True, slots=True)
class Reused:
    """A run that is reused, or none; `saved` are the inputs that it began with."""

    flow: Workflow
    moment: str | None = None
    saved: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, text: str | None, url: str, flow: Workflow) -> Reused:
        """The run that is meant, which is one of the same workflow."""
        if text is None:
            return cls(flow)
        store = open_existing(url)
        try:
            moment = meant_moment(store, text)
            found = find_position(store, moment)
            own = found.info.workflow
            if own != flow.name:
                raise CannotReuse(
                    f"run {found.info.run!r} is of workflow {own!r}, and this file is of {flow.name!r}; "
                    "only steps of the same workflow can be taken over"
                )
            begun = project(open_journal(store), Codec(), found.info, found.seq).begun
        finally:
            store.close()
        ops = [op for op in begun.ops if op.key == "inputs"] if begun is not None else []
        declared = flow.definition.workflow.inputs
        saved = {name: value for op in ops for name, value in (op.value or {}).items() if name in declared}
        return cls(flow, moment, saved)

    def inputs(self, typed: Mapping[str, Any], text: Mapping[str, str]) -> dict[str, Any]:
        """The inputs of the new run: those that are given, and else those of the reused one."""
        saved = {name: value for name, value in self.saved.items() if name not in text}
        return self.flow.read_inputs({**saved, **typed}, text)
