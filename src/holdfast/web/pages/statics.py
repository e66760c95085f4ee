"""The files that pages load: the style sheet, the scripts and their licences; addressed by what they contain."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
FOREVER = "public, max-age=31536000, immutable"
FOLDER = files("holdfast.web.pages") / "static"


@lru_cache(maxsize=64)
def read_static(name: str) -> tuple[bytes, str] | None:
    """Return a file and the digest of it; `None` if there is no such file."""
    known = {each.name: each for each in FOLDER.iterdir()}
    if name not in known or "." not in name:
        return None
    data = known[name].read_bytes()
    return data, hashlib.sha256(data).hexdigest()[:16]


def static_path(name: str) -> str:
    """Return the path of a file, which changes with its content."""
    found = read_static(name)
    assert found is not None, name
    return f"/static/{name}?v={found[1]}"


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    found = read_static(name) if len(name) < 100 else None
    if found is None:
        raise HTTPException(404)
    data, digest = found
    etag = f'"{digest}"'
    fresh = request.query_params.get("v") == digest
    headers = {"etag": etag, "cache-control": FOREVER if fresh else "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    kind = KINDS.get(name[name.rfind(".") :], "application/octet-stream")
    return Response(data, headers={**headers, "content-type": kind})


def static_route() -> Route:
    """Return the route of the files that pages load."""
    return Route("/static/{name}", _static, methods=["GET"])
