"""Whether what a capsule says of its run, for those who list runs, is what its journal tells."""

from __future__ import annotations

from holdfast.capsules.contents import Facts, stopped
from holdfast.errors import CapsuleInvalid
from holdfast.journal.records import Forked
from holdfast.journal.run_state import RunState
from holdfast.values import RunStatus


def check_claims(facts: Facts, run: RunState, fork: Forked | None) -> None:
    """Refuse facts that are not those of the run; `fork` is how its first entry refers to another, if it does."""
    said: list[tuple[str, object, object]] = [("workflow", facts.workflow, run.workflow)]
    if facts.status != RunStatus.DAMAGED:  # Whoever repairs a store says so, and leaves the journal alone.
        said.append(("status", facts.status, stopped(run.status)))
        said.append(("being under way", facts.under_way, run.status == RunStatus.RUNNING))
    if facts.first == 1:
        said.append(("parent", facts.parent.hex(), "" if fork is None else fork.key.hex()))
    elif run.parent is None:
        said.append(("parent", facts.parent.hex(), ""))
    for what, claimed, found in said:
        if claimed != found:
            raise CapsuleInvalid(
                f"what it says of its run is not what its journal tells: {what} {claimed!r:.80}, not {found!r:.80}"
            )
