"""Which node a step is a step of, and in which sub-graphs that is."""

from __future__ import annotations


def nodes_of(step: str) -> tuple[str, ...]:
    """The nodes that a step lies in, from the outermost to its own."""
    return tuple(part.partition("#")[0].partition("[")[0] for part in step.split("/"))


def told_node(step: str) -> str:
    """The node of a step, for people."""
    *outer, own = nodes_of(step)
    return f"node {own!r}" + (f" in the sub-graph {'/'.join(outer)!r}" if outer else "")


def counted(number: int, one: str, several: str = "") -> str:
    """A number of things, in the right number."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def often(times: int) -> str:
    """How often, in words."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(times, f"{times} times")
