"""Walking through a shell script to find out how each value in it has to be written."""

from __future__ import annotations

import re
from collections.abc import Callable

from holdfast.flows.shell.cursor import MARK, VALUE, Cursor
from holdfast.flows.shell.frames import Frame

Insert = Callable[[int, str], str]
"""What is written for a value (its number) in a context: `bare`, `alone`, `double` or `single`."""

_BLANKS = " \t"


class Scan(Cursor):
    """One walk through a script. `result` is the script with every value inserted."""

    def __init__(self, script: str, insert: Insert) -> None:
        super().__init__(script)
        self._insert = insert
        self._frames = [Frame("command")]
        self._awaited: list[Frame] = []

    def result(self) -> str:
        """The script; raise `UnsafePlace` if a value stands where it could do harm."""
        while self._at < len(self._script):
            frame = self._frames[-1]
            if self._script[self._at] == MARK:
                self._value(frame)
            elif frame.kind == "command":
                self._command(frame)
            elif frame.kind == "double":
                self._double()
            elif frame.kind == "heredoc":
                self._heredoc(frame)
            elif frame.kind == "brace":
                self._brace()
            else:
                self._arithmetic(frame)
        self._finish(self._frames[0])
        if any(frame.kind != "heredoc" for frame in self._frames[1:]):
            raise self._refusal(
                "a quote or bracket is not closed, so it is not clear how to quote the values"
            )
        return "".join(self._written)

    def _enter(self, frame: Frame, opening: int) -> None:
        self._copy(opening)
        self._frames.append(frame)

    def _leave(self, closing: int = 1) -> None:
        self._copy(closing)
        self._frames.pop()
        if self._frames[-1].kind == "command":
            self._frames[-1].grow("")

    def _nearest(self) -> Frame:
        return next(frame for frame in reversed(self._frames) if frame.kind in ("command", "heredoc"))

    def _value(self, frame: Frame) -> None:
        found = VALUE.match(self._script, self._at)
        assert found is not None
        context = self._context(frame, found.end())
        self._written.append(self._insert(int(found[1]), context))
        self._at = found.end()
        self._nearest().grow("\ufffd")

    def _context(self, frame: Frame, end: int) -> str:
        command = self._nearest()
        self._refuse_harm(frame, command)
        if frame.kind != "command":
            return "double"
        follows = self._script[end : end + 1]
        alone = command.word is None and command.words and (not follows or follows in " \t\n;&|)`")
        return "alone" if (alone or command.is_array) and not command.after_redirect else "bare"

    def _refuse_harm(self, frame: Frame, command: Frame) -> None:
        if frame.kind == "brace":
            raise self._refusal("a value cannot stand inside ${…}; assign it to a variable first")
        if frame.kind == "arithmetic":
            raise self._refusal(
                "a value cannot stand in a calculation, which can run commands; calculate it in a step before "
                "(and write $( ( for a subshell)"
            )
        if frame.kind == "heredoc" and frame.runs_code:
            raise self._refusal("the here-document is a program, and the value would be part of it")
        kinds = [one.closer or one.kind for one in self._frames]
        if "double" in kinds and "`" in kinds[kinds.index("double") :]:
            raise self._refusal('a value cannot stand in `…` inside "…"; use $(…)')
        if command.kind == "command" and (objection := command.objection()):
            raise self._refusal(f"a value cannot stand here: {objection}")

    def _command(self, frame: Frame) -> None:
        character = self._script[self._at]
        if character == "\\":
            escaped = self._escape()
            if escaped != "\\\n":
                frame.grow(escaped)
        elif character == "'":
            self._single(frame)
        elif character == '"':
            frame.grow("")
            self._enter(Frame("double"), 1)
        elif character in "$`":
            frame.grow("")
            self._expansion(frame)
        elif character == "#" and frame.word is None:
            self._comment()
        elif character in _BLANKS:
            frame.end_word()
            self._copy()
        elif character in "<>":
            self._redirect(frame)
        elif character in "()":
            self._bracket(frame, character)
        elif character in ";&|\n":
            self._separator(frame, character)
        else:
            frame.grow(self._copy())

    def _separator(self, frame: Frame, character: str) -> None:
        double = self._script[self._at : self._at + 2]
        separator = double if double in (";;", ";&", "&&", "||") else character
        self._finish(frame)
        if not frame.in_test:
            frame.end_command(separator)
        self._copy(len(separator))
        if character == "\n" and self._awaited:
            self._frames += reversed(self._awaited)
            self._awaited = []
            self._line_of_heredoc()

    def _bracket(self, frame: Frame, character: str) -> None:
        if character == "(":
            array = frame.word is not None and frame.word.endswith("=")
            if frame.in_test or (frame.in_pattern and frame.word is None):
                self._copy()
            elif self._ahead("()") and frame.word is not None:
                frame.end_command(self._copy(2))
            elif self._ahead("((") and frame.word is None:
                self._enter(Frame("arithmetic", "))"), 2)
            else:
                self._enter(Frame("command", ")", is_array=array), 1)
            return
        self._finish(frame)
        if frame.closer == ")" and not frame.in_pattern and not frame.in_test:
            self._leave()
        else:
            frame.end_command(self._copy())

    def _finish(self, frame: Frame) -> None:
        """End a word, and object if it is now clear that a value is calculated with."""
        frame.end_word()
        if frame.calculates and frame.has_values:
            raise self._refusal("[[ … ]] calculates with a value, which can run commands; use [ … ]")

    def _single(self, frame: Frame) -> None:
        """A text in single quotes, in which nothing but a value means anything."""
        end = self._script.find("'", self._at + 1)
        if end < 0:
            raise self._refusal("a single quote is not closed")
        frame.grow("")
        self._copy()
        while self._at < end:
            found = VALUE.match(self._script, self._at)
            if found is None:
                frame.grow(self._copy())
                continue
            self._refuse_harm(frame, frame)
            self._written.append(self._insert(int(found[1]), "single"))
            self._at = found.end()
        self._copy()

    def _comment(self) -> None:
        """A comment, in which values are inert: their names are all that is written."""
        end = self._script.find("\n", self._at)
        stop = len(self._script) if end < 0 else end
        self._written.append(VALUE.sub("value", self._script[self._at : stop]))
        self._at = stop

    def _expansion(self, frame: Frame) -> None:
        """A `$` or a backtick, and what it opens."""
        if self._ahead("`"):
            if frame.closer == "`":
                self._finish(frame)
                self._leave()
            else:
                self._enter(Frame("command", "`"), 1)
        elif self._ahead("$(("):
            self._enter(Frame("arithmetic", "))"), 3)
        elif self._ahead("$["):
            self._enter(Frame("arithmetic", "]"), 2)
        elif self._ahead("$("):
            self._enter(Frame("command", ")"), 2)
        elif self._ahead("${"):
            self._enter(Frame("brace"), 2)
        elif self._ahead("$" + MARK):
            raise self._refusal("a value cannot follow a $; write {{ … }} without it")
        elif self._ahead("$'") and frame.kind == "command":
            self._ansi()
        elif self._ahead("$$"):
            self._nearest().grow(self._copy(2))
        else:
            self._nearest().grow(self._copy())

    def _double(self) -> None:
        if self._ahead("\\"):
            self._nearest().grow(self._escape())
        elif self._ahead('"'):
            self._leave()
        elif self._ahead("$", "`"):
            self._expansion(self._frames[-1])
        else:
            self._nearest().grow(self._copy())

    def _brace(self) -> None:
        quoted = any(frame.kind == "double" for frame in self._frames)
        if self._ahead("\\"):
            self._escape()
        elif self._ahead("}"):
            self._leave()
        elif self._ahead('"'):
            self._enter(Frame("double"), 1)
        elif self._ahead("'") and not quoted:
            self._single(Frame("brace"))
        elif self._ahead("$", "`"):
            self._expansion(self._frames[-1])
        else:
            self._copy()

    def _arithmetic(self, frame: Frame) -> None:
        if frame.depth == 0 and self._ahead(frame.closer):
            self._leave(len(frame.closer))
        elif frame.depth == 0 and self._ahead(")"):
            raise self._refusal("(( is read as a calculation; write ( ( for a subshell in a subshell")
        elif self._ahead("$", "`"):
            self._expansion(frame)
        else:
            frame.depth += {"(": 1, ")": -1}.get(self._copy(), 0)

    def _redirect(self, frame: Frame) -> None:
        if (frame.word or "").isdigit():
            frame.word = None
        if self._ahead("<(", ">("):
            frame.grow("")
            self._enter(Frame("command", ")"), 2)
            return
        frame.end_word()
        if self._ahead("<<") and not self._ahead("<<<"):
            self._await_heredoc(frame)
            return
        operators = ("<<<", "<<", ">>", "<&", ">&", ">|", "<>", "<", ">")
        operator = next(operator for operator in operators if self._ahead(operator))
        self._copy(len(operator))
        frame.after_redirect, frame.is_here_string = True, operator == "<<<"

    def _await_heredoc(self, frame: Frame) -> None:
        self._copy(2)
        strip_tabs = self._ahead("-")
        self._copy(int(strip_tabs))
        while self._at < len(self._script) and self._script[self._at] in _BLANKS:
            self._copy()
        word = self._delimiter()
        kind = "heredoc" if not set(word) & set("'\"\\") else "literal"
        plain = re.sub(r"['\"\\]", "", word)
        self._awaited.append(Frame(kind, delimiter=plain, strip_tabs=strip_tabs, runs_code=frame.reads_code))

    def _heredoc(self, frame: Frame) -> None:
        if self._ahead("\\"):
            self._escape()
        elif self._ahead("$", "`"):
            self._expansion(frame)
        elif self._copy() == "\n":
            self._line_of_heredoc()

    def _line_of_heredoc(self) -> None:
        """At the beginning of a line: whether here-documents end here, or take no values."""
        while (frame := self._frames[-1]).kind in ("heredoc", "literal"):
            end = self._script.find("\n", self._at)
            whole = end < 0
            line = self._script[self._at :] if whole else self._script[self._at : end]
            if (line.lstrip("\t") if frame.strip_tabs else line) == frame.delimiter:
                self._frames.pop()
            elif frame.kind == "heredoc":
                return
            elif MARK in line:
                raise self._refusal("the end mark of the here-document is quoted, so nothing is filled in")
            elif whole:
                self._frames.pop()
            self._copy(len(line) + (not whole))
            if whole:
                return
