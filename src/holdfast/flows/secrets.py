"""Secrets from the environment, and scrubbing them out of everything that is shown or stored."""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from holdfast.flows.language.plain import Missing, Misuse
from holdfast.flows.secret_forms import SHORTEST, Form, Pattern, forms, unwrapped

REDACTED = "***"
_PREFIXES = ("HOLDFAST_SECRET_", "WORKFLOW_SECRET_", "")
Forms = list[Form | Pattern]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretError(Misuse):
    """A secret cannot be used."""


class SecretMissing(SecretError, Missing):
    """A secret is not set."""


class Secrets(Mapping[str, str]):
    """`secrets.NAME` of a scope. It is read one name at a time, never listed, shown or stored."""

    __slots__ = ("__env", "__lock", "__read")

    def __init__(self, env: Mapping[str, str]) -> None:
        self.__env = env
        self.__read: dict[str, None] = {}
        self.__lock = threading.Lock()

    def __getitem__(self, name: str) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SecretError("a secret's name has letters, digits and _ only, as in secrets.API_KEY")
        variables = [prefix + name for prefix in _PREFIXES]
        for variable in variables:
            if variable in self.__env:
                return self._checked(variable, self.__env[variable])
        raise SecretMissing(
            f"the secret {name!r} is not set; set {variables[0]} (or {' or '.join(variables[1:])})"
        )

    def _checked(self, variable: str, value: str) -> str:
        if len(value.strip()) < SHORTEST:
            raise SecretError(
                f"the secret in {variable} has fewer than {SHORTEST} characters, so it could not be hidden "
                "in what is shown and stored; use a longer one, or an input if it is no secret"
            )
        with self.__lock:
            self.__read[value] = None
        return value

    def remembered(self) -> tuple[str, ...]:
        """The values that were read so far, for a `Scrubber`."""
        with self.__lock:
            return tuple(self.__read)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(prefix + name in self.__env for prefix in _PREFIXES)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Secrets({REDACTED})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise SecretError("secrets are never copied or stored; store their names")


class Scrubber(logging.Filter):
    """Replaces every secret that was read by `***`, in whatever form it appears. Also a logging filter."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        super().__init__()
        self._secrets = secrets
        self._known: tuple[str, ...] = ()
        self._forms: Forms = []

    def scrub(self, value: Any) -> Any:
        """The value without secrets; the very same object if it had none.

        Texts, bytes, and whatever is in mappings (keys too), lists, tuples and sets. What is nested too
        deeply to be searched is redacted altogether.
        """
        current = self._current()
        if not current:
            return value
        try:
            return _Pass(current, self._known).scrubbed(value)
        except RecursionError:
            return REDACTED

    def scrub_exception(self, error: BaseException) -> str:
        """The error and its traceback as text, without secrets."""
        return str(self.scrub("".join(traceback.format_exception(error))))

    def filter(self, record: logging.LogRecord) -> bool:
        """Scrub a log record in place; it is never held back."""
        if not self._current():
            return True
        try:
            record.msg, record.args = record.getMessage(), ()
        except Exception:
            record.msg, record.args = f"{record.msg} {record.args!r}", ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = self.scrub_exception(record.exc_info[1]).rstrip(), None
        for key, value in list(vars(record).items()):
            setattr(record, key, self.scrub(value))
        return True

    def _current(self) -> Forms:
        known = self._secrets.remembered() if self._secrets is not None else ()
        if known != self._known:
            found = {form for secret in known for form in forms(secret)}
            self._forms, self._known = sorted(found, key=lambda form: (-len(form[0]), form)), known
        return self._forms


class _Pass:
    """One walk over a value. Parts that are shared are walked once."""

    def __init__(self, forms: Forms, known: tuple[str, ...]) -> None:
        self._forms, self._known = forms, known
        self._done: dict[int, Any] = {}

    def scrubbed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes | bytearray):
            text = bytes(value).decode("utf-8", "surrogateescape")
            clean = self._text(text)
            return value if clean is text else type(value)(clean.encode("utf-8", "surrogateescape"))
        if isinstance(value, dict | list | tuple | set | frozenset):
            if id(value) not in self._done:
                self._done[id(value)] = REDACTED
                self._done[id(value)] = self._container(value)
            return self._done[id(value)]
        if isinstance(value, int | float) and not isinstance(value, bool) and self._is_secret(value):
            return REDACTED
        return value

    def _is_secret(self, value: float) -> bool:
        return any(known.strip() == f"{value!r}" for known in self._known if len(known) < 64)

    def _text(self, text: str) -> str:
        joined = unwrapped(text)
        present = [each for form in self._forms for each in form.expressions(text, joined)]
        if not present:
            return text
        pieces, end = [], 0
        # A lookahead finds secrets that overlap; the longest form is tried first.
        for found in re.finditer(f"(?=({'|'.join(present)}))", text):
            begin, stop = found.span(1)
            if begin >= end:
                pieces += [text[end:begin], REDACTED]
            end = max(end, stop)
        return "".join([*pieces, text[end:]]) if pieces else text

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._mapping(value)
        items = [self.scrubbed(item) for item in value]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        base = next(base for base in (list, tuple, set, frozenset) if isinstance(value, base))
        return base(items)

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        clean: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            new_key, new_item = self.scrubbed(key), self.scrubbed(item)
            changed = changed or new_key is not key or new_item is not item
            while new_key in clean:
                new_key = f"{new_key}{REDACTED}"
            clean[new_key] = new_item
        return clean if changed else value
