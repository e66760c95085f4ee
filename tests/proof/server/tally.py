"""What was done to servers, what came of it, and what is needed to do it again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.invariants import Violation
from tests.proof.server.proxy import Struck

PROGRESS_EVERY = 2.0


class Broken(NamedTuple):
    """A violation, and where: enough to go there again."""

    kind: str
    workflow: str
    place: str
    violation: str


@dataclass
class Tally:
    """Counts that grow while the work goes on, with a line on stderr now and then."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    acts: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: int = 0
    stops: int = 0
    conflicts: int = 0
    broken: list[Broken] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quiet: bool = False
    _told_at: float = field(default_factory=time.monotonic)

    def hit(self, kind: str, act: str, count: int = 1) -> None:
        """Count a fault."""
        self.faults[kind] += count
        self.acts[kind, act] += count
        self._tell(kind)

    def struck(self, kind: str, faults: Iterable[Struck]) -> None:
        """Count what a proxy did."""
        for fault in faults:
            self.hit(kind, fault.act.value)

    def judge(self, kind: str, workflow: str, place: str, violations: Iterable[Violation]) -> None:
        """Keep what was broken."""
        self.broken += [Broken(kind, workflow, place, str(each)) for each in violations]

    def note(self, text: str) -> None:
        """Remember something that the reader should know."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def total(self) -> int:
        return self.faults.total()

    def _tell(self, kind: str) -> None:
        if not self.quiet and time.monotonic() - self._told_at >= PROGRESS_EVERY:
            self._told_at = time.monotonic()
            print(
                f"{self.total} faults, {self.runs} runs, {len(self.broken)} violations; now {kind}",
                file=sys.stderr,
                flush=True,
            )

    def table(self) -> str:
        """The counts, by kind and act."""
        lines = [f"{'kind':<12} {'what happened':<48} {'faults':>7}"]
        lines += [f"{kind:<12} {act:<48} {count:>7}" for (kind, act), count in sorted(self.acts.items())]
        lines.append(f"{'':<12} {'all':<48} {self.total:>7}")
        lines += [
            f"runs: {self.runs}; stopped clearly and resumed: {self.stops}; refused drivers: {self.conflicts}"
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"BROKEN: {each}" for each in self.broken[:20]]
        return "\n".join(lines)

    def facts(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "seed": self.seed,
            "faults": self.total,
            "by_kind": dict(self.faults),
            "runs": self.runs,
            "stops": self.stops,
            "refused": self.conflicts,
            "violations": len(self.broken),
            "notes": self.notes,
        }
