"""Addresses of PostgreSQL stores: their URLs, the parameters that are ours, and passwords that are never shown."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import StoreError, closest
from holdfast.stores.base import DEFAULT_NAMESPACE
from holdfast.stores.namespaces import check_namespace, in_namespace, is_cut_short, wanted_namespace

PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE = "HOLDFAST_STORE_PASSWORD", "HOLDFAST_STORE_PASSWORD_FILE"
DEFAULT_SCHEMA = "holdfast"
LONGEST_SCHEMA = 50
"""In bytes: the names of notification channels are built from it, and those have at most 63."""

Given = Sequence[tuple[str, str]]

_URL = re.compile(r"(postgres(?:ql)?)://([^?]*)(?:\?(.*))?", re.DOTALL | re.IGNORECASE)
OWN_PARAMETERS = ("schema", "namespace", "lease", "timeout")
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_DEFAULTS: Mapping[str, str] = {
    "fallback_application_name": "holdfast",
    "connect_timeout": "10",
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_secrets: dict[str, Mapping[str, str]] = {}
"""The secrets of the URLs that this process has seen, by the URLs as they are shown, without our parameters."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database, a schema in it, and a namespace. `url` may be shown; `parameters` are for libpq alone."""

    url: str
    schema: str
    namespace: str
    lease: float
    timeout: float
    parameters: Mapping[str, str] = field(repr=False)


def read_address(url: str, namespace: str | None = None) -> Address:
    """Return the address of `postgresql://…?schema=…&namespace=…&lease=…&timeout=…`.

    Other parameters go to libpq as they are. `Address.url` has no password: it opens the same store again in
    this process, which remembers the password, and elsewhere with `PGPASSWORD` or a password file.
    """
    base, given = _split(url)
    _refuse_unknown(key for key, _ in given)
    own = {key: value for key, value in given if key in OWN_PARAMETERS}
    name = _namespace(namespace, own.get("namespace"))
    shown = _shown(base, [(key, value) for key, value in given if key != "namespace"])
    if name != DEFAULT_NAMESPACE or wanted_namespace() != DEFAULT_NAMESPACE:
        shown = in_namespace(shown, name)
    return Address(
        shown,
        _schema(own.get("schema", DEFAULT_SCHEMA), shown),
        name,
        _seconds("lease", own.get("lease", "15"), 0.1, shown),
        _seconds("timeout", own.get("timeout", "60"), 0.0, shown),
        MappingProxyType(_parameters(base, given, shown)),
    )


def _split(url: str) -> tuple[str, Given]:
    """Split a URL into the part before its query, and the parameters of the query, in order."""
    match = _URL.fullmatch(url)
    if match is None:
        raise StoreError("a PostgreSQL store is named by postgresql://USER@HOST:PORT/DATABASE?PARAMETERS")
    if is_cut_short(match[2], match[3] or ""):
        raise StoreError("a ? in the password of a PostgreSQL URL ends it; write special characters as %XX")
    pairs = [part.partition("=") for part in (match[3] or "").split("&") if part]
    return f"postgresql://{match[2]}", [(unquote(key), unquote(value)) for key, _, value in pairs]


def _refuse_unknown(names: Iterable[str]) -> None:
    known = _known_to_libpq()
    for name in names:
        if name not in OWN_PARAMETERS and name not in known:
            close = closest(name, [*OWN_PARAMETERS, *known])
            question = f"; did you mean {close}?" if close else ""
            raise StoreError(
                f"a PostgreSQL URL has no parameter {name!r:.80}{question} (ours: {', '.join(OWN_PARAMETERS)}; "
                "all others are those of libpq)"
            )


@functools.cache
def _known_to_libpq() -> frozenset[str]:
    """Return the parameters of a URL that libpq takes; `ssl` it takes in URLs only."""
    return frozenset((*(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()), "ssl"))


def _shown(base: str, given: Given) -> str:
    place = base.removeprefix("postgresql://")
    user, at, host = place.rpartition("@")
    name = user.partition(":")[0]
    query = "&".join(f"{key}={quote(value, safe='/,:')}" for key, value in given if key not in _SECRET)
    return f"postgresql://{name}{at if name else ''}{host}{'?' if query else ''}{query}"


def _namespace(given: str | None, of_url: str | None) -> str:
    if given is not None and of_url not in (None, check_namespace(given)):
        raise StoreError(f"the URL names the namespace {of_url!r}, and {given!r} is wanted; give one of them")
    return check_namespace(of_url) if of_url is not None else given or wanted_namespace()


def _parameters(base: str, given: Given, shown: str) -> dict[str, str]:
    """Return the parameters for libpq, secrets included."""
    query = "&".join(
        f"{quote(key)}={quote(value, safe='')}" for key, value in given if key not in OWN_PARAMETERS
    )
    found: dict[str, Any] | None = None
    with suppress(psycopg.Error):
        # A slash in a password would be taken for the end of the host, and what follows for the database.
        if "@" not in base.removeprefix("postgresql://").partition("/")[2]:
            found = conninfo_to_dict(f"{base}?{query}")
    if found is None or not re.fullmatch("[0-9,]*", found.get("port") or ""):
        raise StoreError(
            f"{shown} is not a URL that PostgreSQL understands; write special characters in names and passwords "
            "as %XX"
        )
    plain = {key: str(value) for key, value in found.items() if value not in (None, "")}
    secret = {key: value for key, value in plain.items() if key in _SECRET}
    database = _shown(base, [(key, value) for key, value in given if key not in OWN_PARAMETERS])
    if secret:
        _secrets[database] = secret
    known = {**_password(os.environ), **plain, **_secrets.get(database, {})}
    return {**_DEFAULTS, **known, "client_encoding": "utf8"}


def _password(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the password of the environment, or of the file that it names; else libpq looks for one."""
    if password := environ.get(PASSWORD_VARIABLE):
        return {"password": password}
    file = environ.get(PASSWORD_FILE_VARIABLE)
    if not file:
        return {}
    try:
        return {"password": Path(file).read_text("utf-8").rstrip("\r\n")}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StoreError(
            f"{PASSWORD_FILE_VARIABLE} names {file}, which cannot be read: {reason}; name a file with the password"
        ) from None


def _schema(name: str, shown: str) -> str:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or size > LONGEST_SCHEMA or "\0" in name or name.lower().startswith("pg_"):
        raise StoreError(
            f"{shown}: {name!r} cannot be the schema; use a name of at most {LONGEST_SCHEMA} bytes "
            "that does not begin with pg_"
        )
    return name


def _seconds(name: str, text: str, least: float, shown: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise StoreError(f"{shown}: {name}={text} is not a number of seconds, at least {least:g}")
    return value
