"""Values in shell scripts: they travel as environment variables and are never part of the script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.flows.language.plain import Budget, Misuse, elements, kind
from holdfast.flows.language.templates import Template
from holdfast.flows.language.writing import as_text
from holdfast.flows.shell.script import MARK, Script, UnsafePlace

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
    """The script with a variable in place of each value, and the variables.

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

    script = template.render_with(scope, remember)
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
    """Raise `UnsafePlace` for a script that could never be run, as far as that can be told without values."""
    pieces = template.pieces()
    if pieces is None or None not in pieces or MARK in template.text:
        return
    marked = [f"{MARK}{number}{MARK}" if piece is None else piece for number, piece in enumerate(pieces)]
    Script("".join(marked), lambda number, context: "", programs).result()


class _Variables:
    """The variables that were made so far, and how a value is written by means of them."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._budget = Budget()
        self._size = 0
        self.env: dict[str, str] = {}

    def insert(self, number: int, context: str) -> str:
        """The script's words for a value in a context."""
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
