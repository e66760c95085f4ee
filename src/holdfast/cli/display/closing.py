"""How a drive ended: as lines for people, as one JSON document, and as an exit code."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli import errors
from holdfast.cli.display.text import as_json, duration, moment, money, one_line, plain, visible
from holdfast.cli.reading import pauses_as_json
from holdfast.cli.store_option import absolute_url, default_url, same_store
from holdfast.cli.stored import Kept
from holdfast.values import RunStatus
from holdfast.views.counts import NOTHING, Counts

if TYPE_CHECKING:
    from holdfast.engine.outcome import Figures
    from holdfast.views.pause_view import PauseView

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
    figures: Figures | None = None
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
    adopted: Counts = NOTHING
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
        """Keys: status, run_id, workflow, store, output, figures, steps_run, steps_adopted, cost, pauses, error,
        warnings, resume."""
        figures = None if self.figures is None else dataclasses.asdict(self.figures)
        return {
            "status": str(self.status),
            "run_id": self.run_id,
            "workflow": self.workflow,
            "store": self.store,
            "output": plain(self.output),
            "figures": figures,
            "steps_run": self.steps_run,
            "steps_adopted": self.adopted.steps,
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
        before, figures, parts = self.before, self.figures, []
        if before is not None and (self.status == RunStatus.COMPLETED or self.steps_run):
            parts.append(f"kept {before.counts} ({_saved(before.seconds, before.cost)})")
        if figures is not None and figures.steps_adopted:
            saved = _saved(figures.seconds_saved, figures.cost_saved)
            parts.append(f"took over {self.adopted} ({saved})")
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
