"""An append as SQL: one statement that is the fence and the insert in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from psycopg.types.numeric import Int8

from holdfast.stores.base import Append, Entry, RunInfo, Snapshot
from holdfast.stores.postgres.text import to_column

LARGE_BYTES, LARGE_ENTRIES = 32 << 20, 2000
"""No statement carries more entries than this, nor more bytes if it carries several."""

FACTS = tuple(field.name for field in fields(RunInfo))
"""The columns of a run's facts, its id and its key first."""

Values = dict[str, Any]

_THE_RUN = "namespace = %(namespace)s AND run = %(run)s"

LOCK = f"SELECT 1 FROM run WHERE {_THE_RUN} FOR UPDATE"
"""A statement of its own, so that those that follow see what was waited for."""

_TYPES = {"key": "b", "parent": "b", "tags": "s::text[]", "due_at": "s::float8"}
_GIVEN = {name: f"%({name}){_TYPES.get(name, 's')}" for name in FACTS}

_NEW_RUN = (
    f"INSERT INTO run (namespace, {', '.join(FACTS)}, head) "
    f"VALUES (%(namespace)s, {', '.join(_GIVEN.values())}, %(head)s) ON CONFLICT DO NOTHING"
)

# Whoever deletes or prunes the parent meanwhile waits, and then sees the fork.
_KEEP_PARENT = "SELECT 1 FROM run WHERE namespace = %(namespace)s AND key = %(parent)b FOR KEY SHARE"

# A run that others created under this id has another key, and one that has entries is not new.
_NEW = (
    f"SELECT no AS run_no FROM run WHERE {_THE_RUN} AND key = %(key)b "
    "AND NOT EXISTS (SELECT FROM entry WHERE entry.run_no = run.no)"
)
_AT = (
    f"FROM run JOIN entry ON entry.run_no = run.no WHERE {_THE_RUN} "
    "AND entry.seq = %(after)s AND (%(link)b = ''::bytea OR entry.chain = %(link)b)"
)
# Keeps the run from being deleted meanwhile, but not its facts from being changed.
_KEPT = f"{_AT} FOR KEY SHARE OF run"
_FENCED = f"SELECT entry.run_no {_KEPT}"
_NO_NEXT = "NOT EXISTS (SELECT FROM entry AS n WHERE n.run_no = run.no AND n.seq = %(after)s + 1)"
_LAST = f"SELECT entry.run_no {_AT} AND {_NO_NEXT}"

_GIVEN_ENTRY = "%(seq)s, %(at)s, %(chain)b, %(mark)b::bytea, %(body)b"
_INSERT = "INSERT INTO entry (run_no, seq, at, chain, mark, body) SELECT"
_ENTRY = f"{_INSERT} run_no, {_GIVEN_ENTRY} FROM head ON CONFLICT DO NOTHING RETURNING run_no"
# The commonest append, without detours.
_ALONE = f"{_INSERT} entry.run_no, {_GIVEN_ENTRY} {_KEPT} ON CONFLICT DO NOTHING RETURNING 1"
_ENTRIES = (
    f"{_INSERT} run_no, given.* FROM {{place}}, "
    "unnest(%(seqs)b::int8[], %(ats)b::float8[], %(chains)b::bytea[], %(marks)b::bytea[], %(bodies)b::bytea[]) "
    "AS given"
)
_CHANGES = ", ".join(f"{name} = {_GIVEN[name]}" for name in FACTS[2:])
# Whoever queues a run anew wants it tried, whatever kept it from being taken up before.
_TRIED_ANEW = (
    "held = CASE WHEN %(status)s = 'queued' THEN NULL ELSE run.held END, "
    "strikes = CASE WHEN %(status)s = 'queued' THEN 0 ELSE run.strikes END"
)
_HEAD = "head = greatest(run.head, %(head)s)"
_FACTS = f"UPDATE run SET {_CHANGES}, {_HEAD}, {_TRIED_ANEW} FROM {{place}} WHERE no = run_no"
REPLACE_FACTS = f"UPDATE run SET {_CHANGES}, {_HEAD} WHERE no = %(no)s"
_SNAPSHOTS = (
    "INSERT INTO snapshot (run_no, seq, at, chain, body) SELECT run_no, given.* FROM {place}, "
    "unnest(%(kept_seqs)b::int8[], %(kept_ats)b::float8[], %(kept_chains)b::bytea[], %(kept_bodies)b::bytea[]) "
    "AS given ON CONFLICT (run_no, seq) DO UPDATE SET at = excluded.at, chain = excluded.chain, body = excluded.body"
)
_FURTHER = f"{_ENTRIES.format(place='run')} WHERE {_THE_RUN}".replace("SELECT run_no", "SELECT no")


class Steps(NamedTuple):
    """What writes one append: statements of which the last answers a row if it was written, and what then follows."""

    first: list[tuple[str, Values]]
    then: list[tuple[str, Values]]

    @property
    def is_single(self) -> bool:
        """Whether one statement, which is its own transaction, does it all."""
        return len(self.first) == 1 and not self.then


def steps_of(append: Append, namespace: str) -> Steps:
    """What writes an append if, and only if, its run is where it is believed to be."""
    run, after, entries, info, snapshots, _, link = append
    common: Values = {"namespace": namespace, "run": to_column(run)}
    values: Values = {**common, "after": Int8(after), "link": link}
    single, lists = (entries[0], entries[1:]) if after and entries else (None, entries)
    first, *more = list(_pieces(lists)) or [()]
    if single is not None:
        values.update(
            seq=Int8(single.seq), at=single.at, chain=single.chain, mark=single.mark, body=single.body
        )
    if first:
        values.update(_columns(first))
    if info is not None:
        values.update(facts_of(info), head=Int8(entries[-1].seq if entries else after))
    if snapshots:
        values.update(_kept(snapshots))
    text = _statement(
        after == 0, single is not None, bool(first), info is not None and after > 0, bool(snapshots)
    )
    creating = (
        [(_NEW_RUN, values)]
        if info is None or not info.parent
        else [(_KEEP_PARENT, values), (_NEW_RUN, values)]
    )
    before = creating if after == 0 else [] if single is not None else [(LOCK, common)]
    return Steps([*before, (text, values)], [(_FURTHER, {**common, **_columns(piece)}) for piece in more])


@cache
def _statement(creates: bool, one: bool, several: bool, facts: bool, snapshots: bool) -> str:
    """One statement for all that an append has; what follows the fence happens only behind it."""
    if one and not (several or facts or snapshots):
        return _ALONE
    place = "first" if one else "head"
    parts = {
        "head": _NEW if creates else _FENCED if one else _LAST,
        "first": _ENTRY if one else "",
        "more": _ENTRIES.format(place=place) if several else "",
        "facts": _FACTS.format(place=place) if facts else "",
        "kept": _SNAPSHOTS.format(place=place) if snapshots else "",
    }
    listed = ", ".join(f"{name} AS ({part})" for name, part in parts.items() if part)
    return f"WITH {listed} SELECT 1 FROM {place}"


def facts_of(info: RunInfo) -> Values:
    """A run's facts as the values of columns."""
    return {
        "run": to_column(info.run),
        "key": info.key,
        "workflow": to_column(info.workflow),
        "status": to_column(info.status),
        "created_at": info.created_at,
        "updated_at": info.updated_at,
        "driver": to_column(info.driver),
        "tags": [to_column(tag) for tag in info.tags],
        "queue": to_column(info.queue),
        "priority": info.priority,
        "due_at": info.due_at,
        "parent": info.parent,
        "origin": to_column(info.origin),
    }


def _pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in portions that one statement can carry."""
    begin = size = 0
    for place, entry in enumerate(entries):
        if place > begin and (size + len(entry.body) > LARGE_BYTES or place - begin >= LARGE_ENTRIES):
            yield entries[begin:place]
            begin, size = place, 0
        size += len(entry.body)
    if begin < len(entries):
        yield entries[begin:]


def _columns(entries: Sequence[Entry]) -> Values:
    return {
        "seqs": [Int8(entry.seq) for entry in entries],
        "ats": [entry.at for entry in entries],
        "chains": [entry.chain for entry in entries],
        "marks": [entry.mark for entry in entries],
        "bodies": [entry.body for entry in entries],
    }


def _kept(snapshots: Sequence[Snapshot]) -> Values:
    return {
        "kept_seqs": [Int8(each.seq) for each in snapshots],
        "kept_ats": [each.at for each in snapshots],
        "kept_chains": [each.chain for each in snapshots],
        "kept_bodies": [each.body for each in snapshots],
    }
