"""The page that shows two runs side by side: what they are, their steps, what these left behind, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.routing import BaseRoute

from holdfast.service.reading import RequestInvalid
from holdfast.web.pages.rendering import Asked, Page, Pages
from holdfast.web.pages.run_parts import Line, lines_of
from holdfast.web.pages.wording import Shown, lasted, money, shown

MOST_STEPS = 300
"""How many steps a page shows."""

MOST_KEYS = 60
"""How many keys of the state a page shows."""

MOST_LINES = 120
"""How many lines of what differs in the result of one step are shown."""

MOST_CHARACTERS = 1_500
"""How many characters of one value are shown."""


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the route of the page that compares."""
    return [pages.view("/compare", show_comparison)]


class Fact(NamedTuple):
    """Something that both runs have, as text."""

    name: str
    one: str
    other: str

    @property
    def differs(self) -> bool:
        """Whether it is not the same in both."""
        return self.one != self.other


class StepPair(NamedTuple):
    """A step of both runs, or of one; `how` says what is different."""

    name: str
    one: Mapping[str, Any] | None
    other: Mapping[str, Any] | None
    how: str


class ValuePair(NamedTuple):
    """A key of the states whose values differ."""

    key: str
    one: Shown | None
    other: Shown | None


def show_comparison(asked: Asked) -> Page:
    """Show two runs side by side, or ask which."""
    given = [] if asked.request is None else asked.request.query_params.getlist("run")
    runs = [run for run in given if run][:3]
    known = [run for run in runs[:2] if asked.service.status(run)]
    facts: dict[str, Any] = {"runs": [*known, "", ""][:2], "found": None, "hint": ""}
    if len(runs) > 2:
        facts["hint"] = "Two runs are compared at a time; these are the first two that were chosen."
    if len(known) == 2 and known[0] == known[1]:
        raise RequestInvalid("these are one run; choose two, or look at the changes of the run itself")
    if len(known) < 2:
        facts["hint"] = facts["hint"] or "Choose two runs: tick them on the page of runs, or write their ids."
        return Page("compare.html", "Compare", facts)
    found = asked.service.compare(*known)
    steps = _steps([asked.service.steps(run) for run in known], found)
    facts |= {
        "found": found,
        "sides": (found["one"], found["other"]),
        "facts": _facts(found["one"], found["other"]),
        "steps": steps[:MOST_STEPS],
        "same": sum(not step.how for step in steps),
        "costs_differ": found["one"]["cost"] != found["other"]["cost"],
        "more_steps": max(0, len(steps) - MOST_STEPS),
        "results": list(_results(found["differing"])),
        "diverging": found["diverging"] and _name(found["diverging"]),
        "values": _values(asked, known, found["state"]["state"]),
        "swapped": f"/compare?{urlencode([('run', run) for run in reversed(known)])}",
    }
    return Page("compare.html", f"{known[0]} and {known[1]}", facts)


def _facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Fact]:
    said: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "Workflow": lambda run: str(run["workflow"]),
        "Steps finished": lambda run: f"{run['steps']:,}",
        "Time in steps": lambda run: lasted(run["seconds"]),
        "Failed attempts": lambda run: f"{run['failed_attempts']:,}",
        "Calls of models": lambda run: f"{run['calls']:,}",
        "Tokens in": lambda run: f"{run['input_tokens']:,}",
        "Tokens out": lambda run: f"{run['output_tokens']:,}",
        "Cost": lambda run: money(run["cost"]),
        "Cost with what it was forked from": lambda run: money(run["whole_cost"]),
    }
    found = [Fact(name, text(one), text(other)) for name, text in said.items()]
    is_forked = any(run["whole_cost"] != run["cost"] for run in (one, other))
    every = found if is_forked else found[:-1]
    return [fact for fact in every if (fact.one, fact.other) not in (("0", "0"), ("$0", "$0"))]


def _steps(both: Sequence[Sequence[Mapping[str, Any]]], found: Mapping[str, Any]) -> list[StepPair]:
    """Return the steps of both runs in their order, those that only the other has at its end."""
    one, other = ({step["name"]: step for step in steps} for steps in both)
    differing = {_name(each["step"]) for each in found["differing"]}
    single = {_name(step) for step in (*found["only_one"], *found["only_other"])}
    pairs = []
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name), other.get(name)
        how = ""
        if mine is None or theirs is None:
            how = "only in the one" if theirs is None else "only in the other"
        elif mine["status"] != theirs["status"]:
            how = "another status"
        elif name in differing:
            how = "another result"
        elif name in single or found["code"].get(name):
            how = "more often" if name in single else "other code"
        pairs.append(StepPair(name, mine, theirs, how))
    return pairs


def _name(step: str) -> str:
    """Return the name of a step by its id."""
    return "/".join(part.partition("#")[0].partition(":")[0] for part in step.split("/"))


def _results(differing: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Line], bool, str]]:
    """Return the steps whose results differ: each with lines of that, whether there are more, or why not."""
    results = []
    for each in differing[:MOST_STEPS]:
        lines = list(islice(lines_of(each["result"]), MOST_LINES + 1))
        results.append((_name(each["step"]), lines[:MOST_LINES], len(lines) > MOST_LINES, each["reason"]))
    return results


def _values(asked: Asked, runs: Sequence[str], state: Mapping[str, Any] | None) -> list[ValuePair]:
    """Return the values of the keys that differ, as both states have them."""
    if state is None:
        return []
    keys = list(dict.fromkeys((*state["changed"], *state["removed"], *state["added"])))[:MOST_KEYS]
    sides = [
        asked.service.state(run, keys=[key for key in keys if key not in state[missing]])["state"]
        for run, missing in zip(runs, ("added", "removed"), strict=True)
    ]
    return [ValuePair(key, *(_shown(side, key) for side in sides)) for key in keys]


def _shown(side: Mapping[str, Any], key: str) -> Shown | None:
    return shown(side[key], MOST_CHARACTERS) if key in side else None
