"""The files that a workflow is made of: as they are on disk, or as a run has saved them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.workflows.model import Definition
from holdfast.workflows.reading.problems import Position, Problem, WorkflowInvalid
from holdfast.workflows.reading.source import Source, read_source
from holdfast.workflows.reading.validation import parse

MAX_BYTES = 1_000_000
"""How much the sub-workflows of one workflow may have in all, since every run keeps a copy of them."""

PREFER = ("file", "saved")


class WorkflowFiles:
    """Reads a workflow's own file, and those of its sub-workflows, each once.

    `saved` is what `as_saved` gave for an earlier reading. It is taken for files that are gone, or, with
    `prefer="saved"`, for all files: nothing is read, or looked for, on this machine's disk.
    """

    def __init__(
        self,
        root: Path,
        env: Mapping[str, str],
        saved: Mapping[str, Any] | None = None,
        prefer: str = "file",
    ) -> None:
        if prefer not in PREFER:
            raise HoldfastError(f"prefer must be 'file' or 'saved', not {prefer!r}")
        self._root, self._env, self._prefer = root, env, prefer
        self._saved: Mapping[str, Any] = saved or {}
        self._folder = root.resolve().parent
        self._read: dict[str, Source] = {}

    def root(self, text: str | None = None) -> Source:
        """Return the workflow's own file, or `text` in its place."""
        if text is None and "source" in self._saved and self._takes_saved(self._root):
            return self._kept(self._root, self._saved)
        if text is None and self._prefer == "saved":
            raise HoldfastError("the workflow that this run was started with is not stored with it")
        return read_source(self._root, env=self._env, text=text, has_file=self.has)

    def definition(self, path: Path) -> Definition:
        """Return the workflow in another file."""
        return parse(self._source(path))

    def has(self, path: Path) -> bool:
        """Return True if there is such a file, on disk or saved."""
        return self._name(path) in self._others or (self._prefer == "file" and path.is_file())

    def as_saved(self, definition: Definition) -> dict[str, Any]:
        """Return the texts of the sub-workflows of a workflow, on all levels, by their paths from its own folder."""
        found: dict[str, Any] = {}
        todo = [(self._folder, definition)]
        while todo:
            folder, outer = todo.pop()
            for path in _sub_workflows(folder, outer):
                name = self._name(path)
                if name not in found:
                    source = self._source(path)
                    found[name] = {"source": source.text, "included": dict(source.included)}
                    todo.append((path.parent, parse(source)))
        return found

    @property
    def _others(self) -> Mapping[str, Any]:
        files = self._saved.get("files")
        return files if isinstance(files, Mapping) else {}

    def _source(self, path: Path) -> Source:
        name = self._name(path)
        if name not in self._read:
            saved = self._others.get(name)
            if isinstance(saved, Mapping) and self._takes_saved(path):
                self._read[name] = self._kept(path, saved)
            elif self._prefer == "saved":
                message = f"the sub-workflow {name!r} is not stored with the run"
                raise WorkflowInvalid([Problem(message, Position(str(path), 1, 1), "", "start a new run")])
            else:
                self._read[name] = read_source(path, env=self._env, has_file=self.has)
            self._check_size(path)
        return self._read[name]

    def _takes_saved(self, path: Path) -> bool:
        return self._prefer == "saved" or not path.is_file()

    def _kept(self, path: Path, saved: Mapping[str, Any]) -> Source:
        included = dict(saved.get("included") or {})
        text = str(saved["source"])
        only = self._prefer == "saved"
        return read_source(
            path, env=self._env, text=text, included=included, only_included=only, has_file=self.has
        )

    def _name(self, path: Path) -> str:
        return PurePath(os.path.relpath(path.resolve(), self._folder)).as_posix()

    def _check_size(self, path: Path) -> None:
        texts = (text for source in self._read.values() for text in (source.text, *source.included.values()))
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > MAX_BYTES:
            message = (
                f"with this file the sub-workflows have {size:,} bytes; every run keeps a copy of them, "
                f"which may have {MAX_BYTES:,}"
            )
            hint = "read large texts and data in a step, from files of their own"
            raise WorkflowInvalid([Problem(message, Position(str(path), 1, 1), "", hint)])


def _sub_workflows(folder: Path, definition: Definition) -> Iterator[Path]:
    for step in definition.steps:
        for each in (step, *step.members):
            if each.workflow is not None:
                yield (folder / each.workflow.file).resolve()
