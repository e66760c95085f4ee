"""What is checked of a run that was killed and resumed, held against one that nobody disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.testing.everywhere.boundaries import (
    BEGINS,
    FAILED,
    LEFT,
    RETURNED,
    differing_paths,
    node_text,
    nodes_of,
    often,
    own_trace,
    shown_at,
)
from holdfast.testing.everywhere.boundaries import StatePath as Path
from holdfast.testing.everywhere.boundaries import often as how_often
from holdfast.testing.everywhere.effects import (
    Effect,
    ObservedEffect,
    Other,
    Usual,
    effects_of,
    repetition,
    subject_of,
)
from holdfast.testing.ledger import START, Line, broken_promises
from holdfast.values import RunStatus

# How to fix what was found: what to change in the workflow, and why that helps.


OF_PROMISE = "Your workflow did nothing wrong: it is a fault of Holdfast or of the store. Please report it."
OF_RESULT = (
    "What a finished step returned is kept, but nothing else of the process that died is: a global variable, an "
    "object that nodes share, a cache, a file that was half written. Return what later steps need as an update of "
    "the state. If a body goes by the time, by random numbers or by what a service answered, and it may run again, "
    'let the journal remember the value: `ctx.once("now", time.time)`. If the results differ in a way that does '
    "not matter, give `same=`."
)
OF_LOSS = (
    'A step was passed over or took an effect for granted that never happened. With if_interrupted="skip" a step '
    'that died before its effect is passed over too: use "rerun" with a key that the service deduplicates by, or a '
    "function as if_interrupted that looks whether it was done. If the effect is optional, name it in `repeatable=`."
)
OF_MORE = (
    "A body counts or collects in something that is not the state, such as a global variable or a file: a new process "
    "begins without it, and what one execution began the next goes through once more. Keep what decides how often "
    "it is done in the state. If the effect is optional, name it in `repeatable=`."
)
OF_OTHER = (
    "What is done comes from something that dies with its process, or changes meanwhile: a global variable, an object "
    "that nodes share, a cache, the time. Return what later steps need as an update of the state, and let the journal "
    'remember what a body looks up and may look up again: `ctx.once("recipient", look_up)`.'
)
OF_SAME = "`same=` gets two states as plain mappings, the expected one first, and answers whether they are the same."
OF_INVARIANT = (
    "Look at the ledger above: what happened twice, or not at all, when the process died there? Effects that must not "
    "be repeated need a key that the service deduplicates by (`ctx.idempotency_key`), or a function as "
    "if_interrupted that looks whether they were done."
)
OF_INVARIANT_UNDISTURBED = (
    "It does not hold although nobody disturbed the run: check the invariant. It gets a `RunSeen`: `.state`, "
    "`.effects` (what was given to `record_effect`), `.steps`, `.outcome`; a key of the state also as `run[key]`."
)
OF_CHANGED_REQUEST = (
    "The body ran again and computed its request again, from the time, a random number, or something that had changed "
    "meanwhile; services refuse that, or keep the first. Let the journal remember what is asked for before asking: "
    '`request = ctx.once("{name} request", make_request)`, or compute it in a node before this one.'
)

IN_A_FILE = (
    "In a workflow file: the function of a `python` step may take `ctx`, a `shell` step finds the key in "
    "$HOLDFAST_IDEMPOTENCY_KEY, and `if_interrupted: ask` lets a person decide."
)

_KEY = (
    "send a key by which the service deduplicates: `{name}(…, idempotency_key=ctx.idempotency_key)`; it is the same "
    "for every run of this step"
)
_LOOK = (
    "if the service knows no keys, say what a resume does with a step that was interrupted, of {shown}: "
    "`add_node({node!r}, …, if_interrupted=look)`, where look(ctx) asks the service whether it was done, or "
    'if_interrupted="ask" to let a person decide'
)
_ANYHOW = "If doing it twice is harmless, say so: crash_everywhere(…, repeatable=[{name!r}])."


def of_repetition(first: Effect, again: Effect, ended: Line | None, times: int) -> tuple[str, str]:
    """What happened when an effect happened more often than it should, and what to change."""
    step, name = first.step or "?", first.name
    key, look = _KEY.format(name=name), _LOOK.format(shown=node_text(step), node=nodes_of(step)[-1])
    anyhow = _ANYHOW.format(name=name)
    often = how_often(times)
    if first.key is not None and again.key is not None and first.key != again.key:
        what = f"step {step!r} did {name!r} {often}, each time under another key"
        fix = f"A key only helps if it is the same when the step runs again: {key}, or make it of the input."
        return what, f"{fix}\n{anyhow}"
    if ended is not None and ended.what == "left":
        kind, asked = json.loads(ended.detail)
        call = f"ctx.ask({asked!r})" if kind == "ask" else "ctx.sleep"
        until = "when the answer comes" if kind == "ask" else "when its time has come"
        what = (
            f"step {step!r} did {name!r} {often}: once before `{call}`, and again {until}; no crash is needed"
        )
        fix = (
            f"Side effect before `{call.partition('(')[0]}`: a node that waits is left, and {until} it runs again from "
            f"its beginning. Move {name!r} into a node of its own before (or after) the one that waits, or wrap it: "
            f"`ctx.once({name!r}, …)`, which runs it once and remembers its result. And since a process can die "
            f"between the effect and the record of it, {key}."
        )
        return what, f"{fix}\n{anyhow}"
    if ended is not None and ended.what == "failed":
        what = f"step {step!r} did {name!r} {often}: its attempt failed ({json.loads(ended.detail)}) and was repeated"
        fix = (
            "A retry, and a resume after a failure, run the whole body again. Wrap what is done: "
            f"`ctx.once({name!r}, …)`, or give it a node of its own; and {key}."
        )
        return what, f"{fix}\n{anyhow}"
    died = "it ran, the process died before its outcome was stored, and the resume ran it again"
    what = f"step {step!r} did {name!r} {often}: {died}"
    if first.in_once:
        fix = (
            "`ctx.once` remembers a result only after the function has returned: nobody can tell from the journal "
            "whether a process that died in between had done it. Close that gap at the service: "
            f"{key}. Or, {look}."
        )
    else:
        fix = (
            "Nobody can tell from the journal whether a step that was interrupted had done it. Either "
            f"{key}. Or, {look}. (`ctx.once({name!r}, …)` around it narrows the gap to this one call, so that the rest "
            "of the body may run again, but does not close it.)"
        )
    return what, f"{fix}\n{anyhow}"


UNANSWERED, NOT_STORABLE, CONFLICT, LATE, RETRIED = (
    "unanswered",
    "not storable",
    "conflict",
    "late",
    "retried",
)
"""Why a run did not come to its end, as far as there is advice for it."""

_OF_REASON = {
    UNANSWERED: "Give the answer: crash_everywhere(…, answers={name: value}), or a function of the pause.",
    NOT_STORABLE: "What a step returns has to be stored: return plain data, or register the type.",
    CONFLICT: "Somebody else executes the run too: does a node start or resume a run by itself?",
}
_LATE_UNDISTURBED = "Does a body wait or loop for ever? If it just takes longer: give timeout=."
_OF_RESUME = {
    LATE: "A body waits for something that the new process does not have: a thread, a lock, a server that the first "
    "process started. Or it just takes longer: give timeout=.",
    RETRIED: "An attempt that a crash interrupts is one of the attempts that `Retry` allows: after it fewer are left. "
    "Allow one more, if the service may fail as often as that; or resume once more, as the error says.",
    "": "A resumed process begins with nothing but the journal: does a body rely on something that only the first "
    "process had, such as a global variable, a temporary file or an open connection?",
}


def of_failure(reason: str, undisturbed: bool = False) -> str:
    """Return what to do about a run that does not come to its end."""
    if undisturbed:
        fix = _LATE_UNDISTURBED if reason == LATE else _OF_REASON.get(reason, "")
        return f"It fails without any crash: fix that first. {fix}".strip()
    return _OF_REASON.get(reason) or _OF_RESUME[reason]


_MOST_SHOWN = 4
RESULT = "result"
"""The kind of finding that says that a run came to another result."""
LOST, MORE, OTHER = "lost", "more", "other-effect"
"""Those that say that a run did less, or more, or something else than undisturbed ones."""
TWICE, CHANGED_REQUEST = "effect", "changed-request"
COMPARED = (RESULT, LOST, MORE, OTHER)
"""What may be found only because undisturbed runs differ among themselves, more than is known so far."""
SAME = "same"
"""The test's own comparison does not work."""
OF_RUN = (*COMPARED, SAME, TWICE, CHANGED_REQUEST)
"""All that is said of a result and of effects."""


class Finding(NamedTuple):
    """Something that is wrong: what, what was expected instead, and how to fix it."""

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
    observed: tuple[tuple[ObservedEffect, ...], ...]
    """The effects of each undisturbed run."""
    volatile: tuple[Path, ...] = ()
    """The parts of the state in which even undisturbed runs differ."""
    is_clean: bool = True
    """Whether the undisturbed run had nothing wrong with its effects."""
    unordered: bool = False
    """Whether lists may come in any order: that in which steps finish decides."""

    def decoded(self, codec: Codec) -> dict[str, Any]:
        """The state that was come to."""
        return {key: codec.decode(bytes.fromhex(raw)) for key, raw in self.state.items()}

    def differing(self, state: Mapping[str, Any], codec: Codec) -> list[Path]:
        """Where a state is another, apart from what differs anyway."""
        mine = {key: codec.decode(codec.encode(value)) for key, value in state.items()}
        found = differing_paths(self.decoded(codec), mine, unordered=self.unordered)
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

    def findings(
        self,
        status: str,
        error: str,
        seen: RunSeen,
        wanted: Wanted | None,
        codec: Codec,
        lines: Sequence[Line],
        skipped: bool,
        reason: str,
    ) -> list[Finding]:
        """Everything that is wrong with a run; without `wanted` it is itself the undisturbed one.

        `skipped` says that somebody decided to skip a step, `reason` why the run failed.
        """
        found = list(self.of_effects(seen, wanted, lines, status))
        if status == RunStatus.COMPLETED:
            if wanted is not None and not skipped:
                found += self.of_result(seen.state, wanted, codec)
            found += self._of_invariant(seen, wanted is None)
        elif status == "refused":
            found += self._of_invariant(seen, False) if wanted is not None else []
        else:
            happened = error or f"the run is {status}"
            kind = "resume" if wanted is not None else "run"
            fix = of_failure(reason, wanted is None)
            found.insert(0, Finding(kind, _FAILED[kind], fix, "", happened, kind))
        return found

    def of_journal(self, lines: Sequence[Line], store: Store, run: str, codec: Codec) -> list[Finding]:
        """What Holdfast itself promises, held against the ledger and the journal."""
        return [
            Finding("promise", f"a promise of Holdfast is broken: {name}: {what}", OF_PROMISE, subject=name)
            for name, what in broken_promises(lines, store, run, codec)
        ]

    def of_result(self, state: Mapping[str, Any], wanted: Wanted, codec: Codec) -> Iterator[Finding]:
        """Whether a run came to what it should have come to."""
        expected = wanted.decoded(codec)
        if self.same is not None:
            mine = {key: codec.decode(codec.encode(value)) for key, value in state.items()}
            held, error = (True, "") if () in wanted.volatile else _answer(self.same, expected, mine)
            if error:
                what = "`same` raised an error when it compared the results"
                yield Finding(SAME, what, OF_SAME, "", error, SAME)
                return
            paths: list[Path] = [] if held else [()]
        else:
            paths = wanted.differing(state, codec)
        if not paths:
            return
        shown = paths[:_MOST_SHOWN]
        more = f" (and {len(paths) - len(shown)} more places)" if len(paths) > len(shown) else ""
        yield Finding(
            RESULT,
            "the resumed run came to another result than the undisturbed one",
            OF_RESULT,
            "; ".join(shown_at(expected, path) for path in shown) + more,
            "; ".join(shown_at(state, path) for path in shown) + more,
            RESULT,
        )

    def of_effects(
        self, seen: RunSeen, wanted: Wanted | None, lines: Sequence[Line], status: str
    ) -> Iterator[Finding]:
        """Yield what is wrong with the effects of a run; without `wanted` it is itself the undisturbed one."""
        yield from self._changed_requests(seen)
        if wanted is None:
            yield from self.of_repetitions(seen, lines)
            return
        usual, is_over = Usual(wanted.observed), wanted.is_clean and status == RunStatus.COMPLETED
        requests = [effect for effect in seen.requests if not self._may_repeat(effect)]
        for name in dict.fromkeys([*usual.names(), *(effect.name for effect in requests)]):
            if name not in self.repeatable:
                mine = [effect for effect in requests if effect.name == name]
                yield from self._of_name(name, mine, usual, lines, is_over)

    def of_repetitions(
        self, seen: RunSeen, lines: Sequence[Line], usual: Usual | None = None
    ) -> Iterator[Finding]:
        """What an undisturbed run repeated; with `usual`, facts that vary anyway make no difference."""
        by_subject: dict[str, list[Effect]] = {}
        for effect in seen.requests:
            if not self._may_repeat(effect):
                by_subject.setdefault(_subject(effect), []).append(effect)
        for requests in by_subject.values():
            pair = repetition(requests, () if usual is None else usual.varying(requests[0].name))
            if pair is not None:
                yield self._twice(*pair, sum(not effect.again for effect in requests), None, lines)

    def _of_name(
        self, name: str, requests: Sequence[Effect], usual: Usual, lines: Sequence[Line], is_over: bool
    ) -> Iterator[Finding]:
        """What is wrong with how often, and how, something was done."""
        effects = [effect for effect in requests if not effect.again]
        group = usual.grouping(name, [effect.step for effect in effects])
        varying = usual.varying(name)
        if group is None:
            pair = repetition(requests, varying)
            if pair is not None:
                yield self._twice(*pair, sum(effect.step == pair[0].step for effect in effects), None, lines)
            return
        expected = usual.counts(name, group)
        found = False
        for place in dict.fromkeys([*expected, *(group(effect.step) for effect in effects)]):
            if self.repeatable & {place, *nodes_of(place)}:
                continue
            asked = [effect for effect in requests if group(effect.step) == place]
            done = sum(not effect.again for effect in asked)
            pair = repetition(asked, varying, is_known=True) if done > expected[place] else None
            if pair is not None:
                step = pair[0].step
                times = sum(effect.step == step and not effect.again for effect in asked)
                yield self._twice(*pair, times, expected[place] if place == step else None, lines)
            elif is_over and done != expected[place]:
                yield _not_as_often(name, place, done, expected[place])
            found |= done != expected[place]
        if is_over and not found:
            for place, other in usual.others(name, group, effects):
                if not self.repeatable & {place, *nodes_of(place)}:
                    yield _something_else(name, place, other)

    def _twice(
        self, first: Effect, again: Effect, times: int, usual: int | None, lines: Sequence[Line]
    ) -> Finding:
        ended = how_pass_ended(lines, first.step, first.visit)
        what, fix = of_repetition(first, again, ended, times)
        fix += f"\n{IN_A_FILE}" if self.of_file else ""
        expected = f"{first.name!r} {often(usual or 1)} in step {first.step!r}"
        return Finding(TWICE, what, fix, expected, f"{often(times)}: {first}, and {again}", _subject(first))

    def _changed_requests(self, seen: RunSeen) -> Iterator[Finding]:
        asked: dict[tuple[str, str | None], Effect] = {}
        for effect in seen.requests:
            first = asked.setdefault((effect.name, effect.key), effect)
            if effect.key is not None and first.facts != effect.facts:
                yield Finding(
                    CHANGED_REQUEST,
                    f"step {effect.step!r} asked for {effect.name!r} again under the same key, for something else",
                    OF_CHANGED_REQUEST.format(name=effect.name),
                    str(first),
                    str(effect),
                    _subject(effect),
                )

    def _of_invariant(self, seen: RunSeen, undisturbed: bool) -> Iterator[Finding]:
        if self.invariant is None:
            return
        held, happened = _answer(self.invariant, seen)
        if held or (held is None and not happened):
            return
        happened = happened or f"it answered {held!r}"
        shown = ", ".join(map(str, seen.effects)) or "none"
        name = getattr(self.invariant, "__name__", "invariant").replace("<lambda>", "invariant")
        yield Finding(
            "invariant",
            f"the invariant {name!r} does not hold",
            OF_INVARIANT_UNDISTURBED if undisturbed else OF_INVARIANT,
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
        if line.key == step and line.what in BEGINS:
            passes += 1
        elif line.key == step and passes == visit and line.what in (LEFT, FAILED, RETURNED):
            return line
        if passes > visit:
            return None
    return None


def _answer(question: Callable[..., object], *given: object) -> tuple[object, str]:
    """What a function of the test answers, or what it raises, in words; what pytest raises is a `BaseException`."""
    try:
        answer = question(*given)
        return (None if answer is None else answer if answer else False), ""
    except AssertionError as error:
        return None, str(error).strip() or own_trace(error)
    except Exception as error:
        return None, own_trace(error)
    except BaseException as error:
        if all(kind.__module__ != "_pytest.outcomes" for kind in type(error).__mro__):
            raise
        return None, str(error).strip() or type(error).__name__


def _not_as_often(name: str, place: str, done: int, usual: int) -> Finding:
    """An effect that happened less often than usual, or more often although nothing was repeated."""
    kind, fix = (LOST, OF_LOSS) if done < usual else (MORE, OF_MORE)
    what = f"{_who(place)} did {name!r} {often(done)}, and {often(usual)} when nobody disturbed it"
    happened = f"{name!r} {often(done)}, and the run says it is completed"
    return Finding(kind, what, fix, f"{name!r} {often(usual)}", happened, subject_of(name, place))


def _something_else(name: str, place: str, other: Other) -> Finding:
    missed, came = (", ".join(f"{other.fact}={value!r}" for value in some) for some in other[1:])
    return Finding(
        OTHER,
        f"{_who(place)} did {name!r}, but not what it does when nobody disturbs it",
        OF_OTHER,
        f"{name!r} with {missed or f'no {other.fact}'}",
        f"{name!r} with {came or f'no {other.fact}'}",
        subject_of(name, place),
    )


def _who(place: str) -> str:
    if not place:
        return "the run"
    return f"step {place!r}" if "#" in place else f"node {place!r}"


def _subject(effect: Effect) -> str:
    return subject_of(effect.name, effect.step)
