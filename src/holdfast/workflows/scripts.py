"""Values in shell scripts, which travel as environment variables, and in SQL, where they are parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.workflows.language.templates import Template
from holdfast.workflows.language.values import Meter, Misuse, as_text, elements, kind

# Which commands a script with values may have.


TAKE_VALUES = frozenset({
    ":", "b2sum", "base32", "base64", "basename", "cat", "chgrp", "chmod", "chown", "cksum", "cmp", "comm",
    "cp", "cut", "date", "df", "diff", "dirname", "du", "echo", "expr", "false", "fold", "grep", "head",
    "hexdump", "join", "jq", "ln", "ls", "md5sum", "mkdir", "mktemp", "mv", "nl", "od", "paste", "printf",
    "readlink", "realpath", "rev", "rm", "rmdir", "seq", "sha1sum", "sha256sum", "sha512sum", "shuf", "sleep",
    "stat", "tac", "tail", "tee", "touch", "tr", "true", "truncate", "uniq", "wc",
})  # fmt: skip
"""Commands that run nothing of what they are given, whatever their arguments and options are."""

_WITHOUT_VALUES = frozenset({"[", "break", "cd", "continue", "exit", "set", "test"})
RESERVED = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!"})
_NAME = re.compile(r"\[|:|[A-Za-z0-9_./+-]+")
_FORMAT = re.compile(r"(?!-)(?:[^%]|%[-+ #0]*[0-9]*(?:\.[0-9]*)?[%bcdeEfgGiosquxX])*")
_SETTINGS = re.compile(r"[-+][aefnuvxo]+|pipefail")
_STATUS = re.compile(r"[0-9]+|\$\?")
_TESTS = frozenset({"-d", "-e", "-f", "-h", "-L", "-n", "-p", "-r", "-S", "-s", "-w", "-x", "-z"})
_COMPARISONS = frozenset({"=", "!=", "-nt", "-ot", "-ef"})
"""What `[` may do: nothing that reads text as a name or a number, such as `-v` and, in some shells, `-eq`."""
INTERPRETED = re.compile(
    r"BASH_.*|BASHOPTS|SHELLOPTS|ENV|ZDOTDIR|FPATH|PS[0-4]|PROMPT_COMMAND|IFS|PATH|CDPATH|GLOBIGNORE|SHELL|HOME|"
    r"XDG_CONFIG_.*|(?:LD|DYLD)_.*|GCONV_PATH|LOCPATH|PYTHON.*|PERL5.*|PERLLIB|RUBY.*|GEM_.*|BUNDLE_.*|NODE_.*|NPM_.*|"
    r"JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|CLASSPATH|PHPRC|PHP_INI_.*|LUA_.*|R_PROFILE.*|"
    r"GIT_(?!(?:AUTHOR|COMMITTER)_).*|LESS.*|EDITOR|VISUAL|(?:.*_)?PAGER|BROWSER|MAKEFLAGS|MAKEFILES|AWKPATH|"
    r"AWKLIBPATH|TAR_OPTIONS|(?:RSYNC|CVS)_RSH|(?:SSH|SUDO)_ASKPASS|OPENSSL_.*",
    re.IGNORECASE,
)
"""Variables that shells, loaders, interpreters and common programs read code, programs or options from."""
_BUILTINS = frozenset({
    ".", "[", "[[", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen",
    "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else",
    "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function", "getopts",
    "hash", "help", "history", "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd",
    "pushd", "pwd", "read", "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source",
    "suspend", "test", "then", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias",
    "unset", "until", "wait", "while",
})  # fmt: skip
_RUNS_ITS_ARGUMENTS = re.compile(
    r"(?:.*/)?(?:(?:ba|da|a|k|mk|z|fi|c|tc)?sh|busybox|g?awk|mawk|nawk|g?sed|make|find|(?:python|pypy|perl|ruby|node|nodejs|"
    r"deno|bun|php|lua|tclsh|expect|Rscript|osascript)[\d.]*|su|sudo|doas|env|ssh|xargs|parallel|timeout|nice|ionice|"
    r"nohup|setsid|stdbuf|flock|script|watch|chroot|runuser|systemd-run|strace|time)"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text where that is fixed, and whether a value is part of it.

    A word that `expands` is a pattern of file names or has a variable without quotes: it may become several words.
    """

    literal: str | None
    is_plain: bool
    has_value: bool
    expands: bool = False

    def __add__(self, other: Word) -> Word:
        is_fixed = self.literal is not None and other.literal is not None
        literal = f"{self.literal}{other.literal}" if is_fixed else None
        has_value, expands = self.has_value or other.has_value, self.expands or other.expands
        return Word(literal, self.is_plain and other.is_plain, has_value, expands)


def objection(words: Sequence[Word], programs: Sequence[Sequence[str]]) -> str | None:
    """Return why a script with values may not have this command, or `None`. `programs` are allowed by the step."""
    name = words[0].literal if words[0].is_plain else None
    if words[0].has_value:
        return "a value cannot be the name of a command, nor be assigned to a variable"
    if name is None or not _NAME.fullmatch(name):
        return "the name of a command has to be written out, without quotes or $, and nothing can be assigned"
    literals = [word.literal for word in words]
    if any(literals[: len(program)] == list(program) for program in programs):
        return None
    if name in _WITHOUT_VALUES:
        return _without_values(name, words)
    if name not in TAKE_VALUES:
        return (
            f"{name!r} is not one of the commands that a script with values may have "
            "(name it in `programs` if it does not run what it is given)"
        )
    if name == "printf" and not _FORMAT.fullmatch((literals[1] if len(words) > 1 else None) or "-"):
        return "the format of printf has to be written out, as in printf '%s\\n' {{ … }}"
    return None


def _without_values(name: str, words: Sequence[Word]) -> str | None:
    rest = words[1:]
    if any(word.has_value for word in words):
        return f"{name!r} takes no values"
    if name == "set" and not all(_SETTINGS.fullmatch(word.literal or "") for word in rest):
        return "'set' takes only options such as -eu here"
    is_status = all(_STATUS.fullmatch(word.literal or "") for word in rest)
    if name in ("exit", "break", "continue") and not is_status:
        return f"{name!r} takes only a number that is written out, or $?"
    if name == "cd" and any(word.literal is None or word.expands for word in rest):
        return "the folder of 'cd' has to be written out"
    if name not in ("[", "test"):
        return None
    if any(word.expands for word in rest):  # No part of a test but its operands may depend on a variable.
        return f'a variable in {name!r} has to be in quotes, as in "$NAME", and so have * and ?'
    literals = [word.literal for word in rest]
    if name == "[" and (not literals or literals.pop() != "]"):
        return "'[' has to end with ']'"
    if literals[:1] == ["!"] and len(literals) > 1:
        del literals[0]
    is_test = len(literals) == 2 and literals[0] in _TESTS
    if len(literals) == 1 or is_test or (len(literals) == 3 and literals[1] in _COMPARISONS):
        return None
    known = " ".join(sorted(_TESTS | _COMPARISONS))
    return f"{name!r} takes one comparison here, with one of {known}"


def program_problem(entry: str, in_any_folder: bool = False) -> str | None:
    """Return why an entry of `programs` cannot be taken, or `None`. `in_any_folder`: a value says where it is run."""
    words = entry.split()
    if not words or any(not re.fullmatch(r"[A-Za-z0-9_./+:@=-]+", word) for word in words):
        return "is not the name of a program, with words that follow it"
    if words[0] in _BUILTINS or words[0] in RESERVED or words[0] in TAKE_VALUES or "=" in words[0]:
        return "is a command of the shell itself, or one that takes values anyway"
    if words[-1].startswith("-") or _RUNS_ITS_ARGUMENTS.fullmatch(words[-1]):
        return "runs what it is given; name the script as well, such as 'python3 report.py'"
    found_by_folder = words[1:] if "/" not in words[0] else words
    if in_any_folder and not all(word.startswith("/") for word in found_by_folder):
        return "would be looked for in the folder that a value in `cwd` names"
    return None


# The small language of scripts with values; whatever is not part of it is refused.


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
    """One pass over a script; `result` returns the script with every value inserted."""

    def __init__(self, script: str, insert: Insert, programs: Sequence[str] = ()) -> None:
        self._script, self._insert = script, insert
        self._programs = [program.split() for program in programs]
        self._at = 0
        self._written: list[str] = []
        self._words: list[Word] = []
        self.files: list[str] = []
        """The files of redirections that depend on a value or a variable, as they are written in the result."""

    def result(self) -> str:
        """Return the script; raise `UnsafePlace` if it is not in the language of scripts with values."""
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
            self._written.append(_VALUE.sub(lambda value: self._insert(int(value[1]), "single"), found[0]))
            return Word(None, False, True) if MARK in found[1] else Word(found[1], False, False)
        if self._script[self._at] == '"':
            return self._double()
        if found := self._copy(_VARIABLE):
            return _variable(found[0], is_quoted=False)
        if found := self._take(_VALUE):
            alone = found.start() == start and _ENDS_WORD.match(self._script, self._at) and not is_file
            self._written.append(self._insert(int(found[1]), "alone" if alone else "bare"))
            return Word(None, False, True)
        raise self._refusal(_reason(self._ahead()))

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
                self._written.append(self._insert(int(found[1]), "double"))
                word += Word(None, False, True)
            else:
                raise self._refusal(_reason(self._ahead(), quoted=True))
        self._at += 1
        self._written.append('"')
        return word

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
        """Return the `HOLDFAST_VALUE` variable at this position, else the next two characters."""
        found = _OWN.match(self._script, self._at)
        return found[0] if found else self._script[self._at : self._at + 2]

    def _refusal(self, reason: str) -> UnsafePlace:
        at = min(self._at, len(self._script))
        line = self._script.count("\n", 0, at) + 1
        begin = self._script.rfind("\n", 0, at) + 1
        shown = _VALUE.sub("{{ … }}", self._script[begin:].split("\n", 1)[0].strip())
        return UnsafePlace(f"line {line} of the script, {shown[:120]!r}", line, reason, _REMEDY)


def _variable(text: str, is_quoted: bool) -> Word:
    """Return a variable as a word; the status is always a number, `$@` and `$*` are always several words."""
    if text == "$?":
        return Word(text, False, False)
    return Word(None, False, False, expands=not is_quoted or text in ("$@", "$*"))


def _reason(ahead: str, quoted: bool = False) -> str:
    """Return why what comes next is not part of the language."""
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


__all__ = ["MAX_VALUE", "UnsafePlace", "UnusableValue", "check_script", "safe_script"]

MAX_VALUE = 100_000
"""How many bytes one value may have; systems allow little more per variable."""
MAX_VALUES = 1_000_000
"""How many bytes all values together may have."""
_REFERENCE = re.compile(r"\$\{?(\w+)\}?")
_CONNECTION = re.compile(r"/dev/(?:tcp|udp)/")
"""The files that bash opens a connection for, whatever the file system has; `sh` may be bash."""


class UnusableValue(HoldfastError):
    """A value cannot be handed to a program as an environment variable."""


def safe_script(
    template: Template,
    scope: Mapping[str, Any],
    programs: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, str]]:
    """Return the script with a variable in place of each value, and the variables.

    Whatever characters a value has, it arrives as one unchanged argument; a list that stands alone
    arrives as one argument per item. Raise `UnsafePlace` if the script is more than the small language of
    scripts with values, in which nothing reads text as code. `environment` is what the script will find in
    its other variables: no file of a redirection may become a connection by a value or a variable.
    """
    if MARK in template.text:
        raise UnusableValue("the script contains a NUL character, which no shell takes; remove it")
    values: list[Any] = []

    def remember(value: Any) -> str:
        values.append(value)
        return f"{MARK}{len(values) - 1}{MARK}"

    script = template.render(scope, remember)
    if not values:
        return script, {}
    variables = _Variables(values)
    reading = Script(script, variables.insert, programs)
    result = reading.result()
    _check_files(reading.files, {**(environment or {}), **variables.env})
    return result, variables.env


def _check_files(files: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise `UnusableValue` for the file of a redirection that bash would open a connection for."""
    for file in files:
        bare = re.sub(r"[\"'\\]", "", file)
        if _CONNECTION.search(_REFERENCE.sub(lambda found: env.get(found[1], ""), bare)):
            raise UnusableValue(
                "a value makes the file of a redirection begin with /dev/tcp/ or /dev/udp/, for which bash opens a "
                "connection; give another path"
            )


def check_script(template: Template, programs: Sequence[str]) -> None:
    """Raise `UnsafePlace` for a script that could never be run, as far as that is known without values."""
    pieces = template.pieces
    if pieces is None or None not in pieces or MARK in template.text:
        return
    marked = [f"{MARK}{number}{MARK}" if piece is None else piece for number, piece in enumerate(pieces)]
    Script("".join(marked), lambda number, context: "", programs).result()


class _Variables:
    """The variables that were made so far, and how a value is written by means of them."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._budget = Meter()
        self._size = 0
        self.env: dict[str, str] = {}

    def insert(self, number: int, context: str) -> str:
        """Return the script's words for a value in a context."""
        value = self._values[number]
        if context == "alone" and kind(value) == "list":
            return " ".join(f'"{self._variable(item)}"' for item in elements(value))
        if context == "bare" and kind(value) == "list":
            raise UnusableValue(
                "a list of words must stand alone between spaces, as in: rm -- {{ files }}; "
                "use {{ list | join(' ') }} or {{ list | tojson }} for one word"
            )
        variable = self._variable(value)
        return {"double": variable, "single": f"'\"{variable}\"'"}.get(context, f'"{variable}"')

    def _variable(self, value: Any) -> str:
        name = f"HOLDFAST_VALUE_{len(self.env) + 1}"
        self.env[name] = self._checked(value)
        return f"${{{name}}}"

    def _checked(self, value: Any) -> str:
        try:
            text = as_text(self._budget, value)
            size = len(text.encode())
        except Misuse as error:
            raise UnusableValue(f"a value of the script cannot be used: {error}") from None
        except UnicodeEncodeError:
            raise UnusableValue(
                "a value of the script is not valid Unicode; clean it in a step before"
            ) from None
        self._size += size
        if "\0" in text:
            raise UnusableValue("a value of the script contains a NUL character, which no argument can have")
        if size > MAX_VALUE or self._size > MAX_VALUES:
            raise UnusableValue(
                f"a value of the script has {size:,} bytes (the limit is {MAX_VALUE:,}, and {MAX_VALUES:,} for "
                "all together); write it to a file and pass its name"
            )
        return text


# SQL: where its parameters are.


OWN_PARAMS = ("run_id", "step", "idempotency_key")
"""The parameters that every statement may use."""

_SQL = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*+(?:'|\Z)|'(?:[^']|'')*+(?:'|\Z)|"(?:[^"]|"")*+(?:"|\Z)"""
    r"""|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)"""
    r"""|(?P<tag>\$(?:[A-Za-z_]\w*)?\$)(?:(?!(?P=tag)).)*+(?:(?P=tag)|\Z)|::"""
    r"""|(?<![\w:]):(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)
"""Quoted text, comments and casts, in which nothing is a parameter, and the names of parameters."""


def sql_parameters(sql: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a statement, and the names of those that are parameters: `:name` outside of quotes."""
    begin = 0
    for found in _SQL.finditer(sql):
        if found["name"]:
            yield sql[begin : found.start()], ""
            yield found[0], found["name"]
            begin = found.end()
    yield sql[begin:], ""
