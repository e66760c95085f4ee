"""Bugs planted on purpose, each to be found by its target: `python -m tests.fuzz.planted [TARGET …]`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast import errors as suggestions
from holdfast.capsules import capsule
from holdfast.capsules import format as sections
from holdfast.capsules import summary as folding
from holdfast.cli import errors
from holdfast.engine import checkpoint_files as unpickling
from holdfast.engine.commands import inbox
from holdfast.engine.time_travel import checkpoints as moments
from holdfast.fleet.cron import Cron, _Field
from holdfast.journal import checkpoint_ids as checkpoints
from holdfast.journal import encoding as wire
from holdfast.journal import journal
from holdfast.journal.records import StepStarted
from holdfast.journal.sealing import Seal
from holdfast.state import codec as compress
from holdfast.state import codec as encoding
from holdfast.state import standard_types as standard
from holdfast.state.codec import _Decoding, _marked_lists
from holdfast.state.standard_types import Allowance
from holdfast.stores.files import frames
from holdfast.stores.sqlite import store as sqlite
from holdfast.views import patch as patching
from holdfast.views import terminal
from holdfast.workflows import scripts as script
from holdfast.workflows import secrets
from holdfast.workflows.language import functions
from holdfast.workflows.language import functions as operators
from holdfast.workflows.reading.source import _Document
from holdfast.workflows.scripts import _Variables
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS, times, workflow_files
from tests.fuzz.trying import Tally, run_target


class Planted(NamedTuple):
    """A bug: which target is to find it, what it is, how it is made, and after how many inputs at most."""

    target: str
    what: str
    plant: Callable[[], contextlib.AbstractContextManager[Any]]
    inputs: int = 20_000


def _rebuilt(self: Any, tree: Any, marks: int) -> Any:
    root = [tree]
    for holder, key, marked in reversed(_marked_lists(root)):
        holder[key] = self.build(marked)
    return root[0]


def _as_bytes(value: Any, leaf: Callable[[Any], Any] = encoding._leaf) -> Any:
    return bytes(value) if isinstance(value, bytearray) else leaf(value)


def _without_checksum(base: bytes, size: int, against: Any = compress._against) -> dict[int, int]:
    options: dict[int, int] = against(base, size)
    return {**options, compress.zstd.CompressionParameter.checksum_flag: 0}


def _unbound_open(self: Seal, sealed: bytes, aad: bytes, opened: Any = Seal.open) -> bytes:
    return bytes(opened(self, sealed, b""))


def _unbound_seal(self: Seal, body: bytes, aad: bytes, sealed: Any = Seal.seal) -> bytes:
    return bytes(sealed(self, body, b""))


def _careless_changes(wires: Any) -> Any:
    return tuple(inbox.Change(tuple(map(str, wire[0])), bytes(wire[1])) for wire in wires)


def _careless_number(self: _Field, word: str, text: str) -> int:
    return self.words[word.upper()] if word.isalpha() else int(word)


def _multiplied(budget: Any, left: Any, right: Any) -> Any:
    times_ = operators.whole(right)
    budget.new_list(operators.size(left) * max(0, times_))
    return list(left) * times_


@contextlib.contextmanager
def _all(*patches: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def _as_it_is(budget: Any, value: Any) -> Any:
    budget.charge(1)
    return value if isinstance(value, (int, float, str)) else repr(value)


def _every_name_compared() -> contextlib.AbstractContextManager[Any]:
    limits = ("MOST_LOOKED_AT", "MOST_COMPARED")
    return _all(*(patch.object(suggestions, name, 1 << 40) for name in limits))


def _no_sum(data: bytes, start: int = 0) -> int:
    return 0


def _verified(store: Any, run: str, after: int, chain: bytes, sealed: bool, upto: int | None = None) -> Any:
    return store.read(run, after, upto)


_NEXT_ATTEMPT = (lambda wire, _: StepStarted(wire[1], wire[2] + 1), None)

PLANTED = [
    Planted("codec", "a mark out of place, or data that does not fit, is not told apart",
            lambda: patch.object(_Decoding, "rebuilt", _rebuilt)),
    Planted("values", "a bytearray is stored as bytes", lambda: patch.object(encoding, "_leaf", _as_bytes)),
    Planted("records", "an attempt is read as the next one",
            lambda: patch.dict(wire._FORMS, {StepStarted: wire._FORMS[StepStarted], 1: (None, _NEXT_ATTEMPT)})),
    Planted("snapshots", "a text grows whenever it is written",
            lambda: patch.object(wire, "safe_text", lambda text: text + "?")),
    Planted("compress", "differences have no checksum", lambda: patch.object(compress, "_against",
        _without_checksum)),
    Planted("sealed", "bodies are not bound to their place",
            lambda: _all(patch.object(Seal, "open", _unbound_open), patch.object(Seal, "seal", _unbound_seal))),
    Planted("marks", "marks have no checksum",
            lambda: patch.object(checkpoints, "_summed", lambda own, *_: own + b"none")),
    Planted("ids", "an id leads to another entry", lambda: patch.object(checkpoints, "_INVERSE", 3)),
    Planted("messages", "a change without a value is not foreseen",
            lambda: patch.object(inbox, "_changes", _careless_changes)),
    Planted("frames", "frames have no checksums", lambda: patch.object(frames, "crc32", _no_sum)),
    Planted("facts", "facts may be no object", lambda: patch.object(frames, "_fields", json.loads)),
    Planted("expressions", "nothing times very much", lambda: patch.dict(operators.BINARY, {"*": _multiplied})),
        # type: ignore[arg-type]
    Planted("arithmetic", "// rounds towards zero",
            lambda: patch.dict(operators.BINARY, {"//": operators._numeric(lambda a, b: int(a / b))})),
                # type: ignore[arg-type]
    Planted("templates", "`first` of an empty list is not foreseen",
            lambda: patch.dict(functions.FUNCTIONS, {"first": lambda budget, value: value[0]})),
                # type: ignore[arg-type]
    Planted("shell", "a value is written into the script",
            lambda: patch.object(_Variables, "_variable", lambda self, value: str(value))),
    Planted("shell-runs", "every command takes values",
            lambda: patch.object(script, "objection", lambda words, programs: None), 3_000),
    Planted("printed", "the gate lets escapes through",
            lambda: patch.object(terminal, "_HIDDEN", re.compile("[\x00-\x08]"))),
    Planted("hidden", "lines are not joined", lambda: patch.object(secrets, "unwrapped", lambda text: ())),
    Planted("cron", "day and weekday have to fit both", lambda: patch.object(Cron, "_is_either", False), 40_000),
    Planted("cron-text", "an unknown name is not foreseen",
            lambda: patch.object(_Field, "_number", _careless_number)),
    Planted("durations", "a duration may be endless",
            lambda: patch.object(times, "seconds", lambda text: float(text.rstrip("smhdw") or "x"))),
    Planted("yaml", "an alias of nothing is not foreseen",
            lambda: patch.object(_Document, "_alias", lambda self, event, path, depth: self.anchors[event.anchor])),
    Planted("json", "NaN is taken for JSON", lambda: patch.object(workflow_files, "read_json", json.loads)),
    Planted("differences", "keys are not escaped in a patch",
            lambda: patch.object(patching, "pointer", lambda tokens: "".join(f"/{token}" for token in tokens))),
    Planted("patches", "an index is taken as it is",
            lambda: patch.object(patching, "index_of", lambda token, *_: int(token))),
    Planted("shown", "very long numbers are written in digits", lambda: patch("holdfast.views.plain._MOST_BITS",
        10**9)),
    Planted("capsule", "no checksum of a capsule is looked at",
            lambda: _all(patch.object(sections, "_check", lambda start, payload: bytes(16)),
                         patch.object(sections, "_check_end", lambda *_: None),
                         patch.object(capsule, "break_at", lambda *_: ""))),
    Planted("forged", "records of strangers are not looked at",
            lambda: _all(patch.object(folding, "check_record", lambda record: None),
                         patch.object(folding, "Track", lambda strict: wire.Track()))),
    Planted("file-store", "no checksum of a journal is looked at",
            lambda: _all(patch.object(frames, "crc32", _no_sum), patch.object(journal, "verified", _verified)), 400),
    Planted("sqlite-store", "the chain of a journal is not looked at",
            lambda: patch.object(journal, "verified", _verified), 2000),
    Planted("verbs", "numbers are not kept within a run",
            lambda: patch.object(sqlite, "within", lambda number: 1 << 32 if number is None else max(0, number))),
    Planted("moments", "a number may have any length", lambda: patch.object(moments, "_number", int)),
    Planted("pickles", "a bytearray may be made of a number",
            lambda: patch.dict(unpickling._SAFE, {("builtins", "bytearray"): bytearray})),
    Planted("bombs", "members of one hash are all taken", lambda: patch.object(standard, "distinct", list)),
    Planted("bombs", "values are not measured together",
            lambda: patch.object(Allowance, "takes", lambda self, *raws: True)),
    Planted("calls", "numbers meet in a set", lambda: patch.object(functions, "_identity", _as_it_is), 400),
    Planted("suggestions", "every known name is compared", _every_name_compared, 400),
    Planted("cli", "an error of ours is not foreseen",
            lambda: patch.object(errors, "hasattr", lambda *given: False, create=True), 1000),
]  # fmt: skip
"""At least one for almost every target; what a planted bug looks like to a user is what its target looks for."""


def hunt(planted: Planted) -> Tally:
    """Run a target with its bug planted, until it is found or enough was tried."""
    target: Target = dataclasses.replace(TARGETS[planted.target], memory=1 << 40)
    with planted.plant():
        return run_target(target, "planted", lambda number: number < planted.inputs, most_findings=1)


def main(words: list[str]) -> int:
    """Hunt for every planted bug, and report; return 1 if one was not found."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        for planted in PLANTED:
            if words and planted.target not in words:
                continue
            tally = hunt(planted)
            missed += not tally.findings
            how = (
                f"found after {tally.inputs:,} inputs: {tally.findings[0].where}"
                if tally.findings
                else "NOT FOUND"
            )
            print(f"{planted.target:14} {planted.what}: {how}", flush=True)
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
