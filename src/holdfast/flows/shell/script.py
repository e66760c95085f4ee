"""The small language of scripts with values; whatever is not part of it is refused.

Commands of fixed names, joined by new lines and `;`, `&&`, `||`, `|`, with `if` and `while` around them and
`<`, `>`, `>>` beside them. Their words are plain or quoted text, `$NAME` and values. There is nothing that reads
text as code: no assignments, `$(…)`, calculations, functions, here-documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError
from holdfast.flows.shell.commands import RESERVED, Word, objection

MARK = "\0"
"""Stands before and after the number of each value in a script."""

Insert = Callable[[int, str], str]
"""What is written for a value (its number) in a context: `bare`, `alone`, `double` or `single`."""

_REMEDY = (
    'hand it over with `env`, as in shell: {run: …, env: {NAME: "{{ … }}"}}, and write "$NAME" in the script'
)

_VALUE = re.compile(MARK + r"(\d+)" + MARK)
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_JOINT = re.compile(r"&&|\|\||[|;\n]")
_END = r"(?=[ \t\n;|&<>]|\Z)"
_DUPLICATE = re.compile(r"[0-9]?[<>]&[0-9]" + _END)
_REDIRECT = re.compile(r"[0-9]?(?:>>|[<>])[ \t]*")
_BRACKET = re.compile(r"[][{}]" + _END)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~*?^!-]+")
_ESCAPE = re.compile(r"\\[ -/:-@\[-`{-~]")
_SINGLE = re.compile(r"'([^']*)'")
_VARIABLE = re.compile(
    r"\$(?!\{?HOLDFAST_VALUE)(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|[0-9?#@*$!-])"
)
_OWN = re.compile(r"\$\{?HOLDFAST_VALUE\w*\}?")
_QUOTED = re.compile(r'(?:[^"\\$`\0]|\\[^\0])+')
_ESCAPED = re.compile(r'\\(?:\n|([\\"$`]))')
_ENDS_WORD = re.compile(_END)


class UnsafePlace(HoldfastError):
    """A value stands in a script that cannot take it safely; `line` (from 1) says where."""

    def __init__(self, where: str, line: int, reason: str, remedy: str) -> None:
        self.line, self.reason, self.remedy = line, reason, remedy
        super().__init__(f"{where}: {reason}; {remedy}")


class Script:
    """One reading of a script. `result` is the script with every value inserted."""

    def __init__(self, script: str, insert: Insert, programs: Sequence[str] = ()) -> None:
        self._script, self._insert = script, insert
        self._programs = [program.split() for program in programs]
        self._at = 0
        self._written: list[str] = []
        self._words: list[Word] = []
        self.files: list[str] = []
        """The files of redirections that depend on a value or a variable, as they are written in the result."""

    def result(self) -> str:
        """The script; raise `UnsafePlace` if it is not in the language of scripts with values."""
        while self._at < len(self._script):
            if self._copy(_BLANKS):
                continue
            if comment := self._take(_COMMENT):
                self._written.append(_VALUE.sub("value", comment[0]))
            elif self._copy(_JOINT):
                self._end_command(-1)
            elif not self._copy(_DUPLICATE):
                self._redirection_or_word()
        self._end_command(0)
        return "".join(self._written)

    def _redirection_or_word(self) -> None:
        if self._copy(_REDIRECT):
            begin = len(self._written)
            if self._word(is_file=True).literal is None:
                self.files.append("".join(self._written[begin:]))
            return
        start = self._at
        word = self._word(is_file=False)
        if self._words or not (word.is_plain and word.literal in RESERVED):
            self._words.append(word)
        raw = self._script[start : self._at]
        if raw.isdigit() and len(raw) > 1 and self._script[self._at : self._at + 1] in ("<", ">"):
            raise self._refusal("put a blank before the redirection")

    def _end_command(self, moved: int) -> None:
        words, self._words = self._words, []
        if words and (reason := objection(words, self._programs)):
            self._at += moved
            raise self._refusal(reason)

    def _word(self, is_file: bool) -> Word:
        """One word: its pieces follow each other without a blank."""
        start, word = self._at, Word("", True, False)
        while not _ENDS_WORD.match(self._script, self._at):
            word += self._piece(start, is_file)
        if self._at == start:
            ahead = self._script[start : start + 1].strip()
            raise self._refusal(f"a word is missing before {ahead!r}" if ahead else "a word is missing")
        return word

    def _piece(self, start: int, is_file: bool) -> Word:
        """One piece of a word."""
        if found := (self._at == start and self._copy(_BRACKET)) or self._copy(_PLAIN):
            return Word(found[0], True, False, expands="*" in found[0] or "?" in found[0])
        if found := self._copy(_ESCAPE):
            return Word(found[0][1:], False, False)
        if found := self._take(_SINGLE):
            return self._single(found[1])
        if self._script[self._at] == '"':
            return self._double()
        if found := self._copy(_VARIABLE):
            return _variable(found[0], is_quoted=False)
        if found := self._take(_VALUE):
            alone = found.start() == start and _ENDS_WORD.match(self._script, self._at) and not is_file
            return self._value(found, "alone" if alone else "bare")
        raise self._refusal(_reason(self._ahead()))

    def _single(self, text: str) -> Word:
        self._written.append("'")
        inside = _VALUE.sub(lambda found: self._insert(int(found[1]), "single"), text)
        self._written.append(f"{inside}'")
        return Word(None, False, True) if MARK in text else Word(text, False, False)

    def _double(self) -> Word:
        word = Word("", False, False)
        self._at += 1
        self._written.append('"')
        while self._script[self._at : self._at + 1] != '"':
            if found := self._copy(_QUOTED):
                word += Word(_ESCAPED.sub(lambda escaped: escaped[1] or "", found[0]), False, False)
            elif found := self._copy(_VARIABLE):
                word += _variable(found[0], is_quoted=True)
            elif found := self._take(_VALUE):
                word += self._value(found, "double")
            else:
                raise self._refusal(_reason(self._ahead(), quoted=True))
        self._at += 1
        self._written.append('"')
        return word

    def _value(self, found: re.Match[str], context: str) -> Word:
        self._written.append(self._insert(int(found[1]), context))
        return Word(None, False, True)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Pass what the pattern matches here."""
        found = pattern.match(self._script, self._at)
        if found:
            self._at = found.end()
        return found

    def _copy(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Pass what the pattern matches here, and write it as it is."""
        found = self._take(pattern)
        if found:
            self._written.append(found[0])
        return found

    def _ahead(self) -> str:
        """The next two characters, or the name of a variable that holds a value."""
        found = _OWN.match(self._script, self._at)
        return found[0] if found else self._script[self._at : self._at + 2]

    def _refusal(self, reason: str) -> UnsafePlace:
        at = min(self._at, len(self._script))
        line = self._script.count("\n", 0, at) + 1
        begin = self._script.rfind("\n", 0, at) + 1
        shown = _VALUE.sub("{{ … }}", self._script[begin:].split("\n", 1)[0].strip())
        return UnsafePlace(f"line {line} of the script, {shown[:120]!r}", line, reason, _REMEDY)


def _variable(text: str, is_quoted: bool) -> Word:
    """A variable as a word; the status is always a number, `$@` and `$*` are always several words."""
    if text == "$?":
        return Word(text, False, False)
    return Word(None, False, False, expands=not is_quoted or text in ("$@", "$*"))


def _reason(ahead: str, quoted: bool = False) -> str:
    """Why what comes next is not part of the language."""
    if not ahead or (not quoted and ahead[0] == "'"):
        return "a quote is not closed"
    if ahead[0] == "\\" and MARK in ahead:
        return "a value cannot follow a backslash"
    if ahead[0] == "\\":
        return "a backslash has to stand before a sign, or after a blank at the end of the line"
    if ahead[0] == "$" and MARK in ahead:
        return "a value cannot follow a $"
    if _OWN.fullmatch(ahead):
        return f"a script with values cannot name {ahead}, which holds a value"
    if ahead[0] in "$`":
        return f"a script with values can have $NAME, but not {ahead!r}"
    return f"a script with values cannot have {ahead[0]!r} here; put text into quotes"
