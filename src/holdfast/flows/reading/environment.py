"""`${NAME}` and `${NAME:-default}` in the texts of a workflow file, from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.flows.reading.nodes import core_scalar

Path = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_WHOLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}")
_SCRIPT = re.compile(r"steps\0\d+(\0parallel(\0steps)?\0\d+)*\0shell(\0run)?|workflow\0hooks\0[^\0]*")


class Missing(Exception):
    """A variable without a default is not set; `offset` says where in the text it is named."""

    def __init__(self, name: str, offset: int) -> None:
        super().__init__(name)
        self.name, self.offset = name, offset


def is_script(path: Path) -> bool:
    """Whether the text at this path is a shell script, where `${NAME}` belongs to the shell."""
    return _SCRIPT.fullmatch("\0".join(map(str, path))) is not None


def expand(text: str, env: Mapping[str, str], typed: bool = False) -> Any:
    """The text with its variables replaced; `$${` is `${`. Other things with a dollar stay as they are.

    With `typed` a variable that is the whole text may be a number, true or false, as if written in its place.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return "${"
        given = env.get(name)
        if given is not None and (given or default is None):
            return given
        if default is None:
            raise Missing(name, found.start())
        return str(default)

    expanded = _REFERENCE.sub(value, text)
    if not typed or not _WHOLE.fullmatch(text):
        return expanded
    try:
        read = core_scalar(expanded)
    except ValueError:
        return expanded
    return expanded if read is None else read
