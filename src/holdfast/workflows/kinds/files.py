"""`file` and `json_state`: files in the workflow file's folder, written whole, and safe to write once more."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.engine.context import Context, StopSignal
from holdfast.state.state import State
from holdfast.workflows.folders import Folder, based, check_no_store, checked_path
from holdfast.workflows.kinds.kind import Kind, Result, read_json
from holdfast.workflows.model import File, JsonState, Step
from holdfast.workflows.scope import Resources, StepFailed, StepTimedOut

MOST_FILES = 1000
"""How many files one step reads."""
_LOCK_WAIT = 60.0
"""How many seconds a writer waits for others, unless the step has a timeout."""
_GLANCE = 0.05


class UsesFiles(Kind):
    """What both kinds share: paths that stay in the workflow's folder, and errors that name the field."""

    part: File | JsonState

    def _open(self, given: str, tmp: str | None, create: bool = False) -> tuple[Folder, str]:
        """Return the opened folder of a path, and the name of the file in it."""
        base, given = based(given, self._resources.base, tmp)
        if self.part.outside:
            path = (base / Path(given).expanduser()).resolve()
            check_no_store(path)
            base, parts = path.parent, path.parts[-1:]
            if create:
                base.mkdir(parents=True, exist_ok=True)
        else:
            parts = checked_path(given).parts
            check_no_store(base.joinpath(*parts).resolve())
        return Folder(base, parts[:-1], create), parts[-1]

    def _read(self, field: str, given: str, tmp: str | None) -> bytes:
        with self._naming(field, given):
            folder, name = self._open(given, tmp)
            with folder:
                return folder.read(name, self.part.max_bytes)

    def _write(self, folder: Folder, name: str, data: bytes) -> None:
        if len(data) > self.part.max_bytes:
            raise ValueError(f"{len(data):,} bytes are more than max_bytes, {self.part.max_bytes:,}")
        folder.write(name, data)

    @contextlib.contextmanager
    def _locked(
        self, field: str, given: str, tmp: str | None, ctx: Context, create: bool = False
    ) -> Iterator[tuple[Folder, str]]:
        """Open the folder of a path, and keep other steps that write there out."""
        limit = self._step.timeout or _LOCK_WAIT
        deadline = time.monotonic() + limit

        def wait() -> None:
            if ctx.cancelled:
                raise StopSignal
            if time.monotonic() > deadline:
                raise StepTimedOut(
                    f"{self._step.kind}.{field}: others have been writing to its folder for {limit:g} s"
                )
            time.sleep(_GLANCE)

        with self._naming(field, given):
            folder, name = self._open(given, tmp, create)
            with folder:
                folder.lock(wait)
                yield folder, name

    def _path(self, field: str, scope: Mapping[str, Any]) -> str | None:
        found = self.fill(field, scope)
        return None if found is None else str(found)


class UseFile(UsesFiles):
    """`file`: creates, edits or reads text files."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.file is not None
        self.part = self._file = step.file
        self._changes = [
            {
                name: self.text(f"file.changes.{index}.{name}", text)
                for name, text in (
                    ("replace", change.replace),
                    ("with", change.with_),
                    ("append", change.append),
                )
                if text is not None
            }
            for index, change in enumerate(step.file.changes)
        ]

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        tmp = scope.get("tmp")
        if (path := self._path("create", scope)) is not None:
            return self._create(path, tmp, self.fill("content", scope), ctx)
        if (path := self._path("edit", scope)) is not None:
            filled = [{name: text.fill(scope) for name, text in each.items()} for each in self._changes]
            return self._edit(path, tmp, filled, ctx)
        wanted = self.fill("read", scope)
        if isinstance(wanted, str):
            try:
                return {"output": self._understood(wanted, self._read("read", wanted, tmp))}
            except StepFailed as error:
                if not glob.has_magic(wanted):
                    raise
                raise StepFailed(f"{error}; patterns are given in a list: read: [{wanted!r}]") from error
        return {"output": self._read_all([str(path) for path in wanted], tmp)}

    def _create(self, path: str, tmp: str | None, content: Any, ctx: Context) -> Result:
        data = (
            content.encode("utf-8", "replace")
            if isinstance(content, str)
            else as_json(content, "file.content")
        )
        with self._locked("create", path, tmp, ctx, create=True) as (folder, name):
            is_there = is_same = False
            with contextlib.suppress(FileNotFoundError):
                is_there, is_same = True, folder.holds(name, data)
            if is_there and not is_same and not self._file.overwrite:
                raise ValueError("there is another file of that name, and `overwrite` is false")
            if not is_same:
                self._write(folder, name, data)
        return {"output": {"path": path, "bytes": len(data), "changed": not is_same}}

    def _edit(self, path: str, tmp: str | None, changes: list[dict[str, str]], ctx: Context) -> Result:
        """Change a file. What it becomes is stored first, so that no change is made twice after a crash."""
        with self._locked("edit", path, tmp, ctx) as (folder, name):
            before = folder.read(name, self.part.max_bytes)
            planned = ctx.recall("edit")
            if planned and planned["after"] == _digest(before):
                return {"output": {"path": path, "bytes": len(before), "changed": True}}
            if planned and planned["before"] != _digest(before):
                raise ValueError(
                    "something else changed it after this step was interrupted; check whether the change is in it, "
                    "then skip the step, or undo the other change and resume"
                )
            after = self._changed(before.decode("utf-8"), changes).encode("utf-8", "replace")
            ctx.once("edit", lambda: {"before": _digest(before), "after": _digest(after)})
            if after != before:
                self._write(folder, name, after)
        return {"output": {"path": path, "bytes": len(after), "changed": after != before}}

    def _changed(self, text: str, changes: list[dict[str, str]]) -> str:
        for index, (declared, change) in enumerate(zip(self._file.changes, changes, strict=True)):
            if "replace" not in change:
                text += change["append"]
                continue
            found = text.count(change["replace"]) if change["replace"] else 0
            if not found or (found > 1 and not declared.all):
                many = f"it is there {found} times; give more of the text around it, or set `all: true`"
                raise ValueError(
                    f"changes.{index}.replace: {many if found else 'there is no such text in it'}"
                )
            text = text.replace(change["replace"], change["with"])
            if len(text) > self.part.max_bytes:
                raise ValueError(f"it becomes larger than {self.part.max_bytes:,} bytes")
        return text

    def _read_all(self, wanted: list[str], tmp: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        left = self.part.max_bytes
        for path in itertools.islice(self._matching(wanted, tmp), MOST_FILES + 1):
            if len(found) == MOST_FILES:
                raise StepFailed(f"file.read: there are more than {MOST_FILES} files; give narrower patterns")
            raw = self._read("read", path, tmp)
            left -= len(raw)
            if left < 0:
                raise StepFailed(f"file.read: the files are larger than {self.part.max_bytes:,} bytes in all")
            found[path] = self._understood(path, raw)
        return found

    def _matching(self, wanted: list[str], tmp: str | None) -> Iterator[str]:
        """Yield paths as they are, and what patterns find: files, and nothing behind a symbolic link."""
        for given in wanted:
            if not glob.has_magic(given):
                yield given
                continue
            base, inside = based(given, self._resources.base, tmp)
            with self._naming("read", given):
                pattern = given if self.part.outside else str(checked_path(inside))
            paths = glob.iglob(pattern, root_dir=base, recursive=True)  # noqa: PTH207
            for path in sorted(itertools.islice(paths, 100 * MOST_FILES)):
                whole = base / path
                if whole.is_file() and (self.part.outside or whole.resolve() == base / path):
                    yield path if inside == given else str(whole)

    def _understood(self, path: str, raw: bytes) -> Any:
        with self._naming("read", path):
            text = raw.decode("utf-8")
            if self._file.output == "json":
                return read_json(text)
        return text.splitlines() if self._file.output == "lines" else text


class UseJsonState(UsesFiles):
    """`json_state`: data in a JSON file that outlives runs."""

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        assert step.json_state is not None
        self.part = self._state = step.json_state

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        tmp = scope.get("tmp")
        if (path := self._path("read", scope)) is not None:
            return {"output": self._found(path, tmp)}
        data, field = self.fill("state", scope), "write" if self._state.write is not None else "merge"
        path = str(self.fill(field, scope))
        with self._locked(field, path, tmp, ctx, create=True) as (folder, name):
            if field == "merge":
                with contextlib.suppress(FileNotFoundError):
                    data = _merged(self._data(folder, name), data)
            self._write(folder, name, as_json(data, "json_state.state"))
        return {"output": data}

    def _found(self, path: str, tmp: str | None) -> Any:
        with self._naming("read", path):
            try:
                folder, name = self._open(path, tmp)
                with folder:
                    return self._data(folder, name)
            except FileNotFoundError:
                if self._state.default is None:
                    raise
                return self._state.default

    def _data(self, folder: Folder, name: str) -> Any:
        return read_json(folder.read(name, self.part.max_bytes).decode("utf-8"))


def as_json(value: Any, field: str) -> bytes:
    """Return data as the text of a JSON file."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"{field}: this cannot be written as JSON: {error}") from None


def _merged(held: Any, more: Any) -> Any:
    """Return data with other data merged into it: fields into fields, and anything else in place of what was."""
    if not isinstance(held, dict) or not isinstance(more, dict):
        return more
    return {**held, **{key: _merged(held.get(key), value) for key, value in more.items()}}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
