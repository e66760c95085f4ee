"""A place in a shell script that moves on while what it passes is written down."""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError

MARK = "\0"
"""Stands before and after the number of each value in a script that is to be walked through."""
_ENDS_WORD = " \t\n;&|<>()"
VALUE = re.compile(MARK + r"(\d+)" + MARK)


class UnsafePlace(HoldfastError):
    """A value stands where a shell script cannot take it safely; `line` (from 1) says where."""

    def __init__(self, message: str, line: int) -> None:
        self.line = line
        super().__init__(message)


class Cursor:
    """Where a walk through a script has come to."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._at = 0
        self._written: list[str] = []

    def _copy(self, length: int = 1) -> str:
        """Pass the next characters and write them as they are."""
        text = self._script[self._at : self._at + length]
        self._at += length
        self._written.append(text)
        return text

    def _ahead(self, *texts: str) -> bool:
        """Whether one of the texts comes next."""
        return self._script.startswith(texts, self._at)

    def _escape(self) -> str:
        """Pass a backslash and what follows it."""
        if self._script[self._at + 1 : self._at + 2] == MARK:
            raise self._refusal("a value cannot follow a backslash; remove the backslash")
        return self._copy(2)

    def _refusal(self, reason: str) -> UnsafePlace:
        line = self._script.count("\n", 0, self._at) + 1
        begin = self._script.rfind("\n", 0, self._at) + 1
        shown = VALUE.sub("{{ … }}", self._script[begin:].split("\n", 1)[0].strip())
        return UnsafePlace(f"line {line} of the script, {shown[:120]!r}: {reason}", line)

    def _ansi(self) -> None:
        """A text in `$'…'`, which shells read differently, so that no value may stand in it."""
        self._copy(2)
        while self._at < len(self._script) and not self._ahead("'"):
            if self._ahead(MARK):
                raise self._refusal("a value cannot stand inside $'…'; end the quotes before it")
            self._escape() if self._ahead("\\") else self._copy()
        self._copy()

    def _delimiter(self) -> str:
        """Pass the end mark of a here-document, quotes and all."""
        word, quote = "", ""
        while self._at < len(self._script):
            character = self._script[self._at]
            if character == MARK:
                raise self._refusal("a value cannot be the end mark of a here-document")
            if not quote and character in _ENDS_WORD:
                break
            if character in "'\"":
                quote = "" if quote == character else quote or character
            word += self._copy()
        return word
