"""Checks of a file as a whole: names, references to steps, the order of steps, values of declared types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import did_you_mean
from holdfast.stores.base import is_server, shown_url
from holdfast.workflows.folders import checked_path
from holdfast.workflows.model import END_ROUTE, Definition, Step
from holdfast.workflows.reading.problems import Problem, given, listed
from holdfast.workflows.reading.source import DataPath, Source

MADE_UP = "__unread__"
"""The beginning of the names that steps without a readable one are given."""
SCOPE = frozenset({"inputs", "steps", "visits", "vars", "workflow", "metadata", "state", "checkpoint"})
"""The names that every expression and template sees."""
RESERVED = SCOPE | {
    "output", "outputs", "answer", "secrets", "tmp", "item", "index", "key", "ledger",
    "__start__", "__end__", END_ROUTE,
}  # fmt: skip
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Placed:
    """A step and its path in the file; `inside` is the name of the parallel step or the loop it is a member of."""

    path: DataPath
    step: Step
    inside: str | None = None

    @property
    def title(self) -> str:
        """The step in words."""
        name = self.step.name
        return f"step {int(self.path[-1]) + 1}" if _is_made_up(name) else f"step {name!r}"


class Draft:
    """A definition with the file that it was read from.

    The steps at the paths `unread` could not be read in full; `meant` are the names that steps have in the file.
    """

    def __init__(
        self,
        source: Source,
        definition: Definition,
        unread: frozenset[DataPath] = frozenset(),
        meant: frozenset[str] = frozenset(),
    ) -> None:
        self.source, self.definition, self.unread = source, definition, unread
        self.steps = tuple(self._placed(definition.steps, ("steps",), None))
        self.outer = tuple(placed for placed in self.steps if placed.inside is None)
        readable = [placed.step.name for placed in self.steps if not _is_made_up(placed.step.name)]
        self.names = dict.fromkeys([*readable, *meant])
        self.all_named = len(self.steps) - len(readable) <= len(meant - set(readable))
        self.members = {placed.step.name: placed.inside for placed in self.steps if placed.inside is not None}

    def _placed(self, steps: list[Step], path: DataPath, inside: str | None) -> Iterator[Placed]:
        for index, step in enumerate(steps):
            yield Placed((*path, index), step, inside)
            if step.members:
                below = self.source.long_form((*path, index, step.kind), "steps")
                yield from self._placed(step.members, below, step.name)

    def declared(self, field: str) -> frozenset[str] | None:
        """Return the names under a field of `workflow`, valid or not; `None` if they cannot be determined."""
        workflow = self.source.data.get("workflow")
        names = workflow.get(field) or {} if isinstance(workflow, dict) else None
        return frozenset(names) if isinstance(names, dict) else None


def _is_made_up(name: str) -> bool:
    return name.startswith(MADE_UP)


# Names: each is used once, none is reserved, and every reference leads to a step.


def check_names(draft: Draft) -> Iterator[Problem]:
    """Find problems with names and with references to steps."""
    problem, first = draft.source.problem, dict[str, DataPath]()
    yield from _workflow(draft)
    for placed in draft.steps:
        name, path, title = placed.step.name, placed.path, placed.title
        if name in RESERVED:
            hint = f"choose another name; reserved are {listed(sorted(RESERVED))}"
            yield problem((*path, "name"), f"{name!r} is reserved and cannot be a step's name", hint)
        if name in first:
            message = f"there is a step {name!r} already, at line {draft.source.at(first[name]).line}"
            hint = "names are unique in a file, steps inside others included: rename one of the two"
            yield problem((*path, "name"), message, hint)
        first.setdefault(name, (*path, "name"))
        for index, route in enumerate(placed.step.routes or ()):
            if route.to != END_ROUTE:
                yield from _outer(
                    draft, (*path, "routes", index, "to"), route.to, f"a route of {title} leads to"
                )
        for index, after in enumerate(placed.step.after):
            place = (*path, "after", index, "step")
            if after.step == name:
                yield problem(
                    place, f"{title} waits for itself", "name the steps that have to be done before"
                )
            else:
                yield from _outer(draft, place, after.step, f"{title} waits for")
        yield from _own_names(draft, placed)


def _workflow(draft: Draft) -> Iterator[Problem]:
    workflow = draft.definition.workflow
    if workflow.entry is not None:
        yield from _outer(draft, ("workflow", "entry"), workflow.entry, "the workflow begins with")
    for field in ("interrupt_before", "interrupt_after"):
        for index, name in enumerate(getattr(workflow, field)):
            yield from _known(draft, ("workflow", field, index), name, f"{field} names")
    yield from _store(draft)
    for name in workflow.inputs:
        if not _INPUT_NAME.fullmatch(name):
            hint = "use letters, digits, _ and -; do not begin with a digit"
            message = f"{name!r} cannot be an input's name"
            yield draft.source.problem(("workflow", "inputs", name), message, hint, key=True)


def _store(draft: Draft) -> Iterator[Problem]:
    checkpoint, path = draft.definition.workflow.checkpoint, ("workflow", "checkpoint", "url")
    try:
        if checkpoint.dir is not None:
            checked_path(checkpoint.dir)
    except ValueError as error:
        hint = "name a folder beside the workflow file, such as checkpoints"
        place = ("workflow", "checkpoint", "dir")
        yield draft.source.problem(place, f"checkpoint.dir: {checkpoint.dir!r:.80}: {error}", hint)
    if checkpoint.url is None:
        return
    if checkpoint.storage != "postgres":
        message = f"a URL is given, and the storage is {checkpoint.storage}"
        yield draft.source.problem(path, message, "write `storage: postgres`, or leave the URL out")
    elif not is_server(checkpoint.url):
        hint = "write postgresql://USER@HOST/DATABASE, or pg-embedded:PATH"
        yield draft.source.problem(path, "the URL is not one of a PostgreSQL server", hint)
    elif shown_url(checkpoint.url) != checkpoint.url and checkpoint.url in draft.source.text:
        hint = (
            "leave it out and set HOLDFAST_STORE_PASSWORD, or write ${NAME} for a variable that has the URL"
        )
        message = "the URL has a password, and every run stores the text of this file"
        yield draft.source.problem(path, message, hint)


def _outer(draft: Draft, path: DataPath, name: str, what: str) -> Iterator[Problem]:
    """Check a reference to a step that is not inside another one."""
    inside = draft.members.get(name)
    if inside is not None and not _is_made_up(inside):
        message = f"{what} {name!r}, which is inside step {inside!r}"
        yield draft.source.problem(path, message, f"name {inside!r} instead")
    else:
        yield from _known(draft, path, name, what)


def _known(draft: Draft, path: DataPath, name: str, what: str) -> Iterator[Problem]:
    if name in draft.names or not draft.names:
        return
    close = did_you_mean(name, draft.names)
    if not close and not draft.all_named:
        return
    if name.lower().strip("$_") in ("end", "done", "stop") and not close:
        close = f"write {END_ROUTE} to end the run"
    hint = close or f"the steps are {listed(draft.names)}"
    yield draft.source.problem(path, f"{what} {name!r}, but there is no such step", hint)


def _own_names(draft: Draft, placed: Placed) -> Iterator[Problem]:
    loop, ask = placed.step.for_each, placed.step.ask
    if loop is not None and loop.as_ in RESERVED - {"item"}:
        path = (*placed.path, "for_each", "as")
        hint = "choose another name, such as item or the singular of the list"
        yield draft.source.problem(path, f"{loop.as_!r} is reserved and cannot be an item's name", hint)
    seen: set[str] = set()
    for index, question in enumerate(ask.questions if ask is not None else ()):
        if question.name in seen:
            path = (*placed.path, "ask", "questions", index, "name")
            yield draft.source.problem(path, f"there is a question {question.name!r} already", "rename it")
        seen.add(question.name)


# Order: what is never reached, never taken, or never ends.


Followers = Mapping[str, set[str]]


def check_order(draft: Draft) -> Iterator[Problem]:
    """Find problems with the order of steps; call it only if every step could be read."""
    problem, placed = draft.source.problem, {each.step.name: each for each in draft.outer}
    routes = {name: each.step.routes or [] for name, each in placed.items()}
    for each in draft.outer:
        always = [index for index, route in enumerate(each.step.routes or ()) if route.when is None][:1]
        for index in range(always[0] + 1, len(each.step.routes or ())) if always else ():
            message = f"this route of {each.title} is never taken: the one before always is"
            yield problem((*each.path, "routes", index), message, "put the route without `when` last")
    if len(placed) != len(draft.outer):
        return
    awaited = {name: {after.step for after in each.step.after} for name, each in placed.items()}
    waiting = {name: names & placed.keys() for name, names in awaited.items()}
    loops = list(_loops({name: targets - {name} for name, targets in waiting.items()}))
    for loop in loops:
        message = f"steps wait for each other: {' -> '.join([*loop, loop[0]])}"
        yield problem((*placed[loop[0]].path, "after"), message, "remove one of these from an `after`")
    follow = _followers(draft, waiting)
    reached = _reach(_first(draft, waiting, follow), follow)
    stuck = {name for loop in loops for name in loop} | {n for n, targets in waiting.items() if n in targets}
    entry = draft.definition.workflow.entry
    named = {route.to for each in routes.values() for route in each}.union(*awaited.values())
    # A name that is wrong would lead somewhere if it were right.
    if named - {END_ROUTE} | ({entry} if entry else set()) <= placed.keys():
        for name in placed.keys() - reached - _reach(stuck, follow):
            hint = f"let a route lead to it (`to: {name}`), or remove it"
            yield problem((*placed[name].path, "name"), f"step {name!r} is never reached", hint)
    leaving = _reach([END_ROUTE], _reversed(follow))
    for loop in _loops({name: follow[name] for name in follow if name in reached and name not in leaving}):
        last = placed[loop[-1]]
        path = (*last.path, "routes") if last.step.routes else (*last.path, "name")
        message = f"the loop {' -> '.join([*loop, loop[0]])} has no exit"
        hint = f"give {listed(map(repr, loop))} a route with a condition that leads on, or to {END_ROUTE}"
        yield problem(path, message, hint, key=bool(last.step.routes))


def _followers(draft: Draft, waiting: Followers) -> dict[str, set[str]]:
    """Map each step to those that may come after it; `$end` where the run may end, fail or go elsewhere."""
    ordered = not any(placed.step.after for placed in draft.outer)
    names = [placed.step.name for placed in draft.outer]
    follow: dict[str, set[str]] = {}
    for placed, following in zip(draft.outer, [*names[1:], END_ROUTE], strict=True):
        step, routes = placed.step, placed.step.routes or []
        targets = {route.to if route.to in waiting else END_ROUTE for route in routes}
        if all(route.when is not None for route in routes) and (routes or not ordered):
            targets.add(END_ROUTE)
        elif not routes:
            targets.add(following)
        follow[step.name] = {END_ROUTE} if step.kind == "end" else targets
    for name, sources in waiting.items():
        for source in sources:
            follow[source].add(name)
    return follow


def _first(draft: Draft, waiting: Followers, follow: Followers) -> set[str]:
    entry = draft.definition.workflow.entry
    if not any(placed.step.after for placed in draft.outer):
        return {entry if entry in follow and entry is not None else draft.outer[0].step.name}
    led_to = {target for targets in follow.values() for target in targets}
    return {name for name in follow if name == entry or (name not in led_to and not waiting[name])}


def _reach(first: Iterable[str], follow: Followers) -> set[str]:
    reached: set[str] = set()
    coming = list(first)
    while coming:
        name = coming.pop()
        if name not in reached:
            reached.add(name)
            coming += follow.get(name, ())
    return reached


def _loops(follow: Followers) -> Iterator[list[str]]:
    """Yield one loop for each group of names that lead to each other."""
    order = {name: place for place, name in enumerate(follow)}
    back, ahead = _reversed(follow), {name: len(targets & order.keys()) for name, targets in follow.items()}
    left = dict(follow)
    ends = [name for name, count in ahead.items() if not count]
    while ends:  # What leads to no loop is removed from its end.
        name = ends.pop()
        del left[name]
        for before in back.get(name, ()):
            ahead[before] -= 1
            if not ahead[before]:
                ends.append(before)
    left = {name: targets & left.keys() for name, targets in left.items()}
    follow, back = dict(left), _reversed(left)
    while left:
        trail: dict[str, None] = {}
        name = next(iter(left))
        while name not in trail:
            trail[name] = None
            name = min(left[name] & left.keys(), key=order.__getitem__)
        names = list(trail)
        loop = names[names.index(name) :]
        yield loop
        for gone in _reach(loop, follow) | _reach(loop, back):
            left.pop(gone, None)


def _reversed(follow: Followers) -> dict[str, set[str]]:
    back: dict[str, set[str]] = {}
    for name, targets in follow.items():
        for target in targets:
            back.setdefault(target, set()).add(name)
    return back


# Values that a file promises to fit a type: defaults and choices of inputs and questions.


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}


def fits(kind: str, value: Any) -> bool:
    """Return True if a value is of a type that an input or a question may have."""
    return kind == "any" or (
        isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
    )


def check_declared(
    draft: Draft, path: DataPath, owner: str, kind: str, choices: list[Any], default: Any
) -> Iterator[Problem]:
    """Find choices and a default that do not fit the type that is declared with them."""
    problem = draft.source.problem
    for index, choice in enumerate(choices):
        if not _is_open(choice) and not fits(kind, choice):
            message = f"a choice of {owner} is {given(choice)}, which is not of type {kind}"
            yield problem((*path, "choices", index), message, "change the choice or the type")
    if default is None or _is_open(default):
        return
    if not fits(kind, default):
        hint = "change the default or the type"
        if kind == "string" and isinstance(default, (int, float)):
            hint = "put it in quotes, or change the type"
        elif isinstance(default, str) and kind in ("integer", "number", "boolean"):
            hint = "write it without quotes (true and false for a boolean), or change the type"
        message = f"the default of {owner} is {given(default)}, which is not of type {kind}"
        yield problem((*path, "default"), message, hint)
    elif choices and default not in choices and not any(map(_is_open, choices)):
        hint = f"the choices are {listed(map(str, choices))}"
        yield problem((*path, "default"), f"the default of {owner} is not one of its choices", hint)


def _is_open(value: Any) -> bool:
    """Return True if a value is known only when the run comes to it."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
