"""One request over HTTP and its reply: bounded in time and size, careful with credentials."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from holdfast.flows.errors import StepFailed, StepTimedOut

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
