"""`http`: a request; JSON in its response becomes data."""

from __future__ import annotations

import base64
import codecs
import contextlib
import email.utils
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, ClassVar

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.state.state import State
from holdfast.workflows.errors import StepFailed, StepTimedOut
from holdfast.workflows.kinds.kind import Plain, Result, read_json, write_json
from holdfast.workflows.model import Step
from holdfast.workflows.scope import World

# One request over HTTP and its reply: bounded in time and size, careful with credentials.


_CHUNK = 65536
_LONGEST_HOST = 1000
_PATH, _QUERY = "/%:@!$&'()*+,;=~-._", "/%:@!$&'()*+,;=~-._?[]"
_HARMLESS = {"accept", "accept-encoding", "accept-language", "user-agent"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Message
    body: bytes


class Exchange:
    """A request to be sent once. Redirects are followed, unless their status is one of `wanted`."""

    def __init__(
        self,
        request: urllib.request.Request,
        timeout: float,
        max_bytes: int,
        wanted: Collection[int] = (),
    ) -> None:
        self._request, self._timeout, self._max_bytes, self._wanted = request, timeout, max_bytes, wanted

    def reply(self) -> Reply:
        """The server's answer, whatever its status. Whether a failure is transient is told with it."""
        with _Deadline(self._timeout) as deadline:
            try:
                reply = self._sent(deadline)
            except (OSError, http.client.HTTPException) as error:
                if not deadline.passed and not isinstance(getattr(error, "reason", error), TimeoutError):
                    raise self._failure(getattr(error, "reason", error)) from None
                reply = None
            except ValueError as error:
                raise StepFailed(f"the request cannot be made: {error}") from None
        if reply is None or deadline.passed:
            raise StepTimedOut(f"{self._title} took longer than {self._timeout:g} s")
        return reply

    @property
    def _title(self) -> str:
        return f"{self._request.get_method()} {shown(self._request.full_url)}"

    def _sent(self, deadline: _Deadline) -> Reply:
        proxies = urllib.request.ProxyHandler({} if _is_loopback(self._request.full_url) else None)
        handlers = (proxies, _Plain(deadline), _Secure(deadline), _Redirects(self._wanted))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(self._request, timeout=self._timeout) as response:
                return Reply(response.status, response.headers, self._read(response))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, self._read(error))

    def _read(self, response: Any) -> bytes:
        data = bytearray()
        while chunk := response.read(_CHUNK):
            data += chunk
            if len(data) > self._max_bytes:
                raise StepFailed(
                    f"the response is larger than http.max_bytes ({self._max_bytes:,}); raise it if that is meant"
                )
        source = response.fp if isinstance(response, urllib.error.HTTPError) else response
        if missing := getattr(source, "length", None):
            raise http.client.IncompleteRead(bytes(data), missing)
        return bytes(data)

    def _failure(self, reason: object) -> StepFailed:
        lasting = isinstance(reason, (ssl.SSLCertVerificationError, http.client.InvalidURL))
        text = (
            (reason.strerror if isinstance(reason, OSError) else "") or str(reason) or type(reason).__name__
        )
        return StepFailed(f"{self._title}: {text}", transient=not lasting)


class _Deadline:
    """Ends whatever connections were made when the time is up, however slowly they still deliver."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for known in self._sockets:
                known.close()
            self._sockets = []

    def connect(self, *args: Any, **kwargs: Any) -> socket.socket:
        """A connection as `socket.create_connection` makes it, which ends at the deadline."""
        made = socket.create_connection(*args, **kwargs)
        with self._lock:
            # A second handle: whoever uses the connection closes and wraps the first as it likes.
            self._sockets.append(socket.socket(fileno=os.dup(made.fileno())))
        if self.passed:
            self._end()
        return made

    def _end(self) -> None:
        self.passed = True
        with self._lock:
            for known in self._sockets:
                with contextlib.suppress(OSError):
                    known.shutdown(socket.SHUT_RDWR)


class _Plain(urllib.request.HTTPHandler):
    """Connections over HTTP that a deadline ends."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, **options)
        connection._create_connection = self._deadline.connect  # type: ignore[attr-defined]
        return connection


class _Secure(urllib.request.HTTPSHandler):
    """Connections over HTTPS that a deadline ends."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(host, **options)
        connection._create_connection = self._deadline.connect  # type: ignore[attr-defined]
        return connection


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never to files, and hands what may be credentials to no other place."""

    def __init__(self, wanted: Collection[int]) -> None:
        self._wanted = wanted

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if code in self._wanted or urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            return None
        if req.get_method() not in ("GET", "HEAD") and (code in (307, 308) or req.get_method() != "POST"):
            return None  # It would mean to repeat what was sent.
        newurl, _ = address(newurl, {})
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _origin(newurl) != _origin(req.full_url):
            for name in [name for name in request.headers if name.lower() not in _HARMLESS]:
                request.remove_header(name)
        return request


def address(url: str, query: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """An address as it is sent, with `query` added, and the header for the credentials that were in it.

    Letters that an address cannot have are encoded; what is encoded already stays as it is.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = _host(parts.hostname or ""), parts.port
    except ValueError:
        raise StepFailed(f"http.url: {shown(url)!r} is no address") from None
    if parts.scheme not in ("http", "https") or not host:
        raise StepFailed(f"http.url: {shown(url)!r} is no http or https address")
    added = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)
    place = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    path, given = urllib.parse.quote(parts.path, _PATH), urllib.parse.quote(parts.query, _QUERY)
    joined = "&".join(text for text in (given, added) if text)
    return urllib.parse.urlunsplit((parts.scheme, place, path, joined, "")), dict(_credentials(parts))


def _host(name: str) -> str:
    if len(name) > _LONGEST_HOST:
        raise ValueError("the name of the host is too long")
    return name.encode("idna").decode()


def _credentials(parts: urllib.parse.SplitResult) -> Iterator[tuple[str, str]]:
    if parts.username is not None:
        both = f"{parts.username}:{parts.password or ''}"
        token = base64.b64encode(urllib.parse.unquote(both).encode()).decode()
        yield "Authorization", f"Basic {token}"


def shown(url: str) -> str:
    """An address without what may be confidential in it."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
    except ValueError:
        return url.partition("?")[0][:80]
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


TIMEOUT = 60.0
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONGEST_TYPE = 1000
CHARSETS = frozenset(
    {"utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "ascii"}
    | {
        "gb2312",
        "gbk",
        "gb18030",
        "big5",
        "big5hkscs",
        "shift_jis",
        "cp932",
        "euc_jp",
        "euc_kr",
        "cp949",
        "iso2022_jp",
    }
    | {"koi8-r", "koi8-u", "mac-roman", "tis-620", "cp437", "cp850", "cp866", "cp874"}
)
"""The charsets that responses are read with; any other is read as UTF-8."""

_FAMILIES = ("iso8859-", "cp125")
_NOT_KEPT = {"set-cookie", "set-cookie2"}


class SendRequest(Plain):
    """Sends a request. Rate limits, server errors, timeouts and broken connections are transient failures."""

    transient_only: ClassVar[bool] = True

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        request = step.http
        assert request is not None
        self._http, self._world, self._timeout = request, world, step.timeout or TIMEOUT
        self._url = self.texts.text("http.url", request.url)
        self._headers = self.texts.texts("http.headers", request.headers)
        self._query = self.texts.tree("http.query", request.query)
        self._json = self.texts.tree("http.json", request.json_)
        self._body = None if request.body is None else self.texts.text("http.body", request.body)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        request = self._request(scope)
        exchange = Exchange(request, self._timeout, self._http.max_bytes, self._http.ok_status)
        return self._result(exchange.reply(), request.get_method())

    def _request(self, scope: Mapping[str, Any]) -> urllib.request.Request:
        query = self._query.look(scope)
        url, credentials = address(self._url.render(scope), {key: _plain(query[key]) for key in query})
        headers = {"User-Agent": "holdfast", **credentials}
        headers |= {name.title(): _checked(name, text.render(scope)) for name, text in self._headers.items()}
        body = None
        if self._body is not None:
            body = self._body.render(scope).encode(errors="replace")
            headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        if self._http.json_ is not None:
            body = write_json(self._json.look(scope), "http.json")
            headers.setdefault("Content-Type", "application/json")
        method = self._http.method or ("GET" if body is None else "POST")
        return urllib.request.Request(url, body, headers, method=method)

    def _result(self, reply: Reply, method: str) -> Result:
        status, headers = reply.status, reply.headers
        text = reply.body.decode(_charset(headers), "replace")
        wanted = self._http.ok_status
        if status not in wanted if wanted else not 200 <= status < 300:
            raise StepFailed(
                self._complaint(status, headers, text),
                transient=status in _TRANSIENT,
                retry_after=_retry_after(headers.get("Retry-After")),
            )
        kept: dict[str, str] = {}
        for name, value in headers.items():
            if (key := name.lower()) not in _NOT_KEPT:
                kept[key] = f"{kept[key]}, {value}" if key in kept else value
        data = None if method == "HEAD" else self._data(text, headers.get_content_type())
        return {"output": data, "status_code": status, "headers": kept}

    def _complaint(self, status: int, headers: Message, text: str) -> str:
        target = headers.get("Location") if 300 <= status < 400 else None
        leads = f" and redirects to {shown(target)}, where it is not followed" if target else ""
        said = str(self._world.scrubber.scrub(text)).strip()[:500]
        return f"the server answered {status}{leads}{': ' + said if said else ''}"

    def _data(self, text: str, kind: str) -> Any:
        wanted, is_json = self._http.output, kind == "application/json" or kind.endswith("+json")
        if wanted == "text" or (wanted == "auto" and not is_json):
            return text
        if wanted == "auto" and not text.strip():
            return None
        try:
            return read_json(text.removeprefix("\ufeff"))
        except ValueError as error:
            said = str(self._world.scrubber.scrub(text))[:200]
            raise StepFailed(f"the response is no JSON ({error}): {said!r}", transient=True) from None


def _plain(value: Any) -> Any:
    """A value as it is written in an address: the words of JSON, and data as JSON; a list is several values."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str) or value is None:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _checked(name: str, value: str) -> str:
    if not _HEADER.fullmatch(name):
        raise StepFailed(f"http.headers: {name!r} cannot be the name of a header")
    if re.search(r"[\r\n\0]", value):
        raise StepFailed(f"http.headers.{name}: a header cannot have line breaks")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise StepFailed(f"http.headers.{name}: a header can have only characters of Latin-1") from None
    return value.strip()


def _charset(headers: Message) -> str:
    """The charset of a response, if it is one of texts; some of Python's take time that grows with the square."""
    if len(headers.get("Content-Type", "")) > _LONGEST_TYPE:
        return "utf-8"
    try:
        found = codecs.lookup(headers.get_content_charset() or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return found if found in CHARSETS or found.startswith(_FAMILIES) else "utf-8"


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
        return max(0.0, moment.timestamp() - clock.time())
    except (TypeError, ValueError, OverflowError):
        return None
