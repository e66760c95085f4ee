"""Who asks: tokens, sessions of browsers, one-time login links, and what protects them from other sites."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from holdfast import clock
from holdfast.errors import HoldfastError
from holdfast.service.roles import Caller, Forbidden, Tokens, Unauthorized
from holdfast.service.service import Service
from holdfast.web.serving import LOOPBACK

COOKIE = "holdfast_session"
SESSION_SECONDS = 12 * 3600.0
LOGIN_SECONDS = 300.0

SAFE = ("GET", "HEAD", "OPTIONS")
MOST_KEPT = 10_000

Kept = TypeVar("Kept")


class RateExceeded(HoldfastError):
    """A caller asks too often."""


class Expiring(Generic[Kept]):
    """Values under names that nobody can guess, each for a while; of too many the oldest are forgotten."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, Kept]] = OrderedDict()

    def add(self, value: Kept) -> str:
        """Keep a value; return its name."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._kept[_hidden(name)] = clock.monotonic() + self._seconds, value
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return name

    def find(self, name: str) -> Kept | None:
        """Return the value of a name, if it is still kept."""
        with self._lock:
            until, value = self._kept.get(_hidden(name), (float("-inf"), None))
        return value if clock.monotonic() < until else None

    def take(self, name: str) -> Kept | None:
        """Return the value of a name, once."""
        with self._lock:
            until, value = self._kept.pop(_hidden(name), (float("-inf"), None))
        return value if clock.monotonic() < until else None


def _hidden(name: str) -> bytes:
    """Return what a name is looked up by, so that the time of a look-up tells nothing of other names."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


class Rate(NamedTuple):
    """So many requests in a second on average, and so many at once."""

    per_second: float
    at_once: int


USUAL = Rate(50.0, 200)
READING = Rate(300.0, 1_000)
"""What requests that change nothing may ask, streams and pages included."""


class Buckets:
    """How much every caller may still ask now."""

    def __init__(self, rate: Rate) -> None:
        self._rate, self._lock = rate, threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> None:
        """Count one request; raise `RateExceeded` if there were too many."""
        now, rate = clock.monotonic(), self._rate
        with self._lock:
            at, left = self._left.pop(who, (now, float(rate.at_once)))
            left = min(float(rate.at_once), left + (now - at) * rate.per_second)
            self._left[who] = now, max(0.0, left - 1.0)
            while len(self._left) > MOST_KEPT:
                self._left.popitem(last=False)
        if left < 1.0:
            raise RateExceeded("too many requests; ask again in a few seconds")


class Login(NamedTuple):
    """What a login link gives: a session as a caller, and the run that is shown first, if it names one."""

    caller: Caller
    run_id: str = ""


class Context:
    """What a request may do: the service of its caller's namespace, sessions, login links and CSRF tokens.

    Without `tokens` everybody who reaches the server may do everything: it must then listen to this machine only.
    `hosts` are the names under which it may be reached, against DNS rebinding.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        *,
        tokens: Tokens | None = None,
        hosts: tuple[str, ...] = LOOPBACK,
        rate: Rate = USUAL,
        anonymous: Caller | None = None,
    ) -> None:
        self.services, self.tokens, self.hosts = dict(services), tokens or Tokens(), hosts
        first = next(iter(self.services))
        self._anonymous = anonymous or Caller("local", "operate", first)
        self.sessions: Expiring[Caller] = Expiring(SESSION_SECONDS)
        self.logins: Expiring[Login] = Expiring(LOGIN_SECONDS)
        self._csrf_key = secrets.token_bytes(32)
        self._changes, self._reads = Buckets(rate), Buckets(READING)
        self._failures = Buckets(Rate(0.2, 10))

    # Who asks.

    def caller(self, request: Request) -> Caller:
        """Return who asks: by token, or by the session of a browser; raise `Unauthorized` otherwise."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            found = self.tokens.find(token.strip())
            if found is None:
                self.count_guess(request)
                raise Unauthorized("this token is not known")
            return found
        session = request.cookies.get(COOKIE)
        if session is not None and (known := self.sessions.find(session)) is not None:
            return known
        if not self.tokens:
            return self._anonymous
        raise Unauthorized(
            "give a token: Authorization: Bearer TOKEN; a browser gets a session from `holdfast ui`"
        )

    def require(self, request: Request, role: str) -> Caller:
        """Return who asks, if they have a role; raise `Forbidden` otherwise, `RateExceeded` if they ask too often."""
        caller = self.caller(request)
        if not caller.may(role):
            raise Forbidden(f"{caller.name!r} has the role {caller.role!r}, and this needs {role!r}")
        buckets = self._reads if request.method in SAFE else self._changes
        buckets.take(f"{caller.namespace}/{caller.name}/{_address(request)}")
        return caller

    def service_of(self, request: Request) -> Service:
        """Return the service of the caller's namespace."""
        found = self.services.get(self.caller(request).namespace)
        if found is None:
            raise Forbidden("the namespace of this token is not served here")
        return found

    def count_guess(self, request: Request) -> None:
        """Count a wrong guess; raise `RateExceeded` if there were too many from one address."""
        self._failures.take(_address(request))

    # Browsers.

    def login(self, request: Request, token: str) -> str:
        """Return a new session for a token; raise `Unauthorized` if it is not known."""
        found = self.tokens.find(token.strip())
        if found is None:
            self.count_guess(request)
            raise Unauthorized("this token is not known")
        return self.sessions.add(found)

    def keep_session(self, answer: Response, session: str, request: Request) -> None:
        """Let the browser that gets an answer keep a session."""
        answer.set_cookie(
            COOKIE,
            session,
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def csrf(self, request: Request) -> str:
        """Return the token that a form of this session carries in its hidden field `csrf`."""
        session = request.cookies.get(COOKIE, "")
        return hmac.new(self._csrf_key, session.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    async def check_csrf(self, request: Request, form: Mapping[str, Any]) -> None:
        """Raise `Forbidden` unless a form that was sent carries the token of its session."""
        given = form.get("csrf")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self.csrf(request).encode()):
            raise Forbidden("this form is out of date, or was sent by another site; load the page again")

    def check_site(self, request: Request) -> None:
        """Refuse requests under another name of this server, and those that another site makes a browser send."""
        host = request.headers.get("host", "")
        if not _is_one_of(host, self.hosts):
            raise Forbidden(
                f"this server is not reached as {host!r:.200}; its operator names the hosts with --allow-host"
            )
        if request.method in SAFE:
            return
        origin = request.headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            raise Forbidden(f"a page of {origin!r:.200} may not change anything here")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Forbidden("a page of another site may not change anything here")


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _place_of(origin: str) -> str:
    """Return the host and port of an origin; nothing if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_one_of(host: str, hosts: tuple[str, ...]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return "*" in hosts or name.lower() in hosts
