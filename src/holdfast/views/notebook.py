"""Runs and graphs as HTML for notebooks, in which all that workflows wrote is escaped text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from holdfast.errors import CodecError, HoldfastError
from holdfast.views.drawing import COLOURS, svg
from holdfast.views.plain import escaped, preview

if TYPE_CHECKING:
    from holdfast.views.comparison import StateDifference
    from holdfast.views.history import History

MOST_ROWS = 100
"""How many rows a table has; it says how many are left out."""
WIDEST = 200
"""How many characters of a value are shown."""

_CELL = 'style="text-align:left;vertical-align:top;padding:2px 10px 2px 0;white-space:pre-wrap"'


def _text(value: object) -> str:
    """Return text as HTML shows it, without characters that do not show as themselves."""
    return escape(escaped(str(value)))


def _value(value: Any) -> str:
    try:
        return _text(preview(value, WIDEST))
    except (CodecError, RecursionError):
        return "<i>unreadable here</i>"


def _status(status: str) -> str:
    colour = COLOURS.get(
        {"paused": "waiting", "cancelled": "skipped"}.get(status, status), COLOURS["pending"]
    )[1]
    return f'<b style="color:{colour}">{_text(status)}</b>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML already."""
    every = list(rows)
    head = "".join(f"<th {_CELL}>{escape(column)}</th>" for column in columns)
    cells = ("".join(f"<td {_CELL}>{cell}</td>" for cell in row) for row in every[:MOST_ROWS])
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    left = f"<p>… and {len(every) - MOST_ROWS} more</p>" if len(every) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left}"


def outcome_html(outcome: Any) -> str:
    """Return an outcome: how the run ended, what it waits for or why it failed, and its state."""
    state, parts = outcome.state, [f"<p>{_status(str(outcome.status))} {_text(summary(outcome))}</p>"]
    if outcome.error is not None:
        parts.append(f"<p>{_text(outcome.error)}</p>")
    for pause in outcome.pauses:
        parts.append(
            f"<p>waits for <code>{_text(pause.name or pause.node)}</code>: {_text(pause.prompt)}</p>"
        )
    parts += [f"<p>warning: {_text(warning)}</p>" for warning in outcome.warnings]
    parts.append(_table(("key", "value"), ((f"<code>{_text(key)}</code>", _of(state, key)) for key in state)))
    return f"<div>{''.join(parts)}</div>"


def _of(state: Mapping[str, Any], key: str) -> str:
    try:
        return _value(state[key])
    except CodecError:
        return "<i>unreadable here</i>"


def summary(outcome: Any) -> str:
    """Return the run of an outcome, and what its execution did, in a few words."""
    stats = outcome.stats
    kept = f", {stats.steps_kept} kept" if stats.steps_kept else ""
    reused = f", {stats.steps_reused} reused" if stats.steps_reused else ""
    cost = f", ${stats.cost:.4g}" if stats.cost else ""
    return f"run {outcome.run_id}: {stats.steps_run} steps run{kept}{reused}, {stats.seconds:.1f} s{cost}"


def graph_html(graph: Any, problems: Iterable[str] = ()) -> str:
    """Return the drawing of a graph, and what is wrong with it."""
    try:
        drawn = svg(graph)
    except (HoldfastError, KeyError) as error:
        drawn = f"<p>{_text(error)}</p>"
    wrong = "".join(f"<li>{_text(problem)}</li>" for problem in problems)
    return f"<div>{drawn}{f'<ul>{wrong}</ul>' if wrong else ''}</div>"


def function_html(workflow: Any) -> str:
    """Return a workflow that is a function: its name, its signature, and the steps that it names."""
    head = f"<p>workflow <b>{_text(workflow.name)}</b><code>{_text(workflow.signature)}</code></p>"
    rows = [
        (f"<code>{_text(each.name)}</code>", f"<code>{_text(each.signature)}</code>")
        for each in workflow.steps
    ]
    steps = _table(("step", "signature"), rows) if rows else "<p>it names no steps</p>"
    return f"<div>{head}{steps}</div>"


def history_html(history: History) -> str:
    """Return a page of a run's checkpoints as a table, newest first."""
    rows = [
        (
            _text("" if point.wave is None else f"@{point.wave}"),
            _text(point.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")),
            _text(", ".join(point.nodes) or point.kind),
            _text(", ".join(point.next)),
            _text(", ".join(change.key for change in point.changes)),
            f"<code>{_text(point.id)}</code>",
        )
        for point in history.points
    ]
    title = f"<p>{_status(history.status)} {_text(history.workflow)}: run {_text(history.run_id)}</p>"
    more = "<p>… there are older checkpoints</p>" if history.more else ""
    columns = ("wave", "time", "finished", "next", "changed", "checkpoint")
    return f"<div>{title}{_table(columns, rows)}{more}</div>"


def difference_html(difference: StateDifference) -> str:
    """Return what differs between two checkpoints, key by key."""
    before, after = difference.before, difference.after
    rows = [
        (
            f"<code>{_text(key)}</code>",
            *(_value(side[key]) if key in side else "" for side in (before, after)),
        )
        for key in dict.fromkeys((*before, *after))
    ]
    rows += [(_text(name), _value(one), _value(other)) for name, (one, other) in difference.facts.items()]
    rows += [(f"<code>{_text(key)}</code>", _text(why), "") for key, why in difference.not_compared.items()]
    if not rows:
        return "<div><p>no differences</p></div>"
    return f"<div>{_table(('key', 'before', 'after'), rows)}</div>"
