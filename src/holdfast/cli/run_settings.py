"""What `run` was asked for beside its inputs. The run remembers it, so that every resume keeps to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.stores.base import Store
    from holdfast.workflows.workflow import Workflow


KEY = "run"
"""Where a run's config holds its wishes, beside `flow`."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Where a run pauses, whether it asks, and what its saved steps survive."""

    interrupt_before: tuple[str, ...] = ()
    interrupt_after: tuple[str, ...] = ()
    skip_gates: bool = False
    durability: str | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Wishes:
        """The wishes that a stored run was started with; none if its config has none."""
        found = config.get(KEY)
        if not isinstance(found, Mapping):
            return cls()
        durability = found.get("durability")
        return cls(
            _names(found.get("interrupt_before")),
            _names(found.get("interrupt_after")),
            found.get("skip_gates") is True,
            durability if isinstance(durability, str) else None,
        )

    def config(self, flow: Workflow) -> dict[str, Any]:
        """What a run remembers: its workflow file and these wishes."""
        return {**flow.config(), KEY: asdict(self)}

    def renamed(self, names: Mapping[str, str]) -> Wishes:
        """The same for steps that have other names now."""
        before, after = (
            tuple(names.get(name, name) for name in wanted)
            for wanted in (self.interrupt_before, self.interrupt_after)
        )
        return replace(self, interrupt_before=before, interrupt_after=after)

    def open(self, flow: Workflow, store: Store | str, *, interactive: bool, stored: bool = False) -> App:
        """The workflow on a store as wished. A pause at a step that is not there is refused.

        `stored` says that an earlier command wished it.
        """
        from holdfast.workflows.reading.problems import WorkflowInvalid

        try:
            return flow.open(
                store,
                interrupt_before=self.interrupt_before,
                interrupt_after=self.interrupt_after,
                skip_gates=self.skip_gates,
                interactive=interactive,
                durability=self.durability,
            )
        except WorkflowInvalid as error:
            if not all(problem.message.startswith("a pause is wanted") for problem in error.problems):
                raise
            told = "; ".join(_told(problem.message, problem.hint) for problem in error.problems)
            way_out = "; if the step was renamed, resume with --remap OLD=NEW" if stored else ""
            raise click.UsageError(f"{told}{way_out}") from None


def _told(message: str, hint: str | None) -> str:
    return f"{message} ({hint})" if hint else message


def _names(found: Any) -> tuple[str, ...]:
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
        return ()
    return tuple(str(name) for name in found)
