"""`holdfast mcp`: workflows and runs as tools of language models."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import click

from holdfast.cli.lines import logged_warnings, scrubbed_records
from holdfast.cli.options import STORE_ONLY, Options, flag, number
from holdfast.cli.session import Session, command
from holdfast.cli.store_option import lasting_url
from holdfast.mcp import server_class

if TYPE_CHECKING:
    from holdfast.mcp.server import McpServer
    from holdfast.service.service import Service


@command(
    click.argument("workflows", nargs=-1, metavar="[FOLDER|FILE|MODULE:APP]..."),
    flag("--read-only", "Offer only tools that look at runs; execute nothing."),
    flag(
        "--allow-inline", "Let clients send workflows of their own, which may run commands on this machine."
    ),
    flag("--tasks", "Let runs that take long be tasks, for clients that know the extension (experimental)."),
    number("--concurrency", 1, "N", "How many runs execute at once.", 3),
    STORE_ONLY,
)
def mcp(session: Session, options: Options) -> None:
    """Serve workflows and runs to a language model, over stdin and stdout (Model Context Protocol).

    A client such as a desktop assistant or an editor starts this command itself; its configuration names the command
    and its arguments. The model can start the workflows that are given here, and no others, look at runs, answer
    their questions, and resume them. Runs survive the client and this process: the next one goes on with them.

    Messages and logs go to stderr. To serve many clients over HTTP, use `holdfast serve`.

    \b
    Example:
      holdfast mcp workflows/
      holdfast mcp shop.orders:app --store postgresql://localhost/jobs
      holdfast mcp --read-only
    """
    mcp_server = server_class()
    from holdfast.service.service import Service

    if sys.stdin.isatty():
        click.echo("waiting for a client on stdin; Ctrl+C stops this server", err=True)
    service = Service(
        lasting_url(session.url()),
        options.workflows,
        read_only=options.read_only,
        allow_inline=options.allow_inline,
        concurrency=options.concurrency,
    )
    scrub = service.catalogue.scrub
    with scrubbed_records(scrub), logged_warnings(scrub), service:
        anyio.run(_serve, mcp_server(service, tasks=options.tasks), service)


async def _serve(server: McpServer, service: Service) -> None:
    """Serve one client until it closes stdin or stdout, or a signal comes."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_on_signal, service)
            await server.serve_stdio()
            tasks.cancel_scope.cancel()
    except* BrokenPipeError:  # The client went away while it was answered.
        pass


async def _end_on_signal(service: Service) -> None:
    """Let the steps under way finish when a signal comes, and end; a second signal ends at once.

    The process is ended from here, since a thread waits for what the client writes next.
    """
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            signal.signal(number, signal.SIG_DFL)
            await anyio.to_thread.run_sync(service.close)
            os._exit(128 + number)
