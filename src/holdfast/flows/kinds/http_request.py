"""`http`: a request; JSON in its response becomes data."""

from __future__ import annotations

import codecs
import email.utils
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import Any, ClassVar

from holdfast import clock
from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.exchange import Exchange, Reply, address, shown
from holdfast.flows.kinds.json_text import read_json, write_json
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.model import Http, Step
from holdfast.flows.world import World

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
        request = step.http if isinstance(step.http, Http) else Http(url=step.http or "")
        self._http, self._world, self._timeout = request, world, step.timeout or TIMEOUT
        self._url = self.texts.text("http.url" if isinstance(step.http, Http) else "http", request.url)
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
