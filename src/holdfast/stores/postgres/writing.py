"""The writing connection of a PostgreSQL store: every change to the tables."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.types.numeric import Int8

from holdfast.stores.base import FACTS, Append, Conflict, Entry, RunInfo, Snapshot
from holdfast.stores.postgres.connection import Connection, Server, abandon
from holdfast.threads import locked

# Keeps the order of texts: NUL still sorts before U+0001, and that before all others.
_ESCAPES = {"\1": "\1\2", "\0": "\1\1"}


def to_column(text: str) -> str:
    """Return a text as it is stored: itself, unless it has NUL or U+0001."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", _ESCAPES["\1"]).replace("\0", _ESCAPES["\0"])
    return text


def from_column(text: str) -> str:
    """Return a text as it was before it was stored."""
    if "\1" in text:
        return text.replace(_ESCAPES["\0"], "\0").replace(_ESCAPES["\1"], "\1")
    return text


LARGE_BYTES, LARGE_ENTRIES = 32 << 20, 2000
"""No statement carries more entries than this, nor more bytes if it carries several."""

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

# A concurrent delete or prune of the parent waits, and then sees the fork.
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
    "unnest(%(all_seq)b::int8[], %(all_at)b::float8[], %(all_chain)b::bytea[], %(all_mark)b::bytea[], "
    "%(all_body)b::bytea[]) "
    "AS given"
)
_CHANGES = ", ".join(f"{name} = {_GIVEN[name]}" for name in FACTS[2:])
# A run that is queued again is tried, even if it was held.
_UNHELD = (
    "held = CASE WHEN %(status)s = 'queued' THEN NULL ELSE run.held END, "
    "strikes = CASE WHEN %(status)s = 'queued' THEN 0 ELSE run.strikes END"
)
_HEAD = "head = greatest(run.head, %(head)s)"
_FACTS = f"UPDATE run SET {_CHANGES}, {_HEAD}, {_UNHELD} FROM {{place}} WHERE no = run_no"
REPLACE_FACTS = f"UPDATE run SET {_CHANGES}, {_HEAD} WHERE {_THE_RUN}"
_SNAPSHOTS = (
    "INSERT INTO snapshot (run_no, seq, at, chain, body) SELECT run_no, given.* FROM {place}, "
    "unnest(%(kept_seq)b::int8[], %(kept_at)b::float8[], %(kept_chain)b::bytea[], %(kept_body)b::bytea[]) "
    "AS given ON CONFLICT (run_no, seq) DO UPDATE SET at = excluded.at, chain = excluded.chain, body = excluded.body"
)
_FURTHER = f"{_ENTRIES.format(place='run')} WHERE {_THE_RUN}".replace("SELECT run_no", "SELECT no")


class Steps(NamedTuple):
    """What writes one append: statements of which the last answers a row if it was written, and what then follows."""

    first: list[tuple[str, Values]]
    then: list[tuple[str, Values]]


def steps_of(append: Append, namespace: str) -> Steps:
    """Return the statements that write an append if, and only if, its run ends at `after`."""
    run, after, entries, info, snapshots, _, link = append
    common: Values = {"namespace": namespace, "run": to_column(run)}
    values: Values = {**common, "after": Int8(after), "link": link}
    single, lists = (entries[0], entries[1:]) if after and entries else (None, entries)
    first, *more = list(_pieces(lists)) or [()]
    if single is not None:
        values.update(single._asdict(), seq=Int8(single.seq))
    if first:
        values.update(_arrays("all", first))
    if info is not None:
        values.update(facts_of(info), head=Int8(entries[-1].seq if entries else after))
    if snapshots:
        values.update(_arrays("kept", snapshots, "at chain body"))
    text = _statement(
        after == 0, single is not None, bool(first), info is not None and after > 0, bool(snapshots)
    )
    before = [] if single is not None else [(LOCK, common)]
    if after == 0:
        before = [(_KEEP_PARENT, values)] if info is not None and info.parent else []
        before.append((_NEW_RUN, values))
    return Steps(
        [*before, (text, values)], [(_FURTHER, {**common, **_arrays("all", piece)}) for piece in more]
    )


@cache
def _statement(creates: bool, one: bool, several: bool, facts: bool, snapshots: bool) -> str:
    """Return one statement for all that an append has; what follows the fence happens only behind it."""
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


_TEXTS = ("run", "workflow", "status", "owner", "queue", "origin")


def facts_of(info: RunInfo) -> Values:
    """Return a run's facts as the values of columns."""
    facts: Values = {name: getattr(info, name) for name in FACTS}
    texts = {name: to_column(facts[name]) for name in _TEXTS}
    return {**facts, **texts, "tags": [to_column(tag) for tag in info.tags]}


def read_facts(row: Sequence[Any]) -> RunInfo:
    """Return the facts of a row with the columns `FACTS`."""
    facts: Values = dict(zip(FACTS, row, strict=True))
    texts = {name: from_column(facts[name]) for name in _TEXTS}
    return RunInfo(**{**facts, **texts, "tags": tuple(from_column(tag) for tag in facts["tags"])})


def _pieces(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield the entries in portions that one statement can carry."""
    begin = size = 0
    for place, entry in enumerate(entries):
        if place > begin and (size + len(entry.body) > LARGE_BYTES or place - begin >= LARGE_ENTRIES):
            yield entries[begin:place]
            begin, size = place, 0
        size += len(entry.body)
    if begin < len(entries):
        yield entries[begin:]


def _arrays(prefix: str, items: Sequence[Entry | Snapshot], names: str = "at chain mark body") -> Values:
    """Return the columns of entries or snapshots as arrays."""
    columns: Values = {f"{prefix}_{name}": [getattr(item, name) for item in items] for name in names.split()}
    return {**columns, f"{prefix}_seq": [Int8(item.seq) for item in items]}


Rows = list[tuple[Any, ...]]

# Entries go in one by one, in the order given; each only where its predecessor is the one that is meant. The
# limits make the server look up each run by itself, however few it believes that there are.
_SHARED = (
    "WITH given AS (SELECT * FROM unnest(%(runs)b::text[], %(afters)b::int8[], %(links)b::bytea[], "
    "%(all_at)b::float8[], %(all_chain)b::bytea[], %(all_mark)b::bytea[], %(all_body)b::bytea[]) "
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
            shared = [appends[place] for place in self._sharing]
            values = {
                "namespace": namespace,
                "runs": [to_column(append.run) for append in shared],
                "afters": [Int8(append.after) for append in shared],
                "links": [append.link for append in shared],
                **_arrays("all", [append.entries[0] for append in shared]),
            }
            self.steps.append(Steps([(_SHARED, values)], []))

    def refused(self, answers: Sequence[Rows]) -> set[int]:
        """Return the places of the appends that were not written, by what the steps answered."""
        own = answers[: len(self._others)]
        refused = {place for place, rows in zip(self._others, own, strict=True) if not rows}
        if self._sharing:
            written = {self._sharing[number] for number, stands in answers[-1] if stands}
            refused.update(set(self._sharing) - written)
        return refused


def _sharing(appends: Sequence[Append], order: Sequence[int]) -> list[int]:
    """Return the places of the commonest appends: one entry to a run of which the batch has nothing else."""
    times = Counter(append.run for append in appends)
    found: list[int] = []
    size = 0
    for place in order:
        run, after, entries, info, snapshots, _, _ = appends[place]
        if after and len(entries) == 1 and info is None and not snapshots and times[run] == 1:
            size += len(entries[0].body)
            found.append(place)
    return found if 1 < len(found) <= LARGE_ENTRIES and size <= LARGE_BYTES else []


Cursor = psycopg.Cursor[tuple[Any, ...]]


_NO_OTHER_FORKS = (
    "(%(any_fork)s OR NOT EXISTS (SELECT FROM run AS fork WHERE fork.namespace = run.namespace "
    "AND fork.parent = run.key AND fork.parent <> '' AND fork.key <> ALL(%(forks)b::bytea[])))"
)

_HEADS = (
    "SELECT run, (SELECT max(seq) FROM entry WHERE run_no = no) FROM run "
    "WHERE namespace = %s AND run = ANY(%s::text[])"
)
_PRUNE = (
    f"WITH horizon AS (SELECT run_no FROM run JOIN entry ON run_no = no WHERE {_THE_RUN} AND seq = %(seq)s "
    f"AND {_NO_OTHER_FORKS}), "
    "dropped AS (DELETE FROM entry USING horizon WHERE entry.run_no = horizon.run_no AND seq < %(seq)s RETURNING 1), "
    "older AS (DELETE FROM snapshot USING horizon WHERE snapshot.run_no = horizon.run_no AND seq < %(seq)s), "
    "kept AS (INSERT INTO snapshot (run_no, seq, at, chain, body) "
    "SELECT run_no, %(seq)s, %(at)s, %(chain)b, %(body)b FROM horizon ON CONFLICT (run_no, seq) "
    "DO UPDATE SET at = excluded.at, chain = excluded.chain, body = excluded.body) SELECT count(*) FROM dropped"
)
_DELETE = (
    f"WITH gone AS (DELETE FROM run WHERE {_THE_RUN} AND {_NO_OTHER_FORKS} RETURNING no), "
    "entries AS (DELETE FROM entry USING gone WHERE run_no = no), "
    "snapshots AS (DELETE FROM snapshot USING gone WHERE run_no = no), "
    "messages AS (DELETE FROM inbox USING gone WHERE run_no = no) SELECT count(*) FROM gone"
)
_POST = (
    "INSERT INTO inbox (run_no, number, at, body, token) "
    "SELECT no, (SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE run_no = no), "
    f"extract(epoch FROM clock_timestamp()), %(body)b, %(token)s FROM run WHERE {_THE_RUN} "
    "AND NOT EXISTS (SELECT FROM inbox WHERE run_no = no AND token = %(token)s) "
    "AND %(after)s IN (-1, (SELECT coalesce(max(number), 0) FROM inbox WHERE run_no = no))"
)
_POSTED = (
    "SELECT (SELECT number FROM inbox WHERE run_no = no AND token = %(token)s), "
    f"(SELECT coalesce(max(number), 0) FROM inbox WHERE run_no = no) FROM run WHERE {_THE_RUN}"
)


Result = TypeVar("Result")


def _known(forks: Collection[bytes] | None) -> Values:
    return {"any_fork": forks is None, "forks": list(forks or ())}


class WriteConnection:
    """The writing connection: one thread after the other uses it; if it is lost, it is replaced."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._writer: Writer | None = None
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Reset in a forked child."""
        if self._writer is not None:
            abandon(self._writer.connection)
        self._writer = None
        self._lock = threading.Lock()

    def write(self, action: Callable[[Writer], Result]) -> Result:
        """Return what `action` returns for the writer; retry with another if the server goes away meanwhile."""
        return locked(self._lock, self._server.retry, lambda: self._attempt(action))

    def close(self) -> None:
        """Close the connection, once its user is done."""
        locked(self._lock, self._drop)

    def _attempt(self, action: Callable[[Writer], Result]) -> Result:
        try:
            if self._writer is None:
                self._writer = Writer(self._server.connect(), self._server.address.namespace)
            return action(self._writer)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.connection.close()
            self._writer = None


class Writer:
    """Changes one namespace through one connection. Not thread-safe: its owner holds a lock.

    It must not be used again after an error.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self.connection, self.namespace = connection, namespace
        # Plans are made once, and must be good for tables that grow a thousandfold.
        connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
        assert row is not None
        self._full = str(row[0])
        self._durable = True

    def commit(self, appends: Sequence[Append]) -> list[Conflict | None]:
        """Write the appends in one transaction; answer for each as `Store.commit` promises."""
        self._sync(any(append.durable for append in appends))
        batch = Batch(appends, self.namespace)
        refused = batch.refused(self._written(batch.steps))
        if not refused:
            return [None] * len(appends)
        names = [to_column(appends[place].run) for place in refused]
        rows = self.connection.execute(_HEADS, (self.namespace, names), prepare=True)
        heads = {from_column(run): head for run, head in rows}
        return [
            Conflict(append.run, append.after, heads.get(append.run)) if place in refused else None
            for place, append in enumerate(appends)
        ]

    def prune(self, run: str, horizon: Snapshot, forks: Collection[bytes] | None) -> int:
        """Drop what lies before the horizon; answer how many entries went."""
        values = {"seq": Int8(horizon.seq), "at": horizon.at, "chain": horizon.chain, "body": horizon.body}
        row = self._changed(run, (_PRUNE,), {**values, **_known(forks)})
        return int(row[0] or 0) if row else 0

    def delete(self, run: str, forks: Collection[bytes] | None) -> bool:
        """Remove a run and all that belongs to it."""
        row = self._changed(run, (_DELETE,), _known(forks))
        return bool(row and row[0])

    def post(
        self, run: str, body: bytes, number: int | None, token: uuid.UUID, notice: tuple[str, str]
    ) -> int | Conflict | None:
        """The number of the message with this token, which is new, or was posted before its receipt got lost.

        A `Conflict` if it would not be the `number` that is wanted; `None` if there is no such run.
        """
        channel, payload = notice
        after = Int8(-1 if number is None else number - 1)
        values = {"body": body, "token": token, "after": after, "channel": channel, "payload": payload}
        notify = "SELECT pg_notify(%(channel)s, %(payload)s)"
        row = self._changed(run, (_POST, notify, _POSTED), values)
        if row is None:
            return None
        posted, last = row
        return Conflict(run, (number or 1) - 1, int(last)) if posted is None else int(posted)

    def _written(self, batch: Sequence[Steps]) -> list[Rows]:
        if len(batch) == 1 and len(batch[0].first) == 1 and not batch[0].then:
            # One statement is its own transaction.
            return [self._send(*batch[0].first[0]).fetchall()]
        if any(steps.then for steps in batch):
            with self.connection.transaction():
                answers = []
                for first, then in batch:
                    answers.append([self._send(*each) for each in first][-1].fetchall())
                    for each in then if answers[-1] else ():
                        self._send(*each)
                return answers
        with self._at_once():
            cursors = [[self._send(*each) for each in steps.first][-1] for steps in batch]
        return [cursor.fetchall() for cursor in cursors]

    def _changed(self, run: str, statements: Sequence[str], values: Values) -> tuple[Any, ...] | None:
        """Lock a run, then change it; the row that the last statement answers, if any."""
        self._sync(True)
        all_values = {"namespace": self.namespace, "run": to_column(run), **values}
        with self._at_once():
            cursor = [self._send(statement, all_values) for statement in (LOCK, *statements)][-1]
        return cursor.fetchone()

    def _send(self, text: str, values: Values) -> Cursor:
        return self.connection.execute(text.encode(), values, prepare=True)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """A transaction that costs one round trip: no statement of the block waits for the one before.

        If one of them fails, the connection is left in the middle of it.
        """
        with self.connection.pipeline():
            self.connection.execute("BEGIN")
            yield
            self.connection.execute("COMMIT")

    def _sync(self, durable: bool) -> None:
        """Choose what the next commit survives: power loss of the server, or only the death of this process."""
        if durable is not self._durable:
            level = self._full if durable else "off"
            self.connection.execute(
                "SELECT set_config('synchronous_commit', %s, false)", (level,), prepare=True
            )
            self._durable = durable
