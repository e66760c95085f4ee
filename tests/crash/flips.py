"""Change single bytes of stored runs, one at a time, and look: `python -m tests.crash.flips --store sqlite --every`.

Whatever byte is changed, a reader gets a `HoldfastError` or exactly what was written, and `fsck` reports the
change unless it is in bytes without meaning. Those are, and nothing else:

- of a SQLite file, what a dump of all rows and of the schema does not show: unused parts of pages, the change
  counters and the version numbers of its header, and what makes SQLite read its own pages in another way to the same
  rows (`integrity_check` tells of most of that all the same);
- of a pruned run, the body and the time of the entry at its horizon, which nobody reads: its snapshot stands for it;
  and the time that is noted beside that snapshot, which is in the snapshot, too;
- the time at which a message was posted, which nobody reads either;
- of a `run.json`, which kind of white space parts its words.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from holdfast import HoldfastError, open_store
from holdfast.engine.commands.inbox import RunCommand, open_message, write_message
from holdfast.integrity import check_store
from holdfast.journal import writer
from holdfast.journal.checkpoint_ids import decode_checkpoint
from holdfast.journal.journal import Journal
from holdfast.state.codec import TolerantCodec
from holdfast.stores.base import Store
from holdfast.views.runs import run_list, run_view
from tests.graphs import chain, one

CODEC = TolerantCodec()
LOOKED_AT = 4
"""At how many checkpoints of each run, at least, the state is looked at."""


class Media(NamedTuple):
    """A kind of store on a disk: its URL, and the files that hold runs."""

    url: str
    files: Callable[[Path], list[Path]]


def _sqlite_files(folder: Path) -> list[Path]:
    return [folder / "runs.db"]


def _run_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


MEDIA = {
    "sqlite": Media("sqlite:///{}/runs.db", _sqlite_files),
    "file": Media("file://{}/runs", _run_files),
}


def fill(store: Store, steps: int = 3) -> None:
    """Runs with all that can be stored of a run: snapshots, questions, messages, a fork, a pruned beginning."""
    floor, writer.SNAPSHOT_FLOOR = writer.SNAPSHOT_FLOOR, -4000
    try:
        names = [f"s{number}" for number in range(steps)]
        long = chain(*names, name="long").compile(store)
        long.invoke({"n": 1}, run_id="long", config={"tags": ["kept"]})
        long.resume(long.checkpoints("long")[0].id)
        one(lambda state, ctx: {"log": [ctx.ask("well?")]}).compile(store).invoke({"n": 2}, run_id="asked")
        store.post("asked", write_message(RunCommand("answer", pause="p", value=b"\x01\x05", by="ada")))
        long.invoke({"n": 3}, run_id="pruned")
        journal = Journal(store)
        horizon = store.checkpoints("pruned")[1].seq
        loaded = journal.load(journal.info("pruned"), CODEC, horizon)
        store.prune("pruned", journal.make_snapshot(loaded, CODEC))
    finally:
        writer.SNAPSHOT_FLOOR = floor


def seen(store: Store, *, all_checkpoints: bool = False) -> dict[str, Any]:
    """What readers see of a store, by what they ask; what they are refused is an error."""
    found: dict[str, Any] = {}
    journal = Journal(store)

    def ask(what: str, question: Callable[..., Any], *about: Any) -> None:
        try:
            found[what] = question(*about)
        except HoldfastError as error:
            found[what] = error

    ask("runs", _lines, journal)
    infos = []
    with contextlib.suppress(HoldfastError):
        infos = store.runs()
    for info in infos:
        run = info.run
        ask(f"head of {run}", _state, journal, run)
        ask(f"view of {run}", _view, journal, run)
        ask(f"inbox of {run}", _inbox, journal, run)
        marks: list[Any] = []
        with contextlib.suppress(HoldfastError):
            marks = store.checkpoints(run)
        for mark in marks if all_checkpoints else marks[:: max(1, len(marks) // LOOKED_AT)]:
            ask(f"checkpoint {mark.seq} of {run}", _checkpoint, journal, info, mark)
    return found


def _lines(journal: Journal) -> Any:
    return [(line.run_id, line.workflow, str(line.status), line.tags) for line in run_list(journal)]


def _inbox(journal: Journal, run: str) -> Any:
    info = journal.info(run)
    return [open_message(journal, info, message, sealed=False) for message in journal.store.inbox(run)]


def _state(journal: Journal, run: str, upto: int | None = None) -> Any:
    loaded = journal.load(journal.info(run), CODEC, upto)
    cells = {key: slot.get() for key, slot in loaded.run.root.cells.items()}
    return cells, str(loaded.run.status), sorted(loaded.run.pauses), loaded.run.steps_done, loaded.seq


def _view(journal: Journal, run: str) -> Any:
    view = run_view(journal, run)
    steps = [(step.name, str(step.status)) for step in view.steps]
    return json.dumps({"state": view.state.to_dict(), "steps": steps}, default=str, sort_keys=True)


def _checkpoint(journal: Journal, info: Any, mark: Any) -> Any:
    found = decode_checkpoint(info.key, mark, info.run)
    return (
        found.id,
        found.wave,
        found.nodes,
        found.next,
        found.created_at,
        _state(journal, info.run, mark.seq),
    )


def wrong(whole: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what readers show that was never written."""
    false = []
    for what, answer in now.items():
        if isinstance(answer, HoldfastError):
            continue
        if what == "runs":
            false += [f"run {line}" for line in answer if line not in whole["runs"]]
        elif what.startswith("inbox"):
            known = whole.get(what, [])
            false += [f"{what}: {wish}" for wish in answer if wish.kind != "unreadable" and wish not in known]
        elif whole.get(what) != answer:
            false.append(f"{what}: {answer!r:.300}, not {whole.get(what)!r:.300}")
    return false


def verdict(whole: dict[str, Any], url: str, is_meaningless: Callable[[], bool]) -> tuple[str, list[str]]:
    """What a changed byte led to, and everything that should not have come of it."""
    try:
        store = open_store(url)
    except HoldfastError:
        return "detected", []
    try:
        now = seen(store)
        false = wrong(whole, now)
        errors = [what for what, answer in now.items() if isinstance(answer, HoldfastError)]
        problems = check_store(store).problems
    finally:
        with contextlib.suppress(HoldfastError):
            store.close()
    missing = [what for what in whole if what not in now and not what.startswith("checkpoint")]
    if not problems:
        if errors or missing or false or not is_meaningless():
            false.append(f"fsck finds nothing; refused: {errors}; missing: {missing}")
        return "meaningless", false
    return "detected" if errors else "fsck" if missing else "right", false


def dump(path: Path) -> Any:
    """All that a SQLite file says, however it is laid out; `None` if it cannot be read."""
    connection = None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        tables = ("sqlite_schema", "runs", "entries", "snapshots", "inbox")
        rows = {
            table: connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall() for table in tables
        }
        rows["sqlite_schema"] = [(row[0], row[1], row[2], row[4]) for row in rows["sqlite_schema"]]
        return rows
    except (apsw.Error, UnicodeError):
        return None
    finally:
        if connection is not None:
            connection.close(True)


def flips(
    kind: str, folder: Path, places: Callable[[int], list[int]], rng: random.Random, steps: int = 3
) -> Iterator[tuple[str, list[str], str]]:
    """Change bytes of every file of a store: what it led to, what should not have come of it, and where it was."""
    media = MEDIA[kind]
    whole_folder = folder / "whole"
    whole_folder.mkdir()
    store = open_store(media.url.format(whole_folder))
    fill(store, steps)
    store.close()
    if kind == "sqlite":
        _settle(whole_folder / "runs.db")
    store = open_store(media.url.format(whole_folder))
    whole = seen(store, all_checkpoints=True)
    assert check_store(store).problems == (), check_store(store).problems
    store.close()
    if kind == "sqlite":
        _settle(whole_folder / "runs.db")
    files = media.files(whole_folder)
    sizes = [path.stat().st_size for path in files]
    rows = dump(whole_folder / "runs.db") if kind == "sqlite" else None
    offset = 0
    wanted = places(sum(sizes))
    for path, size in zip(files, sizes, strict=True):
        content = path.read_bytes()
        for place in (place - offset for place in wanted if offset <= place < offset + size):
            copy = folder / "copy"
            shutil.copytree(whole_folder, copy)
            changed = bytearray(content)
            changed[place] ^= rng.randrange(1, 256)
            target = copy / path.relative_to(whole_folder)
            target.write_bytes(changed)
            where = (
                f"{path.relative_to(whole_folder)} byte {place}: {content[place]:02x} -> {changed[place]:02x}"
            )

            def is_meaningless(
                target: Path = target, content: bytes = content, changed: bytes = bytes(changed)
            ) -> bool:
                if kind != "sqlite":
                    return target.name == "run.json" and json.loads(changed) == json.loads(content)
                aside = folder / "dumped.db"
                aside.write_bytes(changed)
                try:
                    return bool(_as_read(dump(aside)) == _as_read(rows))
                finally:
                    for left in folder.glob("dumped.db*"):
                        left.unlink()

            try:
                what, false = verdict(whole, media.url.format(copy), is_meaningless)
            except Exception as error:
                where_from = traceback.extract_tb(error.__traceback__)[-1]
                what, false = "crashed", [f"{type(error).__name__}: {error} at {where_from}"]
            shutil.rmtree(copy)
            yield what, false, where
        offset += size


def _as_read(rows: Any) -> Any:
    """The rows without what nobody reads: the entry at a pruned horizon, but its chain, and the times of messages."""
    if rows is None:
        return None
    first: dict[int, int] = {}
    for row in rows["entries"]:
        first[row[0] >> 32] = min(row[0], first.get(row[0] >> 32, row[0]))
    kept = [
        (row[0], row[2]) if row[0] & 0xFFFFFFFF > 1 and first[row[0] >> 32] == row[0] else row
        for row in rows["entries"]
    ]
    horizons = {number for number in first.values() if number & 0xFFFFFFFF > 1}
    snapshots = [(row[0], *row[2:]) if row[0] in horizons else row for row in rows["snapshots"]]
    messages = [(row[0], row[2]) for row in rows["inbox"]]
    return {**rows, "entries": kept, "snapshots": snapshots, "inbox": messages}


def _settle(path: Path) -> None:
    """Bring all of a database into its one file, with small pages, so that few bytes of it are unused."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for command in ("journal_mode = DELETE", "page_size = 512"):
        connection.execute(f"PRAGMA {command}").fetchall()
    connection.execute("VACUUM")
    connection.close(True)


def main(words: list[str] | None = None) -> int:
    """Change bytes as asked; print the counts of the results, and every wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=MEDIA, required=True)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--every", action="store_true", help="every byte of a small store")
    how.add_argument("--random", type=int, metavar="N", help="N bytes of a large store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="with --every: only every so many bytes")
    given = parser.parse_args(words)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    rng = random.Random(given.seed)

    def places(size: int) -> list[int]:
        if given.every:
            return list(range(given.seed % given.stride, size, given.stride))
        return sorted(rng.randrange(size) for _ in range(given.random))

    counts: Counter[str] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        for what, false, where in flips(given.store, Path(folder), places, rng, 3 if given.every else 200):
            counts[what] += 1
            if sys.stderr.isatty() and not sum(counts.values()) % 100:
                print(f"\r{sum(counts.values())} bytes changed ", end="", file=sys.stderr, flush=True)
            if false:
                bad += 1
                print(f"{where}: {what}: {'; '.join(false)}", flush=True)
    told = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    print(f"{given.store}: {sum(counts.values())} bytes changed: {told}; {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
