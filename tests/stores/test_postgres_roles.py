"""Namespaces on PostgreSQL: a role that is admitted to one neither sees nor changes another's runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.base import Append, namespace_of
from holdfast.stores.postgres.background import topic_of
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import PostgresServer
from tests.stores.journals import add, create, entry, info, seqs, snapshot

TABLES = ("run", "entry", "snapshot", "inbox", "lease", "queue", "schedule", "member", "topic_key")
VIEWS = ("runs", "steps", "checkpoints")


@pytest.fixture
def stores(postgres_url: str, postgres_server: PostgresServer) -> Iterator[dict[str, PostgresStore]]:
    """The owner's stores of two namespaces, and one of the role `alice`, who is admitted to the first."""
    schema = postgres_url.partition("schema=")[2]
    with ExitStack() as stack:
        owners = {name: PostgresStore(postgres_url, namespace=name) for name in ("ours", "theirs")}
        for owner in owners.values():
            stack.callback(owner.close)
        postgres_server.sql("CREATE ROLE alice LOGIN")
        stack.callback(lambda: postgres_server.sql("DROP OWNED BY alice; DROP ROLE alice"))
        postgres_server.sql(f"SELECT {schema}.admit('alice', 'ours')")
        alice = PostgresStore(as_alice(postgres_url), namespace="ours")
        stack.callback(alice.close)
        yield {**owners, "alice": alice}


def as_alice(url: str) -> str:
    return url.replace("postgres@", "alice@")


def filled(store: PostgresStore, run: str) -> None:
    """A run with something in every table that a run fills."""
    create(store, run, upto=2)
    store.commit([Append(run, 2, [entry(3)], snapshots=[snapshot(2)])])
    store.post(run, b"hello")
    store.lease()
    with store.transaction() as connection:
        connection.execute("INSERT INTO queue (namespace, name) VALUES (%s, %s)", (store.namespace, run))
        connection.execute(
            "INSERT INTO schedule (namespace, name, cron, zone, workflow, config, input, queue, missed, next_at) "
            "VALUES (%s, %s, '', '', '', '', '', '', 'skip', now())",
            (store.namespace, run),
        )


def test_a_store_sees_the_runs_of_its_own_namespace_alone(postgres_url: str) -> None:
    """S2.4: data is isolated; ids and keys of one namespace are free in every other."""
    ours, theirs = (open_store(f"{postgres_url}&namespace={name}") for name in ("ours", "theirs"))
    assert (namespace_of(ours), namespace_of(theirs)) == ("ours", "theirs")
    create(ours, upto=3)
    create(theirs, upto=2, key=b"theirkey")

    assert seqs(ours) == [1, 2, 3] and seqs(theirs) == [1, 2]
    assert [each.key for each in ours.runs()] == [info("r").key]
    assert ours.runs(key=b"theirkey") == [] and theirs.runs(key=info("r").key) == []
    create(ours, "s", key=b"theirkey")
    theirs.post("r", b"hello")
    assert ours.inbox("r") == []
    assert theirs.delete("r") and seqs(ours) == [1, 2, 3] and seqs(ours, "s") == [1]
    with pytest.raises(StoreError, match="names the namespace 'ours', and 'theirs' is wanted"):
        open_store(ours.url, namespace="theirs")
    ours.close()
    theirs.close()


def test_the_environment_names_the_namespace_and_the_url_keeps_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "team-a")
    of_team, by_default = open_store(postgres_url), open_store(postgres_url, namespace="default")
    create(of_team)
    assert by_default.runs() == []
    monkeypatch.delenv("HOLDFAST_NAMESPACE")

    again = open_store(of_team.url)

    assert namespace_of(again) == "team-a" and len(again.runs()) == 1
    for store in (of_team, by_default, again):
        store.close()


def test_a_member_works_in_its_namespace_as_the_owner_does(stores: dict[str, PostgresStore]) -> None:
    alice = stores["alice"]
    filled(alice, "mine")
    filled(stores["ours"], "owner's")

    assert seqs(alice, "mine") == seqs(alice, "owner's") == [1, 2, 3]
    assert add(alice, "owner's", 3) is None and add(stores["ours"], "mine", 3) is None
    assert alice.prune("mine", snapshot(2)) == 1 and alice.delete("owner's")
    assert alice.is_live(alice.lease()) and alice.is_live(stores["ours"].lease())
    assert len(alice.inbox("mine")) == 1 and alice.changed("mine", 0)


def test_a_member_sees_nothing_of_another_namespace_even_with_sql_of_its_own(
    stores: dict[str, PostgresStore],
) -> None:
    filled(stores["theirs"], "secret")
    filled(stores["ours"], "open")

    with stores["alice"].transaction() as connection:
        seen = {
            table: connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            for table in (*TABLES, *VIEWS)
        }

    assert "secret" not in repr(seen) and "theirs" not in repr(seen)
    assert len(seen["run"]) == len(seen["runs"]) == len(seen["queue"]) == len(seen["lease"]) == 1
    assert len(seen["entry"]) == len(seen["checkpoints"]) == 3 and len(seen["inbox"]) == 1


FORBIDDEN = (
    "INSERT INTO run (namespace, run, key, workflow, status, created_at, updated_at, owner) "
    "VALUES ('theirs', 'x', 'x', '', '', 1, 1, '')",
    "INSERT INTO entry VALUES ({no}, 99, 1, '', '', '')",
    "INSERT INTO snapshot VALUES ({no}, 99, 1, '', '')",
    "INSERT INTO inbox VALUES ({no}, 99, 1, '', gen_random_uuid())",
    "INSERT INTO lease (id, namespace, host, pid, until) VALUES (gen_random_uuid(), 'theirs', '', 1, now())",
    "INSERT INTO queue (namespace, name) VALUES ('theirs', 'x')",
    "INSERT INTO run (no, namespace, run, key, workflow, status, created_at, updated_at, owner) "
    "OVERRIDING SYSTEM VALUE VALUES ({no} + 1, 'ours', 'x', 'x', '', '', 1, 1, '')",
    "UPDATE run SET no = DEFAULT",
    "UPDATE run SET namespace = 'theirs'",
    "UPDATE entry SET run_no = {no}",
    "INSERT INTO member VALUES ('alice', 'theirs')",
    "DELETE FROM member",
    "SELECT admit('alice', 'theirs')",
    "SELECT dismiss('alice', 'ours')",
    "UPDATE schema_version SET version = 99",
    "ALTER TABLE run DISABLE ROW LEVEL SECURITY",
    "CREATE TABLE mine (x int)",
    "TRUNCATE entry",
)
"""What a member must not be able to do, where `{no}` is the number of somebody else's run."""


def test_a_member_writes_nothing_into_another_namespace(stores: dict[str, PostgresStore]) -> None:
    theirs, alice = stores["theirs"], stores["alice"]
    create(theirs, "secret")
    create(alice, "mine")
    with theirs.transaction() as connection:
        row = connection.execute("SELECT no FROM run WHERE run = 'secret'").fetchone()
        assert row is not None

    for statement in FORBIDDEN:
        refused = pytest.raises(StoreError, match=r"row-level security|permission denied|must be owner")
        with refused, alice.transaction() as connection:
            connection.execute(statement.format(no=row[0]).encode())

    assert seqs(theirs, "secret") == [1] and theirs.inbox("secret") == []


def test_a_member_changes_and_removes_nothing_of_another_namespace(stores: dict[str, PostgresStore]) -> None:
    filled(stores["theirs"], "secret")

    with stores["alice"].transaction() as connection:
        for table in ("run", "entry", "snapshot", "inbox", "queue", "schedule"):
            assert connection.execute(f"DELETE FROM {table}".encode()).rowcount == 0
        assert connection.execute("UPDATE run SET status = 'x'").rowcount == 0
        assert connection.execute("SELECT 1 FROM run FOR UPDATE").fetchall() == []

    assert seqs(stores["theirs"], "secret") == [1, 2, 3]


def test_a_namespace_that_a_role_is_not_admitted_to_is_refused(stores: dict[str, PostgresStore]) -> None:
    with pytest.raises(
        StoreError, match=r"role alice is not admitted to the namespace 'theirs'; SELECT .*\.admit"
    ):
        PostgresStore(stores["alice"].url.replace("namespace=ours", "namespace=theirs"))

    with stores["ours"].transaction() as connection:
        connection.execute("SELECT dismiss('alice', 'ours')")
    with pytest.raises(StoreError, match="not admitted to the namespace 'ours'"):
        PostgresStore(stores["alice"].url)
    assert stores["alice"].runs() == []


def test_a_role_that_only_looks_cannot_write(
    stores: dict[str, PostgresStore], postgres_server: PostgresServer
) -> None:
    create(stores["theirs"])
    postgres_server.sql("CREATE ROLE guest LOGIN")
    try:
        with stores["theirs"].transaction() as connection:
            connection.execute("SELECT admit('guest', 'theirs', reads_only => true)")
        guest = PostgresStore(stores["theirs"].url.replace("postgres@", "guest@"))
        assert seqs(guest) == [1]
        with pytest.raises(StoreError, match="permission denied"):
            add(guest, "r", 1)
        guest.close()
    finally:
        postgres_server.sql("DROP OWNED BY guest; DROP ROLE guest")


def test_members_of_a_group_are_admitted_with_it_and_dropped_roles_disturb_nobody(
    stores: dict[str, PostgresStore], postgres_server: PostgresServer
) -> None:
    postgres_server.sql("CREATE ROLE team; CREATE ROLE gone; GRANT team TO alice")
    try:
        with stores["theirs"].transaction() as connection:
            connection.execute("SELECT admit('team', 'theirs'), admit('gone', 'theirs')")
        postgres_server.sql("DROP OWNED BY gone; DROP ROLE gone")
        create(stores["theirs"])
        member = PostgresStore(stores["alice"].url.replace("namespace=ours", "namespace=theirs"))
        assert seqs(member) == [1] and add(member, "r", 1) is None
        member.close()
    finally:
        postgres_server.sql("DROP OWNED BY team; DROP ROLE team")


def test_a_role_without_rights_is_told_what_to_do(postgres_url: str, postgres_server: PostgresServer) -> None:
    schema = postgres_url.partition("schema=")[2]
    postgres_server.sql("CREATE ROLE alice LOGIN")
    try:
        with pytest.raises(
            StoreError, match=r"may not create it .*; run `holdfast store migrate` as the owner"
        ):
            PostgresStore(as_alice(postgres_url))
        assert postgres_server.sql("SELECT to_regnamespace(%s)", schema) == [(None,)]

        PostgresStore(postgres_url).close()
        with pytest.raises(StoreError, match=r"permission denied for schema .*admit"):
            PostgresStore(as_alice(postgres_url))

        postgres_server.sql(f"SELECT {schema}.admit('alice', 'default')")
        PostgresStore(as_alice(postgres_url)).close()
    finally:
        postgres_server.sql("DROP OWNED BY alice; DROP ROLE alice")


def test_a_wrong_password_is_refused_at_once_and_not_shown(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    """Passwords are asked of one role alone: the server's rules are changed for it, and put back."""
    rules = postgres_server.folder / "pg_hba.conf"
    before = rules.read_text()
    postgres_server.sql("CREATE ROLE alice LOGIN PASSWORD 'right-one'")
    rules.write_text(f"local all alice scram-sha-256\n{before}")
    postgres_server.sql("SELECT pg_reload_conf()")
    url = as_alice(postgres_url)
    try:
        with pytest.raises(
            StoreError, match="set PGPASSWORD, or put the password into a password file"
        ) as missing:
            PostgresStore(url)
        with pytest.raises(StoreError, match="password authentication failed") as wrong:
            PostgresStore(url.replace("alice@", "alice:wrong-one@"))
        assert "wrong-one" not in str(wrong.value) + str(missing.value) + repr(wrong.value.__cause__)
        PostgresStore(postgres_url).close()
        postgres_server.sql(f"SELECT {postgres_url.partition('schema=')[2]}.admit('alice', 'default')")
        store = PostgresStore(url.replace("alice@", "alice:right-one@"))
        create(store)
        assert "right-one" not in store.url and seqs(store) == [1]
        store.close()
    finally:
        rules.write_text(before)
        postgres_server.sql("SELECT pg_reload_conf()")
        postgres_server.sql("DROP OWNED BY alice; DROP ROLE alice")


BAD_FACTS = {
    "a time that never comes": "created_at = 'infinity', updated_at = 'nan'",
    "a time beyond all calendars": "created_at = 1e300, updated_at = -1e300, due_at = -1e300",
    "a due time that is none": "due_at = 'nan'",
    "a key of another length": r"key = '\x01'",
    "no key at all": "key = ''",
    "a driver that is none": """owner = '{"pid": 999999999999999999999999, "lease": "zzz"}'""",
}

BAD_ENTRIES = {
    "an entry of no time": "at = 'nan'",
    "an entry beyond all calendars": "at = 1e300",
    "a wave that is a text": r"mark = '\x94a1789090a0'",
    "the last wave of all": r"mark = '\x94ce7fffffff9091a161a0'",
    "a mark of nothing": "mark = ''",
    "a mark of numbers": r"mark = '\x9401020304'",
    "a mark that is cut": r"mark = '\x94019391'",
    "nodes within nodes": r"mark = '\x9401919191c0919190a0'",
    "a seq that is negative": "seq = -5",
}


@pytest.mark.parametrize("change", [*BAD_FACTS, *BAD_ENTRIES])
def test_no_value_of_a_tenant_breaks_the_views_of_the_owner(
    stores: dict[str, PostgresStore], change: str
) -> None:
    filled(stores["alice"], "bad")
    filled(stores["theirs"], "good")
    table, changes = ("run", BAD_FACTS[change]) if change in BAD_FACTS else ("entry", BAD_ENTRIES[change])
    where = "run = 'bad'" if table == "run" else "seq = (SELECT max(seq) FROM entry)"
    with stores["alice"].transaction() as connection:
        connection.execute(f"UPDATE {table} SET {changes} WHERE {where}".encode())

    with stores["theirs"].transaction() as connection:
        found = {
            view: connection.execute(f"SELECT * FROM {view} WHERE true".encode()).fetchall() for view in VIEWS
        }

    assert {"bad", "good"} <= {row[0] for row in found["runs"]}


def test_a_fork_that_is_in_two_namespaces_is_listed_with_its_parent_in_each(
    stores: dict[str, PostgresStore],
) -> None:
    for name in ("ours", "theirs"):
        create(stores[name], f"parent of {name}", key=b"parent 1")
        create(stores[name], "fork", key=b"fork 123", parent=b"parent 1")

    with stores["ours"].transaction() as connection:
        rows = connection.execute("SELECT namespace, forked_from FROM runs WHERE run = 'fork'").fetchall()

    assert sorted(rows) == [("ours", "parent of ours"), ("theirs", "parent of theirs")]


def test_what_is_notified_of_a_namespace_can_be_told_by_its_members_alone(
    stores: dict[str, PostgresStore], postgres_url: str
) -> None:
    """Every role hears every notification: the topics of two stores with the same runs have nothing in common."""
    ours, theirs, alice = stores["ours"], stores["theirs"], stores["alice"]
    with ours.transaction() as connection:
        keys = dict(connection.execute("SELECT namespace, key FROM topic_key").fetchall())
    with alice.transaction() as connection:
        seen = dict(connection.execute("SELECT namespace, key FROM topic_key").fetchall())
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("UPDATE topic_key SET key = ''")

    assert set(keys) == {"ours", "theirs"} and seen == {"ours": keys["ours"]}
    assert len(keys["theirs"]) == 32 and keys["ours"] != keys["theirs"]
    with theirs.transaction() as listening:
        listening.execute(f'LISTEN "{theirs.schema}:run"'.encode())
    heard = psycopg.connect(**alice._server.address.parameters, autocommit=True)
    heard.execute(f'LISTEN "{theirs.schema}:run"'.encode())
    create(theirs, "secret", key=b"theirkey")
    theirs.post("secret", b"hello")
    told = next(iter(heard.notifies(timeout=60, stop_after=1))).payload
    heard.close()
    guesses = [topic_of("theirs", key, "secret") for key in (b"", keys["ours"])]
    assert topic_of("theirs", keys["theirs"], "secret") in told
    assert not any(guess in told for guess in guesses)
