"""Secrets from the environment, and scrubbing them out of everything that is shown or stored."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import shlex
import threading
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from holdfast.errors import CONFIGURATION, suggestion
from holdfast.workflows.language.values import Missing, Misuse

# The forms in which a secret may turn up in a text: escaped, quoted, encoded, line by line, wrapped.


SHORTEST = 6
"""The fewest characters a secret, or a line of one, needs to be distinct from ordinary text."""

_BASE64 = r"[A-Za-z0-9+/_\-]?"
_BREAK = r"(?:[ \t]*(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n))+[ \t]*"
"""Where a line is broken, as it is or as it is written in JSON, with the blanks around it."""
_GAP = (
    r"(?:[ \t:]{0,3}|(?:[ \t]{1,3}\|[^\n]{0,40}|[ \t]{2}[^\n]{1,20})?(?:\r?\n|\\{1,4}n)[ \t]*"
    r"(?:[0-9A-Fa-f]{6,16}:?[ \t]+)?)"
)
"""What may stand between two bytes of a dump: blanks, or the end of a row and the offset of the next."""
_ROW_END = r"(?:(?:[ \t]{0,2}[0-9A-Fa-f]{2}){0,16}[ \t]{2,60}[^\n]{1,40}(?=\n|\Z))?"
"""The rest of a dump's row, with the characters that its bytes stand for."""
_SIGNS = re.compile("%[0-9A-Fa-f]{2}|.", re.DOTALL)
_BREAKS = re.compile(rf"(?<![ \t]){_BREAK}")
_SPECIAL = re.compile(r"[ !\"$&'()*,;<>?\[\\\]^`{|}]|(?<![^:=])~|^#")
"""What bash writes a backslash before."""


class Form(NamedTuple):
    """A form of a secret: a text that is always part of it, and expressions of what may stand beside that."""

    text: str
    before: str = ""
    after: str = ""

    def expressions(self, searched: str, joined: tuple[str, ...]) -> Iterator[str]:
        """Yield the expressions that find it in a text, in one piece or broken into lines."""
        is_whole = self.text in searched
        if is_whole:
            yield f"{self.before}{re.escape(self.text)}{self.after}"
        found = searched.count(self.text) if is_whole and joined else 0
        if any(self.text in text and text.count(self.text) > found for text in joined):
            yield _wrapped(self)


class Pattern(NamedTuple):
    """A form that is no fixed text: an expression, and a simpler one that finds something wherever it does."""

    text: str
    expression: str
    simpler: str

    def expressions(self, searched: str, joined: tuple[str, ...]) -> Iterator[str]:
        """Yield the expression, if it finds anything in a text."""
        if re.search(self.simpler, searched) and re.search(self.expression, searched):
            yield self.expression


@lru_cache(maxsize=256)
def _wrapped(form: Form) -> str:
    gap = f"(?:{_BREAK})?"
    after = f"(?:{gap}{form.after[:-1]}){form.after[-1]}" if form.after else ""
    return f"{form.before}{gap if form.before else ''}{gap.join(map(re.escape, form.text))}{after}"


def forms(secret: str) -> Iterator[Form | Pattern]:
    """Yield every form of a secret."""
    for part in {secret, secret.strip(), *map(str.strip, secret.splitlines())}:
        if len(part) >= SHORTEST:
            yield from map(Form, _texts(part))
            yield from _base64(part.encode("utf-8", "surrogateescape"))
            spelled = "".join(map(_spelled, _SIGNS.findall(part)))
            yield Pattern(part, spelled, "[%+]" if " " in part else "%")
            yield from _dumped(part)


def _spelled(sign: str) -> str:
    """Return an expression of one character as it is, quoted for a URL, for JSON or for HTML: a URL may mix them.

    What looks quoted already may be left alone, in small or capital letters.
    """
    if len(sign) > 1:
        return f"{_spelled('%')}(?i:{sign[1:]})"
    percent = "".join(f"%(?i:{byte:02x})" for byte in sign.encode("utf-8", "surrogateescape"))
    ways = {re.escape(way) for way in (sign, json.dumps(sign)[1:-1], html.escape(sign))}
    return (
        f"(?:{'|'.join([*sorted(ways, key=len, reverse=True), percent, *([r'[+]'] if sign == ' ' else [])])})"
    )


def _dumped(secret: str) -> Iterator[Pattern]:
    """As `hexdump -C`, `xxd` and `od -t x1` write it: in groups, in rows, between offsets and characters."""
    digits = secret.encode("utf-8", "surrogateescape").hex()
    for written in {digits, digits.upper()}:
        pairs = [written[place : place + 2] for place in range(0, len(written), 2)]
        yield Pattern(secret, f"{_GAP.join(pairs)}{_ROW_END}", _GAP.join(pairs[:4]))


def unwrapped(text: str) -> tuple[str, ...]:
    """Return a text without its line breaks, with and without the blanks around them; nothing if it has none."""
    if "\n" not in text and "\\n" not in text:
        return ()
    return _BREAKS.sub("", text), text.replace("\r", "").replace("\n", "")


def _texts(secret: str) -> Iterator[str]:
    raw = secret.encode("utf-8", "surrogateescape")
    yield secret
    for digits in (raw.hex(), raw.hex().upper()):
        pairs = [digits[place : place + 2] for place in range(0, len(digits), 2)]
        yield from (digits, " ".join(pairs), ":".join(pairs), "".join(f"\\x{pair}" for pair in pairs))
    yield base64.b32encode(raw).decode().rstrip("=")
    escaped = secret.replace("\\", "\\\\")
    yield from (secret.replace("'", "''"), secret.replace('"', '""'))  # As SQL and CSV write it in quotes.
    yield from (escaped.replace("'", "\\'"), escaped.replace("'", "''"), escaped.replace('"', '\\"'))
    yield from _shell(secret)
    yield from (repr(secret)[1:-1], repr(raw)[2:-1], html.escape(secret), html.escape(secret, quote=False))
    yield from (shlex.quote(secret), secret.replace("'", "'\"'\"'"), secret.replace("'", "'\\''"))
    yield from _json(secret)
    for safe in ("", "/", "/:", "~()*!'"):
        for quote in (urllib.parse.quote, urllib.parse.quote_plus):
            quoted = quote(raw, safe=safe)
            yield from (quoted, re.sub("%..", lambda found: found[0].lower(), quoted))


def _shell(secret: str) -> Iterator[str]:
    """As `printf %q` writes it, that of bash and that of coreutils, and as careful people do."""
    yield _SPECIAL.sub(lambda found: f"\\{found[0]}", secret)
    yield re.sub(r"([^\w])", r"\\\1", secret, flags=re.ASCII)
    ansi = "".join(_ANSI.get(sign) or (sign if sign.isprintable() else _octal(sign)) for sign in secret)
    yield from (ansi, "".join(sign if sign.isascii() else _octal(sign) for sign in ansi))
    for control in (re.compile(r"[\x00-\x1f\x7f]+"), re.compile(r"[^ -~]+")):
        quoted = control.sub(
            lambda found: f"'$'{''.join(map(_control, found[0]))}''", secret.replace("'", "'\\''")
        )
        yield quoted.replace("'''\\''", "'\\''").removesuffix("''")


_ANSI = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\E", "\a": "\\a", "\b": "\\b",
         "\f": "\\f", "\v": "\\v"}  # fmt: skip


def _control(sign: str) -> str:
    return _octal(sign) if sign == "\x1b" else _ANSI.get(sign) or _octal(sign)


def _octal(sign: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in sign.encode("utf-8", "surrogateescape"))


def _json(secret: str) -> Iterator[str]:
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield from (escaped, escaped.replace("/", "\\/"))
        yield from (json.dumps(escaped)[1:-1], json.dumps(escaped, ensure_ascii=False)[1:-1])
        for character in "<>&'":
            escaped = escaped.replace(character, f"\\u{ord(character):04x}")
        yield escaped


def _base64(raw: bytes) -> Iterator[Form]:
    """Yield the secret as base64 alone, and as part of something longer, at each of the three alignments."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        alone = encode(raw).decode().rstrip("=")
        yield Form(alone, after="=*")
        for before, foreign in ((0, 0), (1, 2), (2, 3)):
            whole = encode(bytes(before) + raw).decode().rstrip("=")
            partial = (before + len(raw)) % 3 != 0
            core = whole[foreign : len(whole) - partial]
            # The characters at the edges hold bits of the secret and of what stands beside it.
            yield Form(core, _BASE64 if before else "", _BASE64 if partial else "")


REDACTED = "***"
_PREFIXES = ("HOLDFAST_SECRET_", "WORKFLOW_SECRET_", "")
Forms = list[Form | Pattern]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretError(Misuse):
    """A secret cannot be used."""

    exit_code = CONFIGURATION


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
        ours = (
            key.removeprefix(prefix)
            for key in self.__env
            for prefix in _PREFIXES[:2]
            if key.startswith(prefix)
        )
        raise SecretMissing(
            f"the secret {name!r} is not set; set {variables[0]} (or {' or '.join(variables[1:])})"
            f"{suggestion(name, ours)}"
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
        """Return the values that were read so far, for a `Scrubber`."""
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
        """Return the value without secrets; the very same object if it had none.

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
        """Return the error and its traceback as text, without secrets."""
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
                made = self._mapping(value) if isinstance(value, dict) else self._items(value)
                self._done[id(value)] = made
            return self._done[id(value)]
        if isinstance(value, int | float) and not isinstance(value, bool):
            short = (known.strip() for known in self._known if len(known) < 64)
            return REDACTED if repr(value) in short else value
        return value

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

    def _items(self, value: Any) -> Any:
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
