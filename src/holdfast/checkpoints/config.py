"""`GraphConfig` and `CheckpointConfig`: a graph's settings as plain data, for files and registries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.policy import CheckpointPolicy
from holdfast.errors import HoldfastError
from holdfast.suggestions import suggestion


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Which store a graph saves to, after every how many waves, and whether a completed run stays.

    `store` is a registered name or a store's URL. An `interval` of 0 turns checkpoints off.
    """

    store: str = "memory"
    interval: int = 0
    preserve: bool = False

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> CheckpointPolicy:
        """The same as a policy: a save that fails stops the run, and without saves a failed run leaves nothing."""
        return CheckpointPolicy(
            interval=self.interval,
            on_failure="pause" if self.interval else "rollback",
            preserve="all" if self.preserve else "none",
        )

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> CheckpointConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        return cls(**_known(cls, source))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """A graph's name, the registered name of its observer, its iteration limit, and its checkpoints."""

    name: str
    observer: str = "slog"
    max_iterations: int = 1000
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> GraphConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        known = _known(cls, source)
        if "name" not in known:
            raise HoldfastError("GraphConfig needs a name")
        if "checkpoint" in known:
            known["checkpoint"] = CheckpointConfig.from_dict(known["checkpoint"])
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


def default_checkpoint_config() -> CheckpointConfig:
    """Checkpoints off, in memory once they are turned on."""
    return CheckpointConfig()


def default_graph_config(name: str) -> GraphConfig:
    """A graph that logs its events and saves nothing."""
    return GraphConfig(name)


def _known(kind: type[Any], source: Mapping[str, Any]) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(kind)]
    for key in source:
        if key not in names:
            raise HoldfastError(f"{kind.__name__} has no setting {key!r}{suggestion(str(key), names)}")
    return dict(source)
