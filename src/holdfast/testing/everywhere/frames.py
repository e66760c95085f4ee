"""An error as its author wants to see it: what was raised, why, and where in the author's own code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import linecache
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
_NOT_OWN = tuple(
    f"{folder}/"
    for folder in (_PACKAGE, Path(asyncio.__file__).parent, Path(concurrent.futures.__file__).parent)
)
_NOT_OWN_FILES = (threading.__file__, contextlib.__file__)
_MOST_FRAMES = 8


def own_trace(error: BaseException) -> str:
    """An error and what caused it, each with the frames that are neither Holdfast's nor the event loop's."""
    return "\n".join(_traced(error, set()))


def _traced(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    yield "".join(traceback.format_exception_only(error)).strip()
    yield from _frames(error)
    for part in error.exceptions[:3] if isinstance(error, BaseExceptionGroup) else ():
        yield from _told(part, "one of them", seen)
    cause = error.__cause__ or getattr(error, "cause", None)
    if cause is None and not error.__suppress_context__:
        yield from _told(error.__context__, "while handling", seen)
    else:
        yield from _told(cause, "caused by", seen)


def _told(error: object, how: str, seen: set[int]) -> Iterator[str]:
    if isinstance(error, BaseException) and id(error) not in seen:
        first, *more = _traced(error, seen)
        yield f"{how} {first}"
        yield from more


def _frames(error: BaseException) -> Iterator[str]:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if len(own) > _MOST_FRAMES:
        yield f"  … {len(own) - _MOST_FRAMES} frames …"
    for frame in own[-_MOST_FRAMES:]:
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        line = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
        if line:
            yield f"    {line}"


def _is_own(filename: str) -> bool:
    return not filename.startswith(("<frozen", *_NOT_OWN)) and filename not in _NOT_OWN_FILES
