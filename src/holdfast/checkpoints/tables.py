"""`write_tables`: the runs of a store as ordinary SQL tables with JSON columns, in SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoints.data import CheckpointData, read_checkpoints
from holdfast.errors import CodecError, CorruptJournal, RunNotFound, StoreError, problem_of
from holdfast.graph.graph import base_name
from holdfast.journal.checkpoint_ids import checkpoint_id, decode_checkpoint
from holdfast.journal.copying import last_entry
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import node_of
from holdfast.journal.sealing import is_sealed
from holdfast.stores import SQLITE_SUFFIXES, inspection, open_store
from holdfast.stores.base import (
    DEFAULT_NAMESPACE,
    RunInfo,
    Store,
    StoredCheckpoint,
    is_server,
    make_folders,
    namespace_of,
    shown_url,
    split_namespace,
)
from holdfast.views.plain import View, ViewCodec, plain, when
from holdfast.views.run_view import RunView
from holdfast.views.runs import run_view
from holdfast.views.usage import RunLedger, ledger

TABLES: dict[str, str] = {
    "workflow_checkpoints": """
        id TEXT PRIMARY KEY, workflow_id TEXT NOT NULL, timestamp @time@ NOT NULL, layer_index INTEGER NOT NULL,
        state @json@ NOT NULL, dag_structure @json@ NOT NULL, execution_config @json@ NOT NULL,
        run_id TEXT NOT NULL, workflow_inputs @json@ NOT NULL, execution_waves @json@ NOT NULL, pause_metadata @json@
    """,
    "checkpoints": """
        id TEXT PRIMARY KEY, workflow_name TEXT NOT NULL, workflow_inputs @json@ NOT NULL, current_agent TEXT NOT NULL,
        in_progress TEXT, completed_agents @json@ NOT NULL, agent_outputs @json@ NOT NULL,
        context_snapshot @json@ NOT NULL, iteration INTEGER NOT NULL, created_at @time@ NOT NULL,
        updated_at @time@ NOT NULL, run_id TEXT NOT NULL
    """,
    "runs": """
        run_id TEXT PRIMARY KEY, workflow TEXT NOT NULL, status TEXT NOT NULL, created_at @time@ NOT NULL,
        updated_at @time@ NOT NULL, tags @json@ NOT NULL, queue TEXT NOT NULL, priority INTEGER NOT NULL,
        due_at @time@, inputs @json@, state @json@, output @json@, error @json@, cost DOUBLE PRECISION,
        left_out TEXT, version TEXT NOT NULL
    """,
    "steps": """
        run_id TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
        visits INTEGER NOT NULL, attempts INTEGER NOT NULL, seconds DOUBLE PRECISION NOT NULL, started_at @time@,
        ended_at @time@, output @json@, error @json@, PRIMARY KEY (run_id, number)
    """,
    "ledger": """
        run_id TEXT NOT NULL, number INTEGER NOT NULL, step TEXT NOT NULL, recorded_at @time@ NOT NULL, model TEXT,
        calls INTEGER NOT NULL, input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL,
        cost DOUBLE PRECISION NOT NULL, seconds DOUBLE PRECISION NOT NULL, wasted BOOLEAN NOT NULL,
        PRIMARY KEY (run_id, number)
    """,
}
"""The columns of each table. A run that was left out has a row in `runs` alone, which says why."""

SOURCE = "holdfast_source"
"""The table that says which store the tables are of, and in which form they are."""
FORMAT = 1

_REST = (
    "CREATE INDEX idx_checkpoints_workflow ON workflow_checkpoints (workflow_id, timestamp DESC)",
    "CREATE INDEX idx_created_at ON workflow_checkpoints (timestamp)",
    "CREATE INDEX idx_workflow_checkpoints_run ON workflow_checkpoints (run_id)",
    "CREATE INDEX idx_workflow_name ON checkpoints (workflow_name)",
    "CREATE INDEX idx_updated_at ON checkpoints (updated_at)",
    "CREATE INDEX idx_checkpoints_run ON checkpoints (run_id)",
    "CREATE VIEW checkpoint_states AS SELECT id AS checkpoint_id, workflow_id AS workflow_name, workflow_inputs, "
    "execution_waves, layer_index AS completed_waves, state AS context, timestamp AS created_at, pause_metadata "
    "FROM workflow_checkpoints",
    f"CREATE TABLE {SOURCE} (store TEXT NOT NULL, format INTEGER NOT NULL)",
)
_POINTS = ("workflow_checkpoints", "checkpoints")
_NAMES = (*TABLES, "checkpoint_states", SOURCE)
_ENCRYPTED = "it is encrypted, and its values are not written in the clear"

_BATCH = 100
"""How many runs are one transaction."""

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class TablesReport(View):
    """What `write_tables` did: how many runs and checkpoints it wrote, left as they were, and removed.

    `left_out` are the runs of which only a row in `runs` was written, with the reasons; so many of them are `damaged`.
    """

    JSON = "into runs checkpoints unchanged removed damaged left_out"

    into: str
    runs: int
    checkpoints: int
    unchanged: int
    removed: int
    left_out: Mapping[str, str]
    damaged: int = 0


def write_tables(store: Store | str | os.PathLike[str], into: str | None = None) -> TablesReport:
    """Write the runs of a store to ordinary tables, and remove from these what the store has no more.

    `into` is `sqlite:///PATH` or `postgresql://…`, with `?schema=NAME` (by default `holdfast_tables`); without it the
    tables are beside the store. A second call writes only what is new. Encrypted runs are left out, also with their
    key, and so are damaged ones. Tables of another store, or another program, are refused.
    """
    if isinstance(store, (str, os.PathLike)) and not inspection.exists(os.fspath(store)):
        raise StoreError(
            f"there is no store at {shown_url(os.fspath(store))}; check its path: nothing was written"
        )
    opened = open_store(store) if not isinstance(store, Store) else store
    try:
        with _opened(into or _beside(opened), opened.url, is_beside=not into) as target:
            return _Writing(Journal(opened, None), target).write()
    finally:
        if opened is not store:
            opened.close()


def _beside(store: Store) -> str:
    """Return where the tables of a store are by default."""
    url, namespace = store.url, namespace_of(store)
    if is_server(url):
        of_team = "" if namespace == DEFAULT_NAMESPACE else f"_{namespace}"
        bare = re.sub(r"(?<=[?&])namespace=[^&]*&?", "", url).rstrip("?&")
        if re.search("[?&]schema=", bare):
            return re.sub("([?&]schema=[^&]*)", rf"\1_tables{of_team}", bare)
        return _with_schema(bare, f"holdfast_tables{of_team}")
    place = getattr(store, "path", None) or getattr(store, "directory", None)
    if not isinstance(place, Path):
        raise StoreError(f"{url} has no place for tables beside it; say where to write them: sqlite:///PATH")
    return f"sqlite:///{place.with_name(f'{place.stem}.tables.db')}"


def _with_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


# Where the tables are.


class _Target(Protocol):
    """A database with the tables."""

    url: str
    json: str
    time: str

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement, with `?` for values; return its rows."""
        ...

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Insert rows, except those that are there."""
        ...

    def taken(self, names: Sequence[str]) -> set[str]:
        """Return those of the names that tables and views have."""
        ...

    def transaction(self) -> contextlib.AbstractContextManager[Any]:
        """Open a transaction; inside another one, a part of it that can be undone alone."""
        ...


class _Sqlite:
    """A SQLite file."""

    json, time = "TEXT", "TEXT"

    def __init__(self, path: Path) -> None:
        import apsw

        self.url = f"sqlite:///{path}"
        make_folders(path.parent)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self._connection = apsw.Connection(str(path))
        self._connection.set_busy_timeout(60_000)

    def close(self) -> None:
        self._connection.close()

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(query, values)]

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        for row in rows:
            marks = ", ".join("?" * len(row))
            self._connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", tuple(row))

    def taken(self, names: Sequence[str]) -> set[str]:
        found = self.ask("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        return {name for (name,) in found} & {*names}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._connection.in_transaction:
            with self._connection:
                yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


class _Postgres:
    """A schema of a PostgreSQL database."""

    json, time = "JSONB", "TIMESTAMPTZ"

    def __init__(self, url: str, connection: Any) -> None:
        self.url, self._connection = url, connection

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(query.replace("?", "%s").encode(), values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        found = [tuple(row) for row in rows]
        if found:
            marks = ", ".join(["%s"] * len(found[0]))
            statement = f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING"
            with self._connection.cursor() as cursor:
                cursor.executemany(statement.encode(), found)

    def taken(self, names: Sequence[str]) -> set[str]:
        found = self.ask(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) "
            "AND relkind IN ('r', 'v', 'm', 'p', 'f')"
        )
        return {name for (name,) in found} & {*names}

    def transaction(self) -> contextlib.AbstractContextManager[Any]:
        manager: contextlib.AbstractContextManager[Any] = self._connection.transaction()
        return manager


@contextlib.contextmanager
def _opened(url: str, source: str, is_beside: bool) -> Iterator[_Target]:
    """Open the tables at a URL, which are made if they are missing; refuse those of another store or program.

    Those that are beside a store are of that store, also if both were moved.
    """
    with _connected(url) as target:
        with target.transaction():
            taken = target.taken(_NAMES)
            if SOURCE not in taken:
                if taken:
                    raise StoreError(
                        f"{target.url} has tables of another program: {', '.join(sorted(taken))}; choose another file, "
                        "or another schema with ?schema=NAME"
                    )
                _create(target, source)
        ((known, version),) = target.ask(f"SELECT store, format FROM {SOURCE}")
        if known != source and is_beside:
            target.ask(f"UPDATE {SOURCE} SET store = ?", source)
        elif known != source:
            raise StoreError(
                f"{target.url} has the tables of {known}; choose another file, or another schema with ?schema=NAME"
            )
        if version != FORMAT:
            raise StoreError(f"{target.url} has tables of another version of Holdfast; delete them")
        yield target


def _create(target: _Target, source: str) -> None:
    for table, columns in TABLES.items():
        own = columns.replace("@json@", target.json).replace("@time@", target.time)
        target.ask(f"CREATE TABLE {table} ({' '.join(own.split())})")
    for statement in _REST:
        target.ask(statement)
    target.insert(SOURCE, [(source, FORMAT)])


@contextlib.contextmanager
def _connected(url: str) -> Iterator[_Target]:
    if not is_server(url):
        import apsw

        bare, namespace = split_namespace(url)
        scheme, colon, rest = bare.partition(":")
        path = Path(re.sub("^/{2,3}", "", rest) if colon else bare).expanduser().absolute()
        if (
            namespace
            or (colon and scheme != "sqlite")
            or (not colon and path.suffix.lower() not in SQLITE_SUFFIXES)
        ):
            raise StoreError(
                f"tables are written to sqlite:///PATH or postgresql://…, not to {shown_url(url)!r}; a path ends in "
                f"{', '.join(SQLITE_SUFFIXES)}, and there are no namespaces"
            )
        try:
            with contextlib.closing(_Sqlite(path)) as target:
                yield target
        except (apsw.Error, OSError) as error:
            raise StoreError(f"cannot write tables to {path}: {error}; choose another path") from error
        return
    import psycopg

    from holdfast.stores.postgres.connection import Connections, explain, quoted
    from holdfast.stores.postgres.schema import opening_timeout, server_at

    own = url if re.search("[?&]schema=", url) else _with_schema(url, "holdfast_tables")
    server = server_at(own)
    connections = Connections(server)
    name = quoted(server.address.schema)
    try:
        connections.run(lambda connection: _make_schema(connection, name), opening_timeout(server))
        with connections.borrowed() as connection:
            yield _Postgres(server.address.url, connection)
    except psycopg.Error as error:
        raise explain(error, server.address.url) from error
    finally:
        server.close()
        connections.close()
        server.leave()


def _make_schema(connection: Any, name: str) -> None:
    if connection.execute("SELECT to_regnamespace(%s)", (name,)).fetchone() == (None,):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())


# What is written.


class _Version(NamedTuple):
    """What the rows of a run are made from: they are written again if it changes."""

    text: str
    points: list[StoredCheckpoint]
    sealed: bool


class _Writing:
    """Brings the tables up to date, some runs per transaction."""

    def __init__(self, journal: Journal, target: _Target) -> None:
        self._journal, self._target = journal, target
        self._left_out: dict[str, str] = {}
        self._runs = self._checkpoints = self._unchanged = self._damaged = 0

    def write(self) -> TablesReport:
        """Write what is new, remove what is gone."""
        known: dict[str, str] = dict(self._target.ask("SELECT run_id, version FROM runs"))
        reasons: dict[str, str] = dict(
            self._target.ask("SELECT run_id, left_out FROM runs WHERE left_out IS NOT NULL")
        )
        infos = {_text(info.run): info for info in self._journal.store.runs()}
        gone = [run for run in known if run not in infos]
        with self._target.transaction():
            for run in gone:
                self._remove(run, (*TABLES,))
        remaining = iter(infos.items())
        while batch := list(itertools.islice(remaining, _BATCH)):
            with self._target.transaction():
                for run, info in batch:
                    version = self._version(info)
                    if known.get(run) != version.text:
                        self._write(run, info, version)
                    else:
                        self._unchanged += 1
                        if run in reasons:
                            self._left_out[run] = reasons[run]
        return TablesReport(
            into=self._target.url,
            runs=self._runs,
            checkpoints=self._checkpoints,
            unchanged=self._unchanged,
            removed=len(gone),
            left_out=self._left_out,
            damaged=sum(reason != _ENCRYPTED for reason in self._left_out.values()),
        )

    def _version(self, info: RunInfo) -> _Version:
        points: list[StoredCheckpoint] = []
        last, problem = None, ""
        try:
            last, points = (
                last_entry(self._journal.store, info.run),
                self._journal.store.checkpoints(info.run),
            )
        except CorruptJournal as error:
            problem = problem_of(error)
        facts = (
            info,
            last.seq if last else 0,
            last.chain if last else b"",
            points[-1:],
            len(points),
            problem,
        )
        digest = hashlib.blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
        return _Version(digest, points, last is not None and is_sealed(last.body))

    def _write(self, run: str, info: RunInfo, version: _Version) -> None:
        """Write a run: its facts, its steps and its ledger again, of its checkpoints those that are missing."""
        try:
            if version.sealed:
                raise CodecError(_ENCRYPTED)
            with self._target.transaction():
                self._checkpoints += self._write_all(run, info, version)
        except RunNotFound:
            return  # It was deleted meanwhile: the next call removes what there is of it.
        except (CodecError, CorruptJournal) as error:
            self._left_out[run] = problem_of(error)
            with self._target.transaction():
                self._remove(run, (*TABLES,))
                row = _run_row(run, info, version.text, left_out=self._left_out[run])
                self._target.insert("runs", [row])
        self._runs += 1

    def _write_all(self, run: str, info: RunInfo, version: _Version) -> int:
        """Return how many checkpoints were written."""
        ids = {checkpoint_id(info.key, point.seq): point.seq for point in version.points}
        there = {ident for (ident,) in self._target.ask("SELECT id FROM checkpoints WHERE run_id = ?", run)}
        for ident in there - ids.keys():
            for table in _POINTS:
                self._target.ask(f"DELETE FROM {table} WHERE id = ?", ident)
        self._remove(run, ("runs", "steps", "ledger"))
        view, spent = run_view(self._journal, info.run), ledger(self._journal, info.run)
        self._target.insert("runs", [_run_row(run, info, version.text, view, spent)])
        self._target.insert("steps", _step_rows(run, view))
        self._target.insert("ledger", _ledger_rows(run, spent))
        written, codec, waves = 0, ViewCodec(), _waves(info, version.points)
        after = max((ids[ident] for ident in there & ids.keys()), default=0)
        for data in read_checkpoints(self._journal, info, codec, after):
            for table, row in zip(_POINTS, _point_rows(run, data, waves), strict=True):
                self._target.insert(table, [row])
            codec.renew()
            written += 1
        return written

    def _remove(self, run: str, tables: Iterable[str]) -> None:
        for table in tables:
            self._target.ask(f"DELETE FROM {table} WHERE run_id = ?", run)


def _run_row(
    run: str,
    info: RunInfo,
    version: str,
    view: RunView | None = None,
    spent: RunLedger | None = None,
    left_out: str | None = None,
) -> Row:
    values: list[Any] = [None] * 4
    if view is not None:
        output = None if view.output is None else _json(view.output)
        error = None if view.fault is None else _json(view.fault.as_json())
        values = [_json(view.inputs), _json(view.state), output, error]
    cost = None if spent is None else spent.total.cost
    facts = (run, _text(info.workflow), info.status, _time(info.created_at), _time(info.updated_at))
    due = None if info.due_at is None else _time(info.due_at)
    return (
        *facts,
        _json(list(info.tags)),
        _text(info.queue),
        info.priority,
        due,
        *values,
        cost,
        None if left_out is None else _text(left_out),
        version,
    )


def _step_rows(run: str, view: RunView) -> list[Row]:
    return [
        (
            *(run, number, _text(step.name), step.status, step.visits, step.attempts, step.seconds),
            *(_iso(step.started_at), _iso(step.ended_at)),
            None if step.output is None else _json(step.output),
            None if step.fault is None else _json(step.fault.as_json()),
        )
        for number, step in enumerate(view.steps, 1)
    ]


def _ledger_rows(run: str, spent: RunLedger) -> list[Row]:
    return [
        (
            *(run, number, _text(charge.id), _time(charge.at)),
            None if charge.model is None else _text(charge.model),
            *(charge.spent.calls, charge.spent.input_tokens, charge.spent.output_tokens),
            *(charge.spent.cost, charge.seconds, charge.wasted),
        )
        for number, charge in enumerate(spent.charges, 1)
    ]


def _layers(data: CheckpointData, state: Mapping[str, Any]) -> tuple[int, Any]:
    """Return how many layers are completed and what they are layers of: the graph, or the DAG that the state holds."""
    dag, begun, statuses = state.get("dag"), state.get("layer"), state.get("statuses")
    if data.outline.get("version") != "dag" or not isinstance(begun, int) or not isinstance(statuses, dict):
        return data.completed_waves, data.outline
    return begun - ("running" in statuses.values()), dag


def _point_rows(run: str, data: CheckpointData, waves: Mapping[int, list[str]]) -> tuple[Row, Row]:
    """Return a checkpoint as a row of each of its tables."""
    ident, workflow, done = data.checkpoint_id, _text(data.workflow_name), data.completed_waves
    inputs, state, at = _json(data.workflow_inputs), plain(data.state), _iso(data.created_at)
    following = [base_name(node) for node in data.current]
    executed = [waves.get(number, []) for number in range(1, done + 1)] + ([following] if following else [])
    pause = data.pause_metadata
    asked = None if pause is None else {"block_id": pause.block_id, "prompt": pause.prompt, "response": None}
    layers, structure = _layers(data, state)
    layered = (ident, workflow, at, layers, _dumped({**state, "checkpoint_id": ident}), _json(structure))
    return (
        (*layered, _json(data.config), run, inputs, _json(executed), None if asked is None else _json(asked)),
        (
            *(ident, workflow, inputs, _text(", ".join(following))),
            _text(", ".join(map(base_name, data.started))) if data.started else None,
            _json(list(data.completed)),
            _json(_outputs(data)),
            *(_dumped(state), data.iteration, at, at, run),
        ),
    )


def _outputs(data: CheckpointData) -> dict[str, Any]:
    """Return what each node left behind when it last finished: the output of a file's step, a Python node's update."""
    found: dict[str, Any] = {}
    for step, update in data.outputs.items():
        node = base_name(node_of(step))
        own = update.get(node)
        found[node] = own["output"] if isinstance(own, Mapping) and "output" in own else update
    return found


def _waves(info: RunInfo, points: Sequence[StoredCheckpoint]) -> dict[int, list[str]]:
    """Return the nodes that each wave of a run finished, as far as its checkpoints are there."""
    found: dict[int, list[str]] = {}
    for point in reversed(points):
        saved = decode_checkpoint(info.key, point, info.run)
        if saved.run_wave is not None and saved.nodes:
            found[saved.run_wave] = [base_name(node) for node in saved.nodes]
    return found


def _text(text: str) -> str:
    """Return a text that every database can store."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _json(value: Any) -> str:
    """Return a value as JSON text."""
    return _dumped(plain(value))


def _dumped(value: Any) -> str:
    """Return plain data as JSON text; PostgreSQL knows no character 0."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", r"\1\\\\u0000", text)


def _time(at: float) -> str:
    return str(_iso(when(at)))


def _iso(at: dt.datetime | None) -> str | None:
    """Return a time as text of one length, so that texts are in the order of times."""
    return None if at is None else at.astimezone(dt.UTC).isoformat(timespec="microseconds")
