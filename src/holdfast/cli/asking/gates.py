"""Asking a person, in the terminal, what a run waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.asking.given import fitting, value_of
from holdfast.cli.asking.terminal import Terminal
from holdfast.cli.display.text import moment, visible
from holdfast.cli.display.wording import Wording
from holdfast.errors import AnswerRejected

if TYPE_CHECKING:
    from holdfast.engine.outcome import Pause

GATES = ("before", "after")


class AnsweredElsewhere(Exception):
    """Somebody else answered, or took the run up, while it was asked here; the text says who."""


class LeftPaused(Exception):
    """The person does not answer now."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to resume with."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    update: Mapping[str, Any] = field(default_factory=dict)


def ask(
    terminal: Terminal,
    pauses: Sequence[Pause],
    wording: Callable[[Pause], Wording],
    commit: Callable[[Pause, Any], None],
) -> Reply:
    """Ask for everything that a run waits for. Raises `LeftPaused` or `AnsweredElsewhere`.

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
    """A question in lines: its prompt, its choices, and until when it takes an answer."""
    lines = [f"? {visible(pause.prompt or pause.name)}"]
    for number, choice in enumerate((pause.schema or {}).get("enum", ()), 1):
        label = wording.labels.get(str(choice), str(choice))
        lines.append(f"  {number}  {visible(str(label))}")
    if pause.expires_at is not None:
        lines.append(f"  (until {moment(pause.expires_at)})")
    return lines


def _meant(text: str, choices: Sequence[Any], schema: Mapping[str, Any] | None, wording: Wording) -> Any:
    word = text.strip()
    if choices:
        return _chosen(word, choices, schema, wording)
    return fitting(text if wording.multiline else word, schema)


def _chosen(word: str, choices: Sequence[Any], schema: Mapping[str, Any] | None, wording: Wording) -> Any:
    """A choice by its value, its label, or its number where that is no value."""
    by_label = {label.casefold(): value for value, label in wording.labels.items()}
    for candidate in (word, by_label.get(word.casefold(), word)):
        try:
            return fitting(candidate, schema)
        except AnswerRejected as error:
            refused = error
    if word.isdigit() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1]
    raise refused
