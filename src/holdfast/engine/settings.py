"""What a compiled graph is compiled with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data.codec import Codec
from holdfast.engine.driving.decide import Rules
from holdfast.engine.policy import CheckpointPolicy, Retention
from holdfast.events import Observer
from holdfast.journal.journal import Journal
from holdfast.plan.graph import Graph


@dataclass(frozen=True, slots=True)
class Settings:
    """A graph and all that was decided when it was compiled."""

    graph: Graph
    journal: Journal
    codec: Codec
    policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    retention: Retention | None = None
    rules: Rules = field(default_factory=Rules)
    interrupt_after: frozenset[str] = frozenset()
    notify: bool = False
    checkpoint_dir: Path | None = None
    observer: Observer | None = None
    on_change: str = "warn"
    time_limit: float | None = None
    """Seconds that one drive may take."""
    outline: dict[str, object] = field(default_factory=dict)
    is_memory_default: bool = False
    """Whether runs are kept in memory because nobody named a store."""
    facts: Mapping[str, Any] | None = field(default_factory=dict)
    """What is noted of where runs are driven, beside what is found out; `None` if nothing is to be."""
