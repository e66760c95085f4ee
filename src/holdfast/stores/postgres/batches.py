"""The commonest appends, one entry each to many runs, as one statement for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from psycopg.types.numeric import Int8

from holdfast.stores.base import Append
from holdfast.stores.postgres.appending import LARGE_BYTES, LARGE_ENTRIES, Values
from holdfast.stores.postgres.text import to_column

# Entries go in one by one, in the order given; each only where its predecessor is the one that is meant. The
# limits make the server look up each run by itself, however few it believes that there are.
BATCH = (
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
"""Answers the places, counted from 0, of the appends that were at the right place, and whether each was written."""


def batched(appends: Sequence[Append], order: Sequence[int]) -> list[int]:
    """The places, in that order, of the appends that `BATCH` can write together; none if it is not worth it."""
    if len(appends) < 2:
        return []
    times = Counter(append.run for append in appends)
    found: list[int] = []
    size = 0
    for place in order:
        run, after, entries, info, snapshots, _, _ = appends[place]
        if after and len(entries) == 1 and info is None and not snapshots and times[run] == 1:
            size += len(entries[0].body)
            found.append(place)
    return found if 1 < len(found) <= LARGE_ENTRIES and size <= LARGE_BYTES else []


def values_of(appends: Sequence[Append], namespace: str) -> Values:
    """The values of `BATCH` for appends of one entry each."""
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
