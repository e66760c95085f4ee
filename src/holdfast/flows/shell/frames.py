"""What surrounds a place in a shell script: the quotes, brackets and commands it stands in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "coproc"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_SUBSCRIPT = re.compile(r"(^|=\()[A-Za-z_]*\w*\[[^\]]*$")
_NAMES_VARIABLES = frozenset(
    {"declare", "typeset", "local", "readonly", "export", "unset", "read", "mapfile", "readarray", "getopts"}
)
_RUNS_ITS_WORDS = frozenset({"eval", "let", "trap", "alias"})
_INTERPRETER = re.compile(
    r"(?:.*/)?(?:(?:ba|da|a|k|mk|z|fi|c|tc)?sh|su|(?:python|pypy|perl|ruby|node|nodejs|php|lua|tclsh|osascript)[\d.]*)"
)
_TAKES_CODE = re.compile(r"-[A-Za-z]*[cerpE][A-Za-z]*|--(?:eval|execute|command|print|run)")
_PREFIXES = frozenset({"command", "builtin", "exec", "nohup", "env", "sudo", "nice", "time"})
_LONGEST_WORD = 1_000
_CALCULATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})


@dataclass
class Frame:
    """One level of nesting. In a `command` frame, `words` are those of the command so far."""

    kind: str
    closer: str = ""
    words: list[str] = field(default_factory=list)
    word: str | None = None
    cases: int = 0
    in_pattern: bool = False
    after_redirect: bool = False
    is_here_string: bool = False
    is_array: bool = False
    depth: int = 0
    calculates: bool = False
    has_values: bool = False
    delimiter: str = ""
    strip_tabs: bool = False
    runs_code: bool = False

    def grow(self, text: str) -> None:
        """More of the current word, of which only the beginning is ever looked at."""
        if self.word is None or len(self.word) < _LONGEST_WORD:
            self.word = (self.word or "") + text

    def end_word(self) -> None:
        """The word is over: an assignment, a keyword, the target of a redirection, or one of the command."""
        word, self.word = self.word, None
        if word is None:
            return
        if self.after_redirect:
            self.after_redirect = False
        elif (self.in_pattern or not self.words) and word == "esac":
            self.cases, self.in_pattern = max(0, self.cases - 1), False
        elif self.in_pattern or self.is_array:
            return
        elif self.words or not (word in _KEYWORDS or _ASSIGNMENT.match(word)):
            self._add(word)

    def _add(self, word: str) -> None:
        self.words.append(word)
        self.calculates = self.calculates or (self.words[0] == "[[" and word in _CALCULATES)
        if self.words[0] == "case" and word == "in" and len(self.words) >= 3:
            self.cases, self.in_pattern, self.words = self.cases + 1, True, []

    def end_command(self, separator: str) -> None:
        """The command is over; what follows begins another one, or another pattern of a `case`."""
        self.end_word()
        self.after_redirect = self.calculates = self.has_values = False
        if separator == ")":
            self.in_pattern = False
        elif separator in (";;", ";&"):
            self.in_pattern = self.cases > 0
        self.words = []

    @property
    def in_test(self) -> bool:
        """Whether this is inside `[[ … ]]`, where brackets, `<`, `&&` and `||` separate nothing."""
        return self.words[:1] == ["[["] and "]]" not in self.words

    @property
    def reads_code(self) -> bool:
        """Whether the command so far is an interpreter that reads its program from its input."""
        for index, word in enumerate(self.words):
            if _INTERPRETER.fullmatch(word):
                return all(other.startswith("-") for other in self.words[index + 1 :])
        return False

    def _unprefixed(self) -> list[str]:
        """The words without those, like `command`, that only run the words after them."""
        words = self.words
        while words and words[0] in _PREFIXES:
            words = words[1:]
        return words

    def _awaits_code(self) -> bool:
        """Whether the next word is the program that an interpreter was told to run."""
        for index, word in enumerate(self.words):
            options = self.words[index + 1 :]
            if _INTERPRETER.fullmatch(word) and all(option.startswith("-") for option in options):
                return any(_TAKES_CODE.fullmatch(option) for option in options)
        return False

    def objection(self) -> str | None:
        """Why a value must not stand in the current word, or `None`."""
        self.has_values = True
        words, word = self.words, self.word or ""
        if self.calculates:
            return "[[ … ]] calculates with it, which can run commands; use [ … ]"
        if (self.is_array and word.startswith("[")) or _SUBSCRIPT.match(word):
            return "an index in [ ] is calculated, which can run commands"
        if self.after_redirect and self.is_here_string and self.reads_code:
            return f"it would be code for {words[0]}, which reads its program from there"
        if self.after_redirect or self.in_pattern or self.is_array or (not words and _ASSIGNMENT.match(word)):
            return None
        if not words:
            return (
                "it would be the command itself; write the name of the command, or say that you mean it: "
                'program={{ … }}; "$program"'
            )
        plain = self._unprefixed()
        if plain and plain[0] in _RUNS_ITS_WORDS:
            return f"{plain[0]} runs its words as code"
        if words[0] in _NAMES_VARIABLES and not (_ASSIGNMENT.match(word) and "i" not in _options(words)):
            return (
                f"{words[0]} would take it as a variable's name or calculate with it, which can run commands"
            )
        if words[-1] == "-v" and words[0] in ("[", "[[", "test", "printf"):
            return f"{words[0]} -v takes a variable's name, which can run commands"
        if self._awaits_code():
            return f"it would be code for {words[0]}; pass it as an argument after the code instead"
        return None


def _options(words: list[str]) -> str:
    return "".join(word for word in words[1:] if word.startswith("-"))
