"""What the commands share that ask something of a run: which run, who asks, and why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.store_option import chosen_url, meant_run, open_existing, open_journal
from holdfast.journal.provenance import me as me

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal

run_argument = click.argument("run", metavar="RUN")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Say why.")
by_option = click.option("--by", metavar="NAME", help="Who asks for it; by default you at this machine.")
json_option = click.option("--json", "json", is_flag=True, help="Print JSON.")


@contextlib.contextmanager
def found_run(run: str, store: str | None) -> Iterator[tuple[Journal, str, str]]:
    """The journals of the store, the id of the run that is meant, and the store's URL."""
    from holdfast.engine.resume import find_run

    url = chosen_url(store)
    opened: Any = open_existing(url)
    try:
        info, _ = find_run(opened, meant_run(opened, run))
        yield open_journal(opened), info.run, url
    finally:
        opened.close()
