"""The workflows of a service: files, folders and programs that its operator names; nothing that a client sends."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.engine.app import App
from holdfast.engine.checkpoint_files import check_options
from holdfast.errors import (
    CONFIGURATION,
    HoldfastError,
    Remedy,
    UnknownWorkflow,
    suggestion,
)
from holdfast.fleet.catalog import Catalog, Known, Opener
from holdfast.functions.workflows import WorkflowFunction
from holdfast.graph.builder import StateGraph
from holdfast.journal.journal import Journal
from holdfast.service.function_inputs import function_inputs, function_schema
from holdfast.stores.base import Store
from holdfast.views.outlines import folded
from holdfast.workflows.description import described, inputs_schema, outline_of, problem_facts, warnings_of
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.workflow import Workflow, load_workflow, stored_options, workflow_of_run

Source = str | Path | App | StateGraph | WorkflowFunction[Any, Any] | Workflow
"""A folder of workflow files, a file, `module:app`, or a workflow of this program."""

INLINE = "inline.yaml"
"""The name of a workflow file that is given as text."""

LONGEST_TEXT = 1_000_000
"""How many characters the text of a workflow may have."""


class SourceInvalid(HoldfastError):
    """What the operator named as a workflow cannot be used."""

    exit_code = CONFIGURATION


class Offered(NamedTuple):
    """A workflow that a service has: a file, or a program's graph or function."""

    name: str
    app: App
    file: Workflow | None = None
    function: WorkflowFunction[Any, Any] | None = None

    @classmethod
    def of(cls, found: Any, store: Store, name: str = "") -> Offered:
        """Return the workflow of a program on a store; `name` is what the operator named it by."""
        app = on_store(found, store, name)
        return cls(app.name, app, function=_function_of(found))


class Catalogue:
    """The workflows of a service on a store, by name. May be used from any thread."""

    def __init__(self, store: Store, sources: Iterable[Source], *, inline: bool = False) -> None:
        self._store, self._sources, self.allows_inline = store, tuple(sources), inline
        self._lock = threading.Lock()
        self._offered = _loaded(store, self._sources)

    def reload(self) -> dict[str, list[str]]:
        """Read the files again; return what was added, changed and removed. If a file is invalid, nothing changes."""
        fresh = _loaded(self._store, self._sources)
        with self._lock:
            before, self._offered = self._offered, fresh
        both = before.keys() & fresh.keys()
        return {
            "added": sorted(fresh.keys() - before.keys()),
            "changed": sorted(name for name in both if _version(before[name]) != _version(fresh[name])),
            "removed": sorted(before.keys() - fresh.keys()),
        }

    @property
    def offered(self) -> list[Offered]:
        """The workflows, by name."""
        return [self._offered[name] for name in sorted(self._offered)]

    def find(self, name: str) -> Offered:
        """Return the workflow of that name."""
        found = self._offered.get(name)
        if found is None:
            raise UnknownWorkflow(
                f"there is no workflow {name!r:.200}{suggestion(name, self._offered)}",
                remedies=Remedy("list_workflows"),
            )
        return found

    def inline(self, text: str) -> Offered:
        """Return the workflow in a text, if the operator allows such; it reads no file but what its steps read."""
        if not self.allows_inline:
            raise InlineRefused("this service takes no workflows from clients; its operator names them")
        file = inline_workflow(text)
        if file.name in self._offered:
            raise InlineRefused(f"this service has a workflow {file.name!r} of its own; choose another name")
        return Offered(file.name, file.open(self._store), file)

    def scrub(self, value: Any) -> Any:
        """Return what is logged, or journalled of calls, without the secrets of the workflows."""
        for offered in self.offered:
            value = value if offered.file is None else offered.file.scrub(value)
        return value

    def for_workers(self) -> Catalog:
        """Return the workflows as a worker takes them: those of the operator, whatever runs carry with them."""
        names = [offered.name for offered in self.offered]
        openers: dict[str, Opener] = {name: self._opener(name) for name in names}
        return Catalog(openers=openers, carried=_carried if self.allows_inline else None)

    def _opener(self, name: str) -> Opener:
        def opened(config: Mapping[str, Any], store: Store) -> Known:
            offered = self.find(name)
            if offered.file is None:
                return Known(offered.app)
            check_options(config)
            return Known(offered.file.open(store, **stored_options(config)), offered.file.announcer())

        return opened


class InlineRefused(HoldfastError):
    """A workflow that a client sent is not executed."""


def _carried(config: Mapping[str, Any], store: Store) -> Known:
    file = workflow_of_run(config, prefer="saved")
    check_options(config)
    return Known(file.open(store, **stored_options(config)), file.announcer())


def inline_workflow(text: str, env: Mapping[str, str] | None = None) -> Workflow:
    """Return the workflow in a text. Nothing is read from the disk: neither included files nor sub-workflows."""
    if len(text) > LONGEST_TEXT:
        raise InlineRefused(f"the text of a workflow may have {LONGEST_TEXT:,} characters, not {len(text):,}")
    return workflow_of_run({"workflow_file": {"path": INLINE, "source": text}}, env=env, prefer="saved")


def _version(offered: Offered) -> object:
    return offered.app.outline() if offered.file is None else offered.file.digest


# Reading what the operator named.


def _loaded(store: Store, sources: Iterable[Source]) -> dict[str, Offered]:
    found: dict[str, Offered] = {}
    for source in sources:
        for offered in _offered(store, source):
            if offered.name in found:
                raise SourceInvalid(
                    f"two workflows are named {offered.name!r}; give one of them another name"
                )
            found[offered.name] = offered
    return found


def _offered(store: Store, source: Source) -> list[Offered]:
    if isinstance(source, Workflow):
        return [Offered(source.name, source.open(store), source)]
    if isinstance(source, (App, StateGraph, WorkflowFunction)):
        return [Offered.of(source, store)]
    if isinstance(source, str) and ":" in source and not Path(source).exists():
        return [Offered.of(program_object(source), store, source)]
    files = [load_workflow(path) for path in workflow_files(Path(source))]
    return [Offered(file.name, file.open(store), file) for file in files]


def workflow_files(place: Path) -> list[Path]:
    """Return a workflow file, or the workflow files right in a folder."""
    if not place.is_dir():
        return [place]
    found = sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml"))
    if not found:
        raise SourceInvalid(f"there are no workflow files in {place}; they end in .yaml or .yml")
    return found


def on_store(found: Any, store: Store, name: str = "") -> App:
    """Return the graph of a program, or of a function of it, on a store."""
    if isinstance(found, StateGraph):
        return found.compile(store)
    named = found.app if isinstance(found, WorkflowFunction) else found
    if not isinstance(named, App):
        raise SourceInvalid(
            f"{name or found!r} is {type(found).__name__}, not an App, a StateGraph or a @workflow function"
        )
    made = App(dataclasses.replace(named._settings, journal=Journal(store, named._settings.journal.seal)))
    made._runner.environment.app = named._runner.environment.app  # Its runs are resumed by what a module has.
    return made


def _function_of(found: Any) -> WorkflowFunction[Any, Any] | None:
    """Return the function that a workflow of a program is made of, if it is one."""
    if isinstance(found, App):
        found = found._runner.environment.app()
    return found if isinstance(found, WorkflowFunction) else None


def program_object(name: str) -> Any:
    """Return what `module:attribute` names, imported as a program in this folder would."""
    place, _, attribute = name.partition(":")
    if not place or not attribute:
        raise SourceInvalid(f"{name!r} is not of the form MODULE:ATTRIBUTE, as in shop.orders:app")
    found: Any = _module(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SourceInvalid(f"{name}: there is no {attribute!r} in {place!r}")
        found = getattr(found, part)
    return found


def _module(place: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise SourceInvalid(f"{place} needs the package {error.name!r}, which is missing") from None
        raise SourceInvalid(f"there is no module {place!r}, here or installed") from None
    except Exception as error:
        raise SourceInvalid(f"importing {place} fails: {type(error).__name__}: {error}") from error


# Workflows as plain data.


def summary(offered: Offered) -> dict[str, Any]:
    """Return a workflow in a few facts: name, description, kind, inputs, and how many steps it has."""
    file = offered.file
    outline = folded(offered.app.outline(), of_file=file is not None)
    return {
        "name": offered.name,
        "description": _description_of(offered),
        "kind": "program" if file is None else "file",
        "steps": len(outline["nodes"]),
        "inputs": input_schema(offered),
        "tags": [] if file is None else list(file.definition.workflow.tags),
    }


def _description_of(offered: Offered) -> str:
    if offered.file is not None:
        return offered.file.description
    return "" if offered.function is None else inspect.getdoc(offered.function.function) or ""


def description(offered: Offered) -> dict[str, Any]:
    """Return a workflow with its steps by layers."""
    file = offered.file
    outline, kinds = (folded(offered.app.outline(), of_file=False), {}) if file is None else outline_of(file)
    return {**summary(offered), "steps": described(outline, kinds)["steps"]}


def input_schema(offered: Offered) -> dict[str, Any]:
    """Return the JSON Schema of a workflow's inputs; of a program's graph any object will do."""
    if offered.file is not None:
        return inputs_schema(offered.file.definition.workflow.inputs)
    return {"type": "object"} if offered.function is None else function_schema(offered.function)


def program_inputs(offered: Offered, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the input of a run of a program; that of a function is checked against its parameters."""
    return given if offered.function is None else function_inputs(offered.function, given)


def validation(text: str) -> dict[str, Any]:
    """Return the problems and warnings of the text of a workflow file. Nothing is imported, and no file is read."""
    report: dict[str, Any] = {"valid": False, "workflow": None, "steps": 0, "problems": [], "warnings": []}
    try:
        found = inline_workflow(text, env={})
    except WorkflowInvalid as error:
        return report | {"problems": [problem_facts(problem) for problem in error.problems]}
    warnings = warnings_of(found.definition, text)
    return report | {
        "valid": True,
        "workflow": found.name,
        "steps": len(found.definition.steps),
        "warnings": warnings,
    }
