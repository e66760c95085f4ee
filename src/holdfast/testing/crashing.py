"""`crash_everywhere`: kill a workflow wherever it could hurt, resume it, and see what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.functions.workflows import WorkflowFunction
from holdfast.testing.boundaries import COMMIT_POINTS, EVERY_POINT, Boundary, check_points, sampled
from holdfast.testing.executions import (
    ANSWERED,
    DECIDED,
    Died,
    End,
    FastPlace,
    FolderPlace,
    Place,
    Subject,
    Trial,
    store_maker,
)
from holdfast.testing.fakes import Answers
from holdfast.testing.judging import (
    COMPARED,
    LATE,
    OF_RUN,
    RESULT,
    SAME,
    Finding,
    Judge,
    RunSeen,
    StatePath,
    Wanted,
    counted,
    nodes_of,
)
from holdfast.testing.ledger import (
    AGAIN,
    DIED,
    EFFECT,
    EXECUTION,
    FAILED,
    LEFT,
    RETURNED,
    START,
    UNKEYED,
    Effect,
    Line,
)
from holdfast.values import RunStatus

# What came of killing a workflow everywhere, in numbers and in words.


_MODES = {
    "process": "real processes, killed with SIGKILL",
    "fast": "fast mode: crashes are simulated within this process, so what it holds in memory survives them; "
    'mode="process" (pytest --crash-everywhere) really kills',
}
_MOST_LINES = 24


class Break(NamedTuple):
    """A boundary after which something was wrong; without one it was wrong although nobody disturbed the run."""

    boundary: Boundary | None
    findings: tuple[Finding, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class CrashReport:
    """What came of killing a workflow everywhere. `str()` of it is what a failed test shows."""

    workflow: str
    mode: str
    boundaries: int
    """How many places there are to die at."""
    tried: int
    kills: int
    resumes: int
    questions: int = 0
    unreached: int = 0
    """Boundaries that a run did not come to, since it took another way than the undisturbed one."""
    breaks: tuple[Break, ...] = ()
    notes: tuple[str, ...] = ()
    points: tuple[str, ...] = EVERY_POINT
    effects: int = 0
    """How many effects the undisturbed run had."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.breaks

    @property
    def first(self) -> Break | None:
        """The first boundary, in the order of the run, after which something was wrong."""
        return self.breaks[0] if self.breaks else None

    def __str__(self) -> str:
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        yield f"crash_everywhere of {self.workflow!r} ({_MODES[self.mode]})"
        left_out = "" if self.tried == self.boundaries else f", {self.tried} of them tried, spread evenly"
        yield (
            f"  {counted(self.boundaries, 'boundary', 'boundaries')}{left_out}; {counted(self.kills, 'kill')}, "
            f"{counted(self.resumes, 'resume')}, {counted(self.questions, 'question')} answered"
        )
        if self.unreached:
            were = "was" if self.unreached == 1 else "were"
            unreached = counted(self.unreached, "boundary", "boundaries")
            yield f"  {unreached} {were} not reached: the run took another way"
        yield from (f"  note: {note}" for note in self.notes)
        if self.first is None:
            unseen = "; no effects were recorded (`record_effect`), so repeated ones would not be seen"
            effects = ", and nothing happened twice" if self.effects else unseen
            yield f"  every resumed run came to the result of the undisturbed one{effects}"
            return
        advised: set[str] = set()
        yield from self._broken(self.first, advised)
        yield from self._others(self.first, advised)

    def _broken(self, broken: Break, advised: set[str]) -> Iterator[str]:
        yield ""
        if broken.boundary is None:
            yield "IT BREAKS WITHOUT ANY CRASH, in the undisturbed run:"
        else:
            yield f"IT BREAKS if the process dies {broken.boundary}"
        for finding, alike in _grouped(broken.findings):
            yield f"  {finding.what}{_and_more(finding, alike)}"
            for name, text in (("expected", finding.expected), ("happened", finding.happened)):
                if text:
                    yield textwrap.indent(f"{name}: {text}", "    ")
        yield "  what happened, as the ledger outside the store has it:"
        yield from (f"    {line}" for line in excerpt(broken.lines))
        yield "  how to fix it:"
        for finding in broken.findings:
            yield from _filled(finding.fix, "    ", advised)

    def _others(self, first: Break, advised: set[str]) -> Iterator[str]:
        """What else was found, once each."""
        known = {(finding.kind, finding.subject) for finding in first.findings}
        others: dict[tuple[str, str], tuple[Break, Finding]] = {}
        for broken in self.breaks[1:]:
            for finding in broken.findings:
                others.setdefault((finding.kind, finding.subject), (broken, finding))
        met = {_group(finding) for finding in first.findings}
        further = [finding for key, (_, finding) in others.items() if key not in known]
        alike = [finding for finding in further if _group(finding) in met]
        new = [finding for finding in further if _group(finding) not in met]
        more = len(self.breaks) - 1
        if more:
            yield ""
            yield f"{more} further {'boundary breaks' if more == 1 else 'boundaries break'} it" + (
                "; other things that were found:" if new else ", in the same way"
            )
        for finding, count in _grouped(alike):
            yield f"  - the same of {_more_of(finding, count + 1)}"
        for finding, count in _grouped(new):
            broken, _ = others[finding.kind, finding.subject]
            yield f"  - {finding.what}{_and_more(finding, count)} (first if it dies {broken.boundary})"
            yield from _filled(finding.fix, "      ", advised)


class CrashFailure(AssertionError):
    """A workflow did not survive being killed everywhere; `report` says where, why, and how to fix it."""

    def __init__(self, report: CrashReport) -> None:
        self.report = report
        super().__init__(str(report))


def _grouped(findings: Iterable[Finding]) -> list[tuple[Finding, int]]:
    """The first finding of each kind, effect and node, with how many more there are of it."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_group(finding), []).append(finding)
    return [(group[0], len(group) - 1) for group in groups.values()]


def _group(finding: Finding) -> tuple[str, str, tuple[str, ...]]:
    effect, step = _effect_and_step(finding)
    return finding.kind, effect, nodes_of(step)


def _and_more(finding: Finding, alike: int) -> str:
    return f"; and {_more_of(finding, alike)}" if alike else ""


def _more_of(finding: Finding, count: int) -> str:
    step = _effect_and_step(finding)[1]
    if not step:
        return f"{count} more of the kind"
    more = counted(count, "more item" if step.endswith("]") else "more step")
    return f"{more} of {'/'.join(nodes_of(step))!r}"


def _effect_and_step(finding: Finding) -> tuple[str, str]:
    """What a finding is about: an effect of a step, or something else."""
    if not finding.subject.startswith("["):
        return finding.subject, ""
    effect, step = json.loads(finding.subject)
    return effect, step


def excerpt(lines: Sequence[Line]) -> list[str]:
    """A ledger for people: what began, what was done, where the process died; the middle of a long one left out."""
    shown = [text for line in lines if (text := _line_text(line))]
    if len(shown) <= _MOST_LINES:
        return shown
    half = _MOST_LINES // 2
    return [*shown[:half], f"… {len(shown) - 2 * half} lines …", *shown[-half:]]


_LINES = {
    EXECUTION: "a process {key} the run",
    START: "  step {key!r} begins",
    EFFECT: "    EFFECT {shown}",
    UNKEYED: "    EFFECT {shown}",
    AGAIN: "    asked again, and the service knew the key: {shown}",
    LEFT: "  step {key!r} is left: it {shown}",
    FAILED: "  step {key!r} failed: {shown}",
    RETURNED: "  step {key!r} has run",
    ANSWERED: "  {key!r} is answered",
    DECIDED: "  a person decides on step {key!r}: {shown}",
    DIED: "KILLED {shown}",
}


def _line_text(line: Line) -> str:
    """A line for people; empty if it says nothing to them."""
    what, key, shown = line
    if what in (EFFECT, UNKEYED, AGAIN):
        detail = json.loads(shown)
        shown = str(Effect(detail["name"], detail["key"], detail["facts"]))
    elif what == LEFT:
        kind, name = json.loads(shown)
        shown = f"{'asks' if kind == 'ask' else 'waits'} ({name})"
    elif what in (FAILED, DIED):
        shown = json.loads(shown)
    return _LINES.get(what, "").format(key=key, shown=shown)


def _filled(text: str, indent: str, shown: set[str]) -> Iterator[str]:
    """The paragraphs of a text that were not shown yet, filled."""
    for paragraph in text.split("\n"):
        if paragraph in shown:
            continue
        shown.add(paragraph)
        yield from textwrap.wrap(
            paragraph, 110, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )


MOST_BOUNDARIES = 100
MODES = ("process", "fast")
_MOST_LATE = 3
"""So many runs may take too long; then nobody waits for further ones."""
_FURTHER_RUNS = 10
"""So many more undisturbed runs tell whether a result that differs does so by itself."""


def crash_everywhere(
    workflow: Any,
    inputs: Any = None,
    *,
    invariant: Callable[[RunSeen], object] | None = None,
    answers: Mapping[str, Any] | Callable[[Any], Any] | None = None,
    same: Callable[[dict[str, Any], dict[str, Any]], object] | None = None,
    repeatable: Iterable[str] = (),
    mode: str = "process",
    store: Any = None,
    durability: str | None = None,
    points: str | Sequence[str] = EVERY_POINT,
    limit: int | None = MOST_BOUNDARIES,
    kill_resumes: bool = False,
    skip_time: bool = True,
    config: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    start: str | None = None,
    check: bool = True,
) -> CrashReport:
    """Run a workflow undisturbed, then kill it at every boundary, resume it each time, and compare.

    `workflow` is a graph, an `App`, a `@workflow` (`inputs`: its argument, a tuple or a mapping), a function that makes
    one for every process, or a workflow file; it runs on stores of its own. It dies before and after each commit, after
    the engine has heard of it, after each effect, and when each step's body has run. A new process resumes it, and:

    - its result must be that of the undisturbed run (parts in which undisturbed runs differ are left
      out, and the report says so; `same(expected, state)` compares in your own way);
    - no finished step may have run again;
    - what its fakes gave to `record_effect` must have happened as often as in the undisturbed run, and with the same
      facts, unless the effect or its node is named in `repeatable`; a step that is run again because it waited may not
      do it again either;
    - `invariant`, given a `RunSeen` (`.state`, `.effects`, `.steps`, `.outcome`), may neither raise nor answer
      something false; `None` is no answer.

    `answers` answers `ctx.ask`: a mapping by name, or a function of the pause. A question with a timeout that has no
    answer runs out. A step of a node that asks what to do after an interruption is passed over if it had an effect,
    else run again; one that may not be repeated unasked may stop the run, which is then not compared.

    With `mode="process"` real processes are killed with SIGKILL; `mode="fast"` simulates that within this one, on a
    store in memory. `store` is "sqlite" (the default), "file", or a function that takes a folder and returns a
    store or its URL. More boundaries than `limit` are sampled evenly; `None` is all. With `kill_resumes` the process
    that resumes is killed too, at its first commit, and another one resumes. With `skip_time` sleeps, retries and
    timeouts pass at once. `options` are what `compile` takes (or `Workflow.open`). `timeout` is how many real seconds
    each process may take, in fast mode each run and each resume; `start` is how a process is started: "fork", or
    "spawn", which can only be sent what a module has.

    Raises `CrashFailure`, whose text says where it breaks first and how to fix it; with `check=False` the
    report is returned either way.
    """
    __tracebackhide__ = True
    if mode not in MODES:
        raise HoldfastError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise HoldfastError(f"limit must be at least 1, or None for no limit, not {limit!r}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise HoldfastError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    for what, given in (("invariant", invariant), ("same", same)):
        if given is not None and not callable(given):
            raise HoldfastError(f"{what} must be a function, not {given!r:.80}")
    for what, mapping in (("config", config), ("options", options)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise HoldfastError(f"{what} must be a mapping, not {mapping!r:.80}")
    if not isinstance(repeatable, Iterable):
        raise HoldfastError(f"repeatable must be a list of names, not {repeatable!r:.80}")
    if folder is not None and not Path(folder).is_dir():
        raise HoldfastError(f"the folder {os.fspath(folder)!r} does not exist")
    subject = Subject(workflow, inputs, config, durability, dict(options or {}))
    harmless = frozenset([repeatable] if isinstance(repeatable, str) else repeatable)
    of_file, of_function = isinstance(workflow, (str, os.PathLike)), isinstance(workflow, WorkflowFunction)
    judge = Judge(invariant, same, harmless, of_file=of_file, of_function=of_function)
    parent = None if folder is None else Path(folder).resolve()
    with tempfile.TemporaryDirectory(prefix="crash-", dir=parent, ignore_cleanup_errors=True) as root:
        places = _Places(Path(root), mode, store, start, timeout)
        made = subject if places.sends else subject.settled()
        trial = Trial(made, Answers.of(answers), judge, skip_time)
        report = _Campaign(trial, places, check_points(points), limit, kill_resumes).run()
    if check and not report.passed:
        raise CrashFailure(report)
    return report


class _Places:
    """The places for runs, one for each."""

    def __init__(self, root: Path, mode: str, store: Any, start: str | None, timeout: float) -> None:
        __tracebackhide__ = True
        self.mode, self._root, self._timeout, self._count = mode, root, timeout, 0
        if start not in (None, "fork", "spawn"):
            raise HoldfastError(f"start must be 'fork' or 'spawn', not {start!r}")
        if start == "fork" and not hasattr(os, "fork"):
            raise HoldfastError('this system cannot fork; use start="spawn"')
        can_fork = hasattr(os, "fork") and sys.platform != "darwin"
        self._start = start or ("fork" if can_fork else "spawn")
        self._store = None if mode == "fast" and store in (None, "memory") else store_maker(store or "sqlite")

    @property
    def sends(self) -> bool:
        """Return whether executions begin with nothing but what they are sent."""
        return self.mode == "process" and self._start == "spawn"

    def new(self) -> Place:
        self._count += 1
        folder = self._root / str(self._count)
        if self.mode == "fast":
            return FastPlace(folder, self._store, self._timeout)
        assert self._store is not None
        return FolderPlace(folder, self._store, self._start, self._timeout)


class _Campaign:
    """The undisturbed runs, then one run per boundary."""

    def __init__(
        self, trial: Trial, places: _Places, points: tuple[str, ...], limit: int | None, kill_resumes: bool
    ) -> None:
        self._trial, self._places, self._points, self._limit = trial, places, points, limit
        self._kill_resumes = kill_resumes
        self._kills = self._resumes = self._questions = self._unreached = self._late = self._effects = 0
        self._further_runs = _FURTHER_RUNS
        self._tried: list[Boundary] = []
        self._asked: set[str] = set()
        self._unanswered: set[str] = set()
        self._volatile: list[StatePath] = []
        self._refused: set[str] = set()
        self._decisions: set[str] = set()
        self._breaks: list[Break] = []
        self._notes: list[str] = []

    def run(self) -> CrashReport:
        """Everything that is to be tried, and what came of it."""
        __tracebackhide__ = True
        app = self._trial.subject.ready().app
        with self._place() as place:
            first = place.execute(self._trial, None, None)
            lines = place.lines()
        self._count_answers(first)
        self._effects = len(first.observed)
        found = first.findings
        wanted = Wanted(first.state, (tuple(first.observed),), unordered=not app._settings.rules.barrier)
        if first.status == RunStatus.COMPLETED:
            second = self._undisturbed(wanted)
            wanted = self._without(wanted, second)
            found += [finding for finding in second.findings if finding.kind == SAME]
            known = {finding.subject for finding in found}
            # What the first run repeated, though with other facts, as the second one tells.
            judge = self._trial.judge
            seen = judge.seen("", {}, lines)
            repeated = judge.worded(judge.of_repetitions(seen, lines, wanted), seen)
            found += [each for each in repeated if each.subject not in known]
        if found:
            self._breaks.append(Break(None, tuple(found), tuple(lines)))
        if first.status != RunStatus.COMPLETED:
            return self._report(app.name, [])
        wanted = dataclasses.replace(wanted, is_clean=not found)
        if first.unwatched:
            self._notes.append(
                f"the bodies of {', '.join(map(repr, first.unwatched))} run in other processes: they are not killed "
                "there, only at the commits around them"
            )
        if wanted.unordered:
            self._notes.append(
                "barrier=False: the order of lists is not compared, for the first to finish decides it"
            )
        boundaries = [boundary for boundary in first.boundaries if boundary.point in self._points]
        chosen = sampled(boundaries, self._limit)
        for boundary in chosen:
            wanted = self._try(boundary, wanted)
            if self._late >= _MOST_LATE:
                self._notes.append(
                    f"{counted(self._late, 'run')} did not end in time: nothing more was tried"
                )
                break
        return self._report(app.name, boundaries)

    @contextlib.contextmanager
    def _place(self) -> Iterator[Place]:
        """A place for one run."""
        place = self._places.new()
        try:
            yield place
        finally:
            place.leave()

    def _count_answers(self, end: End) -> None:
        self._questions += end.questions
        self._asked.update(end.asked)
        self._unanswered.update(end.unanswered)

    def _undisturbed(self, wanted: Wanted) -> End:
        """One more run that nobody disturbs."""
        __tracebackhide__ = True
        with self._place() as place:
            return place.execute(self._trial, None, wanted)

    def _without(self, wanted: Wanted, end: End) -> Wanted:
        """Leave out what an end, which no crash explains, shows to be another each time."""
        found = [tuple(path) for path in end.differing]
        if self._trial.judge.same is not None:
            found = [()] if any(finding.kind == RESULT for finding in end.findings) else []
        self._volatile += found
        observed = wanted.observed
        if end.status == RunStatus.COMPLETED:
            observed += (tuple(end.observed),)
        return dataclasses.replace(wanted, observed=observed, volatile=tuple(self._volatile))

    def _judged_again(self, wanted: Wanted, end: End, lines: Sequence[Line]) -> End:
        """An end without what is said of results and effects that are not compared any more."""
        if end.status != RunStatus.COMPLETED:
            return end
        judge, codec = self._trial.judge, self._trial.subject.ready().app._settings.codec
        state = {key: codec.decode(bytes.fromhex(raw)) for key, raw in end.state.items()}
        seen = judge.seen(end.status, state, lines)
        findings = list(judge.of_effects(seen, wanted, lines, end.status))
        if not end.passed_over:
            findings += judge.of_result(state, wanted, codec)
        others = [finding for finding in end.findings if finding.kind not in OF_RUN]
        return dataclasses.replace(end, findings=[*judge.worded(findings, seen), *others])

    def _try(self, boundary: Boundary, wanted: Wanted) -> Wanted:
        """Die at a boundary and live on; what is wanted from now on."""
        __tracebackhide__ = True
        self._tried.append(boundary)
        with self._place() as place:
            try:
                end = place.execute(self._trial, boundary, wanted)
                self._unreached += 1
            except Died:
                self._kills += 1
                end = self._resumed(place, wanted)
            lines = place.lines()
        if any(finding.kind in COMPARED for finding in end.findings):
            # What undisturbed runs differ in too is a matter of the workflow, not of the crash.
            if boundary.place == (COMMIT_POINTS[0], 1):
                wanted = self._without(wanted, end)  # Nothing was stored: the run began again.
            while boundary.place != (COMMIT_POINTS[0], 1) and self._further_runs:
                self._further_runs -= 1
                wanted = self._without(wanted, self._undisturbed(wanted))
            end = self._judged_again(wanted, end, lines)
        self._late += end.reason == LATE
        self._count_answers(end)
        self._decisions.update(end.decisions)
        if end.status == "refused":
            self._refused.add(boundary.what)
        if end.findings:
            self._breaks.append(Break(boundary, tuple(end.findings), tuple(lines)))
        return wanted

    def _resumed(self, place: Place, wanted: Wanted) -> End:
        __tracebackhide__ = True
        self._resumes += 1
        if self._kill_resumes:
            point = COMMIT_POINTS[self._resumes % len(COMMIT_POINTS)]
            try:
                return place.execute(self._trial, Boundary(point, 1), wanted)
            except Died:
                self._kills += 1
            self._resumes += 1
        return place.execute(self._trial, None, wanted)

    def _report(self, name: str, boundaries: list[Boundary]) -> CrashReport:
        self._add_notes()
        return CrashReport(
            workflow=name,
            mode=self._places.mode,
            boundaries=len(boundaries),
            tried=len(self._tried),
            effects=self._effects,
            kills=self._kills,
            resumes=self._resumes,
            questions=self._questions,
            unreached=self._unreached,
            breaks=tuple(self._breaks),
            notes=tuple(self._notes),
            points=self._points,
        )

    def _add_notes(self) -> None:
        if self._volatile:
            paths = list(dict.fromkeys(self._volatile))
            named = ", ".join("".join(f"[{part!r}]" for part in path) or "the result" for path in paths[:5])
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            self._notes.append(
                f"not compared: {named}{more}, which {'differs' if len(paths) == 1 else 'differ'} between undisturbed "
                "runs (time, random numbers?)"
            )
        if self._refused:
            self._notes.append(
                f"at {counted(len(self._refused), 'place')} the run stopped because a step may not be repeated "
                'unasked, as its node says (idempotent=False or if_interrupted="fail"); somebody has to look then'
            )
        if self._decisions:
            self._notes.append(f"decided for interrupted steps: {', '.join(sorted(self._decisions))}")
        if self._unanswered:
            self._notes.append(
                f"nobody answered {', '.join(map(repr, sorted(self._unanswered)))}, which `answers` has nothing for: "
                "the time ran out"
            )
        unasked = [name for name in self._trial.answers.names() if name not in self._asked]
        if unasked:
            self._notes.append(f"nobody ever asked {', '.join(map(repr, unasked))}, which `answers` has")
