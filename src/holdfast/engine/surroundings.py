"""Where a run is driven: host, versions, the commit of the code. Read once a process, noted where it changes."""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.engine.repository import Head, repository
from holdfast.errors import CodecError, HoldfastError
from holdfast.journal.records import Described
from holdfast.journal.writer import Writer
from holdfast.locks import locked
from holdfast.plan.graph import Graph
from holdfast.values import RunStatus

SWITCH = "HOLDFAST_FACTS"
"""The environment variable that turns this off with `0`."""

MATTERING = {
    "pydantic": "pydantic",
    "pydantic_ai": "pydantic-ai-slim",
    "openai": "openai",
    "anthropic": "anthropic",
    "google.genai": "google-genai",
    "mistralai": "mistralai",
    "groq": "groq",
    "cohere": "cohere",
    "litellm": "litellm",
    "langchain_core": "langchain-core",
    "llama_index": "llama-index",
    "transformers": "transformers",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "numpy": "numpy",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "distributed": "distributed",
    "psycopg": "psycopg",
    "httpx": "httpx",
}
"""Libraries whose versions are noted, if they are loaded: by module, the distribution that it is of."""

_MOST_OWN = 5
_OURS = ("holdfast", "__main__", "builtins", "functools")


def checked_facts(facts: bool | Mapping[str, Any], codec: Codec) -> dict[str, Any] | None:
    """Facts of the caller's own to note with the others, or `None` if none are to be noted."""
    if isinstance(facts, bool):
        return {} if facts else None
    if not isinstance(facts, Mapping) or not all(isinstance(name, str) for name in facts):
        raise HoldfastError(f"facts must be True, False or a mapping with names, not {facts!r:.80}")
    try:
        codec.encode(dict(facts))
    except CodecError as error:
        raise CodecError(f"facts: {error}") from None
    return dict(facts)


@functools.cache
def basics() -> dict[str, Any]:
    """What stays the same for as long as the process lives. Nothing of the environment, the arguments or the user."""
    system = os.uname() if hasattr(os, "uname") else platform.uname()
    name, release = (getattr(system, one, "") for one in ("sysname", "release"))
    return {
        "host": socket.gethostname(),
        "platform": f"{name or sys.platform} {release} {system.machine}".replace("  ", " "),
        "python": platform.python_version(),
        "holdfast": _version("holdfast") or "unknown",
    }


@functools.cache
def _installed() -> dict[str, str]:
    """The versions of all distributions, by the names of their folders: a hundred times faster than asking each."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            with os.scandir(place or ".") as folders:
                names = [folder.name for folder in folders]
        except OSError:
            continue
        for name in names:
            own, _, version = name.removesuffix(_FOLDER).partition("-")
            if name.endswith(_FOLDER) and version:
                found.setdefault(_plain(own), version)
    return found


_FOLDER = ".dist-info"


def _plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-").replace(".", "-")


def _version(distribution: str) -> str | None:
    return _installed().get(_plain(distribution))


class Surroundings:
    """What the runs of one graph are told of where they are driven."""

    def __init__(self, graph: Graph, codec: Codec, own: Mapping[str, Any] | None) -> None:
        self._graph, self._codec, self._own = graph, codec, own
        self._made: tuple[tuple[Any, ...], tuple[bytes, ...]] = ((), ())
        """What was encoded last, and out of what."""

    @functools.cached_property
    def _packages(self) -> tuple[str, ...]:
        """The packages that the graph's code is of."""
        found = dict.fromkeys(module.partition(".")[0] for module in _modules(self._graph))
        return tuple(name for name in found if name and name not in _OURS)[:_MOST_OWN]

    @property
    def is_wanted(self) -> bool:
        """Whether anything is to be noted."""
        return self._own is not None and os.environ.get(SWITCH) != "0"

    def facts(self) -> dict[str, Any]:
        """What is known now."""
        head = repository.head()
        return self._facts(head, self._loaded())

    def _loaded(self) -> tuple[str, ...]:
        modules = sys.modules
        return tuple(name for name in MATTERING if name in modules)

    def _facts(self, head: Head | None, loaded: tuple[str, ...]) -> dict[str, Any]:
        names = {**{name: MATTERING[name] for name in loaded}, **{name: name for name in self._packages}}
        found = {name: version for name in names.values() if (version := _version(name)) is not None}
        git = (
            {} if head is None else {"git": {k: v for k, v in head._asdict().items() if v not in ("", None)}}
        )
        return {**basics(), "packages": dict(sorted(found.items())), **git, **(self._own or {})}

    def note(self, writer: Writer) -> None:
        """Record where a run is driven, unless its journal says so already."""
        forms = self._forms()
        locked(writer.lock, _note, writer, forms)

    def _forms(self) -> tuple[bytes, ...]:
        """What is known now, encoded, and what it would be if git had answered, where it still has to."""
        head, loaded = repository.head(), self._loaded()
        key, forms = self._made
        if key != (head, loaded):
            heads = [head]
            if head is not None and head.dirty is None:
                heads += [head._replace(dirty=True), head._replace(dirty=False)]
            forms = tuple(self._codec.encode(self._facts(one, loaded)) for one in heads)
            self._made = ((head, loaded), forms)
        return forms

    def follow(self, writer: Writer) -> Callable[[], None]:
        """Record where a run is driven now, and what turns out later; until what is returned is called."""
        self.note(writer)

        def later() -> None:
            self.note(writer)

        if repository.when_known(later):
            return functools.partial(repository.forget, later)
        self.note(writer)  # Git may have answered since.
        return _nothing


def _note(writer: Writer, forms: tuple[bytes, ...]) -> None:
    if writer.run.facts not in forms and writer.run.status == RunStatus.RUNNING:
        writer.record(Described(forms[0]))


def settle(seconds: float) -> None:
    """Wait, for so long at most, until all is known that is noted of this place; for programs that end soon."""
    if os.environ.get(SWITCH) != "0":
        repository.settle(seconds)


def _nothing() -> None:
    return None


def _modules(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        if node.graph is not None:
            yield from _modules(node.graph)
        function: Any = node.function
        while isinstance(function, functools.partial):
            function = function.func
        module = getattr(function, "__module__", None) or type(function).__module__
        if function is not None and isinstance(module, str):
            yield module
