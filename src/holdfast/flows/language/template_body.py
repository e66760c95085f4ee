"""The text, `{{ }}`, `{% if %}`, `{% for %}` and `{% set %}` of templates, and rendering them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from holdfast.flows.language.evaluation import Evaluation, Part, Place
from holdfast.flows.language.plain import Misuse, describe, elements, exact, kind, size, truth
from holdfast.flows.language.template_syntax import Reader
from holdfast.flows.language.writing import as_text

MAX_RENDERED = 2_000_000

_TAGS: Mapping[type, str] = {
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.FilterBlock: "filter",
    nodes.With: "with",
    nodes.AssignBlock: "set … endset",
}


class Rendering(Evaluation):
    """One rendering: an evaluation that collects text, as much as is allowed."""

    def __init__(self, scope: Mapping[str, Any], place: Callable[[Any], str] | None) -> None:
        super().__init__(scope)
        self._place = place
        self._length = 0
        self.written: list[str] = []

    def write(self, text: str) -> None:
        """Add text, or refuse it before there is too much."""
        self.characters(len(text))
        self._length += len(text)
        if self._length > MAX_RENDERED:
            raise Misuse(f"the text would have more than {MAX_RENDERED:,} characters")
        self.written.append(text)

    def put(self, value: Any) -> None:
        """Add a value in the way that was asked for."""
        self.write(as_text(self, value) if self._place is None else self._place(value))


Statement = Callable[[Any], None]


class BodyReader(Reader):
    """Turns jinja2's nodes of statements into functions that write."""

    def block(self, body: Sequence[nodes.Node]) -> Statement:
        """Several statements, one after the other."""
        statements: list[Statement] = []
        for node in body:
            try:
                statements += self._statements(node)
            except Misuse as error:
                error.where = error.where or self.place(node)
                raise

        def run(rendering: Rendering) -> None:
            for statement in statements:
                statement(rendering)

        return run

    def _statements(self, node: nodes.Node) -> Iterator[Statement]:
        match node:
            case nodes.Output():
                yield from (self._output(child) for child in node.nodes)
            case nodes.If():
                yield self._if(node)
            case nodes.For():
                yield self._for(node)
            case nodes.Assign():
                yield self._set(node)
            case _:
                tag = _TAGS.get(type(node), type(node).__name__.lower())
                raise Misuse(f"{{% {tag} %}} is not available in templates; there are if, for and set")

    def _output(self, node: nodes.Node) -> Statement:
        if isinstance(node, nodes.TemplateData):
            text = node.data
            return placed(self.place(node), lambda rendering: rendering.write(text))
        part = self.part(node)
        return placed(self.place(node), lambda rendering: rendering.put(part(rendering)))

    def _if(self, node: nodes.If) -> Statement:
        branches = [(self.part(each.test), self.block(each.body)) for each in (node, *node.elif_)]
        otherwise = self.block(node.else_)

        def run(rendering: Rendering) -> None:
            for test, body in branches:
                if truth(test(rendering)):
                    return body(rendering)
            return otherwise(rendering)

        return placed(self.place(node.test), run)

    def _set(self, node: nodes.Assign) -> Statement:
        value = self.part(node.node)
        names = self._targets(node.target)

        def run(rendering: Rendering) -> None:
            rendering.items(len(rendering.local))
            rendering.local = {**rendering.local, **_unpacked(names, value(rendering))}

        return placed(self.place(node), run)

    def _for(self, node: nodes.For) -> Statement:
        if node.recursive:
            raise Misuse("a recursive loop is not available in templates; do it in a step before")
        values, outside = self.part(node.iter), set(self.bound)
        names = self._targets(node.target)
        test = None if node.test is None else self.part(node.test)
        self.bound.add("loop")
        body = self.block(node.body)
        self.bound = outside
        otherwise = self.block(node.else_)

        def run(rendering: Rendering) -> None:
            rounds = _rounds(rendering, values(rendering), names, test)
            outer = rendering.local
            for index, found in enumerate(rounds):
                rendering.charge(1)
                rendering.items(len(outer))
                rendering.local = {**outer, **found, "loop": _loop(index, len(rounds))}
                body(rendering)
            rendering.local = outer
            if not rounds:
                otherwise(rendering)

        return placed(self.place(node.iter), run)

    def _targets(self, target: nodes.Node) -> str | list[str]:
        """The name or names that are given values, which are no longer those of the scope."""
        names = target.items if isinstance(target, nodes.Tuple) else [target]
        if not all(isinstance(each, nodes.Name) for each in names):
            misuse = Misuse("only plain names can be given a value")
            misuse.where = self.place(target)
            raise misuse
        found = [each.name for each in names if isinstance(each, nodes.Name)]
        self.bound.update(found)
        return found if isinstance(target, nodes.Tuple) else found[0]


def placed(place: Place, run: Statement) -> Statement:
    """The statement, which says where it stands if it fails."""

    def statement(rendering: Rendering) -> None:
        try:
            rendering.charge(1)
            run(rendering)
        except Misuse as error:
            error.where = error.where or place
            raise

    return statement


def _rounds(
    rendering: Rendering, values: Any, names: str | list[str], test: Part | None
) -> list[dict[str, Any]]:
    """What each round of a loop gives to its names."""
    items = elements(values)
    rendering.new_list(size(values))
    rounds, outer = [], rendering.local
    for item in items:
        found = _unpacked(names, exact(item))
        if test is not None:
            rendering.items(len(outer))
            rendering.local = {**outer, **found}
        if test is None or truth(test(rendering)):
            rounds.append(found)
    rendering.local = outer
    return rounds


def _unpacked(names: str | list[str], value: Any) -> dict[str, Any]:
    if isinstance(names, str):
        return {names: value}
    if kind(value) != "list" or size(value) != len(names):
        raise Misuse(f"{', '.join(names)} need a list of {len(names)}, not {describe(value)}")
    return dict(zip(names, map(exact, elements(value)), strict=True))


def _loop(index: int, length: int) -> dict[str, Any]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == length - 1,
        "length": length,
        "revindex": length - index,
        "revindex0": length - index - 1,
    }
