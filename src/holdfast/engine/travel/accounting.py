"""What an app says and tells of its runs: tags, notes, kept checkpoints, costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.engine.runner import Runner
from holdfast.engine.settings import Settings

if TYPE_CHECKING:  # What only some need is loaded by those who do.
    from holdfast.engine.travel.looking import Place
    from holdfast.views.ledger import RunLedger


class Accounting:
    """The part of an app that speaks of runs, whoever drives them and whether they are over."""

    _settings: Settings
    _runner: Runner

    def cost(self, run: str) -> RunLedger:
        """What a run has used up, over all its drives: tokens, money and time, by step and by model.

        `run` may also be a checkpoint, or a moment as `RUN@3`: what it had used up by then.
        """
        from holdfast.engine.travel.moments import find_moment
        from holdfast.views.ledger import ledger

        moment = find_moment(self._settings.journal.store, run)
        return ledger(self._settings.journal, moment.info.run, upto=moment.seq)

    def tag(
        self,
        run: str,
        *tags: str,
        remove: Iterable[str] = (),
        checkpoint: Place | None = None,
        by: str = "",
        patience: float = 0.0,
    ) -> str:
        """Add tags to a run, or to a checkpoint, and remove others; the tags of a run find it again.

        `run` is a run id, or a moment as `RUN@3` or a checkpoint's id, which is that checkpoint; so is `checkpoint`, a
        place as in `state_at`. Whatever is said of a run, completed ones included, is in its journal, with who said
        it. Answers as `edit` does.
        """
        from holdfast.engine.commands import remarks

        options = {"checkpoint": checkpoint, **self._remarking(run, by, patience)}
        return remarks.tag(self._settings.journal, run, tags, remove, **options)

    def note(
        self, run: str, text: str, *, checkpoint: Place | None = None, by: str = "", patience: float = 0.0
    ) -> str:
        """Write a note to a run, or to a checkpoint; see `tag`."""
        from holdfast.engine.commands import remarks

        options = {"checkpoint": checkpoint, **self._remarking(run, by, patience)}
        return remarks.note(self._settings.journal, run, text, **options)

    def keep(
        self,
        run: str,
        checkpoint: Place | None = None,
        *,
        keep: bool = True,
        by: str = "",
        patience: float = 0.0,
    ) -> str:
        """Have retention and pruning leave a checkpoint, by default the newest, and its run alone; see `tag`."""
        from holdfast.engine.commands import remarks

        options = self._remarking(run, by, patience)
        return remarks.keep(self._settings.journal, run, checkpoint, keep=keep, **options)

    def _remarking(self, run: str, by: str, patience: float) -> dict[str, Any]:
        from holdfast.engine.travel.moments import find_moment

        self._runner.refuse_other_workflow(find_moment(self._settings.journal.store, run).info)
        return {"by": by, "codec": self._settings.codec, "patience": patience}
