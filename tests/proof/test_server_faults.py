"""The short form of the PostgreSQL harness: every kind of fault at least once, on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import PostgresServer, open_folder
from tests.proof.server.proxy import Act
from tests.proof.server.scene import SCHEMA, Scene, before, seen
from tests.proof.server.tally import Tally
from tests.proof.server_faults import ALONE, IN_SCENE

SEED = 3


@pytest.fixture
def tally(caplog: pytest.LogCaptureFixture) -> Tally:
    caplog.set_level("CRITICAL")
    return Tally(SEED, quiet=True)


@pytest.fixture
def made(tally: Tally, postgres_server: PostgresServer) -> Iterator[Scene]:
    with (
        open_folder() as folder,
        before(postgres_server, tally, folder=folder) as proxy,
        seen(postgres_server, proxy, f"postgresql://postgres@/postgres?host={folder}", tally) as scene,
    ):
        yield scene
    postgres_server.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.mark.parametrize("kind", IN_SCENE)
def test_no_invariant_breaks_whatever_happens_to_the_server(made: Scene, kind: str) -> None:
    """S2.2: acknowledged work is kept, finished work is not repeated, one owner commits, no run is stranded."""
    IN_SCENE[kind](made, False, 0)

    assert not made.tally.broken, made.tally.table()
    assert made.tally.faults[kind] > 0, made.tally.table()
    if kind == "statements":
        assert {act for _, act in made.tally.acts} == {act.value for act in Act}


@pytest.mark.parametrize("kind", ALONE)
def test_no_invariant_breaks_on_other_servers(tally: Tally, kind: str) -> None:
    """By TCP with TLS and passwords; on a full disk; after a fail-over."""
    ALONE[kind](tally, False, 0)

    assert not tally.broken, tally.table()
    assert tally.faults[kind] > 0, tally.table()
