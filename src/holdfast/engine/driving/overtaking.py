"""Whether another process has taken a run over from one that was thought dead."""

from __future__ import annotations

from holdfast import clock
from holdfast.journal.writer import Writer
from holdfast.stores.base import Store, leases_of

OLD_NEWS, LOOKS = 0.1, 3
"""After how many seconds an answer about others is too old to go by, and how often to ask for a newer one."""


class Overtaking:
    """Asked before every step: looks into the journal only when this process's lease may have lapsed since."""

    def __init__(self, store: Store, writer: Writer) -> None:
        leases = leases_of(store)
        self._writer = writer
        self._lapses = None if leases is None else leases.lapses
        self._seen = 0 if self._lapses is None else self._lapses()

    @property
    def is_possible(self) -> bool:
        """Whether this process may have been thought dead since it last looked."""
        return self._lapses is not None and self._lapses() != self._seen

    def refuse(self) -> None:
        """Raise `RunConflict` if this process may have been thought dead, and another has taken the run over.

        A save would find out too, but only after a step that somebody else has run meanwhile.
        """
        if self._lapses is None:
            return
        lapses = self._lapses()
        if lapses != self._seen:
            self._look()
            self._seen = lapses

    def _look(self) -> None:
        """Look whether another has appended to the run. An answer that was long on its way tells nothing of now."""
        for _ in range(LOOKS):
            began = clock.monotonic()
            self._writer.refuse_if_behind()
            if clock.monotonic() - began < OLD_NEWS:
                return
