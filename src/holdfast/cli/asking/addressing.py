"""Which open question an answer on the command line is meant for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.asking.given import fitting
from holdfast.errors import AnswerRejected
from holdfast.journal.run_state import NO_ANSWER
from holdfast.suggestions import closest
from holdfast.views.pause_view import PLACEHOLDERS

if TYPE_CHECKING:
    from holdfast.engine.outcome import Pause

Names = Callable[[], Collection[str]]
_CLOSE = 0.7


def read_answers(texts: Sequence[str], pauses: Sequence[Pause], later: Names = tuple) -> dict[str, Any]:
    """Answers by the id of their pause, from `VALUE` or `NAME=VALUE` texts; each is checked.

    A name is the id or the name of a pause, or what follows the step in its name (`title` of `form.title`); of
    several that match, the longest counts. A text that names none is taken whole if only one thing is asked and
    it cannot be meant as a name. `later` tells the names of questions that the workflow may still ask.
    """
    waiting = [pause for pause in pauses if pause.kind not in NO_ANSWER]
    if not waiting:
        raise AnswerRejected("the run waits for no answer; resume it without one")
    found: dict[str, Any] = {}
    for text in texts:
        pause, value = _named(text, waiting) or _alone(text, waiting, len(texts), later)
        if pause.id in found:
            raise AnswerRejected(f"{pause.name!r} is answered twice; give one answer to each question")
        found[pause.id] = _value(pause, value)
    return found


def _value(pause: Pause, text: str) -> Any:
    if text in PLACEHOLDERS:
        raise AnswerRejected(f"{pause.name!r}: {text} stands for the answer; write your own in its place")
    try:
        return fitting(text, pause.schema)
    except AnswerRejected as error:
        raise AnswerRejected(f"{pause.name!r}: {error}") from None


def names_of(pause: Pause) -> tuple[str, ...]:
    """What a pause can be answered by: its id, its name, and its name without that of the step."""
    short = pause.name.rpartition("]")[2].partition(".")[2]
    return tuple(name for name in dict.fromkeys((pause.id, pause.name, short)) if name)


def _named(text: str, waiting: Sequence[Pause]) -> tuple[Pause, str] | None:
    matches = [(name, pause) for pause in waiting for name in names_of(pause) if text.startswith(f"{name}=")]
    if not matches:
        return None
    longest = max(matches, key=lambda match: len(match[0]))[0]
    named = [pause for name, pause in matches if name == longest]
    if len(named) > 1:
        ids = ", ".join(repr(pause.id) for pause in named)
        raise AnswerRejected(f"several questions are named {longest!r}; answer by id: {ids}")
    return named[0], text[len(longest) + 1 :]


def _alone(text: str, waiting: Sequence[Pause], given: int, later: Names) -> tuple[Pause, str]:
    """The only question, for a text that names none."""
    name, mark, _ = text.partition("=")
    if len(waiting) == given == 1 and not (mark and _is_meant_as_name(text, name, waiting[0], later)):
        return waiting[0], text
    raise AnswerRejected(_refusal(text, waiting, later()))


def _is_meant_as_name(text: str, name: str, pause: Pause, later: Names) -> bool:
    if closest(name.strip(), names_of(pause), _CLOSE):
        return True
    if name.strip().isidentifier() or name in later():
        return not _fits(text, pause) or name in later()
    return False


def _fits(text: str, pause: Pause) -> bool:
    try:
        fitting(text, pause.schema)
    except AnswerRejected:
        return False
    return True


def _refusal(text: str, waiting: Sequence[Pause], later: Collection[str]) -> str:
    name, mark, _ = text.partition("=")
    known = ", ".join(repr(pause.name) for pause in waiting)
    said = f"{text!r} names none of the open questions; write NAME=VALUE, open: {known}"
    if not mark:
        return said
    close = closest(name.strip(), [each for pause in waiting for each in names_of(pause)], _CLOSE)
    if close:
        return f"{said}; did you mean {close}=…?"
    if name in later:
        return f"{said}; {name!r} may be asked later: answer it when it is open"
    return said
