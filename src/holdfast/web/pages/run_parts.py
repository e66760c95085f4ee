"""The pages below a run: its steps in time, its events, one step, its state at a checkpoint, changes, whole values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.graph.graph import base_name
from holdfast.service.closeup import Points
from holdfast.service.reading import RequestInvalid
from holdfast.views.plain import plain
from holdfast.web.pages import run_actions
from holdfast.web.pages.rendering import Asked, Page, Pages, run_path
from holdfast.web.pages.run_bars import bars
from holdfast.web.pages.wording import Shown, shown

ON_A_PAGE = 100
"""How many rows a page of executions or events has."""

WINDOW = 100_000
"""How many characters of a value one page shows."""

MOST_KEYS = 200
MOST_LINES = 400
"""How many lines of a difference a page shows."""


def routes(pages: Pages) -> list[BaseRoute]:
    """Return the routes of the pages below a run."""
    return [
        pages.view("/runs/{run_id}/timeline", show_timeline),
        pages.view("/runs/{run_id}/events", show_events),
        pages.view("/runs/{run_id}/steps/{step}", show_step),
        pages.view("/runs/{run_id}/state", show_state),
        pages.view("/runs/{run_id}/changes", show_changes),
        pages.view("/runs/{run_id}/value", show_value),
        pages.raw("/runs/{run_id}/capsule", download, role="operate"),
    ]


def show_timeline(asked: Asked) -> Page:
    """Show a page of the executions of steps, in the order they began."""
    first = _number(asked, "first", 0)
    found = bars(asked.service.waterfall(asked.run_id, first, ON_A_PAGE))
    links = {
        "earlier": run_path(asked.run_id, "timeline", first=max(0, first - ON_A_PAGE)) if first else None,
        "later": run_path(asked.run_id, "timeline", first=found["last"])
        if found["last"] < found["total"]
        else None,
        "final": run_path(asked.run_id, "timeline", first=max(0, found["total"] - ON_A_PAGE)),
    }
    return _page(asked, "run_timeline.html", "Steps in time", "timeline", bars=found, **links)


def show_events(asked: Asked) -> Page:
    """Show the last events of a run, or those before one of them."""
    before = asked.query.get("before") or None
    found = asked.service.tail(asked.run_id, before, ON_A_PAGE)
    older = found["before"] and run_path(asked.run_id, "events", before=found["before"])
    facts = {"events": found["events"][::-1], "older": older, "is_newest": before is None}
    return _page(asked, "run_events.html", "Events", "events", **facts)


def show_step(asked: Asked) -> Page:
    """Show a step: what it could read, what it made, why it failed, how often it was tried, what it cost."""
    name = asked.step
    found = asked.service.closeup(asked.run_id, name)
    seen = asked.service.keys(asked.run_id, found["before"]) if found["before"] else []
    spans = bars({"spans": found["spans"][-ON_A_PAGE:], "first": 0, "total": 0, "now": found["now"]})
    return _page(
        asked,
        "run_step.html",
        name,
        "run",
        step=found,
        bars=spans,
        events=found["events"][::-1][:ON_A_PAGE],
        seen=seen[:MOST_KEYS],
        actions=run_actions.step_actions(asked, found),
    )


def show_state(asked: Asked) -> Page:
    """Show the state at a checkpoint, which is chosen with a slider, or by its id."""
    points = asked.service.points(asked.run_id)
    number = _place(asked, points, "at", len(points))
    point = points[number - 1] if points else None
    found = asked.service.keys(asked.run_id, None if point is None else point["checkpoint_id"])
    return _page(
        asked,
        "run_state.html",
        "State",
        "state",
        keys=found[:MOST_KEYS],
        key_count=len(found),
        point=point,
        next_steps=_steps(point["next"]) if point else "",
        number=number,
        total=len(points),
        name=_named(point),
        earlier=run_path(asked.run_id, "state", at=number - 1) if number > 1 else None,
        later=run_path(asked.run_id, "state", at=number + 1) if number < len(points) else None,
    )


def show_changes(asked: Asked) -> Page:
    """Show what differs between two checkpoints of a run."""
    points = asked.service.points(asked.run_id)
    to = _place(asked, points, "to", len(points))
    since = _place(asked, points, "from", max(1, to - 1))
    lines: Sequence[Line] = ()
    is_cut, found = False, None
    if points:
        found = asked.service.diff(points[since - 1]["checkpoint_id"], points[to - 1]["checkpoint_id"])
        every = lines_of(found["state"])
        lines = [line for _, line in zip(range(MOST_LINES), every, strict=False)]
        is_cut = next(every, None) is not None
    return _page(
        asked,
        "run_changes.html",
        "Changes",
        "changes",
        difference=found,
        lines=lines,
        is_cut=is_cut,
        since=since,
        to=to,
        total=len(points),
        names=(_named(points[since - 1]), _named(points[to - 1])) if points else ("", ""),
        one=points[since - 1] if points else None,
        other=points[to - 1] if points else None,
    )


def show_value(asked: Asked) -> Page:
    """Show a whole value, so many characters at a time."""
    key, checkpoint = asked.query.get("key", ""), asked.query.get("at") or None
    name, value = _value(asked, key, checkpoint)
    text = shown(value, 1 << 30).text
    start = min(_number(asked, "from", 0), max(0, len(text) - 1))

    def link(place: int) -> str:
        given = {name: asked.query[name] for name in ("of", "step", "key", "at") if asked.query.get(name)}
        return run_path(asked.run_id, "value", **given, **({"from": place} if place else {}))

    return _page(
        asked,
        "run_value.html",
        name,
        "run",
        value_name=name,
        part=Shown(text[start : start + WINDOW]),
        start=start,
        end=min(len(text), start + WINDOW),
        size=len(text),
        earlier=link(max(0, start - WINDOW)) if start else None,
        later=link(start + WINDOW) if start + WINDOW < len(text) else None,
    )


def _value(asked: Asked, key: str, checkpoint: str | None) -> tuple[str, Any]:
    """Return the name and the value that is asked for."""
    service, run_id = asked.service, asked.run_id
    match asked.query.get("of"):
        case "inputs" | "output" as what:
            return what.capitalize(), service.run(run_id)[what]
        case "step":
            name = asked.query.get("step", "")
            return f"Output of {name}", service.step(run_id, name)["output"]
        case "arguments" | "result" as what:
            call = service.call(run_id, asked.query.get("step", ""))
            name = f"{'Arguments' if what == 'arguments' else 'Output'} of {call['label']}"
            return name, plain(call.get("arguments" if what == "arguments" else "output"))
        case "state":
            found = service.state(run_id, checkpoint, [key])["state"]
            return key, found[key]
        case what:
            raise RequestInvalid(
                f"there is no value {what!r:.80}; there are inputs, output, step, arguments, result, state"
            )


async def download(asked: Asked) -> Response:
    """Return the run as a capsule in a file."""
    data = await run_in_threadpool(asked.service.export, asked.run_id)
    name = "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in "-_.") else "_" for sign in asked.run_id
    )
    headers = {
        "content-disposition": f'attachment; filename="{name[:80]}.capsule"',
        "cache-control": "no-store",
    }
    return Response(data, media_type="application/octet-stream", headers=headers)


def _page(asked: Asked, template: str, title: str, tab: str, **facts: Any) -> Page:
    status = {**asked.service.status(asked.run_id), "begins": asked.service.begins(asked.run_id)}
    return Page(template, f"{title} · {asked.run_id}", {"run": status, "tab": tab, "heading": title, **facts})


def _number(asked: Asked, name: str, usual: int) -> int:
    text = asked.query.get(name, "")
    if not text:
        return usual
    if not text.isdecimal() or len(text) > 12:
        raise RequestInvalid(f"{name} must be a whole number, not {text!r:.80}")
    return int(text)


def _place(asked: Asked, points: Points, name: str, usual: int) -> int:
    """Return the number of a checkpoint that a request names: by its number, counted from 1, or by its id."""
    text = asked.query.get(name, "")
    if "-" in text:
        return points.number(text)
    return max(1, min(_number(asked, name, usual), len(points)))


def _named(point: Mapping[str, Any] | None) -> str:
    """Return what a checkpoint is called: after which steps it was saved."""
    if point is None:
        return "no checkpoint"
    if point["nodes"]:
        return f"after {_steps(point['nodes'])}"
    return f"before {_steps(point['next'])}" if point["next"] else "at the end"


def _steps(nodes: Sequence[str]) -> str:
    """Return nodes as the steps that they belong to; one that is there several times is named once."""
    times = Counter(base_name(name) for name in nodes)
    named = [name if count == 1 else f"{name} (× {count})" for name, count in times.items()]
    return ", ".join(named[:5]) + (" …" if len(named) > 5 else "")


# Differences as lines.


class Line(tuple[int, str, str]):
    """A line of a difference: how deep it is, its sign (`+`, `-`, `~` or none), and its text."""

    __slots__ = ()


def lines_of(change: Mapping[str, Any] | None, name: str = "state", depth: int = 0) -> Iterator[Line]:
    """Yield the lines of a change, as `diff` has it."""
    if change is None:
        return
    match change["kind"]:
        case "value":
            yield Line((depth, "-", f"{name}: {_short(change['from'])}"))
            yield Line((depth, "+", f"{name}: {_short(change['to'])}"))
        case "span":
            around = change["lead"], change["trail"]
            yield Line((depth, "-", f"{name}: …{around[0]}{change['removed']}{around[1]}…"))
            yield Line((depth, "+", f"{name}: …{around[0]}{change['added']}{around[1]}…"))
        case "text":
            yield Line((depth, "~", name))
            for hunk in change["hunks"]:
                for line in hunk["lines"]:
                    yield Line((depth + 1, line[0].strip(), line[1:]))
        case "map":
            yield from _inside(change, name, depth, _map_lines)
        case "list":
            yield from _inside(change, name, depth, _list_lines)
        case "set":
            yield Line((depth, "~", name))
            yield from (Line((depth + 1, "-", _short(each))) for each in change["removed"])
            yield from (Line((depth + 1, "+", _short(each))) for each in change["added"])
        case _:
            yield from lines_of(change["change"], f"{name} ({change['type']})", depth)


def _inside(
    change: Mapping[str, Any],
    name: str,
    depth: int,
    lines: Callable[[Mapping[str, Any], int], Iterator[Line]],
) -> Iterator[Line]:
    is_whole = depth == 0 and name == "state"
    if not is_whole:
        yield Line((depth, "~", name))
    yield from lines(change, depth if is_whole else depth + 1)


def _map_lines(change: Mapping[str, Any], depth: int) -> Iterator[Line]:
    for key, value in change["removed"].items():
        yield Line((depth, "-", f"{key}: {_short(value)}"))
    for key, value in change["added"].items():
        yield Line((depth, "+", f"{key}: {_short(value)}"))
    for key, inner in change["changed"].items():
        yield from lines_of(inner, key, depth)


def _list_lines(change: Mapping[str, Any], depth: int) -> Iterator[Line]:
    for edit in change["edits"]:
        if edit["edit"] == "changed":
            yield from lines_of(edit["change"], f"[{edit['after']}]", depth)
            continue
        sign = "-" if edit["edit"] == "removed" else "+"
        place = edit["before"] if sign == "-" else edit["after"]
        for number, item in enumerate(edit["items"]):
            yield Line((depth, sign, f"[{place + number}]: {_short(item)}"))


def _short(value: Any, most: int = 400) -> str:
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        pieces.append(piece[: most + 1])
        size += len(piece)
        if size > most:
            return "".join(pieces)[:most] + "…"
    return "".join(pieces)
