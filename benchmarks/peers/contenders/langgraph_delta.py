"""LangGraph with its `DeltaChannel` (beta) for the growing list, the only workload in which it differs."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel

from contenders import langgraph


def _extend(held: list[Any], updates: list[list[Any]]) -> list[Any]:
    return [*held, *(item for update in updates for item in update)]


class Talking(TypedDict):
    n: int
    messages: Annotated[list[Any], DeltaChannel(_extend)]


class Race(langgraph.Race):
    """The same, but a checkpoint holds what was added, with a snapshot from time to time."""

    talking = Talking
    workloads = ("messages",)
