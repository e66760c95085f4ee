"""What a fuzz target is: something that takes any bytes, and either works or refuses them as documented."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

MEGABYTE = 1 << 20


class Wrong(Exception):
    """A wrong result of a target: worse than any error. `kind` distinguishes findings of one check."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class Hang(BaseException):
    """One input took more processor time than its target allows."""


Check = Callable[[bytes], str]
"""Tries one input. Answers what came of it in a word or two; raises what `refused` lists, or has found something."""


@dataclass(frozen=True)
class Target:
    """One thing to be fuzzed. `open` makes its check ready, in the process that runs it."""

    name: str
    open: Callable[[], Check]
    refused: tuple[type[BaseException], ...]
    seeds: Callable[[], list[bytes]] = list
    make: Callable[[Random], bytes] | None = None
    fresh: float = 0.3
    """How many of the inputs are made anew, the others being changed from known ones."""

    words: tuple[bytes, ...] = ()
    """What is put into inputs now and then."""

    share: int = 1
    """How many of the inputs of all targets it gets, compared to the others."""

    longest: int = 2048
    seconds: float = 5.0
    """How much processor time one input may take."""

    memory: int = 512 * MEGABYTE
    """By how much the process may grow."""

    is_decoder: bool = False
    """Whether it pays to let coverage guide it."""

    @property
    def about(self) -> str:
        """What it does, in a sentence."""
        return self.open.__doc__ or ""


def own_folder() -> Path:
    """A folder for files; whoever runs the target removes it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def place_of(error: BaseException) -> str:
    """Where an error was raised, and what it is: two errors of one place are one outcome."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    kind = f" ({error.kind})" if isinstance(error, Wrong) and error.kind else ""
    return f"{type(error).__name__} in {code.co_name}:{trace.tb_lineno}{kind}"
