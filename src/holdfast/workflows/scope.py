"""What the steps of a workflow work with: errors, inputs, what templates see of the state, budget and resources."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.engine.decide import RouteFailed
from holdfast.errors import INVALID, CommandRefused, HoldfastError, suggestion
from holdfast.graph.graph import Graph
from holdfast.journal.run_state import MORE_BUDGET
from holdfast.names import LazyModule
from holdfast.state.state import State, origin_of
from holdfast.stores.base import shown_url
from holdfast.workflows.folders import Scratch
from holdfast.workflows.model import Definition, Step
from holdfast.workflows.reading.checks import fits
from holdfast.workflows.reading.problems import given
from holdfast.workflows.secrets import REDACTED, Scrubber, SecretError, Secrets
from holdfast.workflows.settings import Input, Limits, WorkflowSettings

if TYPE_CHECKING:
    from holdfast.engine import checkpoint_files
    from holdfast.views import run_view
else:
    checkpoint_files, run_view = LazyModule("engine.checkpoint_files"), LazyModule("views.run_view")


class StepFailed(HoldfastError):
    """A step did not do what it was to do. A `transient` failure may well not happen again."""

    def __init__(self, message: str, *, transient: bool = False, retry_after: float | None = None) -> None:
        self.transient, self.retry_after = transient, retry_after
        super().__init__(message)


class StepTimedOut(StepFailed):
    """A step took longer than its timeout allows."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class NoRoute(RouteFailed, HoldfastError):
    """None of a step's routes holds, or one cannot be evaluated; `node` is the step's name."""


class BudgetExceeded(HoldfastError):
    """The agents of a run have spent what the workflow allows. No step goes on without its result."""


class EndedInFailure(HoldfastError):
    """The workflow itself says that the run failed."""


class InputInvalid(HoldfastError):
    """The inputs do not fit what the workflow declares; `problems` lists every reason."""

    exit_code = INVALID

    def __init__(self, workflow: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"workflow {workflow!r} cannot begin with these inputs:{listed}")


# What a workflow is given: checked against what it declares, with its defaults.


_TRUE, _FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off"}


def read_inputs(
    workflow: WorkflowSettings,
    values: Mapping[str, Any],
    text: Mapping[str, str] | None = None,
    how: str = "--input {name}=…",
) -> dict[str, Any]:
    """Every declared input; `values` as they are, `text` read as their types say. `InputInvalid` tells all problems.

    `how` says in these how an input is given.
    """
    text, found = text or {}, {}
    declared = ", ".join(workflow.inputs) or "none"
    problems = [
        f"there is no input {name!r}{suggestion(name, workflow.inputs)} (declared: {declared})"
        for name in (*values, *text)
        if name not in workflow.inputs
    ]
    for name, each in workflow.inputs.items():
        try:
            if name in text:
                found[name] = _checked(each, _read(each.type, text[name]))
            elif name in values:
                found[name] = _checked(each, values[name])
            elif each.required and each.default is None:
                about = f" ({each.description})" if each.description else ""
                raise ValueError(f"is missing{about}; give it with {how.format(name=name)}")
            else:
                found[name] = each.default
        except ValueError as error:
            problems.append(f"input {name!r} {error}")
    if problems:
        raise InputInvalid(workflow.name, problems)
    return found


def _checked(declared: Input, value: Any) -> Any:
    if value is None and not declared.required:
        return value
    if not fits(declared.type, value):
        raise ValueError(f"must be of type {declared.type}, not {given(value)}")
    choices = declared.choices
    if choices is not None and not any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices
    ):
        listed = ", ".join(json.dumps(choice, ensure_ascii=False, default=str) for choice in choices)
        raise ValueError(f"must be one of {listed}, not {given(value)}")
    return value


def _read(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean":
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(f"must be true or false, not {text!r:.80}")
        return word in _TRUE
    if kind == "array" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if kind == "any":
            return text
        raise ValueError(f"must be of type {kind}, not {text!r:.80}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number that can be stored")


# What templates and expressions see of the state.


Names = Collection[str] | None
"""Which steps are looked at; `None` means all."""


class Layout:
    """Where a workflow keeps what in the state, and which steps it has, members of groups included.

    A sub-workflow keeps its own things under a `prefix`, and what it shares with its parent under the parent's
    step: `shared` is that step's key.
    """

    def __init__(
        self,
        definition: Definition,
        prefix: str = "",
        shared: str = "",
        is_item: bool = False,
        base: Path | None = None,
    ) -> None:
        self.definition, self.prefix, self.shared, self.is_item = definition, prefix, shared, is_item
        folder = definition.workflow.checkpoint.dir
        self.files = None if folder is None or base is None else base.resolve() / folder
        """The folder of checkpoint files."""
        self.steps: dict[str, Step] = {}
        for step in definition.steps:
            self.steps[step.name] = step
            for member in step.members:
                self.steps[member.name] = member

    def key(self, name: str) -> str:
        """Return the state key of a step."""
        return f"{self.prefix}{name}"

    def items_key(self, name: str) -> str:
        """Return the state key of what the items of a for-each step result in."""
        return f"{self.prefix}{name}:items"

    def each_key(self, name: str) -> str:
        """Return the state key under which one item of a for-each step finds itself."""
        return f"{self.prefix}{name}:each"

    @property
    def failure_key(self) -> str:
        """The state key under which a sub-workflow that ends early notes that it failed."""
        return f"{self.prefix}:failed"

    def has_failed(self, state: Mapping[str, Any]) -> bool:
        """Return True if this is a sub-workflow that has failed and only finishes what was under way."""
        return bool(self.shared) and bool(state.get(self.failure_key))

    @property
    def inputs_key(self) -> str:
        """The state key that the inputs of this workflow are under."""
        if not self.shared:
            return "inputs"
        return f"{self.shared}:each" if self.is_item else self.shared

    def inputs(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs of this workflow."""
        held = state.get(self.inputs_key) or {}
        return (held.get("inputs") if self.shared else held) or {}

    @property
    def files_key(self) -> str:
        """The state key of the checkpoint files that steps have saved: their paths, with the times."""
        return f"{self.prefix}checkpoint:files"

    def shared_key(self, name: str) -> str:
        """Return the state key of a value that steps share."""
        return f"{self.prefix}state:{name}"

    @property
    def shared_names(self) -> Collection[str]:
        """The names of the values that steps share."""
        return self.definition.workflow.state_schema

    def shared_values(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that steps share: what was set last, the default, or the input of that name."""
        found = {}
        for name, each in self.definition.workflow.state_schema.items():
            value = state.get(self.shared_key(name))
            found[name] = value if value is not None else each.default
            if found[name] is None and name in self.definition.workflow.inputs:
                found[name] = self.inputs(state).get(name)
        return found

    def keys_of(self, name: str) -> Iterator[str]:
        """Yield the state keys that a step as templates see it is made of."""
        step = self.steps[name]
        yield self.key(name)
        if step.for_each is not None:
            yield self.items_key(name)
        for member in step.members:
            yield from self.keys_of(member.name)

    def ended(self, state: Mapping[str, Any], names: Iterable[str]) -> list[int]:
        """Return how many steps and items have ended in these steps, which a journal that is pruned does not tell.

        The records of sub-workflows and for-each steps keep it as `done`.
        """
        nodes: dict[str, Any] = {}
        for name, step in self.steps.items():
            if step.for_each or step.members or step.workflow:
                nodes |= {f"{name}:done": {}, f"{name}:item": {"graph": {}} if step.workflow else {}}
        found = [run_view.ended_in(state, self.key(name), nodes) for name in names]
        return [sum(each.steps for each in found), sum(each.items for each in found)]

    def record(self, state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """Return what a step has left in the state."""
        return state.get(self.key(name)) or {}

    def status(self, state: Mapping[str, Any], name: str) -> str:
        """Return how far a step has come: pending, running, completed, failed or skipped."""
        return str(self.record(state, name).get("status", "pending"))

    def visits(self, state: Mapping[str, Any], name: str) -> int:
        """Return how often the run has come to a step."""
        return int(self.record(state, name).get("visits", 0))

    def visits_over(self, state: Mapping[str, Any], name: str) -> int:
        """Return how often the run has come to a step and is through with it: what the step's own templates see."""
        return self.visits(state, name) - (self.status(state, name) == "running")

    def view(self, state: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return a step as templates see it."""
        step, seen = self.steps[name], {"status": "pending", **self.record(state, name)}
        results, visit = {}, self.visits_over(state, name)
        if step.for_each is not None:
            results = self.results(state, name, visit)
            seen["outputs"] = [result.get("output") for result in results.values() if "error" not in result]
        elif step.parallel is not None:
            results = self.results_of_members(state, name, visit)
            seen["outputs"] = {key: found["output"] for key, found in results.items() if "output" in found}
        if "outputs" in seen:
            seen["errors"] = {key: found["error"] for key, found in results.items() if "error" in found}
            seen["output"] = seen["outputs"]
        return seen

    def results(self, state: Mapping[str, Any], name: str, visit: int) -> dict[str, Any]:
        """Return what the items of one visit of a for-each step resulted in, by item key, in the items' order."""
        found = state.get(self.items_key(name)) or {}
        current = [(key, value) for key, value in found.items() if value["visit"] == visit]
        return dict(sorted(current, key=lambda pair: pair[1]["index"]))

    def results_of_members(
        self, state: Mapping[str, Any], name: str, visit: int
    ) -> dict[str, dict[str, Any]]:
        """Return the members of a group that took part in one of its visits, as templates see them."""
        seen = {member.name: self.view(state, member.name) for member in self.steps[name].members}
        return {member: found for member, found in seen.items() if found.get("round") == visit}


class CheckpointFiles(Mapping[str, Any]):
    """`checkpoint` of a scope: `dir`, the folder of checkpoint files, and `last`, the newest file of the run."""

    def __init__(self, layout: Layout, state: State) -> None:
        self._layout, self._state = layout, state

    def __getitem__(self, name: str) -> Any:
        if name == "dir":
            return None if self._layout.files is None else str(self._layout.files)
        if name != "last":
            raise KeyError(name)
        saved = [(at, path) for path, at in (self._state.get(self._layout.files_key) or {}).items()]
        if self._layout.files is not None:
            found = checkpoint_files.last_of_run(self._layout.files, origin_of(self._state).run_id)
            saved += [] if found is None else [(found[0], str(found[1]))]
        return max(saved)[1] if saved else None

    def __iter__(self) -> Iterator[str]:
        return iter(_CHECKPOINT)

    def __len__(self) -> int:
        return len(_CHECKPOINT)


_CHECKPOINT = ("dir", "last")


class Scope(Mapping[str, Any]):
    """The names that one step, or one route, may use. Nothing is looked at before it is asked for."""

    __slots__ = ("_layout", "_names", "_state", "_values")

    def __init__(self, layout: Layout, state: State, names: Names = None, **more: Any) -> None:
        self._layout, self._state, self._names, self._values = layout, state, names, more

    def __getitem__(self, name: str) -> Any:
        values = self._values
        if name not in values:
            values[name] = _FOUND[name](self)
        return values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in _FOUND

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_FOUND, *self._values]))

    def __len__(self) -> int:
        return len(dict.fromkeys([*_FOUND, *self._values]))

    def _each(self, look: Callable[[Mapping[str, Any], str], Any]) -> dict[str, Any]:
        """Return what is seen of each step that may be named."""
        steps = self._layout.steps
        known = steps if self._names is None else [name for name in self._names if name in steps]
        return {name: look(self._state, name) for name in known}


_FOUND: dict[str, Callable[[Scope], Any]] = {
    "inputs": lambda scope: scope._layout.inputs(scope._state),
    "steps": lambda scope: scope._each(scope._layout.view),
    "visits": lambda scope: scope._each(scope._layout.visits_over),
    "vars": lambda scope: scope._layout.definition.workflow.vars,
    "metadata": lambda scope: scope._layout.definition.workflow.metadata,
    "state": lambda scope: scope._layout.shared_values(scope._state),
    "checkpoint": lambda scope: CheckpointFiles(scope._layout, scope._state),
    "workflow": lambda scope: {
        "name": scope._layout.definition.workflow.name,
        "run_id": origin_of(scope._state).run_id,
    },
}


def values_named(paths: Collection[tuple[str, ...]], workflow: WorkflowSettings) -> list[tuple[str, Any]]:
    """Return what paths find in the file and not in the state: variables, metadata, and the workflow's name."""
    found: dict[str, Any] = {}
    for path in paths:
        if path[0] in ("vars", "metadata"):
            known: Mapping[str, Any] = getattr(workflow, path[0])
            found |= {f"{path[0]}.{name}": known.get(name) for name in (path[1:2] or known)}
        elif path == ("workflow",) or path[:2] == ("workflow", "name"):
            found["workflow.name"] = workflow.name
        elif path[0] == "checkpoint":
            found["checkpoint.dir"] = workflow.checkpoint.dir
    return sorted(found.items())


def names_run(paths: Collection[tuple[str, ...]]) -> bool:
    """Return True if paths lead to what is another in every run: its id, its temporary folder, its last file."""
    own = (("workflow",), ("workflow", "run_id"), ("checkpoint",), ("checkpoint", "last"))
    return any(path[0] == "tmp" or path in own or path[:2] in own for path in paths)


def steps_named(paths: Collection[tuple[str, ...]]) -> Names:
    """Return the steps that some paths lead to; `None` if they may lead to any."""
    named: set[str] = set()
    for path in paths:
        if path[0] in ("steps", "visits"):
            if len(path) < 2:
                return None
            named.add(path[1])
    return named


# Where in the state a workflow keeps what people speak of: inputs, the outputs of steps, items.


def place_in_state(
    outline: Mapping[str, Any], words: Sequence[str], step: str = "", item: str = "item"
) -> tuple[str, ...]:
    """The place of `inputs.topic`, `steps.fetch.output` or `item` as a step sees it; without a step, the whole run.

    `item` is what the step calls its item. What is kept nowhere in the state is refused.
    """
    *around, own = step.partition("[")[0].split("/")
    nodes, shared, holder = outline.get("nodes", {}), "", ""
    for name in around:  # The sub-workflows that the step is in, and the key that holds the inputs of each.
        shared += f"/{name}" if shared else name
        holder = shared if f"{name}:workflow" in nodes else f"{shared}:each"
        inner = nodes.get(f"{name}:workflow") or nodes.get(f"{name}:item", {})
        if "graph" not in inner:
            raise CommandRefused(f"there is no sub-workflow {name!r}{suggestion(name, nodes)}")
        nodes = inner["graph"]["nodes"]
    prefix = f"{shared}/" if shared else ""
    match tuple(words):
        case ("inputs", *inside):
            return (holder, "inputs", *inside) if holder else ("inputs", *inside)
        case ("steps", name, *inside) if inside:
            if name not in nodes or ":" in name:
                raise CommandRefused(f"there is no step {name!r}{suggestion(name, nodes)}")
            if f"{name}:done" in nodes and f"{name}:workflow" not in nodes:
                raise CommandRefused(f"the output of {name!r} is put together from others; change those")
            return (f"{prefix}{name}", *inside)
        case (word, *inside) if word in ("item", item) and f"{own}:item" in nodes:
            return (f"{prefix}{own}:each", "item", *inside)
    known = "inputs.NAME and steps.NAME.output" + (f" and {item}" if f"{own}:item" in nodes else "")
    raise CommandRefused(f"{'.'.join(words)!r} cannot be changed; what can be is {known}")


# What a person says to the agents of a run, while it is under way or when it is resumed.


GUIDANCE = "workflow:guidance"
"""The state key of what people said to the agents of a run, by the time at which they said it."""


def takes_guidance(graph: Graph) -> bool:
    """Return True if a workflow asks a model somewhere, so that there is somebody to guide."""
    return GUIDANCE in graph.schema.channels


def guided(text: str, update: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an update of the state that also tells the agents of a run something."""
    if not text.strip():
        raise CommandRefused("guidance is a text for the agents of a run, and this one is empty")
    known = update or {}
    said = {f"{clock.time():017.6f} {uuid.uuid4().hex[:8]}": text}
    return {**known, GUIDANCE: {**known.get(GUIDANCE, {}), **said}}


def guidance_in(state: Mapping[str, Any]) -> str:
    """Return what people said to the agents of a run, as a part of a system prompt; empty if nobody said anything."""
    said = state.get(GUIDANCE) or {}
    if not isinstance(said, Mapping) or not said:
        return ""
    lines = "\n".join(f"- {said[when]}" for when in sorted(said))
    return f"Guidance from the person who supervises this run, the newest last:\n{lines}"


# The money that a run's agents may spend, over all its resumes.


logger = logging.getLogger("holdfast")


@dataclass
class Budget:
    """The US dollars that a run of a workflow may spend. What it has spent is in its journal."""

    limit: float | None = None
    enforced: bool = True
    asks: bool = False
    """Whether somebody is asked for more."""
    _warned: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, limits: Limits) -> Budget:
        return cls(limits.budget, limits.budget_mode == "enforce", limits.on_limit == "ask")

    def refuse_if_empty(self, ctx: Context) -> None:
        """Raise `BudgetExceeded` if no more may be spent, ask for more, or warn once."""
        while self.limit is not None and (spent := ctx.spent) >= (limit := self.limit + ctx.granted):
            message = f"the agents of this run have spent ${spent:.4f} of a budget of ${limit:.4f}"
            if not self.asks or not self.enforced or not self._is_granted(message, ctx):
                self._refuse(message, ctx)
                break

    def _is_granted(self, message: str, ctx: Context) -> bool:
        prompt = f"{message}. How many US dollars more? 0 lets the run fail."
        return bool(ctx.ask(prompt, name=MORE_BUDGET, schema={"type": "number", "minimum": 0}) > 0)

    def _refuse(self, message: str, ctx: Context) -> None:
        if self.enforced:
            raise BudgetExceeded(f"{message}; raise limits.budget in the workflow file, then resume")
        if ctx.run_id not in self._warned:
            self._warned.add(ctx.run_id)
            logger.warning("run %s: %s; going on, as limits.budget_mode is audit", ctx.run_id, message)


# What the steps of a workflow use beside the state: files, secrets, money, options.


_OURS = re.compile("(?:HOLDFAST|WORKFLOW)_.*(?:KEY|PASS|SECRET|TOKEN)|PG(?:SSL)?PASSWORD", re.IGNORECASE)
"""Variables that hold keys, passphrases, secrets and passwords of ours; no command is given them unasked."""
_URLS = ("HOLDFAST_STORE", "WORKFLOW_CHECKPOINT_DSN")
_SCALARS = (str, bytes, int, float, bool, type(None))
_SHORTEST_PIECE = 4


@dataclass
class Resources:
    """Everything beside the state that the steps of a workflow use, shared with its sub-workflows."""

    base: Path
    """The folder of the workflow file: relative paths and modules are looked for there."""
    env: Mapping[str, str]
    secrets: Secrets
    scrubber: Scrubber
    budget: Budget
    skip_gates: bool = False
    workflow: WorkflowSettings | None = None
    """The settings of the workflow whose steps these are."""
    scratch: Scratch = field(default_factory=Scratch)
    interactive: bool = False
    """Whether somebody can be asked what to do with an interrupted step that may not simply be repeated."""

    def hide(self, value: Any) -> Any:
        """A value without secrets, also if it holds things that are not plain data; the same one if it has none."""
        if not self.secrets.remembered():
            return value
        return self._covered(self.scrubber.scrub(value))

    def hide_cut(self, text: str) -> str:
        """Return a text without secrets that somebody else may have cut short, in the middle of a secret too."""
        text = str(self.scrubber.scrub(text))
        body = text.removesuffix("…")
        for secret in self.secrets.remembered():
            for length in range(len(secret) - 1, _SHORTEST_PIECE - 1, -1):
                if body.endswith(secret[:length]):
                    return f"{body[:-length]}{REDACTED}{text[len(body) :]}"
        return text

    def recognise(self, names: set[str]) -> None:
        """Take note of these secrets where they are set, so that they are hidden wherever they turn up."""
        for name in names:
            with contextlib.suppress(SecretError):
                self.secrets[name]

    def command_env(self) -> dict[str, str]:
        """Return the environment for commands: without secrets, which a workflow hands over by name."""
        kept = {name: value for name, value in self.env.items() if not _OURS.match(name)}
        return kept | {name: shown_url(kept[name]) for name in _URLS if name in kept}

    def _covered(self, value: Any) -> Any:
        """What the scrubber does not look into: it is shown, and replaced by what is shown if that has a secret."""
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict):
            covered = {key: self._covered(item) for key, item in value.items()}
            return value if all(covered[key] is value[key] for key in value) else covered
        if isinstance(value, (list, tuple)):
            items = [self._covered(item) for item in value]
            same = all(one is other for one, other in zip(items, value, strict=True))
            return value if same else items
        try:
            shown = repr(value)
        except Exception:
            return REDACTED
        clean = self.scrubber.scrub(shown)
        return value if clean == shown else clean
