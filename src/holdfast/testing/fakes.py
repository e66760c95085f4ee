"""Stand-ins for those whom a workflow asks: people, and language models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.app import App
from holdfast.engine.outcome import Outcome, Pause
from holdfast.errors import HoldfastError
from holdfast.values import RunStatus

_AGAIN = re.compile(r"#\d+$")
_MOST_PAUSES = 1000


class Answers:
    """Somebody who answers what runs ask: from a mapping, or as a function of the pause says.

    A mapping is looked up by the pause's id, then by its name; for a question that is asked again (`name#2`) by
    the plain name too. A value that can be called is called with the pause. `asked` is what was asked, in order.
    """

    def __init__(self, given: Mapping[str, Any] | Callable[[Pause], Any] | None = None) -> None:
        __tracebackhide__ = True
        if given is not None and not isinstance(given, Mapping) and not callable(given):
            raise HoldfastError(
                f"answers are a mapping by name or a function of the pause, not {type(given).__name__}"
            )
        self._given = given
        self.asked: list[Pause] = []

    @classmethod
    def of(cls, given: Answers | Mapping[str, Any] | Callable[[Pause], Any] | None) -> Answers:
        """The answers themselves, or made of what was given."""
        __tracebackhide__ = True
        return given if isinstance(given, Answers) else cls(given)

    def find(self, pause: Pause) -> tuple[bool, Any]:
        """Whether there is an answer, and the answer. A function says with `NotImplemented` that it has none."""
        self.asked.append(pause)
        given = self._given
        if given is None:
            return False, None
        if not isinstance(given, Mapping):
            value = given(pause)
            return value is not NotImplemented, value
        for name in self.names_of(pause):
            if name in given:
                value = given[name]
                return True, value(pause) if callable(value) else value
        return False, None

    @staticmethod
    def names_of(pause: Pause) -> tuple[str, ...]:
        """The names by which a pause's answer is looked up, in this order."""
        return pause.id, pause.name, _AGAIN.sub("", pause.name)

    def names(self) -> tuple[str, ...]:
        """The names that a mapping has answers to; none of a function."""
        return tuple(self._given) if isinstance(self._given, Mapping) else ()

    def missing(self, pause: Pause) -> HoldfastError:
        """What is to be raised for a question without an answer."""
        known = ", ".join(map(repr, self._given)) if isinstance(self._given, Mapping) else ""
        return HoldfastError(
            f"step {pause.step!r} asks {pause.name!r} ({pause.prompt}), and the test has no answer to it"
            + (f"; it has answers to {known}" if known else "; give answers={name: value}")
        )


class Answering:
    """An app with somebody at hand who answers what its runs ask; what `answering` makes."""

    def __init__(self, app: App, answers: Answers) -> None:
        self.app, self.answers = app, answers

    def invoke(self, input: Any = None, **options: Any) -> Outcome:
        """As `App.invoke`, then through every pause until the run waits for nothing."""
        return self._through(self.app.invoke(input, **options), options.get("observer"))

    def resume(self, target: str, **options: Any) -> Outcome:
        """As `App.resume`, then through every pause until the run waits for nothing."""
        return self._through(self.app.resume(target, **options), options.get("observer"))

    def _through(self, outcome: Outcome, observer: Any) -> Outcome:
        for _ in range(_MOST_PAUSES):
            if outcome.status != RunStatus.PAUSED:
                return outcome
            found: dict[str, Any] = {}
            for pause in outcome.pauses:
                if pause.kind in ("before", "after"):
                    continue  # A plain resume passes the gate.
                known, value = self.answers.find(pause)
                if not known:
                    raise self.answers.missing(pause)
                found[pause.id] = value
            outcome = self.app.resume(outcome.run_id, answers=found, observer=observer)
        raise HoldfastError(f"run {outcome.run_id!r} still asks after {_MOST_PAUSES} pauses")


def answering(app: App, answers: Answers | Mapping[str, Any] | Callable[[Pause], Any]) -> Answering:
    """An app whose runs are driven through all their pauses: questions get these answers, gates are passed.

        outcome = answering(app, {"publish": "yes"}).invoke({"text": "…"})

    A question without an answer raises `HoldfastError`.
    """
    return Answering(app, Answers.of(answers))
