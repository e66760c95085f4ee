"""Where a node's work is done: what its `executor` option says, and what is wrong with it."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.suggestions import suggestion

THREADS, PROCESSES, DASK, OWN = "threads", "processes", "dask", "own"
KINDS = (THREADS, PROCESSES, DASK)
FORMS = "threads, processes, processes:NUMBER, dask:ADDRESS"
_SIZED = re.compile(r"processes:([1-9][0-9]{0,3})")


class ExecutorChoice(NamedTuple):
    """An `executor` option that was understood."""

    kind: str
    size: int | None = None
    """How many processes; by default as many as there are processors."""
    address: str = ""
    own: concurrent.futures.Executor | None = None

    @property
    def in_threads(self) -> bool:
        """Whether the work stays in this process, so that it can ask everything of the engine."""
        return self.kind == THREADS or isinstance(self.own, concurrent.futures.ThreadPoolExecutor)

    @property
    def is_dask(self) -> bool:
        """Whether a Dask cluster does the work, which repeats what it loses."""
        return self.kind == DASK or type(self.own).__module__.partition(".")[0] == "distributed"

    @property
    def by_value(self) -> bool:
        """Whether functions that cannot be found by name are sent themselves."""
        return self.is_dask or (self.own is not None and importlib.util.find_spec("cloudpickle") is not None)

    @property
    def tells_beginning(self) -> bool:
        """Whether its futures say when their work has begun."""
        pools = (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor)
        return self.kind == PROCESSES or isinstance(self.own, pools)

    def __str__(self) -> str:
        if self.own is not None:
            return f"the {type(self.own).__name__}"
        if self.kind == DASK:
            return f"the Dask cluster at {self.address}"
        return "a worker process" if self.kind == PROCESSES else "a worker thread"


class ExecutorUnknown(ValueError):
    """An `executor` option that cannot be understood, and what could be meant."""


def choice_of(executor: Any) -> ExecutorChoice:
    """What an `executor` option means; raise `ExecutorUnknown` for nonsense."""
    if isinstance(executor, concurrent.futures.Executor):
        return ExecutorChoice(OWN, own=executor)
    if not isinstance(executor, str):
        raise ExecutorUnknown(f"it must be one of {FORMS}, or a concurrent.futures.Executor (an instance)")
    if executor in (THREADS, PROCESSES):
        return ExecutorChoice(executor)
    if sized := _SIZED.fullmatch(executor):
        return ExecutorChoice(PROCESSES, size=int(sized[1]))
    kind, _, address = executor.partition(":")
    if kind == DASK and address.strip("/: "):
        return ExecutorChoice(DASK, address=address)
    raise ExecutorUnknown(f"it must be one of {FORMS}{_hint(kind)}")


def _hint(kind: str) -> str:
    if kind == DASK:
        return "; name the scheduler, as in dask:tcp://host:8786"
    if kind == THREADS:
        return "; max_parallel says how many steps of a node run at once"
    return suggestion(kind, [known for known in KINDS if known != kind])


def executor_problems(
    executor: Any, repeats: bool, function: Callable[..., Any] | None = None
) -> Iterator[str]:
    """Why a node cannot be run by `executor`; `repeats` says that it may be run again unasked."""
    try:
        choice = choice_of(executor)
    except ExecutorUnknown as error:
        yield f"executor={executor!r}; {error}"
        return
    if choice.kind == PROCESSES and function is not None:
        for problem in _unimportable(function):
            yield f"executor={executor!r}, and {problem}"
    if choice.is_dask and not repeats:
        yield (
            f"executor={executor!r}, where Dask repeats the steps of a worker that is lost, and may not be "
            "repeated unasked; use processes or threads, or let it be repeated"
        )


def missing_package(executor: Any) -> Iterator[str]:
    """What has to be installed before `executor`, which was understood, can be used."""
    if choice_of(executor).kind == DASK and importlib.util.find_spec("distributed") is None:
        yield f"executor={executor!r}, which needs a package: pip install 'holdfast[dask]'"


def _unimportable(function: Callable[..., Any]) -> Iterator[str]:
    """Why another process cannot find a function by its name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    way_out = "define it with `def` at the top level of a module"
    try:
        import pickle

        packed = pickle.dumps(function)
    except Exception as error:
        reason = "a lambda or a function inside another" if "<" in name else str(error)
        yield f"another process cannot find its function {name!r} ({reason}); {way_out}"
        return
    if b"__main__" in packed and getattr(sys.modules.get("__main__"), "__file__", None) is None:
        yield f"its function {name!r} was typed into this session, where another process cannot find it; {way_out}"
