"""The arguments of the process: its passwords, which other users of the machine see, and the words before parsing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

_IN_PLACE = re.compile(r"postgres(?:ql)?://[^:@/?]*:(.*)@", re.IGNORECASE | re.DOTALL)
_IN_QUERY = re.compile(r"[?&][a-z_]*(?:password|secret|_key)=([^&]+)", re.IGNORECASE)
_ARG_START, _ARG_END = 47, 48
"""The fields of /proc/self/stat, from 0, with the addresses of a process's arguments."""


def hide_passwords(words: Sequence[str]) -> None:
    """Overwrite passwords of URLs among this process's arguments, where `ps` would show them.

    They are visible from when the process starts until it has come here. Only Linux lets a process do this;
    elsewhere nothing happens.
    """
    found = [password for word in words for password in _passwords(word)]
    if found:
        try:
            _overwrite([password.encode("utf-8", "surrogateescape") for password in found])
        except (OSError, ValueError, IndexError):
            return


def _passwords(word: str) -> Iterator[str]:
    if "postgres" in word.lower():
        for pattern in (_IN_PLACE, _IN_QUERY):
            yield from (found[1] for found in pattern.finditer(word) if found[1])


def _overwrite(passwords: Sequence[bytes]) -> None:
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[field - 2]) for field in (_ARG_START, _ARG_END))
    if not 0 < start < end:
        return
    arguments = ctypes.string_at(start, end - start)
    if arguments != Path("/proc/self/cmdline").read_bytes():
        return
    for password in passwords:
        for place in re.finditer(re.escape(password), arguments):
            ctypes.memset(start + place.start(), ord("*"), len(password))


def store_options(options: list[str]) -> str:
    """Return the options of a command that name its store, as they can be pasted after another command."""
    found = []
    for name in ("--store", "--namespace"):
        for number, word in enumerate(options):
            given = options[number + 1 : number + 2] if word == name else [word.removeprefix(f"{name}=")]
            if given and (word == name or word.startswith(f"{name}=")):
                found += [name, given[0]]
                break
    if "--store" in found:
        from holdfast.cli.store_option import chosen_url

        found[1] = chosen_url(found[1], environ={})
    return "".join(f" {shlex.quote(word)}" for word in found)


def without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Return the words without `--debug`, which may stand anywhere before `--`, and whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    return [*options, *words[end:]], len(options) < end
