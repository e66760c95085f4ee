"""What a run from outside would run with: read as text, with nothing run, imported or looked up on disk."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.views.plain import escaped, scalar, text_line, tree_lines
from holdfast.workflows.model import KINDS
from holdfast.workflows.reading.problems import WorkflowInvalid
from holdfast.workflows.reading.source import read_source

HARMLESS = ("set", "wait", "ask", "end", "parallel", "while_loop", "workflow")
"""The kinds of steps that are known to do nothing outside of their run; members and sub-workflows are listed apart."""

_REACH = {
    "python": "runs Python code",
    "shell": "runs a shell command",
    "http": "sends a request",
    "agent": "calls a language model, and the Python functions that it names as tools",
    "checkpoint": "writes or reads a file",
    "file": "writes or reads files",
    "json_state": "writes or reads a file",
    "sql": "runs SQL on a database",
    "hook": "runs a shell command",
    "retention": "deletes old runs of this workflow from your store",
    "executor": "sends code to another process, and believes what comes back",
}

_DEEPEST = 20
_NOWHERE = Path(os.devnull) / "capsule"


class Effect(NamedTuple):
    """A step, or something else of a workflow file that is done; `reach` says what it does outside of its run."""

    name: str
    kind: str
    reach: str


class SavedFile(NamedTuple):
    """A workflow file that a run has saved: its data as it is written, or its text if it cannot be read."""

    name: str
    data: Any
    text: str
    problem: str = ""
    unused: Mapping[Any, Any] = MappingProxyType({})
    """Texts that are saved with it as included by it, which are not, or not as far as is known."""


def files_of(saved: Mapping[str, Any]) -> list[SavedFile]:
    """Return the workflow file of a run, and those of its sub-workflows, with what they include."""
    others = saved.get("files")
    subs = others.items() if isinstance(others, Mapping) else ()
    return [_file("", saved), *(_file(str(name) or '""', saved) for name, saved in subs)]


def effects_of(saved: Mapping[str, Any]) -> list[Effect]:
    """Return what the workflow file of a run does, sub-workflows included; one that cannot be read may do anything."""
    found: list[Effect] = []
    for file in files_of(saved):
        effects: Iterable[Effect] = [Effect("", "unreadable", f"unknown: {file.problem}")]
        if isinstance(file.data, Mapping):
            effects = _effects(file.data)
        found += (each._replace(name=f"{file.name}: {each.name}") if file.name else each for each in effects)
    return found


def warning_of(effects: Sequence[Effect]) -> str:
    """Return in one line what resuming a run would do that brought its workflow file along."""
    counts = Counter(effect.kind for effect in effects if effect.reach)
    reaching = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    whole = f"resuming it runs the workflow file in it: {len(effects)} steps, hooks and the like"
    if not reaching:
        return f"{whole}, all of which only compute, ask or wait"
    return f"{whole}, of which {reaching} reach out of the run"


def source_lines(config: Mapping[str, Any], inbox: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return all that a run would run with, complete, as text without terminal control characters.

    Workflow files are shown as they are read, not as they look: without comments, with escapes and folded lines
    resolved, and with the texts of the files that they include.
    """
    saved = config.get("workflow_file")
    rest = {
        key: value
        for key, value in config.items()
        if key != "workflow_file" or not isinstance(value, Mapping)
    }
    lines = list(_file_lines(saved)) if isinstance(saved, Mapping) else []
    lines += tree_lines({"options": rest}) if rest else []
    lines += tree_lines({"commands that wait in its inbox": list(inbox)}) if inbox else []
    return lines


def _file_lines(saved: Mapping[str, Any]) -> Iterator[str]:
    files = files_of(saved)
    for file in files:
        path = saved.get("path") if not file.name else file.name
        what = "sub-workflow" if file.name else "workflow file"
        yield f"{what} {scalar(path)}:"
        if isinstance(file.data, (Mapping, list)):
            yield from tree_lines(file.data, "  ")
        else:
            yield f"  (it cannot be read as a workflow: {escaped(file.problem)}; this is its text)"
            yield from (f"  {text_line(line)}" for line in file.text.split("\n"))
        if file.unused:
            yield from tree_lines({"saved with it, and not included by it": file.unused}, "  ")
    known = ("path", "digest", "source", "included", "files")
    if rest := {key: value for key, value in saved.items() if key not in known}:
        yield from tree_lines({"beside the workflow file": rest})


def reads_of(saved: Mapping[str, Any]) -> list[str]:
    """The secrets and variables of the environment that such a file names, its sub-workflows and includes, too."""
    found: set[str] = set()
    for text in _texts(saved, 0):
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


def _file(name: str, saved: Any) -> SavedFile:
    source = saved.get("source") if isinstance(saved, Mapping) else None
    if not isinstance(saved, Mapping) or not isinstance(source, str):
        return SavedFile(name, None, "\n".join(tree_lines({"": saved})), "it is no text")
    kept = saved.get("included")
    included = {str(key): str(text) for key, text in kept.items()} if isinstance(kept, Mapping) else {}
    try:
        read = read_source(
            _NOWHERE / "workflow.yaml",
            env=None,
            text=source,
            included=included,
            only_included=True,
            has_file=lambda path: False,
        )
    except WorkflowInvalid as error:
        return SavedFile(name, None, source, error.problems[0].message, included)
    except RecursionError:
        return SavedFile(name, None, source, "it is nested too deep", included)
    unused = {key: text for key, text in included.items() if key not in read.included}
    return SavedFile(name, read.data, source, unused=unused)


def _effects(data: Mapping[str, Any]) -> Iterator[Effect]:
    yield from _steps(data.get("steps"), 0)
    workflow = data.get("workflow")
    if not isinstance(workflow, Mapping):
        return
    hooks, checkpoint = workflow.get("hooks"), workflow.get("checkpoint")
    for name in hooks if isinstance(hooks, Mapping) else ():
        yield Effect(str(name), "hook", _REACH["hook"])
    if isinstance(checkpoint, Mapping) and checkpoint.get("dir") is not None:
        where = f"{_shown(checkpoint['dir'])}, in the folder of the workflow file"
        yield Effect("checkpoint", "checkpoint", f"writes checkpoint files at interrupts into {where}")
    if isinstance(checkpoint, Mapping) and checkpoint.get("retention") is not None:
        yield Effect("checkpoint", "retention", _REACH["retention"])


def _steps(steps: Any, depth: int) -> Iterator[Effect]:
    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, Mapping) or depth >= _DEEPEST:
            yield Effect("", "unknown", "unknown")
            continue
        kind = next((kind for kind in KINDS if step.get(kind) is not None), "unknown")
        own, name = step.get(kind), str(step.get("name", ""))
        yield Effect(name, kind, "" if kind in HARMLESS else _reach(kind, own))
        if step.get("executor") is not None:
            yield Effect(name, "executor", _REACH["executor"])
        if kind in ("parallel", "while_loop"):
            yield from _steps(own.get("steps") if isinstance(own, Mapping) else own, depth + 1)


def _reach(kind: str, own: Any) -> str:
    """Return what a step does outside of its run: with which file or statement, and whether it may be anywhere."""
    fields = own if isinstance(own, Mapping) else {}
    where = "anywhere on this machine" if fields.get("outside") else "in the folder of the workflow file"
    verbs = {"create": "writes", "write": "writes", "edit": "changes", "merge": "changes", "read": "reads"}
    verbs |= {"save": "writes", "load": "reads"}
    for verb, said in verbs.items():
        if kind in ("file", "json_state", "checkpoint") and fields.get(verb) is not None:
            return f"{said} {_shown(fields[verb])}, {where}"
    if kind == "sql":
        queries = fields.get("queries")
        listed = queries if isinstance(queries, list) else [fields.get("query")]
        texts = (each.get("query") if isinstance(each, Mapping) else each for each in listed)
        return f"runs SQL on {_shown(fields.get('url'))}: {'; '.join(map(_shown, texts))}"
    return _REACH.get(kind, "unknown")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else scalar(value) if not isinstance(value, list) else str(value)
