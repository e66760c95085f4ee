"""How steps follow each other: what is never reached, never taken, or never ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from holdfast.flows.model import END_ROUTE
from holdfast.flows.reading.checks.names import waits
from holdfast.flows.reading.checks.reading import Placed, Reading
from holdfast.flows.reading.problems import Problem, listed

Followers = Mapping[str, set[str]]


def check_order(reading: Reading) -> Iterator[Problem]:
    """Problems with the ways through a workflow; call it only if every step could be read."""
    yield from _never_taken(reading)
    known = {placed.step.name for placed in reading.outer}
    if len(known) != len(reading.outer):
        return
    waiting = {
        placed.step.name: {name for _, name in waits(placed) if name in known} for placed in reading.outer
    }
    circles = list(_circles({name: targets - {name} for name, targets in waiting.items()}))
    yield from _waiting_circles(reading, circles)
    follow = _followers(reading, waiting, known)
    reached = _reach(_first(reading, waiting, follow), follow)
    stuck = {name for circle in circles for name in circle} | {n for n, t in waiting.items() if n in t}
    if not _leads_astray(reading, known):
        yield from _unreachable(reading, reached, _reach(stuck, follow))
    yield from _endless(reading, follow, reached)


def _never_taken(reading: Reading) -> Iterator[Problem]:
    for placed in reading.outer:
        always = False
        for index, route in enumerate(placed.step.routes or ()):
            if always:
                path = (*placed.path, "routes", index)
                message = f"this route of {placed.title} is never taken: the one before always is"
                hint = "put the route without `when` last"
                yield reading.source.problem(path, message, hint)
            always = always or route.when is None


def _leads_astray(reading: Reading, known: set[str]) -> bool:
    """Whether a name is wrong that would lead somewhere if it were right."""
    routes = {route.to for placed in reading.outer for route in placed.step.routes or ()}
    awaited = {name for placed in reading.outer for _, name in waits(placed)}
    entry = reading.definition.workflow.entry
    return not (routes - {END_ROUTE} | awaited | ({entry} if entry else set())) <= known


def _followers(reading: Reading, waiting: Mapping[str, set[str]], known: set[str]) -> dict[str, set[str]]:
    """The steps that may come after each step; `$end` where the run may end, fail or go elsewhere."""
    ordered = not any(placed.step.after for placed in reading.outer)
    names = [placed.step.name for placed in reading.outer]
    follow: dict[str, set[str]] = {name: set() for name in names}
    for placed, following in zip(reading.outer, [*names[1:], END_ROUTE], strict=True):
        step, routes = placed.step, placed.step.routes or []
        targets = {route.to if route.to in known else END_ROUTE for route in routes}
        if all(route.when is not None for route in routes) and (routes or not ordered):
            targets.add(END_ROUTE)
        elif not routes:
            targets.add(following)
        follow[step.name] = {END_ROUTE} if step.kind == "end" else targets
    for name, sources in waiting.items():
        for source in sources:
            follow[source].add(name)
    return follow


def _first(reading: Reading, waiting: Mapping[str, set[str]], follow: Followers) -> set[str]:
    entry = reading.definition.workflow.entry
    if not any(placed.step.after for placed in reading.outer):
        return {entry if entry in follow and entry is not None else reading.outer[0].step.name}
    led_to = {target for targets in follow.values() for target in targets}
    return {name for name in follow if name not in led_to and not waiting[name]} | {
        name for name in follow if name == entry
    }


def _reach(first: Iterable[str], follow: Followers) -> set[str]:
    reached: set[str] = set()
    coming = list(first)
    while coming:
        name = coming.pop()
        if name not in reached:
            reached.add(name)
            coming += follow.get(name, ())
    return reached


def _unreachable(reading: Reading, reached: set[str], excused: set[str]) -> Iterator[Problem]:
    for placed in reading.outer:
        name = placed.step.name
        if name not in reached and name not in excused:
            hint = f"let a route lead to it (`to: {name}`), or remove it"
            path = (*placed.path, "name")
            yield reading.source.problem(path, f"step {name!r} is never reached", hint)


def _waiting_circles(reading: Reading, circles: list[list[str]]) -> Iterator[Problem]:
    placed_by_name = _by_name(reading)
    for circle in circles:
        placed = placed_by_name[circle[0]]
        message = f"steps wait for each other: {' -> '.join([*circle, circle[0]])}"
        hint = "remove one of these from an `after`"
        yield reading.source.problem((*placed.path, "after"), message, hint)


def _endless(reading: Reading, follow: Followers, reached: set[str]) -> Iterator[Problem]:
    """Circles of steps that no way leads out of."""
    leaving = _reach([END_ROUTE], _turned(follow))
    stuck = {name: follow[name] for name in follow if name in reached and name not in leaving}
    placed_by_name = _by_name(reading)
    for circle in _circles(stuck):
        placed = placed_by_name[circle[-1]]
        path = (*placed.path, "routes") if placed.step.routes else (*placed.path, "name")
        message = f"no way leads out of the circle {' -> '.join([*circle, circle[0]])}"
        hint = f"give {listed(map(repr, circle))} a route with a condition that leads on, or to {END_ROUTE}"
        yield reading.source.problem(path, message, hint, key=bool(placed.step.routes))


def _circles(follow: Followers) -> Iterator[list[str]]:
    """One circle for each group of names that lead to each other, in the order in which they are met."""
    order = {name: place for place, name in enumerate(follow)}
    back = _turned(follow)
    left = set(follow)
    for start in follow:
        circle = _circle(start, follow, order, left) if start in left else []
        if circle:
            yield circle
            left -= _reach(circle, follow) | _reach(circle, back)


def _circle(start: str, follow: Followers, order: Mapping[str, int], left: set[str]) -> list[str]:
    """The first circle that a name leads to, or nothing; what leads to none is removed from `left`."""
    trail = {start: _in_order(start, follow, order)}
    while trail:
        last, targets = next(reversed(trail.items()))
        target = next((target for target in targets if target in left), None)
        if target in trail:
            names = list(trail)
            return names[names.index(target) :]
        if target is None:
            left.remove(last)
            del trail[last]
        else:
            trail[target] = _in_order(target, follow, order)
    return []


def _in_order(name: str, follow: Followers, order: Mapping[str, int]) -> Iterator[str]:
    return iter(sorted((target for target in follow[name] if target in order), key=order.__getitem__))


def _turned(follow: Followers) -> dict[str, set[str]]:
    """What leads to each name."""
    back: dict[str, set[str]] = {}
    for name, targets in follow.items():
        for target in targets:
            back.setdefault(target, set()).add(name)
    return back


def _by_name(reading: Reading) -> dict[str, Placed]:
    return {placed.step.name: placed for placed in reading.outer}
