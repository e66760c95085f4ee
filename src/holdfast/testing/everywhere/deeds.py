"""What runs did to the world: what undisturbed ones agree on, and how another one differs from that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.testing.everywhere.effects import Effect
from holdfast.testing.everywhere.step_names import nodes_of


class Deed(NamedTuple):
    """An effect as far as it is compared with those of other runs."""

    name: str
    step: str
    facts: str
    """As JSON."""


Group = Callable[[str], str]
"""Which steps are not told apart when deeds are counted."""


def _by_step(step: str) -> str:
    return step


def _by_node(step: str) -> str:
    return "/".join(nodes_of(step))


def _altogether(step: str) -> str:
    return ""


def deeds_of(effects: Iterable[Effect]) -> list[Deed]:
    """The deeds that effects are."""
    return [Deed(effect.name, effect.step, json.dumps(effect.facts, sort_keys=True)) for effect in effects]


def subject_of(name: str, group: str) -> str:
    """What a finding about an effect is about."""
    return json.dumps([name, group])


class Other(NamedTuple):
    """A fact of some effects that is not what it usually is: the values that were missed, those that came instead."""

    fact: str
    missed: tuple[Any, ...]
    came: tuple[Any, ...]


class Usual:
    """What undisturbed runs did. What they do not agree on themselves, no other run is held to."""

    def __init__(self, runs: Sequence[Sequence[Deed]]) -> None:
        self._runs = runs

    def names(self) -> list[str]:
        """Everything that any of them did."""
        return list(dict.fromkeys(deed.name for run in self._runs for deed in run))

    def grouping(self, name: str, steps: Iterable[str]) -> Group | None:
        """How finely the deeds of a name, by these steps, can be counted: by step, by node, together, or not at all."""
        by_run = [[deed.step for deed in run if deed.name == name] for run in self._runs]
        is_known = all(steps) and all(step for known in by_run for step in known)
        for group in (_by_step, _by_node, _altogether) if is_known else (_altogether,):
            first, *others = [Counter(map(group, known)) for known in by_run]
            if all(other == first for other in others):
                return group
        return None

    def counts(self, name: str, group: Group) -> Counter[str]:
        """How often it was done, by what the steps are grouped by; they agree on that."""
        return Counter(group(deed.step) for deed in self._runs[0] if deed.name == name)

    def varying(self, name: str) -> frozenset[str]:
        """The facts of an effect in which undisturbed runs differ: times, random numbers."""
        first, *others = [_values(run, name, _altogether) for run in self._runs]
        places = {place for run in (first, *others) for place in run}
        return frozenset(
            fact
            for group, fact in places
            if any(o.get((group, fact)) != first.get((group, fact)) for o in others)
        )

    def others(self, name: str, group: Group, effects: Iterable[Effect]) -> Iterator[tuple[str, Other]]:
        """The facts that undisturbed runs agree on, and these effects, as many as usual, do not have."""
        first, *further = [_values(run, name, group) for run in self._runs]
        mine = _values(deeds_of(effects), name, group)
        for place in dict.fromkeys([*first, *mine]):
            usual, found = first.get(place, Counter()), mine.get(place, Counter())
            if usual != found and all(run.get(place, Counter()) == usual for run in further):
                yield place[0], Other(place[1], _listed(usual - found), _listed(found - usual))


def _values(run: Iterable[Deed], name: str, group: Group) -> dict[tuple[str, str], Counter[str]]:
    """The values of each fact, as JSON, with how often each occurs."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for deed in run:
        if deed.name == name:
            for fact, value in json.loads(deed.facts).items():
                place = found.setdefault((group(deed.step), fact), Counter())
                place[json.dumps(value, sort_keys=True)] += 1
    return found


def _listed(values: Counter[str]) -> tuple[Any, ...]:
    return tuple(json.loads(value) for value in sorted(values.elements()))


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
        alike = _without(effect.facts, varying)
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


def _without(facts: Mapping[str, Any], varying: Collection[str]) -> str:
    return json.dumps({fact: value for fact, value in facts.items() if fact not in varying}, sort_keys=True)
