"""What came of killing a workflow everywhere, in numbers and in words."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.testing.everywhere.boundaries import EVERY_POINT, Boundary
from holdfast.testing.everywhere.effects import AGAIN, UNKEYED, Effect
from holdfast.testing.everywhere.judging import Finding
from holdfast.testing.everywhere.lives import ANSWERED, DECIDED
from holdfast.testing.everywhere.step_names import counted, nodes_of
from holdfast.testing.everywhere.watching import DIED, FAILED, LEFT, LIFE, RETURNED
from holdfast.testing.ledger import EFFECT, START, Line

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
            yield f"  every resumed run came to the result of the undisturbed one{self._of_effects()}"
            return
        advised: set[str] = set()
        yield from self._broken(self.first, advised)
        yield from self._others(self.first, advised)

    def _of_effects(self) -> str:
        if self.effects:
            return ", and nothing happened twice"
        return "; no effects were recorded (`record_effect`), so repeated ones would not be seen"

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
    """A workflow did not survive being killed everywhere; `report` says where, why, and how to mend it."""

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
    told = [text for line in lines if (text := _told(line))]
    if len(told) <= _MOST_LINES:
        return told
    half = _MOST_LINES // 2
    return [*told[:half], f"… {len(told) - 2 * half} lines …", *told[-half:]]


def _told(line: Line) -> str:
    what, key, detail = line
    match what:
        case _ if what == LIFE:
            return f"a process {key} the run"
        case _ if what == START:
            return f"  step {key!r} begins"
        case _ if what in (EFFECT, UNKEYED):
            return f"    EFFECT {_effect(detail)}"
        case _ if what == AGAIN:
            return f"    asked again, and the service knew the key: {_effect(detail)}"
        case _ if what == LEFT:
            kind, name = json.loads(detail)
            return f"  step {key!r} is left: it {'asks' if kind == 'ask' else 'waits'} ({name})"
        case _ if what == FAILED:
            return f"  step {key!r} failed: {json.loads(detail)}"
        case _ if what == RETURNED:
            return f"  step {key!r} has run"
        case _ if what == ANSWERED:
            return f"  {key!r} is answered"
        case _ if what == DECIDED:
            return f"  a person decides on step {key!r}: {detail}"
        case _ if what == DIED:
            return f"KILLED {json.loads(detail)}"
        case _:
            return ""


def _effect(detail: str) -> str:
    told = json.loads(detail)
    return str(Effect(told["name"], told["key"], told["facts"]))


def _filled(text: str, indent: str, told: set[str]) -> Iterator[str]:
    """The paragraphs of a text that were not told yet, filled."""
    for paragraph in text.split("\n"):
        if paragraph in told:
            continue
        told.add(paragraph)
        yield from textwrap.wrap(
            paragraph, 110, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )
