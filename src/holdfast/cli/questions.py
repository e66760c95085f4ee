"""Asking a person, in the terminal, what a run waits for."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from holdfast.cli.errors import TERMINATED
from holdfast.cli.inputs import Wording, fitting, value_of
from holdfast.cli.output import visible
from holdfast.cli.render import local_time
from holdfast.errors import AnswerRejected, StoreError, closest
from holdfast.journal.records import Answered
from holdfast.journal.run_state import NO_ANSWER
from holdfast.values import RunStatus
from holdfast.views.run_view import PLACEHOLDERS

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Outcome, Pause
    from holdfast.stores.base import RunInfo


POLL = 0.5
"""How many seconds pass between two checks whether a question was answered elsewhere."""


class Terminal:
    """A terminal that reads whole lines from stdin and writes to `out`; while it waits, it calls `poll`."""

    def __init__(self, out: IO[str], poll: Callable[[], None] | None = None) -> None:
        self._out, self.poll = out, poll
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._ended = False

    def say(self, text: str = "") -> None:
        """Write a line."""
        self._out.write(f"{text}\n")
        self._out.flush()

    def line(self, prompt: str) -> str:
        """Return the next line of the person; raise `EOFError` at the end of the input."""
        self._out.write(prompt)
        self._out.flush()
        while "\n" not in self._text and not self._ended:
            self._wait()
            self._read()
        line, _, self._text = self._text.partition("\n")
        if not line and self._ended and not self._text:
            raise EOFError
        return line.rstrip("\r")

    def lines(self, prompt: str) -> str:
        """Return lines up to a lone `.` or the end of the input, as one text; raise `EOFError` if there are none."""
        self.say(prompt)
        found: list[str] = []
        try:
            while (line := self.line("| ")) != ".":
                found.append(line)
        except EOFError:
            if not found:
                raise
            self._ended = False
            self.say()
        return "\n".join(found)

    def _wait(self) -> None:
        if self.poll is None or os.name == "nt":
            return
        while not select.select([sys.stdin.fileno()], [], [], POLL)[0]:
            self.poll()

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        self._ended = not data
        self._text += self._decoder.decode(data, final=not data)


class Terminated(SystemExit):
    """SIGTERM arrived while somebody was asked."""


@contextlib.contextmanager
def sigterm_leaves() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, unless it has another handler."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


GATES = ("before", "after")


class AnsweredElsewhere(Exception):
    """Somebody else answered, or resumed the run, while the question was open here; the text says who."""


class LeftPaused(Exception):
    """The person does not answer now."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers and the update to resume with."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    update: Mapping[str, Any] = field(default_factory=dict)


def ask(
    terminal: Terminal,
    pauses: Sequence[Pause],
    wording: Callable[[Pause], Wording],
    commit: Callable[[Pause, Any], None],
) -> Reply:
    """Ask for everything that a run waits for. Raise `LeftPaused` or `AnsweredElsewhere`.

    Of several answers each but the last is committed at once, so that none is lost if the person leaves.
    """
    try:
        update = _gate(terminal, [pause for pause in pauses if pause.kind in GATES])
        answers = {}
        questions = [pause for pause in pauses if pause.kind not in GATES]
        for pause in questions:
            value = _question(terminal, pause, wording(pause))
            if pause is questions[-1]:
                answers[pause.id] = value
            else:
                commit(pause, value)
        return Reply(answers, update)
    except EOFError:
        terminal.say()
        raise LeftPaused("there is nobody to answer") from None


def _gate(terminal: Terminal, gates: Sequence[Pause]) -> dict[str, Any]:
    if not gates:
        return {}
    for gate in gates:
        terminal.say(f"Paused {gate.kind} {gate.node.partition(':')[0]!r}.")
    update: dict[str, Any] = {}
    while True:
        word = terminal.line("[c]ontinue, [u]pdate the state, [a]bort? ").strip().lower()
        if word in ("c", "continue", "y", "yes"):
            return update
        if word in ("a", "abort", "q", "quit"):
            raise LeftPaused("left as it is")
        if word in ("u", "update"):
            update |= _update(terminal)
        else:
            terminal.say("Write c, u or a.")


def _update(terminal: Terminal) -> dict[str, Any]:
    terminal.say("Write key=value (JSON or text), one a line; an empty line ends.")
    update: dict[str, Any] = {}
    while line := terminal.line("> ").strip():
        key, mark, value = line.partition("=")
        if not mark or not key.strip():
            terminal.say(f"{visible(line)!r} is not key=value.")
            continue
        update[key.strip()] = value_of(value.strip())
    return update


def _question(terminal: Terminal, pause: Pause, wording: Wording) -> Any:
    choices = list((pause.schema or {}).get("enum", ()))
    for line in described(pause, wording):
        terminal.say(line)
    while True:
        text = _written(terminal, choices, wording)
        if not text.strip():
            if wording.default is not None:
                return wording.default
            terminal.say("An answer is needed; Ctrl+C leaves the run paused.")
            continue
        try:
            return _meant(text, choices, pause.schema, wording)
        except AnswerRejected as error:
            terminal.say(f"Not taken: {visible(str(error))}")


def _written(terminal: Terminal, choices: Sequence[Any], wording: Wording) -> str:
    if wording.multiline and not choices:
        return terminal.lines("Write your answer; a line with only a dot, or Ctrl+D, ends it.")
    default = "" if wording.default is None else f" [{visible(str(wording.default))}]"
    hint = f" 1-{len(choices)}" if choices else ""
    return terminal.line(f"Answer{hint}{default}: ")


def described(pause: Pause, wording: Wording) -> list[str]:
    """Return a question in lines: its prompt, its choices, and its deadline."""
    lines = [f"? {visible(pause.prompt or pause.name)}"]
    for number, choice in enumerate((pause.schema or {}).get("enum", ()), 1):
        label = wording.labels.get(str(choice), str(choice))
        lines.append(f"  {number}  {visible(str(label))}")
    if pause.expires_at is not None:
        lines.append(f"  (until {local_time(pause.expires_at)})")
    return lines


def _meant(text: str, choices: Sequence[Any], schema: Mapping[str, Any] | None, wording: Wording) -> Any:
    word = text.strip()
    if choices:
        return _chosen(word, choices, schema, wording)
    return fitting(text if wording.multiline else word, schema)


def _chosen(word: str, choices: Sequence[Any], schema: Mapping[str, Any] | None, wording: Wording) -> Any:
    """Return a choice by its value, its label, or its number where that is no value."""
    by_label = {label.casefold(): value for value, label in wording.labels.items()}
    for candidate in (word, by_label.get(word.casefold(), word)):
        try:
            return fitting(candidate, schema)
        except AnswerRejected as error:
            refused = error
    if word.isdigit() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1]
    raise refused


# Answers on the command line, and the open questions that they name.


Names = Callable[[], Collection[str]]
_CLOSE = 0.7


def read_answers(texts: Sequence[str], pauses: Sequence[Pause], later: Names = tuple) -> dict[str, Any]:
    """Return answers by the id of their pause, from `VALUE` or `NAME=VALUE` texts; each is checked.

    A name is the id or the name of a pause, or what follows the step in its name (`title` of `form.title`); of
    several that match, the longest counts. A text that names none is the whole answer if there is one question and
    the text cannot be a name. `later` returns the names of questions that the workflow may still ask.
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
    """Return the names of a pause: its id, its name, and its name without that of the step."""
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
    """Return the only question, for a text that names none."""
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


# Questions that are answered in another terminal while they are open here.


class PauseWatch:
    """A check whether a paused run still waits for the same answers."""

    def __init__(self, app: App, outcome: Outcome) -> None:
        self._app, self._run_id = app, outcome.run_id
        self._open = {pause.id for pause in outcome.pauses}
        self._seen = self._facts()
        self.status: str = outcome.status
        """The status of the run. If it is not paused, another process has resumed it."""

    def forget(self, pause: str) -> None:
        """Ignore a pause that was answered here."""
        self._open.discard(pause)
        self._seen = self._facts()

    def check(self) -> None:
        """Raise `AnsweredElsewhere` if an answer has arrived; if the store is busy, do nothing."""
        try:
            facts = self._facts()
            if facts is None or facts == self._seen:
                return
            self._seen = facts
            self._compare(facts)
        except StoreError:
            return

    def _compare(self, facts: RunInfo) -> None:
        if facts.status != RunStatus.PAUSED:
            self.status = facts.status
            raise AnsweredElsewhere(f"The run was resumed elsewhere; it is {facts.status}.")
        left = {pause.id for pause in self._app.pauses(self._run_id)}
        if self._open - left:
            raise AnsweredElsewhere(f"Answered {self._by(self._open - left)}.")

    def _by(self, pauses: set[str]) -> str:
        settings = self._app._settings
        _, history = settings.journal.history(settings.journal.info(self._run_id), settings.codec)
        given = [record for _, records in history for record in records if isinstance(record, Answered)]
        names = {record.by for record in given if record.pause in pauses and record.by}
        return f"by {', '.join(sorted(names))}" if names else "elsewhere"

    def _facts(self) -> RunInfo | None:
        found = self._app.store.runs(run=self._run_id)
        return found[0] if found else None
