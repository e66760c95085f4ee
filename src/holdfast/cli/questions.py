"""Questions in the terminal; inputs, answers and changes as people write them on the command line."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import click

from holdfast.cli.errors import TERMINATED
from holdfast.cli.render import local_time
from holdfast.engine.answers import misfit
from holdfast.errors import AnswerRejected, StoreError, closest, did_you_mean
from holdfast.journal.records import Answered
from holdfast.journal.run_state import NO_ANSWER
from holdfast.values import RunStatus
from holdfast.views.run_view import NO_STEPS, PLACEHOLDERS
from holdfast.views.terminal import visible

if TYPE_CHECKING:
    from holdfast.engine.app import App
    from holdfast.engine.settings import Outcome, Pause
    from holdfast.stores.base import RunInfo
    from holdfast.workflows.model import Definition, Step


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


Guide = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Returns an update of the state that also tells the agents of a run something."""


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
    guide: Guide | None = None,
) -> Reply:
    """Ask for everything that a run waits for. Raise `LeftPaused` or `AnsweredElsewhere`.

    Of several answers each but the last is committed at once, so that none is lost if the person leaves.
    """
    try:
        update = _gate(terminal, [pause for pause in pauses if pause.kind in GATES], guide)
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


def _gate(terminal: Terminal, gates: Sequence[Pause], guide: Guide | None) -> dict[str, Any]:
    if not gates:
        return {}
    for gate in gates:
        terminal.say(f"Paused {gate.kind} {gate.node.partition(':')[0]!r}.")
    update: dict[str, Any] = {}
    offer = "[g]uide the agents, " if guide is not None else ""
    while True:
        word = terminal.line(f"[c]ontinue, [u]pdate the state, {offer}[a]bort? ").strip().lower()
        if word in ("c", "continue", "y", "yes"):
            return update
        if word in ("a", "abort", "q", "quit"):
            raise LeftPaused("left as it is")
        if word in ("u", "update"):
            update |= _update(terminal)
        elif word in ("g", "guide") and guide is not None:
            if text := terminal.line("Tell the agents: ").strip():
                update = guide(text, update)
        else:
            terminal.say(f"Write c, u{', g' if guide is not None else ''} or a.")


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
        if wording.multiline and not choices:
            text = terminal.lines("Write your answer; a line with only a dot, or Ctrl+D, ends it.")
        else:
            default = "" if wording.default is None else f" [{visible(str(wording.default))}]"
            text = terminal.line(f"Answer{f' 1-{len(choices)}' if choices else ''}{default}: ")
        if not text.strip():
            if wording.default is not None:
                return wording.default
            terminal.say("An answer is needed; Ctrl+C leaves the run paused.")
            continue
        try:
            if choices:
                return _chosen(text.strip(), choices, pause.schema, wording)
            return fitting(text if wording.multiline else text.strip(), pause.schema)
        except AnswerRejected as error:
            terminal.say(f"Not taken: {visible(str(error))}")


def described(pause: Pause, wording: Wording) -> list[str]:
    """Return a question in lines: its prompt, its choices, and its deadline."""
    lines = [f"? {visible(pause.prompt or pause.name)}"]
    for number, choice in enumerate((pause.schema or {}).get("enum", ()), 1):
        label = wording.labels.get(str(choice), str(choice))
        lines.append(f"  {number}  {visible(str(label))}")
    if pause.expires_at is not None:
        lines.append(f"  (until {local_time(pause.expires_at)})")
    return lines


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


# Inputs, answers and changes as people write them on the command line, and the values that they mean.


def read_inputs(file: str | None, pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the inputs of `--inputs FILE` and `-i`: typed ones, and texts that still have to be read by type.

    A pair is `name=text`, `name=@file` (the file's text) or `name:=json`; or it is all inputs: a JSON object, or
    `@file` with one. Pairs win over the file, and later pairs over earlier ones.
    """
    typed: dict[str, Any] = {}
    text: dict[str, str] = {}
    if file is not None:
        where = f"--inputs {file}"
        typed = _object(sys.stdin.read() if file == "-" else _text_of(Path(file), where), where)
    for pair in pairs:
        if pair.startswith(("@", "{")):
            found = _object(_text_of(Path(pair[1:]), pair) if pair[0] == "@" else pair, f"--input {pair}")
            typed |= found
            text = {known: value for known, value in text.items() if known not in found}
            continue
        name, mark, value = pair.partition("=")
        if not mark or not name.rstrip(":"):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE (or NAME=@FILE, or NAME:=JSON)")
        plain_name = name.removesuffix(":")
        typed.pop(plain_name, None)
        text.pop(plain_name, None)
        if name.endswith(":"):
            typed[plain_name] = read_json(value, pair)
        else:
            text[plain_name] = _text_of(Path(value[1:]), pair) if value.startswith("@") else value
    return typed, text


def _object(text: str, where: str) -> dict[str, Any]:
    found = read_json(text, where)
    if not isinstance(found, dict):
        raise click.BadParameter(f"{where} must hold a JSON object, not {type(found).__name__}")
    return found


def _text_of(path: Path, where: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{where}: {path} cannot be read: {error}") from None


def read_json(text: str, where: str) -> Any:
    """Return the data that the text of an option is, or refuse the option."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise click.BadParameter(f"{where}: the data is nested too deeply") from None


def value_of(text: str) -> Any:
    """Return the value that a text means: JSON if it is JSON that can be read, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_pairs(pairs: Iterable[str], what: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping."""
    found = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark or not name:
            raise click.BadParameter(f"{what} {pair!r} is not of the form NAME=VALUE")
        found[name] = value
    return found


def fitting(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Return the value that a text means for a schema; raise `AnswerRejected` if no reading of it fits."""
    value = value_of(text)
    if not schema:
        return value
    is_boolean = schema.get("type") == "boolean" and "enum" not in schema
    word = text.strip().casefold()
    words = [_WORDS[word]] if is_boolean and word in _WORDS else []
    alike = [each for each in schema.get("enum", ()) if str(each).casefold() == word]
    for candidate in (value, text, *alike, *words):
        if misfit(candidate, schema) is None:
            return candidate
    if is_boolean:
        raise AnswerRejected(f"the answer must be true or false (yes and no will do), not {text!r:.80}")
    raise AnswerRejected(str(misfit(value, schema)))


_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "no", "n", "off", "0"), False),
}
"""Words for true and false."""


# The questions of workflow files: labels of choices, defaults, and answers of many lines.


@dataclass(frozen=True, slots=True)
class Wording:
    """What a question has beside its prompt."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """A choice's value, as text, to its label."""
    default: Any = None
    multiline: bool = False


def wording_of(definition: Definition | None, pause: Pause) -> Wording:
    """Return the wording of a pause; a plain one if the workflow file has none."""
    steps = {step.name: step for step in all_steps(definition.steps)} if definition is not None else {}
    step = steps.get(pause.node.partition(":")[0])
    ask = step.ask if step is not None else None
    if ask is None or pause.kind != "ask":
        return Wording()
    for question in ask.questions:
        if pause.name.partition("#")[0].rpartition(".")[2] == question.name:
            return Wording(_labels(question.choices), _plain(question.default), question.multiline)
    return Wording(_labels(ask.choices), _plain(ask.default), ask.multiline)


def all_steps(steps: Iterable[Step]) -> Iterable[Step]:
    """Yield every step of a list, those inside parallel groups included."""
    for step in steps:
        yield step
        yield from all_steps(step.members)


def question_names(definition: Definition | None) -> set[str]:
    """Return the names of all questions of a workflow file, whether they are open or not."""
    names = set()
    for step in all_steps(definition.steps) if definition is not None else ():
        if step.ask is None:
            continue
        asked = [question.name for question in step.ask.questions]
        names |= {step.name, *asked, *(f"{step.name}.{name}" for name in asked)}
    return names


def rows_of(steps: Iterable[Step], depth: int = 0) -> Iterable[tuple[str, int, str]]:
    """Yield every step with its depth and its kind, members of a group below it."""
    for step in steps:
        yield step.name, depth, step.kind
        yield from rows_of(step.members, depth + 1)


def _labels(choices: Iterable[Any] | None) -> dict[str, str]:
    return {str(choice.value): choice.label for choice in choices or () if choice.label}


def _plain(default: Any) -> Any:
    return None if isinstance(default, str) and "{{" in default else default


# The conditions of `--fail-on-state`.


def check_conditions(conditions: Iterable[str], definition: Definition | None) -> None:
    """Refuse a condition on a step that the workflow does not have, because it could never hold."""
    if definition is None:
        return
    known = {*NO_STEPS, *(step.name for step in all_steps(definition.steps))}
    for condition in conditions:
        name = condition.partition("=")[0].removeprefix("steps.").partition(".")[0]
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
            raise click.UsageError(f"--fail-on-state {condition!r}: there is no step {name!r}; {hint}")


def first_that_holds(conditions: Iterable[str], state: Any) -> str:
    """Return the first condition that a state meets; empty if it meets none."""
    for condition in conditions:
        path, _, wanted = condition.partition("=")
        found = state
        with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):
            for part in path.removeprefix("steps.").split("."):
                found = found[int(part)] if isinstance(found, (list, tuple)) else found[part]
            if bool(found == value_of(wanted)) or found == wanted:
                return condition
    return ""


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
        if value in PLACEHOLDERS:
            raise AnswerRejected(
                f"{pause.name!r}: {value} stands for the answer; write your own in its place"
            )
        try:
            found[pause.id] = fitting(value, pause.schema)
        except AnswerRejected as error:
            raise AnswerRejected(f"{pause.name!r}: {error}") from None
    return found


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
    if name in later() or not name.strip().isidentifier():
        return name in later()
    try:
        fitting(text, pause.schema)
    except AnswerRejected:
        return True
    return False


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
