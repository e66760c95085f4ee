"""Which graphs a worker drives: workflow files and programs that its operator names, or what runs carry with them."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.wishes import Wishes
from holdfast.define.builder import StateGraph
from holdfast.engine.app import App
from holdfast.engine.saved_config import check_options
from holdfast.fleet.catalog import Catalog, Known, Opener, UnknownWorkflow
from holdfast.flows.flow import Flow, flow_of_run, load_flow
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store

_KEPT = 256


class Secretive:
    """Keeps the secrets of all workflows that were opened out of what is told."""

    def __init__(self) -> None:
        self._flows: dict[int, Flow] = {}

    def keep(self, flow: Flow) -> None:
        """Scrub what this workflow uses too."""
        if len(self._flows) >= _KEPT:
            self._flows.pop(next(iter(self._flows)))
        self._flows[id(flow)] = flow

    def scrub(self, value: Any) -> Any:
        """A value without secrets."""
        for flow in list(self._flows.values()):
            value = flow.scrub(value)
        return value


def catalog_of(flows: Sequence[Flow], apps: Sequence[App], secretive: Secretive) -> Catalog:
    """The graphs of these workflow files and programs; of none, whatever runs carry with them."""
    openers: dict[str, Opener] = {}
    for flow in flows:
        if flow.name in openers:
            raise click.UsageError(
                f"two workflow files are named {flow.name!r}; a worker tells them apart by their names"
            )
        openers[flow.name] = _opener(flow, secretive)
    return Catalog(apps, openers=openers, carried=None if flows or apps else _opener(None, secretive))


def _opener(flow: Flow | None, secretive: Secretive) -> Opener:
    def opened(config: Mapping[str, Any], store: Store) -> Known:
        found = flow or _carried(config)
        check_options(config)
        secretive.keep(found)
        wishes = Wishes.of(config)
        return Known(wishes.open(found, store, interactive=False, stored=True), found.announcer())

    return opened


def _carried(config: Mapping[str, Any]) -> Flow:
    if "flow" not in config:
        raise UnknownWorkflow(
            "this run is one of a Python program and carries no workflow with it; start a worker that knows the "
            "program: holdfast worker --app MODULE:ATTRIBUTE"
        )
    return flow_of_run(config, prefer="saved")


def flow_files(places: Iterable[Path]) -> list[Flow]:
    """The workflows of these files, and of the workflow files right in these folders."""
    found: list[Flow] = []
    for place in places:
        files = (
            sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml"))
            if place.is_dir()
            else [place]
        )
        if not files:
            raise click.UsageError(f"there are no workflow files in {place}")
        found += [load_flow(file) for file in files]
    return found


def apps_of(names: Iterable[str], store: Store) -> list[App]:
    """The graphs that `module:attribute` texts name, on the store."""
    return [_app(name, store) for name in names]


def _app(name: str, store: Store) -> App:
    place, colon, attribute = name.partition(":")
    if not colon or not place or not attribute:
        raise click.BadParameter(f"--app {name!r} is not of the form MODULE:ATTRIBUTE, as in shop.orders:app")
    found: Any = _module(place, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"--app {name}: there is no {attribute!r} in {place!r}")
        found = getattr(found, part)
    if isinstance(found, StateGraph):
        return found.compile(store)
    if not isinstance(found, App):
        raise click.UsageError(
            f"--app {name}: {attribute!r} is {type(found).__name__}, not an App or a StateGraph"
        )
    journal = Journal(store, found.settings.journal.seal)
    return App(dataclasses.replace(found.settings, journal=journal))


def _module(place: str, name: str) -> Any:
    """The module, imported as a program in this folder would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"--app {name}: {place} needs the package {error.name!r}, which is missing"
            ) from None
        raise click.UsageError(f"--app {name}: there is no module {place!r}, here or installed") from None
    except Exception as error:
        raise click.UsageError(
            f"--app {name}: importing {place} fails: {type(error).__name__}: {error}"
        ) from error
