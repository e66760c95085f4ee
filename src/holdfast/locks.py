"""Holding locks so that they are free again whatever is raised where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")


def locked(
    lock: AbstractContextManager[Any], action: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Return what `action` returns while `lock`, one of the interpreter's own, is held.

    A signal handler, another thread or a debugger may raise an exception between any two lines. Between taking a lock
    and `try`, or in a `finally` before it is released, such an exception leaves the lock taken for ever. The
    interpreter itself takes and releases the lock of a `with` statement with nothing in between; and on one line
    the end of the block is no line of its own.
    """
    with lock: return action(*args, **kwargs)  # fmt: skip  # noqa: E701
