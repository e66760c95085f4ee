"""Who may do what: callers, their roles, the tokens that an operator gives out, and the role that each method needs."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import CONFIGURATION, HoldfastError
from holdfast.stores.base import DEFAULT_NAMESPACE, check_namespace

ROLES = ("read", "answer", "operate")
"""From the least to the most; each may do what those before it may."""

NEEDS: Mapping[str, str] = {
    "answer": "answer",
    **dict.fromkeys(("execute", "execute_inline", "pause", "cancel", "resume", "answer_links"), "operate"),
    **dict.fromkeys(("edit", "skip", "replan", "annotate", "reload", "fsck"), "operate"),
    **dict.fromkeys(("fork", "rerun", "promote", "rollback", "export", "import_"), "operate"),
    **dict.fromkeys(("delete", "delete_checkpoint"), "operate"),
}
"""The role that a method of `Service` needs; `read` for all others. A capsule has the whole state of a run."""

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
"""The environment variable with a token that may do everything."""

SHORTEST = 16
_LINE = re.compile(r"(?P<name>[\w.@-]{1,64}):(?P<role>\w+)(?:@(?P<namespace>\S+))?\s+(?P<token>\S+)")


class TokensInvalid(HoldfastError):
    """A file of tokens or keys cannot be used."""

    exit_code = CONFIGURATION


class Forbidden(HoldfastError):
    """The caller is known, and may not do this."""


class Unauthorized(HoldfastError):
    """The caller gave no token, or one that is not known."""


class Caller(NamedTuple):
    """Somebody who asks something of a service: a name for the journal, a role, and the namespace of their runs."""

    name: str
    role: str = "read"
    namespace: str = DEFAULT_NAMESPACE

    def may(self, role: str) -> bool:
        """Return whether this caller has a role, or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, method: str) -> None:
        """Raise `Forbidden` if this caller may not use a method of `Service`."""
        role = NEEDS.get(method, "read")
        if not self.may(role):
            raise Forbidden(f"{self.name!r} has the role {self.role!r}, and this needs {role!r}")


class Tokens:
    """The tokens that an operator gave out; only their digests are kept."""

    def __init__(self, given: Iterable[tuple[str, Caller]] = ()) -> None:
        self._callers = {_digest(token): caller for token, caller in given}

    def __bool__(self) -> bool:
        return bool(self._callers)

    @property
    def namespaces(self) -> set[str]:
        """The namespaces that callers have."""
        return {caller.namespace for caller in self._callers.values()}

    def find(self, token: str) -> Caller | None:
        """Return whose token it is; every token is compared, each in constant time."""
        digest, found = _digest(token), None
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    @classmethod
    def read(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Tokens:
        """Return the tokens of a file and of the environment.

        A line of the file is `NAME:ROLE[@NAMESPACE] TOKEN`; empty lines and those that begin with # do not count.
        HOLDFAST_TOKEN is one more token, which may do everything.
        """
        given: list[tuple[str, Caller]] = []
        if path is not None:
            given = [_read_line(path, number, line, namespace) for number, line in private_lines(path)]
            if not given:
                raise TokensInvalid(f"{path} has no tokens; write a line such as: ci:operate {new_token()}")
        if token := environ.get(TOKEN_VARIABLE, ""):
            if len(token) < SHORTEST:
                raise TokensInvalid(f"{TOKEN_VARIABLE} has fewer than {SHORTEST} characters")
            given.append((token, Caller("token", "operate", namespace)))
        return cls(given)


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def private_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a file that only its owner may read, with their numbers; those that say nothing left out."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise TokensInvalid(f"{path} can be read by others; make it yours alone with: chmod 600 {path}")
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise TokensInvalid(f"{path} cannot be read: {error}") from None
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip() and not line.startswith("#")]


def _read_line(path: Path, number: int, line: str, namespace: str) -> tuple[str, Caller]:
    found = _LINE.fullmatch(line)
    if found is None or found["role"] not in ROLES or len(found["token"]) < SHORTEST:
        raise TokensInvalid(
            f"{path}:{number}: a line is NAME:ROLE[@NAMESPACE] TOKEN, the role one of {', '.join(ROLES)}, the token "
            f"of {SHORTEST} characters or more"
        )
    return found["token"], Caller(
        found["name"], found["role"], check_namespace(found["namespace"] or namespace)
    )
