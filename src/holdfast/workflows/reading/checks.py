"""Names: each is used once, none is reserved, and whoever is referred to is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.suggestions import did_you_mean
from holdfast.workflows.model import END_ROUTE, After, Ask, Definition, Parallel, Step
from holdfast.workflows.reading.problems import Problem, listed
from holdfast.workflows.reading.shapes import MADE_UP, given
from holdfast.workflows.reading.source import DataPath, Source

# A definition together with the file it was read from: what all checks look at.


@dataclass(frozen=True, slots=True)
class Placed:
    """A step and its path in the file; `inside` is the name of the parallel step it is a member of."""

    path: DataPath
    step: Step
    inside: str | None = None

    @property
    def title(self) -> str:
        """The step in words."""
        return f"step {self.step.name!r}" if not _is_made_up(self.step.name) else f"step {_count(self.path)}"


class Reading:
    """A definition, its file, and which of its steps could not be read in full (`unread`)."""

    def __init__(
        self, source: Source, definition: Definition, unread: frozenset[DataPath], names: frozenset[str]
    ) -> None:
        self.source, self.definition, self.unread = source, definition, unread
        self.steps = tuple(_placed(definition.steps, ("steps",), None))
        self.outer = tuple(placed for placed in self.steps if placed.inside is None)
        given = [placed.step.name for placed in self.steps if not _is_made_up(placed.step.name)]
        self.names = dict.fromkeys([*given, *names])
        """Every name that a step has or was meant to have."""
        self.all_named = len(self.steps) - len(given) <= len(names - set(given))
        self.members = {
            placed.step.name: placed.inside
            for placed in self.steps
            if placed.inside is not None and not _is_made_up(placed.inside)
        }

    def declared(self, field: str) -> frozenset[str] | None:
        """The names under a field of `workflow`, well or badly declared; `None` if that cannot be told."""
        workflow = self.source.data.get("workflow")
        names = workflow.get(field) or {} if isinstance(workflow, dict) else None
        return frozenset(names) if isinstance(names, dict) else None

    def read(self) -> Iterator[Placed]:
        """The steps whose kind could be read."""
        return (placed for placed in self.steps if placed.path not in self.unread)


def _is_made_up(name: str) -> bool:
    return name.startswith(MADE_UP)


def _count(path: DataPath) -> int:
    return int(path[-1]) + 1


def _placed(steps: list[Step], path: DataPath, inside: str | None) -> Iterator[Placed]:
    for index, step in enumerate(steps):
        yield Placed((*path, index), step, inside)
        if isinstance(step.parallel, Parallel):
            yield from _placed(step.parallel.steps, (*path, index, "parallel", "steps"), step.name)
        elif step.parallel is not None:
            yield from _placed(step.parallel, (*path, index, "parallel"), step.name)


SCOPE = frozenset({"inputs", "steps", "visits", "vars", "workflow"})
"""The names that every expression and template sees."""
RESERVED = SCOPE | {
    "output", "outputs", "answer", "secrets", "item", "index", "key", "ledger",
    "__start__", "__end__", END_ROUTE,
}  # fmt: skip
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def check_names(reading: Reading) -> Iterator[Problem]:
    """Problems with names and with references to steps."""
    yield from _step_names(reading)
    yield from _workflow(reading)
    for placed in reading.steps:
        yield from _routes(reading, placed)
        yield from _after(reading, placed)
        yield from _own_names(reading, placed)


def _step_names(reading: Reading) -> Iterator[Problem]:
    first: dict[str, DataPath] = {}
    for placed in reading.steps:
        name, path = placed.step.name, (*placed.path, "name")
        if name in RESERVED:
            hint = f"choose another name; reserved are {listed(sorted(RESERVED))}"
            yield reading.source.problem(path, f"{name!r} is reserved and cannot be a step's name", hint)
        if name in first:
            line = reading.source.at(first[name]).line
            hint = "names are unique in a file, members of parallel steps included: rename one of the two"
            yield reading.source.problem(path, f"there is a step {name!r} already, at line {line}", hint)
        first.setdefault(name, path)


def _workflow(reading: Reading) -> Iterator[Problem]:
    workflow = reading.definition.workflow
    if workflow.entry is not None:
        yield from _outer(reading, ("workflow", "entry"), workflow.entry, "the workflow begins with")
    gates = {"interrupt_before": workflow.interrupt_before, "interrupt_after": workflow.interrupt_after}
    for field, names in gates.items():
        for index, name in enumerate(names):
            yield from _known(reading, ("workflow", field, index), name, f"{field} names")
    for name in workflow.inputs:
        if not _INPUT_NAME.fullmatch(name):
            hint = "use letters, digits, _ and -; do not begin with a digit"
            message = f"{name!r} cannot be an input's name"
            yield reading.source.problem(("workflow", "inputs", name), message, hint, key=True)


def _routes(reading: Reading, placed: Placed) -> Iterator[Problem]:
    for index, route in enumerate(placed.step.routes or ()):
        if route.to != END_ROUTE:
            path = (*placed.path, "routes", index, "to")
            yield from _outer(reading, path, route.to, f"a route of {placed.title} leads to")


def _after(reading: Reading, placed: Placed) -> Iterator[Problem]:
    name = placed.step.name
    for path, target in waits(placed):
        if target == name:
            hint = "name the steps that have to be done before"
            yield reading.source.problem(path, f"{placed.title} waits for itself", hint)
        else:
            yield from _outer(reading, path, target, f"{placed.title} waits for")


def waits(placed: Placed) -> Iterator[tuple[DataPath, str]]:
    """The steps that a step waits for, and where the file says so."""
    after = placed.step.after
    if isinstance(after, str):
        yield (*placed.path, "after"), after
    for index, item in enumerate(after if isinstance(after, list) else ()):
        if isinstance(item, After):
            yield (*placed.path, "after", index, "step"), item.step
        else:
            yield (*placed.path, "after", index), item


def _outer(reading: Reading, path: DataPath, name: str, what: str) -> Iterator[Problem]:
    """A reference to a step that is not a member of a parallel one."""
    inside = reading.members.get(name)
    if inside is not None:
        message = f"{what} {name!r}, which is a member of the parallel step {inside!r}"
        yield reading.source.problem(path, message, f"name {inside!r} instead")
    else:
        yield from _known(reading, path, name, what)


def _known(reading: Reading, path: DataPath, name: str, what: str) -> Iterator[Problem]:
    if name in reading.names or not reading.names:
        return
    close = did_you_mean(name, reading.names)
    if not close and not reading.all_named:
        return
    if name.lower().strip("$_") in ("end", "done", "stop") and not close:
        close = f"write {END_ROUTE} to end the run"
    hint = close or f"the steps are {listed(reading.names)}"
    yield reading.source.problem(path, f"{what} {name!r}, but there is no such step", hint)


def _own_names(reading: Reading, placed: Placed) -> Iterator[Problem]:
    loop, ask = placed.step.for_each, placed.step.ask
    if loop is not None and loop.as_ in RESERVED - {"item"}:
        path = (*placed.path, "for_each", "as")
        hint = "choose another name, such as item or the singular of the list"
        yield reading.source.problem(path, f"{loop.as_!r} is reserved and cannot be an item's name", hint)
    seen: set[str] = set()
    for index, question in enumerate(ask.questions if isinstance(ask, Ask) else ()):
        if question.name in seen:
            path = (*placed.path, "ask", "questions", index, "name")
            yield reading.source.problem(path, f"there is a question {question.name!r} already", "rename it")
        seen.add(question.name)


# How steps follow each other: what is never reached, never taken, or never ends.


Followers = Mapping[str, set[str]]


def check_order(reading: Reading) -> Iterator[Problem]:
    """Problems with the ways through a workflow; call it only if every step could be read."""
    yield from _never_taken(reading)
    known = {placed.step.name for placed in reading.outer}
    if len(known) != len(reading.outer):
        return
    waiting = {
        placed.step.name: {name for _, name in waits(placed) if name in known} for placed in reading.outer
    }
    circles = list(_circles({name: targets - {name} for name, targets in waiting.items()}))
    yield from _waiting_circles(reading, circles)
    follow = _followers(reading, waiting, known)
    reached = _reach(_first(reading, waiting, follow), follow)
    stuck = {name for circle in circles for name in circle} | {n for n, t in waiting.items() if n in t}
    if not _leads_astray(reading, known):
        yield from _unreachable(reading, reached, _reach(stuck, follow))
    yield from _endless(reading, follow, reached)


def _never_taken(reading: Reading) -> Iterator[Problem]:
    for placed in reading.outer:
        always = False
        for index, route in enumerate(placed.step.routes or ()):
            if always:
                path = (*placed.path, "routes", index)
                message = f"this route of {placed.title} is never taken: the one before always is"
                hint = "put the route without `when` last"
                yield reading.source.problem(path, message, hint)
            always = always or route.when is None


def _leads_astray(reading: Reading, known: set[str]) -> bool:
    """Whether a name is wrong that would lead somewhere if it were right."""
    routes = {route.to for placed in reading.outer for route in placed.step.routes or ()}
    awaited = {name for placed in reading.outer for _, name in waits(placed)}
    entry = reading.definition.workflow.entry
    return not (routes - {END_ROUTE} | awaited | ({entry} if entry else set())) <= known


def _followers(reading: Reading, waiting: Mapping[str, set[str]], known: set[str]) -> dict[str, set[str]]:
    """The steps that may come after each step; `$end` where the run may end, fail or go elsewhere."""
    ordered = not any(placed.step.after for placed in reading.outer)
    names = [placed.step.name for placed in reading.outer]
    follow: dict[str, set[str]] = {name: set() for name in names}
    for placed, following in zip(reading.outer, [*names[1:], END_ROUTE], strict=True):
        step, routes = placed.step, placed.step.routes or []
        targets = {route.to if route.to in known else END_ROUTE for route in routes}
        if all(route.when is not None for route in routes) and (routes or not ordered):
            targets.add(END_ROUTE)
        elif not routes:
            targets.add(following)
        follow[step.name] = {END_ROUTE} if step.kind == "end" else targets
    for name, sources in waiting.items():
        for source in sources:
            follow[source].add(name)
    return follow


def _first(reading: Reading, waiting: Mapping[str, set[str]], follow: Followers) -> set[str]:
    entry = reading.definition.workflow.entry
    if not any(placed.step.after for placed in reading.outer):
        return {entry if entry in follow and entry is not None else reading.outer[0].step.name}
    led_to = {target for targets in follow.values() for target in targets}
    return {name for name in follow if name not in led_to and not waiting[name]} | {
        name for name in follow if name == entry
    }


def _reach(first: Iterable[str], follow: Followers) -> set[str]:
    reached: set[str] = set()
    coming = list(first)
    while coming:
        name = coming.pop()
        if name not in reached:
            reached.add(name)
            coming += follow.get(name, ())
    return reached


def _unreachable(reading: Reading, reached: set[str], excused: set[str]) -> Iterator[Problem]:
    for placed in reading.outer:
        name = placed.step.name
        if name not in reached and name not in excused:
            hint = f"let a route lead to it (`to: {name}`), or remove it"
            path = (*placed.path, "name")
            yield reading.source.problem(path, f"step {name!r} is never reached", hint)


def _waiting_circles(reading: Reading, circles: list[list[str]]) -> Iterator[Problem]:
    placed_by_name = _by_name(reading)
    for circle in circles:
        placed = placed_by_name[circle[0]]
        message = f"steps wait for each other: {' -> '.join([*circle, circle[0]])}"
        hint = "remove one of these from an `after`"
        yield reading.source.problem((*placed.path, "after"), message, hint)


def _endless(reading: Reading, follow: Followers, reached: set[str]) -> Iterator[Problem]:
    """Circles of steps that no way leads out of."""
    leaving = _reach([END_ROUTE], _turned(follow))
    stuck = {name: follow[name] for name in follow if name in reached and name not in leaving}
    placed_by_name = _by_name(reading)
    for circle in _circles(stuck):
        placed = placed_by_name[circle[-1]]
        path = (*placed.path, "routes") if placed.step.routes else (*placed.path, "name")
        message = f"no way leads out of the circle {' -> '.join([*circle, circle[0]])}"
        hint = f"give {listed(map(repr, circle))} a route with a condition that leads on, or to {END_ROUTE}"
        yield reading.source.problem(path, message, hint, key=bool(placed.step.routes))


def _circles(follow: Followers) -> Iterator[list[str]]:
    """One circle for each group of names that lead to each other, in the order in which they are met."""
    order = {name: place for place, name in enumerate(follow)}
    back = _turned(follow)
    left = set(follow)
    for start in follow:
        circle = _circle(start, follow, order, left) if start in left else []
        if circle:
            yield circle
            left -= _reach(circle, follow) | _reach(circle, back)


def _circle(start: str, follow: Followers, order: Mapping[str, int], left: set[str]) -> list[str]:
    """The first circle that a name leads to, or nothing; what leads to none is removed from `left`."""
    trail = {start: _in_order(start, follow, order)}
    while trail:
        last, targets = next(reversed(trail.items()))
        target = next((target for target in targets if target in left), None)
        if target in trail:
            names = list(trail)
            return names[names.index(target) :]
        if target is None:
            left.remove(last)
            del trail[last]
        else:
            trail[target] = _in_order(target, follow, order)
    return []


def _in_order(name: str, follow: Followers, order: Mapping[str, int]) -> Iterator[str]:
    return iter(sorted((target for target in follow[name] if target in order), key=order.__getitem__))


def _turned(follow: Followers) -> dict[str, set[str]]:
    """What leads to each name."""
    back: dict[str, set[str]] = {}
    for name, targets in follow.items():
        for target in targets:
            back.setdefault(target, set()).add(name)
    return back


def _by_name(reading: Reading) -> dict[str, Placed]:
    return {placed.step.name: placed for placed in reading.outer}


# Values that a file promises to fit a type: defaults and choices of inputs and questions.


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_CHOICE = {"value", "label", "description"}


def fits(kind: str, value: Any) -> bool:
    """Whether a value is of a type that an input or a question may have."""
    if kind == "any":
        return True
    return isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def check_inputs(reading: Reading) -> Iterator[Problem]:
    """Defaults and choices of inputs that do not fit."""
    for name, declared in reading.definition.workflow.inputs.items():
        path = ("workflow", "inputs", name)
        choices = list(declared.choices or ())
        yield from _choices(reading, path, declared.type, choices, f"input {name!r}")
        yield from _default(reading, path, declared.type, declared.default, choices, f"input {name!r}")


def check_ask(reading: Reading, placed: Placed) -> Iterator[Problem]:
    """Defaults and choices of questions that do not fit."""
    ask = placed.step.ask
    if not isinstance(ask, Ask):
        return
    if ask.timeout == 0:
        yield reading.source.problem((*placed.path, "ask", "timeout"), "a timeout of 0", "give it above 0")
    asked: list[tuple[DataPath, Any]] = [((*placed.path, "ask"), ask)]
    asked += [((*placed.path, "ask", "questions", i), item) for i, item in enumerate(ask.questions)]
    for path, question in asked:
        choices = [_value(choice) for choice in question.choices or ()]
        owner = f"the question of {placed.title}"
        yield from _forms(reading, path, question.choices or [])
        yield from _choices(reading, path, question.type, choices, owner)
        yield from _default(reading, path, question.type, question.default, choices, owner)


def _value(choice: Any) -> Any:
    return choice["value"] if isinstance(choice, dict) and "value" in choice else choice


def _forms(reading: Reading, path: DataPath, choices: list[Any]) -> Iterator[Problem]:
    for index, choice in enumerate(choices):
        if isinstance(choice, dict) and ("value" not in choice or set(choice) - _CHOICE):
            message = "a choice with fields needs a value, and may have a label and a description"
            yield reading.source.problem((*path, "choices", index), message, f"use {listed(sorted(_CHOICE))}")


def _choices(
    reading: Reading, path: DataPath, kind: str, choices: list[Any], owner: str
) -> Iterator[Problem]:
    for index, choice in enumerate(choices):
        place = (*path, "choices", index)
        if not _is_open(choice) and not fits(kind, choice):
            message = f"a choice of {owner} is {given(choice)}, which is not of type {kind}"
            yield reading.source.problem(place, message, "change the choice or the type")


def _default(
    reading: Reading, path: DataPath, kind: str, default: Any, choices: list[Any], owner: str
) -> Iterator[Problem]:
    if default is None or _is_open(default):
        return
    place = (*path, "default")
    if not fits(kind, default):
        message = f"the default of {owner} is {given(default)}, which is not of type {kind}"
        hint = _quotes(kind, default)
        yield reading.source.problem(place, message, hint)
    elif choices and default not in choices and not any(map(_is_open, choices)):
        message = f"the default of {owner} is not one of its choices"
        yield reading.source.problem(place, message, f"the choices are {listed(map(str, choices))}")


def _quotes(kind: str, default: Any) -> str:
    if kind == "string" and isinstance(default, (int, float)):
        return "put it in quotes, or change the type"
    if isinstance(default, str) and kind in ("integer", "number", "boolean"):
        return "write it without quotes (true and false for a boolean), or change the type"
    return "change the default or the type"


def _is_open(value: Any) -> bool:
    """Whether a value is known only when the run comes to it."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
