"""A DAG as data: reading tasks, every problem at once, layers, references to results, hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, ClassVar, Protocol

from holdfast.errors import INVALID, HoldfastError, suggestion
from holdfast.state.ops import thaw

MOST_TASKS = 10_000
MOST_PROBLEMS = 100
"""When so many problems are found, no more are searched for."""
DEEPEST = 50
"""How deep arguments may be nested."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_FIELDS = ("id", "tool", "arguments", "depends_on", "safe_to_fail", "confidence")
_OUTPUT = re.compile(r"\$OUTPUT\[([^\]]*)\](.*)")

SUCCESS, ERROR, FAILED_SAFE, SKIPPED = "success", "error", "failed_safe", "skipped"
RUNNING, PENDING = "running", "pending"
LEADS_ON = (SUCCESS, FAILED_SAFE, SKIPPED)
"""The statuses of tasks whose dependents may run."""
FINISHED = (*LEADS_ON, ERROR)


class DAGInvalid(HoldfastError):
    """A DAG, a change of one or a decision about one cannot be used; `problems` lists every reason at once."""

    code: ClassVar[str] = "dag_invalid"
    exit_code = INVALID

    def __init__(self, what: str, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        lines = "".join(f"\n  - {problem}" for problem in self.problems[:MOST_PROBLEMS])
        super().__init__(f"{what} has {len(self.problems)} problem(s):{lines}")


class Signature(Protocol):
    """What the check of a task needs to know of its tool."""

    def problems(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield why the tool cannot be called with these arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a DAG: the tool that it calls, the arguments, and the tasks that it waits for."""

    id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    safe_to_fail: bool = False
    """Whether tasks that depend on this one run although it failed."""
    confidence: float | None = None
    """How sure its author is of it, from 0 to 1."""

    def data(self) -> dict[str, Any]:
        """Return the task as plain data; what is not set is left out."""
        found: dict[str, Any] = {"id": self.id, "tool": self.tool, "arguments": thaw(self.arguments)}
        found["depends_on"] = list(self.depends_on)
        if self.safe_to_fail:
            found["safe_to_fail"] = True
        if self.confidence is not None:
            found["confidence"] = self.confidence
        return found


Tasks = dict[str, Task]
"""The tasks of a DAG by their ids, in their order."""


def read_dag(dag: Any, tools: Mapping[str, Signature]) -> Tasks:
    """Return the tasks of `{"tasks": […]}`; raise `DAGInvalid` with every problem."""
    if not isinstance(dag, Mapping):
        raise DAGInvalid("the DAG", [f'it must be a mapping {{"tasks": […]}}, not {dag!r:.80}'])
    problems = [f"unknown field {key!r}; a DAG has 'tasks'" for key in dag if key != "tasks"]
    tasks, found = read_tasks(dag.get("tasks"), tools)
    problems += found
    if not problems and not tasks:
        problems.append("it has no tasks")
    problems += check(tasks)
    if problems:
        raise DAGInvalid("the DAG", problems)
    return tasks


def read_tasks(given: Any, tools: Mapping[str, Signature]) -> tuple[Tasks, list[str]]:
    """Return the tasks of a list, and what is wrong with each of them by itself."""
    if not isinstance(given, (list, tuple)):
        return {}, [f"'tasks' must be a list, not {given!r:.80}"]
    if len(given) > MOST_TASKS:
        return {}, [f"there are {len(given):,} tasks; at most {MOST_TASKS:,} are taken"]
    tasks: Tasks = {}
    problems: list[str] = []
    for index, data in enumerate(given):
        task = _read_task(data, f"tasks[{index}]", tools, problems)
        if task is not None and task.id in tasks:
            problems.append(f"task {task.id!r} is there twice; ids must be unique")
        elif task is not None:
            tasks[task.id] = task
        if len(problems) >= MOST_PROBLEMS:
            break
    return tasks, problems


def _read_task(data: Any, where: str, tools: Mapping[str, Signature], problems: list[str]) -> Task | None:
    if not isinstance(data, Mapping):
        problems.append(f"{where} must be a mapping with 'id' and 'tool', not {data!r:.80}")
        return None
    name = data.get("id")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        problems.append(f"{where}: 'id' must be 1 to 200 letters, digits, '-' and '_', not {name!r:.80}")
        return None
    where = f"task {name!r}"
    before = len(problems)
    unknown = (
        f"{where}: unknown field {key!r:.80}{suggestion(_snake(str(key)), _FIELDS)}"
        for key in data
        if key not in _FIELDS
    )
    problems += islice(unknown, MOST_PROBLEMS)
    for key, (must, fits) in _MUST.items():
        if data.get(key) is not None and not fits(data[key]):
            problems.append(f"{where}: {key!r} must be {must}, not {data[key]!r:.80}")
    tool = data.get("tool")
    if tool not in tools:
        near = suggestion(str(tool), tools)
        problems.append(f"{where}: there is no tool {tool!r:.80}{near or _known(tools)}")
    if len(problems) > before:
        # Dependents of this task shall not also be reported.
        return Task(name, "", {}, _names(data.get("depends_on")))
    arguments = data.get("arguments") or {}
    wrong = chain(_argument_problems(arguments), tools[str(tool)].problems(arguments))
    problems += [f"{where}: {problem}" for problem in islice(wrong, MOST_PROBLEMS)]
    return Task(
        name,
        str(tool),
        dict(arguments),
        _names(data.get("depends_on")),
        bool(data.get("safe_to_fail")),
        data.get("confidence"),
    )


def _names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, (list, tuple)) else ()
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _snake(name: str) -> str:
    """Return `dependsOn` as `depends_on`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name[:100]).lower()


def _known(tools: Iterable[str]) -> str:
    names = sorted(tools)
    shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    return f"; registered are: {shown}" if names else "; none is registered"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_MUST: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "arguments": (
        "a mapping of the tool's parameters",
        lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    ),
    "depends_on": (
        "a list of ids of tasks",
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value),
    ),
    "safe_to_fail": ("true or false", lambda value: isinstance(value, bool)),
    "confidence": ("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
}


# What is wrong with tasks together.


def check(tasks: Mapping[str, Task], known: Iterable[str] = ()) -> list[str]:
    """Return what is wrong between tasks: unknown dependencies, cycles, references to what is not waited for.

    `known` are the ids of further tasks, which have begun.
    """
    known = {*known}
    ids = {*tasks, *known}
    cycles = (f"the tasks depend on each other in a cycle: {' -> '.join(cycle)}" for cycle in _cycles(tasks))
    found = list(islice(chain(_unknown(tasks, ids), cycles), MOST_PROBLEMS))
    return found or list(islice(_reference_problems(tasks, known), MOST_PROBLEMS))


def _unknown(tasks: Mapping[str, Task], ids: Collection[str]) -> Iterator[str]:
    for task in tasks.values():
        for name in task.depends_on:
            if name not in ids:
                near = suggestion(name, ids)
                yield f"task {task.id!r} depends on {name!r:.80}, which is no task of the DAG{near}"


def layers(tasks: Mapping[str, Task]) -> list[list[str]]:
    """Return the ids of tasks in layers: those of a layer wait only for tasks of layers before it.

    Tasks of a cycle are in none.
    """
    return list(_Waiting(tasks).layers())


class _Waiting:
    """Tasks that wait for others, of which those are taken out that wait for none any more."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.waits = {
            name: dict.fromkeys(other for other in task.depends_on if other in tasks)
            for name, task in tasks.items()
        }
        self._after: dict[str, list[str]] = {}
        for name, others in self.waits.items():
            for other in others:
                self._after.setdefault(other, []).append(name)

    def layers(self) -> Iterator[list[str]]:
        """Take out layer by layer; what remains waits for tasks of cycles."""
        ready = [name for name, others in self.waits.items() if not others]
        while ready:
            yield ready
            ready = self.take(ready)

    def take(self, names: Iterable[str]) -> list[str]:
        """Take tasks out, and return those that wait for none any more."""
        found: list[str] = []
        for name in names:
            del self.waits[name]
        for name in names:
            for other in self._after.get(name, ()):
                if other in self.waits:
                    del self.waits[other][name]
                    if not self.waits[other]:
                        found.append(other)
        return found


def _cycles(tasks: Mapping[str, Task]) -> Iterator[list[str]]:
    """Yield cycles until none is left, each from a task back to itself; no task is in two."""
    left = _Waiting(tasks)
    for _ in left.layers():
        pass
    while left.waits:
        # Every task that is left waits for one that is left, so following them leads around a cycle.
        path: dict[str, None] = {}
        name = next(iter(left.waits))
        while name not in path:
            path[name] = None
            name = next(iter(left.waits[name]))
        cycle = list(path)[list(path).index(name) :]
        yield [*cycle, name]
        free = left.take(cycle)
        while free:
            free = left.take(free)


# References: `{"$ref": "tasks.fetch.result.items.0"}` and `{"$ref": "context.user"}` in arguments.


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in the results of other tasks, or in the context."""

    path: tuple[str, ...]
    text: str
    default: Any = None
    has_default: bool = False

    @property
    def task(self) -> str:
        """The task whose result it refers to; empty if it refers to the context."""
        return self.path[1] if self.path[0] == "tasks" else ""


_FORM = 'write {"$ref": "tasks.ID.result"}, {"$ref": "context.KEY"}, or {"$literal": …} for data that looks like one'


def read_reference(data: Mapping[str, Any]) -> Reference:
    """Return the reference that a mapping with `$ref` is; raise `ValueError` if it is none."""
    given = data["$ref"]
    parts = given.split(".") if isinstance(given, str) else given
    path = tuple(parts) if isinstance(parts, (list, tuple)) else ()
    text = given if isinstance(given, str) else ".".join(map(str, path))
    if set(data) - {"$ref", "default"} or not all(isinstance(part, str) and part for part in path):
        raise ValueError(f"{dict(data)!r:.80} is no reference; {_FORM}")
    of_task = len(path) >= 3 and path[0] == "tasks" and path[2] in ("result", "error", "status")
    if not of_task and not (len(path) >= 2 and path[0] == "context"):
        raise ValueError(f"{text!r:.80} refers to nothing; {_FORM}")
    return Reference(path, text, data.get("default"), "default" in data)


def references(arguments: Any, depth: int = 0) -> Iterator[Reference]:
    """Yield the references in arguments; raise `ValueError` for one that cannot be read, or for too deep nesting."""
    if depth > DEEPEST:
        raise ValueError(f"arguments are nested deeper than {DEEPEST} levels")
    if isinstance(arguments, Mapping):
        if "$literal" in arguments and len(arguments) == 1:
            return
        if "$ref" in arguments:
            yield read_reference(arguments)
            return
        for value in arguments.values():
            yield from references(value, depth + 1)
    elif isinstance(arguments, (list, tuple)):
        for value in arguments:
            yield from references(value, depth + 1)


def _argument_problems(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        try:
            list(references(value))
        except (ValueError, TypeError) as error:
            yield f"argument {name!r}: {error}"
        if isinstance(value, str) and (named := _OUTPUT.fullmatch(value)):
            path = re.sub(r"\[(\w+)\]", r".\1", named[2])
            instead = json.dumps({"$ref": f"tasks.{named[1]}.result{path}"})
            yield f"argument {name!r}: write {instead} instead of {value!r:.80}"


def _reference_problems(tasks: Mapping[str, Task], known: Collection[str]) -> Iterator[str]:
    """Yield what refers to tasks that are not waited for, directly or not; the tasks have no cycles."""
    bits = {name: 1 << number for number, name in enumerate(tasks)}
    waited: dict[str, int] = {}
    for name in chain.from_iterable(layers(tasks)):
        waited[name] = 0
        for other in tasks[name].depends_on:
            if other in tasks:
                waited[name] |= bits[other] | waited[other]
    for task in tasks.values():
        try:
            found = list(references(task.arguments))
        except (ValueError, TypeError):
            continue
        named = {each.task: each for each in found if each.task and each.task not in known}
        for name, reference in named.items():
            if not waited[task.id] & bits.get(name, 0):
                near = "add it to 'depends_on'" if name in tasks else "there is no such task"
                yield (
                    f"task {task.id!r} refers to {reference.text!r} and does not depend on {name!r}; {near}"
                )


class Unresolved(HoldfastError):
    """An argument refers to something that is not there."""


def resolve(arguments: Any, records: Mapping[str, Mapping[str, Any]], context: Mapping[str, Any]) -> Any:
    """Return arguments with every reference replaced by what it refers to.

    `records` are the results of tasks by id.
    """
    if isinstance(arguments, Mapping):
        if "$literal" in arguments and len(arguments) == 1:
            return arguments["$literal"]
        if "$ref" in arguments:
            return _look_up(read_reference(arguments), records, context)
        return {key: resolve(value, records, context) for key, value in arguments.items()}
    if isinstance(arguments, (list, tuple)):
        return [resolve(value, records, context) for value in arguments]
    return arguments


def _look_up(reference: Reference, records: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    name = reference.task
    if name:
        record = records.get(name, {})
        status = record.get("status", PENDING)
        value, path, reason = record, reference.path[2:], f"task {name!r} has the status {status}"
        missing = path[0] == "result" and status != SUCCESS
    else:
        value, path, reason, missing = context, reference.path[1:], "the context lacks it", False
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            missing = True
            break
    if not missing:
        return thaw(value)
    if reference.has_default:
        return reference.default
    raise Unresolved(f"{reference.text!r} refers to nothing ({reason}); a reference may have a 'default'")


# Hashes: what an approval is bound to.


def dag_hash(tasks: Mapping[str, Task]) -> str:
    """Return a hash of the definition of all tasks; their order makes no difference."""
    return call_hash(sorted((task.data() for task in tasks.values()), key=lambda data: str(data["id"])))


def call_hash(facts: Any) -> str:
    """Return a hash of plain data."""
    return hashlib.sha256(repr(_ordered(facts)).encode("utf-8", "surrogatepass")).hexdigest()


def _ordered(value: Any) -> Any:
    """Return data in a form whose text is the same for equal data."""
    if isinstance(value, Mapping):
        return ("map", sorted((repr(key), _ordered(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", [_ordered(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(repr, value)))
    return (type(value).__name__, repr(value))
