"""The appends of one commit as statements: one for all that can share it, others for each that cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int8

from holdfast.stores.base import Append
from holdfast.stores.postgres.appending import LARGE_BYTES, LARGE_ENTRIES, Steps, Values, steps_of
from holdfast.stores.postgres.text import to_column

Rows = list[tuple[Any, ...]]

# Entries go in one by one, in the order given; each only where its predecessor is the one that is meant. The
# limits make the server look up each run by itself, however few it believes that there are.
_SHARED = (
    "WITH given AS (SELECT * FROM unnest(%(runs)b::text[], %(afters)b::int8[], %(links)b::bytea[], "
    "%(ats)b::float8[], %(chains)b::bytea[], %(marks)b::bytea[], %(bodies)b::bytea[]) "
    "WITH ORDINALITY AS given (run, after, link, at, chain, mark, body, place)), "
    "head AS (SELECT found.no, given.* FROM given CROSS JOIN LATERAL (SELECT run.no FROM run "
    "WHERE run.namespace = %(namespace)s AND run.run = given.run LIMIT 1 FOR KEY SHARE) AS found "
    "CROSS JOIN LATERAL (SELECT FROM entry WHERE entry.run_no = found.no AND entry.seq = given.after "
    "AND (given.link = ''::bytea OR entry.chain = given.link) LIMIT 1) AS before), "
    "written AS (INSERT INTO entry (run_no, seq, at, chain, mark, body) "
    "SELECT no, after + 1, at, chain, mark, body FROM head ORDER BY place "
    "ON CONFLICT DO NOTHING RETURNING run_no) "
    "SELECT place - 1, no IN (SELECT run_no FROM written) FROM head"
)
"""Answers the places, counted from 0, of the appends whose predecessors are there, and whether each was written."""


class Batch:
    """What writes some appends, and what its answers mean for each of them."""

    def __init__(self, appends: Sequence[Append], namespace: str) -> None:
        # In the order of runs: two batches never wait for each other in a circle.
        order = sorted(range(len(appends)), key=lambda place: appends[place].run)
        self._sharing = _sharing(appends, order) if len(appends) > 1 else []
        others = set(order).difference(self._sharing)
        self._others = [place for place in order if place in others]
        self.steps = [steps_of(appends[place], namespace) for place in self._others]
        if self._sharing:
            values = _values([appends[place] for place in self._sharing], namespace)
            self.steps.append(Steps([(_SHARED, values)], []))

    def refused(self, answers: Sequence[Rows]) -> set[int]:
        """The places of the appends that were not written, by what the steps answered."""
        own = answers[: len(self._others)]
        refused = {place for place, rows in zip(self._others, own, strict=True) if not rows}
        if self._sharing:
            written = {self._sharing[number] for number, stands in answers[-1] if stands}
            refused.update(set(self._sharing) - written)
        return refused


def _sharing(appends: Sequence[Append], order: Sequence[int]) -> list[int]:
    """The places of those that are the commonest: one entry to a run of which the batch has nothing else."""
    times = Counter(append.run for append in appends)
    found: list[int] = []
    size = 0
    for place in order:
        run, after, entries, info, snapshots, _, _ = appends[place]
        if after and len(entries) == 1 and info is None and not snapshots and times[run] == 1:
            size += len(entries[0].body)
            found.append(place)
    return found if 1 < len(found) <= LARGE_ENTRIES and size <= LARGE_BYTES else []


def _values(appends: Sequence[Append], namespace: str) -> Values:
    entries = [append.entries[0] for append in appends]
    return {
        "namespace": namespace,
        "runs": [to_column(append.run) for append in appends],
        "afters": [Int8(append.after) for append in appends],
        "links": [append.link for append in appends],
        "ats": [entry.at for entry in entries],
        "chains": [entry.chain for entry in entries],
        "marks": [entry.mark for entry in entries],
        "bodies": [entry.body for entry in entries],
    }
