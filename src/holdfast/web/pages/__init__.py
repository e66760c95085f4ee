"""The web pages: rendered on the server, live with a little script, and of use without any."""

from __future__ import annotations

from starlette.routing import BaseRoute

from holdfast.web.context import Context
from holdfast.web.pages import compare, costs, fleet, run, runs, workflows
from holdfast.web.pages.rendering import Pages
from holdfast.web.pages.statics import static_route


def page_routes(context: Context) -> list[BaseRoute]:
    """Return the routes of all pages and of the files that they load."""
    pages = Pages(context)
    return [
        static_route(),
        *pages.routes(),
        *runs.routes(pages),
        *compare.routes(pages),
        *run.routes(pages),
        *workflows.routes(pages),
        *costs.routes(pages),
        *fleet.routes(pages),
    ]
