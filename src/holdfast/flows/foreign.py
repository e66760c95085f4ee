"""What a workflow file of a stranger would do: read as text, with nothing run, imported or looked up on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.flows.model import KINDS
from holdfast.flows.reading.problems import FlowInvalid
from holdfast.flows.reading.source import read_source

RUNS_CODE = ("python", "shell", "http", "agent", "hook")
"""Kinds of deeds that reach out of the workflow."""

_DEEPEST = 20
_NOWHERE = Path(os.devnull) / "capsule"


class Deed(NamedTuple):
    """A step, or a hook, and what it does: a command, a function, a URL; as text of the file."""

    name: str
    kind: str
    what: str


class _AnyVariable(Mapping[str, str]):
    """An environment in which every variable stands for its own name, so that nothing of this one shows."""

    def __getitem__(self, name: str) -> str:
        return f"${{{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def deeds_of(flow: Mapping[str, Any]) -> list[Deed] | None:
    """The steps and hooks of a workflow file that a run saved, sub-workflows included; `None` if it is unreadable."""
    others = flow.get("files")
    files = {"": flow, **(others if isinstance(others, Mapping) else {})}
    found: list[Deed] = []
    for name, saved in files.items():
        data = _data(saved)
        if not isinstance(data, Mapping):
            return None
        found += [deed._replace(name=f"{name}: {deed.name}") if name else deed for deed in _deeds(data)]
    return found


def reads_of(flow: Mapping[str, Any]) -> list[str]:
    """The secrets and variables of the environment that such a file names, its sub-workflows and includes, too."""
    found: set[str] = set()
    for text in _texts(flow, 0):
        for secret, looked_up, variable in _READS.findall(text):
            found.add(f"secrets.{secret}" if secret else f"${{{variable}}}" if variable else looked_up)
    return sorted(found)


_READS = re.compile(
    r"\bsecrets\s*\.\s*(\w{1,100})|\b(secrets\s*\[[^\]]{0,100})|(?<!\$)\$\{([A-Za-z_]\w{0,100})"
)


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and depth < _DEEPEST:
        for item in value.values():
            yield from _texts(item, depth + 1)


def _data(saved: Any) -> Any:
    if not isinstance(saved, Mapping) or not isinstance(saved.get("source"), str):
        return None
    kept = saved.get("included")
    included = {str(name): str(text) for name, text in kept.items()} if isinstance(kept, Mapping) else {}
    try:
        return read_source(
            _NOWHERE / "workflow.yaml",
            env=_AnyVariable(),
            text=saved["source"],
            included=included,
            has_file=lambda path: False,
        ).data
    except (FlowInvalid, RecursionError):
        return None


def _deeds(data: Mapping[str, Any]) -> Iterator[Deed]:
    yield from _steps(data.get("steps"), 0)
    workflow = data.get("workflow")
    hooks = workflow.get("hooks") if isinstance(workflow, Mapping) else None
    for name, hook in hooks.items() if isinstance(hooks, Mapping) else ():
        yield Deed(str(name), "hook", _text(hook))


def _steps(steps: Any, depth: int) -> Iterator[Deed]:
    for step in steps if isinstance(steps, list) and depth < _DEEPEST else ():
        if not isinstance(step, Mapping):
            continue
        kind = next((kind for kind in KINDS if step.get(kind) is not None), "unknown")
        own = step.get(kind)
        yield Deed(str(step.get("name", "")), kind, "" if kind == "parallel" else _text(own))
        if kind == "parallel":
            yield from _steps(own.get("steps") if isinstance(own, Mapping) else own, depth + 1)


def _text(own: Any) -> str:
    """The telling part of what a step says of itself."""
    if isinstance(own, Mapping):
        keys = ("run", "command", "url", "file", "prompt")
        own = next((own[key] for key in keys if key in own), " ".join(map(str, own)))
    return str(own)
