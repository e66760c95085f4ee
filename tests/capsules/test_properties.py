"""Runs of random graphs: exporting what was imported gives the same bytes, on every store, at every checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import App, HoldfastError, open_store
from holdfast.capsules import import_run, inspect_capsule
from holdfast.journal.copying import prune_run
from holdfast.journal.encoding import Track, encode_run
from holdfast.journal.journal import Journal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import Store
from tests.capsules.samples import driven, exported, varied

WORK = st.fixed_dictionaries(
    {
        name: st.sampled_from(("ok", "ok", "ask", "fail", "large"))
        for name in ("a", "b", "c", "x", "y", "item")
    }
)
EDGES = st.lists(st.sampled_from([("a", "c"), ("a", "sub"), ("b", "c")]), unique=True, max_size=2)
DEEDS = st.lists(
    st.sampled_from(
        (
            "edit",
            "skip",
            "answer",
            "resume",
            "pause",
            "cancel",
            "fork",
            "go back",
            "update",
            "promote",
            "prune",
        )
    ),
    max_size=5,
)
numbers = itertools.count()


def done(app: App, run: str, deed: str) -> str:
    """Do something to a run, if it lets us; the run to go on with, which may be a fork."""
    try:
        match deed:
            case "edit":
                app.edit(run, {"n": 7})
            case "skip":
                app.skip(run, "b")
            case "answer":
                app.answer(run, answers={pause.id: "yes" for pause in app.pauses(run)})
            case "resume":
                driven(app, run, begin=False)
            case "pause":
                app.pause(run)
            case "cancel":
                app.cancel(run)
            case "fork":
                return app.fork(run, app.checkpoints(run)[0].id, update={"n": 8})
            case "go back":
                app.rollback(run, app.checkpoints(run)[0].id)
            case "update":
                app.update_state(run, {"n": 9})
            case "promote":
                app.promote(app.fork(run))
            case "prune":
                marks = app.store.checkpoints(run)
                journal = app._settings.journal
                prune_run(journal, journal.info(run), marks[len(marks) // 2].seq)
    except (HoldfastError, IndexError):
        pass
    return run


def folded(store: Store, run: str) -> bytes:
    """Return everything in a run's journal except its owner."""
    journal, codec = Journal(store), TolerantCodec()
    state = journal.load(journal.info(run), codec).run
    state.owner = ""
    return encode_run(state, Track(), codec)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(WORK, EDGES, DEEDS, st.integers(0, 2))
def test_export_import_export_is_the_same_byte_for_byte(
    store: Store,
    tmp_path: Path,
    work: dict[str, str],
    edges: list[tuple[str, str]],
    deeds: list[str],
    turns: int,
) -> None:
    """S1.17."""
    run = f"run{next(numbers)}"
    app = varied(open_store("memory://"), work, edges, turns)
    driven(app, run, begin=True)
    for deed in (None, *deeds):
        run = run if deed is None else done(app, run, deed)
    path = exported(app.store, run, tmp_path)

    import_run(store, path, trust=True)

    assert exported(store, run, tmp_path, "again").read_bytes() == path.read_bytes()
    assert folded(store, run) == folded(app.store, run)
    assert inspect_capsule(path).is_read and not inspect_capsule(path).notes
    import_run(store, path, run_id=f"{run}-copy", trust=True)
    assert varied(store, work, edges, turns).get_state(f"{run}-copy") == app.get_state(run)
