"""Workflow files: strict YAML, and whole files with all that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from holdfast.errors import HoldfastError
from holdfast.workflows.kinds.kind import read_json
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.reading.source import read_source
from holdfast.workflows.workflow import load_workflow
from tests.fuzz.target import Check, Target, Wrong, own_folder

ENV = {"HOME": "/nowhere", "NAME": "a: b"}

_YAML = (
    "a: 1", "- x", "key:", "? q", "&a [1, 2]", "*a", "!file x", "!!python/object:os.system", "!!str", "<<: *a",
    "'it''s'", '"\\u0041\\ud800"',
    "|\n  text\n", ">-\n  folded\n", "{a: 1, b: [2]}", "[1, [2, {c: d}]]", "# note", "---", "...", "%YAML 1.1",
    "${NAME}", "${X:-1}", "$${Y}",
    "yes", "on", "0o17", "017", "1_000", "0x1F", ".inf", ".nan", "1e400", "~", "null", "2026-01-01", "12:30:45",
    "\t", "é", "\u2028", "a: 1\na: 2",
    "? [1]\n: 2", "1: x", "true: y", "-", ":", "9" * 5000, "- - - - -", "[" * 120, "{a: " * 60, "&b\n",
    "\ufeff", "\r\n", "\x85",
)  # fmt: skip


def yaml_text(rng: Random) -> bytes:
    """Pieces of YAML at any depth."""
    out = []
    for _ in range(rng.randrange(1, 8)):
        out.append(" " * (2 * rng.randrange(4)) + rng.choice(_YAML) + rng.choice((" ", "\n", "\n", ": ", "")))
    return "".join(out).encode("utf-8", "surrogatepass")


def _places(error: WorkflowInvalid) -> None:
    for problem in error.problems:
        if problem.position.line < 1 or problem.position.column < 1 or not problem.message:
            raise Wrong(f"a problem without a place: {problem}")
    str(error)


def yaml_files() -> Check:
    """Any bytes as YAML: plain data with a place for all of it, or problems with their places."""
    path = Path("flow.yaml")

    def check(data: bytes) -> str:
        try:
            source = read_source(
                path, env=ENV, text=data.decode("utf-8", "surrogateescape"), base=Path("/nonexistent")
            )
        except WorkflowInvalid as error:
            _places(error)
            raise
        try:
            json.dumps(source.data)
        except (TypeError, ValueError, RecursionError) as error:
            raise Wrong(f"{source.data!r:.200} is not plain: {error}") from error
        return f"{type(source.data).__name__} {len(source.digest)}"

    return check


def flows() -> Check:
    """Whole workflow files, changed: a graph, or every problem with its place, hint and line."""
    path = own_folder() / "flow.yaml"

    def check(data: bytes) -> str:
        try:
            flow = load_workflow(path, env=ENV, text=data.decode("utf-8", "replace"))
        except WorkflowInvalid as error:
            _places(error)
            raise
        return f"a flow of {min(5, len(flow.definition.steps))} steps"

    return check


def json_texts() -> Check:
    """JSON from programs: data that JSON can write again, or a `ValueError`."""

    def check(data: bytes) -> str:
        found = read_json(data if data[-1:] == b" " else data.decode("utf-8", "surrogateescape"))
        try:
            json.dumps(found, allow_nan=False)
        except RecursionError:
            return "deep"
        except ValueError as error:
            raise Wrong(f"{data!r:.200} is {found!r:.200}, which is not JSON: {error}") from error
        return type(found).__name__

    return check


def json_text(rng: Random) -> bytes:
    """Something like JSON."""
    bits = (
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"\\ud800"',
        "1",
        "-0.0",
        "1e999",
        "NaN",
        "Infinity",
        "null",
        "true",
        "9" * 400,
        " ",
    )
    return "".join(rng.choice(bits) for _ in range(rng.randrange(1, 9))).encode()


_KEYS = (
    "workflow:", "name:", "steps:", "python:", "shell:", "http:", "agent:", "ask:", "set:", "wait:",
    "parallel:", "while_loop:", "condition:", "file:", "create:", "edit:", "changes:", "read:", "json_state:", "merge:",
    "sql:", "query:", "params:", ":name", "checkpoint:", "end:", "when:",
    "routes:", "to:", "for_each:", "retry:", "timeout:", "inputs:", "output:", "limits:", "after:", "on_error:",
    "secrets:", "{{ steps.a.output }}",
    "{{ inputs.x }}", "if_interrupted:", "$end", "type:", "default:", "max_iterations:", "hooks:", "store:",
    "version:", "30s", "vars:",
)  # fmt: skip
_WORDS = tuple(
    word.encode("utf-8", "surrogatepass")
    for word in (*_YAML, *_KEYS, *("\n  - " + key for key in _KEYS), *("\n    " + key + " " for key in _KEYS))
)
TARGETS = [
    Target(
        "yaml",
        yaml_files,
        (WorkflowInvalid,),
        make=yaml_text,
        words=_WORDS,
        share=100,
        longest=8000,
        is_decoder=True,
        seeds=lambda: [b"a: 1\nb: [1, 2]\nc:\n  - x: ${NAME}\n"],
    ),
    Target(
        "flows",
        flows,
        (WorkflowInvalid, HoldfastError),
        words=_WORDS,
        share=12,
        longest=8000,
        seeds=lambda: [b"workflow: {name: w}\nsteps:\n  - {name: a, set: {x: 1}}\n"],
    ),
    Target(
        "json",
        json_texts,
        (ValueError,),
        make=json_text,
        words=(b"[" * 3000, b'{"a":' * 2000),
        share=500,
        longest=20_000,
        seeds=lambda: [b'{"a": [1, 2.5, "x", null]} ', b'"\\u00e9"'],
        is_decoder=True,
    ),
]
