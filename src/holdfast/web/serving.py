"""Serving: the ASGI app for programs, and a server of its own for `holdfast serve` and `holdfast ui`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import CONFIGURATION, HoldfastError, Remedy
from holdfast.service.catalogue import Source
from holdfast.service.links import AnswerLinks
from holdfast.service.reading import beside
from holdfast.service.roles import Caller, Tokens
from holdfast.service.service import Service
from holdfast.service.targets import Target
from holdfast.service.webhooks import Webhooks
from holdfast.stores.base import Store, namespace_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Config

    from holdfast.web.app import Protocols

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names under which a server of this machine is reached."""

PROXIES_VARIABLE = "FORWARDED_ALLOW_IPS"
"""The environment variable of uvicorn with the addresses of proxies whose X-Forwarded-For is believed."""


class ExtraMissing(HoldfastError):
    """A package is missing that this part of Holdfast needs."""

    exit_code = CONFIGURATION


class NotServed(HoldfastError):
    """A server does not start as it would be open to strangers, or as its address is taken."""

    exit_code = CONFIGURATION


@contextlib.contextmanager
def needing_extra() -> Iterator[None]:
    """Name the extra if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn", "anyio"):
            raise
        raise ExtraMissing(
            f"the HTTP API needs the package {package!r}",
            remedies=Remedy(text="install it with: pip install 'holdfast[serve]'"),
        ) from None


def asgi(
    store: str | os.PathLike[str] | Store | None = None,
    workflows: Iterable[Source] = (),
    *,
    service: Service | None = None,
    tokens: Tokens | None = None,
    hosts: Sequence[str] = LOOPBACK,
    read_only: bool = False,
    allow_inline: bool = False,
    concurrency: int = 3,
    pages: bool = True,
    mcp: Protocols | None = None,
    webhooks: Sequence[Target] = (),
    links: AnswerLinks | None = None,
) -> Starlette:
    """Return the HTTP API, and the pages, as an ASGI app that Starlette or FastAPI can mount.

    It owns a `Service` on the store, whose worker runs while the app does (its lifespan, which a server calls; a
    mounted app is started by the lifespan of the app that it is mounted in). With `tokens`, callers need one, and
    see the runs of its namespace; without, everybody who reaches the app may do everything. `hosts` are the names
    under which it may be reached; `"*"` leaves that check to what stands before it. `mcp` makes, of a
    service, what answers under `/mcp`: `lambda service: McpServer(service).over_http()`. `webhooks` get what
    happens to runs; `links` makes links that answer a question without a login.
    """
    if service is None:
        if store is None:
            raise HoldfastError("give a store, or a service")
        service = Service(
            store, workflows, read_only=read_only, allow_inline=allow_inline, concurrency=concurrency
        )
    services = {namespace_of(service.store): service}
    for name in sorted((tokens.namespaces if tokens else set()) - set(services)):
        services[name] = Service(
            beside(service.store, name),
            workflows,
            read_only=read_only,
            allow_inline=allow_inline,
            concurrency=concurrency,
        )
    for each in services.values():
        each.links = links
    if webhooks and service.read_only:
        raise NotServed("a server that only shows runs sends no webhooks: deliveries are stored")
    hooks = [Webhooks(each, webhooks) for each in services.values()] if webhooks else []
    with needing_extra():
        from holdfast.web.app import make_app
        from holdfast.web.context import Context
    context = Context(services, tokens=tokens, hosts=tuple(hosts))
    return make_app(context, pages=pages, mcp=mcp, webhooks=hooks)


def is_loopback(host: str) -> bool:
    """Return whether a server that listens there is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # Else asyncio leaves Nagle on.
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(512)
    except OSError as error:
        found.close()
        raise NotServed(
            f"nothing can be served at {host}, port {port}: {error.strerror or error}",
            remedies=Remedy(text="choose another with --port, or --port 0 for a free one"),
        ) from None
    return found


def _config(app: Starlette) -> Config:
    with needing_extra():
        import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=3,
        lifespan="on",
        h11_max_incomplete_event_size=65_536,
        proxy_headers=PROXIES_VARIABLE in os.environ,
    )


def serve(app: Starlette, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve an app until Ctrl+C or SIGTERM; then the steps under way finish, and the runs are saved."""
    with needing_extra():
        import uvicorn

    server = uvicorn.Server(_config(app))
    original: Any = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await original(sockets=sockets)
        if server.started:
            ready()

    server.startup = startup  # type: ignore[method-assign]
    server.run(sockets=[listening])


@contextlib.contextmanager
def served_beside(app: Starlette, listening: socket.socket) -> Iterator[None]:
    """Serve an app in a thread of its own while this program does something else."""
    with needing_extra():
        import uvicorn

    server = uvicorn.Server(_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="holdfast-pages")
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def address_of(listening: socket.socket) -> str:
    """Return the address at which a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def login_path(app: Starlette, caller: Caller, run_id: str = "") -> str:
    """Return the path of a link that logs a browser in, once, and shows a run, or all."""
    with needing_extra():
        from holdfast.web.context import Login
    return f"/login?code={app.state.context.logins.add(Login(caller, run_id))}"


def open_browser(address: str) -> bool:
    """Open a page in the browser of this machine, if it has a screen; return whether it did."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return has_screen and webbrowser.open(address)
