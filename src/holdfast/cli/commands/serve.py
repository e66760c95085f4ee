"""`holdfast serve` and `holdfast ui`: workflows and runs over HTTP and in a browser."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from holdfast.cli import errors
from holdfast.cli.options import JSON, STORE_ONLY, Options, flag, number, repeated, value
from holdfast.cli.render import print_json
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import lasting_url
from holdfast.mcp import server_class
from holdfast.service.links import KEY_VARIABLE as LINK_KEY
from holdfast.service.links import AnswerLinks
from holdfast.service.roles import TOKEN_VARIABLE, Caller, Tokens, new_token
from holdfast.service.targets import KEY_VARIABLE as WEBHOOK_KEY
from holdfast.service.targets import Target, read_targets
from holdfast.stores.base import namespace_in, namespace_of, shown_url, wanted_namespace
from holdfast.web.serving import (
    LOOPBACK,
    NotServed,
    address_of,
    asgi,
    is_loopback,
    listen,
    login_path,
    open_browser,
    served_beside,
)
from holdfast.web.serving import serve as serve_app

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

    from holdfast.service.service import Service
    from holdfast.stores.base import Store
    from holdfast.workflows.workflow import Workflow

_LOOK = 0.05

WORKFLOWS = click.argument("workflows", metavar="[FOLDER|FILE|MODULE:APP]...", nargs=-1)
HOST = value(
    "--host",
    "ADDRESS",
    "Where to listen; another address than one of this machine needs tokens.",
    default="127.0.0.1",
    show_default=True,
)
PORT = number("--port", 0, "N", "The port; 0 takes a free one.", 8420)
SHARED = (
    number("--concurrency", 1, "N", "How many runs execute at once.", 3),
    flag("--read-only", "Only show runs: execute nothing and change nothing."),
    flag("--allow-inline", "Let clients send workflow files: they may then run any command here."),
    repeated(
        "--allow-host hosts", "NAME", "A name under which the server is reached, as in jobs.example.org."
    ),
)


@command(
    WORKFLOWS,
    HOST,
    PORT,
    value(
        "--token-file",
        "FILE",
        f"Tokens of callers, a line each: NAME:ROLE[@NAMESPACE] TOKEN. {TOKEN_VARIABLE} is one more, for everything.",
        type=click.Path(path_type=Path),
    ),
    repeated(
        "--webhook urls",
        "URL",
        f"Tell this address when runs pause, fail and end, signed with {WEBHOOK_KEY}.",
    ),
    value(
        "--webhook-file",
        "FILE",
        "More of them, a line each: NAME[:EVENTS] URL KEY.",
        type=click.Path(path_type=Path),
    ),
    value("--public-url", "URL", "Where people reach this server: the beginning of answer links."),
    flag("--mcp", "Serve language models under /mcp as well (Model Context Protocol, streamable HTTP)."),
    flag("--tasks", "With --mcp: let runs that take long be tasks (experimental)."),
    SHARED,
    STORE_ONLY,
    JSON,
)
def serve(session: Session, options: Options) -> None:
    """Serve the runs of a store over HTTP, and execute runs of the workflows that are named.

    FOLDER is a folder of workflow files; clients can start these workflows and no others. The API is under /api/v1,
    described by /api/v1/openapi.json; /metrics is for Prometheus. Runs of a server that was killed go on when it is
    started again, and any number of `holdfast worker` processes may share the store.

    Webhooks get an event when a run pauses, fails or ends, at least once. If HOLDFAST_LINK_KEY is set, it has links
    with which a question is answered without a login.

    The server listens to this machine only, where everybody may use it; at another --host, callers need a token. A
    role is read, answer or operate. Ctrl+C lets the steps under way finish and saves the runs.

    \b
    Example:
      holdfast serve workflows/
      holdfast serve workflows/ --mcp
      holdfast serve shop.orders:app --store postgresql://localhost/jobs --port 8080
      holdfast serve workflows/ --host 0.0.0.0 --allow-host jobs.example.org --token-file tokens
    """
    url = lasting_url(session.url())
    tokens = Tokens.read(options.token_file, os.environ, _namespace(url))
    if not is_loopback(options.host) and not tokens:
        raise NotServed(
            f"{options.host} can be reached from other machines, and there are no tokens; give --token-file FILE with "
            f"a line such as `me:operate {new_token()}`, or set {TOKEN_VARIABLE}"
        )
    targets = read_targets(options.urls, options.webhook_file)
    app, listening = _app(url, options, tokens, _mcp(options) if options.mcp else None, targets)
    _serve(session, app, listening, shown_url(url), options)


def _mcp(options: Options) -> Callable[[Service], Any]:
    """Return what makes the server of models of a service."""
    made = server_class()
    return lambda service: made(service, tasks=options.tasks).over_http()


def _namespace(url: str) -> str:
    return namespace_in(url) or wanted_namespace()


def _links(public: str | None, listening: socket.socket) -> AnswerLinks | None:
    """Return what makes answer links, if there is a key for them."""
    key = os.environ.get(LINK_KEY, "")
    return AnswerLinks(key, public or address_of(listening)) if key else None


def _host_of(public: str) -> str:
    """Return the name of the host in the URL where people reach the server."""
    try:
        parts = urlsplit(public)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.hostname
    except ValueError:
        pass
    raise NotServed(f"--public-url is an address such as https://jobs.example.org, not {public!r:.200}")


def _app(
    url: str, options: Options, tokens: Tokens, mcp: Any = None, webhooks: Sequence[Target] = ()
) -> tuple[Starlette, socket.socket]:
    public = getattr(options, "public_url", None)
    hosts = (*LOOPBACK, *(name.lower() for name in options.hosts), *([_host_of(public)] if public else ()))
    listening = listen(options.host, options.port)
    if options.host not in ("0.0.0.0", "::"):
        hosts = (*hosts, options.host)
    app = asgi(
        url,
        options.workflows,
        tokens=tokens,
        hosts=hosts,
        read_only=options.read_only,
        allow_inline=options.allow_inline,
        concurrency=options.concurrency,
        mcp=mcp,
        webhooks=webhooks,
        links=_links(public, listening),
    )
    return app, listening


def _serve(
    session: Session, app: Starlette, listening: socket.socket, store: str, options: Options, link: str = ""
) -> None:
    address = address_of(listening)

    def ready() -> None:
        """Say where it is served, once it is."""
        facts = {
            "address": address,
            "store": store,
            "api": f"{address}/api/v1",
            "read_only": options.read_only,
        }
        if link:
            facts["link"] = f"{address}{link}"
        if session.as_json:
            print_json(facts)
            sys.stdout.flush()
        else:
            click.echo(f"serving {store} at {facts.get('link', address)}; Ctrl+C stops it", err=True)
        if link and not options.no_open:
            open_browser(f"{address}{link}")

    serve_app(app, listening, ready)


@command(
    click.argument("targets", metavar="[RUN|FOLDER|FILE|MODULE:APP]...", nargs=-1),
    PORT,
    flag("--no-open no_open", "Print the link and open no browser."),
    SHARED,
    STORE_ONLY,
    JSON,
)
def ui(session: Session, options: Options) -> None:
    """Look at the runs of a store in a browser, answer what they ask, and execute runs of the workflows named.

    RUN is the id of a run or its beginning, or the name of a workflow, whose latest run is meant: its page is
    opened. The link works once, and gives the browser a session; other programs of this machine get nothing. Without a
    screen the link is only printed.

    \b
    Example:
      holdfast ui
      holdfast ui 3f2a
      holdfast ui workflows/ --no-open
    """
    runs = [each for each in options.targets if not (Path(each).exists() or ":" in each)]
    if len(runs) > 1:
        raise click.UsageError(f"one run is opened, not {len(runs)}; all others are on the page of runs")
    options.workflows = [each for each in options.targets if each not in runs]
    url, run_id = lasting_url(session.url()), ""
    if runs:
        with Session(session.given) as reading:
            run_id = reading.run(runs[0]).run
            url = reading.store.url
    caller = Caller("you", "operate", _namespace(url))
    options.host = "127.0.0.1"
    app, listening = _app(url, options, Tokens([(new_token(), caller)]))
    _serve(session, app, listening, shown_url(url), options, login_path(app, caller, run_id))


def on_a_page(
    workflow: Workflow, store: Store, run_id: str, execute: Callable[[], int], *, no_open: bool
) -> int:
    """Execute a run while its page is served, until Ctrl+C; return the exit code of the run."""
    caller = Caller("you", "operate", namespace_of(store))
    app = asgi(store, [workflow], tokens=Tokens([(new_token(), caller)]))
    listening, is_over = listen("127.0.0.1", 0), threading.Event()
    link = f"{address_of(listening)}{login_path(app, caller, run_id)}"

    def open_page() -> None:
        """Open the page as soon as there is a run to show."""
        while not store.runs(run=run_id):
            if is_over.wait(_LOOK):
                return
        open_browser(link)

    opener = threading.Thread(target=open_page)
    with served_beside(app, listening):
        click.echo(f"the run is shown at {link}", err=True)
        if not no_open:
            opener.start()
        try:
            code = execute()
            if code in (errors.INTERRUPTED, errors.TERMINATED):
                return code
            click.echo("its page is served until Ctrl+C", err=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        finally:
            is_over.set()
            if opener.ident is not None:
                opener.join()
    status = next((info.status for info in store.runs(run=run_id)), "")
    return errors.STATUS_CODES.get(status, errors.FAILED) if code == errors.PAUSED else code
