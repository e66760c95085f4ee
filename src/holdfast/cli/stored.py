"""What a stored run has, for those who go on with it: what is kept, what failed, and its workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.cli.given import value_of
from holdfast.cli.progress import place_of
from holdfast.cli.text import cost_of
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import RunInfo


@dataclass(frozen=True, slots=True)
class Kept:
    """The finished steps of a stored run and what they cost; and the attempt that failed, if one did."""

    steps: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    failed_step: str = ""
    failed_attempt: int = 0
    statuses: tuple[tuple[str, str], ...] = ()
    """Each finished step of a workflow file with its status."""


def kept_of(app: App, run_id: str) -> Kept | None:
    """What is kept of a run; `None` if nothing is, or the store does not say."""
    from holdfast.engine.runner import state_of
    from holdfast.journal.run_state import FAILED

    settings = app.settings
    try:
        loaded = settings.journal.load(settings.journal.info(run_id), settings.codec)
        state = state_of(loaded, settings)
        failed = next((step for step in loaded.run.active() if step.status == FAILED), None)
        return Kept(
            steps=steps_in(state),
            seconds=loaded.run.seconds,
            cost=cost_of(state.get("ledger")),
            failed_step="" if failed is None else place_of(failed.id, failed.node).label,
            failed_attempt=0 if failed is None else failed.attempt,
            statuses=tuple(_statuses(state)),
        )
    except HoldfastError:
        return None


def steps_in(state: Any) -> int:
    """How many times steps of a workflow file have come to an end, as its state tells."""
    return sum(_ends(state[name]) for name, _ in _statuses(state))


def _ends(record: Mapping[str, Any]) -> int:
    visits = record.get("visits", 1)
    number = visits if isinstance(visits, int) else 1
    return number - (record["status"] in ("running", "skipped"))


def _statuses(state: Any) -> list[tuple[str, str]]:
    found = []
    for name in state:
        said: Any = state[name] if name not in ("inputs", "output", "ledger") and ":" not in name else None
        if isinstance(said, Mapping) and isinstance(said.get("status"), str):
            found.append((name, said["status"]))
    return found


def config_of(journal: Journal, info: RunInfo) -> dict[str, Any]:
    """The config that a run was started with; it says which workflow file the run is of."""
    from holdfast.data.codec import Codec

    codec = Codec()
    run = journal.load(info, codec).run
    found = codec.decode(run.config, lenient=True) if run.config else {}
    return dict(found) if isinstance(found, dict) else {}


def state_has(state: Any, path: str, wanted: str) -> bool:
    """Whether a state holds a value, JSON or text, at a dotted path such as `review.output.ok`."""
    found: Any = state
    for part in path.removeprefix("steps.").split("."):
        try:
            found = found[int(part)] if isinstance(found, (list, tuple)) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return bool(found == value_of(wanted)) or found == wanted
