"""Comparing two runs that somebody names, their code included."""

from __future__ import annotations

import os

from holdfast.data.seal import Seal
from holdfast.engine.changes import changed_nodes
from holdfast.engine.travel.moments import find_moment
from holdfast.journal.journal import Journal
from holdfast.stores.base import Store
from holdfast.views.comparison import Comparison, comparison
from holdfast.views.plain import CODEC


def compare_runs(store: Store, one: str, other: str) -> Comparison:
    """What two runs did differently; see `App.compare`. None of their code has to be at hand."""
    return compare_moments(Journal(store, Seal.from_environment(os.environ)), one, other)


def compare_moments(journal: Journal, one: str, other: str) -> Comparison:
    """As `compare_runs`, through journals that may have a key of their own."""
    first, second = find_moment(journal.store, one), find_moment(journal.store, other)
    outlines = [journal.load(each.info, CODEC, each.seq).run.outline for each in (first, second)]
    code: dict[str, str] = {}
    if first.info.workflow == second.info.workflow and all(outlines) and outlines[0] != outlines[1]:
        code = changed_nodes(outlines[0], outlines[1])
    return comparison(journal, (first.info, first.seq), (second.info, second.seq), code)
