"""Choosing what follows a step: the first of its routes that holds."""

from __future__ import annotations

from holdfast.data.state import State
from holdfast.flows.errors import NoRoute
from holdfast.flows.language.expressions import Expression, ExpressionError, compile_expression
from holdfast.flows.model import END_ROUTE, Route, Step
from holdfast.flows.scope import Layout, Scope, steps_named, values_named
from holdfast.plan.fingerprint import fingerprint
from holdfast.values import END


class Router:
    """The routing function of one step. `following` is the node that follows if no route holds, if there is one."""

    def __init__(self, step: Step, layout: Layout, following: str | None) -> None:
        self._step, self._layout, self._following = step, layout, following
        self._routes: list[tuple[Route, Expression | None]] = [
            (route, None if route.when is None else compile_expression(route.when))
            for route in step.routes or ()
        ]
        self._names = steps_named({path for _, when in self._routes if when for path in when.names()})

    def choices(self) -> tuple[tuple[str, str], ...]:
        """Where its routes lead, each with the fingerprint of its condition and of the values that it names."""
        workflow = self._layout.definition.workflow
        whens = [
            (route, [] if when is None else values_named(when.names(), workflow))
            for route, when in self._routes
        ]
        told = [(_node(route), fingerprint(repr((route.when, values)))) for route, values in whens]
        return (*told, *([] if self._following is None else [(self._following, fingerprint("else"))]))

    def targets(self) -> list[str]:
        """Every node that may follow."""
        found = [_node(route) for route, _ in self._routes]
        return list(dict.fromkeys([*found, self._following] if self._following is not None else found))

    def __call__(self, state: State) -> str:
        """The node that follows."""
        record = self._layout.view(state, self._step.name)
        if record["status"] == "skipped":
            return self._unconditional()
        facts = {name: record.get(name) for name in ("output", "answer", "status", "error")}
        scope = Scope(self._layout, state, self._names, **facts)
        for number, (route, when) in enumerate(self._routes, 1):
            if when is None or self._holds(number, route, when, scope):
                return _node(route)
        if self._following is None:
            raise self._error("no route holds; add one without `when` (to: $end, perhaps)")
        return self._following

    def _holds(self, number: int, route: Route, when: Expression, scope: Scope) -> bool:
        try:
            return bool(when.evaluate(scope))
        except ExpressionError as error:
            raise self._error(f"route {number} (to: {route.to}) cannot be evaluated: {error}") from None

    def _unconditional(self) -> str:
        """Where a step that was skipped leads to: its route without condition, or else what comes next."""
        for route, when in self._routes:
            if when is None:
                return _node(route)
        if self._following is not None:
            return self._following
        raise self._error("it was skipped, and none of its routes is without a condition; add one")

    def _error(self, reason: str) -> NoRoute:
        return NoRoute(self._step.name, f"step {self._step.name!r}: {reason}")


def _node(route: Route) -> str:
    return END if route.to == END_ROUTE else route.to
