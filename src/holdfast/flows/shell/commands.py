"""Which commands a script with values may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Why a script with values may not have this command, or `None`. `programs` are allowed by the step."""
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
    if any(word.has_value for word in words):
        return f"{name!r} takes no values"
    if name == "set" and not all(_SETTINGS.fullmatch(word.literal or "") for word in words[1:]):
        return "'set' takes only options such as -eu here"
    if name in ("exit", "break", "continue") and not all(
        _STATUS.fullmatch(word.literal or "") for word in words[1:]
    ):
        return f"{name!r} takes only a number that is written out, or $?"
    if name == "cd" and any(word.literal is None or word.expands for word in words[1:]):
        return "the folder of 'cd' has to be written out"
    if name in ("[", "test"):
        return _test(name, words[1:])
    return None


def _test(name: str, words: Sequence[Word]) -> str | None:
    """Why a test cannot be taken: no part of it but its operands may depend on a variable."""
    if any(word.expands for word in words):
        return f'a variable in {name!r} has to be in quotes, as in "$NAME", and so have * and ?'
    literals = [word.literal for word in words]
    if name == "[" and (not literals or literals.pop() != "]"):
        return "'[' has to end with ']'"
    if literals[:1] == ["!"] and len(literals) > 1:
        del literals[0]
    if len(literals) == 1 or (len(literals) == 2 and literals[0] in _TESTS):
        return None
    if len(literals) == 3 and literals[1] in _COMPARISONS:
        return None
    known = " ".join(sorted(_TESTS | _COMPARISONS))
    return f"{name!r} takes one comparison here, with one of {known}"


def program_problem(entry: str, in_any_folder: bool = False) -> str | None:
    """Why an entry of `programs` cannot be taken, or `None`. `in_any_folder`: a value says where it is run."""
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
