"""The kinds that need nothing but the state: set, wait, end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from holdfast import clock
from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.flows.errors import EndedInFailure, StepFailed
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.model import End, Step, Wait


class SetValues(Plain):
    """`set`: values made of values."""

    asks_engine = False

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._values = self.texts.tree("set", step.set)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        return {"output": self._values.look(scope)}


class WaitAWhile(Plain):
    """`wait`: time passes, also while nobody runs."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        wait = step.wait if isinstance(step.wait, Wait) else Wait.model_validate({"for": step.wait})
        self._seconds = wait.seconds
        self._until = None if wait.until is None else self.texts.text("wait.until", wait.until)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        seconds = self._seconds
        if self._until is not None:
            seconds = max(0.0, _moment(self._until.render(scope)).timestamp() - clock.time())
        assert seconds is not None
        ctx.sleep(seconds, name="wait")
        return {"output": None}


def _moment(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    except ValueError:
        raise StepFailed(
            f"wait.until: {text!r:.80} is no date and time; write it as 2026-01-31T09:00:00+01:00, "
            "or without offset in UTC"
        ) from None


class EndHere(Plain):
    """`end`: the run is over, well or not."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        end = step.end if isinstance(step.end, End) else End(status=step.end or "success")
        self._fails = end.status == "failure"
        self._reason = self.texts.text("end.reason", end.reason)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        reason = self._reason.render(scope)
        if self._fails:
            raise EndedInFailure(reason or "the workflow ended in failure")
        return {"output": reason or None, "reason": reason}
