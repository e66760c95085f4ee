"""What a run records that goes back, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.data.state import State
from holdfast.engine.changes import sources_turned
from holdfast.engine.driving.route import first_targets
from holdfast.engine.settings import Settings
from holdfast.engine.travel.rerun import Rerun
from holdfast.errors import CannotRerun, CheckpointNotFound
from holdfast.journal.fold import apply
from holdfast.journal.journal import Journal
from holdfast.journal.records import Reset, Reusing, Steered
from holdfast.journal.run_state import (
    DONE,
    EVERY_STEP,
    RunState,
    at_checkpoint,
    names_within,
    renamed_path,
)
from holdfast.journal.wire import Track
from holdfast.journal.wire_runs import encode_run
from holdfast.plan.naming import outline_at
from holdfast.stores.base import RunInfo
from holdfast.values import START


def standing_at(journal: Journal, codec: Codec, rerun: Rerun) -> tuple[RunState, Track]:
    """The run as it stands where it is to go on from."""
    info, seq = rerun.base, rerun.seq
    if seq:
        loaded = journal.load(info, codec, seq)
        if loaded.seq != seq:
            raise CheckpointNotFound(f"run {info.run!r} has no entry {seq}; its last is {loaded.seq}")
        return at_checkpoint(loaded.run), loaded.track
    return begun(journal, codec, info)


def begun(journal: Journal, codec: Codec, info: RunInfo) -> tuple[RunState, Track]:
    """A run as it was when nothing of it had run."""
    entry = next(iter(journal.store.read(info.run, 0, 1)))
    run = RunState()
    apply(run, journal.records(info, entry, Track(), codec)[0], entry.at)
    return run, Track()


def taken_back(
    journal: Journal, codec: Codec, rerun: Rerun, why: str, by: str = "", *, updated: bool = False
) -> tuple[Reset, Reusing]:
    """What a run records that is itself taken back, to keep what is not affected.

    It is said whether its state is going to be `updated`: then no step remembers anything.
    """
    assert rerun.seq is not None
    run, track = standing_at(journal, codec, rerun)
    forget = EVERY_STEP if updated else rerun.forgotten(run)
    body = encode_run(run, track, codec)
    base, source = rerun.base, rerun.source
    name, key = ("", b"") if source is not None and source.key == base.key else (base.run, base.key)
    return Reset(name, rerun.seq, body, run, by, why, forget, key, renew=True), reused(rerun)


def reused(rerun: Rerun, *, anew: bool = False) -> Reusing:
    """What the run records to keep what is not affected; or what one records that begins `anew` where it stood."""
    source = rerun.source
    assert source is not None
    after = rerun.seq or 0 if source.key == rerun.base.key else 0
    name, own = (source.run, source.key) if anew else ("", b"")
    needs = tuple((own if key == source.key else key, seq) for key, seq in rerun.needs)
    return Reusing(name, own, after, rerun.upto, rerun.again, rerun.remap, needs)


async def begun_anew(
    settings: Settings, run: RunState, run_id: str, remap: Mapping[str, str]
) -> list[Steered]:
    """What is to be changed so that graphs that have just begun begin with what they begin with now."""
    found = []
    for path, frame in run.frames.items():
        now = renamed_path(path, remap) if path else path
        saved, present = outline_at(run.outline, path), outline_at(settings.outline, now)
        names = names_within(path, remap)
        same = _ways_in(saved) == _ways_in(present) and START not in sources_turned(saved, present, names)
        done = any(step.status == DONE for step in frame.active.values())
        if frame.waves or done or same or not run.outline:
            continue
        try:
            state = State.view(frame.cells, settings.codec, run_id, "", "", run.updated_at)
            targets = await first_targets(settings.graph.at(now), state, settings.codec)
        except Exception as error:
            raise CannotRerun(f"run {run_id!r}: what it begins with now cannot be told: {error}") from error
        wanted = {(target.node, target.key) for target in targets}
        known = {(names.get(step.node, step.node), step.key): step.id for step in frame.active.values()}
        drop = tuple(name for place, name in known.items() if place not in wanted)
        add = tuple(target for target in targets if (target.node, target.key) not in known)
        if drop or add:
            found.append(Steered(path, drop, (), add, why="the graph begins otherwise now", anew=True))
    return found


def _ways_in(outline: Mapping[str, Any]) -> list[Any]:
    return [list(way) for part in ("edges", "routes") for way in outline.get(part, ()) if way[0] == START]
