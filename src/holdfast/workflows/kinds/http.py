"""`http`: one request and its reply, bounded in time and size, careful with credentials; JSON becomes data."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import contextvars
import email.utils
import ipaddress
import json
import logging
import os
import re
import ssl
import urllib.parse
import urllib.request
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, ClassVar

import httpx2

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.state.state import State
from holdfast.workflows.kinds.kind import Kind, Result, read_json, write_json
from holdfast.workflows.model import Step
from holdfast.workflows.scope import Resources, StepFailed, StepTimedOut

TIMEOUT = 60.0
_MOST_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_HOST = _LONGEST_TYPE = 1000
_LONGEST_SHOWN = 200
_HOST = re.compile(r"[A-Za-z0-9._:%~-]*")
_CONTROL = re.compile(r"[^\x09\x0a\x0d\x20-\x7e\xa0-\U0010ffff]")
"""What no address can have; tabs and line breaks in one are left out, as browsers do."""
_PATH, _QUERY = "/%:@!$&'()*+,;=~-._", "/%:@!$&'()*+,;=~-._?[]"
_HARMLESS = {"accept", "accept-encoding", "accept-language", "user-agent", "connection"}
"""The headers that a redirect to another origin keeps: any other may hold credentials."""
_NOT_KEPT = {"set-cookie", "set-cookie2"}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CHARSETS = frozenset({
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "ascii",
    "gb2312", "gbk", "gb18030", "big5", "big5hkscs", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949",
    "iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "tis-620", "cp437", "cp850", "cp866", "cp874",
})  # fmt: skip
"""The charsets that responses are read with; any other is read as UTF-8."""
_FAMILIES = ("iso8859-", "cp125")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server."""

    status: int
    headers: httpx2.Headers
    body: bytes


class SendRequest(Kind):
    """A request. Rate limits, server errors, timeouts and broken connections are transient failures."""

    transient_only: ClassVar[bool] = True
    is_async = True

    def __init__(self, step: Step, resources: Resources) -> None:
        super().__init__(step, resources)
        request = step.http
        assert request is not None
        self._http, self._timeout = request, step.timeout or TIMEOUT

    async def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        request = self._request(scope)
        title = f"{request.method} {shown(str(request.url))}"
        token = _is_private.set(True)
        try:
            async with asyncio.timeout(self._timeout):
                reply = await _reply(request, self._http.max_bytes, self._http.ok_status)
        except TimeoutError:
            raise StepTimedOut(f"{title} took longer than {self._timeout:g} s") from None
        except (httpx2.HTTPError, OSError) as error:
            raise _failure(title, error) from None
        except (httpx2.InvalidURL, ValueError) as error:
            raise StepFailed(f"{title} cannot be sent: {error}") from None
        finally:
            _is_private.reset(token)
        return self._result(reply, request.method)

    def _request(self, scope: Mapping[str, Any]) -> httpx2.Request:
        query, text, data = (self.fill(name, scope) for name in ("query", "body", "json"))
        url, credentials = address(self.fill("url", scope), {key: _plain(query[key]) for key in query})
        headers = {
            "User-Agent": "holdfast",
            "Accept-Encoding": "identity",
            "Connection": "close",
            **credentials,
        }
        given = self.fill("headers", scope)
        headers |= {name.title(): _checked(name, value) for name, value in given.items()}
        body = None
        if text is not None:
            body = text.encode(errors="replace")
            headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        if self._http.json_ is not None:
            body = write_json(data, "http.json")
            headers.setdefault("Content-Type", "application/json")
        method = self._http.method or ("GET" if body is None else "POST")
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return httpx2.Request(method, url, headers=raw, content=body)

    def _result(self, reply: Reply, method: str) -> Result:
        status, headers = reply.status, reply.headers
        kind, charset = _type_and_charset(headers)
        body = _decoded(reply.body, headers.get("content-encoding", ""), self._http.max_bytes)
        text = body.decode(charset, "replace")
        wanted = self._http.ok_status
        if status not in wanted if wanted else not 200 <= status < 300:
            target = headers.get("location") if 300 <= status < 400 else None
            leads = f" and redirects to {shown(target)}, where it is not followed" if target else ""
            said = str(self._resources.scrubber.scrub(text)).strip()[:500]
            message = f"the server answered {status}{leads}{': ' + said if said else ''}"
            after = _retry_after(headers.get("retry-after"))
            raise StepFailed(message, transient=status in _TRANSIENT, retry_after=after)
        kept = {name: value for name, value in headers.items() if name not in _NOT_KEPT}
        data = None if method == "HEAD" else self._data(text, kind)
        return {"output": data, "status_code": status, "headers": kept}

    def _data(self, text: str, kind: str) -> Any:
        wanted, is_json = self._http.output, kind == "application/json" or kind.endswith("+json")
        if wanted == "text" or (wanted == "auto" and not is_json):
            return text
        if wanted == "auto" and not text.strip():
            return None
        try:
            return read_json(text.removeprefix("\ufeff"))
        except ValueError as error:
            said = str(self._resources.scrubber.scrub(text))[:200]
            raise StepFailed(f"the response is no JSON ({error}): {said!r}", transient=True) from None


# The encodings that a server may send a response in, whatever it was asked for.


_COMPRESSED = {"gzip", "x-gzip", "deflate"}
_NOT_DECODED = {"br", "zstd", "compress", "x-compress"}
_MOST_ENCODINGS, _MOST_MEMBERS = 5, 100
_WITH_HEADER, _WITHOUT_HEADER = 47, -15
_GZIP = b"\x1f\x8b"


def _decoded(body: bytes, encodings: str, max_bytes: int) -> bytes:
    """Return a body without its encodings; raise before one of them makes more than `max_bytes` of it."""
    names = [name.strip().lower() for name in encodings.split(",")]
    if len(names) > _MOST_ENCODINGS:
        raise StepFailed(f"the response has more than {_MOST_ENCODINGS} encodings")
    for name in reversed(names):
        if name in _NOT_DECODED:
            raise StepFailed(f"the response cannot be read: {name!r} is an encoding that cannot be decoded")
        if name not in _COMPRESSED or not body:
            continue
        try:
            with contextlib.suppress(zlib.error):
                body = _inflated(body, _WITH_HEADER, max_bytes)
                continue
            body = _inflated(body, _WITHOUT_HEADER, max_bytes)  # As some servers send `deflate`.
        except zlib.error as error:
            raise StepFailed(f"the response cannot be decoded as {name!r}: {error}", transient=True) from None
    return body


def _inflated(body: bytes, window: int, max_bytes: int) -> bytes:
    made = bytearray()
    for _ in range(_MOST_MEMBERS):
        work = zlib.decompressobj(window)
        made += work.decompress(body, max_bytes + 1 - len(made))
        if len(made) > max_bytes:
            raise _too_large(max_bytes)
        if not work.eof:
            raise zlib.error("it breaks off")
        body = work.unused_data
        if not body.startswith(_GZIP):
            return bytes(made)
    raise zlib.error(f"it has more than {_MOST_MEMBERS} parts")


def _too_large(max_bytes: int) -> StepFailed:
    return StepFailed(
        f"the response is larger than http.max_bytes ({max_bytes:,}); raise it if that is meant"
    )


# One exchange with a server.


async def _reply(request: httpx2.Request, max_bytes: int, wanted: Collection[int]) -> Reply:
    """Send a request and read the answer. Redirects are followed, unless their status is one of `wanted`."""
    for _ in range(_MOST_REDIRECTS):
        reply = await _exchange(request, max_bytes)
        following = None if reply.status in wanted else _redirected(request, reply)
        if following is None:
            return reply
        request = following
    return reply


_is_private: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_private", default=False)


def _is_public(record: logging.LogRecord) -> bool:
    """Return False within an exchange: the transport logs headers and URLs, which may hold secrets."""
    return not _is_private.get()


for _part in ("connection", "http11", "http2", "proxy", "socks"):
    logging.getLogger(f"httpcore2.{_part}").addFilter(_is_public)


async def _exchange(request: httpx2.Request, max_bytes: int) -> Reply:
    url = str(request.url)
    context = ssl.create_default_context() if url.startswith("https:") else False
    data = bytearray()
    async with httpx2.AsyncHTTPTransport(verify=context, trust_env=False, proxy=_proxy(url)) as transport:
        response = await transport.handle_async_request(request)
        try:
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
        finally:
            await response.aclose()
    return Reply(response.status_code, response.headers, bytes(data))


def _redirected(request: httpx2.Request, reply: Reply) -> httpx2.Request | None:
    """Return the request that a redirect leads to; None if it is none, or must not be followed."""
    location, method = reply.headers.get("location"), request.method
    if reply.status not in _REDIRECTS or not location:
        return None
    if method not in ("GET", "HEAD") and (reply.status in (307, 308) or method != "POST"):
        return None  # It would mean to repeat what was sent.
    target = urllib.parse.urljoin(str(request.url), location)
    if urllib.parse.urlsplit(target).scheme not in ("http", "https"):
        return None
    url, _ = address(target, {})
    dropped = {"host", "content-length", "content-type", "transfer-encoding"}
    kept = [(name, value) for name, value in request.headers.raw if name.decode().lower() not in dropped]
    if urllib.parse.urlsplit(url)[:2] != urllib.parse.urlsplit(str(request.url))[:2]:
        kept = [(name, value) for name, value in kept if name.decode().lower() in _HARMLESS]
    return httpx2.Request("GET" if method == "POST" else method, url, headers=kept)


def _failure(title: str, error: BaseException) -> StepFailed:
    """Return the failure of a step whose request could not be sent or answered."""
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(below)
    lasting = any(isinstance(each, ssl.SSLCertVerificationError) for each in chain)
    number = next((each.errno for each in reversed(chain) if isinstance(each, OSError) and each.errno), 0)
    text = os.strerror(number) if number > 0 and not lasting else str(error)
    return StepFailed(f"{title}: {text or type(error).__name__}", transient=not lasting)


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL; none is asked for this machine itself."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost" or host.endswith(".localhost")
    if is_here or urllib.request.proxy_bypass(host):
        return None
    known = urllib.request.getproxies()
    return known.get(parts.scheme) or known.get("all")


def address(url: str, query: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return an address as it is sent, with `query` added, and the header for the credentials that were in it.

    Characters that an address cannot have are encoded; what is encoded already stays as it is.
    """
    url = url.strip()
    try:
        if found := _CONTROL.search(url):
            raise ValueError(f"it has the control character {found[0]!r}")
        parts = urllib.parse.urlsplit(url)
        name, port = parts.hostname or "", parts.port
        if len(name) > _LONGEST_HOST:
            raise ValueError("the name of its host is too long")
        host = _ascii_host(name)
        if parts.scheme not in ("http", "https") or not host:
            raise StepFailed(f"http.url: {shown(url)!r} is no http or https address")
        added = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)
        place = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
        path, given = urllib.parse.quote(parts.path, _PATH), urllib.parse.quote(parts.query, _QUERY)
        joined = "&".join(text for text in (given, added) if text)
        credentials = {}
        if parts.username is not None:
            both = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            credentials["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        sent = urllib.parse.urlunsplit((parts.scheme, place, path, joined, ""))
        httpx2.URL(sent)
    except (httpx2.InvalidURL, ValueError) as error:
        reason = "a character cannot be encoded" if isinstance(error, UnicodeEncodeError) else error
        raise StepFailed(f"http.url: '{shown(url)}' is no address: {reason}") from None
    return sent, credentials


def _ascii_host(name: str) -> str:
    try:
        host = name.encode("idna").decode()
    except UnicodeError:
        host = " "
    if not _HOST.fullmatch(host):
        raise ValueError("its host is no domain name")
    return host


def shown(url: str) -> str:
    """Return an address without what may be confidential in it, and with escapes for what cannot be printed."""
    try:
        printable = (sign if sign.isprintable() else repr(sign)[1:-1] for sign in url.strip())
        parts = urllib.parse.urlsplit("".join(printable))
    except ValueError:
        return re.sub("//[^/]*@", "//", url.partition("?")[0])[:_LONGEST_SHOWN]
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, "", ""))[:_LONGEST_SHOWN]


def _plain(value: Any) -> Any:
    """Return a value as it is written in an address: the words of JSON, data as JSON; a list is several values."""
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


def _type_and_charset(headers: httpx2.Headers) -> tuple[str, str]:
    """Return the type of a response, and its charset if it is one of texts; some of Python's take quadratic time."""
    message, value = Message(), headers.get("content-type", "")
    if value and len(value) <= _LONGEST_TYPE:
        message["Content-Type"] = value
    try:
        found = codecs.lookup(message.get_content_charset() or "utf-8").name
    except (LookupError, ValueError):
        found = "utf-8"
    is_known = found in CHARSETS or found.startswith(_FAMILIES)
    return message.get_content_type(), found if is_known else "utf-8"


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        return float(value)
    try:
        time = email.utils.parsedate_to_datetime(value)
        return max(0.0, time.timestamp() - clock.time())
    except (TypeError, ValueError, OverflowError):
        return None
