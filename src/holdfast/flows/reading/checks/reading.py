"""A definition together with the file it was read from: what all checks look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.flows.model import Definition, Parallel, Step
from holdfast.flows.reading.shapes import MADE_UP
from holdfast.flows.reading.source import DataPath, Source


@dataclass(frozen=True, slots=True)
class Placed:
    """A step and its path in the file; `inside` is the name of the parallel step it is a member of."""

    path: DataPath
    step: Step
    inside: str | None = None

    @property
    def title(self) -> str:
        """The step in words."""
        return f"step {self.step.name!r}" if not _is_made_up(self.step.name) else f"step {_count(self.path)}"


class Reading:
    """A definition, its file, and which of its steps could not be read in full (`unread`)."""

    def __init__(
        self, source: Source, definition: Definition, unread: frozenset[DataPath], names: frozenset[str]
    ) -> None:
        self.source, self.definition, self.unread = source, definition, unread
        self.steps = tuple(_placed(definition.steps, ("steps",), None))
        self.outer = tuple(placed for placed in self.steps if placed.inside is None)
        given = [placed.step.name for placed in self.steps if not _is_made_up(placed.step.name)]
        self.names = dict.fromkeys([*given, *names])
        """Every name that a step has or was meant to have."""
        self.all_named = len(self.steps) - len(given) <= len(names - set(given))
        self.members = {
            placed.step.name: placed.inside
            for placed in self.steps
            if placed.inside is not None and not _is_made_up(placed.inside)
        }

    def declared(self, field: str) -> frozenset[str] | None:
        """The names under a field of `workflow`, well or badly declared; `None` if that cannot be told."""
        workflow = self.source.data.get("workflow")
        names = workflow.get(field) or {} if isinstance(workflow, dict) else None
        return frozenset(names) if isinstance(names, dict) else None

    def read(self) -> Iterator[Placed]:
        """The steps whose kind could be read."""
        return (placed for placed in self.steps if placed.path not in self.unread)


def _is_made_up(name: str) -> bool:
    return name.startswith(MADE_UP)


def _count(path: DataPath) -> int:
    return int(path[-1]) + 1


def _placed(steps: list[Step], path: DataPath, inside: str | None) -> Iterator[Placed]:
    for index, step in enumerate(steps):
        yield Placed((*path, index), step, inside)
        if isinstance(step.parallel, Parallel):
            yield from _placed(step.parallel.steps, (*path, index, "parallel", "steps"), step.name)
        elif step.parallel is not None:
            yield from _placed(step.parallel, (*path, index, "parallel"), step.name)
