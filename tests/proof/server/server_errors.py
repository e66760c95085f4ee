"""Errors that the server itself raises: a trigger on the store's tables raises the n-th time that it is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.proof.server.scene import Scene
from tests.proof.server.statements import IMPATIENT, PATIENT, finish
from tests.proof.server.trials import WORK

PASSING = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53300": "too many connections",
    "57P01": "the server is shutting down",
    "57P02": "crash of another backend",
    "57P03": "the server is starting up",
    "08006": "connection failure",
}
"""What is over when it is tried again: a patient driver notices nothing."""

LASTING = {
    "55P03": "lock not available",
    "57014": "query cancelled",
    "53100": "disk full",
    "53200": "out of memory",
    "58030": "input/output error",
    "XX000": "internal error",
}
"""What the run is stopped for, with an error that says what to do; it can be resumed."""

WHEN = {"statement": "", "commit": " at commit"}

_SETUP = """
CREATE TABLE IF NOT EXISTS {schema}.trouble (at bigint PRIMARY KEY, state text NOT NULL, moment text NOT NULL);
CREATE SEQUENCE IF NOT EXISTS {schema}.statement_calls;
CREATE SEQUENCE IF NOT EXISTS {schema}.commit_calls;
CREATE OR REPLACE FUNCTION {schema}.make_trouble() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    number bigint := nextval(('{schema}.' || TG_ARGV[0] || '_calls')::regclass);
    found text;
BEGIN
    SELECT state INTO found FROM {schema}.trouble WHERE at = number AND moment = TG_ARGV[0];
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'made trouble' USING ERRCODE = found;
    END IF;
    RETURN NULL;
END $$;
"""
_TRIGGER = """
DROP TRIGGER IF EXISTS trouble_in_statement ON {schema}.{table};
CREATE TRIGGER trouble_in_statement AFTER INSERT OR UPDATE ON {schema}.{table}
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.make_trouble('statement');
DROP TRIGGER IF EXISTS trouble_at_commit ON {schema}.{table};
CREATE CONSTRAINT TRIGGER trouble_at_commit AFTER INSERT OR UPDATE ON {schema}.{table} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION {schema}.make_trouble('commit');
"""
_REMOVE = (
    "DROP TRIGGER IF EXISTS trouble_in_statement ON {schema}.{table};"
    "DROP TRIGGER IF EXISTS trouble_at_commit ON {schema}.{table};"
)
_TABLES = ("entry", "run", "inbox")


def every_error(
    scene: Scene, workflows: Iterable[str] = tuple(WORK), states: Sequence[str] = (), every: int = 1
) -> None:
    """Each error at each call of the trigger, in the statement and at the commit."""
    texts = {**PASSING, **LASTING}
    scene.control.ask(_SETUP.format(schema=scene.schema))
    for table in _TABLES:
        scene.control.ask(_TRIGGER.format(schema=scene.schema, table=table))
    try:
        for workflow in workflows:
            number = 0
            for state in states or texts:
                for moment in WHEN:
                    number += 1
                    _at_each_call(scene, workflow, state, texts[state], moment, 1 + number % every, every)
    finally:
        for table in _TABLES:
            scene.control.ask(_REMOVE.format(schema=scene.schema, table=table))


def _at_each_call(
    scene: Scene, workflow: str, state: str, text: str, moment: str, first: int, every: int
) -> None:
    is_passing = state in PASSING
    with scene.store(PATIENT if is_passing else IMPATIENT) as store:
        wanted, _ = scene.undisturbed(workflow, store)
        for at in range(first, 1000, every):
            _arm(scene, at, state, moment)
            trial = scene.trial(workflow)
            trial.drive(store)
            place = f"{state} {text}{WHEN[moment]}, call {at}, {trial.run}"
            happened = _calls(scene, moment) >= at
            if happened:
                scene.tally.hit("errors", f"{state} {text}{WHEN[moment]}")
            finish(scene, trial, "errors", workflow, wanted, place, is_passing)
            if not happened:
                return


def _arm(scene: Scene, at: int, state: str, moment: str) -> None:
    scene.control.ask(
        f"TRUNCATE {scene.schema}.trouble; "
        f"SELECT setval('{scene.schema}.{moment}_calls', 1, false); "
        f"INSERT INTO {scene.schema}.trouble VALUES ({at}, '{state}', '{moment}')"
    )


def _calls(scene: Scene, moment: str) -> int:
    ((last, is_called),) = scene.control.ask(
        f"SELECT last_value, is_called FROM {scene.schema}.{moment}_calls"
    )
    return int(last) if is_called else 0
