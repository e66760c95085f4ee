"""What the plan of a resume was made of, in a short text, and what is different when it no longer holds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from holdfast.data.codec import Codec
from holdfast.engine.driver import describe
from holdfast.engine.resume import ResumeOptions
from holdfast.errors import StateInvalid
from holdfast.journal.journal import Journal, Loaded
from holdfast.journal.records import Resumed, RunStarted

_NO_MATTER = ("plan", "takeover", "approve")
_PARTS = 5


def identity_of(loaded: Loaded, options: ResumeOptions, outline: Any, fates: Sequence[Any]) -> str:
    """The id of a plan: the run's last entry and its checksum, and digests of options, graph and what was planned."""
    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in _NO_MATTER and not any(getattr(options, field.name) is x for x in (None, False))
    }
    parts = (str(loaded.seq), loaded.chain.hex()[:8], _digest(given), _digest(outline), _digest(list(fates)))
    return "-".join(parts)


def what_moved(journal: Journal, codec: Codec, run: str, given: str, now: str) -> list[str]:
    """What is different from when a plan was made, in words; empty if nothing is."""
    if given == now:
        return []
    then, current = given.split("-"), now.split("-")
    if len(then) != _PARTS or not then[0].isdecimal():
        raise StateInvalid(
            f"{given!r} is not the id of a plan; plan_resume(…).id is one, and so is what --plan shows"
        )
    if then[0] != current[0]:
        return [
            f"the run advanced from entry {then[0]} to {current[0]}{_by(journal, codec, run, int(then[0]))}"
        ]
    if then[1] != current[1]:
        return ["it was made for another run, or for this one before its store was restored"]
    moved = []
    if then[2] != current[2]:
        moved.append("other options are given than it was made for")
    if then[3] != current[3]:
        moved.append("the graph changed again")
    return moved or ["time has passed: what was waited for is over, or a driver came or went"]


def _by(journal: Journal, codec: Codec, run: str, after: int) -> str:
    """Who advanced a run, if its journal tells."""
    driver = ""
    _, history = journal.history(journal.info(run), codec)
    for entry, found in history:
        for record in found:
            if isinstance(record, (RunStarted, Resumed)) and (entry.seq > after or not driver):
                driver = record.driver or driver
    return f" (driven by {describe(driver)})" if driver else ""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
