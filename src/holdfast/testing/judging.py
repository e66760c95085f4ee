"""What is checked of a run that was killed and resumed, held against one that nobody disturbed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.state.codec import Codec
from holdfast.stores.base import Store
from holdfast.testing import function_words
from holdfast.testing.ledger import (
    BEGINS,
    FAILED,
    LEFT,
    RETURNED,
    START,
    Effect,
    Line,
    broken_promises,
    effects_of,
)
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
    "`{declared}`, where look(ctx) asks the service whether it was done, or "
    'if_interrupted="ask" to let a person decide'
)
_ANYHOW = "If doing it twice is harmless, say so: crash_everywhere(…, repeatable=[{name!r}])."


def of_repetition(
    first: Effect, again: Effect, ended: Line | None, times: int, of_function: bool = False
) -> tuple[str, str]:
    """What happened when an effect happened more often than it should, and what to change."""
    step, name = first.step or "?", first.name
    shown, declared = node_text(step), f"add_node({nodes_of(step)[-1]!r}, …, if_interrupted=look)"
    if of_function:
        shown, declared = repr("/".join(nodes_of(step))), "@step(if_interrupted=look)"
    key, look = _KEY.format(name=name), _LOOK.format(shown=shown, declared=declared)
    did = f"step {step!r} did {name!r} {often(times)}"
    if first.key is not None and again.key is not None and first.key != again.key:
        what = f"{did}, each time under another key"
        fix = f"A key only helps if it is the same when the step runs again: {key}, or make it of the input."
    elif ended is not None and ended.what == LEFT:
        kind, asked = json.loads(ended.detail)
        call = f"ctx.ask({asked!r})" if kind == "ask" else "ctx.sleep"
        until = "when the answer comes" if kind == "ask" else "when its time has come"
        what = f"{did}: once before `{call}`, and again {until}; no crash is needed"
        fix = (
            f"Side effect before `{call.partition('(')[0]}`: a node that waits is left, and {until} it runs again from "
            f"its beginning. Move {name!r} into a node of its own before (or after) the one that waits, or wrap it: "
            f"`ctx.once({name!r}, …)`, which runs it once and remembers its result. And since a process can die "
            f"between the effect and the record of it, {key}."
        )
    elif ended is not None and ended.what == FAILED:
        what = f"{did}: its attempt failed ({json.loads(ended.detail)}) and was repeated"
        fix = (
            "A retry, and a resume after a failure, run the whole body again. Wrap what is done: "
            f"`ctx.once({name!r}, …)`, or give it a node of its own; and {key}."
        )
    else:
        what = f"{did}: it ran, the process died before its outcome was stored, and the resume ran it again"
        fix = (
            "`ctx.once` remembers a result only after the function has returned: nobody can tell from the journal "
            "whether a process that died in between had done it. Close that gap at the service: "
            f"{key}. Or, {look}."
            if first.in_once
            else "Nobody can tell from the journal whether a step that was interrupted had done it. Either "
            f"{key}. Or, {look}. (`ctx.once({name!r}, …)` around it narrows the gap to this one call, so that the rest "
            "of the body may run again, but does not close it.)"
        )
    return what, f"{fix}\n{_ANYHOW.format(name=name)}"


UNANSWERED, NOT_STORABLE, CONFLICT = "unanswered", "not storable", "conflict"
LATE, RETRIED = "late", "retried"
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
StatePath = tuple[str | int, ...]
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


Group = Callable[[str], str]
"""Which steps are counted together."""
_GROUPS: tuple[Group, ...] = (str, lambda step: "/".join(nodes_of(step)), lambda step: "")
"""By step, by node, and all of them."""


@dataclass(frozen=True)
class Wanted:
    """What undisturbed runs came to, and did. What they do not agree on themselves, no other run is held to."""

    state: Mapping[str, str]
    observed: tuple[tuple[Effect, ...], ...]
    """The effects of each undisturbed run."""
    volatile: tuple[StatePath, ...] = ()
    """The parts of the state in which even undisturbed runs differ."""
    is_clean: bool = True
    """Whether the undisturbed run had nothing wrong with its effects."""
    unordered: bool = False
    """Whether lists may come in any order: that in which steps finish decides."""

    def decoded(self, codec: Codec) -> dict[str, Any]:
        """The state that was come to."""
        return {key: codec.decode(bytes.fromhex(raw)) for key, raw in self.state.items()}

    def differing(self, state: Mapping[str, Any], codec: Codec) -> list[StatePath]:
        """Where a state is another, apart from what differs anyway."""
        mine = {key: codec.decode(codec.encode(value)) for key, value in state.items()}
        found = differing_paths(self.decoded(codec), mine, unordered=self.unordered)
        return [path for path in found if not any(path[: len(known)] == known for known in self.volatile)]

    def grouping(self, name: str, steps: Iterable[str]) -> Group | None:
        """Return how finely effects of a name can be counted: by step, by node, together, or not at all."""
        by_run = [[each.step for each in run if each.name == name] for run in self.observed]
        is_known = all(steps) and all(step for known in by_run for step in known)
        for group in _GROUPS if is_known else _GROUPS[-1:]:
            first, *others = [Counter(map(group, known)) for known in by_run]
            if all(other == first for other in others):
                return group
        return None

    def varying(self, name: str) -> frozenset[str]:
        """The facts of an effect in which undisturbed runs differ: times, random numbers."""
        first, *others = [_values(run, name, _GROUPS[-1]) for run in self.observed]
        places = {place for run in (first, *others) for place in run}
        return frozenset(
            place[1] for place in places if any(other.get(place) != first.get(place) for other in others)
        )

    def other_facts(
        self, name: str, group: Group, effects: Iterable[Effect]
    ) -> Iterator[tuple[str, str, Counter[str], Counter[str]]]:
        """The facts that undisturbed runs agree on, and these effects, as many as usual, do not have.

        Each with the group and the name of the fact, the values that were missed, and those that came instead.
        """
        first, *further = [_values(run, name, group) for run in self.observed]
        mine = _values(effects, name, group)
        for place in dict.fromkeys([*first, *mine]):
            usual, found = first.get(place, Counter()), mine.get(place, Counter())
            if usual != found and all(run.get(place, Counter()) == usual for run in further):
                yield *place, usual - found, found - usual


def _values(run: Iterable[Effect], name: str, group: Group) -> dict[tuple[str, str], Counter[str]]:
    """The values of each fact, as JSON, with how often each occurs."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for each in run:
        for fact, value in each.facts.items() if each.name == name else ():
            found.setdefault((group(each.step), fact), Counter())[json.dumps(value, sort_keys=True)] += 1
    return found


def repetition(
    requests: Iterable[Effect], varying: Collection[str] = (), *, is_known: bool = False
) -> tuple[Effect, Effect] | None:
    """An effect of a step and its repetition by a later pass of that step, facts that vary anyway aside.

    Requests that a service knew already count for which place an effect has in its pass. If it `is_known` that there
    are too many, two passes of a step that both had an effect are enough.
    """
    met: dict[tuple[str, str, int], Effect] = {}
    places: Counter[tuple[str, int, str]] = Counter()
    first_of: dict[str, Effect] = {}
    pair: tuple[Effect, Effect] | None = None
    for effect in requests:
        compared = {fact: value for fact, value in effect.facts.items() if fact not in varying}
        alike = json.dumps(compared, sort_keys=True)
        places[effect.step, effect.visit, alike] += 1
        # What is remembered by the journal is not done again, however alike it is.
        is_vague = effect.in_once and not is_known and any(fact in effect.facts for fact in varying)
        if effect.again or is_vague:
            continue
        place = (effect.step, alike, places[effect.step, effect.visit, alike])
        first = met.setdefault(place, effect)
        if first.visit != effect.visit:
            return first, effect
        earlier = first_of.setdefault(effect.step, effect)
        if is_known and pair is None and earlier.visit != effect.visit:
            pair = earlier, effect
    return pair


@dataclass(frozen=True)
class Judge:
    """The checks of a run, with the test author's expectations of the workflow."""

    invariant: Callable[[RunSeen], object] | None = None
    same: Callable[[dict[str, Any], dict[str, Any]], object] | None = None
    repeatable: frozenset[str] = frozenset()
    of_file: bool = False
    """Whether it is a workflow file, whose author writes no Python."""
    of_function: bool = False
    """Whether it is a workflow's function."""

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
        return self.worded(found, seen)

    def worded(self, findings: Iterable[Finding], seen: RunSeen) -> list[Finding]:
        """Return findings with advice for what it is that they are about."""
        return [self._of_function(each, seen) if self.of_function else each for each in findings]

    def _of_function(self, found: Finding, seen: RunSeen) -> Finding:
        fixes = {
            OF_RESULT: function_words.OF_RESULT,
            OF_MORE: function_words.OF_MORE,
            OF_OTHER: function_words.OF_OTHER,
        }
        fix = function_words.in_words_of_functions(fixes.get(found.fix, found.fix))
        outside = (each.name for each in seen.requests if not each.step)
        if found.kind in (LOST, MORE, OTHER, TWICE, CHANGED_REQUEST):
            name = next((name for name in outside if found.subject == subject_of(name, "")), "")
            fix = function_words.of_body(name) if name else fix
        return found._replace(fix=fix)

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
            paths: list[StatePath] = [] if held else [()]
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
        is_over = wanted.is_clean and status == RunStatus.COMPLETED
        requests = [effect for effect in seen.requests if not self._may_repeat(effect)]
        usual = [effect for run in wanted.observed for effect in run]
        for name in dict.fromkeys(effect.name for effect in (*usual, *requests)):
            if name not in self.repeatable:
                mine = [effect for effect in requests if effect.name == name]
                yield from self._of_name(name, mine, wanted, lines, is_over)

    def of_repetitions(
        self, seen: RunSeen, lines: Sequence[Line], wanted: Wanted | None = None
    ) -> Iterator[Finding]:
        """What an undisturbed run repeated; with `wanted`, facts that vary anyway make no difference."""
        by_subject: dict[str, list[Effect]] = {}
        for effect in seen.requests:
            if not self._may_repeat(effect):
                by_subject.setdefault(subject_of(effect.name, effect.step), []).append(effect)
        for requests in by_subject.values():
            pair = repetition(requests, () if wanted is None else wanted.varying(requests[0].name))
            if pair is not None:
                yield self._twice(*pair, sum(not effect.again for effect in requests), None, lines)

    def _of_name(
        self, name: str, requests: Sequence[Effect], wanted: Wanted, lines: Sequence[Line], is_over: bool
    ) -> Iterator[Finding]:
        """What is wrong with how often, and how, something was done."""
        effects = [effect for effect in requests if not effect.again]
        group = wanted.grouping(name, [effect.step for effect in effects])
        varying = wanted.varying(name)
        if group is None:
            pair = repetition(requests, varying)
            if pair is not None:
                yield self._twice(*pair, sum(effect.step == pair[0].step for effect in effects), None, lines)
            return
        expected = Counter(group(effect.step) for effect in wanted.observed[0] if effect.name == name)
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
            for place, fact, missed, came in wanted.other_facts(name, group, effects):
                if not self.repeatable & {place, *nodes_of(place)}:
                    what = f"{_who(place)} did {name!r}, but not what it does when nobody disturbs it"
                    wanted_text, text = (_fact_text(name, fact, values) for values in (missed, came))
                    yield Finding(OTHER, what, OF_OTHER, wanted_text, text, subject_of(name, place))

    def _twice(
        self, first: Effect, again: Effect, times: int, usual: int | None, lines: Sequence[Line]
    ) -> Finding:
        ended = how_pass_ended(lines, first.step, first.visit)
        what, fix = of_repetition(first, again, ended, times, self.of_function)
        fix += f"\n{IN_A_FILE}" if self.of_file else ""
        expected = f"{first.name!r} {often(usual or 1)} in step {first.step!r}"
        return Finding(
            TWICE,
            what,
            fix,
            expected,
            f"{often(times)}: {first}, and {again}",
            subject_of(first.name, first.step),
        )

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
                    subject_of(effect.name, effect.step),
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


def _fact_text(name: str, fact: str, values: Counter[str]) -> str:
    """Return an effect and its values of one fact as text, such as `'mail' with to='ann'`; `values` holds JSON."""
    shown = ", ".join(f"{fact}={json.loads(value)!r}" for value in sorted(values.elements()))
    return f"{name!r} with {shown or f'no {fact}'}"


def _who(place: str) -> str:
    if not place:
        return "the run"
    return f"step {place!r}" if "#" in place else f"node {place!r}"


def subject_of(name: str, group: str) -> str:
    """What a finding about an effect is about."""
    return json.dumps([name, group])


# An error as its author wants to see it: what was raised, why, and where in the author's own code.


_NOT_OWN = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).resolve().parents[1],
        Path(asyncio.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)
_NOT_OWN_FILES = (threading.__file__, contextlib.__file__)
_MOST_FRAMES = 8


def own_trace(error: BaseException) -> str:
    """Return an error and what caused it, each with the frames that are neither Holdfast's nor the event loop's."""
    shown = traceback.TracebackException.from_exception(error)
    parts: list[traceback.TracebackException | None] = [shown]
    for part in parts:
        if part is not None:
            own = [
                frame
                for frame in part.stack
                if not frame.filename.startswith(("<frozen", *_NOT_OWN))
                and frame.filename not in _NOT_OWN_FILES
            ]
            part.stack = traceback.StackSummary.from_list(own[-_MOST_FRAMES:])
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(shown.format()).strip()


# Which node a step is a step of, and in which sub-graphs that is.


def nodes_of(step: str) -> tuple[str, ...]:
    """The nodes that a step lies in, from the outermost to its own."""
    return tuple(part.partition("#")[0].partition("[")[0] for part in step.split("/"))


def node_text(step: str) -> str:
    """The node of a step, for people."""
    *outer, own = nodes_of(step)
    return f"node {own!r}" + (f" in the sub-graph {'/'.join(outer)!r}" if outer else "")


def counted(number: int, one: str, several: str = "") -> str:
    """A number of things, in the right number."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def often(times: int) -> str:
    """How often, in words."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(times, f"{times} times")


# Where two states differ, as paths into them.


_MOST_PATHS = 200


def differing_paths(
    one: Any, other: Any, path: StatePath = (), *, unordered: bool = False
) -> list[StatePath]:
    """The innermost places at which two values differ; lists of different lengths differ as a whole.

    With `unordered` lists that have the same items in another order do not differ.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[StatePath] = []
        for key in [*one, *(key for key in other if key not in one)]:
            if key in one and key in other:
                found += differing_paths(one[key], other[key], (*path, key), unordered=unordered)
            else:
                found.append((*path, key))
        return found[:_MOST_PATHS]
    both_lists = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    if both_lists and type(one) is type(other) and len(one) == len(other):
        if unordered and sorted(map(repr, one)) == sorted(map(repr, other)):
            return []
        return [
            place
            for index, (mine, theirs) in enumerate(zip(one, other, strict=True))
            for place in differing_paths(mine, theirs, (*path, index), unordered=unordered)
        ][:_MOST_PATHS]
    try:
        is_same = bool(one == other) or (one != one and other != other)
    except Exception:
        is_same = repr(one) == repr(other)  # Arrays and the like do not answer with a truth.
    return [] if is_same else [path]


def shown_at(state: Any, path: StatePath) -> str:
    """What a state has at a path, for people."""
    name = "".join(f"[{part!r}]" for part in path) or "the state"
    for part in path:
        try:
            state = state[part]
        except (KeyError, IndexError, TypeError):
            return f"{name} is missing"
    text = repr(state)
    return f"{name} = {text if len(text) <= 160 else text[:157] + '…'}"
