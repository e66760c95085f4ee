"""Moments as people name them on the command line: what `find_moment` takes, and beginnings of ids and files too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.reading import reading, reading_run
from holdfast.cli.store_option import meant_run
from holdfast.values import RunStatus

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.stores.base import Store
    from holdfast.views import RunView


def reading_moments(store: str | None, *texts: str) -> tuple[Journal, list[str]]:
    """The journals to read, and each moment as `find_moment` takes it. The first may say, as a file, which store."""
    run, at, place = _parted(texts[0])
    if _is_file(run):
        journal, name = reading_run(store, run)
        texts = (f"{name}{at}{place}", *texts[1:])
    else:
        journal = reading(store)
    return journal, [meant_moment(journal.store, text) for text in texts]


def viewing(store: str | None, text: str) -> tuple[Journal, RunView, str]:
    """The journals to read, a run as it stands or stood at a moment, and, if it is a past one, the words for that."""
    from holdfast.engine.driver import liveness
    from holdfast.engine.travel.moments import checkpoint_at, find_moment
    from holdfast.views import find_run_info, run_view
    from holdfast.views.plain import CODEC
    from holdfast.views.run_view import Driver

    journal, (meant,) = reading_moments(store, text)
    if "@" not in meant or journal.store.runs(run=meant):
        info = find_run_info(journal, meant)
        return journal, run_view(journal, info.run, is_alive=liveness(journal.store)), ""
    moment = find_moment(journal.store, meant)
    view = run_view(journal, moment.info.run, upto=moment.seq)
    status = RunStatus(journal.load(moment.info, CODEC, moment.seq).run.status)
    point = checkpoint_at(journal.store, moment)
    told = (
        f"after wave {point.wave}, at checkpoint {point.id}"
        if point is not None
        else f"at entry {moment.seq}"
    )
    return journal, replace(view, line=replace(view.line, status=status, driver=Driver())), told


def meant_moment(store: Store, text: str) -> str:
    """A moment with the whole id of its run, or the name of its workflow."""
    if store.runs(run=text):
        return text
    run, at, place = _parted(text)
    if _is_file(run):
        from holdfast.flows.flow import load_flow

        run = load_flow(Path(run)).name
    return f"{meant_run(store, run)}{at}{place}"


def _parted(text: str) -> tuple[str, str, str]:
    from holdfast.engine.travel.moments import parted

    run, at, place = parted(text)
    return (run, at, place) if at else (text, "", "")


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()
