"""Runs to be put into capsules, and capsules made by hand, as an attacker would."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import END, START, App, ExecutionError, Send, StateGraph
from holdfast.capsules import export_run
from holdfast.capsules.format import Facts, Kind, Writer, payload_of, stopped
from holdfast.journal.encoding import Track, decode_records
from holdfast.journal.fold import apply
from holdfast.journal.journal import genesis, link
from holdfast.journal.run_state import RunState
from holdfast.journal.sealing import SEALED, is_sealed
from holdfast.stores.base import Entry, Store
from holdfast.values import RunStatus
from holdfast.views.plain import CODEC
from tests.graphs import Log

KEY = b"\x01\x02\x03\x04\x05\x06\x07\x08"


def exported(store: Store, run: str, folder: Path, name: str = "run.holdfast", **options: Any) -> Path:
    """A run in a capsule."""
    path = folder / name
    export_run(store, run, path, overwrite=True, **options)
    return path


def varied(
    store: Store | str, work: dict[str, str], edges: Sequence[tuple[str, str]] = (), turns: int = 0
) -> App:
    """a, b and c one after the other, items of b side by side, a sub-graph, and a way back to a for some turns.

    `work` says what each of them does: ok, ask, fail, large, items.
    """

    def node(name: str) -> Callable[..., Any]:
        def run(state: Any, ctx: Any) -> Any:
            match work.get(name, "ok"):
                case "fail":
                    raise ValueError(name)
                case "ask":
                    return {"log": [str(ctx.ask("well?", name=name))]}
                case "large":
                    return {"log": [name * 2000]}
                case _:
                    return {"log": [name]}

        return run

    def on(state: Any) -> Any:
        seen = list(state.get("log", ())).count("c")
        if seen and seen <= turns:
            return "a"
        return [Send("item", {"n": number}, key=str(number)) for number in range(3)]

    inner = StateGraph(Log, name="inner").add_node("x", node("x")).add_node("y", node("y"))
    inner.add_edge(START, "x").add_edge("x", "y")
    graph = StateGraph(Log, name="varied", max_iterations=60)
    for name in ("a", "b", "c", "item"):
        graph.add_node(name, node(name))
    graph.add_node("sub", inner)
    for source, target in dict.fromkeys([(START, "a"), ("a", "b"), ("b", "sub"), ("sub", "c"), *edges]):
        graph.add_edge(source, target)
    graph.add_conditional_edges("c", on)
    graph.add_edge("item", END)
    return graph.compile(store)


def driven(app: App, run: str, *, begin: bool) -> str:
    """Begin a run, or go on with it, whatever comes of it; how it stands then."""
    try:
        if begin:
            return app.invoke({"n": 0}, run_id=run).status
        return app.resume(run).status
    except ExecutionError:
        return "failed"


def sections(path: Path, *parts: tuple[Kind, bytes]) -> Path:
    """A capsule with any sections, each with its right checksum."""
    with path.open("wb") as file:
        writer = Writer(file)
        for kind, payload in parts:
            writer.add(kind, payload)
        writer.close()
    return path


def forged(
    path: Path,
    bodies: Sequence[bytes],
    run: str = "forged",
    marks: Sequence[bytes | None] = (),
    **facts: Any,
) -> Path:
    """A capsule whose journal has any bodies, with right checksums and a right chain; sealed ones get it inserted."""
    chain, parts = genesis(run, KEY), list[tuple[Kind, bytes]]()
    known: dict[str, Any] = {
        **claims_of(bodies),
        "created_at": 1.0,
        "updated_at": 2.0,
        "tags": (),
        "parent": b"",
        "first": 1,
        "last": len(bodies),
    }
    own = Facts(run=run, key=KEY, **{**known, **facts})
    parts.append((Kind.FACTS, payload_of(own)))
    for seq, body in enumerate(bodies, 1):
        mark = marks[seq - 1] if marks else None
        body = SEALED + chain + body[1:] if is_sealed(body) else body
        chain = link(chain, seq, 1.0, mark, body)
        parts.append((Kind.ENTRY, payload_of(Entry(seq, 1.0, chain, body, mark))))
    return sections(path, *parts)


def claims_of(bodies: Sequence[bytes]) -> dict[str, Any]:
    """What facts have to say of a run with such a journal, as far as that can be read."""
    found, track = RunState(workflow="w"), Track()
    with contextlib.suppress(Exception):
        for body in bodies:
            for record in decode_records(body, track, CODEC):
                apply(found, record, 1.0)
    is_known = isinstance(found.workflow, str) and found.status in list(RunStatus)
    if not is_known:
        return {"workflow": "w", "status": "paused", "under_way": False}
    return {
        "workflow": found.workflow,
        "status": stopped(found.status),
        "under_way": found.status == RunStatus.RUNNING,
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
