"""`http`: a request; JSON in its response becomes data."""

from __future__ import annotations

import email.utils
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.kind import Plain, Result, rendered
from holdfast.flows.model import Http, Step
from holdfast.flows.world import World

TIMEOUT = 60.0
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


class SendRequest(Plain):
    """Sends a request. Rate limits, server errors, timeouts and broken connections are transient failures."""

    transient_only: ClassVar[bool] = True

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        request = step.http if isinstance(step.http, Http) else Http(url=step.http or "")
        self._http, self._world, self._timeout = request, world, step.timeout or TIMEOUT
        self._url = self.texts.text(request.url)
        self._headers, self._query = self.texts.tree(request.headers), self.texts.tree(request.query)
        self._json = self.texts.tree(request.json_)
        self._body = None if request.body is None else self.texts.text(request.body)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        request = self._request(scope)
        try:
            with urllib.request.build_opener(_SameScheme).open(request, timeout=self._timeout) as response:
                return self._result(response.status, response.headers, self._read(response))
        except urllib.error.HTTPError as error:
            with error:
                return self._result(error.code, error.headers, self._read(error))
        except (TimeoutError, urllib.error.URLError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise StepFailed(
                f"{request.get_method()} {_shown(request.full_url)}: {reason}", transient=True
            ) from None

    def _request(self, scope: Mapping[str, Any]) -> urllib.request.Request:
        url = self._url.render(scope).strip()
        query = {key: value for key, value in rendered(self._query, scope).items() if value is not None}
        if query:
            url += ("&" if "?" in url else "?") + urllib.parse.urlencode(query, doseq=True)
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise StepFailed(f"{_shown(url)!r} is no http or https address")
        headers = {
            "User-Agent": "holdfast",
            **{key: str(value) for key, value in rendered(self._headers, scope).items()},
        }
        body = None if self._body is None else self._body.render(scope).encode()
        if self._http.json_ is not None:
            body = json.dumps(rendered(self._json, scope), ensure_ascii=False).encode()
            headers.setdefault("Content-Type", "application/json")
        method = self._http.method or ("GET" if body is None else "POST")
        try:
            return urllib.request.Request(url, body, headers, method=method)
        except ValueError as error:
            raise StepFailed(f"the request cannot be made: {error}") from None

    def _read(self, response: Any) -> bytes:
        data: bytes = response.read(self._http.max_bytes + 1)
        if len(data) > self._http.max_bytes:
            raise StepFailed(
                f"the response is larger than max_bytes ({self._http.max_bytes}); raise it if that is meant"
            )
        return data

    def _result(self, status: int, headers: Any, data: bytes) -> Result:
        text = data.decode(headers.get_content_charset() or "utf-8", "replace")
        wanted = self._http.ok_status
        if status not in wanted if wanted else not 200 <= status < 300:
            raise StepFailed(
                f"the server answered {status}: {text[:500]}",
                transient=status in _TRANSIENT,
                retry_after=_retry_after(headers.get("Retry-After")),
            )
        kept = {key.lower(): value for key, value in headers.items()}
        return {
            "output": self._data(text, kept.get("content-type", "")),
            "status_code": status,
            "headers": kept,
        }

    def _data(self, text: str, kind: str) -> Any:
        if self._http.output == "text":
            return text
        if self._http.output == "json" or "json" in kind:
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                raise StepFailed(
                    f"the response is no JSON ({error}): {text[:200]!r}", transient=True
                ) from None
        return text


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never to files, and never hands credentials to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new, old = urllib.parse.urlsplit(newurl), urllib.parse.urlsplit(req.full_url)
        if new.scheme not in ("http", "https"):
            raise StepFailed(f"the server redirects to {_shown(newurl)!r}, which is no http or https address")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (new.scheme, new.netloc) != (old.scheme, old.netloc):
            for name in [name for name in request.headers if name.lower() in ("authorization", "cookie")]:
                request.remove_header(name)
        return request


def _shown(url: str) -> str:
    """An address without what may be confidential in it."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    moment = email.utils.parsedate_tz(value)
    return None if moment is None else max(0.0, email.utils.mktime_tz(moment) - time.time())
