"""What the reading commands share: the journal to read, the run that is meant, commands to paste."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo
    from holdfast.views import PauseView, RunLine, RunView

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
        from holdfast.flows.flow import load_flow

        flow = load_flow(Path(run))
        return reading(store, flow.store_url()), flow.name
    return reading(store), run


def view_of(journal: Journal, target: str) -> RunView:
    """The run that a run id, a checkpoint id or a workflow's name means, as it stands."""
    from holdfast.engine.driver import liveness
    from holdfast.views import find_run_info, run_view

    return run_view(
        journal,
        find_run_info(journal, meant_run(journal.store, target)).run,
        is_alive=liveness(journal.store),
    )


def line_of(journal: Journal, target: str) -> RunLine:
    """As `view_of`, no more than a line."""
    from holdfast.engine.driver import liveness
    from holdfast.views import find_run_info, run_line

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
    from holdfast.cli.stored import config_of

    is_of_program = not info.queue and "flow" not in config_of(journal, info)
    return resume_command(info.run, url, info.queue, is_of_program=is_of_program)


def resume_command(run_id: str, url: str, queue: str, *, is_of_program: bool = False) -> str:
    """The command that goes on with a run; one of a queue is handed to the workers."""
    from holdfast.cli.display.closing import command
    from holdfast.views.pause_view import resume_call

    if is_of_program:
        return resume_call(run_id)
    return command("resume", run_id, *(["--detach"] if queue else []), store=url)


def answer_command(pause: PauseView, url: str, queue: str = "") -> str:
    """The command that answers a pause, or passes a gate; it works when it is pasted."""
    from holdfast.cli.display.closing import command

    if pause.is_gate or pause.is_wait:
        return resume_command(pause.run_id, url, queue, is_of_program=pause.is_of_program)
    return command("answer", pause.run_id, f"{pause.handle}={pause.example}", store=url)


def pauses_as_json(pauses: Sequence[PauseView], url: str, queue: str = "") -> list[dict[str, Any]]:
    """Pauses as plain data, each with the command that answers it on its store."""
    return [{**pause.as_json(), "command": answer_command(pause, url, queue)} for pause in pauses]
