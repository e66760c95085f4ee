"""The environment that a run is executed in: host, versions, commit. Read once a process, recorded on change."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import CodecError, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.journal.records import Described
from holdfast.journal.writer import Writer
from holdfast.state.codec import Codec
from holdfast.threads import locked, started
from holdfast.values import RunStatus

FRESH = 1.0
"""Seconds for which what was read is not read again."""

OFTEN = 60.0
"""Seconds between two questions to git whether files are changed."""

_GIT_TIMEOUT = 60.0
_LARGEST = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Head(NamedTuple):
    """The commit and branch of a working copy. `dirty` is `None` until git has answered."""

    commit: str
    branch: str = ""
    dirty: bool | None = None


def read_head(folder: Path) -> Head | None:
    """Return the commit and branch of a folder's working copy; `None` if it is none, or has no commit."""
    own = _git_folder(folder)
    text = "" if own is None else _read(own / "HEAD")
    if own is None or not text.startswith("ref: "):
        return Head(text) if _COMMIT.fullmatch(text) else None
    ref = text.removeprefix("ref: ")
    shared = own / (_read(own / "commondir") or ".")
    branch = ref.removeprefix("refs/heads/")
    for place in (own / ref, shared / ref):
        if _COMMIT.fullmatch(commit := _read(place)):
            return Head(commit, branch)
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and _COMMIT.fullmatch(commit):
            return Head(commit, branch)
    return None


def _git_folder(folder: Path) -> Path | None:
    """Return the `.git` folder of the working copy that a folder is in; a worktree's is elsewhere."""
    for place in (folder, *folder.parents):
        found = place / ".git"
        if found.is_dir():
            return found
        if found.is_file():
            named = _read(found)
            return place / named.removeprefix("gitdir: ") if named.startswith("gitdir: ") else None
    return None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


class Repository:
    """The working copy of this process, as far as it is known. Asking never waits."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget everything, as a forked child does."""
        self._lock = threading.Lock()
        self._folder, self._read_at, self._asked_at = "", float("-inf"), float("-inf")
        self._head: Head | None = None
        self._thread: threading.Thread | None = None
        self._answer: Future[None] = Future()
        """Git's last answer."""
        self._dirty: tuple[str, str, bool] | None = None
        """The folder and commit of which it is known whether files are changed, and whether they are."""

    def head(self) -> Head | None:
        """Return the commit, branch and changes of the working copy, as far as they are known."""
        return locked(self._lock, self._found, time.monotonic())

    def _found(self, now: float) -> Head | None:
        if now - self._read_at > FRESH:
            self._look(now)
        head = self._head
        if head is None:
            return None
        known = self._dirty
        if known is not None and known[:2] == (self._folder, head.commit):
            return head._replace(dirty=known[2])
        return head

    def _look(self, now: float) -> None:
        try:
            here = Path.cwd()
            folder, head = str(here), read_head(here)
        except OSError:
            folder, head = "", None
        is_other = (folder, head) != (self._folder, self._head)
        self._folder, self._head, self._read_at = folder, head, now
        is_due = now - self._asked_at > OFTEN or (is_other and self._asked_at == float("-inf"))
        if head is None or not is_due or (self._thread is not None and self._thread.is_alive()):
            return
        answer: Future[None] = Future()
        asking = threading.Thread(
            target=self._ask, args=(folder, head.commit, answer), name="holdfast-git", daemon=True
        )
        self._asked_at, self._answer = now, answer
        try:
            started(asking)
        except (RuntimeError, MemoryError):
            return  # There can be no more threads, or the process is about to end.
        self._thread = asking

    def _ask(self, folder: str, commit: str, answer: Future[None]) -> None:
        """Ask git whether files of the working copy are changed or new."""
        # Neither locks that are in somebody's way nor programs that a working copy may name.
        command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GIT_TIMEOUT,
                check=True,
            )
            self._dirty = (folder, commit, bool(done.stdout.strip()))
        answer.set_result(None)

    def when_known(self, call: Callable[[], None]) -> None:
        """Have `call` called when git has answered: at once if it has, else from another thread."""
        self._answer.add_done_callback(lambda _: call())

    def settle(self, seconds: float) -> None:
        """Wait at most so many seconds for git's answer, and for the calls that wait for it."""
        self.head()
        thread = self._thread
        if thread is not None:
            thread.join(seconds)


repository = Repository()


SWITCH = "HOLDFAST_FACTS"
"""The environment variable that turns this off with `0`."""

LIBRARIES = {
    **{
        name: name
        for name in (
            *("pydantic", "openai", "anthropic", "mistralai", "groq", "cohere", "litellm", "transformers"),
            *("torch", "tensorflow", "jax", "numpy", "pandas", "polars", "pyarrow", "scipy"),
            *("distributed", "psycopg", "httpx"),
        )
    },
    "pydantic_ai": "pydantic-ai-slim",
    "google.genai": "google-genai",
    "langchain_core": "langchain-core",
    "llama_index": "llama-index",
    "sklearn": "scikit-learn",
}
"""Libraries whose versions are recorded if they are loaded: the distribution by module."""

_MOST_PACKAGES = 5
_OURS = ("holdfast", "__main__", "builtins", "functools")


def checked_facts(facts: bool | Mapping[str, Any], codec: Codec) -> dict[str, Any] | None:
    """Return the caller's own facts to record with the others, or `None` if nothing is to be recorded."""
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
    """Return what never changes in a process. Nothing of the environment variables, the arguments or the user."""
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
    """Return the versions of all distributions, read from folder names: far faster than asking each."""
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


class Environment:
    """The environment that is recorded for the runs of one graph."""

    def __init__(self, graph: Graph, codec: Codec, own: Mapping[str, Any] | None) -> None:
        self._codec, self._own = codec, own
        found = dict.fromkeys(module.partition(".")[0] for module in _modules(graph))
        self._packages = tuple(name for name in found if name and name not in _OURS)[:_MOST_PACKAGES]
        """The packages that the graph's code belongs to."""
        self._modules = tuple(dict.fromkeys((*_modules(graph), "__main__")))
        self.app: Callable[[], object] = lambda: None
        """Returns the app whose runs these are."""
        self.place: str | None = None
        """Where the app is found, as `holdfast resume --app` takes it; empty if nowhere, `None` before it is sought."""
        self._made: tuple[tuple[Any, ...], tuple[bytes, ...]] = ((), ())
        """What was encoded last, and from which facts."""

    def _facts(self, head: Head | None, loaded: tuple[str, ...]) -> dict[str, Any]:
        names = {**{name: LIBRARIES[name] for name in loaded}, **{name: name for name in self._packages}}
        found = {name: version for name in names.values() if (version := _version(name)) is not None}
        git = (
            {} if head is None else {"git": {k: v for k, v in head._asdict().items() if v not in ("", None)}}
        )
        place = {"app": self.place} if self.place else {}
        return {**basics(), "packages": dict(sorted(found.items())), **git, **place, **(self._own or {})}

    def note(self, writer: Writer) -> None:
        """Record the environment of a run, unless its journal has it already."""
        locked(writer.lock, _note, writer, self._forms())

    def _forms(self) -> tuple[bytes, ...]:
        """Return what is known now, encoded, and what it would be if git had answered, where it still has to."""
        head, loaded = repository.head(), tuple(name for name in LIBRARIES if name in sys.modules)
        if self.place is None:
            self.place = _place(self.app(), self._modules)
        key, forms = self._made
        if key != (head, loaded, self.place):
            heads = [head]
            if head is not None and head.dirty is None:
                heads += [head._replace(dirty=True), head._replace(dirty=False)]
            forms = tuple(self._codec.encode(self._facts(one, loaded)) for one in heads)
            self._made = ((head, loaded, self.place), forms)
        return forms

    def follow(self, writer: Writer) -> Callable[[], None]:
        """Record the environment of a run now, and once git has answered, unless what is returned was called."""
        if self._own is None or os.environ.get(SWITCH) == "0":
            return lambda: None
        following = [True]

        def later() -> None:
            if following:
                self.note(writer)

        self.note(writer)
        repository.when_known(later)
        return following.clear


def _note(writer: Writer, forms: tuple[bytes, ...]) -> None:
    if writer.run.facts not in forms and writer.run.status == RunStatus.RUNNING:
        writer.record(Described(forms[0]))


def settle(seconds: float) -> None:
    """Wait at most so many seconds until everything is known; for programs that end soon."""
    if os.environ.get(SWITCH) != "0":
        repository.settle(seconds)


def _place(app: object, modules: tuple[str, ...]) -> str:
    """Return the module, or the file of the program, and the variable that an app is in; empty if it is in none."""
    for name in modules if app is not None else ():
        module = sys.modules.get(name)
        for variable, value in list(vars(module).items()) if module is not None else ():
            if value is app:
                own = name if name != "__main__" else _program(module)
                return f"{own}:{variable}" if own else ""
    return ""


def _program(main: Any) -> str:
    """Return how the program of this process can be imported: by its name, or by its file."""
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__") if not spec.name.startswith("__") else ""
    return str(Path(file).absolute()) if isinstance(file, str) and file.endswith(".py") else ""


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
