"""Names: each is used once, none is reserved, and whoever is referred to is there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.flows.model import END_ROUTE, After, Ask
from holdfast.flows.reading.checks.reading import Placed, Reading
from holdfast.flows.reading.problems import Problem, listed
from holdfast.flows.reading.source import DataPath
from holdfast.suggestions import did_you_mean

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
