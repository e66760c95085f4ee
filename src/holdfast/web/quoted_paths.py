"""Routes that are matched on the path as it was sent, so that names in it may have any signs."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.routing import Match, Route
from starlette.types import Scope


class QuotedRoute(Route):
    """A route whose parameters are unquoted one by one: a quoted slash in a name separates nothing."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is for this route, and its parameters."""
        if scope["type"] != "http":
            return Match.NONE, {}
        match, found = super().matches({**scope, "path": quoted_path(scope)})
        params = found.get("path_params", {})
        for name in self.param_convertors.keys() & params.keys():
            params[name] = unquote(params[name])
        return match, found


def quoted_path(scope: Scope) -> str:
    """Return the path of a request as it was sent; what the app is mounted under is as the server says it."""
    path, root = scope["path"], scope.get("root_path", "")
    raw = (scope.get("raw_path") or quote(path).encode()).decode("latin-1").partition("?")[0]
    inner = raw.split("/")[root.count("/") + 1 :]
    return "/".join([root, *inner]) if path.startswith(root) else raw
