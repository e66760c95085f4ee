"""What is checked of a run that was killed and resumed, held against one that nobody disturbed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.data.codec import Codec
from holdfast.stores.base import Store
from holdfast.testing.everywhere import advice
from holdfast.testing.everywhere.effects import Effect, effects_of
from holdfast.testing.everywhere.frames import own_trace
from holdfast.testing.everywhere.sameness import Path, differing_paths, shown_at
from holdfast.testing.everywhere.step_names import nodes_of
from holdfast.testing.everywhere.watching import FAILED, LEFT, RETURNED
from holdfast.testing.invariants import check_run
from holdfast.testing.ledger import START, Line
from holdfast.values import RunStatus

_MOST_SHOWN = 4
RESULT = "result"
"""The kind of finding that says that a run came to another result."""


class Finding(NamedTuple):
    """Something that is wrong: what, what was expected instead, and how to mend it."""

    kind: str
    what: str
    fix: str
    expected: str = ""
    happened: str = ""
    subject: str = ""
    """What it is about; the same at every boundary that shows it."""


@dataclass(frozen=True)
class RunSeen:
    """A run after its end, as an invariant sees it.

    `outcome` is "completed", or "refused" if the run stopped because a step may not be repeated unasked. `effects` are
    those that really happened, `steps` the bodies in the order in which they began, repetitions included. A
    key of the state can be asked for directly.
    """

    outcome: str
    state: Mapping[str, Any]
    effects: tuple[Effect, ...]
    steps: tuple[str, ...]
    requests: tuple[Effect, ...] = ()
    """All effects, also those that a service that knows keys was asked for once more."""

    def __getitem__(self, key: str) -> Any:
        return self.state[key]


@dataclass(frozen=True)
class Wanted:
    """What an undisturbed run came to."""

    state: Mapping[str, str]
    effects: Mapping[str, int]
    volatile: tuple[Path, ...] = ()
    """The parts of the state in which even undisturbed runs differ."""
    is_clean: bool = True
    """Whether the undisturbed run had nothing wrong with its effects."""

    def decoded(self, codec: Codec) -> dict[str, Any]:
        """The state that was come to."""
        return {key: codec.decode(bytes.fromhex(raw)) for key, raw in self.state.items()}

    def differing(self, state: Mapping[str, Any], codec: Codec) -> list[Path]:
        """Where a state is another, apart from what differs anyway."""
        mine = {key: codec.decode(codec.encode(value)) for key, value in state.items()}
        found = differing_paths(self.decoded(codec), mine)
        return [path for path in found if not any(path[: len(known)] == known for known in self.volatile)]


@dataclass(frozen=True)
class Judge:
    """The checks, with what the test's author says of the workflow."""

    invariant: Callable[[RunSeen], object] | None = None
    same: Callable[[dict[str, Any], dict[str, Any]], object] | None = None
    repeatable: frozenset[str] = frozenset()
    of_file: bool = False
    """Whether it is a workflow file, whose author writes no Python."""

    def seen(self, status: str, state: Mapping[str, Any], lines: Sequence[Line]) -> RunSeen:
        """What an invariant is given."""
        requests = effects_of(lines)
        steps = tuple(line.key for line in lines if line.what == START)
        happened = tuple(effect for effect in requests if not effect.again)
        return RunSeen(status, state, happened, steps, tuple(requests))

    def counted(self, effects: Iterable[Effect]) -> dict[str, int]:
        """How often each step did each thing."""
        return dict(Counter(_subject(effect) for effect in effects))

    def findings(
        self,
        status: str,
        error: str,
        seen: RunSeen,
        wanted: Wanted | None,
        codec: Codec,
        lines: Sequence[Line],
        skipped: bool,
    ) -> list[Finding]:
        """Everything that is wrong with a run; without `wanted` it is itself the undisturbed one."""
        found = list(self._of_effects(seen, wanted, lines, status))
        if status == RunStatus.COMPLETED:
            if wanted is not None and not skipped:
                found += self.of_result(seen.state, wanted, codec)
            found += self._of_invariant(seen, wanted is None)
        elif status == "refused":
            found += self._of_invariant(seen, False) if wanted is not None else []
        else:
            happened = error or f"the run is {status}"
            kind = "resume" if wanted is not None else "run"
            fix = advice.of_failure(happened, undisturbed=wanted is None)
            found.insert(0, Finding(kind, _FAILED[kind], fix, "", happened, kind))
        return found

    def of_journal(self, lines: Sequence[Line], store: Store, run: str, codec: Codec) -> list[Finding]:
        """What Holdfast itself promises, held against the ledger and the journal."""
        return [
            Finding(
                "promise", f"a promise of Holdfast is broken: {violation}", advice.OF_PROMISE, subject=name
            )
            for violation in check_run(lines, store, run, codec)
            for name in [violation.invariant.name]
        ]

    def of_result(self, state: Mapping[str, Any], wanted: Wanted, codec: Codec) -> Iterator[Finding]:
        """Whether a run came to what it should have come to."""
        expected = wanted.decoded(codec)
        if self.same is not None:
            mine = {key: codec.decode(codec.encode(value)) for key, value in state.items()}
            paths: list[Path] = [] if () in wanted.volatile or self.same(expected, mine) else [()]
        else:
            paths = wanted.differing(state, codec)
        if not paths:
            return
        shown = paths[:_MOST_SHOWN]
        more = f" (and {len(paths) - len(shown)} more places)" if len(paths) > len(shown) else ""
        yield Finding(
            RESULT,
            "the resumed run came to another result than the undisturbed one",
            advice.OF_RESULT,
            "; ".join(shown_at(expected, path) for path in shown) + more,
            "; ".join(shown_at(state, path) for path in shown) + more,
            RESULT,
        )

    def _of_effects(
        self, seen: RunSeen, wanted: Wanted | None, lines: Sequence[Line], status: str
    ) -> Iterator[Finding]:
        yield from self._changed_requests(seen)
        by_subject: dict[str, list[Effect]] = {}
        for effect in seen.effects:
            if not self._may_repeat(effect):
                by_subject.setdefault(_subject(effect), []).append(effect)
        for subject, effects in by_subject.items():
            usual = None if wanted is None else wanted.effects.get(subject, 0)
            repeated = _repeated(effects, usual)
            if repeated is not None:
                first, again = repeated
                yield self._twice(first, again, len(effects), usual, lines)
        if wanted is None or not wanted.is_clean or status != RunStatus.COMPLETED:
            return
        for subject, usual in wanted.effects.items():
            name, step = json.loads(subject)
            missing = usual - len(by_subject.get(subject, ()))
            if missing > 0 and not {name, step, *nodes_of(step)} & self.repeatable:
                yield Finding(
                    "lost",
                    f"step {step!r} did {name!r} {usual - missing} times of {usual}",
                    advice.OF_LOSS,
                    f"{name!r} {usual} times, as in the undisturbed run",
                    f"{name!r} {usual - missing} times, and the run says it is completed",
                    subject,
                )

    def _twice(
        self, first: Effect, again: Effect, times: int, usual: int | None, lines: Sequence[Line]
    ) -> Finding:
        ended = how_pass_ended(lines, first.step, first.visit)
        what, fix = advice.of_repetition(first, again, ended, times)
        fix += f"\n{advice.IN_A_FILE}" if self.of_file else ""
        expected = (
            f"{first.name!r} {'once' if not usual or usual == 1 else f'{usual} times'} in step {first.step!r}"
        )
        return Finding(
            "effect", what, fix, expected, f"{times} times: {_listed(first, again)}", _subject(first)
        )

    def _changed_requests(self, seen: RunSeen) -> Iterator[Finding]:
        asked: dict[tuple[str, str | None], Effect] = {}
        for effect in seen.requests:
            first = asked.setdefault((effect.name, effect.key), effect)
            if effect.key is not None and first.facts != effect.facts:
                yield Finding(
                    "changed-request",
                    f"step {effect.step!r} asked for {effect.name!r} again under the same key, for something else",
                    advice.OF_CHANGED_REQUEST.format(name=effect.name),
                    str(first),
                    str(effect),
                    _subject(effect),
                )

    def _of_invariant(self, seen: RunSeen, undisturbed: bool) -> Iterator[Finding]:
        if self.invariant is None:
            return
        try:
            held = self.invariant(seen)
        except AssertionError as error:
            happened = str(error).strip() or own_trace(error)
        except Exception as error:
            happened = own_trace(error)
        else:
            if held is not False:
                return
            happened = "it answered False"
        shown = ", ".join(map(str, seen.effects)) or "none"
        name = getattr(self.invariant, "__name__", "invariant").replace("<lambda>", "invariant")
        yield Finding(
            "invariant",
            f"the invariant {name!r} does not hold",
            advice.OF_INVARIANT_UNDISTURBED if undisturbed else advice.OF_INVARIANT,
            "the invariant holds however the run went",
            f"{happened}\neffects: {shown}",
            "invariant",
        )

    def _may_repeat(self, effect: Effect) -> bool:
        return bool({effect.name, effect.step, *nodes_of(effect.step)} & self.repeatable)


_FAILED = {
    "run": "the workflow does not come to its end even when nobody disturbs it",
    "resume": "the run could not be resumed to its end",
}


def how_pass_ended(lines: Sequence[Line], step: str, visit: int) -> Line | None:
    """How the `visit`-th pass of a step ended, as the ledger has it; `None` if the process died in it."""
    passes = 0
    for line in lines:
        if line.key == step and line.what == START:
            passes += 1
        elif line.key == step and passes == visit and line.what in (LEFT, FAILED, RETURNED):
            return line
        if passes > visit:
            return None
    return None


def _repeated(effects: Sequence[Effect], usual: int | None) -> tuple[Effect, Effect] | None:
    """An effect and its repetition by a later pass, if there are more than there should be."""
    if usual is not None and len(effects) <= usual:
        return None
    met: dict[tuple[str, int], Effect] = {}
    places: Counter[tuple[int, str]] = Counter()
    for effect in effects:
        facts = json.dumps(effect.facts, sort_keys=True)
        places[effect.visit, facts] += 1
        first = met.setdefault((facts, places[effect.visit, facts]), effect)
        if first.visit != effect.visit:
            return first, effect
    if usual is None:
        return None
    return effects[0], effects[-1]


def _subject(effect: Effect) -> str:
    return json.dumps([effect.name, effect.step])


def _listed(first: Effect, again: Effect) -> str:
    return f"{first}, and {again}"
