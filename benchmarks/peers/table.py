"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable

from results import FLOOR, NAMES, US, Results
from workloads import RESUMES, WARM, WORKLOADS

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def page(results: Results) -> str:
    """Return all tables, and the rows in which Holdfast is not ahead."""
    parts = [
        "### Wall time\n\n"
        "The median of the rounds ± half of the range, and the median of the ratios to Holdfast: "
        "above 1, Holdfast is ahead.\n\n" + figures(results, "wall", seconds),
        "### CPU time of the process\n\nWithout the CPU time of the server.\n\n"
        + figures(results, "cpu", seconds),
        "### Bytes on disk afterwards\n\n"
        "The growth of the database, in whole pages.\n\n" + figures(results, "used", size),
        "### Bytes written\n\nTo files, or to the server's WAL.\n\n" + figures(results, "written", size),
    ]
    if results.syncs:
        parts.append(
            "### Syncs per step\n\nPer additional step; below 1, parallel steps share syncs.\n\n"
            + syncs(results)
        )
    parts.append("### Where Holdfast is not ahead\n\n" + ("\n".join(behind(results)) or "Nowhere."))
    parts.append("### Versions and machine\n\n" + facts(results))
    return "\n\n".join(parts) + "\n"


def figures(results: Results, figure: str, show: Callable[[float], str]) -> str:
    """Return one figure of all contenders, a row for each store and workload."""
    contenders = results.contenders()
    rows = []
    for store, workload in rows_of(results, figure):
        cells = []
        for contender in contenders:
            median = results.median(store, workload, contender, figure)
            if median is None:
                cells.append("")
                continue
            ratio = results.ratio(store, workload, contender, figure)
            spread = f" ±{results.spread(store, workload, contender, figure):.0%}" if figure == "wall" else ""
            times = "" if contender == US or ratio is None else f", **{times_of(ratio)}**"
            cells.append(f"{show(median)}{spread}{times}")
        rows.append([title(results, workload), STORES[store], *cells])
    return lines(["workload", "store", *(NAMES[name] for name in contenders)], rows)


def rows_of(results: Results, figure: str) -> list[tuple[str, str]]:
    """Yield the stores and workloads that have this figure."""
    return [
        (store, workload)
        for store in results.stores()
        for workload in results.workloads()
        if workload not in RESUMES or figure in ("wall", "cpu")
    ]


def title(results: Results, workload: str) -> str:
    """Return the name of a workload with its sizes."""
    sizes = results.sizes[workload]
    match workload:
        case "chain":
            return f"chain of {sizes[0]} trivial steps"
        case "messages":
            return f"{sizes[0]} steps, each adding a message of 500 B"
        case "wave":
            return f"wave of {sizes[0]} branches, then a join"
        case "concurrent":
            return f"{sizes[0]} runs of {sizes[1]} steps at once"
        case "untouched":
            return f"{sizes[1]} steps that leave {size(sizes[0])} alone"
    where = "in a warm process" if workload == WARM else "in a new process"
    return f"resume at step {sizes[1]} of {sizes[0]} {where}"


def syncs(results: Results) -> str:
    """Return the table of real syncs per step."""
    contenders = [name for name in results.contenders() if name != "langgraph_delta"]
    rows = []
    for store, workloads in results.syncs.items():
        for workload, found in workloads.items():
            cells = [f"{found[name]:.2f}" if name in found else "" for name in contenders]
            rows.append([WORKLOADS[workload].title, STORES[store], *cells])
    return lines(["workload", "store", *(NAMES[name] for name in contenders)], rows)


def behind(results: Results) -> list[str]:
    """Yield every figure in which a peer is better than Holdfast."""
    return [
        f"- {title(results, workload)} on {STORES[store]}, {name}: "
        f"{NAMES[contender]} takes {times_of(ratio)} of what Holdfast takes."
        for figure, name in (
            ("wall", "wall time"),
            ("cpu", "CPU time"),
            ("used", "disk used"),
            ("written", "bytes written"),
        )
        for store, workload in rows_of(results, figure)
        for contender in results.contenders()
        if contender not in (US, FLOOR)
        and (ratio := results.ratio(store, workload, contender, figure)) is not None
        and ratio < 1
    ]


def facts(results: Results) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in results.facts.items())


def lines(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    body = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(body)


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(value: float) -> str:
    for unit, factor in (("MB", 1e6), ("KB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def times_of(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"
