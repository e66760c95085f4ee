"""Python programs that an operator names with `--app`: their graphs, imported, as commands execute them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.engine.app import App
from holdfast.errors import HoldfastError
from holdfast.functions.steps import StepFunction
from holdfast.functions.workflows import WorkflowFunction
from holdfast.graph.builder import StateGraph
from holdfast.journal.journal import Journal

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.state.state import State
    from holdfast.stores.base import Store

_GUARD = 'put what starts runs under `if __name__ == "__main__":`, so that the module can be imported'


class Program:
    """The graph of a Python program, in the place of a workflow file: without steps, secrets and hooks of its own."""

    definition = None

    def __init__(self, name: str) -> None:
        self.given, self._found = name, _found(name)
        self.name = self._found.name
        self.own_store = self._found.store if isinstance(self._found, App) else None
        """The store that the program itself uses, if it says so."""

    def open(self, store: Store) -> App:
        """Return the graph on a store."""
        if isinstance(self._found, StateGraph):
            app = self._found.compile(store)
        else:
            journal = Journal(store, self._found._settings.journal.seal)
            app = App(dataclasses.replace(self._found._settings, journal=journal, is_memory_default=False))
        app._runner.environment.place = place_of_program(self.given)
        return app

    def scrub(self, value: Any) -> Any:
        """Return a value as it is: what is secret in a program, it keeps to itself."""
        return value

    def output(self, state: State) -> Any:
        """Return what a run resulted in: its state."""
        return state.to_dict()

    def announcer(self) -> Program:
        """Return the hooks of its runs."""
        return self

    def started(self, run_id: str) -> None:
        """Do nothing: there are no hooks."""

    def ended(self, run_id: str, status: str, error: str = "") -> None:
        """Do nothing: there are no hooks."""


def place_of_program(name: str) -> str:
    """Return what was given as `--app`, with a file by its whole path."""
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).absolute()}:{attribute}" if place.endswith(".py") else name


def checked_program(name: str) -> dict[str, Any]:
    """Return what is to say of a workflow in Python: of a function, what may differ when it runs again."""
    found = _named(name, name)
    report: dict[str, Any] = {"file": name, "problems": [], "warnings": []}
    if isinstance(found, WorkflowFunction):
        return {**report, "workflow": found.name, "steps": len(found.steps), "warnings": found.validate()}
    graph = _graph_of(found, name, name)
    graph = graph.compile("memory://") if isinstance(graph, StateGraph) else graph
    return {**report, "workflow": graph.name, "steps": len(graph.outline()["nodes"])}


def _found(name: str) -> App | StateGraph:
    given = f"--app {name}"
    return _graph_of(_named(name, given), name, given)


def _named(name: str, given: str) -> Any:
    """Return what `MODULE:NAME` names; `given` is what errors call it."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise click.UsageError(
            f"{given} is not of the form MODULE:NAME, as in shop.orders:app or orders.py:app"
        )
    found: Any = _module(place, given)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"{given}: there is no {attribute!r} in {place!r}")
        found = getattr(found, part)
    return found


def _graph_of(found: Any, name: str, given: str) -> App | StateGraph:
    if isinstance(found, StepFunction):
        raise click.UsageError(
            f"{given}: {found.name!r} is a step; name the workflow function that calls it, an App or a StateGraph"
        )
    found = found if isinstance(found, (App, StateGraph)) else getattr(found, "app", found)
    if not isinstance(found, (App, StateGraph)):
        raise click.UsageError(
            f"{given}: {name.rpartition(':')[2]!r} is {type(found).__name__}, not a workflow function, an App or a "
            "StateGraph"
        )
    return found


def _module(place: str, given: str) -> ModuleType:
    """Return a module, imported as a program in this folder, or in the folder of the file, would."""
    path = Path(place).absolute()
    is_file = place.endswith(".py")
    if is_file and not path.is_file():
        raise click.UsageError(f"{given}: there is no file {place!r}")
    for folder in (str(Path.cwd()), *([str(path.parent)] if is_file else [])):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        return _loaded(path) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"{given}: {place} needs the package {error.name!r}, which is missing"
            ) from None
        raise click.UsageError(f"{given}: there is no module {place!r}, here or installed") from None
    except Exception as error:
        hint = f"; {_GUARD}" if isinstance(error, HoldfastError) else ""
        raise click.UsageError(
            f"{given}: importing {place} fails: {type(error).__name__}: {error}{hint}"
        ) from error


def _loaded(path: Path) -> ModuleType:
    """Return a file as the module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
